"""From a time to the first record that is not older.

For a thread: it reads a batch, may decompress it, and builds the landmarks of a segment that has none.
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace.errors import CorruptMessage
from millrace.records import HEADER_BYTES, TIMESTAMP_TYPE_BIT, BatchHeader, read_varint
from millrace.records.compression import decompress
from millrace.storage.chain import ChainBroken, read_batch, skip
from millrace.storage.landmarks import WALKED_HEADERS, Landmarks, LandmarksMissing, short_walk
from millrace.storage.segment import Segment

LOOKED_INTO_BYTES = 16 << 20
LOOKED_INTO_RECORDS = 10_000
"""A batch with more records, or with larger ones uncompressed, is not looked into: either takes 10 ms."""


def first_with_timestamp(segments: Sequence[Segment], timestamp: int, limit: int) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record before `limit` that is not older than `timestamp`.

    The first batch whose header states such a time has it. Where its records cannot be read here or none is
    as young, the batch stands for them: its base offset and largest timestamp. Raises CorruptMessage at a
    damaged batch.
    """
    for segment in segments:
        if segment.facts.max_timestamp < timestamp:
            continue
        try:
            try:
                first = _first_in(segment, segment.known_landmarks(), timestamp, limit)
            except LandmarksMissing:
                first = _first_in(segment, segment.build_landmarks(), timestamp, limit)
        except FileNotFoundError:
            continue  # retention took the segment after this look-up began
        if first is not None:
            return first
    return None


def _first_in(segment: Segment, landmarks: Landmarks, timestamp: int, limit: int) -> tuple[int, int] | None:
    file, end = segment.open_reader(), min(segment.end, limit)
    mark = landmarks.before_timestamp(timestamp, segment.base)
    start = skip(file, mark, end, WALKED_HEADERS, timestamp)
    try:
        for position, header in short_walk(file, start, end, mark):
            if header.max_timestamp >= timestamp and not header.is_control:
                batch = read_batch(file, position, header)
                if batch is None:
                    raise CorruptMessage(f"the batch at position {position} in {segment.path} fails its CRC")
                return _first_record(header, batch, timestamp)
    except ChainBroken as error:
        raise CorruptMessage(f"a damaged batch at position {error.position} in {segment.path}") from None
    return None


def _first_record(header: BatchHeader, batch: bytes, timestamp: int) -> tuple[int, int]:
    whole = header.base_offset, header.max_timestamp
    if header.attributes & TIMESTAMP_TYPE_BIT or header.records_count > LOOKED_INTO_RECORDS:
        return whole
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
        pass
    return whole
