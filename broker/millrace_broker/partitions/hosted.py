"""The partitions that this broker keeps: one record each, from the opening of the log to its removal.

`partitions/broker.py` opens and removes them; `partitions/replicas.py` leads and copies those with several
replicas. The event loop alone changes a record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TypeAlias
from uuid import UUID

from millrace import errors
from millrace.config import BrokerConfig
from millrace.records.topic_partition import TopicPartition
from millrace.wire.replica import ReplicaPartition
from millrace.zookeeper.topic_state import TopicState
from millrace_broker.mailbox import Notifier
from millrace_broker.partitions.partition import Partition
from millrace_broker.partitions.replicated_partition import ReplicatedPartition
from millrace_broker.partitions.topic_settings import topic_log_config
from millrace_broker.replication.copying import Copying
from millrace_broker.replication.leader_thread import LeaderThread
from millrace_broker.replication.replica import Replica
from millrace_broker.storage.partition_log import PartitionLog
from millrace_broker.storage.sides import CutSide, LoopSide

logger = logging.getLogger("millrace.broker")

Obstacle: TypeAlias = "Callable[[CutSide], None] | Exception"
"""The cut of the log that must come before anything more is copied, or the error that was met."""


class HostedState(Enum):
    """State of a partition on this broker. The method of `Broker` beside a state enters it."""

    OPENING = auto()  # _open
    OPEN = auto()  # _serve
    FAILED = auto()  # _fail
    CLOSING = auto()  # _remove, _dispose


@dataclass(slots=True, eq=False)
class HostedPartition:
    """A partition that this broker leads or has a replica of, or whose log it deletes."""

    key: TopicPartition
    topic: TopicState
    """The topic as last applied to the partition."""
    changes: Notifier
    """Wakes the life of the replica, if the partition has several."""
    state: HostedState = HostedState.OPENING
    opening: Future[PartitionLog] | None = None
    error: BaseException | None = None
    """Error of the last attempt to open the partition's log."""
    partition: Partition | None = None
    """Set while the partition is served. Other threads must read it once only."""
    gone: errors.BrokerError | None = None
    """Reason why the partition is no longer hosted; None while it is."""
    id: ReplicaPartition = field(init=False)
    opened: PartitionLog = field(init=False)
    """The whole log, once it is open, for threads, which use their own sides of it."""
    log: LoopSide = field(init=False)

    # With several replicas

    is_replicated: bool = False
    replica: Replica = field(init=False)
    """Set if `is_replicated`."""
    ended: Future[None] = field(init=False)
    """Set once the replica is removed; done once nothing uses its log any more."""
    leading: ReplicatedPartition | None = None
    """Set while the partition is led here, served or not yet."""
    copying: Copying | None = None
    """Set while this replica follows a leader."""
    thread: LeaderThread | None = None
    obstacle: Obstacle | None = None
    """Cut or error that copying waits for; None while it goes on."""
    is_resigning: bool = False
    """True while this leader hands over to the first replica. The partition is not served then."""
    is_changing: bool = False
    """True while a thread cuts the log. No other code may use the log then."""
    is_flushing: bool = False
    """True while a flush of copied bytes runs, and during the pause after a failed flush."""
    is_deleting: bool = False
    """True while a thread deletes the records that the leader has deleted."""
    campaign_from: float = 0.0
    """Time before which the replica does not campaign, as its last campaign failed."""
    stopped: str = ""
    """Reason why the replica does not replicate until the broker restarts; empty while it replicates."""

    def __post_init__(self) -> None:
        self.id = ReplicaPartition(self.topic.topic_id, self.key[1])

    @property
    def name(self) -> str:
        return f"{self.key[0]}-{self.key[1]}"

    @property
    def topic_id(self) -> UUID:
        return self.topic.topic_id

    @property
    def is_replicating(self) -> bool:
        """True for a replica of several, from the opening of its log to its removal."""
        return self.is_replicated and self.gone is None

    def serve(self, partition: Partition, config: BrokerConfig) -> None:
        """Serve clients, with the settings of the topic."""
        self.partition = partition
        self.configure(config)

    def configure(self, config: BrokerConfig) -> None:
        """Apply the settings of the topic, if the partition is served."""
        if (partition := self.partition) is None:
            return
        partition.mirrored = self.topic.partitions[partition.number].origin is not None
        before = partition.log.config
        try:
            after = partition.log.config = topic_log_config(config, self.topic.settings)
        except errors.BrokerError as error:
            logger.error("settings of topic %s: %s", self.topic.name, error)
            return
        if (after.flush_ms, after.flush_messages) != (before.flush_ms, before.flush_messages):
            partition.flush()  # the settings of before decided when it is due

    @property
    def leader_start(self) -> int | None:
        """Position before which a follower's log may be deleted: its own start while the leader's is unknown.

        None for a leader.
        """
        if not self.is_replicated or self.leading is not None:
            return None
        if (copying := self.copying) is not None and copying.following.is_in_step:
            return copying.leader_start
        return self.log.start

    def remove(self, why: errors.BrokerError) -> Future[None]:
        """Serve the partition no more. The result is done once nothing uses its log any more."""
        partition, self.partition, self.ended = self.partition, None, Future()
        self.state, self.gone = HostedState.CLOSING, why
        self.changes.notify()
        if partition is not None:
            partition.refuse_staged(why)  # the life of a replica closes it in a later turn
        return self.ended if self.is_replicated or partition is None else partition.close(why)


class HostedPartitions(dict[TopicPartition, HostedPartition]):
    """The partitions of this broker, by topic and number."""

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[UUID, str] = {}
        """Names of the topics, by id. An open partition has the id that leads to its name."""

    def replicating(self) -> Iterator[HostedPartition]:
        """Yield the replicas of partitions with several. From any thread."""
        return (one for one in list(self.values()) if one.is_replicating)

    def replica(self, partition: ReplicaPartition) -> HostedPartition | None:
        """Return the replica of a partition with several, if it is here."""
        one = self.get((self.names.get(partition[0], ""), partition[1]))
        return one if one is not None and one.is_replicated and one.gone is None else None
