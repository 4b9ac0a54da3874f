"""Reading many messages at once: one position per row, each step of a schema done for all rows with numpy.

The bytes are not trusted. A row that breaks a rule is marked with its first fault and moved to its end,
where every further step is harmless; the caller drops it afterwards. Positions stay inside the buffer because
they never pass a row's end, and the buffer has PADDING bytes on both sides for reads of whole words.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from millrace.errors import MillraceError
from millrace.records.compression import Buffer

Bytes: TypeAlias = npt.NDArray[np.uint8]
Longs: TypeAlias = npt.NDArray[np.int64]
Words: TypeAlias = npt.NDArray[np.uint64]
Mask: TypeAlias = npt.NDArray[np.bool_]

PADDING = 16
"""Bytes that reads may need beyond the messages: a varint's 10 after a position, a decimal's 16 before it."""
MAX_BUFFER_BYTES = (1 << 31) - 4096
"""Most bytes of a buffer: positions become 32-bit offsets of Arrow arrays."""

if sys.byteorder != "little":  # words are read in memory order
    raise MillraceError("many messages can be read at once on little-endian machines only")


class PaddedBuffer:
    """Bytes of many messages in one piece, readable as bytes and as words at any position."""

    __slots__ = ("bytes", "data", "words4", "words8")

    def __init__(self, data: Buffer) -> None:
        """`data` begins and ends with PADDING arbitrary bytes."""
        if len(data) > MAX_BUFFER_BYTES:
            raise MillraceError(f"{len(data)} bytes of messages at once, at most {MAX_BUFFER_BYTES}")
        self.data = data
        self.bytes: Bytes = np.frombuffer(data, np.uint8)
        # Words that begin at every byte: numpy reads unaligned elements correctly.
        self.words4 = np.ndarray((len(data) - 3,), np.uint32, data, strides=(1,))
        self.words8 = np.ndarray((len(data) - 7,), np.uint64, data, strides=(1,))

    @classmethod
    def of(cls, parts: Iterable[Buffer]) -> PaddedBuffer:
        """Return a buffer with the parts one after the other, the first part at position PADDING."""
        return cls(b"".join([bytes(PADDING), *parts, bytes(PADDING)]))

    def numbers(self, start: Longs, dtype: Any) -> npt.NDArray[Any]:
        """Return the number of 4 or 8 bytes at each position."""
        words = self.words4 if np.dtype(dtype).itemsize == 4 else self.words8
        return words[start].view(dtype)

    def rows(self, start: Longs, size: int) -> Bytes:
        """Return a row of the `size` bytes from each position on. Bytes after the end are arbitrary."""
        last = len(self.data) - size
        if last < 0:
            return np.zeros((len(start), size), np.uint8)
        windows = np.ndarray((last + 1, size), np.uint8, self.data, strides=(1, 1))
        return windows[np.minimum(start, last)]


class Faults:
    """The bad rows, and the first reason for each."""

    __slots__ = ("bad", "reasons")

    def __init__(self, rows: int) -> None:
        self.bad: Mask = np.zeros(rows, np.bool_)
        self.reasons: dict[int, str] = {}

    def mark(self, rows: Longs, reason: str) -> None:
        self.bad[rows] = True
        for row in rows.tolist():
            self.reasons.setdefault(row, reason)

    def __bool__(self) -> bool:
        return bool(self.reasons)


class RowCursor:
    """The rows of a decoding step: position and end of each, and their numbers in `at` (None: all rows)."""

    __slots__ = ("at", "buffer", "end", "faults", "pos")

    def __init__(
        self, buffer: PaddedBuffer, pos: Longs, end: Longs, faults: Faults, at: Longs | None = None
    ) -> None:
        self.buffer = buffer
        self.pos = pos  # changed in place
        self.end = end
        self.faults = faults
        self.at = at

    def __len__(self) -> int:
        return len(self.pos)

    def subset(self, index: Longs) -> RowCursor:
        """Return a cursor of some of the rows. `rejoin` copies its positions back."""
        at = index if self.at is None else self.at[index]
        return RowCursor(self.buffer, self.pos[index], self.end[index], self.faults, at)

    def rejoin(self, index: Longs, part: RowCursor) -> None:
        """Copy the positions of a subset's rows into this cursor."""
        self.pos[index] = part.pos

    def fault(self, bad: Mask, reason: str) -> None:
        """Mark the rows where `bad` is set, and move them to their ends."""
        index = np.flatnonzero(bad)
        self.pos[index] = self.end[index]
        self.faults.mark(index if self.at is None else self.at[index], reason)

    def _check(self, what: str) -> None:
        over = self.pos > self.end
        if np.count_nonzero(over):
            self.fault(over, f"{what}: reaches past the end of the message")

    def varint(self, what: str) -> Longs:
        """Read a zigzag number of 1 to 10 bytes in every row; return the numbers."""
        first = self.buffer.bytes[self.pos]
        self.pos += 1
        if first.max(initial=0) < 0x80:
            value = ((first >> 1) ^ -(first & 1)).view(np.int8).astype(np.int64)
        else:
            value = self._longer(first, what)
        self._check(what)
        return value

    def _longer(self, first: Bytes, what: str) -> Longs:
        """Return the numbers that begin with the bytes `first`, read bytewise in all rows: 3 ns a byte."""
        more = first >> 7  # 1 where another byte follows
        byte = self.buffer.bytes[self.pos] & -more  # 0 in the rows that are done
        self.pos += more
        more = byte >> 7
        short = (first & 0x7F) | (byte & 0x7F).astype(np.uint16) << 7
        if not np.count_nonzero(more):  # most lengths: small numbers are added up faster
            return ((short >> 1) ^ -(short & 1)).view(np.int16).astype(np.int64)
        bits = short.astype(np.uint64)
        for shift in range(14, 70, 7):
            byte = self.buffer.bytes[self.pos] & -more
            bits |= (byte & 0x7F).astype(np.uint64) << shift
            self.pos += more
            more = byte >> 7
            if not np.count_nonzero(more):
                break
        if shift == 63 and byte.max() > 1:
            self.fault(byte > 1, f"{what}: a number of more than 64 bits")
        return ((bits >> 1) ^ -(bits & 1)).view(np.int64)

    def fixed_bytes(self, size: int, what: str) -> Longs:
        """Step over `size` bytes in every row; return the positions before the step."""
        start = self.pos.copy()
        self.pos += size
        self._check(what)
        return start

    def sized_bytes(self, what: str) -> tuple[Longs, Longs]:
        """Read a length in every row and step over the bytes; return the positions of their start and end."""
        start = self.skip(self.varint(what), what)
        return start, self.pos.copy()

    def skip(self, size: Longs, what: str) -> Longs:
        """Step over `size` bytes, which differ by row; return the positions before the step."""
        # Compared like this because position + size may wrap; a negative size is huge as unsigned.
        bad = size.view(np.uint64) > (self.end - self.pos).view(np.uint64)
        if np.count_nonzero(bad):
            size = np.where(bad, 0, size)
            self.fault(bad, f"{what}: its length is negative or reaches past the end of the message")
        start = self.pos.copy()
        self.pos += size
        return start

    def finish(self) -> None:
        """Mark the rows that have unread bytes as faulty."""
        left = self.pos != self.end
        if np.count_nonzero(left):
            self.fault(left, "bytes are left after the last field")
