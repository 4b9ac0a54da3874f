"""The numbers of a mirror into an Apache Kafka, by the names that a broker which mirrors by itself has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from millrace.metrics.numbers import metrics_of, mirror_metrics
from millrace.mirror.kafka_target import KafkaTarget
from millrace.mirror.states import MirrorStates


@dataclass(frozen=True, slots=True, eq=False)
class MirrorNumbers(Collector):
    """What is read of one process, called in the thread of whoever asks."""

    states: MirrorStates
    targets: Mapping[str, KafkaTarget]
    """By origin."""

    def collect(self) -> Iterator[Metric]:
        yield from mirror_metrics(self.states, self._copied_through)
        counts = {origin: target.transactions.copy() for origin, target in self.targets.items()}
        values = [((origin, outcome), n) for origin, some in counts.items() for outcome, n in some.items()]
        yield metrics_of("mirror_transactions", values)

    def _copied_through(self, topic: str, number: int) -> int:
        mirror = self.states.get(topic, number)
        target = self.targets.get(mirror.origin.cluster) if mirror is not None else None
        return target.copied_through(topic, number) if target is not None else 0
