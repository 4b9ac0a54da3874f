"""The five codecs of a record batch, through cramjam.

Bytes in, bytes out; a malformed block raises CorruptMessage.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TypeAlias

import cramjam

from millrace.errors import CorruptMessage

Buffer: TypeAlias = "bytes | bytearray | memoryview"


class Codec(IntEnum):
    """Compression of a batch's records, by the number in its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_XERIAL_MAGIC = b"\x82SNAPPY\x00"


def compress(codec: Codec, data: Buffer) -> bytes:
    """`data` compressed as Kafka producers do it."""
    if codec is Codec.NONE:
        return bytes(data)
    if codec is Codec.GZIP:
        return bytes(cramjam.gzip.compress(data))
    if codec is Codec.SNAPPY:
        return bytes(cramjam.snappy.compress_raw(data))
    if codec is Codec.LZ4:
        return bytes(cramjam.lz4.compress(data))
    return bytes(cramjam.zstd.compress(data))


def decompress(codec: Codec, data: Buffer) -> Buffer:
    """The records of a batch, uncompressed; CorruptMessage when the block is malformed."""
    if codec is Codec.NONE:
        return data
    try:
        if codec is Codec.GZIP:
            return memoryview(cramjam.gzip.decompress(data))
        if codec is Codec.SNAPPY:
            return _decompress_snappy(data)
        if codec is Codec.LZ4:
            return memoryview(cramjam.lz4.decompress(data))
        return memoryview(cramjam.zstd.decompress(data))
    except (cramjam.DecompressionError, struct.error, ValueError) as error:
        raise CorruptMessage(f"malformed {codec.name.lower()} block: {error}") from error


def _decompress_snappy(data: Buffer) -> Buffer:
    """Raw snappy, or the framing of xerial's Java library (16-byte header, length-prefixed blocks)."""
    view = memoryview(data)
    if bytes(view[:8]) != _XERIAL_MAGIC:
        return memoryview(cramjam.snappy.decompress_raw(view))
    plain, position = bytearray(), 16
    while position < len(view):
        (size,) = struct.unpack_from(">i", view, position)
        if not 0 <= size <= len(view) - position - 4:
            raise ValueError(f"block of {size} bytes")
        plain += memoryview(cramjam.snappy.decompress_raw(view[position + 4 : position + 4 + size]))
        position += 4 + size
    return plain
