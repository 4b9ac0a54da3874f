"""The audit headers in the record headers of many messages, read at once.

In the log a record header is the length of its name, the name, the length of its value and the value; lengths
are zigzag varints. All bytes before the instance are the same in every message of a topic. So three
comparisons of eight bytes find the audit header where it is a message's first header, as it usually is. In
other messages the headers are read one after another.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from millrace.errors import CorruptMessage
from millrace.records.framing import Frames
from millrace.records.messages import read_varint
from millrace.records.row_cursor import Faults, Longs, Mask, PaddedBuffer, RowCursor, Words
from millrace_audit.reports.counts import EARLIEST_MS
from millrace_audit.reports.record_header import HEADER_NAME, VALUE_BYTES, VERSION, topic_tag

_NAME = HEADER_NAME.encode()
_BEFORE_INSTANCE = 5
"""Bytes of the value before the instance: version and tag."""
_BOUND = 1 << 63
_FEW = 64
"""Number of rows below which reading each row alone is faster. It also bounds the cost of a message with very
many headers: a step over one header in all rows costs as much as 64 single steps."""


class HeaderColumns(NamedTuple):
    """The audit headers of some messages, by columns."""

    rows: Longs
    """Numbers of the messages with an audit header, ascending."""
    time: Longs
    instance: Longs
    sequence: Longs

    def of_all(self, count: int) -> list[int | None]:
        """Return the sequence of each of `count` messages; None for a message without an audit header."""
        if len(self.rows) == count:  # the usual case
            return list(self.sequence.tolist())
        sequences: list[int | None] = [None] * count
        for row, sequence in zip(self.rows.tolist(), self.sequence.tolist(), strict=True):
            sequences[row] = sequence
        return sequences


class HeaderReader:
    """A reader of the audit headers of one topic's messages."""

    def __init__(self, topic: str) -> None:
        self._content = bytes([VERSION]) + topic_tag(topic).to_bytes(4, "big")
        self._first = bytes([2 * len(_NAME)]) + _NAME + bytes([2 * VALUE_BYTES]) + self._content

    def read(self, frames: Frames) -> HeaderColumns:
        """Return the audit headers of all messages that have one for this topic."""
        instance_at = self._find(frames)
        rows = np.flatnonzero(instance_at >= 0)
        at = instance_at if len(rows) == len(frames) else instance_at[rows]
        instance, sequence, time = (_big_endian(frames.buffer, at + 8 * n) for n in range(3))
        good = (instance >= 0) & (sequence >= 0) & (time >= EARLIEST_MS)
        if good.all():
            return HeaderColumns(rows, time, instance, sequence)
        return HeaderColumns(rows[good], time[good], instance[good], sequence[good])

    def _find(self, frames: Frames) -> Longs:
        """Return the position of the instance in each message's audit header; -1 without one."""
        where = np.full(len(frames), -1, np.int64)
        rows = np.flatnonzero(frames.header_count > 0)
        if not len(rows):
            return where
        some = frames if len(rows) == len(frames) else frames.select(rows)
        room = some.end - some.headers >= len(self._first) + VALUE_BYTES - _BEFORE_INSTANCE
        found = room & _equal(some.buffer, some.headers, self._first)
        where[rows] = np.where(found, some.headers + len(self._first), -1)
        if not found.all():
            left = np.flatnonzero(~found)
            cursor = RowCursor(
                some.buffer, some.headers[left], some.end[left], Faults(len(frames)), rows[left]
            )
            self._walk(cursor, some.header_count[left], where)
        return where

    def _walk(self, rows: RowCursor, count: Longs, where: Longs) -> None:
        """Read header by header, in all rows at once, up to the first with the audit header's name."""
        while len(rows) >= _FEW:
            assert rows.at is not None
            name, name_end = rows.sized_bytes("a header's name")
            size = rows.varint("a header's value")
            value = rows.skip(np.maximum(size, 0), "a header's value")
            is_named = (name_end - name == len(_NAME)) & _equal(rows.buffer, name, _NAME)
            is_named &= ~rows.faults.bad[rows.at]
            is_ours = is_named & (size == VALUE_BYTES) & _equal(rows.buffer, value, self._content)
            where[rows.at[is_ours]] = value[is_ours] + _BEFORE_INSTANCE
            count = count - 1
            left = np.flatnonzero(~is_named & (count > 0) & (rows.pos < rows.end))
            rows, count = rows.subset(left), count[left]
        assert rows.at is not None
        columns = (rows.at, rows.pos, rows.end, count)
        for row, pos, end, n in zip(*(column.tolist() for column in columns), strict=True):
            where[row] = self._walk_one(rows.buffer, pos, end, n)

    def _walk_one(self, buffer: PaddedBuffer, start: int, end: int, count: int) -> int:
        data, pos = bytes(buffer.data[start:end]), 0
        try:
            for _ in range(count):
                size, name = read_varint(data, pos)
                if size < 0:
                    return -1
                value_size, value = read_varint(data, name + size)
                pos = value + max(value_size, 0)
                if pos > len(data) or value_size < -_BOUND:
                    return -1
                if data[name : name + size] == _NAME:
                    is_ours = value_size == VALUE_BYTES and data.startswith(self._content, value)
                    return start + value + _BEFORE_INSTANCE if is_ours else -1
        except (IndexError, CorruptMessage):
            pass  # the headers end before they should: the audit header is not among them
        return -1


def _equal(buffer: PaddedBuffer, pos: Longs, wanted: bytes) -> Mask:
    """Return a mask of the positions at which the wanted bytes are. The buffer may end behind a position."""
    last = len(buffer.words8) - 1
    same: Mask = np.ones(len(pos), np.bool_)
    for at in range(0, len(wanted), 8):
        part = wanted[at : at + 8]
        word = np.frombuffer(part.ljust(8, b"\0"), np.uint64)[0]
        words: Words = buffer.words8[np.minimum(pos + at, last)]
        if len(part) < 8:
            words = words & np.uint64((1 << 8 * len(part)) - 1)
        same &= words == word
    return same


def _big_endian(buffer: PaddedBuffer, pos: Longs) -> Longs:
    number: Longs = buffer.numbers(pos, np.uint64).byteswap().view(np.int64)
    return number
