"""Progress of every mirrored partition, requested from outside the brokers: rows for people and scripts.

ZooKeeper has the list of partitions. Their leaders report recorded positions and pullers' states, and the
origins their high watermarks. A missing answer leaves a gap in the row and is never an error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from millrace.client.cluster_client import ClusterClient
from millrace.client.examine import examine
from millrace.client.kafka_positions import Copy, PositionLog, positions_topic
from millrace.config import OriginConfig
from millrace.errors import MillraceError, UnknownTopicOrPartition
from millrace.records.mirror_position import MirrorPosition, Origin
from millrace.wire.mirror_append import MirrorAppend, MirrorAppended, MirrorMode
from millrace.zookeeper.topic_state import PartitionState
from millrace_broker.coordination.cluster import Cluster
from millrace_mirror.kafka_aggregate import KafkaAggregate
from millrace_mirror.states import State

TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorRow:
    """One origin partition and its mirror; None for values that could not be read."""

    topic: str
    partition: int
    """The target partition in this cluster."""
    origin: Origin
    leader: int
    position: MirrorPosition | None
    origin_high_watermark: int | None
    state: str
    """running, waiting, stopped, retired or unknown; batch if a task fills the partition; recorded if the
    target is an Apache Kafka, which reports no state."""
    detail: str = ""
    latency_ms: int | None = None
    """Latency of the last append, as `MirrorStates.when_visible` defines it."""

    @property
    def lag(self) -> int | None:
        """Offsets of the origin that are not copied yet: bytes on a Millrace origin."""
        if self.origin_high_watermark is None or self.state == "retired":
            return None
        done = self.position.cursor.next_offset if self.position is not None else 0
        return max(0, self.origin_high_watermark - done)


class Described(NamedTuple):
    """The target cluster's report of one partition.

    An empty state means that the cluster reports no state.
    """

    position: MirrorPosition | None
    state: str
    detail: str = ""
    latency_ms: int | None = None


class MirrorStatus:
    """A single request for the status of all partitions that are mirrored into one cluster."""

    otherwise = "batch"
    """State of a partition for which the cluster reports no state."""

    def __init__(self, cluster: Cluster | KafkaAggregate, origins: Mapping[str, OriginConfig]) -> None:
        self._cluster, self._origins = cluster, origins
        self._client: ClusterClient | None = None
        self._clients: dict[str, ClusterClient] = {}
        """Origin cluster -> its client."""
        self._silent: dict[str, str] = {}
        """Origin cluster -> error of the first request to it. No further request is sent to it."""

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        for client in self._clients.values():
            client.close()

    def origin(self, cluster: str) -> ClusterClient:
        """Return a client of an origin. Raise MillraceError when the configuration names no such cluster."""
        if cluster not in self._clients:
            config = self._origins.get(cluster)
            if config is None:
                raise MillraceError(f"the configuration has no [mirror.{cluster}]")
            self._clients[cluster] = ClusterClient(
                config.bootstrap, timeout_s=TIMEOUT_SECONDS, security=config.security
            )
        return self._clients[cluster]

    def former(self, origin: Origin) -> Origin | None:
        """Return the former origin of the same name and number, if `origin` itself has no target yet."""
        topic = self._cluster.topics.get(origin.topic)
        if topic is None or topic.target_of(origin) is not None:
            return None
        return topic.former_origin(origin)

    def rows(self) -> list[MirrorRow]:
        return [
            self._row(topic.name, number, state, state.origin)
            for topic in self._cluster.topics.values()
            for number, state in sorted(topic.partitions.items())
            if state.origin is not None
        ]

    def ask(self, topic: str, request: MirrorAppend) -> MirrorAppended:
        """Return the answer of the leader of the origin's target partition."""
        assert isinstance(self._cluster, Cluster), "only Millrace's brokers can be asked"
        if self._client is None:
            self._client = ClusterClient(self._cluster.bootstrap, timeout_s=TIMEOUT_SECONDS)
        return self._client.mirror_append(topic, request)

    def described(self, topic: str, number: int, partition: PartitionState) -> Described:
        """Return the partition's recorded position and state in this cluster."""
        if partition.leader not in self._cluster.brokers or partition.origin is None:
            return Described(None, "unknown", f"broker {partition.leader} is not alive")
        try:
            answer = self.ask(topic, MirrorAppend(mode=MirrorMode.DESCRIBE, origin=partition.origin))
        except MillraceError as error:
            return Described(None, "unknown", str(error))
        state, _, detail = answer.state.partition(": ")
        return Described(answer.position, state, detail, answer.latency_ms)

    def _row(self, topic: str, number: int, partition: PartitionState, origin: Origin) -> MirrorRow:
        position, state, detail, latency_ms = self.described(topic, number, partition)
        high_watermark = None
        try:
            if origin.cluster in self._silent:
                raise MillraceError(self._silent[origin.cluster])
            client = self.origin(origin.cluster)
            current = client.topic(origin.topic).topic_id
            if current == origin.topic_id:
                high_watermark = client.bounds(origin.topic, origin.partition)[1]
                if not state and position is not None and (changed := examine(client, position)) is not None:
                    state, detail = State.STOPPED, str(changed)
            else:
                state, detail = self._of_former_topic(topic, dataclasses.replace(origin, topic_id=current))
        except MillraceError as error:
            if not isinstance(error, UnknownTopicOrPartition):
                self._silent[origin.cluster] = str(error)
            state, detail = state or State.WAITING, detail or str(error)
        return MirrorRow(
            topic=topic,
            partition=number,
            origin=origin,
            leader=partition.leader,
            position=position,
            origin_high_watermark=high_watermark,
            latency_ms=latency_ms,
            state=state or self.otherwise,
            detail=detail,
        )

    def _of_former_topic(self, topic: str, successor: Origin) -> tuple[str, str]:
        """Return the state of a partition whose origin topic is deleted.

        It is retired once the new topic has a partition.
        """
        if self._cluster.topics[topic].target_of(successor) is not None:
            return "retired", "its topic is gone from the origin; the new one has a partition of its own"
        return State.STOPPED, "the origin's topic was deleted and recreated"


class KafkaMirrorStatus(MirrorStatus):
    """The status of a target that is an Apache Kafka: positions are in topics, and no state is reported."""

    otherwise = "recorded"

    def __init__(
        self, aggregate: KafkaAggregate, client: ClusterClient, origins: Mapping[str, OriginConfig]
    ) -> None:
        super().__init__(aggregate, origins)
        there = client.topics(map(positions_topic, origins))
        logs = {name: PositionLog(client, name) for name in origins if positions_topic(name) in there}
        self._recorded = {name: log.read() for name, log in logs.items()}
        self._topics = aggregate.topics

    def described(self, topic: str, number: int, partition: PartitionState) -> Described:
        assert partition.origin is not None
        copies = self._recorded.get(partition.origin.cluster, {})
        recorded = copies.get(Copy(self._topics[topic].topic_id, number))
        return Described(None if recorded is None else recorded.position, "")
