"""Control batches, which clients skip, and the filler that keeps offsets from overlapping.

The users of control batches define their values; only the filler's meaning is defined here.
"""

from __future__ import annotations

from millrace.records.header import CONTROL_BIT, BatchHeader
from millrace.records.messages import Message, build_batch, seal, write_bytes

# A control batch is one record whose key is its type: here version 0, type 1, "commit". It is the only type
# that every client skips without reading the value (measured), so all of Millrace's control batches have it.
CONTROL_KEY = b"\x00\x00\x00\x01"


def control_batch(base_offset: int, value: bytes, *, timestamp: int, leader_epoch: int = -1) -> bytes:
    """Return a control batch with `value`: clients skip it, Millrace may read it."""
    message = Message(timestamp, CONTROL_KEY, value)
    return build_batch([message], base_offset=base_offset, attributes=CONTROL_BIT, leader_epoch=leader_epoch)


MIN_CONTROL_BYTES = len(control_batch(0, b"", timestamp=0))


def control_batch_of_size(
    base_offset: int, size: int, *, timestamp: int, last_offset_delta: int = 0, leader_epoch: int = -1
) -> bytes:
    """Return a control batch of exactly `size` bytes (at least MIN_CONTROL_BYTES), padded with zeros."""
    room = size - MIN_CONTROL_BYTES
    if room < 0:
        raise ValueError(f"a control batch has at least {MIN_CONTROL_BYTES} bytes, not {size}")
    # Two lengths before the padding take 1 to 5 bytes each. Written minimally they would make some sizes
    # unreachable (126, for example), so both get the width that the larger needs; readers accept that.
    width = next(w for w in range(1, 6) if room + 16 < 1 << (7 * w - 1))
    if room < 2 * (width - 1):
        width = 1
    record = bytearray(b"\0\0\0")
    write_bytes(record, CONTROL_KEY)
    padding = room - 2 * (width - 1)
    record += _wide_varint(padding, width) + bytes(padding) + b"\0"
    return seal(
        _wide_varint(len(record), width) + record,
        base_offset=base_offset,
        attributes=CONTROL_BIT,
        last_offset_delta=last_offset_delta,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        leader_epoch=leader_epoch,
    )


def _wide_varint(value: int, width: int) -> bytes:
    """Return the zigzag varint of a small positive value in exactly `width` bytes."""
    groups = [(value << 1) >> (7 * index) & 0x7F for index in range(width)]
    return bytes([group | 0x80 for group in groups[:-1]] + groups[-1:])


def filler_size(header: BatchHeader) -> int:
    """Return the size of the filler that must follow the batch in a log of byte-position offsets.

    0 for most batches.
    """
    overlap = header.last_offset_delta + 1 - header.size
    # 2 instead of 1, so that the filler's last offset delta is never 0.
    return max(MIN_CONTROL_BYTES, overlap + 2) if overlap > 0 else 0


def filler_after(header: BatchHeader, *, timestamp: int) -> bytes | None:
    """Return the control batch that must follow a batch with more records than bytes; None for all others.

    Offsets are byte positions: without the filler the next batch's base would lie below this batch's last
    offset. The filler is the only batch whose base offset is not its position; its last offset is its last
    byte, and its last offset delta, above 0, distinguishes it from every other control batch.
    """
    size = filler_size(header)
    if size == 0:
        return None
    end = header.base_offset + header.size + size
    return control_batch_of_size(
        header.next_offset,
        size,
        timestamp=timestamp,
        last_offset_delta=end - 1 - header.next_offset,
        leader_epoch=header.partition_leader_epoch,
    )
