"""Translation of an origin's offset to the copy's and back, from the mirrored log alone.

Every append of a mirrored partition ends with a position batch. The batches before it were neighbours in the
origin and end there at the position (see records/mirror_position.py). So one append, read header by header,
translates exactly; the task is to find the append. A copy's offset lies in its append. For an origin's offset
the append is searched: by the position at the start of each file, then by halving the file.

Whatever the log's size, a search reads one header for each halving of the number of files; then, in a file of
1 GiB, it makes some ten reads of at most the headers of one append, and reads the headers of the last MiB.
Nothing is changed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import NamedTuple

from millrace.errors import CorruptMessage, StorageError
from millrace.records import BatchHeader, filler_size
from millrace.records.mirror_position import MirrorPosition
from millrace_broker.storage.chain import ChainBroken, read_batch, walk
from millrace_broker.storage.landmarks import LandmarksMissing, locate
from millrace_broker.storage.segment import Files, Segment
from millrace_broker.storage.state import LogState, holds_offsets

SHORT_WALK_BYTES = 1 << 20
"""Size at which a search by halving ends and the rest is read batch by batch."""
ATTEMPTS = 3


class Outcome(IntEnum):
    """Outcome of a translation."""

    TRANSLATED = 0
    """The result is the offset of the same record, or of the next copied record if no record
    has the offset."""
    NOT_COPIED = 1
    """The copy does not reach the offset yet."""
    NOT_RETAINED = 2
    """The copy's records at the offset were deleted."""
    BEFORE_START = 3
    """The copy began after the offset."""
    BEFORE_RESET = 4
    """An operator has moved the mirror since. Appends before the reset are not searched."""


class Translated(NamedTuple):
    """An outcome; `offset` is -1 unless the offset was translated."""

    outcome: Outcome
    offset: int = -1


class _Append(NamedTuple):
    """One append: data batches, and the position batch after them, each with its base in this log."""

    batches: list[tuple[int, BatchHeader]]
    position_base: int
    position: MirrorPosition

    def origin_bases(self) -> list[int]:
        """Return the origin's base offset of each batch: the last batch ends at the position."""
        cursor, numbered = self.position.cursor, self.position.numbered
        end = cursor.next_offset if numbered or cursor.next_base is None else cursor.next_base
        bases = []
        for _, header in reversed(self.batches):
            if numbered and header.is_control:
                raise CorruptMessage(f"batch {header.base_offset} was repaired: its offsets are not known")
            end -= header.last_offset_delta + 1 if numbered else header.size + filler_size(header)
            bases.append(end)
        return bases[::-1]


def offset_in_copy(visible: LogState, files: Files, offset: int) -> Translated:
    """Translate an origin's next offset to read into this log's offset.

    Raise CorruptMessage for a damaged log, and FileNotFoundError when retention deletes a file meanwhile.
    """
    last = visible.mirror
    if last is None:
        return Translated(Outcome.NOT_COPIED)
    if offset >= last.cursor.next_offset:
        if offset > max(last.cursor.next_offset, last.cursor.next_base or 0):
            return Translated(Outcome.NOT_COPIED)
        return Translated(Outcome.TRANSLATED, visible.high_watermark)
    if offset < last.start:
        return Translated(Outcome.BEFORE_START)
    start = max(last.reset_at, files.segments[0].base)
    first = files.index_of(start)
    head = next(_appends(files.segments[first], start, visible.end))
    if offset < head.position.cursor.next_offset:
        reset = 0 < last.reset_at == start
        return Translated(Outcome.BEFORE_RESET if reset else Outcome.NOT_RETAINED)
    segment = _segment_of(files, first, offset, visible.end)
    append = _append_of(segment, max(start, segment.base), offset, visible.end)
    for (base, header), origin_base in zip(append.batches, append.origin_bases(), strict=True):
        if offset < origin_base + header.last_offset_delta + 1:
            return Translated(Outcome.TRANSLATED, base + max(0, offset - origin_base))
    return Translated(Outcome.TRANSLATED, min(append.position_base, visible.high_watermark))


def offset_at_origin(visible: LogState, files: Files, offset: int) -> Translated:
    """Translate this log's next offset to read into the origin's offset. Raise as `offset_in_copy` does."""
    last = visible.mirror
    if last is None or offset > visible.end:
        return Translated(Outcome.NOT_COPIED)
    if offset >= visible.high_watermark:
        return Translated(Outcome.TRANSLATED, last.cursor.next_offset)
    if offset < min(files.start_offset, files.segments[0].base):
        return Translated(Outcome.NOT_RETAINED)
    index = files.index_of(offset)
    segment, at = files.segments[index], files.segments[index].base
    if offset > at:
        limit = min(segment.end, visible.end)
        at = _locate(segment, offset, limit)
        if at == limit and index + 1 < len(files.segments):
            segment = files.segments[index + 1]
            at = segment.base
    append = next(_appends(segment, at, visible.end))
    if not append.batches:
        return Translated(Outcome.TRANSLATED, append.position.cursor.next_offset)
    return Translated(Outcome.TRANSLATED, append.origin_bases()[0] + max(0, offset - append.batches[0][0]))


def translate(snapshot: Callable[[], tuple[LogState, Files]], offset: int, *, to_origin: bool) -> Translated:
    """Translate an offset of a mirrored log to its origin or back. Raise StorageError or CorruptMessage."""
    find = offset_at_origin if to_origin else offset_in_copy
    for _ in range(ATTEMPTS):
        visible, files = snapshot()
        try:
            return find(visible, files, offset)
        except FileNotFoundError:
            continue  # retention deleted a file after this look-up began: use the new list of files
    raise StorageError("the log's files are deleted faster than they can be read")


def _segment_of(files: Files, first: int, offset: int, end: int) -> Segment:
    """Return the last segment that begins with a position at or before an origin's offset."""

    def begins_at(segment: Segment) -> int:
        if segment.base >= end:
            return offset + 1  # no part of it is visible
        return next(_appends(segment, segment.base, end)).position.cursor.next_offset

    later = files.segments[first + 1 :]
    return files.segments[first + bisect_right(later, offset, key=begins_at)]


def _append_of(segment: Segment, low: int, offset: int, end: int) -> _Append:
    """Return the first append, after the position at `low`, that ends beyond an origin's offset."""
    high = limit = min(segment.end, end)
    while high - low > SHORT_WALK_BYTES:
        middle = (low + high) // 2
        start = _locate(segment, middle, limit)
        append = next(_appends(segment, start, end), None)
        if append is None or append.position_base >= high or append.position.cursor.next_offset > offset:
            high = middle
        elif append.position_base > low:
            low = append.position_base
        else:
            break  # the middle lies in the position batch at `low`
    for append in _appends(segment, low, end):
        if append.position.cursor.next_offset > offset:
            return append
    raise CorruptMessage(f"no position behind origin offset {offset} in {segment.path}")


def _locate(segment: Segment, offset: int, limit: int) -> int:
    file = segment.open_reader()
    try:
        return locate(segment.known_landmarks(), file, offset, limit)
    except LandmarksMissing:
        return locate(segment.build_landmarks(), file, offset, limit)


def _appends(segment: Segment, start: int, end: int) -> Iterator[_Append]:
    """Yield every append from a batch boundary on.

    The first append lacks its batches before that boundary.
    """
    batches: list[tuple[int, BatchHeader]] = []
    file = segment.open_reader()
    try:
        for at, header in walk(file, start, min(segment.end, end)):
            if holds_offsets(header, at):
                batches.append((at, header))
                continue
            batch = read_batch(file, at, header) if header.is_control else None
            position = MirrorPosition.from_batch(header, batch) if batch is not None else None
            if position is not None:
                yield _Append(batches, at, position)
                batches = []
    except ChainBroken as error:
        raise CorruptMessage(f"a damaged batch at position {error.position} in {segment.path}") from None
