"""What produce, fetch and the rest mean for the partitions this broker leads.

Owns the led partitions and keeps them in step with the cluster's snapshot. Runs on the loop, except where it
says otherwise; what takes long (ZooKeeper, opening and deleting logs, cold look-ups) runs in threads and
comes back through the mailbox. Knows no sockets and no wire format.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar
from uuid import UUID

from millrace.broker.fetch import Fetch, Found
from millrace.broker.flush import FlushThreads
from millrace.broker.partition import Partition, Producing
from millrace.broker.standstill import Standstill
from millrace.broker.topic_settings import topic_log_config
from millrace.config import BrokerConfig
from millrace.coordination.cluster import Cluster
from millrace.coordination.state import PartitionState, TopicState
from millrace.errors import (
    BrokerError,
    LeaderNotAvailable,
    MessageTooLarge,
    MillraceError,
    NotLeader,
    PolicyViolation,
    RequestTimedOut,
    StorageError,
    UnknownTopicOrPartition,
)
from millrace.mailbox import Mailbox
from millrace.mirror.puller import TargetAppend
from millrace.records import check_produced
from millrace.records.mirror_position import MirrorPosition
from millrace.records.topic_partition import TopicPartition
from millrace.storage.log_directory import LogDirectory
from millrace.storage.partition_log import PartitionLog
from millrace.storage.state import LogState
from millrace.wire.fetch import AskedFetch

__all__ = ["Broker", "Fetch", "Found", "Partition", "Producing"]

log = logging.getLogger("millrace.broker")
T = TypeVar("T")

RETENTION_INTERVAL_S = 5.0
ZOOKEEPER_THREADS = 4
LOOK_UP_THREADS = 4
OPENING_THREADS = 8
"""Each opening waits for two syncs after a crash: eight at once wait hardly longer than one."""
RECORD_DELAY_S = 1.0
"""Partitions come and go in crowds: the broker's record in ZooKeeper is written once for all of them."""


class Broker:
    """One broker's partitions, and what clients may do with them."""

    def __init__(
        self,
        config: BrokerConfig,
        cluster: Cluster,
        logs: LogDirectory,
        mailbox: Mailbox,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config, self.cluster, self.mailbox = config, cluster, mailbox
        self._logs = logs
        self._partitions: dict[TopicPartition, Partition] = {}
        self._opening: dict[TopicPartition, Future[PartitionLog]] = {}
        self._deleting: set[TopicPartition] = set()
        self._failed: dict[TopicPartition, tuple[UUID, str]] = {}
        self._retried: set[TopicPartition] = set()
        self._staged: dict[Partition, None] = {}
        self._recording = False
        self._looking: list[Callable[[], None]] = []
        self.parked_partitions = 0
        """On which fetches wait, counted once for each fetch."""
        self.flushes: FlushThreads[LogState] = FlushThreads(mailbox)
        # Pools of their own: what waits for ZooKeeper, or for a log to open, holds up nothing else.
        self._zookeeper = ThreadPoolExecutor(ZOOKEEPER_THREADS, thread_name_prefix="zookeeper")
        self._look_ups = ThreadPoolExecutor(LOOK_UP_THREADS, thread_name_prefix="look-up")
        self._openers = ThreadPoolExecutor(OPENING_THREADS, thread_name_prefix="open")
        self._deletions = ThreadPoolExecutor(1, thread_name_prefix="delete")
        self._lacking_landmarks: set[Partition] = set()
        self._confirming = ThreadPoolExecutor(1, thread_name_prefix="confirm")
        self._standstill = Standstill(
            mailbox,
            lambda then: self._submit(self._confirming, cluster.confirm, then),
            self._topics_confirmed,
            self._topics_unconfirmed,
            clock,
        )

    # Partitions

    def start(self) -> None:
        """Open, and so recover, every log this broker leads, side by side; call it before the loop runs.

        A log that cannot be opened is reported and refused; it does not keep the others from being served.
        """
        self.cluster.on_change(lambda: self.mailbox.post(self.refresh))  # first: topics come while logs open
        self._set_aside_deleted()
        led = self._led()
        logs = [self._openers.submit(self._open_log, place, topic) for place, topic, _ in led]
        for (place, topic, state), opened in zip(led, logs, strict=True):
            try:
                self._add(place, topic, state, opened.result())
            except (MillraceError, OSError) as error:
                self._fail(place, topic, error)
        self.cluster.store(self._partitions)
        self.mailbox.after(RETENTION_INTERVAL_S, self._apply_retention)
        self._standstill.watch()

    def _set_aside_deleted(self) -> None:
        """Put away the logs of topics that were deleted while this broker was not running."""
        found = [log for log in self._logs.found if self._current(log[:2], log[2]) is None]
        topics = {(name, topic_id) for name, _, topic_id in found}
        gone = {topic for topic in topics if self.cluster.is_gone(*topic)}
        for name, number, topic_id in found:
            if (name, topic_id) in gone:
                try:
                    self._logs.set_aside(name, number, topic_id)
                except OSError as error:  # it takes up room, but nobody is served from it
                    log.error("cannot set aside the log of %s-%s, which is gone: %s", name, number, error)

    def partition(self, topic: str, number: int) -> Partition:
        """The led partition; BrokerError says why it is not here. From any thread."""
        partition = self._partitions.get((topic, number))
        if partition is not None:
            return partition
        state = self.cluster.topics.get(topic)
        if state is None or number not in state.partitions:
            raise UnknownTopicOrPartition(f"no partition {topic}-{number} in cluster {self.config.cluster}")
        if state.partitions[number].leader != self.config.broker_id:
            raise NotLeader(f"broker {self.config.broker_id} does not lead {topic}-{number}")
        if (failed := self._failed.get((topic, number))) is not None:
            raise StorageError(failed[1])
        raise LeaderNotAvailable(f"{topic}-{number} is being opened")

    @property
    def failed(self) -> Mapping[TopicPartition, str]:
        """Partitions that could not be opened, and why."""
        return {place: reason for place, (_, reason) in list(self._failed.items())}

    @property
    def partitions(self) -> Mapping[TopicPartition, Partition]:
        """Every partition open here."""
        return self._partitions

    def opening(self, topic: str) -> list[Future[PartitionLog]]:
        """The logs of a topic that are being opened."""
        return [future for place, future in self._opening.items() if place[0] == topic]

    def refresh(self) -> None:
        """Bring the open partitions in step with the cluster: open new ones, delete those that are gone."""
        led = {place: (topic, state) for place, topic, state in self._led()}
        for place, partition in list(self._partitions.items()):
            if place not in led or led[place][0].topic_id != partition.topic_id:
                self._remove(place, partition)
        self._failed = {
            place: failed
            for place, failed in self._failed.items()
            if place in led and led[place][0].topic_id == failed[0]
        }
        for place, (topic, state) in led.items():
            if place in self._partitions:
                self._configure(self._partitions[place], topic, state)
            elif not (place in self._opening or place in self._failed or place in self._deleting):
                self._open(place, topic)

    def standstills(self) -> int:
        """How often this broker has stood still: between two that differ others may have replaced it."""
        self._standstill.doubtful()
        return self._standstill.count

    def _topics_confirmed(self) -> None:
        """After a standstill: refuse what was written to topics that have gone, then answer the rest."""
        self.refresh()
        for partition in self._partitions.values():
            partition.answer_flushed()

    def _topics_unconfirmed(self) -> None:
        why = RequestTimedOut("this broker stood still, and cannot read yet whether its topics are the same")
        for partition in self._partitions.values():
            partition.refuse_waiting(why)

    def _led(self) -> list[tuple[TopicPartition, TopicState, PartitionState]]:
        return [
            ((topic.name, number), topic, state)
            for topic in self.cluster.topics.values()
            for number, state in topic.partitions.items()
            if state.leader == self.config.broker_id
        ]

    def _open_log(self, place: TopicPartition, topic: TopicState) -> PartitionLog:
        config = topic_log_config(self.config, topic.settings)
        return self._logs.partition(*place, topic.topic_id, config)

    def _fail(self, place: TopicPartition, topic: TopicState, error: BaseException) -> None:
        before = self._failed.get(place)
        self._failed[place] = failed = (topic.topic_id, str(error))
        if before == failed:
            return
        if isinstance(error, StorageError):
            self._retried.add(place)
            log.error("cannot serve %s-%s: %s; trying again", *place, error)
        else:
            self._retried.discard(place)
            log.error("cannot serve %s-%s until a restart: %s", *place, error)

    def _try_again(self) -> None:
        """Open what could not be opened for want of room, of descriptors or of a right."""
        for place in list(self._retried):
            failed = self._failed.get(place)
            topic = self._current(place, failed[0]) if failed else None
            if topic is None:
                self._retried.discard(place)
            elif place not in self._opening and place not in self._deleting:
                self._open(place, topic)

    def _open(self, place: TopicPartition, topic: TopicState) -> None:
        def opened(future: Future[PartitionLog]) -> None:
            del self._opening[place]
            error = future.exception()
            if error is not None:
                self._fail(place, topic, error)
                self.refresh()  # it may be another topic's place by now
            elif (current := self._current(place, topic.topic_id)) is None:
                self._delete(place)
            else:
                self._add(place, current, current.partitions[place[1]], future.result())

        self._opening[place] = self._submit(self._openers, lambda: self._open_log(place, topic), opened)

    def _add(
        self, place: TopicPartition, topic: TopicState, state: PartitionState, opened: PartitionLog
    ) -> None:
        partition = Partition(
            *place, topic.topic_id, opened, self.mailbox, self.flushes, self._standstill.doubtful
        )
        self._configure(partition, topic, state)
        self._partitions[place] = partition
        self._failed.pop(place, None)
        self._retried.discard(place)
        self._record_soon()
        partition.see_to_flush()  # a log that is led here again may still hold what was not flushed
        log.info(
            "serving %s from offset %s to %s", partition.name, opened.log_start_offset, opened.high_watermark
        )

    def _record_soon(self) -> None:
        """Have the broker's record in ZooKeeper say which partitions are stored here."""

        def record() -> None:
            self._recording = False
            self.cluster.store(self._partitions)

        if not self._recording:
            self._recording = True
            self.mailbox.after(RECORD_DELAY_S, record)

    def _configure(self, partition: Partition, topic: TopicState, state: PartitionState) -> None:
        partition.mirrored = state.origin is not None
        try:
            partition.log.config = topic_log_config(self.config, topic.settings)
        except BrokerError as error:
            log.error("settings of topic %s: %s", topic.name, error)

    def _current(self, place: TopicPartition, topic_id: UUID) -> TopicState | None:
        """The topic that a partition belongs to, if the cluster still has both."""
        topic = self.cluster.topics.get(place[0])
        return topic if topic and topic.topic_id == topic_id and place[1] in topic.partitions else None

    def _remove(self, place: TopicPartition, partition: Partition) -> None:
        """Serve a partition no longer; its log goes only if the partition itself has gone."""
        del self._partitions[place]
        self._record_soon()
        self._staged.pop(partition, None)
        if self._current(place, partition.topic_id) is not None:
            log.warning("another broker leads %s now; its log is kept", partition.name)
            partition.retire(NotLeader(f"another broker leads {partition.name} now"), lambda: None)
            return
        log.info("deleting %s: it is not in the cluster any more", partition.name)
        self._deleting.add(place)
        partition.retire(
            UnknownTopicOrPartition(f"{partition.name} was deleted"), lambda: self._delete(place)
        )

    def _delete(self, place: TopicPartition) -> None:
        """Delete a log nobody uses any more; a new topic of the same name is opened only after that."""
        self._deleting.add(place)

        def done(future: Future[None]) -> None:
            self._deleting.discard(place)
            if future.exception() is not None:
                log.error("cannot delete %s-%s: %s", *place, future.exception())
            self.refresh()

        self._submit(self._deletions, lambda: self._logs.delete(*place), done)

    def _apply_retention(self) -> None:
        logs = [(partition.name, partition.log) for partition in self._partitions.values()]

        def work() -> None:
            for name, partition_log in logs:
                try:
                    for base in partition_log.apply_retention():
                        log.info("retention deleted segment %s of %s", base, name)
                except (OSError, MillraceError) as error:
                    log.error("retention of %s: %s", name, error)
            self._logs.delete_expired()

        def again(done: Future[None]) -> None:
            if done.exception() is not None:
                log.error("retention failed", exc_info=done.exception())
            self._try_again()
            self.mailbox.after(RETENTION_INTERVAL_S, self._apply_retention)

        self._submit(self._deletions, work, again)

    # Records

    def produce(self, topic: str, number: int, batch: memoryview, producing: Producing, index: int) -> None:
        """Check a batch and stage it for this turn's append; `producing` hears what became of it.

        Raises BrokerError for one that is refused. `batch` must stay as it is until `end_of_turn`.
        """
        partition = self._partitions.get((topic, number)) or self.partition(topic, number)
        if partition.mirrored:
            raise PolicyViolation(f"{partition.name} mirrors another cluster's: produce there")
        header = check_produced(batch)
        limit = partition.log.config.max_message_bytes
        if header.size > limit:
            raise MessageTooLarge(f"a batch of {header.size} bytes; {topic} takes {limit} at most")
        self.stage(partition, [batch], producing, index)

    def largest_batch(self, topic: str, number: int) -> int:
        """The largest batch that producers may send to a partition; 0 when it takes none of theirs here."""
        partition = self._partitions.get((topic, number))
        return 0 if partition is None or partition.mirrored else partition.log.config.max_message_bytes

    def stage(
        self,
        partition: Partition,
        batches: Sequence[memoryview],
        producing: Producing,
        index: int = 0,
    ) -> None:
        """Have checked batches appended at the end of this turn."""
        self._staged[partition] = None  # first: what is staged must not outlive the bytes it stands in
        partition.stage(batches, producing, index)

    def mirror_position(self, topic: str, number: int) -> MirrorPosition | None:
        """What is recorded, as appended, in a mirrored partition led here; BrokerError when it is not here.

        From any thread.
        """
        return self.partition(topic, number).log.mirror_position

    def append_mirrored(self, appends: Sequence[TargetAppend]) -> Future[list[Exception | None]]:
        """Append origins' batches and positions, on the loop and in order; visible after a flush.

        From any thread. The future brings for each None, or what the log raised: PositionMismatch when it
        stands elsewhere by now, StorageError, a BrokerError for a partition that is not led here.
        """
        return self.call(lambda: [self._append_mirrored(each) for each in appends])

    def _append_mirrored(self, append: TargetAppend) -> Exception | None:
        run = append.run
        try:
            partition = self.partition(append.topic, append.partition)
            end = partition.log.append_mirrored(run.position.origin, run.expected, run.batches, run.position)
        except Exception as error:  # one that fails must not keep the others from being appended
            return error
        partition.when_visible(end, append.visible)
        partition.see_to_flush()
        return None

    def fetch(
        self, request: AskedFetch, answer: Callable[[Found], None], abort: Callable[[str], None]
    ) -> Fetch:
        """Answer with what is there once it is enough, or when the request's time is up."""
        fetch = Fetch(self, request, answer, abort)
        fetch.start()
        return fetch

    def build_landmarks(self, partition: Partition) -> None:
        """Build what a fetch lacked to find its place, apart from the loop; then wake who is parked."""
        if partition in self._lacking_landmarks:
            return
        self._lacking_landmarks.add(partition)

        def work() -> None:
            try:
                partition.log.build_landmarks()
            except Exception:
                log.exception("cannot build the landmarks of %s", partition.name)
            self.mailbox.post(done)

        def done() -> None:
            self._lacking_landmarks.discard(partition)
            partition.wake_parked()

        # It may read for seconds, and nothing is lost when the process ends meanwhile.
        threading.Thread(target=work, name=f"landmarks {partition.name}", daemon=True).start()

    def look_again(self, look: Callable[[], None]) -> None:
        """Run `look`, which raises nothing, at the end of this turn."""
        self._looking.append(look)

    def end_of_turn(self) -> None:
        """Append what this turn staged, then let woken fetches look: one write, one look each.

        A mistake in the code met here costs the connections of those it was done for; the others are served.
        """
        self._standstill.doubtful()
        if self._staged:
            staged, self._staged = self._staged, {}
            for partition in staged:
                partition.write()
        if self._looking:
            looking, self._looking = self._looking, []
            for look in looking:
                look()

    def check_administrator(self, address: str) -> None:
        """Refuse a client, HOST:PORT, that is on no machine of the cluster and not named in `admin_hosts`."""
        host = address.rpartition(":")[0].removeprefix("::ffff:")
        brokers = {broker.host for broker in self.cluster.brokers.values()}
        if not (host.startswith("127.") or host in {"::1", *brokers, *self.config.admin_hosts}):
            raise PolicyViolation(
                f"{host} may not do this: run it on a broker's machine, or name {host} in admin_hosts there"
            )

    # Threads

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Run `function` on the loop; from any thread. The future brings its result or exception."""
        return self.mailbox.call(function)

    def in_zookeeper_thread(self, work: Callable[[], T], then: Callable[[Future[T]], None]) -> None:
        """Run `work`, which waits for ZooKeeper, in a thread; then `then` on the loop with its outcome."""
        self._submit(self._zookeeper, work, then)

    def in_look_up_thread(self, work: Callable[[], T], then: Callable[[Future[T]], None]) -> None:
        """Run `work`, which reads logs, in a thread; then `then` on the loop with its outcome."""
        self._submit(self._look_ups, work, then)

    def _submit(
        self, pool: ThreadPoolExecutor, work: Callable[[], T], then: Callable[[Future[T]], None]
    ) -> Future[T]:
        future = pool.submit(work)
        future.add_done_callback(lambda done: self.mailbox.post(lambda: then(done)))
        return future

    def settle(self) -> None:
        """Bring everything to the disk, side by side, and answer who waits for it; the loop has ended."""
        self.end_of_turn()
        for partition in self._partitions.values():
            partition.flush()
        self.flushes.close()
        self.mailbox.run()
        for partition in self._partitions.values():
            partition.settle()
        self.end_of_turn()

    def close(self) -> None:
        """End the threads and close the logs; `settle` comes first."""
        self.mailbox.stop()
        for pool in (
            self._zookeeper,
            self._look_ups,
            self._openers,
            self._deletions,
            self._confirming,
        ):
            pool.shutdown(wait=True, cancel_futures=True)
        self._logs.close()
