"""The read side of a partition's log: from an offset to bytes for a socket, from a time to a record.

It works on snapshots and holds no lock. One thread reads at a time. A look-up by time is for another thread:
it may decompress a batch and build the landmarks of a segment. Between reads the reader keeps the positions
of sequential readers, the files read last with their landmarks, and the damage already reported.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

from millrace.errors import CorruptMessage, OffsetOutOfRange, StorageError
from millrace.records import HEADER_BYTES, TIMESTAMP_TYPE_BIT, BatchHeader, filler_size, read_varint
from millrace.records.compression import decompress
from millrace.records.file_slice import FileSlice
from millrace_broker.storage.chain import ChainBroken, LogFile, header_at, read_batch, skip, walk
from millrace_broker.storage.landmarks import WALKED_HEADERS, Landmarks, LandmarksMissing, locate, short_walk
from millrace_broker.storage.segment import Files, Segment
from millrace_broker.storage.state import LogState

logger = logging.getLogger("millrace.storage.reading")
T = TypeVar("T")

WARM_FILES = 3
MAX_REPORTED = 100
"""Most distinct failures and kinds of damage of one log that are logged."""
RECENT_POSITIONS = 32
"""Most positions of sequential readers that are kept for one log."""
MAX_SEARCHED_BYTES = 16 << 20
MAX_SEARCHED_RECORDS = 10_000
"""Limits of a batch whose records are read. A batch with more records, or more bytes uncompressed, is not
read. Reading the largest batch takes 10 ms."""


class RecentPositions:
    """Batch positions that readers have reached, by an offset that was found there.

    No batch before such a position holds that offset or a later one.
    """

    __slots__ = ("_positions",)

    def __init__(self) -> None:
        self._positions: dict[int, int] = {}

    def before(self, offset: int) -> int:
        """Return the last noted position with no batch before it that holds `offset` or a later one; 0 if
        there is none.

        If it is at or after the offset, the offset is found there.
        """
        positions = self._positions.copy()  # a copy: another thread may note one
        nearest = max((noted for noted in positions if noted <= offset), default=None)
        return 0 if nearest is None else positions[nearest]

    def note(self, offset: int, position: int) -> None:
        """Note that `offset` is found at `position`."""
        self._positions.pop(offset, None)
        if len(self._positions) >= RECENT_POSITIONS:
            del self._positions[next(iter(self._positions))]
        self._positions[offset] = position


class _Opened(NamedTuple):
    file: LogFile
    landmarks: Landmarks


class Reader:
    """Reads slices of a log's files, from offsets that readers ask for."""

    __slots__ = ("_directory", "_opened", "_recovered_end", "_reported", "_without_landmarks", "recent")

    def __init__(self, directory: Path, recovered_end: int) -> None:
        """Prepare reading; bytes below `recovered_end` were on the disk before this process
        opened the log.
        """
        self.recent = RecentPositions()
        self._directory = directory
        self._recovered_end = recovered_end
        self._reported: tuple[str, ...] = ()
        self._opened: dict[Segment, _Opened] = {}
        """The files read last. Other files close with the last slice that uses them."""
        self._without_landmarks: dict[Segment, None] = {}
        """Segments in which a look-up has failed because landmarks were missing."""

    def read(
        self, visible: LogState, files: Files, end: int, offset: int, max_bytes: int
    ) -> FileSlice | None:
        """Read as `PartitionLog.read` does, for one pair of snapshots.

        `end` is the log's end, flushed or not.
        """
        if offset >= visible.high_watermark:
            # Up to the log's end an offset is valid, although not visible yet: a producer may know it
            # already.
            if offset > end:
                raise OffsetOutOfRange(f"offset {offset} is past the end, {visible.high_watermark}")
            return None
        if offset < files.start_offset:
            raise OffsetOutOfRange(f"offset {offset} is before the start, {files.start_offset}")
        try:
            return self._slice(visible, files, offset, max_bytes)
        except CorruptMessage as error:
            self._log_once(f"{error}; `millrace log verify {self._directory}` names every damaged batch")
            raise
        except FileNotFoundError:
            raise OffsetOutOfRange(f"offset {offset} was just given up by retention") from None
        except OSError as error:
            self._log_once(f"cannot read {self._directory}: {error}")
            raise StorageError(f"cannot read {self._directory}: {error}") from error

    def _log_once(self, what: str) -> None:
        if what not in self._reported and len(self._reported) < MAX_REPORTED:
            self._reported += (what,)
            logger.error("%s", what)

    def _slice(self, visible: LogState, files: Files, offset: int, max_bytes: int) -> FileSlice:
        index = files.index_of(offset)
        segment = files.segments[index]
        position = segment.base
        if offset > position:
            position = self._locate(segment, offset, min(segment.end, visible.end))
        if position == segment.end and index + 1 < len(files.segments):
            segment = files.segments[index + 1]
        file, landmarks = self._open(segment)
        limit = min(segment.end, visible.data_end)
        first = self._first_header(file, position, limit)
        length = max(first.size, min(max_bytes, limit - position))
        if length < limit - position:
            # A reader that continues at a landmark needs no walk.
            mark = landmarks.last_before(position + length)
            length = mark - position if mark >= position + first.size else length
        if position < self._recovered_end:
            length = _unbroken(file, position, length, limit)
        self.recent.note(offset, position)
        if (
            filler_size(first) == 0
        ):  # after one batch, perhaps a large one, the next read needs no walk either
            self.recent.note(first.next_offset, position + first.size)
        return FileSlice(file, position - segment.base, length)

    def _locate(self, segment: Segment, offset: int, limit: int) -> int:
        """Return the position of the batch that holds the offset, else of the next batch, else `limit`."""
        recent = self.recent.before(offset)
        if recent > limit:
            recent = 0
        if recent >= offset:
            return recent
        if segment in self._without_landmarks:
            raise LandmarksMissing(f"the landmarks of {segment.path} are being built")
        file, landmarks = self._open(segment)
        try:
            return locate(landmarks, file, offset, limit, recent)
        except LandmarksMissing:
            self._without_landmarks[segment] = None
            raise
        except CorruptMessage as error:
            raise CorruptMessage(f"{error} in {segment.path}") from None

    def build_landmarks(self) -> None:
        """Build the landmarks that look-ups lacked; for a thread: it reads every header of the segments."""
        for segment in list(self._without_landmarks):
            with contextlib.suppress(FileNotFoundError):  # retention deleted it
                segment.build_landmarks()
            self.forget()
            self._without_landmarks.pop(segment, None)

    def _open(self, segment: Segment) -> _Opened:
        """Return the segment's read side: a recently used one, or a new one that replaces the oldest."""
        opened = self._opened.get(segment)
        if opened is None:
            opened = _Opened(segment.open_reader(), segment.known_landmarks())
            others = list(self._opened.items())[1 - WARM_FILES :]
            self._opened = dict([*others, (segment, opened)])
        return opened

    def forget(self) -> None:
        """Drop the files, from any thread: deleted files free their space, and idle files are closed.

        Called every few seconds: the next read opens a file again, which costs less than tracking the files'
        use.
        """
        self._opened = {}

    def _first_header(self, file: LogFile, position: int, limit: int) -> BatchHeader:
        """Return the header of a slice's first batch. Raise CorruptMessage when that batch is damaged."""
        header = header_at(file, position, limit)
        if header is None:
            raise CorruptMessage(f"a damaged batch at position {position} in {file.name}")
        if position < self._recovered_end and read_batch(file, position, header) is None:
            raise CorruptMessage(f"the batch at position {position} in {file.name} fails its CRC")
        return header


def _unbroken(file: LogFile, position: int, length: int, limit: int) -> int:
    """Return the size of the slice's leading part in which each batch directly follows the batch before it.

    The first batch is known to be right. CRCs cover neither a batch's position nor its length, so clients
    cannot check them.
    """
    end = position + length
    last: tuple[int, BatchHeader] | None = None
    try:
        start = skip(file, position, end - 1, WALKED_HEADERS)
        for at, header in islice(walk(file, start, limit), WALKED_HEADERS):
            if at + header.size >= end:
                return length
            last = at, header
    except ChainBroken as error:
        # A wrong length shows only after its batch.
        if last is None or read_batch(file, *last) is not None:
            return error.position - position
    assert last is not None, "a slice begins with a batch"
    return last[0] - position


def first_with_timestamp(
    segments: Sequence[Segment], timestamp: int, limit: int, start: int = 0
) -> tuple[int, int] | None:
    """Return (offset, timestamp) of the first record in `start` to `limit` not older than `timestamp`.

    The record is in the first batch whose header states such a time. If the batch's records cannot be read
    here, or all of them are older, the result is the batch's base offset and largest timestamp. Raise
    CorruptMessage at a damaged batch.
    """
    for segment in segments:
        if segment.facts.max_timestamp < timestamp or 0 <= segment.facts.next_offset <= start:
            continue
        first = _look_up(segment, lambda segment, marks: _first_in(segment, marks, timestamp, limit, start))
        if first is not None:
            return first
    return None


def first_with_max_timestamp(
    segments: Sequence[Segment], limit: int, start: int = 0
) -> tuple[int, int] | None:
    """Return (offset, timestamp) of the first record with the largest timestamp in `start` to `limit`."""
    largest = -1
    for segment in sorted(segments, key=lambda segment: segment.facts.max_timestamp, reverse=True):
        if segment.facts.max_timestamp <= largest:
            break
        # A segment's facts may be those of a record after the limit.
        found = _look_up(segment, lambda segment, marks: _max_timestamp_in(segment, marks, limit, start))
        largest = max(largest, -1 if found is None else found)
    return first_with_timestamp(segments, largest, limit, start) if largest >= 0 else None


def _look_up(segment: Segment, look: Callable[[Segment, Landmarks], T]) -> T | None:
    """Look into a segment by its landmarks. Return None if retention deleted it meanwhile."""
    try:
        try:
            return look(segment, segment.known_landmarks())
        except LandmarksMissing:
            return look(segment, segment.build_landmarks())
    except FileNotFoundError:
        return None


def _max_timestamp_in(segment: Segment, landmarks: Landmarks, limit: int, start: int) -> int:
    file, end = segment.open_reader(), min(segment.end, limit)
    if start > segment.base:
        kept = _from_start(segment, landmarks, end, start)
        return max((header.max_timestamp for _, header in kept), default=-1)
    mark, largest = landmarks.max_timestamp_before(end, segment.base)
    try:
        for _, header in short_walk(file, mark, end, mark):
            if not header.is_control:
                largest = max(largest, header.max_timestamp)
    except ChainBroken as error:
        raise CorruptMessage(f"a damaged batch at position {error.position} in {segment.path}") from None
    return largest


def _from_start(
    segment: Segment, landmarks: Landmarks, end: int, start: int, timestamp: int | None = None
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the batches that hold a record from `start` on and that may hold a record at or after
    `timestamp`.

    Landmarks do not show the newest record: finding it takes as long a walk as building landmarks.
    """
    mark = landmarks.before_offset(start, segment.base)
    if timestamp is not None:  # before that landmark every record is older, deleted or not
        mark = max(mark, landmarks.before_timestamp(timestamp, segment.base))
    try:
        for position, header in walk(segment.open_reader(), min(mark, end), end):
            if header.next_offset > start and not header.is_control:
                yield position, header
    except ChainBroken as error:
        raise CorruptMessage(f"a damaged batch at position {error.position} in {segment.path}") from None


def _first_in(
    segment: Segment, landmarks: Landmarks, timestamp: int, limit: int, first_offset: int
) -> tuple[int, int] | None:
    file, end = segment.open_reader(), min(segment.end, limit)
    if first_offset > segment.base:
        for position, header in _from_start(segment, landmarks, end, first_offset, timestamp):
            if header.max_timestamp >= timestamp:
                offset, time = _first_record(header, _intact(segment, position, header), timestamp)
                return max(
                    offset, first_offset
                ), time  # the result may be the batch in place of the record at the start
        return None
    mark = landmarks.before_timestamp(timestamp, segment.base)
    start = skip(file, mark, end, WALKED_HEADERS, timestamp)
    try:
        for position, header in short_walk(file, start, end, mark):
            if header.max_timestamp >= timestamp and not header.is_control:
                return _first_record(header, _intact(segment, position, header), timestamp)
    except ChainBroken as error:
        raise CorruptMessage(f"a damaged batch at position {error.position} in {segment.path}") from None
    return None


def _intact(segment: Segment, position: int, header: BatchHeader) -> bytes:
    batch = read_batch(segment.open_reader(), position, header)
    if batch is None:
        raise CorruptMessage(f"the batch at position {position} in {segment.path} fails its CRC")
    return batch


def _first_record(header: BatchHeader, batch: bytes, timestamp: int) -> tuple[int, int]:
    whole = header.base_offset, header.max_timestamp
    if header.attributes & TIMESTAMP_TYPE_BIT or header.records_count > MAX_SEARCHED_RECORDS:
        return whole
    if header.base_timestamp >= timestamp:
        return header.base_offset, header.base_timestamp
    try:
        data = decompress(header.codec, memoryview(batch)[HEADER_BYTES:], MAX_SEARCHED_BYTES)
        position = 0
        for _ in range(header.records_count):
            # A record: its size, a byte of attributes, the differences of timestamp and offset, the rest.
            size, start = read_varint(data, position)
            difference, after = read_varint(data, start + 1)
            delta, _ = read_varint(data, after)
            if size < 0 or not 0 <= delta <= header.last_offset_delta:
                raise CorruptMessage("a record that cannot be")
            if header.base_timestamp + difference >= timestamp:
                return header.base_offset + delta, header.base_timestamp + difference
            position = start + size
    except (CorruptMessage, IndexError):
        pass
    return whole
