"""Check that an uncompressed batch consists of the records that its header states.

A client trusts the fields of a record: a forged offset delta makes it skip records of other producers, and a
wrong length ends its reading. Like `runs.py`, it exists in Python and, if that could be built, in `_runs.c`.
"""

from __future__ import annotations

from millrace.records.compression import Buffer

_MAX_VARINT_BYTES = 5
_MAX_TIMESTAMP_BYTES = 10


def holds_records_in_python(content: Buffer, count: int) -> bool:
    """Return True if `content` is exactly `count` whole records, numbered from 0.

    A number may take at most the bytes that its type needs: clients differ in how they read an overflow.
    """
    position = 0
    try:
        for index in range(count):
            size, start = _number(content, position)
            position = _timestamp_end(content, start + 1)  # after the attributes
            delta, position = _number(content, position)
            if size < 1 or delta != index:
                return False
            position = _field_end(content, position, least=-1)  # the key
            position = _field_end(content, position, least=-1)  # the value
            headers, position = _number(content, position)
            if headers < 0:
                return False
            for _ in range(headers):
                position = _field_end(content, position, least=0)
                position = _field_end(content, position, least=-1)
            if position != start + size:
                return False
    except (IndexError, ValueError):
        return False
    return position == len(content)


def _number(content: Buffer, position: int) -> tuple[int, int]:
    """Return a varint and the position after it."""
    result = content[position]
    if result < 0x80:  # by far the most
        return (result >> 1) ^ -(result & 1), position + 1
    result &= 0x7F
    for index in range(1, _MAX_VARINT_BYTES):
        byte = content[position + index]
        result |= (byte & 0x7F) << 7 * index
        if byte < 0x80 and result < 1 << 32:
            return (result >> 1) ^ -(result & 1), position + index + 1
    raise ValueError("no varint of 32 bits")


def _timestamp_end(content: Buffer, position: int) -> int:
    for index in range(_MAX_TIMESTAMP_BYTES):
        byte = content[position + index]
        if byte < 0x80 and (byte <= 1 or index < _MAX_TIMESTAMP_BYTES - 1):
            return position + index + 1
    raise ValueError("no varint of 64 bits")


def _field_end(content: Buffer, position: int, *, least: int) -> int:
    """Return the position after a length and its bytes; -1, if `least` allows it, means null."""
    size, position = _number(content, position)
    if size < least:
        raise ValueError("a length that is negative")
    return position + max(0, size)


try:
    from millrace.records._runs import holds_records as holds_records
except ImportError:
    holds_records = holds_records_in_python
