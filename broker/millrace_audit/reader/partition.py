"""State of a reader in one partition: its position, and its counts since the last published count.

It takes fetch answers, one at a time. It has no connection, and is independent of other partitions and of
audit records.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from millrace.client.errors import in_words
from millrace.client.runs import OffsetRules
from millrace.client.transactions import batches_from
from millrace.errors import CorruptMessage, ErrorCode, MillraceError
from millrace.records import BatchHeader, Cursor
from millrace.records.mirror_position import MirrorPosition
from millrace.records.mirror_position import Origin as MirrorOrigin
from millrace.records.topic_partition import TopicPartition
from millrace.wire.fetch import FetchedPartition, error_name
from millrace_audit.reader.counting import BatchCounter, Part, Tally
from millrace_audit.reports.messages import Origin
from millrace_audit.reports.ranges import SequenceRanges

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
TRUNCATED_S = 60.0
"""Time after which a log that ends before its counted end is truncated. Until then a new leader may lag."""
OPEN_S = 60.0
"""Longest time for which an open transaction may hold back later messages, and heartbeats with them."""
_DAMAGED = {ErrorCode.CORRUPT_MESSAGE, ErrorCode.STORAGE_ERROR}
_DAMAGE = "it is damaged on its broker's disk"


class PartitionKey(NamedTuple):
    """A partition for as long as its topic lives; the id is 32 hexadecimal digits."""

    topic_id: str
    partition: int


class CannotRead(MillraceError):
    """A partition cannot be read any further. The text has the cause and the remedy."""


LEFT_OUT = "an earlier reader counted the topic, and --topics leaves it out: add it"
"""Cause that stops the counting of a partition. If it were not reported, the auditor would consider the topic
deleted."""


@dataclass(slots=True)
class Stuck:
    """The cause that prevents reading a partition, and the time of the next try."""

    cause: str
    retry_at: float
    pause_s: float = FIRST_PAUSE_S


@dataclass(slots=True, eq=False)
class Partition:
    """One partition of one topic."""

    topic: str
    key: PartitionKey
    rules: OffsetRules
    start: Cursor | None
    """Start of the next count, with the leader epoch before it: all before it is published. None until the
    start of the log is known."""
    cursor: Cursor = field(init=False)
    """Position of the next read."""
    high_watermark: int = 0
    """End of the log for consumers: on Apache Kafka before the first open transaction."""
    written: int = 0
    """End offset of the acknowledged messages."""
    limit: int | None = None
    """End of counting for now; it may lie inside a batch."""
    awaited: int = 0
    """A value of `written` that consumers have not reached yet, and the time since when."""
    awaited_since: float = 0.0
    tally: Tally = field(default_factory=Tally)
    aborted: Tally = field(default_factory=Tally)
    """Messages of aborted transactions, which consumers do not see."""
    lost: SequenceRanges = field(default_factory=SequenceRanges)
    """Offsets since `published_end` that were deleted before they could be read."""
    origin: Origin | None = None
    """Origin and copied position, from the last position batch that was read or from the mirror."""
    copied_through: int | None = None
    """Offset before which every record lies before the origin's end; None if no end is known."""
    published_origin: tuple[Origin | None, int | None] = (None, None)
    ask_at: float = 0.0
    """Time (monotonic) of the next request for the mirror's position."""
    stuck: Stuck | None = None
    shortest: int | None = None
    """Smallest end of the log while it is before the counted end, and the time since when."""
    short_since: float = 0.0
    truncated: int | None = None
    """Counted end at the time when the log was truncated, until the truncation is reported."""

    def __post_init__(self) -> None:
        self.cursor = self.start or Cursor(0)

    def place(self, log_start: int) -> None:
        """Start at `log_start`: the partition was never counted before."""
        self.start = self.cursor = Cursor(log_start)

    @property
    def published_end(self) -> int | None:
        return None if self.start is None else self.start.next_offset

    @property
    def end(self) -> int:
        """Offset before which everything is counted.

        Transaction markers and aborted transactions, which consumers do not see, count as read. Mirrors and
        loads, whose ends are compared with this end, skip them, too.
        """
        return self.cursor.next_offset

    @property
    def name(self) -> TopicPartition:
        return (self.topic, self.key.partition)

    @property
    def behind(self) -> bool:
        """True if there is more to read.

        The batch after a cursor begins at its `next_base`, if known. A log that ends before that was cut
        back, and reading shows where.
        """
        return self.cursor.next_offset < self.high_watermark != self.cursor.next_base

    @property
    def has_news(self) -> bool:
        return self.published_end is not None and (
            self.end > self.published_end or (self.origin, self.copied_through) != self.published_origin
        )

    @property
    def trouble(self) -> Stuck | None:
        """Cause that prevents reading; None if only the reader's options leave the topic out."""
        return None if self.stuck is not None and self.stuck.cause == LEFT_OUT else self.stuck

    def is_due(self) -> bool:
        """Return True if the partition can be read, or it is time to try again."""
        return self.stuck is None or time.monotonic() >= self.stuck.retry_at

    def stick(self, cause: str) -> bool:
        """Note that the partition cannot be read. Return True if that, or the cause, is new."""
        before = self.stuck
        if before is not None and before.cause.startswith(_DAMAGE) and cause.startswith(_DAMAGE):
            cause = before.cause  # a broker words the same damage differently once it has checked its disk
        pause = FIRST_PAUSE_S if before is None else min(2 * before.pause_s, LONGEST_PAUSE_S)
        self.stuck = Stuck(cause, time.monotonic() + pause, pause)
        return before is None or before.cause != cause

    def noted(self, high_watermark: int, written: int = 0) -> None:
        """Note the end of the log for consumers, and `written`, the end of the acknowledged messages.

        Raise CannotRead while the log ends before its counted end, until that has lasted TRUNCATED_S. Raise
        CannotRead when consumers have not reached an acknowledged end for OPEN_S: producers may report those
        messages.
        """
        if high_watermark < self.end:
            now = time.monotonic()
            if self.shortest is None:
                self.short_since = now
            self.shortest = min(high_watermark, self.end if self.shortest is None else self.shortest)
            if now - self.short_since < TRUNCATED_S:
                raise CannotRead(
                    f"its log ends at {high_watermark} and was counted up to {self.end}: it has lost"
                    " counted messages; after a minute, counting continues at the log's end"
                )
            self.truncate(high_watermark)
        elif self.shortest is not None:
            # The log may hold what was counted there, or other messages in its place.
            self.lost = self.lost | SequenceRanges([(self.shortest, self.end - 1)])
        self.high_watermark, self.shortest = high_watermark, None
        self.written = max(written, high_watermark)
        if high_watermark >= min(self.awaited, self.written):
            self.awaited, self.awaited_since = self.written, time.monotonic()
        elif time.monotonic() >= self.awaited_since + OPEN_S:
            raise CannotRead(
                f"a transaction has been open for {OPEN_S:.0f} s: consumers cannot read from offset"
                f" {high_watermark} on; find the producer that left it open with `kafka-transactions.sh`"
            )

    def truncate(self, end: int) -> None:
        """Continue at `end` or, if less, at `published_end`: the log has lost the messages after `end`."""
        assert self.start is not None
        if end < self.start.next_offset:
            self.truncated = self.start.next_offset
        # The epoch of the log's remaining part is unknown until the next read.
        self.start = self.cursor = Cursor(min(end, self.start.next_offset))
        self.shortest = None
        if self.copied_through is not None:
            self.copied_through = min(self.copied_through, self.end)
        self._clear()

    def copied(self, origin: MirrorOrigin, position: MirrorPosition | None, through: int) -> None:
        """Note the mirror's position, which accounts for all records before `through`, if the reader has read
        exactly up to `through`.

        The mirror's position and the partition's contents may differ: the auditor notices that.
        """
        if self.origin is None:
            self.origin = Origin(origin.cluster, origin.topic_id.hex, origin.partition, None)
        if position is not None and through == self.end:
            self.origin, self.copied_through = _origin(position), through

    def skip_to(self, log_start: int) -> None:
        """Note the unread offsets before `log_start` as lost: they were deleted and can never be counted."""
        self.lost.add(self.cursor.next_offset, log_start - 1)
        self.cursor = Cursor(log_start)

    def take(self, fetched: FetchedPartition, counter: BatchCounter) -> Iterator[Part]:
        """Count the messages of a fetch's answer, part by part; a count may end after each part.

        Raise CannotRead at a damaged batch, after all batches before it are counted. Errors of `counter` are
        passed on; the counts so far stay.
        """
        if (
            fetched.error == ErrorCode.OFFSET_OUT_OF_RANGE
            and fetched.log_start_offset > self.cursor.next_offset
        ):
            self.skip_to(fetched.log_start_offset)
            return
        if fetched.error:
            raise CannotRead(_cause(fetched.error, self.rules))
        data: list[tuple[BatchHeader, memoryview, bool]] = []
        marks: list[tuple[int, SequenceRanges | MirrorPosition]] = []
        cursor, damage = self.cursor, None
        try:
            for header, batch, readable in batches_from(fetched, cursor.next_offset):
                if self.limit is not None and header.base_offset >= self.limit:
                    break
                if self.rules.byte_positions and cursor.next_base is not None and not cursor.follows(header):
                    gap = (cursor.next_offset, header.base_offset - 1)
                    marks.append((header.base_offset, SequenceRanges([gap])))
                cursor = self.rules.after(header, cursor)
                if self.limit is not None and cursor.next_offset > self.limit:
                    cursor = Cursor(self.limit, epoch=header.partition_leader_epoch)
                if not header.is_control:
                    data.append((header, batch, readable))
                elif (position := MirrorPosition.from_batch(header, batch)) is not None:
                    marks.append((header.next_offset, position))
        except CorruptMessage as error:
            damage = error
        for readable, run in groupby(data, key=lambda entry: entry[2]):
            batches = [(header, batch) for header, batch, _ in run]
            tally = self.tally if readable else self.aborted
            for part in counter.count(self.topic, batches, self.cursor.next_offset, tally, self.limit):
                last = next(
                    (header for header, _ in reversed(batches) if header.base_offset < part.end), None
                )
                epoch = -1 if last is None else last.partition_leader_epoch
                self._reach(Cursor(part.end, epoch=epoch), marks)
                yield part if readable else Part(part.end, 0, part.times[:0])
        self._reach(cursor, marks)
        if damage is not None:
            raise CannotRead(_cause(ErrorCode.CORRUPT_MESSAGE, self.rules, str(damage)))

    def _reach(self, cursor: Cursor, marks: list[tuple[int, SequenceRanges | MirrorPosition]]) -> None:
        self.cursor = cursor
        while marks and marks[0][0] <= cursor.next_offset:
            place, mark = marks.pop(0)
            if isinstance(mark, MirrorPosition):
                self.origin, self.copied_through = _origin(mark), place
            else:
                self.lost = self.lost | mark

    def published(self) -> None:
        """Begin the next count, because the last count has been published."""
        self.start = Cursor(self.end, epoch=self.cursor.epoch)
        self.published_origin = (self.origin, self.copied_through)
        self._clear()

    def _clear(self) -> None:
        self.tally.clear()
        self.aborted.clear()
        self.lost = SequenceRanges()


def _origin(position: MirrorPosition) -> Origin:
    origin = position.origin
    return Origin(origin.cluster, origin.topic_id.hex, origin.partition, position.cursor.next_offset)


def _cause(error: int, rules: OffsetRules, detail: str = "") -> str:
    if error not in _DAMAGED:
        return in_words(error)
    mend = (
        "stop its broker and run `millrace log repair DIR`"
        if rules.byte_positions
        else "see its broker's log"
    )
    return f"{_DAMAGE} ({detail or error_name(error)}): {mend}"
