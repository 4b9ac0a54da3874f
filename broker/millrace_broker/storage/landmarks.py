"""Landmarks: the few batch boundaries of a segment that are known, so that any look-up in it is short.

One is noted about every MiB as the log is appended to, nothing per message. A look-up is a bisection of the
landmarks and a walk along the headers behind one; a reader who goes on at a landmark needs no walk. The
segment being appended to has its landmarks in memory and in the checkpoint; a closed one has them in a file
beside it:

    <base>.landmarks := sealed JSON {version, base, size,
        landmarks: [position, max timestamp before it, next offset before it, position, ...]}

The log can be read without them: where they are missing, damaged or of other bytes, they are rebuilt from
the headers. A landmark is never believed: the batch at its position states that position, or the landmark is
taken for missing. Knows positions, not segments.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from millrace.errors import CorruptMessage, StorageError
from millrace.records import BatchHeader, filler_size
from millrace_broker.storage import chain, sealed
from millrace_broker.storage.chain import ChainBroken, LogFile

SPAN_BYTES = 1 << 20
"""From one landmark to the next at most, unless a single batch is larger."""
LEAST_BATCH_BYTES = 256
"""A smaller batch counts for as much: at most 4,096 batches lie between two landmarks. A look-up takes 0.3 us
for the header of each."""
WALKED_HEADERS = 2 * (SPAN_BYTES // LEAST_BATCH_BYTES + 1)
"""Headers between two landmarks at most, as each batch may have a filler."""
VERSION = 2


class LandmarksMissing(StorageError):
    """The place cannot be found in a short walk: the segment's landmarks have to be built first."""


@dataclass(slots=True)
class Landmarks:
    """The landmarks of one segment, in order. One thread adds, any may look."""

    values: array[int] = field(default_factory=lambda: array("q"))
    """Of each: where a batch begins that is no filler; the largest timestamp before it, -1 without any; and
    the offset behind the last batch before it that is no filler, its own position where that is not known.
    In one array, so that no thread sees half of a change."""
    room: int = field(default=0, compare=False)
    """Bytes that still go before the next one; 0 at first, so the first batch that is noted gets one."""
    next_offset: int | None = field(default=None, compare=False)
    """Behind the last batch that was noted, None when what stands before the next one is not known."""

    def note(self, position: int, size: int, max_timestamp: int, next_offset: int) -> None:
        """A batch that is no filler stands at `position`; `max_timestamp` is the largest before it.

        `size` is that of the batch and its filler.
        """
        counted = size if size > LEAST_BATCH_BYTES else LEAST_BATCH_BYTES
        if counted > self.room:
            before = position if self.next_offset is None else self.next_offset
            self.values.extend((position, max_timestamp, before))
            self.room = SPAN_BYTES
        self.room -= counted
        self.next_offset = next_offset

    def passed(self, room: int, next_offset: int) -> None:
        """Batches that were within `room` went by without one of them being noted; so much is left of it."""
        self.room, self.next_offset = room, next_offset

    def note_header(self, header: BatchHeader, max_timestamp: int) -> None:
        """As `note`, of a batch in the log."""
        size = header.size + filler_size(header)
        self.note(header.base_offset, size, max_timestamp, header.next_offset)

    def continued(self) -> Landmarks:
        """None yet, to note those that come next; `extend` adds them once they count."""
        return Landmarks(array("q"), self.room, self.next_offset)

    def extend(self, noted: Landmarks) -> None:
        self.values.extend(noted.values)
        self.room, self.next_offset = noted.room, noted.next_offset

    def below(self, end: int) -> Landmarks:
        return Landmarks(self.values[: 3 * self._count_before(end)])

    def begin_with(self, built: Landmarks, end: int) -> None:
        """Take those below `end` from `built`, while the log may go on adding others behind them."""
        self.values[: 3 * self._count_before(end)] = built.values

    def before_offset(self, offset: int, base: int) -> int:
        """The last boundary known with no batch before it that holds the offset or a later one.

        It may lie behind the offset: then the batch there is the first that does. `base` begins the segment.
        """
        values = self.values[:]  # as they are now: another thread may put others in their places
        count = bisect_right(values[2::3], offset)
        return values[3 * count - 3] if count > 0 else base

    def before_timestamp(self, timestamp: int, base: int) -> int:
        """The last boundary known with no record before it that is as young as `timestamp`."""
        values = self.values[:]
        count = bisect_left(values[1::3], timestamp)
        return values[3 * count - 3] if count > 0 else base

    def max_timestamp_before(self, end: int, base: int) -> tuple[int, int]:
        """The last boundary known at or before `end`, and the largest timestamp before it; -1 for none."""
        values = self.values[:]
        count = bisect_right(values[::3], end)
        return (values[3 * count - 3], values[3 * count - 2]) if count > 0 else (base, -1)

    def last_before(self, end: int) -> int:
        """The last landmark at or before a position, -1 without any."""
        values = self.values[:]
        count = bisect_right(values[::3], end)
        return values[3 * count - 3] if count > 0 else -1

    def _count_before(self, position: int) -> int:
        return bisect_left(range(len(self.values) // 3), position, key=lambda item: self.values[3 * item])


def landmarks_path(segment_path: Path) -> Path:
    return segment_path.with_suffix(".landmarks")


def write_landmarks(segment_path: Path, size: int, landmarks: Landmarks) -> None:
    """Replace the landmarks' file of a segment that has `size` bytes for good."""
    fields = {**_file_of(segment_path, size), "landmarks": landmarks.values.tolist()}
    sealed.write(landmarks_path(segment_path), fields)


def read_landmarks(segment_path: Path, size: int) -> Landmarks:
    """The landmarks in a segment's file; none when it is missing, damaged or of another segment."""
    try:
        fields = sealed.read(landmarks_path(segment_path)) or {}
    except sealed.Unreadable:
        return Landmarks()
    fits = _file_of(segment_path, size).items() <= fields.items()
    return Landmarks(array("q", fields["landmarks"])) if fits else Landmarks()


def _file_of(segment_path: Path, size: int) -> dict[str, int]:
    return {"version": VERSION, "base": int(segment_path.stem), "size": size}


def build_landmarks(file: LogFile, end: int) -> Landmarks:
    """The landmarks of a segment up to `end`, from the header of each batch; damage is passed over."""
    landmarks, max_timestamp, intact_end = Landmarks(), -1, file.base
    for position, header in chain.walk_past_damage(file, file.base, end):
        if position != intact_end:
            landmarks.next_offset = None  # the offsets of what is damaged are not to be passed over
        intact_end = position + header.size
        if header.base_offset == position:
            landmarks.note_header(header, max_timestamp)
        if not header.is_control:
            max_timestamp = max(max_timestamp, header.max_timestamp)
    return landmarks


def locate(landmarks: Landmarks, file: LogFile, offset: int, limit: int, boundary: int = 0) -> int:
    """Position of the segment's batch that holds `offset`, else of the next one, else `limit`.

    `limit` is a boundary: the end of the segment or of its flushed part. `boundary` may be another one, with
    no batch before it that holds the offset. Behind a damaged batch only the next landmark leads on, or an
    offset that is the position of an intact batch. Raises CorruptMessage, and LandmarksMissing.
    """
    mark = landmarks.before_offset(offset, file.base)
    start = chain.skip(file, max(mark, boundary), offset, WALKED_HEADERS)
    try:
        for position, header in short_walk(file, start, limit, mark):
            if header.next_offset > offset and header.base_offset == position:
                return position
    except ChainBroken as error:
        there = chain.header_at(file, offset, limit)
        if there is None or chain.read_batch(file, offset, there) is None:
            raise CorruptMessage(f"a damaged batch at position {error.position}") from None
        return offset
    return limit


def short_walk(file: LogFile, start: int, limit: int, mark: int) -> Iterator[tuple[int, BatchHeader]]:
    """`walk` from the landmark `mark` or behind it as far as to the next one.

    Raises LandmarksMissing when there is no next one, or no batch at the landmark: it may be none.
    """
    try:
        for count, item in enumerate(chain.walk(file, start, limit)):
            if count == WALKED_HEADERS:
                raise LandmarksMissing(f"no landmark within {count} batches behind position {start}")
            yield item
    except ChainBroken as error:
        if error.position == mark > file.base:
            raise LandmarksMissing(f"no batch at the landmark {mark}") from None
        raise
