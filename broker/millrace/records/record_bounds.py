"""Bounds of each record of a batch: walked record by record, or guessed for all records and then checked.

A record's length is written before it, so its start is known only after the record before it: a walk, in
Python, takes 0.2 us per record. But nearly all records are alike: a value that begins with a zero byte and
the id of one schema, and no headers or headers of one size, such as an audit header. One search finds all of
these values, and the lengths before them give the bounds. A guess counts only if every record's own length
leads from its start to its end and the records fill their batches. Then it equals the result of the walk;
otherwise the walk is made.
"""

from __future__ import annotations

from array import array

import numpy as np

from millrace.errors import CorruptMessage
from millrace.records.compression import Buffer
from millrace.records.messages import read_varint
from millrace.records.row_cursor import PADDING, Bytes, Longs, Mask, PaddedBuffer

MAX_BATCH_RECORDS = 4 << 20
"""Most records of a batch: 32 KB of zstd can expand to 150 million records, and each takes about 100 bytes of
arrays here. Producers send some thousands."""
_MIN_RECORD_BYTES = 7
_TAG_BYTES = 5
_TAG_MASK = np.uint64((1 << 8 * _TAG_BYTES) - 1)
_MOST_CANDIDATES = 16
"""Most pairs of zeros examined per record; batches with more are walked."""


def walked_bounds(data: Buffer, position: int, end: int, count: int) -> Longs:
    """Return the start of each record of a batch and, last, the batch's end.

    Raise CorruptMessage if the last record does not end at the batch's end.
    """
    if count < 0 or count * _MIN_RECORD_BYTES > end - position:
        raise CorruptMessage(f"{count} records cannot be in {end - position} bytes")
    if count > MAX_BATCH_RECORDS:
        raise CorruptMessage(f"{count} records in one batch, at most {MAX_BATCH_RECORDS}")
    starts = array("q", bytes(8 * (count + 1)))
    starts[0] = position
    try:
        for index in range(1, count + 1):
            first = data[position]
            if first < 0x80:
                position += 1 + (first >> 1)
            elif (second := data[position + 1]) < 0x80:
                position += 2 + ((first & 0x7F) >> 1) + (second << 6)
            else:
                position = _long_step(data, position)
            starts[index] = position
    except (IndexError, OverflowError):  # handled like a wrong end
        position = -1
    if position != end:
        raise CorruptMessage("the lengths of the records do not add up to the batch")
    return np.frombuffer(starts, np.int64)


def _long_step(data: Buffer, position: int) -> int:
    """Return the position after a record whose length takes more than two bytes."""
    size = shift = 0
    while True:
        byte = data[position]
        position += 1
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return position + (size >> 1)
        shift += 7
        if shift > 28:
            raise CorruptMessage("a record's length of more than 5 bytes")


def guessed_bounds(buffer: PaddedBuffer, edges: Longs, counts: Longs) -> tuple[Longs, Longs] | None:
    """Return the starts and ends of the records of adjoining batches; None when they must be walked.

    The n-th batch lies between the edges n and n + 1 and states `counts[n]` records.
    """
    total = int(counts.sum())
    if not 0 < counts.min() <= counts.max() <= MAX_BATCH_RECORDS or total * _MIN_RECORD_BYTES > edges[-1]:
        return None
    if (first := _first_value(buffer.data)) is None:
        return None
    tag, rest = first
    value = _values(buffer, tag, total)
    if value is None or len(value) != total:
        return None
    size = _two_bytes_before(buffer.bytes, value)
    if size is None:
        return None
    end = value + size + rest
    last = np.cumsum(counts) - 1
    start = np.empty_like(end)
    start[1:] = end[:-1]
    start[last - counts + 1] = edges[:-1]
    if (end[last] != edges[1:]).any() or end.max() > edges[-1]:
        return None
    low, high = buffer.bytes[start], buffer.bytes[start + 1]
    longer = low >= 0x80
    size = np.where(longer, (low & 0x7F) | (high.astype(np.int64) << 7), low)
    fits = (start + 1 + longer + (size >> 1) == end) & (size & 1 == 0) & ~(longer & (high >= 0x80))
    return (start, end) if fits.all() else None


def _values(buffer: PaddedBuffer, tag: bytes, total: int) -> Longs | None:
    """Return every position of the tag, three zeros and two other bytes; None with too many candidates."""
    # An id has four bytes, and few ids are large: of the three zeros a pair lies at an even position.
    pairs = 2 * _few_set(np.frombuffer(buffer.data, np.uint16, len(buffer.data) // 2) == 0)
    if len(pairs) > _MOST_CANDIDATES * total:
        return None
    pairs = pairs[(pairs > PADDING) & (pairs < len(buffer.data) - PADDING)]
    words = buffer.words8[pairs - 1]
    wanted = np.uint64(int.from_bytes(tag, "little"))
    before = words & _TAG_MASK == wanted  # the tag begins a byte before the pair, or with it
    tagged = np.flatnonzero(before | (words >> 8 & _TAG_MASK == wanted))
    at: Longs = pairs[tagged] - before[tagged]
    return at


def _few_set(mask: Mask) -> Longs:
    """Return `np.flatnonzero` of a mask that is nearly all False, in half its time: eight values at once,
    then inside.
    """
    whole = len(mask) & ~7
    eights = mask[:whole].view(np.uint64)
    which = np.flatnonzero(eights != 0)
    inside = np.flatnonzero(eights[which].view(np.bool_))
    return np.concatenate([which[inside >> 3] * 8 + (inside & 7), whole + np.flatnonzero(mask[whole:])])


def _first_value(data: Buffer) -> tuple[bytes, int] | None:
    """Return the first 5 bytes of the first record's value, and the number of the record's bytes after it.

    Return None unless the value begins with a zero byte and a schema id below 65,536.
    """
    try:
        size, position = read_varint(data, PADDING)
        end = position + size
        position += 1
        for _ in range(2):
            position = read_varint(data, position)[1]
        key_size, position = read_varint(data, position)
        value_size, position = read_varint(data, position + max(key_size, 0))
    except (IndexError, CorruptMessage):
        return None
    tag, rest = bytes(data[position : position + _TAG_BYTES]), end - position - value_size
    is_usual = value_size >= len(tag) == _TAG_BYTES and tag[:3] == b"\0\0\0" and 0 < rest < len(data)
    return (tag, rest) if is_usual else None


def _two_bytes_before(data: Bytes, at: Longs) -> Longs | None:
    """Return the numbers of one or two bytes that end before each position.

    None when one is longer or negative.
    """
    low, high = data[at - 2], data[at - 1]
    if high.max(initial=0) >= 0x80:
        return None
    size = np.where(low >= 0x80, (low & 0x7F) | (high.astype(np.int64) << 7), high)
    return None if (size & 1).any() else size >> 1
