"""The records inside a batch: reading them one by one, and building a batch of messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from millrace.errors import CorruptMessage
from millrace.records import header as layout
from millrace.records.compression import MAX_PLAIN_BYTES, Buffer, Codec, compress, decompress
from millrace.records.header import BatchHeader


@dataclass(frozen=True, slots=True)
class Record:
    """One message: `offset` and `timestamp` (ms) are absolute."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def read_varint(data: Buffer, position: int) -> tuple[int, int]:
    """Return a zigzag varint and the position after it."""
    byte = data[position]
    if byte < 0x80:  # by far the most
        return (byte >> 1) ^ -(byte & 1), position + 1
    result, shift = byte & 0x7F, 7
    while True:
        position += 1
        byte = data[position]
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (result >> 1) ^ -(result & 1), position + 1
        shift += 7
        if shift > 63:
            raise CorruptMessage("a varint of more than 10 bytes")


def write_varint(out: bytearray, value: int) -> None:
    value = (value << 1) ^ (value >> 63)
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


def write_bytes(out: bytearray, value: bytes | None) -> None:
    """Append a length and the bytes; -1 for None."""
    write_varint(out, -1 if value is None else len(value))
    out += value or b""


def _read_bytes(data: Buffer, position: int) -> tuple[bytes | None, int]:
    size, position = read_varint(data, position)
    if size < 0:
        return None, position
    end = position + size
    if end > len(data):
        raise CorruptMessage("a record's field reaches past its batch")
    return bytes(data[position:end]), end


def iter_records(header: BatchHeader, batch: Buffer, limit: int = MAX_PLAIN_BYTES) -> Iterator[Record]:
    """Yield every record of a whole batch, in order.

    Raise CorruptMessage when the framing is broken, or the records are larger than `limit` bytes.
    """
    data = decompress(header.codec, memoryview(batch)[layout.HEADER_BYTES :], limit)
    position = 0
    try:
        for _ in range(header.records_count):
            size, start = read_varint(data, position)
            record, end = _read_record(header, data, start)
            if end != start + size:
                raise CorruptMessage(f"the batch at offset {header.base_offset} has a record of wrong length")
            yield record
            position = end
    except IndexError as error:
        raise CorruptMessage(f"the batch at offset {header.base_offset} ends inside a record") from error
    if position != len(data):
        raise CorruptMessage(f"the batch at offset {header.base_offset} has bytes after its last record")


def _read_record(header: BatchHeader, data: Buffer, position: int) -> tuple[Record, int]:
    timestamp_delta, position = read_varint(data, position + 1)  # skips the unused record attributes
    offset_delta, position = read_varint(data, position)
    key, position = _read_bytes(data, position)
    value, position = _read_bytes(data, position)
    count, position = read_varint(data, position)
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, position = _read_bytes(data, position)
        content, position = _read_bytes(data, position)
        # Names that are not UTF-8 are decoded as Java's consumers do: the rest of the record is readable.
        headers.append(((name or b"").decode(errors="replace"), content))
    # With the timestamp-type bit set, every record has the broker's append time, which is max_timestamp.
    fixed = header.attributes & layout.TIMESTAMP_TYPE_BIT
    timestamp = header.max_timestamp if fixed else header.base_timestamp + timestamp_delta
    return Record(header.base_offset + offset_delta, timestamp, key, value, tuple(headers)), position


@dataclass(frozen=True, slots=True)
class Message:
    """A record to be put into a batch, before it has an offset. `timestamp` is in ms."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


def build_batch(
    messages: Iterable[Message],
    *,
    codec: Codec = Codec.NONE,
    base_offset: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    attributes: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """Return one whole batch of the messages (at least one), CRC included."""
    messages = list(messages)
    body = bytearray()
    for delta, message in enumerate(messages):
        record = bytearray(b"\0")
        write_varint(record, message.timestamp - messages[0].timestamp)
        write_varint(record, delta)
        write_bytes(record, message.key)
        write_bytes(record, message.value)
        write_varint(record, len(message.headers))
        for name, content in message.headers:
            write_bytes(record, name.encode())
            write_bytes(record, content)
        write_varint(body, len(record))
        body += record
    return seal(
        compress(codec, body),
        base_offset=base_offset,
        attributes=attributes | codec,
        last_offset_delta=len(messages) - 1,
        base_timestamp=messages[0].timestamp,
        max_timestamp=max(message.timestamp for message in messages),
        producer=(producer_id, producer_epoch, base_sequence),
        records_count=len(messages),
        leader_epoch=leader_epoch,
    )


def seal(
    records: Buffer,
    *,
    base_offset: int,
    attributes: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    producer: tuple[int, int, int] = (-1, -1, -1),
    records_count: int = 1,
    leader_epoch: int = -1,
) -> bytes:
    """Return one batch of records that are already compressed, with its length and CRC computed."""
    length = layout.HEADER_BYTES + len(records) - layout.LENGTH_OVERHEAD
    stamped = (base_offset, length, leader_epoch, layout.MAGIC, 0)
    stated = (attributes, last_offset_delta, base_timestamp, max_timestamp, *producer, records_count)
    batch = bytearray(layout.HEADER.pack(*stamped, *stated) + records)
    layout.CRC.pack_into(batch, layout.CRC_AT, layout.batch_crc(batch))
    return bytes(batch)
