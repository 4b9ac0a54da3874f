"""Runs: the appends made from a fetch answer, each of contiguous whole batches and the position after them.

Pure: bytes and positions in, runs out. Decides which batches are copied, which are left out and counted, and
when the origin no longer fits what was copied before. It uses no sockets, threads or ZooKeeper.

Three kinds of batches are left out: control batches, which have a meaning in their own log only, batches of
aborted transactions (Apache Kafka), and batches that compaction has emptied. The batches of one run are
neighbours in the origin and the last one ends at the run's position: batches left out lie before the first.
Therefore offsets can be translated both ways without asking the origin.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from millrace.client.fetcher import log_was_cut, unknown_epoch
from millrace.client.transactions import AbortedTransactions
from millrace.errors import CorruptMessage, MillraceError
from millrace.records import (
    CONTROL_BIT,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Cursor,
    batch_crc,
    split_batches,
)
from millrace.records.header import CHECKED, STAMP
from millrace.records.mirror_position import MirrorPosition, Origin, records_end
from millrace.wire.fetch import FetchedPartition, Parting
from millrace.wire.mirror_append import BYTE_OFFSETS_PREFIX

CLEANUP_POLICY = "cleanup.policy"
_NOT_PLAIN = CONTROL_BIT | TRANSACTIONAL_BIT


class OriginChanged(MillraceError):
    """The origin's log no longer continues where the mirror ended; an operator must decide what to do.

    `resume` is before the next batch that the origin still has: `millrace mirror reset` continues there.
    """

    def __init__(self, message: str, resume: Cursor) -> None:
        super().__init__(message)
        self.resume = resume


class OriginWasCut(OriginChanged):
    """The origin reused offsets that were copied already; `resume` is the first of them."""


@dataclass(frozen=True, slots=True)
class OffsetRules:
    """Rules for the numbering of an origin's offsets."""

    byte_positions: bool
    """True for Millrace: an offset is a byte position. False for Apache Kafka: consecutive numbers."""
    compacted: bool = False
    """True when compaction may have removed records: then a gap is no loss."""

    @classmethod
    def of_cluster(cls, cluster_id: str, cleanup_policy: str | None) -> OffsetRules:
        if cluster_id.startswith(BYTE_OFFSETS_PREFIX):
            return cls(byte_positions=True)
        return cls(byte_positions=False, compacted="compact" in (cleanup_policy or ""))

    def after(self, header: BatchHeader, cursor: Cursor) -> Cursor:
        if self.byte_positions:
            return cursor.after(header)
        return Cursor(header.next_offset, header.next_offset, header.partition_leader_epoch)


@dataclass(frozen=True, slots=True)
class Run:
    """The content of one append, accepted only if `expected` is the recorded next offset (None: nothing is
    recorded).
    """

    expected: int | None
    batches: tuple[memoryview, ...]
    position: MirrorPosition
    """The position recorded with the batches."""
    records: int
    """Number of records in the batches."""

    @property
    def oldest_ms(self) -> int | None:
        """The largest timestamp in the first batch; None for a run without batches."""
        return BatchHeader.of(self.batches[0]).max_timestamp if self.batches else None


def beginning(origin: Origin, start: int) -> MirrorPosition:
    """Return the position before the first append: nothing copied, `start` is the first offset to read."""
    return MirrorPosition(origin, start, Cursor(start), 0, 0, 0)


def runs_of(
    recorded: MirrorPosition | None, before: MirrorPosition, fetched: FetchedPartition, rules: OffsetRules
) -> Iterator[Run]:
    """Yield the runs that the answer holds after `before`, each continuing the previous one.

    `before` is `recorded`, or the beginning when nothing is recorded. Raise OriginChanged when the log was
    cut back below it or the first new batch does not continue there. Raise CorruptMessage when that batch is
    damaged. If a later batch is wrong, the runs end before it without an error.
    """
    if fetched.parting is not None:
        raise _cut_at(before, fetched.parting)
    if rules.byte_positions and _ends_before(before.cursor, fetched.high_watermark):
        # The answer is empty, not out of range, while the log's bytes reach beyond the requested offset.
        # A Millrace broker's high watermark never goes back; a new leader of Apache Kafka may begin lower.
        raise _lost(before.cursor, fetched.high_watermark)
    aborted = AbortedTransactions(fetched.aborted_transactions)
    run, rest = _Gathered(recorded, before, rules), fetched.records
    try:
        while True:
            rest = run.take_plain(rest)
            header, batch = next(split_batches(rest), (None, rest))
            if header is None:
                break
            rest = rest[header.size :]
            left_out = bool(header.attributes & _NOT_PLAIN) and (aborted.drops(header) or header.is_control)
            if header.next_offset <= run.cursor.next_offset:
                continue  # a fetch begins with the whole batch that holds its offset
            _check_follows(run.cursor, header, batch, fetched, rules)
            copied = header.records_count > 0 and not left_out
            joins = header.base_offset == run.cursor.next_base if copied else run.ends_in_filler(header)
            if run.batches and not joins:
                yield run.finished()
                run = run.following()
            run.take(header, batch if copied else None)
    except (CorruptMessage, OriginChanged):
        if run.cursor == before.cursor:
            raise
    if run.cursor != run.before.cursor:
        yield run.finished()


class _Gathered:
    """A run that is being gathered."""

    __slots__ = ("_dropped", "_recorded", "_records", "_rules", "batches", "before", "cursor")

    def __init__(self, recorded: MirrorPosition | None, before: MirrorPosition, rules: OffsetRules) -> None:
        self._recorded, self._rules = recorded, rules
        self.before, self.cursor = before, before.cursor
        self.batches: list[memoryview] = []
        self._records = self._dropped = 0

    def take_plain(self, records: memoryview) -> memoryview:
        """Copy the plain batches that come next, in a third of the time of `take`.

        Return the rest of the records.
        """
        if self.cursor.next_base is None:
            return records
        next_offset, next_base = self.cursor.next_offset, self.cursor.next_base
        position, end, in_bytes = 0, len(records), self._rules.byte_positions
        while position + HEADER_BYTES <= end:
            base, length, magic, crc, attributes, delta, count = CHECKED.unpack_from(records, position)
            size = length + LENGTH_OVERHEAD
            if (
                base != next_base
                or attributes & _NOT_PLAIN
                or not 0 < count <= delta + 1 <= size
                or size < HEADER_BYTES
                or magic != MAGIC
            ):
                break
            batch = records[position : position + size]
            if len(batch) < size or batch_crc(batch) != crc:
                break
            self.batches.append(batch)
            self._records += count
            next_offset = base + delta + 1
            next_base = base + size if in_bytes else next_offset
            position += size
        if position:
            _, _, epoch = STAMP.unpack_from(self.batches[-1])
            self.cursor = Cursor(next_offset, next_base, epoch)
        return records[position:]

    def take(self, header: BatchHeader, batch: memoryview | None) -> None:
        """Copy the next batch; if `batch` is None, count it as left out."""
        if batch is None:
            self._dropped += header.records_count
        else:
            self.batches.append(batch)
            self._records += header.records_count
        self.cursor = self._rules.after(header, self.cursor)

    def ends_in_filler(self, header: BatchHeader) -> bool:
        """Return True if the batch only fills the log up to `next_base`.

        The copy gets a filler of its own.
        """
        return self._rules.byte_positions and header.next_offset == self.cursor.next_base

    def finished(self) -> Run:
        before = self.before
        position = dataclasses.replace(
            before,
            cursor=self.cursor,
            batches=before.batches + len(self.batches),
            records=before.records + self._records,
            dropped=before.dropped + self._dropped,
            numbered=not self._rules.byte_positions,
        )
        expected = None if self._recorded is None else self._recorded.cursor.next_offset
        return Run(expected, tuple(self.batches), position, self._records)

    def following(self) -> _Gathered:
        position = self.finished().position
        return _Gathered(position, position, self._rules)


def _check_follows(
    cursor: Cursor, header: BatchHeader, batch: memoryview, fetched: FetchedPartition, rules: OffsetRules
) -> None:
    # When a mirror begins, the origin's log may be empty: its end is then known as an offset, not as a byte
    # position, so the first batch's position is unknown. And a batch may hold records below a log's start.
    fresh = cursor.next_base is None
    follows = cursor.follows(header) or rules.compacted or (fresh and rules.byte_positions)
    if not follows and not _only_positions_are_gone(cursor, header, batch, rules):
        expired = fetched.log_start_offset > cursor.next_offset
        raise OriginChanged(
            f"offsets {cursor.next_offset} to {header.base_offset - 1} "
            + (
                "expired in the origin before they were copied"
                if expired
                else "are missing in the origin's log"
            ),
            Cursor(header.base_offset, header.base_offset),
        )
    if header.base_offset < cursor.next_offset and not fresh:
        raise OriginChanged(
            f"the origin's batch at offset {header.base_offset} covers offset {cursor.next_offset - 1}, "
            "which is copied already",
            rules.after(header, cursor),
        )


def _only_positions_are_gone(
    cursor: Cursor, header: BatchHeader, batch: memoryview, rules: OffsetRules
) -> bool:
    """Return True if the gap before the batch held no records.

    An origin that is itself a mirror repeats its position at the start of each file. Positions after its last
    record are not served, so retention may delete one before any reader has seen it.
    """
    if not rules.byte_positions:
        return False
    try:
        end = records_end(header, batch)
    except (ValueError, LookupError, TypeError, RecursionError):  # an origin may state anything
        return False
    return end is not None and end <= cursor.next_offset


def readable_from(cursor: Cursor, earliest: int, high_watermark: int, rules: OffsetRules) -> int:
    """Return the offset to fetch from, for an origin that holds [earliest, high_watermark).

    Raise OriginChanged when the origin has lost the next offsets, or offsets that it had shown before.
    """
    if cursor.next_offset < earliest:
        if rules.byte_positions and (cursor.next_base in (None, earliest) or earliest < high_watermark):
            return earliest  # `runs_of` checks whether records are missing before that batch
        raise OriginChanged(
            f"offsets {cursor.next_offset} to {earliest - 1} expired in the origin before they were copied",
            Cursor(earliest),
        )
    if _ends_before(cursor, high_watermark):
        raise _lost(cursor, high_watermark)
    return cursor.next_offset


def readable_after_refusal(
    before: MirrorPosition, refused: int, earliest: int, high_watermark: int, rules: OffsetRules
) -> int:
    """Return the offset to fetch from after the origin refused an offset as out of range.

    Raise OriginChanged.
    """
    parting = unknown_epoch(refused, before.cursor.epoch, earliest, high_watermark)
    if parting is not None:
        raise _cut_at(before, parting)
    return readable_from(before.cursor, earliest, high_watermark, rules)


def _cut_at(before: MirrorPosition, parting: Parting) -> OriginWasCut:
    origin, cursor = before.origin, before.cursor
    name = f"{origin.topic}-{origin.partition} of {origin.cluster}"
    return OriginWasCut(log_was_cut(name, cursor.next_offset, cursor.epoch, parting), Cursor(parting.end))


def _ends_before(cursor: Cursor, high_watermark: int) -> bool:
    """Return True if a log with this high watermark cannot hold what the cursor has read.

    A batch after the last one begins at `next_base`, so no high watermark lies between the two.
    """
    return high_watermark < cursor.next_offset or (
        cursor.next_base is not None and cursor.next_offset < high_watermark < cursor.next_base
    )


def _lost(cursor: Cursor, high_watermark: int) -> OriginChanged:
    position = cursor.next_offset if cursor.next_base is None else cursor.next_base
    return OriginChanged(
        f"the origin ends at offset {high_watermark}, before the position {position}: it has lost what it "
        "showed before",
        Cursor(high_watermark),
    )
