"""The text of metrics: ordinary ones, and those with thousands of values."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from millrace.service.exposition import EscapingRegistry, LargeMetric, text_of


class _Some(Collector):
    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily("few", "Few values.", 7)
        yield LargeMetric("bytes", "Bytes.", "counter", [('topic="a"', 1), ('topic="b"', 1 << 60)])
        yield LargeMetric("size", "Size.", "gauge", [('partition="0",topic="a"', 5)])
        yield LargeMetric("none", "No values yet.", "gauge", [])


def test_a_large_metric_reads_as_any_other() -> None:
    registry = EscapingRegistry()
    registry.register(_Some())
    read = {family.name: family for family in text_string_to_metric_families(text_of(registry).decode())}
    assert {name: (one.type, one.documentation) for name, one in read.items()} == {
        "few": ("gauge", "Few values."),
        "bytes": ("counter", "Bytes."),
        "size": ("gauge", "Size."),
        "none": ("gauge", "No values yet."),
    }
    values = {(s.name, *sorted(s.labels.items())): s.value for one in read.values() for s in one.samples}
    assert values == {
        ("few",): 7,
        ("bytes_total", ("topic", "a")): 1,
        ("bytes_total", ("topic", "b")): 1 << 60,
        ("size", ("partition", "0"), ("topic", "a")): 5,
    }
