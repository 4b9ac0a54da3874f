"""Where a reader stands in one partition, and what it has counted there since it last said so.

Takes fetch answers, one at a time. Knows no connection, no other partition and no record of the audit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
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
"""A log that ends before what was counted of it is truncated, if that lasts: a new leader may lag behind."""
OPEN_S = 60.0
"""For so long a transaction may hold back the messages behind it, and heartbeats with them."""
_DAMAGED = {ErrorCode.CORRUPT_MESSAGE, ErrorCode.STORAGE_ERROR}
_DAMAGE = "it is damaged on its broker's disk"


class PartitionKey(NamedTuple):
    """A partition for as long as its topic lives; the id is 32 hexadecimal digits."""

    topic_id: str
    partition: int


class CannotRead(MillraceError):
    """A partition cannot be read on: in words, with what to do."""


@dataclass(slots=True)
class Stuck:
    """Why a partition cannot be read, and when that is tried again."""

    cause: str
    retry_at: float
    pause_s: float = FIRST_PAUSE_S


@dataclass(slots=True, eq=False)
class Partition:
    """One partition of one topic."""

    topic: str
    key: PartitionKey
    rules: OffsetRules
    told: int | None
    """Where the next count begins: up to here all is published. None until it is known where the log does."""
    cursor: Cursor = field(init=False)
    """What is read next."""
    high_watermark: int = 0
    """Where it ends for consumers: on Apache Kafka before the first transaction that is open."""
    written: int = 0
    """Where that ends which is acknowledged."""
    limit: int | None = None
    """It is counted to there for now, also inside a batch."""
    awaited: int = 0
    """A `written` that consumers are to come to, and since when."""
    awaited_since: float = 0.0
    tally: Tally = field(default_factory=Tally)
    lost: SequenceRanges = field(default_factory=SequenceRanges)
    """Offsets since `told` that were gone before they could be read."""
    origin: Origin | None = None
    """What it is a copy of, and how far, by the last position batch that was read or by its leader."""
    copied_through: int | None = None
    """Offset before which everything lies before the origin's end; None if no end is known."""
    origin_told: tuple[Origin | None, int | None] = (None, None)
    ask_at: float = 0.0
    """When its mirror is asked again how far it has come."""
    stuck: Stuck | None = None
    shortest: int | None = None
    """Where the log ended when that was before what was counted, at the least, and since when."""
    short_since: float = 0.0
    truncated: int | None = None
    """Up to where it was counted when its log was truncated, until that is told."""

    def __post_init__(self) -> None:
        self.cursor = Cursor(self.told or 0)

    def place(self, log_start: int) -> None:
        """Nobody has counted it before: it is counted from there on."""
        self.told, self.cursor = log_start, Cursor(log_start)

    @property
    def end(self) -> int:
        """All before it is counted.

        What holds no messages for consumers (marks of transactions, and those that were aborted) is behind it
        like any message: mirrors and loads pass over it, too, and are compared with it.
        """
        return self.cursor.next_offset

    @property
    def name(self) -> TopicPartition:
        return (self.topic, self.key.partition)

    @property
    def behind(self) -> bool:
        """True if there is more to read than was read; the batch behind a cursor begins at its base."""
        return max(self.cursor.next_offset, self.cursor.next_base or 0) < self.high_watermark

    @property
    def has_news(self) -> bool:
        return self.told is not None and (
            self.end > self.told or (self.origin, self.copied_through) != self.origin_told
        )

    def is_due(self) -> bool:
        """True if it can be read, or it is time to try again."""
        return self.stuck is None or time.monotonic() >= self.stuck.retry_at

    def stick(self, cause: str) -> bool:
        """Note that it cannot be read; True if that, or the cause, is new."""
        before = self.stuck
        if before is not None and before.cause.startswith(_DAMAGE) and cause.startswith(_DAMAGE):
            cause = before.cause  # a broker that has looked at its disk says of the same in other words
        pause = FIRST_PAUSE_S if before is None else min(2 * before.pause_s, LONGEST_PAUSE_S)
        self.stuck = Stuck(cause, time.monotonic() + pause, pause)
        return before is None or before.cause != cause

    def noted(self, high_watermark: int, written: int = 0) -> None:
        """Its end for consumers is there now, and `written` that of what is acknowledged.

        CannotRead when it ends before what was counted, until it has stayed so, and when consumers have not
        come to what is acknowledged for long: who has acknowledged messages there may report them.
        """
        if high_watermark < self.end:
            now = time.monotonic()
            if self.shortest is None:
                self.short_since = now
            self.shortest = min(high_watermark, self.end if self.shortest is None else self.shortest)
            if now - self.short_since < TRUNCATED_S:
                raise CannotRead(
                    f"its log ends at {high_watermark} and was counted up to {self.end}: messages that were"
                    " there are gone from it; after a minute counting goes on from where it ends"
                )
            self.truncate(high_watermark)
        elif self.shortest is not None:
            # What lies there now may be what was counted, or something else in its place.
            self.lost = self.lost | SequenceRanges([(self.shortest, self.end - 1)])
        self.high_watermark, self.shortest = high_watermark, None
        self.written = max(written, high_watermark)
        if high_watermark >= min(self.awaited, self.written):
            self.awaited, self.awaited_since = self.written, time.monotonic()
        elif time.monotonic() >= self.awaited_since + OPEN_S:
            raise CannotRead(
                f"a transaction has been open in it for {OPEN_S:.0f} s: no consumer sees what lies behind"
                f" {high_watermark}; look for who has left it open with Kafka's `kafka-transactions.sh`"
            )

    def truncate(self, end: int) -> None:
        """Go on counting at `end`: the log no longer holds what was counted behind it."""
        assert self.told is not None
        if end < self.told:
            self.truncated, self.told = self.told, end
        self.cursor = Cursor(self.told)
        if self.copied_through is not None:
            self.copied_through = min(self.copied_through, self.told)
        self.tally, self.lost = Tally(), SequenceRanges()

    def copied(self, origin: MirrorOrigin, position: MirrorPosition | None, through: int) -> None:
        """The mirror has come that far with what lies before `through`, which counts if just that was read.

        What the mirror says it has appended, and what is there, may differ: that is for the auditor to find.
        """
        if self.origin is None:
            self.origin = Origin(origin.cluster, origin.topic_id.hex, origin.partition, None)
        if position is not None and through == self.end:
            self.origin, self.copied_through = _origin(position), through

    def skip_to(self, log_start: int) -> None:
        """What lies before `log_start` is gone, and nobody will ever count it."""
        self.lost.add(self.cursor.next_offset, log_start - 1)
        self.cursor = Cursor(log_start)

    def take(self, fetched: FetchedPartition, counter: BatchCounter) -> Iterator[Part]:
        """Count what an answer holds, part by part; a count may end behind each.

        Raises CannotRead at a batch that is damaged, with all before it counted, or what `counter` raises,
        with what was counted by then.
        """
        if (
            fetched.error == ErrorCode.OFFSET_OUT_OF_RANGE
            and fetched.log_start_offset > self.cursor.next_offset
        ):
            self.skip_to(fetched.log_start_offset)
            return
        if fetched.error:
            raise CannotRead(_cause(fetched.error, self.rules))
        data: list[tuple[BatchHeader, memoryview]] = []
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
                    cursor = Cursor(self.limit)
                if readable:
                    data.append((header, batch))
                elif (position := MirrorPosition.from_batch(header, batch)) is not None:
                    marks.append((header.next_offset, position))
        except CorruptMessage as error:
            damage = error
        for part in counter.count(data, self.cursor.next_offset, self.tally, self.limit):
            self._reach(Cursor(part.end), marks)
            yield part
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
        """What was counted is on its way: begin the next count."""
        self.told, self.origin_told = self.end, (self.origin, self.copied_through)
        self.tally, self.lost = Tally(), SequenceRanges()


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
