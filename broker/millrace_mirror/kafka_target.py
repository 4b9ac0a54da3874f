"""Writing of one origin's copies into an Apache Kafka: records and positions in the same transactions.

One transactional producer for an origin, `millrace-mirror-<aggregate>-<origin>`: a transaction costs Kafka
the same few writes whatever its size, so all records of one answer of the origin go into one. When Kafka
refuses the transaction, each partition is tried alone, so that an unwritable partition does not delay others.

A start fences the process that copied before (InitProducerId), which also aborts its open transaction; then
positions are read back. Therefore, after a SIGKILL or a lost answer, copying continues at the end of the last
transaction that Kafka has committed. Readers of committed records miss nothing and see nothing twice.
Everything happens in the pulling threads, one transaction at a time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any
from uuid import uuid4

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from millrace.client.cluster_client import EARLIEST, LATEST, ClusterClient
from millrace.client.confluent import connected, text_of
from millrace.client.kafka_positions import BEGIN_KEY, SETTINGS, Copy, PositionLog, Recorded, positions_topic
from millrace.client.metadata import TopicMetadata
from millrace.client.transactions import batches_from
from millrace.errors import CorruptMessage, MillraceError, TopicAlreadyExists, UnknownTopicOrPartition
from millrace.records import BatchHeader, Record, iter_records
from millrace.records.mirror_position import MirrorPosition, PositionMismatch
from millrace_broker.partitions.broker import TargetAppend
from millrace_mirror.kafka_aggregate import KafkaAggregate

logger = logging.getLogger("millrace.mirror.kafka_target")

TRY_SECONDS = 10.0
"""Time limit of one call of librdkafka, which is then repeated."""
OPEN_SECONDS = 60.0
END_SECONDS = 60.0
"""Time limit for ending a transaction; then the producer is replaced."""
TRANSACTION_MS, DELIVERY_MS = 60_000, 30_000
REFRESH_MS = 2_000
"""Interval at which librdkafka asks for a topic's new partitions; its default is 5 minutes."""
LEADERS_SECONDS = 1.0
"""Time for which an answer about leaders is used."""
LARGEST_MESSAGE = 1_000_000_000
"""librdkafka's own maximum: the topic in Kafka decides which messages are too large."""
_FENCED = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}


class Fenced(MillraceError):
    """Another process now mirrors the origin into this cluster, or this process was stalled too long."""


class KafkaTarget:
    """A MirrorTarget for the puller threads of one origin. `fenced` is called when it must stop."""

    def __init__(
        self, origin: str, aggregate: KafkaAggregate, bootstrap: str, fenced: Callable[[Fenced], None]
    ) -> None:
        self._origin, self._aggregate, self._bootstrap = origin, aggregate, bootstrap
        self._on_fenced = fenced
        self._fenced: Fenced | None = None
        """Error after which no new producer is created: it would fence the process that has taken over."""
        self._lock = threading.Lock()
        self._client = ClusterClient(bootstrap, client_id="millrace-mirror")
        self._producer: Producer | None = None
        self._recorded: dict[Copy, Recorded] = {}
        """Positions in the last committed transactions; complete while there is a producer."""
        self._checked: set[Copy] = set()
        """Copies known to hold no records after the recorded end."""
        self._leaders: tuple[float, Mapping[str, TopicMetadata]] = (0.0, {})
        """Time of the last request for leaders, and its answer."""
        self.transactions = {"committed": 0, "refused": 0}
        """Outcome -> number of transactions since the start."""

    # For the pulling threads

    def mirror_position(self, topic: str, number: int) -> MirrorPosition | None:
        """Return the recorded position of a copy. Raise UnknownTopicOrPartition when the copy is not
        registered.

        Raise MillraceError while Kafka cannot be written to.
        """
        copy = self._copy(topic, number)
        with self._lock:
            if self._fenced is not None:
                raise self._fenced
            if self._producer is None:
                try:
                    self._open()
                except Fenced as error:
                    self._end_fenced(error)
                    raise
            recorded = self._recorded.get(copy)
        return None if recorded is None else recorded.position

    def copied_through(self, topic: str, number: int) -> int:
        """Return the next origin offset of a copy, for any thread; 0 when nothing is copied or known."""
        try:
            recorded = self._recorded.get(self._copy(topic, number))
        except UnknownTopicOrPartition:
            return 0
        return 0 if recorded is None else recorded.position.cursor.next_offset

    def append_mirrored(self, appends: Sequence[TargetAppend]) -> Future[list[Exception | None]]:
        """Append the runs that begin at the recorded positions; the future is done when this returns."""
        future: Future[list[Exception | None]] = Future()
        with self._lock:
            try:
                outcomes = self._append(appends)
            except Fenced as error:
                self._end_fenced(error)
                outcomes = [error] * len(appends)
        future.set_result(outcomes)
        return future

    def _append(self, appends: Sequence[TargetAppend]) -> list[Exception | None]:
        try:
            return self._transact(appends)
        except Fenced:
            raise
        except MillraceError as error:
            names = {(append.topic, append.partition) for append in appends}
            if len(names) == 1 or self._producer is None:
                return [error] * len(appends)
        outcomes: dict[int, Exception | None] = {}
        for name in names:
            part = [i for i, append in enumerate(appends) if (append.topic, append.partition) == name]
            outcomes |= zip(part, self._append([appends[i] for i in part]), strict=True)
        return [outcomes[i] for i in range(len(appends))]

    def _end_fenced(self, error: Fenced) -> None:
        self._fenced = error
        self._drop()
        self._on_fenced(error)

    # Beginning

    def _open(self) -> None:
        """Fence the process that copied before, and read the positions that it has committed."""
        topic = positions_topic(self._origin)
        if topic not in self._client.topics([topic]):
            with suppress(TopicAlreadyExists):
                self._client.create_topic(topic, 1, SETTINGS)
        producer = self._new_producer()
        give_up_at = time.monotonic() + OPEN_SECONDS
        while True:
            try:
                producer.init_transactions(TRY_SECONDS)
                break
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() >= give_up_at:
                    raise self._refused(error) from error
        begun = uuid4().hex.encode()
        try:
            producer.begin_transaction()
            delivered = _Delivered()
            message = {"partition": 0, "key": BEGIN_KEY, "value": begun, "on_delivery": delivered.count}
            delivered.produce(producer, topic, **message)
            delivered.ends(producer)
            self._end(producer.commit_transaction)
        except (KafkaException, _Undelivered) as error:
            raise self._refused(error) from error
        self._recorded = dict(PositionLog(self._client, self._origin).read_through(begun))
        self._checked.clear()
        self._producer = producer
        logger.info(
            "mirror of %s writes to %s: %d positions", self._origin, self._bootstrap, len(self._recorded)
        )

    def _new_producer(self) -> Producer:
        settings: dict[str, Any] = {
            "bootstrap.servers": self._bootstrap,
            "client.id": "millrace-mirror",
            "transactional.id": f"millrace-mirror-{self._aggregate.name}-{self._origin}",
            "transaction.timeout.ms": TRANSACTION_MS,
            "delivery.timeout.ms": DELIVERY_MS,
            "linger.ms": 5,  # messages of a transaction are batched, and its end sends the rest
            "compression.type": "lz4",
            "message.max.bytes": LARGEST_MESSAGE,
            "topic.metadata.refresh.interval.ms": REFRESH_MS,
            "allow.auto.create.topics": False,  # a deleted topic would come back as another
            "log_level": 2,  # errors are raised; librdkafka would also print them
        }
        return connected(Producer, settings)

    def _check_end(self, append: TargetAppend, copy: Copy, before: Recorded | None) -> MillraceError | None:
        """Return the error if a copy holds records without a position, which might be copied twice.

        Return None if there is none.
        """
        topic, number, cluster = append.topic, append.partition, self._aggregate.name
        if copy in self._checked:
            return None
        first, end = (self._client.list_offsets(topic, at, [number])[number] for at in (EARLIEST, LATEST))
        holds, offset = before is None and first > 0, max(first, before.records_end if before else 0)
        while offset < end and not holds:
            fetched = self._client.fetch(topic, {number: offset}, max_bytes=1 << 20, max_wait_ms=500)[number]
            batches = list(batches_from(fetched, offset))
            if fetched.error or not batches:
                return MillraceError(f"{topic}-{number} of {cluster} cannot be read at {offset}")
            holds = any(readable for _, _, readable in batches)
            offset = batches[-1][0].next_offset
        if holds:
            has = "no position of it" if before is None else f"a position only up to {before.records_end}"
            return MillraceError(
                f"{topic}-{number} of {cluster} holds records, and {positions_topic(self._origin)} has {has}:"
                f" to copy it again, delete topic {topic} in {cluster}"
            )
        self._checked.add(copy)
        return None

    def _check_leader(self, append: TargetAppend, names: Iterable[str]) -> MillraceError | None:
        """Return the error if a partition has no leader: a transaction with it would not end, and would block
        other partitions.
        """
        asked, there = self._leaders
        if time.monotonic() - asked > LEADERS_SECONDS or append.topic not in there:
            there = self._client.topics(set(names))
            self._leaders = time.monotonic(), there
        topic = there.get(append.topic)
        if topic is None or topic.partitions.get(append.partition, -1) < 0:
            return MillraceError(f"{append.topic}-{append.partition} of {self._aggregate.name} has no leader")
        return None

    def _copy(self, topic: str, number: int) -> Copy:
        state = self._aggregate.topics.get(topic)
        if state is None or number not in state.partitions:
            raise UnknownTopicOrPartition(f"{topic}-{number} is not registered in {self._aggregate.name}")
        return Copy(state.topic_id, number)

    # One transaction

    def _transact(self, appends: Sequence[TargetAppend]) -> list[Exception | None]:
        """Commit the appends that begin at the recorded positions.

        Raise MillraceError if the transaction fails.
        """
        producer, outcomes = self._producer, list[Exception | None]()
        if producer is None:
            raise MillraceError(f"{self._bootstrap} accepts no transactions at the moment")
        new: dict[Copy, Recorded] = {}
        accepted: list[tuple[TargetAppend, Copy]] = []
        names = {append.topic for append in appends}
        for append in appends:
            copy = self._copy(append.topic, append.partition)
            before = new.get(copy, self._recorded.get(copy))
            if append.run.expected != (before.position.cursor.next_offset if before else None):
                outcomes.append(PositionMismatch(append.run.expected, before.position if before else None))
                continue
            problem = self._check_leader(append, names) or self._check_end(append, copy, before)
            if problem is not None:
                outcomes.append(problem)
                continue
            outcomes.append(None)
            accepted.append((append, copy))
            new[copy] = Recorded(append.run.position, before.records_end if before else 0)
        if not accepted:
            return outcomes
        try:
            producer.begin_transaction()
            ends = self._send(producer, accepted)
            new = {copy: Recorded(one.position, ends.get(copy, one.records_end)) for copy, one in new.items()}
            self._send_positions(producer, new)
            self._end(producer.commit_transaction)
        except (KafkaException, _Undelivered) as error:
            self.transactions["refused"] += 1
            raise self._give_up(producer, error) from error
        self.transactions["committed"] += 1
        self._recorded |= new
        for append, _ in accepted:
            append.visible()
        return outcomes

    def _send(self, producer: Producer, appends: Sequence[tuple[TargetAppend, Copy]]) -> dict[Copy, int]:
        """Send every record; return the end offset of each copy afterwards."""
        delivered = _Delivered()
        for append, copy in appends:
            on_delivery = delivered.to(copy)
            for record in _records(append):
                delivered.produce(
                    producer,
                    append.topic,
                    partition=append.partition,
                    key=record.key,
                    value=record.value,
                    headers=list(record.headers),
                    # librdkafka takes 0 for "now"; in Kafka -1 means a record without a timestamp.
                    timestamp=record.timestamp or -1,
                    on_delivery=on_delivery,
                )
        return delivered.ends(producer)

    def _send_positions(self, producer: Producer, positions: dict[Copy, Recorded]) -> None:
        delivered = _Delivered()
        for copy, (position, records_end) in positions.items():
            delivered.produce(
                producer,
                positions_topic(self._origin),
                partition=0,
                key=copy.key(),
                value=position.encode(records_end),
                on_delivery=delivered.to(copy),
            )
        delivered.ends(producer)

    def _end(self, call: Callable[[float], None]) -> None:
        """Commit or abort; repeat the call while librdkafka reports that a retry may help."""
        give_up_at = time.monotonic() + END_SECONDS
        while True:
            try:
                call(TRY_SECONDS)
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() >= give_up_at:
                    raise

    def _give_up(self, producer: Producer, error: KafkaException | _Undelivered) -> MillraceError:
        """Abort after an error. Drop a producer that cannot abort: the next producer reads positions back."""
        refused = self._refused(error)
        cause = error.args[0]
        may_abort = isinstance(error, _Undelivered) or cause.txn_requires_abort()
        try:
            if not may_abort or isinstance(refused, Fenced):
                raise error
            self._end(producer.abort_transaction)
        except (KafkaException, _Undelivered) as worse:
            self._drop()
            return self._refused(worse)
        return refused

    def _drop(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()

    def _refused(self, error: Exception) -> MillraceError:
        cause = error.args[0]
        if isinstance(cause, KafkaError) and cause.code() in _FENCED:
            return Fenced(
                f"another process now mirrors {self._origin} into {self._aggregate.name}, or this one was"
                " stalled too long: run only one process, and restart it"
            )
        return MillraceError(f"{self._bootstrap} refuses copies of {self._origin}: {text_of(cause)}")


class _Undelivered(Exception):
    """Kafka did not take a message of the transaction; the exception holds the KafkaError."""


class _Delivered:
    """Counts of a transaction's sent and delivered messages, and the end offsets of its copies."""

    def __init__(self) -> None:
        self._sent = self._done = 0
        self._ends: dict[Copy, int] = {}
        self._error: KafkaError | None = None

    def to(self, copy: Copy) -> Callable[[KafkaError | None, Message], None]:
        def on_delivery(error: KafkaError | None, message: Message) -> None:
            self.count(error, message)
            if error is None:
                self._ends[copy] = max(self._ends.get(copy, 0), (message.offset() or 0) + 1)

        return on_delivery

    def count(self, error: KafkaError | None, message: Message) -> None:
        self._done += 1
        self._error = self._error or error

    def produce(self, producer: Producer, topic: str, **message: Any) -> None:
        """Pass a message to librdkafka, once it has room.

        Raise _Undelivered when an earlier message failed.
        """
        while True:
            if self._error is not None:
                raise _Undelivered(self._error)
            try:
                producer.produce(topic, **message)
                self._sent += 1
                producer.poll(0)
                return
            except BufferError:
                producer.poll(0.1)
            except KafkaException as error:
                raise _Undelivered(error.args[0]) from error

    def ends(self, producer: Producer) -> dict[Copy, int]:
        """Wait for all deliveries; return each copy's end offset.

        Raise _Undelivered when a message failed.
        """
        while self._done < self._sent and self._error is None:
            producer.flush(1.0)
        if self._error is not None:
            raise _Undelivered(self._error)
        return self._ends


def _records(append: TargetAppend) -> Iterator[Record]:
    """Yield the records of a run. A batch that cannot be decompressed is left out: Kafka would refuse it."""
    for batch in append.run.batches:
        header = BatchHeader.of(batch)
        try:
            yield from list(iter_records(header, batch))
        except CorruptMessage as error:
            what = (header.records_count, append.topic, append.partition, error)
            logger.error("%d records for %s-%d are left out, because no consumer can read them: %s", *what)
