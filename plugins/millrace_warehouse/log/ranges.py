"""Offset ranges of a partition: cut into tasks by bytes, and accounted for when they are joined again.

A task reads the batches whose base offset lies in its cut, so every batch belongs to exactly one task,
however the range was cut. Uses neither sockets, schemas nor Spark, and does not look up the latest offset: a
range is fixed before it is read.

    stats = RangeStats.for_cut(cut)
    with ClusterClient(bootstrap) as client:
        for decoded in decoder.decode(cut, read_cut(client, cut, stats), stats):
            ...                                                # decoded.rows, decoded.rejected
    whole = join_stats(range_, [stats of every cut])           # finds the gaps between and after the cuts
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from millrace.errors import MillraceError
from millrace.records import Cursor
from millrace_warehouse.log.kinds import Kind

KAFKA_RECORD_BYTES = 100
"""Assumed size of an Apache Kafka record. Small on purpose: too many tasks cost less than huge ones."""


@dataclass(frozen=True, slots=True)
class Range:
    """The offsets [start, end) of one partition.

    `start_base` is the byte position where the first batch must begin if nothing is missing, from the
    previous range's `RangeStats.cursor`; None when nothing was read before. With `topic_id`, reading a topic
    that was recreated meanwhile fails.
    """

    topic: str
    partition: int
    start: int
    end: int
    start_base: int | None = None
    topic_id: UUID | None = None
    byte_positions: bool = True
    """True for Millrace, whose offsets are byte positions. False for Apache Kafka's consecutive offsets."""

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class Cut:
    """A task's share of a range: the batches whose base offset lies in [first, last).

    The first cut also takes the batch that begins before the range and reaches into it.
    """

    range: Range
    first: int
    last: int

    @property
    def is_first(self) -> bool:
        return self.first == self.range.start


def size_of(range_: Range) -> int:
    """Return the bytes of log in a range; an estimate on Apache Kafka, whose offsets count records."""
    span = range_.end - range_.start
    return span if range_.byte_positions else span * KAFKA_RECORD_BYTES


def cut_ranges(ranges: Iterable[Range], cut_bytes: int) -> list[Cut]:
    """Split every range into cuts of about `cut_bytes`, in order. An empty range has none.

    On Apache Kafka, where offsets count records, the size of a cut is estimated as in `size_of`.
    """
    if cut_bytes < 1:
        raise ValueError(f"cut_bytes must be positive, not {cut_bytes}")
    cuts: list[Cut] = []
    for range_ in ranges:
        span = range_.end - range_.start
        count = min(span, -(-size_of(range_) // cut_bytes))
        edges = [range_.start + span * index // count for index in range(count)] + [range_.end]
        cuts += [Cut(range_, first, last) for first, last in itertools.pairwise(edges)]
    return cuts


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets [start, end) that no batch covers. `reason` is `expired` or `absent` (compacted, or lost)."""

    start: int
    end: int
    reason: str


@dataclass(slots=True)
class RangeStats:
    """Account of a cut, or of a whole range after its cuts were joined."""

    topic: str
    partition: int
    first: int
    last: int
    data_batches: int = 0
    control_batches: int = 0
    """Control batches and batches of aborted transactions, which hold no data."""
    bytes: int = 0
    records: int = 0
    """Data records whose offset lies in the range. Counted when batches are unpacked."""
    tombstones: int = 0
    rejected_by_kind: Counter[Kind] = field(default_factory=Counter)
    gaps: list[Gap] = field(default_factory=list)
    first_base: int | None = None
    """Base offset of the first batch read; None when no batch lies in the cut."""
    cursor: Cursor | None = None
    """Position after the last batch read, where the next range continues; None when no batch was read."""
    min_time: int | None = None
    max_time: int | None = None
    """Smallest and largest event time in ms."""
    schema_ids: dict[int, int] = field(default_factory=dict)
    """Accepted rows per writer schema id."""
    unknown_fields: Counter[str] = field(default_factory=Counter)
    """Field of JSON objects that no column takes -> messages with it, of those that were searched."""

    @classmethod
    def for_cut(cls, cut: Cut) -> RangeStats:
        return cls(cut.range.topic, cut.range.partition, cut.first, cut.last)

    @property
    def rejected(self) -> int:
        return self.rejected_by_kind.total()

    def add_times(self, smallest: int, largest: int) -> None:
        """Extend the smallest and largest event time by the times of some rows."""
        self.min_time = smallest if self.min_time is None else min(self.min_time, smallest)
        self.max_time = largest if self.max_time is None else max(self.max_time, largest)


def join_stats(range_: Range, parts: Iterable[RangeStats]) -> RangeStats:
    """Join the accounts of a range's cuts, with the gaps before, between and after them.

    A single task cannot know whether its first batch follows the last batch of the task before it. Raise
    MillraceError when the cuts do not cover the range exactly once.
    """
    joined = RangeStats(range_.topic, range_.partition, range_.start, range_.end)
    cursor = Cursor(range_.start, range_.start_base)
    covered = range_.start
    for part in sorted(parts, key=lambda part: part.first):
        if part.first != covered:
            raise MillraceError(
                f"{range_.name}: the tasks cover [{range_.start}, {covered}) and then start at {part.first};"
                " run the load again"
            )
        covered = part.last
        _add(joined, part)
        if part.first_base is not None and part.cursor is not None:
            joined.gaps += _gaps_up_to(cursor, part, part.first_base)
            cursor = part.cursor
    if covered != range_.end:
        raise MillraceError(
            f"{range_.name}: the tasks end at {covered}, not at {range_.end}; run the load again"
        )
    if cursor.next_offset < range_.end:
        if not _reaches(cursor, range_.end):  # it does where the next batch begins exactly there
            joined.gaps.append(Gap(cursor.next_offset, range_.end, "absent"))
        cursor = Cursor(range_.end, cursor.next_base)
    joined.gaps, joined.cursor = _merged(joined.gaps), cursor
    return joined


def _add(joined: RangeStats, part: RangeStats) -> None:
    for name in ("data_batches", "control_batches", "bytes", "records", "tombstones"):
        setattr(joined, name, getattr(joined, name) + getattr(part, name))
    joined.rejected_by_kind.update(part.rejected_by_kind)
    joined.unknown_fields.update(part.unknown_fields)
    if joined.first_base is None:
        joined.first_base = part.first_base
    if part.min_time is not None and part.max_time is not None:
        joined.add_times(part.min_time, part.max_time)
    for schema_id, rows in part.schema_ids.items():
        joined.schema_ids[schema_id] = joined.schema_ids.get(schema_id, 0) + rows


def _gaps_up_to(cursor: Cursor, part: RangeStats, first_base: int) -> Iterator[Gap]:
    """Yield the gap between the earlier tasks and a part's first batch, then the part's own gaps."""
    if not _reaches(cursor, first_base):
        expired = part.gaps and part.gaps[0] == Gap(first_base, part.gaps[0].end, "expired")
        yield Gap(cursor.next_offset, first_base, "expired" if expired else "absent")
    # The log's start may have moved while the tasks ran: offsets that one task read may be gone for the
    # next.
    for gap in part.gaps:
        if gap.end > cursor.next_offset:
            yield Gap(max(gap.start, cursor.next_offset), gap.end, gap.reason)


def _reaches(cursor: Cursor, base: int) -> bool:
    """Return True if no record can lie between the cursor and a batch at `base`, as in `Cursor.follows`."""
    return base <= cursor.next_offset or base == cursor.next_base


def _merged(gaps: Sequence[Gap]) -> list[Gap]:
    """Return the gaps in order. Adjacent gaps with the same reason become one gap."""
    merged: list[Gap] = []
    for gap in gaps:
        if merged and merged[-1].end >= gap.start and merged[-1].reason == gap.reason:
            merged[-1] = Gap(merged[-1].start, max(merged[-1].end, gap.end), gap.reason)
        else:
            merged.append(gap)
    return merged
