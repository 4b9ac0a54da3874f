"""Parsing the records of many batches at once: offsets, timestamps, positions of keys and values.

`record_bounds` finds where records begin; the fields of their heads are then read for all records at once.
The checks are stricter than in `records.iter_records`: offsets must rise inside a batch and not exceed its
header's last offset.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from millrace.errors import CorruptMessage
from millrace.records import HEADER_BYTES, TIMESTAMP_TYPE_BIT, BatchHeader
from millrace.records.compression import Buffer, decompress
from millrace.records.messages import read_varint
from millrace.records.record_bounds import guessed_bounds, walked_bounds
from millrace.records.row_cursor import PADDING, Faults, Longs, PaddedBuffer, RowCursor

Batch = tuple[BatchHeader, memoryview]
GROUP_BYTES = 2 << 20
"""Most uncompressed bytes of batches that are framed together. Fewer bytes mean many calls, and more mean
fresh memory from the system each time (measured: 1 to 4 MiB are equally fast)."""
MAX_BATCH_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Frames:
    """Records of some batches in log order; a key or value that is null has size -1."""

    buffer: PaddedBuffer
    offset: Longs
    timestamp: Longs
    key: Longs
    key_size: Longs
    value: Longs
    value_size: Longs
    headers: Longs
    """Positions of the headers, after their count."""
    header_count: Longs
    end: Longs

    def __len__(self) -> int:
        return len(self.offset)

    def select(self, rows: Longs | slice) -> Frames:
        columns = (getattr(self, name)[rows] for name in self.__slots__ if name != "buffer")
        return Frames(self.buffer, *columns)

    def slices(self, rows: int) -> Iterator[Frames]:
        """Yield the records in order, at most `rows` of them at a time."""
        return (self.select(slice(first, first + rows)) for first in range(0, len(self), rows))


@dataclass(frozen=True, slots=True)
class BrokenBatch:
    """A batch whose CRC is right, but whose records are malformed."""

    batch: Batch
    reason: str


def frame_batches(batches: Iterable[Batch]) -> Iterator[tuple[Frames, list[BrokenBatch]]]:
    """Yield frames of the batches in order, some megabytes at a time, and the malformed batches."""
    group, broken = _Group(GROUP_BYTES), list[BrokenBatch]()
    for header, batch in batches:
        try:
            plain = decompress(header.codec, batch[HEADER_BYTES:], MAX_BATCH_BYTES, group.room)
        except CorruptMessage as error:
            broken.append(BrokenBatch((header, batch), str(error)))
            continue
        if len(plain) > len(group.room):
            if group.batches:
                yield _frame(group, broken)
            group, broken = _Group(max(len(plain), GROUP_BYTES)), []
        group.add((header, batch), plain)
    if group.batches or broken:
        yield _frame(group, broken)


class _Group:
    """Batches that are framed together, contiguous in one buffer."""

    __slots__ = ("_data", "batches", "edges", "room")

    def __init__(self, size: int) -> None:
        self._data = np.empty(size + 2 * PADDING, np.uint8)
        self._data[:PADDING] = 0
        self.batches: list[Batch] = []
        self.edges = [PADDING]
        """Start of each batch's records, and the end of the last batch's records."""
        self.room = self._data.data[PADDING:-PADDING]
        """Free part of the buffer for further batches."""

    def add(self, batch: Batch, plain: Buffer) -> None:
        """Add a batch's uncompressed records, which may already be at the front of `room`."""
        if not (isinstance(plain, memoryview) and plain.obj is self.room.obj):
            self.room[: len(plain)] = plain
        self.room = self.room[len(plain) :]
        self.batches.append(batch)
        self.edges.append(self.edges[-1] + len(plain))

    def buffer(self) -> PaddedBuffer:
        """Return the buffer of all records, after the last `add`."""
        end = self.edges[-1]
        self._data[end : end + PADDING] = 0
        return PaddedBuffer(self._data.data[: end + PADDING])


def _frame(group: _Group, broken: list[BrokenBatch]) -> tuple[Frames, list[BrokenBatch]]:
    buffer, batches, edges = group.buffer(), group.batches, np.array(group.edges, np.int64)
    counts = _of_headers(batches, lambda header: header.records_count)
    bounds = guessed_bounds(buffer, edges, counts) if batches else None
    if bounds is None:
        batches, bounds = _walked(buffer, batches, edges, broken)
    frames, faults = _heads(buffer, batches, *bounds)
    if faults:
        frames, faulty = _without_broken(frames, batches, faults)
        broken += faulty
    return frames, broken


def _walked(
    buffer: PaddedBuffer, batches: Sequence[Batch], edges: Longs, broken: list[BrokenBatch]
) -> tuple[list[Batch], tuple[Longs, Longs]]:
    """Return the well-formed batches, and the starts and ends of their records."""
    kept: list[Batch] = []
    data = bytes(buffer.data)  # indexing bytes is faster than indexing numpy's memory
    starts = [np.zeros(1, np.int64)]
    for batch, (begin, end) in zip(batches, itertools.pairwise(edges.tolist()), strict=True):
        try:
            starts.append(walked_bounds(data, begin, end, batch[0].records_count))
            kept.append(batch)
        except CorruptMessage as error:
            broken.append(BrokenBatch(batch, str(error)))
    firsts, lasts = [some[:-1] for some in starts], [some[1:] for some in starts]
    return kept, (np.concatenate(firsts), np.concatenate(lasts))


def _heads(buffer: PaddedBuffer, batches: Sequence[Batch], start: Longs, end: Longs) -> tuple[Frames, Faults]:
    """Read the fields of each record; a fault in a record makes its whole batch unusable."""
    faults = Faults(len(start))
    rows = RowCursor(buffer, start, end, faults)
    size = rows.varint("a record's length")
    negative = size < 0  # any other wrong size was found with the bounds
    if negative.any():
        rows.fault(negative, "a record's length is negative")
    rows.fixed_bytes(1, "a record's attributes")
    timestamp, delta = rows.varint("a timestamp"), rows.varint("an offset")
    key, key_size = _nullable_bytes(rows, "a key")
    value, value_size = _nullable_bytes(rows, "a value")
    header_count = rows.varint("a number of headers")
    headers = rows.pos.copy()
    left = (header_count <= 0) & (headers != end)
    if left.any():
        rows.fault(left, "bytes are left after a record's last field")
    counts = _of_headers(batches, lambda header: header.records_count)
    # With the timestamp-type bit set, every record has the broker's append time, which is max_timestamp.
    late = _of_headers(batches, lambda header: header.attributes & TIMESTAMP_TYPE_BIT)
    timestamp[np.repeat(late != 0, counts)] = 0
    base_time = _of_headers(
        batches, lambda h: h.max_timestamp if h.attributes & TIMESTAMP_TYPE_BIT else h.base_timestamp
    )
    _check_deltas(rows, delta, batches, counts)
    base = _of_headers(batches, lambda header: header.base_offset)
    offset, time = np.repeat(base, counts) + delta, np.repeat(base_time, counts) + timestamp
    return Frames(buffer, offset, time, key, key_size, value, value_size, headers, header_count, end), faults


def _of_headers(batches: Sequence[Batch], value: Callable[[BatchHeader], int]) -> Longs:
    return np.array([value(header) for header, _ in batches], np.int64)


def _nullable_bytes(rows: RowCursor, what: str) -> tuple[Longs, Longs]:
    """Return positions and sizes of bytes; any negative size means null and becomes -1."""
    size = rows.varint(what)
    np.maximum(size, -1, out=size)
    start = rows.pos.copy()
    rows.skip(np.maximum(size, 0), what)
    return start, size


def _check_deltas(rows: RowCursor, delta: Longs, batches: Sequence[Batch], counts: Longs) -> None:
    before = np.empty_like(delta)
    before[1:] = delta[:-1]
    before[(np.cumsum(counts) - counts)[counts > 0]] = -1  # the first of each batch
    last = np.repeat(_of_headers(batches, lambda header: header.last_offset_delta), counts)
    wrong = (delta <= before) | (delta > last)
    if wrong.any():
        rows.fault(wrong, "offsets do not rise, or exceed the batch's last")


def _without_broken(
    frames: Frames, batches: Sequence[Batch], faults: Faults
) -> tuple[Frames, list[BrokenBatch]]:
    number = np.repeat(np.arange(len(batches)), _of_headers(batches, lambda header: header.records_count))
    reasons: dict[int, str] = {}
    for row in sorted(faults.reasons):
        reasons.setdefault(int(number[row]), faults.reasons[row])
    good = np.flatnonzero(~np.isin(number, list(reasons)))
    return frames.select(good), [BrokenBatch(batches[index], why) for index, why in reasons.items()]


def read_headers(frames: Frames, row: int) -> list[tuple[str, bytes | None]]:
    """Return the headers of one record. Raise CorruptMessage when they are malformed."""
    first, last = int(frames.headers[row]), int(frames.end[row])
    where = f"the record at offset {frames.offset[row]}"
    data, position, end = bytes(frames.buffer.data[first : last + PADDING]), 0, last - first
    headers: list[tuple[str, bytes | None]] = []
    try:
        for _ in range(frames.header_count[row]):
            name, position = _header_part(data, position, end)
            content, position = _header_part(data, position, end)
            headers.append(((name or b"").decode(), content))
    except UnicodeDecodeError:
        raise CorruptMessage(f"{where} has a header that is no text") from None
    if position != end:
        raise CorruptMessage(f"{where} has bytes after its last header")
    return headers


def _header_part(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    size, position = read_varint(data, position)
    part_end = position + max(size, 0)
    if part_end > end:
        raise CorruptMessage("a header reaches past its record")
    return (data[position:part_end] if size >= 0 else None), part_end
