"""The metrics of a mirror, for a broker that mirrors by itself and for a mirror into an Apache Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import core
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from millrace_broker.metrics.numbers import Declaration, metrics_by
from millrace_broker.partitions.broker import Broker
from millrace_mirror.kafka_target import KafkaTarget
from millrace_mirror.states import MirrorStates, State

_PARTITION = ("topic", "partition")
_COUNTER, _GAUGE, _HISTOGRAM = core.CounterMetricFamily, core.GaugeMetricFamily, core.HistogramMetricFamily
METRICS: dict[str, Declaration] = {
    "mirror_batches": (_COUNTER, "Batches that were copied from an origin and are visible.", ("origin",)),
    "mirror_records": (_COUNTER, "Messages copied from an origin and visible.", ("origin",)),
    "mirror_bytes": (_COUNTER, "Bytes of batches copied from an origin and visible.", ("origin",)),
    "mirror_transactions": (
        _COUNTER,
        "Transactions of a mirror into an Apache Kafka: committed, or refused and retried.",
        ("origin", "outcome"),
    ),
    "mirror_state": (_GAUGE, "1 for the mirror's current state.", ("origin", *_PARTITION, "state")),
    "mirror_lag": (
        _GAUGE,
        "Offsets of the origin (bytes, or messages of Apache Kafka) not copied yet.",
        ("origin", *_PARTITION),
    ),
    "mirror_latency_seconds": (
        _HISTOGRAM,
        "Latency of each append of a mirror: from its first batch's timestamp until consumers see it; for"
        " old events from their arrival at the origin.",
        ("origin",),
    ),
}
"""A mirror's metrics by name."""


@dataclass(frozen=True, slots=True, eq=False)
class BrokerMirrorNumbers(Collector):
    """Metrics of the mirror inside a broker; collected in the thread of the request."""

    states: MirrorStates
    broker: Broker

    def collect(self) -> Iterator[Metric]:
        yield from mirror_metrics(self.states, self._copied_through)

    def _copied_through(self, topic: str, number: int) -> int:
        partition = self.broker.partitions.get((topic, number))
        position = partition.log.snapshot[0].mirror if partition is not None else None
        return position.cursor.next_offset if position is not None else 0


@dataclass(frozen=True, slots=True, eq=False)
class KafkaMirrorNumbers(Collector):
    """Metrics of the mirror into an Apache Kafka; collected in the thread of the request."""

    states: MirrorStates
    targets: Mapping[str, KafkaTarget]
    """Origin -> target."""

    def collect(self) -> Iterator[Metric]:
        yield from mirror_metrics(self.states, self._copied_through)
        counts = {origin: target.transactions.copy() for origin, target in self.targets.items()}
        values = [((origin, outcome), n) for origin, some in counts.items() for outcome, n in some.items()]
        yield metrics_by(METRICS, "mirror_transactions", values)

    def _copied_through(self, topic: str, number: int) -> int:
        mirror = self.states.get(topic, number)
        target = self.targets.get(mirror.origin.cluster) if mirror is not None else None
        return target.copied_through(topic, number) if target is not None else 0


def mirror_metrics(mirrors: MirrorStates, copied_through: Callable[[str, int], int]) -> Iterator[Metric]:
    """Yield the metrics of one process.

    `copied_through` returns the next origin offset of a target partition.
    """
    lags, states = [], []
    for (topic, number), mirror in mirrors.all().items():
        labels = (mirror.origin.cluster, topic, str(number))
        states += [((*labels, str(state)), int(mirror.state is state)) for state in State]
        if mirror.high_watermark >= 0:
            lags.append((labels, max(0, mirror.high_watermark - copied_through(topic, number))))
    yield metrics_by(METRICS, "mirror_state", states)
    yield metrics_by(METRICS, "mirror_lag", lags)
    copied = [((origin,), sums) for origin, sums in sorted(mirrors.copied.copy().items())]
    yield metrics_by(METRICS, "mirror_batches", [(labels, sums.batches) for labels, sums in copied])
    yield metrics_by(METRICS, "mirror_records", [(labels, sums.records) for labels, sums in copied])
    yield metrics_by(METRICS, "mirror_bytes", [(labels, sums.bytes) for labels, sums in copied])
    yield metrics_by(METRICS, "mirror_latency_seconds", [(labels, sums.latency) for labels, sums in copied])
