"""Codecs of record batches: every codec round trips, damage and bombs are refused in bounded memory."""

from __future__ import annotations

import gzip
import os
import random
import resource
import zlib

import lz4.frame  # type: ignore[import-untyped]
import pytest
import zstandard

from millrace.errors import CorruptMessage
from millrace.records import compression
from millrace.records.compression import Codec, compress, decompress

PACKED = [codec for codec in Codec if codec is not Codec.NONE]
RANDOM, ZEROS, WORDS = os.urandom(300_001), bytes(300_001), b"some words " * 30_000


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize(
    "data", [b"", b"x", RANDOM, ZEROS, WORDS], ids=["empty", "x", "random", "zeros", "words"]
)
def test_what_was_compressed_comes_back(codec: Codec, data: bytes) -> None:
    assert bytes(decompress(codec, compress(codec, data))) == data


@pytest.mark.parametrize("codec", PACKED)
@pytest.mark.parametrize("data", [RANDOM, ZEROS, WORDS], ids=["random", "zeros", "words"])
def test_a_block_that_grows_past_the_limit_is_refused(codec: Codec, data: bytes) -> None:
    with pytest.raises(CorruptMessage, match=r"limit 1000\b"):
        decompress(codec, compress(codec, data), limit=1000)


@pytest.mark.parametrize("codec", PACKED)
@pytest.mark.parametrize("data", [RANDOM, ZEROS, WORDS], ids=["random", "zeros", "words"])
def test_a_block_well_below_the_limit_is_taken(codec: Codec, data: bytes) -> None:
    # The bound is by blocks: lz4's largest is 4 MiB.
    assert bytes(decompress(codec, compress(codec, data), limit=len(data) + (4 << 20))) == data


def test_a_gzip_block_of_exactly_the_limit_is_taken_whatever_its_members() -> None:
    block = gzip.compress(WORDS) + gzip.compress(ZEROS)
    plain = WORDS + ZEROS
    assert bytes(decompress(Codec.GZIP, block, limit=len(plain))) == plain
    with pytest.raises(CorruptMessage, match="limit"):
        decompress(Codec.GZIP, block, limit=len(plain) - 1)
    with pytest.raises(CorruptMessage, match="unfinished"):
        decompress(Codec.GZIP, block[:-9], limit=len(plain))


@pytest.mark.parametrize(
    "block",
    [
        zstandard.ZstdCompressor(level=1).compress(WORDS),
        zstandard.ZstdCompressor(level=3, write_checksum=True, write_content_size=False).compress(WORDS),
        zstandard.compress(WORDS[:200_000]) + zstandard.compress(WORDS[200_000:]),
        b"\x50\x2a\x4d\x18\x03\0\0\0abc" + zstandard.ZstdCompressor().compress(WORDS),
    ],
    ids=["plain", "checksum without size", "two frames", "skippable frame first"],
)
def test_zstd_frames_of_another_writer_are_read_and_bounded(block: bytes) -> None:
    assert bytes(decompress(Codec.ZSTD, block)) == WORDS
    assert len(WORDS) <= compression.zstd_bound(block) <= len(WORDS) + 2 * (128 << 10)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"block_size": lz4.frame.BLOCKSIZE_MAX4MB},
        {"block_checksum": True, "content_checksum": True, "store_size": True},
        {"block_linked": False},
    ],
    ids=["plain", "4 MiB blocks", "checksums and size", "independent blocks"],
)
def test_lz4_frames_of_another_writer_are_read_and_bounded(options: dict[str, object]) -> None:
    block = lz4.frame.compress(RANDOM + WORDS, **options)
    assert bytes(decompress(Codec.LZ4, block)) == RANDOM + WORDS
    assert compression.lz4_bound(block) >= len(RANDOM + WORDS)


def test_zstd_is_written_where_there_is_room_for_it() -> None:
    room = memoryview(bytearray(len(WORDS) + (256 << 10)))
    plain = decompress(Codec.ZSTD, compress(Codec.ZSTD, WORDS), room=room)
    assert isinstance(plain, memoryview)
    assert plain.obj is room.obj
    assert plain == room[: len(WORDS)] == WORDS
    small = decompress(Codec.ZSTD, compress(Codec.ZSTD, WORDS), room=room[:100])
    assert isinstance(small, memoryview)
    assert small.obj is not room.obj
    assert small == WORDS


def test_a_bomb_is_refused_without_the_memory_it_asks_for() -> None:
    # 2 GiB out of 64 KiB: a zstd frame of blocks that repeat one byte.
    block = b"\x28\xb5\x2f\xfd\x00\x58" + (((128 << 10) << 3 | 2).to_bytes(3, "little") + b"x") * (16 << 10)
    block += b"\x01\0\0"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CorruptMessage, match="limit 1073741824"):
        decompress(Codec.ZSTD, block)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


@pytest.mark.parametrize("codec", PACKED)
def test_a_damaged_block_raises_corrupt_message_and_nothing_else(codec: Codec) -> None:
    plain = WORDS[:50_000] + RANDOM[:50_000]
    dice, block, refused = random.Random(7), compress(codec, plain), 0
    for _ in range(300):
        damaged = bytearray(block)
        for _ in range(dice.randint(1, 3)):
            damaged[dice.randrange(dice.choice((32, len(block))))] = dice.randrange(256)
        del damaged[dice.choice((len(block), dice.randrange(len(block)))) :]
        try:
            found = decompress(codec, bytes(damaged), limit=8 << 20)
        except CorruptMessage:
            refused += 1
        else:  # Snappy and zstd blocks have no checksum of their own: the batch's CRC is before them
            assert codec in (Codec.SNAPPY, Codec.ZSTD) or bytes(found) == plain
    assert refused > 150


def test_a_deflate_stream_cannot_grow_faster_than_the_ratio_relied_on() -> None:
    most = zlib.compress(bytes(64 << 20), 9)
    assert (64 << 20) / len(most) < compression.GZIP_RATIO
