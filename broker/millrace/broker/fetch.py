"""One fetch: read what is there, or wait for it.

A fetch that finds less than it wants is parked on its partitions, looks again when they have got enough more,
and answers with what there is when its time is up. Reads file slices, never bytes. Knows no wire format.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from millrace.errors import BrokerError, ErrorCode
from millrace.records.file_slice import FileSlice
from millrace.storage.landmarks import LandmarksMissing
from millrace.wire.fetch import AskedFetch

if TYPE_CHECKING:
    from millrace.broker.broker import Broker
    from millrace.broker.partition import Partition
    from millrace.mailbox import Timer

logger = logging.getLogger(__name__)

MAX_WAIT_MS = 5 * 60_000
"""A client that wants to wait longer asks again."""
MAX_PARKED_PARTITIONS = 100_000
"""Of all waiting fetches together: each takes 200 bytes. Beyond it ..."""
SMALL_FETCH = 16
"""... only a fetch of so few partitions may still wait, any other is answered with what there is."""


class PartitionRead(NamedTuple):
    """What a fetch found in one partition."""

    number: int
    error: int
    high_watermark: int = -1
    log_start_offset: int = -1
    records: FileSlice | None = None


Found: TypeAlias = list[tuple[str, list[PartitionRead]]]


class Fetch:
    """A fetch under way; `answer` is called once, on the loop.

    `abort` is called instead when a mistake in the code is met while it waits: there is no answer to give.
    """

    __slots__ = ("_abort", "_answer", "_available", "_broker", "_partitions", "_request", "_timer", "_woken")

    def __init__(
        self,
        broker: Broker,
        request: AskedFetch,
        answer: Callable[[Found], None],
        abort: Callable[[str], None],
    ) -> None:
        self._broker, self._abort = broker, abort
        self._request = request
        self._answer: Callable[[Found], None] | None = answer
        self._partitions: list[Partition] = []
        """Those it is parked on."""
        self._available = 0
        self._timer: Timer | None = None
        self._woken = False

    def start(self) -> None:
        """Answer at once if there is enough, else wait."""
        self._try()
        if self._answer is not None:
            wait = min(self._request.max_wait, MAX_WAIT_MS)
            self._timer = self._broker.mailbox.after(wait / 1000, self._time_is_up)

    def abandon(self) -> None:
        """Nobody waits for the answer any more."""
        self._answer = None
        self._leave()
        if self._timer is not None:
            self._timer.cancel()

    def grown(self, size: int) -> None:
        """Look again once what the partitions grew by may be enough: a look at all of them takes long."""
        self._available += size
        if self._available >= self._request.min_bytes:
            self.wake()

    def wake(self) -> None:
        """Look again at the end of this turn, however many partitions have something new."""
        if not self._woken and self._answer is not None:
            self._woken = True
            self._broker.look_again(self._look)

    def _time_is_up(self) -> None:
        self._look(final=True)

    def _look(self, *, final: bool = False) -> None:
        try:
            self._try(final=final)
        except Exception:
            logger.exception("a mistake in a fetch that waited")
            self.abandon()
            self._abort("a mistake was met while its fetch waited")

    def _try(self, *, final: bool = False) -> None:
        if self._answer is None:
            return
        self._woken = False
        found, partitions, size, failed = self._read()
        enough = size >= self._request.min_bytes or self._request.max_wait <= 0
        if not (final or failed or enough):
            self._available = size
            # Who is parked stays so: had a partition come or gone since, there would be an error to tell.
            if self._partitions or self._park(partitions):
                return
        self._leave()
        if self._timer is not None:
            self._timer.cancel()
        answer, self._answer = self._answer, None
        if size > 0:
            self._count(found)
        answer(found)

    def _count(self, found: Found) -> None:
        for topic, reads in found:
            for read in reads:
                partition = self._broker.partitions.get((topic, read.number))
                if partition is not None and read.records is not None:
                    partition.reads_out += 1
                    partition.bytes_out += read.records.length

    def _park(self, partitions: list[Partition]) -> bool:
        """Wait on every partition, unless too many are waited on already."""
        count = len(partitions)
        if count > SMALL_FETCH and self._broker.parked_partitions + count > MAX_PARKED_PARTITIONS:
            return False
        self._broker.parked_partitions += count
        self._partitions = partitions
        for partition in partitions:
            partition.parked.add(self)
        return True

    def _leave(self) -> None:
        self._broker.parked_partitions -= len(self._partitions)
        for partition in self._partitions:
            partition.parked.discard(self)
        self._partitions = []

    def _read(self) -> tuple[Found, list[Partition], int, bool]:
        """What is there now and in which partitions, its bytes, and whether there is an error to tell."""
        total, failed = 0, False
        found: Found = []
        partitions: list[Partition] = []
        for topic, wanted in self._request.topics:
            reads = []
            for number, offset, max_bytes in wanted:
                room = self._request.max_bytes - total
                try:
                    partition = self._broker.partition(topic, number)
                    read = self._read_partition(partition, offset, max_bytes, room, first=total == 0)
                    partitions.append(partition)
                except BrokerError as error:
                    read, failed = PartitionRead(number, error.code), True
                except OSError as error:
                    logger.error("cannot read %s-%s: %s", topic, number, error)
                    read, failed = PartitionRead(number, ErrorCode.STORAGE_ERROR), True
                reads.append(read)
                if read.records is not None:
                    total += read.records.length
            found.append((topic, reads))
        return found, partitions, total, failed

    def _read_partition(
        self, partition: Partition, offset: int, max_bytes: int, room: int, *, first: bool
    ) -> PartitionRead:
        log, records = partition.log, None
        if room > 0 or first:
            try:
                records = log.read(offset, max(1, min(max_bytes, room)))
            except LandmarksMissing:
                self._broker.build_landmarks(partition)  # wakes who is parked when they are there
            if records is not None and records.length > room and not first:
                records = None  # only the first batch of an answer may exceed its limit
        return PartitionRead(
            partition.number, ErrorCode.NONE, log.high_watermark, log.log_start_offset, records
        )  # fmt: skip
