"""Landmarks: a few known batch boundaries of a segment, so that any look-up in it is short.

A landmark is noted about every MiB of appended bytes; nothing is noted per message. A look-up is a bisection
of the landmarks and a walk along the headers after one; a reader that continues at a landmark needs no walk.
The segment that is being appended to has its landmarks in memory and in the checkpoint; a closed segment has
them in a file beside it:

    <base>.landmarks := sealed JSON {version, base, size,
        landmarks: [position, max timestamp before it, next offset before it, position, ...]}

The log can be read without them: missing or damaged landmarks, or those of another segment, are rebuilt from
the headers. A landmark is always checked: the batch at its position must state that position, or the landmark
counts as missing. Landmarks are positions, and independent of segments.
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
"""Distance from one landmark to the next at most, unless a single batch is larger."""
LEAST_BATCH_BYTES = 256
"""Size that is counted for a smaller batch, so that at most 4,096 batches lie between two landmarks. A
look-up takes 0.3 us for the header of each batch."""
WALKED_HEADERS = 2 * (SPAN_BYTES // LEAST_BATCH_BYTES + 1)
"""Most headers between two landmarks, as each batch may have a filler."""
VERSION = 2


class LandmarksMissing(StorageError):
    """A batch cannot be found in a short walk: the segment's landmarks must be built first."""


@dataclass(slots=True)
class Landmarks:
    """The landmarks of one segment, in order. One thread may add landmarks; any thread may read them."""

    values: array[int] = field(default_factory=lambda: array("q"))
    """Three numbers for each landmark: the position of a batch that is no filler; the largest timestamp
    before it, or -1; and the next offset of the last batch before it that is no filler, or the landmark's own
    position where that offset is unknown. All numbers are in one array, so that no thread sees half of a
    change."""
    room: int = field(default=0, compare=False)
    """Bytes that still fit before the next landmark; 0 at first, so the first noted batch gets a landmark."""
    next_offset: int | None = field(default=None, compare=False)
    """Next offset of the last batch that was noted; None when the batches before the next one are unknown."""

    def note(self, position: int, size: int, max_timestamp: int, next_offset: int) -> None:
        """Note a batch at `position` that is no filler; `max_timestamp` is the largest timestamp before it.

        `size` is the size of the batch and its filler.
        """
        counted = size if size > LEAST_BATCH_BYTES else LEAST_BATCH_BYTES
        if counted > self.room:
            before = position if self.next_offset is None else self.next_offset
            self.values.extend((position, max_timestamp, before))
            self.room = SPAN_BYTES
        self.room -= counted
        self.next_offset = next_offset

    def passed(self, room: int, next_offset: int) -> None:
        """Skip batches that needed no landmark. `room` is the number of bytes before the next landmark."""
        self.room, self.next_offset = room, next_offset

    def note_header(self, header: BatchHeader, max_timestamp: int) -> None:
        """Note a batch in the log, as `note` does."""
        size = header.size + filler_size(header)
        self.note(header.base_offset, size, max_timestamp, header.next_offset)

    def continued(self) -> Landmarks:
        """Return empty landmarks that continue these; `extend` adds them once their batches are written."""
        return Landmarks(array("q"), self.room, self.next_offset)

    def extend(self, noted: Landmarks) -> None:
        self.values.extend(noted.values)
        self.room, self.next_offset = noted.room, noted.next_offset

    def below(self, end: int) -> Landmarks:
        return Landmarks(self.values[: 3 * self._count_before(end)])

    def begin_with(self, built: Landmarks, end: int) -> None:
        """Replace the landmarks below `end` by `built`. The log may append landmarks at the same time."""
        self.values[: 3 * self._count_before(end)] = built.values

    def before_offset(self, offset: int, base: int) -> int:
        """Return the last known boundary such that no batch before it holds the offset or a later one.

        The boundary may be after the offset: then its batch is the first that holds the offset or a later
        one. `base` is the segment's start.
        """
        values = self.values[:]  # as they are now: another thread may replace them
        count = bisect_right(values[2::3], offset)
        return values[3 * count - 3] if count > 0 else base

    def before_timestamp(self, timestamp: int, base: int) -> int:
        """Return the last known boundary such that every record before it is older than `timestamp`."""
        values = self.values[:]
        count = bisect_left(values[1::3], timestamp)
        return values[3 * count - 3] if count > 0 else base

    def max_timestamp_before(self, end: int, base: int) -> tuple[int, int]:
        """Return the last known boundary at or before `end`, and the largest timestamp before it, else -1."""
        values = self.values[:]
        count = bisect_right(values[::3], end)
        return (values[3 * count - 3], values[3 * count - 2]) if count > 0 else (base, -1)

    def last_before(self, end: int) -> int:
        """Return the last landmark at or before a position, or -1 if there is none."""
        values = self.values[:]
        count = bisect_right(values[::3], end)
        return values[3 * count - 3] if count > 0 else -1

    def _count_before(self, position: int) -> int:
        return bisect_left(range(len(self.values) // 3), position, key=lambda item: self.values[3 * item])


def landmarks_path(segment_path: Path) -> Path:
    return segment_path.with_suffix(".landmarks")


def write_landmarks(segment_path: Path, size: int, landmarks: Landmarks) -> None:
    """Replace the landmarks' file of a segment whose final size is `size`."""
    fields = {**_file_of(segment_path, size), "landmarks": landmarks.values.tolist()}
    sealed.write(landmarks_path(segment_path), fields)


def read_landmarks(segment_path: Path, size: int) -> Landmarks:
    """Return the landmarks in a segment's file; none when it is missing, damaged or of another segment."""
    try:
        fields = sealed.read(landmarks_path(segment_path)) or {}
    except sealed.Unreadable:
        return Landmarks()
    fits = _file_of(segment_path, size).items() <= fields.items()
    return Landmarks(array("q", fields["landmarks"])) if fits else Landmarks()


def _file_of(segment_path: Path, size: int) -> dict[str, int]:
    return {"version": VERSION, "base": int(segment_path.stem), "size": size}


def build_landmarks(file: LogFile, end: int) -> Landmarks:
    """Return the landmarks of a segment up to `end`, from the header of each batch. Damage is skipped."""
    landmarks, max_timestamp, intact_end = Landmarks(), -1, file.base
    for position, header in chain.walk_past_damage(file, file.base, end):
        if position != intact_end:
            landmarks.next_offset = None  # a look-up must not skip the damaged offsets
        intact_end = position + header.size
        if header.base_offset == position:
            landmarks.note_header(header, max_timestamp)
        if not header.is_control:
            max_timestamp = max(max_timestamp, header.max_timestamp)
    return landmarks


def locate(landmarks: Landmarks, file: LogFile, offset: int, limit: int, boundary: int = 0) -> int:
    """Return the position of the segment's batch that holds `offset`, else of the next batch, else `limit`.

    `limit` is a boundary: the end of the segment or of its flushed part. `boundary` may be a further
    boundary; no batch before it holds the offset. After a damaged batch, reading resumes at the next
    landmark, or at `offset` if an intact batch starts exactly there. Raise CorruptMessage at a damaged batch,
    and LandmarksMissing if the walk would be long.
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
    """Walk as `walk` does, from `start`, at or after the landmark `mark`, up to the next landmark.

    Raise LandmarksMissing when there is no next landmark, or no batch at `mark`, which may be wrong.
    """
    try:
        for count, item in enumerate(chain.walk(file, start, limit)):
            if count == WALKED_HEADERS:
                raise LandmarksMissing(f"no landmark within {count} batches after position {start}")
            yield item
    except ChainBroken as error:
        if error.position == mark > file.base:
            raise LandmarksMissing(f"no batch at the landmark {mark}") from None
        raise
