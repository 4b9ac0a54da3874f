"""Runs of batches: consecutive requests of one client, and the batches of one append.

These functions do the work that a broker does for each of very many small batches. Each function exists
twice: here in Python, with its description, and in `_runs.c`, which is used if it could be built. The tests
keep the two equal. They depend on no other fields of a request and on no log.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeAlias

from millrace.records.compression import Buffer, Codec
from millrace.records.content import holds_records_in_python
from millrace.records.header import CHECKED, CRC_START, HEADER_BYTES, LENGTH_OVERHEAD, MAGIC, STAGED, STAMP

_LAST_CODEC = int(Codec.ZSTD)


def scan_in_python(
    data: memoryview,
    position: int,
    head: tuple[bytes, bytes, int],
    tail: bytes,
    largest: int,
    checksum: Callable[[memoryview], int],
) -> tuple[list[int], list[memoryview], int]:
    """Return the requests at `position` that differ in correlation id and batch only: (ids, batches, end of
    run).

    Each request is its length, head[0], a correlation id, head[1], the batch's size, the batch and `tail`.
    The size is an int32 without a tail, else a varint of the size plus 1 in head[2] bytes. The run ends
    before a request that is not whole, and before a batch that is larger than `largest` or must be refused.
    `checksum` is CRC-32C.
    """
    versions, common, width = head
    layout = _layout(len(common), width, is_compact=bool(tail))
    correlation_ids: list[int] = []
    batches: list[memoryview] = []
    unpack, end = layout.unpack_from, len(data)
    smallest = layout.size
    before_batch = smallest - HEADER_BYTES
    around_batch = before_batch + len(tail) - 4
    while end - position >= smallest:
        framed, its_versions, number, its_common, stated, length, magic, crc, attributes, delta, count = (
            unpack(data, position)
        )
        size = framed - around_batch
        start = position + before_batch
        after = start + size
        if (
            its_common != common
            or its_versions != versions
            or not HEADER_BYTES <= size <= largest
            or after + len(tail) > end
            or stated != (_varint(size + 1) if tail else size)
            or length + LENGTH_OVERHEAD != size
            or magic != MAGIC
            or not 0 < count == delta + 1
            or not 0 <= attributes <= _LAST_CODEC
            or checksum(data[start + CRC_START : after]) != crc
            or (tail and data[after : after + len(tail)] != tail)
            or (not attributes and not holds_records_in_python(data[start + HEADER_BYTES : after], count))
        ):
            break
        correlation_ids.append(number)
        batches.append(data[start:after])
        position = after + len(tail)
    return correlation_ids, batches, position


@lru_cache
def _layout(common: int, width: int, *, is_compact: bool) -> struct.Struct:
    """Return the layout of a request with its batch's header, without the base offset, which the broker
    writes.
    """
    size = f"{width}s" if is_compact else "i"
    return struct.Struct(f">i4si{common}s{size}8x{CHECKED.format.removeprefix('>q')}")


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


StampedBatch: TypeAlias = tuple[int, int, int, int, int, int, int]
"""Batch of an idempotent producer: (number among the batches, producer id, producer epoch, base sequence,
base offset, records, position of its end)."""


def stamp_in_python(
    batches: Sequence[Buffer],
    first: int,
    base: int,
    epoch: int,
    room: int,
    marked_room: int,
    least: int,
    stamped: list[StampedBatch] | None,
) -> tuple[list[int], int, int, int, int, int]:
    """Write positions in the log and the leader's epoch into the batches from number `first` on.

    Only plain batches are stamped: writable, and not needing a filler; without `stamped` no batch of an
    idempotent producer either. Stops at another batch, when `room` bytes are used up, or `marked_room` bytes,
    of which a batch uses at least `least`. Returns the batches' positions, the end of the last one, the rest
    of `marked_room`, the number of messages, the offset after them, and their largest timestamp. Appends the
    stamped batches of idempotent producers to `stamped`.
    """
    bases: list[int] = []
    end, messages, next_offset, max_timestamp = base, 0, base, -1
    for index in range(first, len(batches)):
        batch = batches[index]
        length, last_offset_delta, timestamp, producer_id, producer_epoch, sequence, count = (
            STAGED.unpack_from(batch)
        )
        size = length + LENGTH_OVERHEAD
        counted = size if size > least else least
        is_plain = (producer_id < 0 or stamped is not None) and last_offset_delta < length
        if not is_plain or end + size > base + room or counted > marked_room:
            break
        try:
            STAMP.pack_into(batch, 0, end, length, epoch)
        except (TypeError, BufferError):  # read-only
            break
        bases.append(end)
        next_offset = end + last_offset_delta + 1
        if producer_id >= 0 and stamped is not None:
            stamped.append((index, producer_id, producer_epoch, sequence, end, count, end + size))
        end += size
        marked_room -= counted
        messages += count
        if timestamp > max_timestamp:
            max_timestamp = timestamp
    return bases, end, marked_room, messages, next_offset, max_timestamp


try:
    from millrace.records._runs import scan as scan
    from millrace.records._runs import stamp as stamp

    IS_COMPILED = True
    """False if `_runs.c` could not be built: then both functions run in Python."""
except ImportError:
    scan, stamp, IS_COMPILED = scan_in_python, stamp_in_python, False
