"""The Prometheus registry behind every `/metrics` and every file of metrics, and its text.

The registry escapes labels, which clients may choose. A metric with thousands of values makes its own text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric, Sample
from prometheus_client.registry import Collector

from millrace.escaping import escaped


class EscapingRegistry(CollectorRegistry):
    """Collects from the registered collectors, with each label's value escaped."""

    def __init__(self) -> None:
        super().__init__(auto_describe=False)

    def collect(self) -> Iterator[Metric]:
        for metric in super().collect():
            metric.samples = [*map(_escaped, metric.samples)]
            yield metric


class LargeMetric(Metric):
    """A counter or gauge of whole numbers, for thousands of labels: a sample for each would take too long."""

    def __init__(self, name: str, text: str, kind: str, values: Iterable[tuple[str, int]]) -> None:
        """Take the values with their labels as text, such as `topic="orders"`, which nothing escapes."""
        super().__init__(name, text, kind)
        self._values = values

    def text(self) -> str:
        """Return the metric in the text format."""
        name = f"{self.name}_total" if self.type == "counter" else self.name
        head = f"# HELP {name} {self.documentation}\n# TYPE {name} {self.type}\n"
        return head + "".join([f"{name}{{{labels}}} {value}\n" for labels, value in self._values])


@dataclass(frozen=True, slots=True, eq=False)
class _Collected(Collector):
    metrics: Sequence[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.metrics


def text_of(collector: Collector) -> bytes:
    """Return all metrics in Prometheus's text format 0.0.4."""
    metrics = list(collector.collect())
    others = _Collected([metric for metric in metrics if not isinstance(metric, LargeMetric)])
    large = "".join([metric.text() for metric in metrics if isinstance(metric, LargeMetric)])
    return bytes(generate_latest(others)) + large.encode()


def _escaped(sample: Sample) -> Sample:
    if all(map(str.isprintable, sample.labels.values())):
        return sample
    return sample._replace(labels={name: escaped(value) for name, value in sample.labels.items()})
