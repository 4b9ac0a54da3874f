"""The partitions of this broker, and operations such as produce and fetch on the partitions that it leads.

Owns the partitions and keeps them in step with the cluster's snapshot. Methods run on the event loop unless
their docstring says otherwise. Slow work (ZooKeeper, opening and deleting logs, cold look-ups) runs in
threads, and its results return through the mailbox. Depends on no sockets and no wire format.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import compress
from operator import is_not
from typing import TypeAlias, TypeVar
from uuid import UUID

from millrace import errors
from millrace.client.runs import Run
from millrace.config import BrokerConfig
from millrace.records import MAGIC, BatchHeader, check_produced
from millrace.records.mirror_position import MirrorPosition
from millrace.records.topic_partition import TopicPartition
from millrace.topic_names import MAX_NAME
from millrace.wire.fetch import FetchRequest
from millrace.zookeeper.topic_state import PartitionState, TopicState
from millrace_broker.coordination.cluster import Cluster
from millrace_broker.mailbox import Mailbox, Notifier, outcome, started_threads
from millrace_broker.partitions.clock_check import ClockCheck
from millrace_broker.partitions.fetch import Fetch, SendReads
from millrace_broker.partitions.flush import FlushThreads
from millrace_broker.partitions.hosted import HostedPartition, HostedPartitions, HostedState
from millrace_broker.partitions.partition import Partition, Producing
from millrace_broker.partitions.replicas import Replicas
from millrace_broker.partitions.standstill import Standstill
from millrace_broker.partitions.topic_settings import InvalidTopicConfig, topic_log_config
from millrace_broker.storage.log_directory import LogDirectory
from millrace_broker.storage.partition_log import PartitionLog
from millrace_broker.storage.refused import UnservedBatches
from millrace_broker.storage.sides import BackgroundSide, LogView

logger = logging.getLogger("millrace.broker")
T = TypeVar("T")
StillThere: TypeAlias = Callable[[str, int, UUID], bool]
"""Returns True if ZooKeeper itself has the partition. MillraceError if ZooKeeper may have been restored."""

RETENTION_INTERVAL_S = 5.0
POOLS = {"zookeeper": 4, "look-up": 4, "open": 8, "delete": 1, "confirm": 1}
"""Number of threads for each kind of work, so that one kind delays no other. After a crash each opening waits
for two syncs: eight openings at once take hardly longer than one."""
MAY_PASS = (errors.StorageError, InvalidTopicConfig)
"""Errors that may pass when a log cannot be opened, and that leave it whole: lack of room, descriptors or
permissions, or a setting of its topic that this release does not know."""
RECORD_DELAY_S, RECORD_DELAY_OF_ONE_S = 1.0, 0.001
"""Delay before the broker writes its partitions into ZooKeeper, and what each partition adds: one write lists
all partitions, for all changes in this time."""
TOPICS_OF_A_TURN = 50
"""Changed topics applied in one turn of the loop, which serves clients in between."""


@dataclass(frozen=True, slots=True)
class TargetAppend:
    """Consecutive messages of an origin partition, to be appended to their target partition.

    `visible` is called on the event loop when consumers can read the messages.
    """

    topic: str
    partition: int
    run: Run
    visible: Callable[[], None]


class Broker:
    """One broker's partitions, and the operations on them that clients request."""

    def __init__(
        self,
        config: BrokerConfig,
        cluster: Cluster,
        logs: LogDirectory,
        mailbox: Mailbox,
        clock: Callable[[], float] = time.monotonic,
        *,
        directory: str = "",
        still_there: StillThere = lambda *_: False,
    ) -> None:
        """`directory` is the id of the log directory, by which this broker's replicas are known.

        `still_there` is asked before a log is deleted.
        """
        self.config, self.cluster, self.mailbox = config, cluster, mailbox
        self._logs, self._directory, self._still_there = logs, directory, still_there
        self.clock_check = ClockCheck(logs.clock, cluster)
        self._hosted = HostedPartitions()
        self._staged: dict[Partition, None] = {}
        self._unserved = UnservedBatches(logs.clock, config.max_producer_ids // 4)
        self._applied: dict[str, TopicState] = {}
        """The topics with which the hosted partitions are in step."""
        self._stored = Notifier(mailbox)
        """Wakes the coroutine that writes the list of partitions into ZooKeeper."""
        self._is_retaining = False
        self.parked_partitions = 0
        """Partitions on which fetches wait, counted once for each fetch."""
        self.flushes = FlushThreads(mailbox, logs.file_system)
        self._pools = {name: started_threads(threads, name) for name, threads in POOLS.items()}
        self._lacking_landmarks: set[Partition] = set()
        self._standstill = Standstill(
            mailbox,
            lambda: self._pools["confirm"].submit(cluster.confirm),
            self._topics_confirmed,
            self._topics_unconfirmed,
            clock,
        )
        self.replicas = Replicas(
            config, cluster, mailbox, self.flushes, self._hosted, directory, self._standstill.doubtful
        )

    # Partitions

    def start(self) -> None:
        """Open and recover every log of this broker in parallel. Must be called before the event loop runs.

        If a log cannot be opened, the error is logged, and requests to its partition are refused. Other
        partitions are served.
        """
        # First: topics come while logs open.
        self.cluster.on_change(lambda: self.mailbox.post(lambda: self.mailbox.begin(self._follow())))
        self._set_aside_deleted()
        self._applied = dict(self.cluster.topics)
        self._hosted.names = {topic.topic_id: name for name, topic in self._applied.items()}
        kept = {
            (name, number): topic
            for name, topic in self._applied.items()
            for number, state in topic.partitions.items()
            if self._keeps(state)
        }
        logs = [self._pools["open"].submit(self._open_log, key, topic) for key, topic in kept.items()]
        for (key, topic), opened in zip(kept.items(), logs, strict=True):
            one = self._host(key, topic)
            try:
                self._serve(one, opened.result())
            except (errors.MillraceError, OSError) as error:
                self._fail(one, error)
        self.cluster.store(self.logs)
        self.mailbox.begin(self._keep_record())
        self.mailbox.every(RETENTION_INTERVAL_S, lambda: self.mailbox.begin(self._apply_retention()))
        self._standstill.watch()

    def _set_aside_deleted(self) -> None:
        """Set aside the logs of topics that were deleted while this broker was not running."""
        stray = [log for log in self._logs.on_disk if self._current(log[:2], log[2]) is None]
        topics = {(name, topic_id) for name, _, topic_id in stray}
        gone = {topic for topic in topics if self.cluster.is_gone(*topic)}
        for name, number, topic_id in stray:
            if (name, topic_id) in gone:
                try:
                    self._logs.set_aside(name, number, topic_id)
                except OSError as error:  # it takes up room, but nobody is served from it
                    logger.error("cannot set aside the log of %s-%s, which is gone: %s", name, number, error)

    def partition(self, topic: str, number: int) -> Partition:
        """Return a partition led here; otherwise raise BrokerError with the reason. From any thread."""
        hosted = self._hosted.get((topic, number))
        partition = None if hosted is None else hosted.partition
        if partition is not None:
            return partition
        state = self.cluster.topics.get(topic)
        if state is None or number not in state.partitions:
            raise errors.UnknownTopicOrPartition(
                f"no partition {topic}-{number} in cluster {self.config.cluster}"
            )
        if state.partitions[number].leader != self.config.broker_id:
            raise errors.NotLeader(f"broker {self.config.broker_id} does not lead {topic}-{number}")
        if hosted is not None and hosted.error is not None:
            raise errors.StorageError(str(hosted.error))
        if hosted is not None and hosted.is_replicating:
            if self.replicas.is_stopping:
                raise errors.NotLeader(
                    f"broker {self.config.broker_id} stops, and hands {topic}-{number} over"
                )
            raise errors.NotServedYet(f"{topic}-{number} has a new leader, which does not serve it yet")
        raise errors.LeaderNotAvailable(f"{topic}-{number} is being opened")

    @property
    def partitions(self) -> Mapping[TopicPartition, Partition]:
        """Every partition that is now served here. From any thread."""
        every = [(key, hosted.partition) for key, hosted in list(self._hosted.items())]
        return {key: partition for key, partition in every if partition is not None}

    @property
    def logs(self) -> Mapping[TopicPartition, LogView]:
        """Every open log, served or not. From any thread."""
        every = list(self._hosted.items())
        return {key: hosted.opened for key, hosted in every if hosted.state is HostedState.OPEN}

    @property
    def failed(self) -> Mapping[TopicPartition, str]:
        """Partitions that could not be opened or do not replicate, with the reasons. From any thread."""
        every = list(self._hosted.items())
        unopened = {key: str(hosted.error) for key, hosted in every if hosted.error is not None}
        return {**unopened, **self.replicas.stopped}

    def opening(self, topic: str) -> list[Future[PartitionLog]]:
        state = self._applied.get(topic)
        hosted = [self._hosted.get((topic, number)) for number in (state.partitions if state else ())]
        return [
            one.opening
            for one in hosted
            if one is not None and one.state is HostedState.OPENING and one.opening is not None
        ]

    def refresh(self) -> None:
        """Bring the hosted partitions in step with the cluster: open new and delete removed partitions."""
        for name in self._changed():
            self.apply(name)
        self.replicas.refresh()

    def _changed(self) -> list[str]:
        """Return the names of the topics with which the hosted partitions are not in step."""
        applied, topics = self._applied, self.cluster.topics
        differ = map(is_not, topics.values(), map(applied.get, topics))  # without a loop in Python
        changed = list(compress(topics, differ))
        is_whole = len(topics) == len(applied) + sum(name not in applied for name in changed)
        return changed if is_whole else [*changed, *applied.keys() - topics.keys()]

    async def _follow(self) -> None:
        """Do what `refresh` does, with a few topics in each turn of the loop.

        All deleted and recreated topics come in the first turn: what is written into their former logs is
        lost, so that no such write may be acknowledged meanwhile.
        """
        self.replicas.refresh()
        changed = self._changed()
        gone = set(filter(self._is_gone, changed))
        for name in gone:
            self._follow_topic(name)
        for number, name in enumerate([name for name in changed if name not in gone], 1):
            self._follow_topic(name)
            if number % TOPICS_OF_A_TURN == 0:
                await self.mailbox.sleep(0)

    def _is_gone(self, name: str) -> bool:
        """Return True if the topic that was applied last was deleted, or recreated under another id."""
        before, after = self._applied.get(name), self.cluster.topics.get(name)
        return before is not None and (after is None or after.topic_id != before.topic_id)

    def _follow_topic(self, name: str) -> None:
        try:
            self.apply(name)
        except Exception:
            logger.exception("a bug while the partitions of topic %s are brought in step", name)
            self._applied.pop(name, None)  # the next change tries it again

    def apply(self, name: str) -> None:
        """Bring the partitions of one topic in step with the cluster."""
        before, after = self._applied.pop(name, None), self.cluster.topics.get(name)
        if before is not None:
            self._hosted.names.pop(before.topic_id, None)
        if after is not None:
            self._applied[name] = after
            self._hosted.names[after.topic_id] = name
        numbers = [number for topic in (before, after) if topic is not None for number in topic.partitions]
        for number in dict.fromkeys(numbers):
            self._apply_to((name, number))

    def _apply_to(self, key: TopicPartition) -> None:
        """Open, configure or remove a partition as its topic demands.

        A partition that opens or closes is left alone; it comes here again.
        """
        topic, one = self._kept(key), self._hosted.get(key)
        if one is not None and (topic is None or not _is_as_in(topic, one)):
            if one.state is HostedState.OPEN:
                self.mailbox.begin(self._remove(one))
            elif one.state is HostedState.FAILED:
                del self._hosted[key]
            one = self._hosted.get(key)
        if topic is None:
            return
        if one is None:
            self.mailbox.begin(self._open(self._host(key, topic)))
        elif one.state is HostedState.OPEN and one.topic is not topic:
            before, one.topic = one.topic, topic
            if not _has_same_settings(before, topic, key[1]):  # most changes are about leaders
                one.configure(self.config)
            self.replicas.topic_changed(one)

    def zookeeper_restored(self) -> None:
        """Hold no election on the state of a ZooKeeper that was restored from an older copy."""
        self.replicas.forget_zookeeper()
        self.refresh()
        for one in self._hosted.replicating():
            self.replicas.topic_changed(one)

    def standstills(self) -> int:
        """Return the count of standstills so far. If it changed, other brokers may have replaced this one."""
        self._standstill.doubtful()
        return self._standstill.count

    def _topics_confirmed(self) -> None:
        """After a standstill: refuse writes to deleted topics, then answer all other writes."""
        self.refresh()
        for partition in self.partitions.values():
            partition.answer_flushed()

    def _topics_unconfirmed(self) -> None:
        why = errors.RequestTimedOut(
            "this broker stood still, and cannot read yet whether its topics are the same"
        )
        for partition in self.partitions.values():
            partition.refuse_waiting(why)

    def _kept(self, key: TopicPartition) -> TopicState | None:
        """Return the topic of a partition that this broker leads alone or has a replica of."""
        topic = self._applied.get(key[0])
        state = None if topic is None else topic.partitions.get(key[1])
        return topic if state is not None and self._keeps(state) else None

    def _keeps(self, state: PartitionState) -> bool:
        broker = self.config.broker_id
        return broker in state.replicas if state.is_replicated else state.leader == broker

    def _current(self, key: TopicPartition, topic_id: UUID) -> TopicState | None:
        """Return the topic of a partition, if the cluster still has the topic and the partition."""
        topic = self.cluster.topics.get(key[0])
        return topic if topic and topic.topic_id == topic_id and key[1] in topic.partitions else None

    def _open_log(self, key: TopicPartition, topic: TopicState) -> PartitionLog:
        config = topic_log_config(self.config, topic.settings)
        is_replica = topic.partitions[key[1]].is_replicated
        try:
            opened = self._logs.partition(*key, topic.topic_id, config, is_replica=is_replica)
        except MAY_PASS:
            raise
        except errors.MillraceError as error:
            if not is_replica or self._is_needed(topic.partitions[key[1]]):
                raise
            logger.error("%s-%s cannot be opened, and is copied from its leader: %s", *key, error)
            self._logs.set_unreadable_aside(*key, topic.topic_id)
            opened = self._logs.partition(*key, topic.topic_id, config, is_replica=is_replica)
        if not is_replica and opened.visible_end < opened.end:
            # A copy, open since there were other replicas: their leader may have shown all whole appends.
            if opened.whole_end < opened.end:
                opened.cut(opened.whole_end)
            opened.publish(opened.flush())
        return opened

    def _is_needed(self, state: PartitionState) -> bool:
        """Return True if this broker's replica is in sync or eligible, and so has all committed records."""
        broker = self.config.broker_id
        return self._directory in (state.isr.get(broker), state.eligible.get(broker))

    def _host(self, key: TopicPartition, topic: TopicState) -> HostedPartition:
        one = self._hosted[key] = HostedPartition(key, topic, Notifier(self.mailbox))
        self._hosted.names[topic.topic_id] = topic.name
        return one

    async def _open(self, one: HostedPartition) -> None:
        one.state = HostedState.OPENING
        one.opening = opening = self._pools["open"].submit(self._open_log, one.key, one.topic)
        try:
            opened = await outcome(opening)
        except Exception as error:
            one.opening = None
            self._fail(one, error)
            self._apply_to(one.key)  # it may be another topic's partition by now
            return
        one.opening = None  # it takes more memory than the partition
        before, current = one.topic.partitions[one.key[1]], self._current(one.key, one.topic_id)
        if current is None:
            await self._dispose(one, self._delete_log)
        elif not self._keeps(current.partitions[one.key[1]]):
            del self._hosted[one.key]  # other brokers got it meanwhile
        else:
            one.topic = current
            if current.partitions[one.key[1]].is_replicated != before.is_replicated:
                self.mailbox.begin(self._open(one))  # a copy is not opened as the log of an only replica
                return
            try:
                self._serve(one, opened)
            except Exception as error:
                self._fail(one, error)

    def _serve(self, one: HostedPartition, opened: PartitionLog) -> None:
        state = one.topic.partitions[one.key[1]]
        opened.is_replica = state.is_replicated
        one.opened = one.log = opened
        for refused in self._unserved.of(*one.key, one.topic_id):
            one.log.take_refused(refused)
        one.state, one.error = HostedState.OPEN, None  # last: other threads then take its log
        self._stored.notify()
        if state.is_replicated:
            self.replicas.begin(one)
            return
        partition = Partition(
            *one.key,
            one.topic_id,
            state.leader_epoch,
            opened,
            self.mailbox,
            self.flushes,
            self._standstill.doubtful,
        )
        one.serve(partition, self.config)
        partition.maybe_flush()  # a log that is led here again may still hold what was not flushed
        start, end = opened.log_start_offset, opened.high_watermark
        logger.info("serving %s from offset %s to %s", one.name, start, end)

    def hand_over(self, then: Callable[[], None]) -> None:
        """Hand the led partitions over to other replicas, because this broker stops; then call `then`."""
        self.replicas.hand_over(then)

    def _fail(self, one: HostedPartition, error: BaseException) -> None:
        before, one.state, one.error = one.error, HostedState.FAILED, error
        one.partition, one.is_replicated = None, False
        self.replicas.resign_unopened(one, is_whole=isinstance(error, MAY_PASS))
        if before is not None and str(before) == str(error):
            return
        if isinstance(error, MAY_PASS):
            logger.error("cannot serve %s: %s; trying again", one.name, error)
        else:
            bug = error if errors.is_bug(error) else None
            logger.error("cannot serve %s until a restart: %s", one.name, error, exc_info=bug)

    def _retry_failed(self) -> None:
        """Open the failed partitions again whose error may have passed."""
        for key, one in list(self._hosted.items()):
            if one.state is not HostedState.FAILED:
                continue
            if (topic := self._current(key, one.topic_id)) is not None:
                one.topic = topic
                if isinstance(one.error, MAY_PASS):
                    self.mailbox.begin(self._open(one))
                else:
                    self.replicas.resign_unopened(one, is_whole=False)

    async def _remove(self, one: HostedPartition) -> None:
        """Stop serving or replicating a partition. Delete its log only if the partition was deleted."""
        self._stored.notify()
        topic, why = self._current(one.key, one.topic_id), f"other brokers have {one.name} now"
        if one.partition is not None:
            self._staged.pop(one.partition, None)
        if topic is None:
            logger.info("deleting %s: it is not in the cluster any more", one.name)
            deleted = errors.UnknownTopicOrPartition(f"{one.name} was deleted")
            await outcome(one.remove(deleted))
            await self._dispose(one, self._delete_log)
        elif one.is_replicated:
            logger.info("the replicas of %s are others now", one.name)
            await outcome(one.remove(errors.NotLeader(why)))
            await self._dispose(one, self._set_log_aside)
        else:
            if topic.partitions[one.key[1]].is_replicated:
                why = f"{one.name} has several replicas now"
            logger.warning("%s; its log is kept", why)
            one.remove(errors.NotLeader(why))
            del self._hosted[one.key]

    async def _dispose(self, one: HostedPartition, work: Callable[[HostedPartition], None]) -> None:
        """Delete an unused log, or set it aside. Only then may the partition, or its namesake, be opened."""
        one.state = HostedState.CLOSING
        try:
            await outcome(self._pools["delete"].submit(work, one))
        except Exception as error:
            logger.error("the log of %s stays here: %s", one.name, error, exc_info=errors.is_bug(error))
        del self._hosted[one.key]
        self._apply_to(one.key)

    def _set_log_aside(self, one: HostedPartition) -> None:
        """Set a replica's log aside if ZooKeeper itself, not only the snapshot, has the replica elsewhere.

        The log stays until ZooKeeper confirms this. It also stays if this broker has the only replica now.
        """
        self.cluster.confirm(one.key[0])
        topic = self._current(one.key, one.topic_id)
        if topic is not None and self.config.broker_id not in topic.partitions[one.key[1]].replicas:
            self._logs.set_open_aside(*one.key, "belongs to a partition that other brokers have")

    def _delete_log(self, one: HostedPartition) -> None:
        """Delete a log unless ZooKeeper still has the partition.

        If ZooKeeper may have been restored from a copy that is older than the partition, set the log aside.
        """
        try:
            is_there = self._still_there(*one.key, one.topic_id)
        except errors.MillraceError as error:
            why = f"may belong to a topic that ZooKeeper has lost ({error})"
            self._logs.set_open_aside(*one.key, why)
            return
        if is_there:
            self._logs.shut(*one.key)
        else:
            self._logs.delete(*one.key)

    async def _keep_record(self) -> None:
        """Write the partitions that are stored here into ZooKeeper, some time after each change."""
        while True:
            await self._stored.wait()
            await self.mailbox.sleep(RECORD_DELAY_S + len(self._hosted) * RECORD_DELAY_OF_ONE_S)
            try:
                await outcome(self._pools["look-up"].submit(lambda: self.cluster.store(self.logs)))
            except Exception:
                logger.exception("cannot write the broker's record; trying again")
                self._stored.notify()

    async def _apply_retention(self) -> None:
        if self._is_retaining:
            return
        logs = [
            (one.name, one.opened, one.leader_start)
            for one in self._hosted.values()
            if one.state is HostedState.OPEN and not one.is_changing
        ]
        self._is_retaining = True
        try:
            await outcome(self._pools["delete"].submit(self._retain, logs))
        except Exception:
            logger.exception("retention failed")
        self._is_retaining = False
        for partition in self.partitions.values():  # retention may have begun a new file of a mirror
            partition.note_append()
            partition.maybe_flush()
        self._retry_failed()

    def _retain(self, logs: Sequence[tuple[str, BackgroundSide, int | None]]) -> None:
        """Apply retention to logs, each with the position before which a follower may delete. In a thread."""
        by_time = self.clock_check.look()
        for name, log, leader_start in logs:
            try:
                if by_time and self.clock_check.wrong:
                    log.recount(self.clock_check.wrong)
                log.expires_by_time = by_time
                for base in log.apply_retention(leader_start):
                    logger.info("retention deleted segment %s of %s", base, name)
            except (OSError, errors.MillraceError) as error:
                logger.error("retention of %s: %s", name, error)
        if by_time:
            self._logs.delete_expired()

    # Records

    def produce(self, topic: str, number: int, batch: memoryview, producing: Producing, index: int) -> None:
        """Check a batch and stage it for this turn's append; `producing` receives the outcome.

        Raises BrokerError for a refused batch. `batch` must not change until `end_of_turn`.
        """
        try:
            partition = self.partition(topic, number)
        except errors.BrokerError as error:
            self._note_refused(topic, number, batch, producing.principal, error)
            raise
        if partition.mirrored:
            raise errors.PolicyViolation(f"{partition.name} mirrors another cluster's: produce there")
        header = check_produced(batch)
        limit = partition.log.config.max_message_bytes
        if header.size > limit:
            raise errors.MessageTooLarge(f"a batch of {header.size} bytes; {topic} takes {limit} at most")
        self.stage(partition, [batch], producing, index)

    def _note_refused(
        self, topic: str, number: int, batch: memoryview, principal: str, why: errors.BrokerError
    ) -> None:
        """Note a batch for a partition that is not served now: no later batch may be stored before it."""
        header = BatchHeader.parse(batch)
        if header is None or header.magic != MAGIC or header.producer_id < 0 or len(topic) > MAX_NAME:
            return
        hosted, state = self._hosted.get((topic, number)), self.cluster.topics.get(topic)
        topic_id = None if state is None else state.topic_id
        if hosted is not None and hosted.state is HostedState.OPEN and hosted.topic_id == topic_id:
            hosted.log.note_refused([batch], [principal], why)  # which forgets it when it copies it
        else:
            self._unserved.note((topic, number, topic_id), header, principal, why)

    def open_to_producers(self, topic: str, number: int) -> Partition | None:
        """Return the partition if it is led here and accepts produced batches, else None.

        `produce` raises the reason.
        """
        hosted = self._hosted.get((topic, number))
        partition = None if hosted is None else hosted.partition
        return None if partition is None or partition.mirrored else partition

    def stage(
        self, partition: Partition, batches: Sequence[memoryview], producing: Producing, index: int = 0
    ) -> None:
        """Stage checked batches, to be appended at the end of this turn."""
        self._staged[partition] = None  # first: what is staged must not outlive the bytes it stands in
        partition.stage(batches, producing, index)

    def mirror_position(self, topic: str, number: int) -> MirrorPosition | None:
        """Return the position appended last to a mirrored partition led here; BrokerError if it is not here.

        From any thread.
        """
        return self.partition(topic, number).log.mirror_position

    def append_mirrored(self, appends: Sequence[TargetAppend]) -> Future[list[Exception | None]]:
        """Append origins' batches and positions, on the loop and in order; visible after a flush.

        From any thread. The future's result has, for each append, None or the error: PositionMismatch if the
        log's position has changed, StorageError, or a BrokerError for a partition that is not led here.
        """
        return self.mailbox.call(lambda: [self._append_mirrored(append) for append in appends])

    def _append_mirrored(self, append: TargetAppend) -> Exception | None:
        run = append.run
        try:
            partition = self.partition(append.topic, append.partition)
            end = partition.log.append_mirrored(run.position.origin, run.expected, run.batches, run.position)
        except Exception as error:  # one that fails must not keep the others from being appended
            return error
        partition.note_append()
        partition.when_visible(end, append.visible)
        partition.maybe_flush()
        return None

    def fetch(self, request: FetchRequest, answer: SendReads, abort: Callable[[str], None]) -> Fetch:
        """Answer a fetch when enough bytes are there, or when the request's time is over."""
        fetch = Fetch(self, request, answer, abort)
        fetch.start()
        return fetch

    def build_landmarks(self, partition: Partition) -> None:
        """Build a partition's missing landmarks in a thread; then wake the fetches that wait for them.

        StorageError when no thread can be started.
        """
        if partition in self._lacking_landmarks:
            return
        self._lacking_landmarks.add(partition)

        def work(log_: BackgroundSide) -> None:
            try:
                log_.build_landmarks()
            except Exception:
                logger.exception("cannot build the landmarks of %s", partition.name)
                self.mailbox.post(failed)
            else:
                self.mailbox.post(done)

        def failed() -> None:  # the next fetch tries again; who is parked would do so at once, over and over
            self._lacking_landmarks.discard(partition)

        def done() -> None:
            failed()
            partition.wake_parked()

        try:
            # It may read for seconds, and nothing is lost when the process ends meanwhile.
            threading.Thread(
                target=partial(work, partition.background), name=f"landmarks {partition.name}", daemon=True
            ).start()
        except RuntimeError as error:  # no thread is left
            failed()
            raise errors.StorageError(f"cannot build the landmarks of {partition.name}: {error}") from error

    def end_of_turn(self) -> None:
        """Append the staged batches with one write for each partition, let each woken fetch look once, then
        begin the flushes.

        A bug here closes only the connections whose requests it concerns; other connections are served.
        """
        self._standstill.doubtful()
        if self._staged:
            staged, self._staged = self._staged, {}
            for partition in staged:
                partition.write()
        self.mailbox.end_turn()
        self.flushes.begin_owed()

    def check_administrator(self, address: str) -> None:
        """Refuse a client, HOST:PORT, that is on no machine of the cluster and not named in `admin_hosts`."""
        host = address.rpartition(":")[0].removeprefix("::ffff:")
        brokers = {broker.host for broker in self.cluster.brokers.values()}
        if not (host.startswith("127.") or host in {"::1", *brokers, *self.config.admin_hosts}):
            raise errors.PolicyViolation(
                f"{host} may not do this: run it on a broker's machine, or name {host} in admin_hosts there"
            )

    # Threads

    def in_zookeeper_thread(self, work: Callable[[], T]) -> Future[T]:
        """Run `work`, which waits for ZooKeeper, in a thread."""
        return self._pools["zookeeper"].submit(work)

    def in_look_up_thread(self, work: Callable[[], T]) -> Future[T]:
        """Run `work`, which reads logs, in a thread."""
        return self._pools["look-up"].submit(work)

    def finalize(self) -> None:
        """Flush all logs in parallel and answer the waiting requests, after the event loop has ended."""
        self.end_of_turn()
        for partition in self.partitions.values():
            partition.flush()
        self.flushes.close()
        self.mailbox.run()
        for partition in self.partitions.values():
            partition.finalize()
        self.end_of_turn()

    def close(self) -> None:
        """End the threads and close the logs. `finalize` must be called first."""
        self.mailbox.stop()
        self.replicas.close()
        for pool in self._pools.values():
            pool.shutdown(wait=True, cancel_futures=True)
        self._logs.close()


def _has_same_settings(one: TopicState, other: TopicState, number: int) -> bool:
    """Return True if a partition has the same settings and the same origin in two states of its topic."""
    origins = [topic.partitions[number].origin for topic in (one, other)]
    return one.settings == other.settings and origins[0] == origins[1]


def _is_as_in(topic: TopicState, one: HostedPartition) -> bool:
    """Return False if the partition was recreated, or changed between one replica and several."""
    is_replicated = topic.partitions[one.key[1]].is_replicated
    is_open = one.state is HostedState.OPEN
    return topic.topic_id == one.topic_id and (is_replicated == one.is_replicated or not is_open)
