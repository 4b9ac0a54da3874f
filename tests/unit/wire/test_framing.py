"""Frames do not depend on how the network cuts the stream, and hostile lengths are refused early."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.wire.framing import FrameRefused, RequestFramer, parse_header, skip_tagged_fields

LIMIT = 1000
FRAMES = [b"eight by", b"a longer frame of bytes", bytes(range(200)), b"x" * 8]


def framed(frames: list[bytes]) -> bytes:
    return b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)


STREAM = framed(FRAMES)


def drain(framer: RequestFramer) -> list[bytes]:
    found = []
    while (frame := framer.next_frame()) is not None:
        found.append(bytes(frame))
    framer.release()
    return found


def feed(framer: RequestFramer, pieces: list[bytes]) -> list[bytes]:
    """Feed the pieces through one reused buffer, as the server does."""
    buffer = bytearray(LIMIT * 2)
    found = []
    for piece in pieces:
        buffer[: len(piece)] = piece
        framer.receive_data(memoryview(buffer)[: len(piece)])
        found += drain(framer)
        buffer[:] = b"\xff" * len(buffer)  # the next read overwrites it
    return found


@pytest.mark.parametrize("cut", range(len(STREAM) + 1))
def test_frames_do_not_depend_on_where_the_network_cuts(cut: int) -> None:
    assert feed(RequestFramer(LIMIT), [STREAM[:cut], STREAM[cut:]]) == FRAMES


def test_frames_arrive_byte_by_byte() -> None:
    assert feed(RequestFramer(LIMIT), [STREAM[i : i + 1] for i in range(len(STREAM))]) == FRAMES


@given(st.lists(st.integers(0, len(STREAM)), max_size=6))
def test_frames_do_not_depend_on_many_cuts(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[a:b] for a, b in itertools.pairwise(edges)]
    assert feed(RequestFramer(LIMIT), pieces) == FRAMES


def test_a_frame_that_lies_whole_in_the_buffer_is_not_copied() -> None:
    buffer = bytearray(STREAM)
    framer = RequestFramer(LIMIT)
    framer.receive_data(memoryview(buffer))
    frame = framer.next_frame()
    assert frame is not None
    frame[0] = ord("E")
    assert buffer[4:12] == b"Eight by"


def test_frames_left_for_later_survive_the_reuse_of_the_buffer() -> None:
    buffer = bytearray(STREAM)
    framer = RequestFramer(LIMIT)
    framer.receive_data(memoryview(buffer))
    first = framer.next_frame()
    assert first is not None
    assert bytes(first) == FRAMES[0]
    framer.release()
    buffer[:] = bytes(len(buffer))
    assert framer.waiting
    assert drain(framer) == FRAMES[1:]
    assert not framer.waiting


@pytest.mark.parametrize("size", [-1, 0, 7, LIMIT + 1, 0x7FFFFFFF, -(1 << 31)])
@pytest.mark.parametrize("cut", range(5))
def test_a_length_that_cannot_be_is_refused_before_anything_is_kept(size: int, cut: int) -> None:
    framer = RequestFramer(LIMIT)
    data = struct.pack(">i", size) + b"x" * 8
    framer.receive_data(memoryview(data[:cut]))
    if cut < 4:
        assert framer.next_frame() is None
        framer.release()
        framer.receive_data(memoryview(data[cut:]))
    with pytest.raises(FrameRefused, match=f"a frame of {size} bytes"):
        framer.next_frame()


def test_a_frame_of_exactly_the_limit_passes() -> None:
    frame = bytes(LIMIT)
    assert feed(RequestFramer(LIMIT), [framed([frame])[:100], framed([frame])[100:]]) == [frame]


@pytest.mark.parametrize(
    ("client_id", "body_at"), [(b"\xff\xff", 10), (b"\x00\x00", 10), (b"\x00\x03abc", 13), (b"", 8)]
)
def test_the_header_is_parsed_whatever_the_client_calls_itself(client_id: bytes, body_at: int) -> None:
    frame = memoryview(struct.pack(">hhi", 3, 8, 42) + client_id + (b"body" if client_id else b""))
    assert parse_header(frame) == (3, 8, 42, body_at)


def test_a_client_id_longer_than_the_frame_leaves_an_empty_body() -> None:
    frame = memoryview(struct.pack(">hhih", 3, 8, 42, 500) + b"abc")
    *_, body = parse_header(frame)
    assert bytes(frame[body:]) == b""


def test_tagged_fields_are_skipped() -> None:
    frame = memoryview(b"\x02\x00\x03abc\x81\x01\x01xBODY")
    assert bytes(frame[skip_tagged_fields(frame, 0) :]) == b"BODY"
    assert skip_tagged_fields(memoryview(b"\x00BODY"), 0) == 1


@given(st.binary(max_size=40))
def test_malformed_tagged_fields_end_within_the_frame(data: bytes) -> None:
    assert 0 <= skip_tagged_fields(memoryview(data), 0) <= len(data)
