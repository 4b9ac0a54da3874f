"""The chain of batches in a log file, and ways to walk along it.

Files are read by log positions, without their segments. Damage is found here, and never repaired.

A batch's base offset is its own position, so a batch identifies itself. The only exception is the filler
after a batch with more records than bytes: its base offset is the batch's next offset, and its last offset is
that of its last byte.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from millrace.records import CONTROL_BIT, HEADER_BYTES, LENGTH_OVERHEAD, MAGIC, BatchHeader, batch_crc
from millrace.records.compression import Buffer
from millrace.records.header import YOUNGEST

NEVER = 1 << 63
"""A timestamp later than that of any record."""
READ_AHEAD_BYTES = 64 << 10
SMALL_BATCH_BYTES = 8 << 10
"""Size of a batch below which one large read serves several headers. Above it, reads of 61 bytes per batch
are cheaper."""
WRONG_CRC = "wrong CRC"
SEARCH_BYTES = 1 << 20
"""Bytes that a search for the next batch reads at once."""


class _Descriptor(io.FileIO):
    def __del__(self) -> None:
        self.close()  # the intended way, while FileIO's own finalizer warns of a leak


class LogFile:
    """A segment's file opened for reading; it closes when the last slice that uses it is freed.

    Retention and topic deletion unlink the file and forget it. An answer that is still being sent keeps its
    bytes, and the descriptor closes with the answer. The class has no finalizer of its own: therefore a weak
    reference in another thread gives an open file or none, never a half-closed one.
    """

    def __init__(self, path: Path, base: int) -> None:
        self.name, self.base = path, base
        """`base` is the log position of the file's first byte."""
        self.fileno = _Descriptor(path, "rb").fileno  # keeps it open

    def read_at(self, position: int, size: int) -> bytes:
        """Return at most `size` bytes from a log position on; fewer where the file ends."""
        return os.pread(self.fileno(), size, position - self.base)


class Chain:
    """Position and base offset that the next batch of a file must have."""

    __slots__ = ("filler_base", "position")

    def __init__(self, position: int) -> None:
        self.position = position
        self.filler_base: int | None = None
        """Base offset of the filler that must come next, or None when any batch may."""

    def accepts(self, header: BatchHeader, limit: int) -> bool:
        """Return True if the batch may come here and ends at or before `limit`. Its CRC is not checked."""
        size = header.batch_length + LENGTH_OVERHEAD
        end = self.position + size
        if header.magic != MAGIC or size < HEADER_BYTES or end > limit:
            return False
        if self.filler_base is None:
            return header.base_offset == self.position
        return header.is_control and header.base_offset == self.filler_base and header.last_offset == end - 1

    def advance(self, header: BatchHeader) -> None:
        self.position += header.batch_length + LENGTH_OVERHEAD
        next_offset = header.base_offset + header.last_offset_delta + 1
        self.filler_base = next_offset if self.filler_base is None and next_offset > self.position else None


class HeaderReader:
    """Reads the batch headers of one file at rising positions, with few system calls."""

    def __init__(self, file: LogFile) -> None:
        self._file = file
        self._buffer = b""
        self._start = 0
        self._next_read = HEADER_BYTES

    def header(self, position: int) -> BatchHeader | None:
        """Return the header at a log position; None when the file ends before the header does."""
        index = position - self._start
        if not 0 <= index <= len(self._buffer) - HEADER_BYTES:
            self._buffer = self._file.read_at(position, self._next_read)
            self._start, index = position, 0
        header = BatchHeader.parse(self._buffer, index)
        if header is not None:
            self._next_read = READ_AHEAD_BYTES if header.size < SMALL_BATCH_BYTES else HEADER_BYTES
        return header


def header_at(file: LogFile, position: int, limit: int) -> BatchHeader | None:
    """Return the header of the batch, not a filler, that begins at a position and ends at most at `limit`.

    Return None when there is no such batch.
    """
    header = HeaderReader(file).header(position)
    return header if header is not None and Chain(position).accepts(header, limit) else None


class ChainBroken(Exception):
    """There is no valid batch at `position`.

    `header` is the header found there instead, None where the file ends. `filler_base` is the base offset of
    the filler that should be there, None when it should be another batch.
    """

    def __init__(
        self, reason: str, position: int, header: BatchHeader | None, filler_base: int | None
    ) -> None:
        super().__init__(f"{reason}: position {position}")
        self.reason, self.position, self.header, self.filler_base = reason, position, header, filler_base


def walk(file: LogFile, start: int, limit: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of each batch from a boundary to `limit`.

    Raise ChainBroken if a batch is missing.
    """
    chain, reader = Chain(start), HeaderReader(file)
    while chain.position < limit:
        position = chain.position
        header = reader.header(position)
        if header is None or not chain.accepts(header, limit):
            what = "batch" if chain.filler_base is None else "filler"
            raise ChainBroken(f"no {what} stands here", position, header, chain.filler_base)
        chain.advance(header)
        yield position, header


def walk_batches(
    file: LogFile, start: int, limit: int, crc: Callable[[Buffer], int] = batch_crc
) -> Iterator[tuple[int, BatchHeader, bytes]]:
    """Walk as `walk` does, with the whole batches. Raise ChainBroken also where a batch fails its CRC."""
    for position, header in walk(file, start, limit):
        batch = read_batch(file, position, header, crc)
        if batch is None:
            filler_base = None if header.base_offset == position else header.base_offset
            raise ChainBroken(WRONG_CRC, position, header, filler_base)
        yield position, header, batch


def walk_past_damage(file: LogFile, start: int, limit: int) -> Iterator[tuple[int, BatchHeader]]:
    """Walk as `walk` does, but continue at the next intact batch after a damaged place."""
    resumed: int | None = start
    while resumed is not None:
        try:
            yield from walk(file, resumed, limit)
            return
        except ChainBroken as error:
            resumed = next_batch(file, error.position + 1, limit)


def skip(file: LogFile, start: int, target: int, most: int, timestamp: int = NEVER) -> int:
    """Return the boundary before the first batch that ends after `target` or has a record at or after
    `timestamp`.

    An earlier boundary, at or after `start`, may be returned as well. The function looks only at a header's
    position, size and time, and so takes a fourth of the time of `walk`. It stops before a filler or damage,
    and after `most` batches.
    """
    data, first, size = b"", start, HEADER_BYTES
    position = boundary = start
    for _ in range(most):
        if position - first + YOUNGEST.size > len(data):
            data, first = file.read_at(position, size), position
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


def read_batch(
    file: LogFile, position: int, header: BatchHeader, crc: Callable[[Buffer], int] = batch_crc
) -> bytes | None:
    """Return the whole batch if the file has it and its CRC is right, else None."""
    batch = file.read_at(position, header.size)
    return batch if len(batch) == header.size and crc(batch) == header.crc else None


def next_batch(file: LogFile, start: int, limit: int) -> int | None:
    """Return the position of the first intact, self-identifying batch at or after `start`, else None."""
    for low in range(start, limit, SEARCH_BYTES):
        data = file.read_at(low, SEARCH_BYTES + HEADER_BYTES)
        for position in _stated_positions(data, low, min(low + SEARCH_BYTES, limit)):
            header = BatchHeader.parse(data, position - low)
            fits = header is not None and Chain(position).accepts(header, limit)
            if header is not None and fits and read_batch(file, position, header) is not None:
                return position
    return None


def _stated_positions(data: bytes, low: int, high: int) -> Iterator[int]:
    """Yield each position in [low, high) whose eight bytes state the position itself, as a base offset does.

    `data` was read from `low` on.
    """
    for block in range(low >> 16, (high >> 16) + 1):
        # All positions of a 64 KiB block share the first 6 of the 8 bytes of their base offset.
        prefix = block.to_bytes(6, "big")
        stop = min(high, (block + 1) << 16) - low + len(prefix) - 1
        index = data.find(prefix, max(0, (block << 16) - low), stop)
        while index >= 0:
            if data[index + 6 : index + 8] == (low + index & 0xFFFF).to_bytes(2, "big"):
                yield low + index
            index = data.find(prefix, index + 1, stop)
