"""One fetch: read what is there, or wait for it.

A fetch that finds less than it wants is parked on its partitions, looks again at each publish, and answers
with what there is when its time is up. Reads file slices, never bytes. Knows no wire format.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millrace.errors import BrokerError, ErrorCode
from millrace.storage.file_slice import FileSlice
from millrace.wire.messages import FetchPartition, FetchRequest

if TYPE_CHECKING:
    from millrace.broker import Broker
    from millrace.broker.partition import Partition
    from millrace.mailbox import Timer

logger = logging.getLogger(__name__)

MAX_WAIT_MS = 5 * 60_000
"""A client that wants to wait longer asks again."""
MAX_PARKED_PARTITIONS = 100_000
"""Of all waiting fetches together: each takes 200 bytes. Beyond it ..."""
SMALL_FETCH = 16
"""... only a fetch of so few partitions may still wait, any other is answered with what there is."""


@dataclass(slots=True)
class PartitionRead:
    """What a fetch found in one partition."""

    index: int
    error: ErrorCode = ErrorCode.NONE
    high_watermark: int = -1
    log_start_offset: int = -1
    records: FileSlice | None = None


Found = Sequence[tuple[str, list[PartitionRead]]]


class Fetch:
    """A fetch under way; `answer` is called once, on the loop."""

    __slots__ = ("_answer", "_broker", "_parked", "_partitions", "_request", "_timer", "_woken")

    def __init__(self, broker: Broker, request: FetchRequest, answer: Callable[[Found], None]) -> None:
        self._broker = broker
        self._request = request
        self._answer: Callable[[Found], None] | None = answer
        self._partitions: list[Partition] = []
        self._parked = 0
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

    def wake(self) -> None:
        """Look again at the end of this turn, however many partitions have something new."""
        if not self._woken and self._answer is not None:
            self._woken = True
            self._broker.look_again(self._try)

    def _time_is_up(self) -> None:
        self._try(final=True)

    def _try(self, *, final: bool = False) -> None:
        if self._answer is None:
            return
        self._woken = False
        self._leave()
        found, size, failed = self._read()
        enough = size >= self._request.min_bytes or self._request.max_wait <= 0
        if not (final or failed or enough) and self._park():
            return
        if self._timer is not None:
            self._timer.cancel()
        answer, self._answer = self._answer, None
        self._count(found)
        answer(found)

    def _count(self, found: Found) -> None:
        for topic, reads in found:
            for read in reads:
                partition = self._broker.partitions.get((topic, read.index))
                if partition is not None and read.records is not None:
                    partition.reads_out += 1
                    partition.bytes_out += read.records.length

    def _park(self) -> bool:
        """Wait on every partition, unless too many are waited on already."""
        count = len(self._partitions)
        if count > SMALL_FETCH and self._broker.parked_partitions + count > MAX_PARKED_PARTITIONS:
            return False
        self._broker.parked_partitions += count
        self._parked = count
        for partition in self._partitions:
            partition.parked.add(self)
        return True

    def _leave(self) -> None:
        self._broker.parked_partitions -= self._parked
        self._parked = 0
        for partition in self._partitions:
            partition.parked.discard(self)
        self._partitions = []

    def _read(self) -> tuple[Found, int, bool]:
        """What is there now, its bytes, and whether some partition has an error to tell."""
        total, failed = 0, False
        found = []
        for topic in self._request.topics:
            reads = []
            for wanted in topic.partitions:
                room = self._request.max_bytes - total
                read = self._read_partition(topic.topic, wanted, room, first=total == 0)
                reads.append(read)
                failed = failed or read.error != ErrorCode.NONE
                total += read.records.length if read.records is not None else 0
            found.append((topic.topic, reads))
        return found, total, failed

    def _read_partition(self, topic: str, wanted: FetchPartition, room: int, *, first: bool) -> PartitionRead:
        try:
            partition = self._broker.partition(topic, wanted.partition)
            log = partition.log
            records = None
            if room > 0 or first:
                limit = max(1, min(wanted.partition_max_bytes, room))
                records = log.read(wanted.fetch_offset, limit)
                if records is not None and records.length > room and not first:
                    records = None  # only the first batch of an answer may exceed its limit
        except BrokerError as error:
            return PartitionRead(wanted.partition, error.code)
        except OSError as error:
            logger.error("cannot read %s-%s: %s", topic, wanted.partition, error)
            return PartitionRead(wanted.partition, ErrorCode.STORAGE_ERROR)
        self._partitions.append(partition)
        return PartitionRead(
            wanted.partition, ErrorCode.NONE, log.high_watermark, log.log_start_offset, records
        )
