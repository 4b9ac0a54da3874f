"""The Prometheus registry behind every `/metrics` and every file of metrics.

It escapes labels, which clients may choose.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric, Sample

from millrace.escaping import escaped


class EscapingRegistry(CollectorRegistry):
    """Collects from the registered collectors, with each label's value escaped."""

    def __init__(self) -> None:
        super().__init__(auto_describe=False)

    def collect(self) -> Iterator[Metric]:
        for metric in super().collect():
            metric.samples = [*map(_escaped, metric.samples)]
            yield metric


def _escaped(sample: Sample) -> Sample:
    if all(map(str.isprintable, sample.labels.values())):
        return sample
    return sample._replace(labels={name: escaped(value) for name, value in sample.labels.items()})
