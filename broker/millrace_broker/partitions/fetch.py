"""One fetch: read the available records, or wait for them.

A fetch that finds less than it wants is parked on its partitions. It adds up their growth, and reads them all
again once that is enough or its time is up; it answers with the records found then. A partition that is named
twice is read once. Reads file slices, never bytes. Knows no wire format.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias

from millrace.errors import BrokerError, ErrorCode, LeaderNotAvailable, OffsetOutOfRange
from millrace.records.file_slice import FileSlice
from millrace.wire.fetch import FetchRequest
from millrace_broker.mailbox import Mailbox, Timer
from millrace_broker.partitions.partition import Partition
from millrace_broker.storage.epochs import EpochEnd
from millrace_broker.storage.landmarks import LandmarksMissing

logger = logging.getLogger("millrace.broker.fetch")

MAX_WAIT_MS = 5 * 60_000
"""Longest wait of a fetch; a client that wants to wait longer asks again."""
MAX_PARKED_PARTITIONS = 100_000
"""Most partitions that all waiting fetches may name together: each takes 200 bytes. Beyond it only a fetch of
at most SMALL_FETCH partitions waits; any other is answered with the records available."""
SMALL_FETCH = 16


class PartitionRead(NamedTuple):
    """Result of a fetch in one partition."""

    number: int
    error: int
    high_watermark: int = -1
    log_start_offset: int = -1
    records: FileSlice | None = None
    parting: EpochEnd | None = None
    """Offset up to which this log agrees with the log that the client has read. Only without records."""


Reads: TypeAlias = list[tuple[str, list[PartitionRead]]]
"""Results of a fetch, by topic."""
SendReads: TypeAlias = Callable[[Reads], None]


class Source(Protocol):
    """The broker as a fetch sees it."""

    mailbox: Mailbox
    parked_partitions: int

    def partition(self, topic: str, number: int) -> Partition: ...

    def build_landmarks(self, partition: Partition) -> None:
        """Start a thread that builds a partition's missing landmarks and then wakes its parked fetches.

        Raise StorageError if no thread can be started."""


class Fetch:
    """A fetch under way; `answer` is called once, on the loop.

    `abort` is called instead when a bug shows while it waits: there is no answer to give.
    """

    __slots__ = ("_abort", "_answer", "_available", "_partitions", "_request", "_source", "_timer", "_woken")

    def __init__(
        self, source: Source, request: FetchRequest, answer: SendReads, abort: Callable[[str], None]
    ) -> None:
        self._source, self._abort = source, abort
        self._request = request
        self._answer: SendReads | None = answer
        self._partitions: dict[Partition, int] = {}
        """Partitions it is parked on; maps each to the bytes that it would still take of it."""
        self._available = 0
        self._timer: Timer | None = None
        self._woken = False

    def start(self) -> None:
        """Answer at once if there is enough, else wait."""
        self._try()
        if self._answer is not None:
            wait = min(self._request.max_wait, MAX_WAIT_MS)
            self._timer = self._source.mailbox.after(wait / 1000, self._time_is_up)

    def abandon(self) -> None:
        self._answer = None
        self._leave()
        if self._timer is not None:
            self._timer.cancel()

    def grown(self, partition: Partition, size: int) -> None:
        """Look again once the partitions have grown enough: a look at all of them takes long."""
        taken = min(size, self._partitions[partition])
        self._partitions[partition] -= taken
        self._available += taken
        if self._available >= self._request.min_bytes:
            self.wake()

    @property
    def any_is_enough(self) -> bool:
        return self._request.min_bytes <= 1

    def wake(self) -> None:
        """Look again at the end of this turn, however many partitions have grown."""
        if not self._woken and self._answer is not None:
            self._woken = True
            self._source.mailbox.at_end_of_turn(self._look)

    def _time_is_up(self) -> None:
        self._look(final=True)

    def _look(self, *, final: bool = False) -> None:
        try:
            self._try(final=final)
        except Exception:
            logger.exception("a bug in a fetch that waited")
            self.abandon()
            self._abort("a bug was met while its fetch waited")

    def _try(self, *, final: bool = False) -> None:
        if self._answer is None:
            return
        self._woken = False
        topics, partitions, size, failed = self._read()
        # The growth is enough though less may be read: else each small append could cost a look.
        enough = max(size, self._available if size else 0) >= self._request.min_bytes
        if not (final or failed or enough or self._request.max_wait <= 0):
            self._available = size
            # Stays parked as it is: had a partition come or gone since, there would be an error to answer.
            if self._partitions:
                self._partitions.update(partitions)
                return
            if partitions and self._park(partitions):
                return
        self._leave()
        if self._timer is not None:
            self._timer.cancel()
        answer, self._answer = self._answer, None
        if size > 0:
            self._count(topics)
        answer(topics)

    def _count(self, topics: Reads) -> None:
        for topic, reads in topics:
            for read in reads:
                if read.records is not None:
                    partition = self._source.partition(topic, read.number)
                    partition.reads_out += 1
                    partition.bytes_out += read.records.length

    @property
    def _named(self) -> int:
        return sum(len(wanted) for _, wanted in self._request.topics)

    def _park(self, partitions: dict[Partition, int]) -> bool:
        """Wait on every partition, unless too many are waited on already."""
        count = self._named
        if count > SMALL_FETCH and self._source.parked_partitions + count > MAX_PARKED_PARTITIONS:
            return False
        self._source.parked_partitions += count
        self._partitions = partitions
        for partition in partitions:
            partition.park(self)
        return True

    def _leave(self) -> None:
        if self._partitions:
            self._source.parked_partitions -= self._named
        for partition in self._partitions:
            partition.leave(self)
        self._partitions = {}

    def _read(self) -> tuple[Reads, dict[Partition, int], int, bool]:
        """Return the reads, the bytes that each partition may add, the bytes read, and whether one failed."""
        # Names of topics without partitions would be kept for nothing.
        total, failed = 0, not all(wanted for _, wanted in self._request.topics)
        topics: Reads = []
        partitions: dict[Partition, int] = {}
        for topic, wanted in self._request.topics:
            reads = []
            for number, offset, max_bytes, epoch, last_epoch in wanted:
                room = self._request.max_bytes - total
                try:
                    partition = self._source.partition(topic, number)
                    if epoch != partition.leader_epoch:
                        partition.check_epoch(epoch)
                    if parted := _parting(partition, offset, last_epoch):
                        read, failed = parted, True
                    elif partition in partitions:
                        read = self._read_partition(partition, offset, max_bytes, 0, first=False)
                    else:
                        read = self._read_partition(partition, offset, max_bytes, room, first=total == 0)
                        partitions[partition] = self._room_left(read, max_bytes)
                except LeaderNotAvailable:  # Kafka never gives a fetch this error; Java's consumer ends at it
                    read, failed = PartitionRead(number, ErrorCode.NOT_LEADER_OR_FOLLOWER), True
                except BrokerError as error:
                    read, failed = PartitionRead(number, error.code), True
                except OSError as error:
                    logger.error("cannot read %s-%s: %s", topic, number, error)
                    read, failed = PartitionRead(number, ErrorCode.STORAGE_ERROR), True
                reads.append(read)
                if read.records is not None:
                    total += read.records.length
            topics.append((topic, reads))
        return topics, partitions, total, failed

    def _room_left(self, read: PartitionRead, max_bytes: int) -> int:
        if read.records is not None:
            return max(0, max_bytes - read.records.length)
        return max(max_bytes, self._request.min_bytes)  # the first batch is taken whole, however large

    def _read_partition(
        self, partition: Partition, offset: int, max_bytes: int, room: int, *, first: bool
    ) -> PartitionRead:
        log, records = partition.log, None
        if room > 0 or first:
            try:
                records = log.read(offset, max(1, min(max_bytes, room)))
            except OffsetOutOfRange:
                partition.check_knows(offset)
                raise
            except LandmarksMissing:
                self._source.build_landmarks(partition)  # wakes the parked fetches when they are built
            if records is not None and records.length > room and not first:
                records = None  # only the first batch of an answer may exceed its limit
        return PartitionRead(
            partition.number, ErrorCode.NONE, log.high_watermark, log.log_start_offset, records
        )


def _parting(partition: Partition, offset: int, last_epoch: int) -> PartitionRead | None:
    """Return the answer to a client whose last batch before `offset` is not in the log; None if it is.

    None also for an offset beyond the log's end, which has an error of its own.
    """
    log = partition.log
    if last_epoch < 0 or offset > log.end:
        return None
    parting = log.epochs.parting(last_epoch, offset, log.end)
    if parting is None:
        return None
    return PartitionRead(
        partition.number, ErrorCode.NONE, log.high_watermark, log.log_start_offset, None, parting
    )
