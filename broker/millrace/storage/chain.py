"""How batches stand one behind the other in a log file, and how to walk them.

Reads bytes through a descriptor; knows positions, not files or segments. Judges, never repairs.

A batch's base offset is its own position, so a batch identifies itself. The one exception is the filler
behind a batch with more records than bytes: it takes that batch's next offset as its base and ends, by its
last offset, where it ends in bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from millrace.records import CONTROL_BIT, HEADER_BYTES, LENGTH_OVERHEAD, MAGIC, BatchHeader, batch_crc
from millrace.records.header import IDENTITY, YOUNGEST

NEVER = 1 << 63
"""Younger than any timestamp."""
READ_AHEAD_BYTES = 64 << 10
SMALL_BATCH_BYTES = 8 << 10
"""Below this one large read serves several headers; above it 61 bytes per batch are cheaper."""


class Chain:
    """Where the next batch must begin, and with which base offset."""

    __slots__ = ("filler_base", "position")

    def __init__(self, position: int) -> None:
        self.position = position
        self.filler_base: int | None = None
        """Base offset of the filler that must come next, or None when any batch may."""

    def accepts(self, header: BatchHeader, limit: int) -> bool:
        """True if the batch may stand here and ends at or before `limit`; its CRC is not looked at."""
        end = self.position + header.size
        if header.magic != MAGIC or header.size < HEADER_BYTES or end > limit:
            return False
        if self.filler_base is None:
            return header.base_offset == self.position
        return header.is_control and header.base_offset == self.filler_base and header.last_offset == end - 1

    def advance(self, header: BatchHeader) -> None:
        """Step behind an accepted batch."""
        self.position += header.size
        needs_filler = self.filler_base is None and header.next_offset > self.position
        self.filler_base = header.next_offset if needs_filler else None


class HeaderReader:
    """Reads batch headers of one file at rising positions with few system calls."""

    def __init__(self, fd: int, base: int) -> None:
        self._fd = fd
        self._base = base
        self._buffer = b""
        self._start = 0
        self._next_read = HEADER_BYTES

    def header(self, position: int) -> BatchHeader | None:
        """The header at a log position; None when the file ends before it does."""
        index = position - self._start
        if not 0 <= index <= len(self._buffer) - HEADER_BYTES:
            self._buffer = os.pread(self._fd, self._next_read, position - self._base)
            self._start, index = position, 0
        header = BatchHeader.parse(self._buffer, index)
        if header is not None:
            self._next_read = READ_AHEAD_BYTES if header.size < SMALL_BATCH_BYTES else HEADER_BYTES
        return header


class ChainBroken(Exception):
    """No batch stands where one must; `position` is where."""

    def __init__(self, position: int) -> None:
        super().__init__(f"no batch at position {position}")
        self.position = position


def walk(fd: int, base: int, start: int, limit: int) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of every batch from a boundary up to `limit`; ChainBroken where none stands."""
    chain, reader = Chain(start), HeaderReader(fd, base)
    while chain.position < limit:
        header = reader.header(chain.position)
        if header is None or not chain.accepts(header, limit):
            raise ChainBroken(chain.position)
        position = chain.position
        chain.advance(header)
        yield position, header


def walk_past_damage(fd: int, base: int, start: int, limit: int) -> Iterator[tuple[int, BatchHeader]]:
    """As `walk`, but it goes on at the next intact batch behind a place where none stands."""
    resumed: int | None = start
    while resumed is not None:
        try:
            yield from walk(fd, base, resumed, limit)
            return
        except ChainBroken as error:
            resumed = next_batch(fd, base, error.position + 1, limit)


def skip(fd: int, base: int, start: int, target: int, most: int, timestamp: int = NEVER) -> int:
    """The boundary before the first batch that ends behind `target` or is as young as `timestamp`.

    Or an earlier one, from the boundary `start` on. It looks at as much of a header as shows place, size and
    time, and so takes a fourth of the time of `walk`. It stops before what does not show them, a filler or
    damage, and after `most` batches.
    """
    data, first, size = b"", start, HEADER_BYTES
    position = boundary = start
    for _ in range(most):
        if position - first + YOUNGEST.size > len(data):
            data, first = os.pread(fd, size, position - base), position
            if len(data) < YOUNGEST.size:
                break
        base_offset, length, magic, attributes, newest = YOUNGEST.unpack_from(data, position - first)
        if base_offset != position or magic != MAGIC or length < HEADER_BYTES - LENGTH_OVERHEAD:
            break
        boundary = position
        position += length + LENGTH_OVERHEAD
        if position > target or (newest >= timestamp and not attributes & CONTROL_BIT):
            break
        size = READ_AHEAD_BYTES if length < SMALL_BATCH_BYTES else HEADER_BYTES
    return boundary


def read_batch(fd: int, base: int, position: int, header: BatchHeader) -> bytes | None:
    """The whole batch if it is there and its CRC fits, else None."""
    batch = os.pread(fd, header.size, position - base)
    return batch if len(batch) == header.size and batch_crc(batch) == header.crc else None


def find_headers(fd: int, base: int, low: int, high: int, limit: int) -> list[tuple[int, int]]:
    """(position, end) of every batch whose header identifies itself in [low, high], whatever surrounds it.

    It ends at or before `limit`; whether it is intact is not looked at. Batches inside another's payload
    are found too: the caller decides what an overlap means.
    """
    data = os.pread(fd, high - low + HEADER_BYTES, low - base)
    found = []
    for block in range(low >> 16, (high >> 16) + 1):
        # All positions of a 64 KiB block share the first 6 of the 8 bytes of their base offset.
        prefix = block.to_bytes(6, "big")
        stop = min(high + 1, (block + 1) << 16) - low + len(prefix) - 1
        index = data.find(prefix, max(0, (block << 16) - low), stop)
        while index >= 0:
            position = low + index
            if data[index + 6 : index + 8] == (position & 0xFFFF).to_bytes(2, "big"):
                _, length, magic = IDENTITY.unpack_from(data, index)
                end = position + length + LENGTH_OVERHEAD
                if magic == MAGIC and position + HEADER_BYTES <= end <= limit:
                    found.append((position, end))
            index = data.find(prefix, index + 1, stop)
    return found


def intact(fd: int, base: int, found: Iterable[tuple[int, int]]) -> list[tuple[int, BatchHeader]]:
    """The headers of those found batches whose CRC fits."""
    reader = HeaderReader(fd, base)
    headers = ((position, reader.header(position)) for position, _ in found)
    return [(at, header) for at, header in headers if header and read_batch(fd, base, at, header)]


def next_batch(fd: int, base: int, start: int, limit: int) -> int | None:
    """Position of the first intact, self-identifying batch at or after `start`; None if there is none."""
    step = 1 << 20
    for low in range(start, limit, step):
        found = intact(fd, base, find_headers(fd, base, low, min(low + step, limit) - 1, limit))
        if found:
            return found[0][0]
    return None
