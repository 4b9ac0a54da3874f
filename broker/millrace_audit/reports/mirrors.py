"""What partitions of the aggregate cluster are mirrors of, as its brokers keep it in ZooKeeper.

A position batch says the same, and how far its partition has come. But none is visible before the append
behind its own: of a partition with one append, and of the end of any, only ZooKeeper and the leader can tell.
"""

from __future__ import annotations

from millrace.client.cluster_client import ClusterClient
from millrace.coordination.session import Session
from millrace.coordination.state import decode_topic
from millrace.errors import MillraceError
from millrace.records.mirror_position import MirrorPosition, Origin
from millrace.wire.mirror_append import MirrorAppend, MirrorMode


class Mirrors:
    """The mirrored partitions of one cluster, for one thread."""

    def __init__(self, session: Session, client: ClusterClient) -> None:
        self._session, self._client = session, client
        self._name: str | None = None
        self._origins: dict[tuple[str, int], Origin | None] = {}

    def origin(self, topic: str, topic_id: str, partition: int) -> Origin | None:
        """What the partition is a mirror of, which never changes; None for a partition of the cluster's own.

        RequestTimedOut when ZooKeeper is away, MillraceError when it does not know the partition (yet).
        """
        key = (topic_id, partition)
        if key not in self._origins:
            node = self._session.get(f"/{self._cluster()}/topics/{topic}")
            state = None if node is None else decode_topic(topic, node[0])
            if state is None or state.topic_id.hex != topic_id or partition not in state.partitions:
                raise MillraceError(f"ZooKeeper does not know {topic}-{partition} (any more)")
            self._origins[key] = state.partitions[partition].origin
        return self._origins[key]

    def _cluster(self) -> str:
        if self._name is None:
            self._name = cluster_name(self._session, self._client)
        return self._name

    def position(self, topic: str, origin: Origin) -> tuple[MirrorPosition | None, int]:
        """How far the mirror of the origin has come, by its leader; None before its first append.

        Beside it the offset behind the last record that the position accounts for.
        """
        described = self._client.mirror_append(topic, MirrorAppend(mode=MirrorMode.DESCRIBE, origin=origin))
        return described.position, described.high_watermark


def cluster_name(session: Session, client: ClusterClient) -> str:
    """The name of the client's cluster: what its registries in ZooKeeper are below.

    MillraceError when ZooKeeper has no such cluster.
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
