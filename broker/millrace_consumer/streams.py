"""The streams that an application iterates, and the partitions that feed them.

This module has the bounded queue between pulling and iterating, and the position up to which a partition
counts as consumed. It uses no sockets and no ZooKeeper: pullers bring batches, and the rebalancer brings
partitions.

A message is taken when the iterator returns it, and done when the thread that took it asks for the next
message, commits or closes. Only done messages are ever committed.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from millrace.errors import CorruptMessage
from millrace.process import HomeProcess
from millrace.records import BatchHeader, Record, iter_records
from millrace.records.topic_partition import TopicPartition

UNPROVEN_WAIT_SECONDS = 0.1
"""Seconds between checks whether ownership is proven again."""


class Message(NamedTuple):  # a frozen dataclass takes four times as long to make
    """One message; `timestamp` is in ms. Offsets of a partition rise, but not always by one."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """A whole record batch that was pulled; its CRC is right."""

    header: BatchHeader
    data: bytes


@dataclass(frozen=True, slots=True)
class Jump:
    """A jump of the read position: to `offset`, from `instead_of`."""

    instead_of: int | None
    offset: int


Pulled = Batch | Jump | CorruptMessage


@dataclass(eq=False, slots=True)
class OwnedPartition:
    """One partition that a stream reads. The stream's lock guards its changing fields."""

    topic_partition: TopicPartition
    topic_id: UUID
    stream: MessageStream
    committed: int | None
    proved: Callable[[], bool]
    """Returns True if no other consumer can own the partition now."""
    done: int | None = field(init=False)
    """Position after the last done message, at which the next owner continues; None: not known yet."""
    taken: int = field(init=False)
    """Offset below which all messages were returned to the application or are not wanted."""
    pull_offset: int | None = field(init=False)
    """Offset to pull next; None: the start policy decides."""
    pull_epoch: int = -1
    """Leader epoch of the batch before `pull_offset`; -1: not known."""
    life: int = 0
    """Number of seeks, and the end of ownership. Batches that were pulled in an earlier life are dropped."""
    stopped: bool = False
    """True when no more messages may be returned or pulled."""
    broken: bool = False
    """True when the next batch is damaged: nothing more is pulled until a seek."""

    def __post_init__(self) -> None:
        self.done = self.pull_offset = self.committed
        self.taken = -1 if self.committed is None else self.committed

    def __str__(self) -> str:
        return "{}-{}".format(*self.topic_partition)


class _InHand(NamedTuple):
    """The message that was returned last."""

    partition: OwnedPartition
    life: int
    next_offset: int
    thread: int


class MessageStream(Iterator[Message]):
    """An iterator over the messages of the partitions that this stream owns. It blocks while there are none.

    It ends only when the consumer is closed. Messages of a partition come in order. It raises CorruptMessage
    when a batch is damaged: then this partition pauses until `Consumer.seek` moves it past the batch, and the
    other partitions continue. For one thread at a time.
    """

    def __init__(self, name: str, queued_bytes: int, on_room: Callable[[], None]) -> None:
        self.name = name
        self._limit, self._on_room = queued_bytes, on_room
        self._changed = threading.Condition()
        self._queue: deque[tuple[OwnedPartition, int, Pulled]] = deque()
        self._queued = 0
        self._reading: tuple[OwnedPartition, int, Iterator[Record]] | None = None
        self._in_hand: _InHand | None = None
        self._closed = False
        self._home = HomeProcess("stream of messages")

    # The application's side

    def __next__(self) -> Message:
        self._home.check()  # a forked child has no threads that pull
        with self._changed:
            if self._in_hand is not None:
                self._put_down(self._in_hand)
            while not self._closed:
                message = self._advance()
                if message is not None:
                    return message
                unproven = self._reading is not None or self._queue
                self._changed.wait(UNPROVEN_WAIT_SECONDS if unproven else None)
            raise StopIteration

    def _advance(self) -> Message | None:
        """Return the next message; None when there is no message or no proof of ownership."""
        while self._reading is not None or self._queue:
            partition, life, *_ = self._reading or self._queue[0]
            alive = partition.life == life
            if alive and not partition.proved():
                return None
            if self._reading is None:
                pulled = self._take_off()
                if alive:
                    self._begin(partition, pulled)
                continue
            record = next(self._reading[2], None) if alive else None
            if record is None:
                self._reading = None
            elif record.offset >= partition.taken:  # a fetch inside a batch returns the whole batch
                partition.taken = record.offset + 1
                self._in_hand = _InHand(partition, life, record.offset + 1, threading.get_ident())
                return _message(partition, record)
        return None

    def _take_off(self) -> Pulled:
        pulled = self._queue.popleft()[2]
        if isinstance(pulled, Batch):
            was_full = self._queued >= self._limit
            self._queued -= len(pulled.data)
            if was_full and self._queued < self._limit:
                self._on_room()
        return pulled

    def _begin(self, partition: OwnedPartition, pulled: Pulled) -> None:
        if isinstance(pulled, CorruptMessage):
            raise pulled
        if isinstance(pulled, Jump):
            partition.taken = partition.done = pulled.offset
        elif pulled.header.is_control:
            partition.taken = partition.done = max(partition.taken, pulled.header.next_offset)
        else:
            self._reading = (partition, partition.life, self._records(partition, pulled))

    def _records(self, partition: OwnedPartition, batch: Batch) -> Iterator[Record]:
        """Yield the records. A batch with a right CRC that cannot be decoded stops its partition."""
        try:
            yield from iter_records(batch.header, batch.data)
        except CorruptMessage as error:
            partition.life += 1
            partition.broken = True
            raise CorruptMessage(damaged(partition, partition.taken, error)) from error
        except Exception:  # for example out of memory: the rest must not be skipped
            partition.life += 1
            partition.pull_offset, partition.pull_epoch = partition.taken, -1
            raise

    # The pullers' side

    def next_pull(self, partition: OwnedPartition) -> tuple[int, int | None] | None:
        """Return (life, offset) of the next pull.

        None when nothing is to be pulled, for example because the queue is full.
        """
        with self._changed:
            if partition.stopped or partition.broken or self._closed or self._queued >= self._limit:
                return None
            return partition.life, partition.pull_offset

    @property
    def room(self) -> int:
        return self._limit - self._queued

    def put(self, partition: OwnedPartition, life: int, pulled: Pulled) -> None:
        """Queue pulled messages. Drop them if they were requested before a seek or the end of ownership."""
        with self._changed:
            if partition.life != life or partition.stopped:
                return
            if isinstance(pulled, Jump) and partition.pull_offset != pulled.instead_of:
                return  # the leader has just moved: a second puller was first
            self._queue.append((partition, life, pulled))
            if isinstance(pulled, Batch):
                self._queued += len(pulled.data)
                partition.pull_offset = pulled.header.next_offset
                partition.pull_epoch = pulled.header.partition_leader_epoch
            elif isinstance(pulled, Jump):
                partition.pull_offset, partition.pull_epoch = pulled.offset, -1
                if pulled.instead_of is None:  # the next owner begins here, not at the end of that time
                    partition.done = pulled.offset
            else:
                partition.broken = True
            self._changed.notify_all()

    # The consumer's side

    def stop(self, partitions: Collection[OwnedPartition]) -> None:
        """Return no more messages of these partitions, and drop their pulled messages."""
        with self._changed:
            self._stop(partitions)

    def end(self, partitions: Collection[OwnedPartition]) -> None:
        """End these partitions, which this consumer no longer owns: their message in hand does not count."""
        with self._changed:
            for partition in partitions:
                partition.life += 1
            self._stop(partitions)
            self._changed.notify_all()

    def _stop(self, partitions: Collection[OwnedPartition]) -> None:
        for partition in partitions:
            partition.stopped = True
        self._drop(partitions)

    def seek(self, partition: OwnedPartition, offset: int) -> None:
        """Continue at `offset`: the next message returned is the first at or after it."""
        with self._changed:
            partition.life += 1
            partition.broken = False
            partition.pull_offset = partition.taken = partition.done = offset
            partition.pull_epoch = -1
            self._drop([partition])
            self._changed.notify_all()

    def _drop(self, partitions: Collection[OwnedPartition]) -> None:
        if self._reading is not None and self._reading[0] in partitions:
            self._reading = None
        self._queue = deque(entry for entry in self._queue if entry[0] not in partitions)
        self._queued = sum(len(pulled.data) for *_, pulled in self._queue if isinstance(pulled, Batch))
        self._on_room()

    def _put_down(self, held: _InHand) -> None:
        self._in_hand = None
        if held.partition.life == held.life:
            held.partition.done = held.next_offset
        if held.partition.stopped:
            self._changed.notify_all()  # `wait_for_hands` waits for it

    def put_down(self, thread: int, *, done: bool = True) -> None:
        """Count the message in hand as done, or as given up, if `thread` holds it."""
        with self._changed:
            held = self._in_hand
            if held is not None and held.thread == thread:
                self._put_down(held if done else held._replace(life=-1))

    def wait_for_hands(self, partitions: Collection[OwnedPartition], seconds: float) -> bool:
        """Wait until no message of these partitions is in hand. Return False when that takes too long."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while self._in_hand is not None and self._in_hand.partition in partitions:
                if self._in_hand.life != self._in_hand.partition.life:
                    return True
                if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                    return False
        return True

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._queue.clear()
            self._reading, self._queued = None, 0
            self._changed.notify_all()


def _message(partition: OwnedPartition, record: Record) -> Message:
    topic, number = partition.topic_partition
    return Message(topic, number, record.offset, record.timestamp, record.key, record.value, record.headers)


def damaged(partition: OwnedPartition, offset: int, error: CorruptMessage) -> str:
    return (
        f"{partition} is damaged at offset {offset}: {error}; have it repaired (millrace log repair) "
        "or seek past it"
    )
