"""From an offset to the batch that holds it, without an index.

Reads segments, changes none. An offset is a byte position, and a batch's base offset is its own position,
so the batch that holds an offset is found by searching backwards for bytes that state where they are.

What is trusted: a boundary that was reached from a known boundary, header by header. What is found by
searching is trusted only with a right CRC and when nothing found overlaps it; a payload that contains a
forged batch for its own position causes an overlap, and then the chain is walked from a known boundary.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from millrace.errors import CorruptMessage
from millrace.records import HEADER_BYTES, TIMESTAMP_TYPE_BIT, BatchHeader, read_varint
from millrace.records.compression import decompress
from millrace.storage.chain import Chain, ChainBroken, HeaderReader, find_headers, intact, read_batch, walk
from millrace.storage.segment import Segment

LOOKED_INTO_BYTES = 64 << 20
"""A batch whose records are larger than this uncompressed is not looked into: that bounds memory."""
REMEMBERED_BOUNDARIES = 1024
WALKED_BATCHES = 16
"""Headers looked at in a slice to remember where the next read begins; more is not worth the time."""
SHORT_WALK_BYTES = 64 << 10
"""This near a segment's base the chain is walked from there: at once exact, and the first positions of a
log share their leading zero bytes with too much of what payloads contain."""


class Boundaries:
    """Recently seen batch boundaries by the offset a sequential reader asks for next."""

    def __init__(self) -> None:
        self._positions: dict[int, int] = {}

    def get(self, offset: int) -> int | None:
        """Where the batch after the one that ends at `offset` begins, or None."""
        return self._positions.get(offset)

    def note(self, next_offset: int, position: int) -> None:
        """Remember that whoever asks for `next_offset` continues at `position`."""
        if len(self._positions) >= REMEMBERED_BOUNDARIES:
            del self._positions[next(iter(self._positions))]
        self._positions[next_offset] = position

    def note_slice(self, headers: HeaderReader, start: int, end: int) -> None:
        """Remember the boundaries of a slice about to be served, if they are few."""
        chain = Chain(start)
        for _ in range(WALKED_BATCHES):
            header = headers.header(chain.position) if chain.position < end else None
            if header is None or not chain.accepts(header, end):
                return
            if header.size * WALKED_BATCHES < end - chain.position:
                return
            chain.advance(header)
            if chain.filler_base is None:
                self.note(header.next_offset, chain.position)

    def nearest(self, floor: int, position: int) -> int:
        """The highest known boundary in [floor, position]; `floor` itself is one."""
        return max((known for known in self._positions.values() if floor <= known <= position), default=floor)


def locate(segment: Segment, fd: int, offset: int, limit: int, boundaries: Boundaries) -> int:
    """Position of the segment's batch that holds `offset`, else of the next one, else `limit`.

    `fd` reads the segment's file. `limit` is a boundary: the end of the segment or of its flushed part.
    Raises CorruptMessage when the place cannot be told because batches there are damaged.
    """
    known = boundaries.get(offset)
    if known is not None and segment.base <= known <= limit:
        return known
    if offset - segment.base <= segment.facts.largest_unit + SHORT_WALK_BYTES:
        try:
            return _walk_to(fd, segment.base, segment.base, offset, limit)
        except ChainBroken:
            pass  # a damaged batch before the offset: what comes after it can still be found by searching
    return _search(segment, fd, offset, limit, boundaries)


def _walk_to(fd: int, base: int, start: int, offset: int, limit: int) -> int:
    for position, header in walk(fd, base, start, limit):
        is_filler = header.base_offset != position
        if header.next_offset > offset and not is_filler:
            return position
    return limit


def _search(segment: Segment, fd: int, offset: int, limit: int, boundaries: Boundaries) -> int:
    base = segment.base
    low = max(base, offset - segment.facts.largest_unit)
    places = find_headers(fd, base, low, offset, limit)
    # If none overlap and the last is intact, it is the last of the intact ones: no need for every CRC. They
    # take 12 ms, this 4, for the thousands of small batches in a MiB that a large one makes the search span.
    found = [] if _overlap(places) else intact(fd, base, places[-1:])
    if not found:
        found = intact(fd, base, places)
        places = [(position, position + header.size) for position, header in found]
    if not found:
        raise CorruptMessage(f"no intact batch at or before offset {offset} in {segment.path}")
    if _overlap(places):
        try:
            position = _walk_to(fd, base, boundaries.nearest(base, offset), offset, limit)
        except ChainBroken as error:
            raise CorruptMessage(f"a damaged batch at position {error.position} in {segment.path}") from None
        boundaries.note(position, position)  # else every fetch from here walks the segment again
        return position
    position, header = found[-1]
    if header.next_offset > offset:
        return position
    chain = Chain(position)
    chain.advance(header)
    if chain.filler_base is not None:
        filler = HeaderReader(fd, base).header(chain.position)
        if filler is None or not chain.accepts(filler, limit):
            raise CorruptMessage(f"a damaged filler at position {chain.position} in {segment.path}")
        chain.advance(filler)
    return chain.position


def _overlap(places: Sequence[tuple[int, int]]) -> bool:
    return any(end > start for (_, end), (start, _) in itertools.pairwise(places))


def first_with_timestamp(segments: Sequence[Segment], timestamp: int, limit: int) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record before `limit` that is not older than `timestamp`.

    Reads the headers of one segment, seldom of several, and one batch. A batch whose records cannot be read
    here stands for all of them: its base offset and largest timestamp. Raises CorruptMessage at a damaged
    batch.
    """
    for segment in segments:
        if segment.facts.max_timestamp < timestamp:
            continue
        try:
            reader, end = segment.open_reader(), min(segment.end, limit)
            for position, header in walk(reader.fileno(), segment.base, segment.base, end):
                if header.max_timestamp < timestamp or header.is_control:
                    continue
                batch = read_batch(reader.fileno(), segment.base, position, header)
                if batch is None:
                    raise ChainBroken(position)
                found = _first_record(header, batch, timestamp)
                if found is not None:
                    return found
        except FileNotFoundError:
            continue  # retention took the segment after this look-up began
        except ChainBroken as error:
            raise CorruptMessage(f"a damaged batch at position {error.position} in {segment.path}") from None
    return None


def _first_record(header: BatchHeader, batch: bytes, timestamp: int) -> tuple[int, int] | None:
    """(offset, timestamp) of the batch's first record that is not older; None if its header was wrong."""
    if header.attributes & TIMESTAMP_TYPE_BIT:
        return header.base_offset, header.max_timestamp
    if header.base_timestamp >= timestamp:
        return header.base_offset, header.base_timestamp
    try:
        data = decompress(header.codec, memoryview(batch)[HEADER_BYTES:], LOOKED_INTO_BYTES)
        position = 0
        for _ in range(header.records_count):
            # A record: its size, a byte of attributes, differences of timestamp and offset, the rest.
            size, start = read_varint(data, position)
            difference, after = read_varint(data, start + 1)
            delta, _ = read_varint(data, after)
            if size < 0 or not 0 <= delta <= header.last_offset_delta:
                raise CorruptMessage("a record that cannot be")
            if header.base_timestamp + difference >= timestamp:
                return header.base_offset + delta, header.base_timestamp + difference
            position = start + size
    except (CorruptMessage, IndexError):
        return header.base_offset, header.max_timestamp
    return None
