"""Origins of the aggregate cluster's mirrored partitions, and how far each partition is copied.

The brokers keep the origins in ZooKeeper. A position batch holds the origin, too, and the copied position.
But it becomes visible only with the next append. Therefore this module asks ZooKeeper and the leader about a
partition with one append, and about the end of any partition. In an Apache Kafka the mirror keeps the origins
in ZooKeeper as well, and its positions in a topic. If MirrorMaker 2 copies instead, topics' names show the
origins, and its offset syncs the positions; a topic's id at its origin is unknown.
"""

from __future__ import annotations

from uuid import UUID

from millrace.client.cluster_client import ClusterClient
from millrace.client.kafka_positions import Copy, PositionLog
from millrace.client.mirrormaker import Synced, SyncLog
from millrace.client.transactions import batches_from
from millrace.errors import MillraceError
from millrace.records import Cursor
from millrace.records.mirror_position import MirrorPosition, Origin
from millrace.wire.mirror_append import BYTE_OFFSETS_PREFIX, MirrorAppend, MirrorMode
from millrace.zookeeper.session import Session
from millrace.zookeeper.topic_state import decode_topic

NO_ID = UUID(int=0)
"""Topic id at the origin when the aggregate cluster does not know it."""


class NotInZooKeeper(MillraceError):
    """ZooKeeper does not have a partition: not yet, not any more, or because the partition is an Apache
    Kafka's own.
    """


class Mirrors:
    """A client for the positions of one cluster's mirrored partitions. For one thread."""

    def __init__(self, session: Session, client: ClusterClient) -> None:
        self._session, self._client = session, client
        self._name: str | None = None
        self._origins: dict[tuple[str, int], Origin | None] = {}
        self._positions: dict[str, PositionLog] = {}
        """Position topics of an Apache Kafka, by the origin's cluster."""
        self._syncs: dict[str, SyncLog] = {}
        """Offset syncs of MirrorMaker 2, by the origin's cluster."""
        self._copied_ends: dict[tuple[str, int], tuple[MirrorPosition | None, int]] = {}
        """Results of `copied_end`, until `position` returns them."""

    @property
    def in_kafka(self) -> bool:
        """True if the cluster is an Apache Kafka, whose log has no position batches."""
        return not self._client.cluster_id.startswith(BYTE_OFFSETS_PREFIX)

    def origin(self, topic: str, topic_id: str, partition: int) -> Origin | None:
        """Return the origin that the partition mirrors, which never changes; None for the cluster's own
        partitions.

        Raise RequestTimedOut when ZooKeeper does not answer. Raise NotInZooKeeper when it does not have the
        partition (yet).
        """
        if (copies := self._client.copies) is not None:
            cluster = copies.origin(partition)
            number = copies.in_cluster((topic, partition))[1]
            return None if cluster is None else Origin(cluster, topic, NO_ID, number)
        key = (topic_id, partition)
        if key not in self._origins:
            node = self._session.get(f"/{self._cluster()}/topics/{topic}")
            state = None if node is None else decode_topic(topic, node[0])
            if state is None or state.topic_id.hex != topic_id or partition not in state.partitions:
                raise NotInZooKeeper(f"ZooKeeper does not know {topic}-{partition} (any more)")
            self._origins[key] = state.partitions[partition].origin
        return self._origins[key]

    def _cluster(self) -> str:
        if self._name is None:
            self._name = cluster_name(self._session, self._client)
        return self._name

    def position(
        self, topic: str, topic_id: str, partition: int, origin: Origin, read: int
    ) -> tuple[MirrorPosition | None, int]:
        """Return the newest position of the origin's mirror; None before its first append.

        With it return the offset after the last record that the position accounts for, or `read` if no record
        lies between the two. A Millrace cluster's leader reports both; an Apache Kafka has them in a topic.
        """
        if self._client.copies is None and not self.in_kafka:
            request = MirrorAppend(mode=MirrorMode.DESCRIBE, origin=origin)
            described = self._client.mirror_append(topic, request)
            return described.position, described.high_watermark
        copied = self._copied_ends.pop((topic_id, partition), None)
        return copied if copied is not None else self._of_copy(topic, topic_id, partition, origin, read)

    def copied_end(self, topic: str, topic_id: str, partition: int, end: int) -> int | None:
        """Return the offset, at most `end`, before which the origin of an Apache Kafka's copies is known.

        `position` then describes the copies before that offset, however much is copied meanwhile. Return None
        for any other partition, for a partition that ZooKeeper does not have, and for a partition without a
        position in the mirror's topic.
        """
        if not self.in_kafka:
            return None
        try:
            origin = self.origin(topic, topic_id, partition)
        except NotInZooKeeper:
            return None
        if origin is None:
            return None
        copied = self._of_copy(topic, topic_id, partition, origin, end)
        if copied[0] is None and self._client.copies is None:
            return None
        self._copied_ends[topic_id, partition] = copied
        return copied[1]

    def _of_copy(
        self, topic: str, topic_id: str, partition: int, origin: Origin, read: int
    ) -> tuple[MirrorPosition | None, int]:
        if self._client.copies is not None:
            synced, through = self._synced(topic, partition, origin, read)
            cursor = Cursor(synced.origin_end, synced.origin_end)
            position = MirrorPosition(origin, 0, cursor, 0, 0, 0, numbered=True)
            return (position, through) if through else (None, 0)
        log = self._positions.setdefault(origin.cluster, PositionLog(self._client, origin.cluster))
        recorded = log.read().get(Copy(UUID(topic_id), partition))
        if recorded is None:
            return None, 0
        end = recorded.records_end
        return recorded.position, read if self._holds_nothing(topic, partition, end, read) else end

    def _synced(self, topic: str, partition: int, origin: Origin, read: int) -> tuple[Synced, int]:
        """Return the newest offset sync of a copy, and the offset before which it accounts for
        every record.
        """
        log = self._syncs.setdefault(origin.cluster, SyncLog(self._client, origin.cluster))
        synced = log.read().get((origin.topic, origin.partition), Synced(0, 0))
        end = synced.copy_end
        return synced, read if end and self._holds_nothing(topic, partition, end, read) else end

    def _holds_nothing(self, topic: str, partition: int, start: int, end: int) -> bool:
        """Return True if [start, end) holds only transaction markers and records of aborted transactions."""
        while start < end:
            # One batch at a time: usually there is only a marker, or the first batch has records.
            fetched = self._client.fetch(
                topic, {partition: start}, max_bytes=1, partition_max_bytes=1, max_wait_ms=100
            )[partition]
            batches = list(batches_from(fetched, start, f"{topic}-{partition}"))
            if not batches or any(readable for header, _, readable in batches if header.base_offset < end):
                return False
            start = batches[-1][0].next_offset
        return start == end


def cluster_name(session: Session, client: ClusterClient) -> str:
    """Return the name of the client's cluster, which is also the node above its registries in ZooKeeper.

    Raise MillraceError when ZooKeeper has no such cluster.
    """
    wanted = client.cluster_id
    for name in session.children("/"):
        node = session.get(f"/{name}/id")
        if node is not None and node[0].decode() == wanted:
            return name
    raise MillraceError(
        f"no cluster in ZooKeeper at {session.zookeeper} is that of {client.bootstrap}: give --zookeeper of"
        " the aggregate cluster"
    )
