"""The registry of an Apache Kafka as aggregate cluster: the origin partition of each of its partitions.

Kafka itself cannot store it. The registry is in Millrace's ZooKeeper in the form that Millrace's brokers use,
so that auditor and readers find it there: `/<cluster>/id` holds Kafka's cluster id,
`/<cluster>/topics/<topic>` the entry described in zookeeper/topic_state.py, with the topic id from Kafka.
This module creates topics and partitions in Kafka, and copies nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from millrace.client.cluster_client import LATEST, ClusterClient, TopicMetadata
from millrace.client.copied_topics import COPIES_TOPIC
from millrace.client.topic_admin import add_partitions
from millrace.errors import BrokerError, ErrorCode, MillraceError, PolicyViolation
from millrace.records.mirror_position import Origin
from millrace.topic_names import check_topic_name
from millrace.wire.mirror_append import BYTE_OFFSETS_PREFIX
from millrace.zookeeper.session import Session
from millrace.zookeeper.topic_state import BrokerAddress, TopicState, decode_topic, encode_topic
from millrace_broker.coordination.new_partitions import with_mirrors
from millrace_broker.coordination.placement import Load

logger = logging.getLogger("millrace.mirror.kafka_aggregate")

MIRROR_ID = 0
"""Id of the "leader" of every copy in the registry: the only mirror process."""
LARGEST_BATCH = 8 << 20
"""Largest batch of Millrace's brokers; Apache Kafka's default is 1 MiB."""
ANY_TIME = {"message.timestamp.after.max.ms": str((1 << 63) - 1)}
"""Topic setting that allows any timestamp: an origin may hold messages dated more than an hour ahead, which
Apache Kafka refuses since 4.0."""


class KafkaAggregate:
    """One Apache Kafka that is filled by mirrors. `topics` is a snapshot, readable from any thread."""

    def __init__(self, session: Session, name: str, client: ClusterClient) -> None:
        """Claim the name.

        Raise MillraceError if another cluster has it, or the brokers are Millrace's own.
        """
        self.name, self._session, self._client = name, session, client
        self.cluster_id = client.cluster_id
        self.brokers: Mapping[int, BrokerAddress] = {MIRROR_ID: BrokerAddress(*_first(client))}
        self.topics: Mapping[str, TopicState] = {}
        self._lock = threading.Lock()
        if client.copies is not None:
            raise MillraceError(
                f"MirrorMaker 2 fills {client.bootstrap}, as {COPIES_TOPIC} says: two mirrors would copy"
                " everything twice"
            )
        claim_name(session, name, client)
        self.refresh()

    def refresh(self) -> None:
        """Read the registry again, without topics that were deleted in Kafka: they are copied again.

        Raise MillraceError when ZooKeeper or Kafka does not answer.
        """
        with self._lock:
            names = self._session.children(f"/{self.name}/topics")
            nodes = self._session.read_all(map(self._path, names))
            there = self._client.topics(names)
            topics = {}
            for name in names:
                state = decode_topic(name, nodes[self._path(name)][0]) if self._path(name) in nodes else None
                if state is not None and name in there and there[name].topic_id == state.topic_id:
                    topics[name] = state
                elif name in self.topics:
                    logger.warning("topic %s was deleted in %s: it is copied again", name, self.name)
            self.topics = topics

    def allocate_mirrors(
        self, topic: str, origins: Sequence[Origin], *, recreated: bool = False
    ) -> dict[Origin, int]:
        """Return the partition that copies each origin partition: its present one, or a new one, never
        reused.

        Raise OriginRecreated or PolicyViolation as Cluster.allocate_mirrors does.
        """
        check_topic_name(topic)
        with self._lock:
            while True:
                node = self._session.get(self._path(topic))
                here = self._client.topics([topic]).get(topic)
                known = decode_topic(topic, node[0]) if node is not None else None
                if here is None:
                    self._create(topic, len(origins))
                    here = self._client.topic(topic)
                elif known is None:
                    self._check_empty(here)
                if known is None or known.topic_id != here.topic_id:  # the first time, or deleted meanwhile
                    known = TopicState(topic, here.topic_id, {}, {})
                state = with_mirrors(known, origins, self.brokers, Load(), recreated=recreated)
                # Before it is registered: registered partitions must exist.
                if len(state.partitions) > len(here.partitions):
                    add_partitions(self._client, topic, len(state.partitions))
                if self._write(topic, state, None if node is None else node[1].version):
                    self.topics = {**self.topics, topic: state}
                    targets = state.targets()
                    return {origin: targets[origin] for origin in origins}

    def _create(self, topic: str, partitions: int) -> None:
        size = {"max.message.bytes": str(LARGEST_BATCH)}
        try:
            self._client.create_topic(topic, partitions, size | ANY_TIME)
        except BrokerError as error:
            if error.code != ErrorCode.INVALID_CONFIG:
                raise
            self._client.create_topic(topic, partitions, size)  # Kafka before 3.6 accepts any timestamp

    def _check_empty(self, topic: TopicMetadata) -> None:
        if any(self._client.list_offsets(topic.name, LATEST).values()):
            raise PolicyViolation(
                f"topic {topic.name} has messages of its own in {self.name}: delete it, or leave it out"
                " of the mirror"
            )

    def _write(self, topic: str, state: TopicState, version: int | None) -> bool:
        """Write the topic's node. Return False when another process has changed it first."""
        path, data, client = self._path(topic), encode_topic(state), self._session.client
        try:
            if version is None:
                self._session.call(client.create_async, path, data, makepath=True)
            else:
                self._session.call(client.set_async, path, data, version)
        except (NodeExistsError, BadVersionError, NoNodeError):
            return False
        return True

    def _path(self, topic: str) -> str:
        return f"/{self.name}/topics/{topic}"


def claim_name(session: Session, name: str, client: ClusterClient) -> None:
    """Record in ZooKeeper that the Apache Kafka is the cluster of that name.

    Raise MillraceError when the name belongs to another cluster, the Kafka has another name, or the brokers
    are Millrace's own.
    """
    if client.cluster_id.startswith(BYTE_OFFSETS_PREFIX):
        raise MillraceError(
            f"{client.bootstrap} are Millrace brokers, which mirror by themselves: name the origins as"
            " [mirror.NAME] in the brokers' configuration files"
        )
    for other in session.children("/"):
        node = session.get(f"/{other}/id") if other != name else None
        if node is not None and node[0].decode() == client.cluster_id:
            raise MillraceError(
                f"{client.bootstrap} is cluster {other} in ZooKeeper at {session.zookeeper}: two names would"
                f" copy everything twice; give that name, or delete /{other} there if no mirror uses it"
            )
    path = f"/{name}/id"
    try:
        session.call(session.client.create_async, path, client.cluster_id.encode(), makepath=True)
    except NodeExistsError:
        node = session.get(path)
        other = node[0].decode() if node is not None else ""
        if other != client.cluster_id:
            raise MillraceError(
                f"cluster {name} in ZooKeeper at {session.zookeeper} is {other}, and {client.bootstrap} is"
                f" {client.cluster_id}: give the right bootstrap, or another name"
            ) from None


def _first(client: ClusterClient) -> tuple[str, int]:
    client.topics([])
    return min(client.addresses.values())
