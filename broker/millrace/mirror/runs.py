"""From a fetch answer to what one append writes: whole batches in a row, and the position behind them.

Pure: bytes and positions in, a run out. Decides what is copied, what is left out and counted, and when the
origin no longer fits what was copied before. Knows no sockets, threads or ZooKeeper.

A run is free of gaps: each batch begins where the one before it ended (records.Cursor). What is left out are
control batches, which mean something in their own log only, batches of aborted transactions (Apache Kafka),
and batches that compaction has emptied.

Limit: behind an idle origin that is itself a mirror, retention may delete a position batch that was never
served; nobody can tell that from lost messages, so the copying stops, loudly and without need.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from millrace.errors import CorruptMessage, MillraceError
from millrace.records import BatchHeader, Cursor, split_batches
from millrace.storage.position import MirrorPosition, Origin
from millrace.wire.fetch import FetchedPartition
from millrace.wire.transactions import AbortedTransactions


class OriginChanged(MillraceError):
    """The origin's log no longer goes on where the mirror ended; only an operator can tell what to do.

    `resume` stands before the next batch it still has: where `millrace mirror reset` goes on.
    """

    def __init__(self, message: str, resume: Cursor) -> None:
        super().__init__(message)
        self.resume = resume


@dataclass(frozen=True, slots=True)
class OffsetRules:
    """How an origin's offsets may be read."""

    byte_positions: bool
    """True for Millrace: an offset is a byte position. False for Apache Kafka: consecutive numbers."""
    compacted: bool = False
    """True when records may be missing by intent: a gap is then no loss."""

    def after(self, header: BatchHeader, cursor: Cursor) -> Cursor:
        """The cursor behind a batch."""
        if self.byte_positions:
            return cursor.after(header)
        return Cursor(header.next_offset, header.next_offset)


@dataclass(frozen=True, slots=True)
class Run:
    """What one append writes: accepted only if `expected` is the recorded next offset (None: none yet)."""

    expected: int | None
    batches: tuple[memoryview, ...]
    position: MirrorPosition
    """To be recorded with the batches."""


def beginning(origin: Origin, start: int) -> MirrorPosition:
    """The position before the first append: nothing copied, `start` is the first offset to read."""
    return MirrorPosition(origin, start, Cursor(start), 0, 0, 0)


def next_run(
    recorded: MirrorPosition | None, before: MirrorPosition, fetched: FetchedPartition, rules: OffsetRules
) -> Run | None:
    """The longest run the answer allows behind `before`; None when it holds nothing new.

    `before` is `recorded`, or the beginning when nothing is recorded. Raises OriginChanged when the first
    new batch does not go on there, CorruptMessage when it is damaged; what precedes such a batch is
    returned first.
    """
    if rules.byte_positions and before.cursor.next_offset > fetched.high_watermark:
        # Such a fetch is answered empty while the log's bytes reach past its offset, not as out of range.
        # A Millrace broker's high watermark never goes back; a new leader of Apache Kafka may begin lower.
        raise _ends_before(before.cursor, fetched.high_watermark)
    cursor, batches, records, dropped = before.cursor, list[memoryview](), 0, 0
    aborted = AbortedTransactions(fetched.aborted_transactions)
    try:
        for header, batch in split_batches(fetched.records):
            leave_out = aborted.drops(header) or header.is_control or header.records_count == 0
            if header.next_offset <= cursor.next_offset:
                continue  # a fetch begins with the whole batch that holds its offset
            _check_follows(cursor, header, rules)
            if leave_out:
                dropped += header.records_count
            else:
                batches.append(batch)
                records += header.records_count
            cursor = rules.after(header, cursor)
    except (CorruptMessage, OriginChanged):
        if cursor == before.cursor:
            raise
    if cursor == before.cursor:
        return None
    position = dataclasses.replace(
        before,
        cursor=cursor,
        batches=before.batches + len(batches),
        records=before.records + records,
        dropped=before.dropped + dropped,
    )
    return Run(None if recorded is None else recorded.cursor.next_offset, tuple(batches), position)


def _check_follows(cursor: Cursor, header: BatchHeader, rules: OffsetRules) -> None:
    # At a start the origin's log may be empty: its end is then known as an offset, not as a byte position,
    # so nobody can say where the first batch will begin. And a batch may hold records below a log's start.
    fresh = cursor.next_base is None
    if not (cursor.follows(header) or rules.compacted or (fresh and rules.byte_positions)):
        raise OriginChanged(
            f"offsets {cursor.next_offset} to {header.base_offset - 1} are missing in the origin's log",
            Cursor(header.base_offset, header.base_offset),
        )
    if header.base_offset < cursor.next_offset and not fresh:
        raise OriginChanged(
            f"the origin's batch at offset {header.base_offset} covers offset {cursor.next_offset - 1}, "
            "which is copied already",
            rules.after(header, cursor),
        )


def readable_from(cursor: Cursor, earliest: int, high_watermark: int, rules: OffsetRules) -> int:
    """The offset to fetch from, for an origin that holds [earliest, high_watermark).

    Raises OriginChanged when it has lost what was to be read next, or what it had shown before.
    """
    if cursor.next_offset < earliest:
        if rules.byte_positions and cursor.next_base in (None, earliest):
            return earliest  # the batch before it has expired, and nothing else
        exact = rules.byte_positions and earliest < high_watermark
        raise OriginChanged(
            f"offsets {cursor.next_offset} to {earliest - 1} expired in the origin before they were copied",
            Cursor(earliest, earliest if exact else None),
        )
    if cursor.next_offset > high_watermark:
        raise _ends_before(cursor, high_watermark)
    return cursor.next_offset


def _ends_before(cursor: Cursor, high_watermark: int) -> OriginChanged:
    return OriginChanged(
        f"the origin ends at offset {high_watermark}, before the position {cursor.next_offset}: it has "
        "lost what it showed before",
        Cursor(high_watermark),
    )
