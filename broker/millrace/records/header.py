"""The header of a record batch, and the checks of a batch.

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

The CRC leaves out the first 21 bytes, so the base offset can be stamped without computing it again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from millrace.errors import CorruptMessage, InvalidRecord
from millrace.records.compression import Buffer, Codec
from millrace.records.content import holds_records

try:
    from crc32c import crc32c as crc32c  # for other modules, too
except ImportError:  # no wheel for this machine: crcmod gives the same result, 60 times slower
    from crcmod.predefined import mkPredefinedCrcFun

    crc32c = mkPredefinedCrcFun("crc-32c")

HEADER = struct.Struct(">qiibIhiqqqhii")
# For many batches, a BatchHeader of each would cost too much. These layouts read or write some of its fields:
STAMP = struct.Struct(">qii")  # base_offset, batch_length, partition_leader_epoch
OFFSETS = struct.Struct(">qi11xi")  # base_offset, batch_length, last_offset_delta
YOUNGEST = struct.Struct(">qi4xb4xh12xq")  # base_offset, batch_length, magic, attributes, max_timestamp
STAGED = struct.Struct(">8xi11xi8xqqhii")
# batch_length, last_offset_delta, max_timestamp, producer_id, producer_epoch, base_sequence, records_count
CHECKED = struct.Struct(">qi4xbIhi30xi")
# base_offset, batch_length, magic, crc, attributes, last_offset_delta, records_count
CRC = struct.Struct(">I")

HEADER_BYTES = HEADER.size
LENGTH_OVERHEAD = 12
"""Bytes before and in `batch_length`: a batch's size is batch_length + 12."""
CRC_AT = 17
CRC_START = 21
MAGIC = 2

CODEC_MASK = 0x07
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20


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
        """Return the header that starts at `position`, or None when fewer than 61 bytes are there."""
        if len(buffer) - position < HEADER_BYTES:
            return None
        return tuple.__new__(cls, HEADER.unpack_from(buffer, position))  # half the time of cls(*...)

    @classmethod
    def of(cls, batch: Buffer) -> BatchHeader:
        """Return the header of a batch that is known to be whole."""
        return tuple.__new__(cls, HEADER.unpack_from(batch))

    @property
    def size(self) -> int:
        return self.batch_length + LENGTH_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def codec(self) -> Codec:
        try:
            return Codec(self.attributes & CODEC_MASK)
        except ValueError:
            raise CorruptMessage(f"unknown codec {self.attributes & CODEC_MASK}") from None


def batch_crc(batch: Buffer) -> int:
    """Return the CRC-32C of the bytes of a whole batch that its `crc` field covers."""
    return int(crc32c(memoryview(batch)[CRC_START:]))


def split_batches(data: Buffer) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield whole batches in a fetch response, in order; an unfinished batch at the end is left out.

    Raise CorruptMessage for an impossible length or magic, or a wrong CRC.
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
    """Check a batch from a producer and return its header.

    Raise CorruptMessage (length, magic, CRC) or InvalidRecord (counts, records, control or transactional
    bit). A forged count would take disk space for that number of records: offsets are byte positions, and a
    filler covers the missing bytes. Compressed records are not examined. `scan` of `records.runs` has the
    same rules for batches that arrive in runs.
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
    uncompressed = not header.attributes & CODEC_MASK
    if uncompressed and not holds_records(memoryview(batch)[HEADER_BYTES:], header.records_count):
        raise InvalidRecord(
            f"a batch does not hold the {header.records_count} records, numbered from 0, that it states"
        )
    if header.attributes & (CONTROL_BIT | TRANSACTIONAL_BIT):
        raise InvalidRecord("control and transactional batches are not taken from producers")
    if header.attributes & CODEC_MASK > Codec.ZSTD:
        raise InvalidRecord(f"unknown codec {header.attributes & CODEC_MASK}")
    return header
