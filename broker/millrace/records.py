"""Kafka's record batch, format 2: what a log entry is, in bytes.

Knows the header, the CRC and the framing of records, and how one batch must follow another.
Does not know files, sockets, topics or schemas.

    offset  size  field                       stamped by
         0     8  base_offset                 the broker: the batch's own byte position in its log
         8     4  batch_length                bytes after this field, i.e. the whole batch less 12
        12     4  partition_leader_epoch      the broker
        16     1  magic                       always 2
        17     4  crc                         CRC-32C of everything from `attributes` on
        21     2  attributes                  bits 0-2 codec, 3 timestamp type, 4 transactional, 5 control
        23     4  last_offset_delta           records - 1
        27     8  base_timestamp              of the first record, ms
        35     8  max_timestamp               ms
        43     8  producer_id                 -1: not idempotent
        51     2  producer_epoch
        53     4  base_sequence
        57     4  records_count
        61        records, compressed as one block

The CRC leaves out the first 21 bytes, so stamping the base offset in place is free.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from millrace.compression import Buffer, Codec, compress, decompress
from millrace.errors import CorruptMessage, InvalidRecord

try:
    from crc32c import crc32c
except ImportError:  # no wheel for this machine: crcmod is 60 times slower and just as right
    from crcmod.predefined import mkPredefinedCrcFun

    crc32c = mkPredefinedCrcFun("crc-32c")

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
LENGTH_OVERHEAD = 12
"""Bytes before and in `batch_length`: a batch's size is batch_length + 12."""
CRC_START = 21
MAGIC = 2
MIN_BATCH_BYTES = HEADER_BYTES + 7

CODEC_MASK = 0x07
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20


HeaderFields: TypeAlias = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]
"""A header as `HEADER` unpacks it: where many batches pass, making a BatchHeader of each costs too much."""


class BatchHeader(NamedTuple):
    """The 61 bytes before a batch's records, as values."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @classmethod
    def parse(cls, buffer: Buffer, position: int = 0) -> BatchHeader | None:
        """The header that starts at `position`, or None when fewer than 61 bytes are there."""
        if len(buffer) - position < HEADER_BYTES:
            return None
        return cls(*HEADER.unpack_from(buffer, position))

    @property
    def size(self) -> int:
        """Bytes of the whole batch, header included."""
        return self.batch_length + LENGTH_OVERHEAD

    @property
    def last_offset(self) -> int:
        """Offset of the last record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Offset after the last record: what a consumer asks for next."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def is_control(self) -> bool:
        """True for a marker that clients skip: a filler or a position batch."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def is_transactional(self) -> bool:
        """True for a batch written in a transaction."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def codec(self) -> Codec:
        """How the records are compressed; CorruptMessage for a number no codec has."""
        try:
            return Codec(self.attributes & CODEC_MASK)
        except ValueError:
            raise CorruptMessage(f"unknown codec {self.attributes & CODEC_MASK}") from None


@dataclass(frozen=True, slots=True)
class Record:
    """One message: `offset` and `timestamp` (ms) are absolute."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a reader stands in a partition: the next offset it wants, and where the next batch must begin.

    `next_base` is the byte position after the last batch read, or None when no batch was read yet. It is
    what tells a gap from the ordinary jump between a batch's last offset and the next batch.
    """

    next_offset: int
    next_base: int | None = None

    def follows(self, header: BatchHeader) -> bool:
        """True if no record can lie between this cursor and the batch.

        The batch covers the wanted offset, begins at it (consecutive offsets, as in Apache Kafka), or
        begins where the last one ended in bytes (byte-position offsets, as in Millrace).
        """
        return header.base_offset <= self.next_offset or header.base_offset == self.next_base

    def after(self, header: BatchHeader) -> Cursor:
        """The cursor behind the batch."""
        if header.is_control and header.last_offset_delta > 0:
            # A filler stands below its base offset and says by its last offset where it ends.
            return Cursor(header.next_offset, header.next_offset)
        # Behind the filler, if one must follow: a fetch from the next offset leaves it out, because that
        # offset is a byte position inside it.
        return Cursor(header.next_offset, header.base_offset + header.size + filler_size(header))


def batch_crc(batch: Buffer) -> int:
    """CRC-32C of a whole batch, over what its `crc` field covers."""
    return int(crc32c(memoryview(batch)[CRC_START:]))


def split_batches(data: Buffer) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Whole batches in a fetch response, in order; an unfinished one at the end is left out.

    Raises CorruptMessage for a length or magic that cannot be, or a CRC that does not fit.
    """
    view, position = memoryview(data), 0
    while (header := BatchHeader.parse(view, position)) is not None:
        if header.magic != MAGIC or header.size < HEADER_BYTES:
            raise CorruptMessage(f"no batch of format 2 at offset {header.base_offset}: magic {header.magic}")
        if position + header.size > len(view):
            return
        batch = view[position : position + header.size]
        if batch_crc(batch) != header.crc:
            raise CorruptMessage(f"the batch at offset {header.base_offset} fails its CRC")
        yield header, batch
        position += header.size


def check_produced(batch: Buffer) -> BatchHeader:
    """The header of a batch a producer sent as a whole, or the reason to refuse it.

    Raises CorruptMessage (length, magic, CRC) or InvalidRecord (counts, control or transactional bit): a
    forged count would blow up the offset space, because offsets are byte positions.
    """
    header = BatchHeader.parse(batch)
    if header is None or header.size != len(batch):
        raise CorruptMessage("a produced batch is not as long as it states; send one batch per partition")
    if header.magic != MAGIC:
        raise CorruptMessage(f"record format {header.magic} is not supported, only 2")
    if batch_crc(batch) != header.crc:
        raise CorruptMessage("a produced batch fails its CRC-32C")
    if not header.records_count == header.last_offset_delta + 1 > 0:
        raise InvalidRecord(
            f"a batch of {header.records_count} records states last offset delta {header.last_offset_delta}"
        )
    if header.attributes & (CONTROL_BIT | TRANSACTIONAL_BIT):
        raise InvalidRecord("control and transactional batches are not taken from producers")
    if header.attributes & CODEC_MASK > Codec.ZSTD:
        raise InvalidRecord(f"unknown codec {header.attributes & CODEC_MASK}")
    return header


def plain_batch(view: memoryview, start: int, size: int) -> tuple[memoryview, HeaderFields] | None:
    """The batch in `size` bytes of a view and its header, if `check_produced` takes it; None: ask that why.

    For the many: it says yes to the usual batches only, in a third of the time.
    """
    if size < HEADER_BYTES or start + size > len(view):
        return None
    fields = HEADER.unpack_from(view, start)
    _, length, _, magic, crc, attributes, last_offset_delta, _, _, _, _, _, records_count = fields
    batch = view[start : start + size]
    if (
        length + LENGTH_OVERHEAD == size
        and magic == MAGIC
        and 0 < records_count == last_offset_delta + 1
        and 0 <= attributes <= Codec.ZSTD
        and crc32c(batch[CRC_START:]) == crc
    ):
        return batch, fields
    return None


def read_varint(data: Buffer, position: int) -> tuple[int, int]:
    """A zigzag varint and the position behind it."""
    result = shift = 0
    while True:
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (result >> 1) ^ -(result & 1), position
        shift += 7
        if shift > 63:
            raise CorruptMessage("a varint of more than 10 bytes")


def _write_varint(out: bytearray, value: int) -> None:
    value = (value << 1) ^ (value >> 63)
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


def _read_bytes(data: Buffer, position: int) -> tuple[bytes | None, int]:
    size, position = read_varint(data, position)
    if size < 0:
        return None, position
    end = position + size
    if end > len(data):
        raise CorruptMessage("a record's field reaches past its batch")
    return bytes(data[position:end]), end


def iter_records(header: BatchHeader, batch: Buffer) -> Iterator[Record]:
    """Every record of a whole batch, in order; CorruptMessage when the framing is broken."""
    data = decompress(header.codec, memoryview(batch)[HEADER_BYTES:])
    position = 0
    try:
        for _ in range(header.records_count):
            size, start = read_varint(data, position)
            record, end = _read_record(header, data, start)
            if end != start + size:
                raise CorruptMessage(f"the batch at offset {header.base_offset} has a record of wrong length")
            yield record
            position = end
    except (IndexError, UnicodeDecodeError) as error:
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
        headers.append(((name or b"").decode(), content))
    # With the timestamp-type bit set the broker's append time, in max_timestamp, holds for every record.
    fixed = header.attributes & TIMESTAMP_TYPE_BIT
    timestamp = header.max_timestamp if fixed else header.base_timestamp + timestamp_delta
    return Record(header.base_offset + offset_delta, timestamp, key, value, tuple(headers)), position


def _write_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        _write_varint(out, -1)
    else:
        _write_varint(out, len(value))
        out += value


@dataclass(frozen=True, slots=True)
class Message:
    """What goes into a batch: one record before it has an offset. `timestamp` in ms."""

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
) -> bytes:
    """One whole batch of the messages (at least one), CRC included."""
    messages = list(messages)
    body = bytearray()
    for delta, message in enumerate(messages):
        record = bytearray(b"\0")
        _write_varint(record, message.timestamp - messages[0].timestamp)
        _write_varint(record, delta)
        _write_bytes(record, message.key)
        _write_bytes(record, message.value)
        _write_varint(record, len(message.headers))
        for name, content in message.headers:
            _write_bytes(record, name.encode())
            _write_bytes(record, content)
        _write_varint(body, len(record))
        body += record
    packed = compress(codec, body)
    return _seal(
        BatchHeader(
            base_offset, HEADER_BYTES + len(packed) - LENGTH_OVERHEAD, -1, MAGIC, 0, attributes | codec,
            len(messages) - 1, messages[0].timestamp, max(message.timestamp for message in messages),
            producer_id, producer_epoch, base_sequence, len(messages),
        ),
        packed,
    )  # fmt: skip


def _seal(header: BatchHeader, packed: Buffer) -> bytes:
    """Header and records as one batch, its CRC computed."""
    batch = bytearray(HEADER.pack(*header) + packed)
    struct.pack_into(">I", batch, 17, batch_crc(batch))
    return bytes(batch)


# A control batch is one record whose key says what it marks: version 0, type 1, "commit". It is the one
# type every client skips without looking at the value (measured), so all of ours carry it.
CONTROL_KEY = b"\x00\x00\x00\x01"


def control_batch(base_offset: int, value: bytes, *, timestamp: int) -> bytes:
    """A control batch with `value`: clients skip it, Millrace may read it."""
    record = bytearray(b"\0\0\0")
    _write_bytes(record, CONTROL_KEY)
    _write_bytes(record, value)
    record += b"\0"
    body = bytearray()
    _write_varint(body, len(record))
    return _single_record_batch(
        body + record, base_offset=base_offset, timestamp=timestamp, last_offset_delta=0
    )


def _single_record_batch(body: Buffer, *, base_offset: int, timestamp: int, last_offset_delta: int) -> bytes:
    header = BatchHeader(
        base_offset, HEADER_BYTES + len(body) - LENGTH_OVERHEAD, -1, MAGIC, 0, CONTROL_BIT,
        last_offset_delta, timestamp, timestamp, -1, -1, -1, 1,
    )  # fmt: skip
    return _seal(header, body)


MIN_CONTROL_BYTES = len(control_batch(0, b"", timestamp=0))


def control_batch_of_size(
    base_offset: int, size: int, *, timestamp: int, last_offset_delta: int = 0
) -> bytes:
    """A control batch of exactly `size` bytes (at least MIN_CONTROL_BYTES), padded with zeros."""
    room = size - MIN_CONTROL_BYTES
    if room < 0:
        raise ValueError(f"a control batch has at least {MIN_CONTROL_BYTES} bytes, not {size}")
    # Two lengths in front of the padding take 1 to 5 bytes each. Written minimally they would make some
    # sizes unreachable (126, for one), so both get the width that the larger needs; readers do not mind.
    width = next(w for w in range(1, 6) if room + 16 < 1 << (7 * w - 1))
    if room < 2 * (width - 1):
        width = 1
    record = bytearray(b"\0\0\0")
    _write_bytes(record, CONTROL_KEY)
    padding = room - 2 * (width - 1)
    record += _wide_varint(padding, width) + bytes(padding) + b"\0"
    body = _wide_varint(len(record), width) + record
    return _single_record_batch(
        body, base_offset=base_offset, timestamp=timestamp, last_offset_delta=last_offset_delta
    )


def _wide_varint(value: int, width: int) -> bytes:
    """The zigzag varint of a small positive value in exactly `width` bytes."""
    groups = [(value << 1) >> (7 * index) & 0x7F for index in range(width)]
    return bytes([group | 0x80 for group in groups[:-1]] + groups[-1:])


def filler_size(header: BatchHeader) -> int:
    """Bytes of the filler that must follow the batch in a log of byte-position offsets; 0 for most."""
    overlap = header.last_offset_delta + 1 - header.size
    # One more than needed, so that the filler's last offset delta is never 0.
    return max(MIN_CONTROL_BYTES, overlap + 2) if overlap > 0 else 0


def filler_after(header: BatchHeader, *, timestamp: int) -> bytes | None:
    """The control batch that must follow a batch with more records than bytes; None for all others.

    Offsets are byte positions: without it the next batch's base would lie below this one's last offset.
    The filler is the one batch whose base offset is not its position; its last offset is its last byte, and
    its last offset delta, above 0, tells it from every other control batch.
    """
    size = filler_size(header)
    if size == 0:
        return None
    end = header.base_offset + header.size + size
    return control_batch_of_size(
        header.next_offset, size, timestamp=timestamp, last_offset_delta=end - 1 - header.next_offset
    )
