"""The five codecs of a record batch, through cramjam.

Bytes in, bytes out; a malformed block raises CorruptMessage, and so does a block that would exceed a limit.
The largest size of a block is read from its framing before it is decompressed: a few kilobytes of zstd can
expand to gigabytes, and cramjam would allocate them. The bound costs a look at each 128 KiB block's header.
"""

from __future__ import annotations

import struct
import zlib
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


MAX_PLAIN_BYTES = 1 << 30
"""Largest size of a batch's records uncompressed."""


def decompress(
    codec: Codec, data: Buffer, limit: int = MAX_PLAIN_BYTES, room: memoryview | None = None
) -> Buffer:
    """The records of a batch, uncompressed; CorruptMessage when malformed or larger than `limit` bytes.

    If zstd data surely fits into `room`, it is written to the front of `room`, and that part is returned:
    measured a third faster than memory of its own, which cramjam enlarges step by step.
    """
    if codec is Codec.NONE:
        return data
    try:
        if codec is Codec.GZIP:
            return _decompress_gzip(data, limit)
        if codec is Codec.SNAPPY:
            return _decompress_snappy(data, limit)
        if codec is Codec.LZ4:
            _check_size("lz4", lz4_bound(data), limit)
            return memoryview(cramjam.lz4.decompress(data))
        bound = zstd_bound(data)
        _check_size("zstd", bound, limit)
        if room is not None and bound <= len(room):
            return room[: cramjam.zstd.decompress_into(data, room)]
        return memoryview(cramjam.zstd.decompress(data))
    except (cramjam.DecompressionError, struct.error, zlib.error, IndexError, ValueError) as error:
        raise CorruptMessage(f"malformed {codec.name.lower()} block: {error}") from error


def _check_size(name: str, bound: int, limit: int) -> None:
    if bound > limit:
        raise CorruptMessage(f"a {name} block may grow to {bound} bytes, limit {limit}")


# Deflate copies at most 258 bytes per 2 bits, so a small enough block cannot reach the limit.
GZIP_RATIO = 1040
_GZIP_STEP = 16 << 20


def _decompress_gzip(data: Buffer, limit: int) -> Buffer:
    if len(data) * GZIP_RATIO <= limit:
        return memoryview(cramjam.gzip.decompress(data))
    plain, rest = bytearray(), bytes(data)
    while rest:  # a gzip stream may have several members
        member = zlib.decompressobj(wbits=31)
        while not member.eof:
            if not rest:
                raise ValueError("unfinished stream")
            plain += member.decompress(rest, _GZIP_STEP)
            _check_size("gzip", len(plain), limit)
            rest = member.unconsumed_tail
        rest = member.unused_data
    return plain


def _decompress_snappy(data: Buffer, limit: int) -> Buffer:
    """Raw snappy, or the framing of xerial's Java library (16-byte header, length-prefixed blocks)."""
    view = memoryview(data)
    if bytes(view[:8]) != _XERIAL_MAGIC:
        _check_size("snappy", cramjam.snappy.decompress_raw_len(view), limit)
        return memoryview(cramjam.snappy.decompress_raw(view))
    plain, position = bytearray(), 16
    while position < len(view):
        (size,) = struct.unpack_from(">i", view, position)
        if not 0 <= size <= len(view) - position - 4:
            raise ValueError(f"block of {size} bytes")
        block = view[position + 4 : position + 4 + size]
        _check_size("snappy", len(plain) + cramjam.snappy.decompress_raw_len(block), limit)
        plain += memoryview(cramjam.snappy.decompress_raw(block))
        position += 4 + size
    return plain


_LZ4_MAGIC = 0x184D2204
_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_BLOCK_BYTES = 128 << 10
"""Largest size of a zstd block uncompressed, by its specification."""


def _is_skippable(magic: int) -> bool:
    return magic & 0xFFFFFFF0 == 0x184D2A50


def lz4_bound(data: Buffer) -> int:
    """The most bytes that lz4 frames can decompress to."""
    position = bound = 0
    while position < len(data):
        (magic,) = struct.unpack_from("<I", data, position)
        if _is_skippable(magic):
            position += 8 + struct.unpack_from("<I", data, position + 4)[0]
            continue
        if magic != _LZ4_MAGIC:
            raise ValueError("not an lz4 frame")
        flags, descriptor = data[position + 4], data[position + 5]
        largest = 1 << (8 + 2 * (descriptor >> 4 & 7))  # 4..7 stand for 64 KiB to 4 MiB
        position += 7 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
        while size := struct.unpack_from("<I", data, position)[0]:
            stored = size & 0x7FFFFFFF
            bound += stored if size >> 31 else min(largest, stored * 255)
            position += 4 + stored + (4 if flags & 0x10 else 0)
        position += 4 + (4 if flags & 0x04 else 0)
    return bound


def zstd_bound(data: Buffer) -> int:
    """The most bytes that zstd frames can decompress to."""
    position = bound = 0
    while position < len(data):
        (magic,) = struct.unpack_from("<I", data, position)
        if _is_skippable(magic):
            position += 8 + struct.unpack_from("<I", data, position + 4)[0]
            continue
        if magic != _ZSTD_MAGIC:
            raise ValueError("not a zstd frame")
        flags = data[position + 4]
        single = flags >> 5 & 1
        content_size = (single, 2, 4, 8)[flags >> 6]
        position += 5 + (1 - single) + (0, 1, 2, 4)[flags & 3] + content_size
        last = 0
        while not last:
            header = int.from_bytes(data[position : position + 3], "little")
            last, kind, size = header & 1, header >> 1 & 3, header >> 3
            if position + 3 > len(data):
                raise ValueError("unfinished frame")
            position += 3 + (1 if kind == 1 else size)  # kind 1 is one byte repeated `size` times
            bound += _ZSTD_BLOCK_BYTES if kind == 2 else size
        position += 4 if flags & 4 else 0
    return bound
