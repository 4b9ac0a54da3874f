"""Frames do not depend on how the network cuts the stream, and hostile lengths are refused early."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.wire.framing import FrameBuffers, FrameRefused, RequestFramer, parse_header, skip_tagged_fields

LIMIT = 1000
FRAMES = [b"eight by", b"a longer frame of bytes", bytes(range(200)), b"x" * 8]


def new_framer() -> RequestFramer:
    return RequestFramer(LIMIT, FrameBuffers())


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
    assert feed(new_framer(), [STREAM[:cut], STREAM[cut:]]) == FRAMES


def test_frames_arrive_byte_by_byte() -> None:
    assert feed(new_framer(), [STREAM[i : i + 1] for i in range(len(STREAM))]) == FRAMES


@given(st.lists(st.integers(0, len(STREAM)), max_size=6))
def test_frames_do_not_depend_on_many_cuts(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[a:b] for a, b in itertools.pairwise(edges)]
    assert feed(new_framer(), pieces) == FRAMES


def test_a_frame_that_lies_whole_in_the_buffer_is_not_copied() -> None:
    buffer = bytearray(STREAM)
    framer = new_framer()
    framer.receive_data(memoryview(buffer))
    frame = framer.next_frame()
    assert frame is not None
    frame[0] = ord("E")
    assert buffer[4:12] == b"Eight by"


def test_frames_left_for_later_survive_the_reuse_of_the_buffer() -> None:
    buffer = bytearray(STREAM)
    framer = new_framer()
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
    framer = new_framer()
    data = struct.pack(">i", size) + b"x" * 8
    framer.receive_data(memoryview(data[:cut]))
    if cut < 4:
        assert framer.next_frame() is None
        framer.release()
        framer.receive_data(memoryview(data[cut:]))
    with pytest.raises(FrameRefused, match=f"a frame of {size} bytes"):
        framer.next_frame()


LARGE = [bytes([n]) * size for n, size in enumerate([70_000, 10, 200_000, 65_532, 65_531, 300_000, 90_000])]


@settings(deadline=None)  # a busy machine is no failure
@given(st.lists(st.integers(1, 150_000), max_size=12).map(lambda sizes: [*sizes, 9_999]))
def test_large_frames_do_not_depend_on_how_much_each_read_brings(sizes: list[int]) -> None:
    stream, shared, buffers = memoryview(framed(LARGE)), bytearray(100_000), FrameBuffers()
    framer = RequestFramer(1 << 20, buffers)
    found: list[bytes] = []
    position = 0
    for size in itertools.cycle(sizes):
        room = framer.room
        target = memoryview(shared) if room is None else room
        count = min(size, len(target), len(stream) - position)
        target[:count] = stream[position : position + count]
        position += count
        if room is None:
            framer.receive_data(target[:count])
        else:
            framer.received(count)
        frames = []
        while (frame := framer.next_frame()) is not None:
            frames.append(frame)
        framer.release()
        assert framer.held <= 4 * position + (64 << 10)
        found += map(bytes, frames)  # at the end of the turn each is still there
        buffers.end_of_turn()
        shared[:] = b"\xff" * len(shared)
        if position == len(stream):
            break
    assert found == LARGE
    assert framer.held == 0


def test_the_rest_of_a_large_frame_is_received_in_place_into_memory_that_is_used_again() -> None:
    buffers = FrameBuffers()
    framer = RequestFramer(1 << 20, buffers)
    places = []
    for _ in range(2):
        framer.receive_data(memoryview(bytearray(framed([bytes(100_000)])[:30_000])))
        assert framer.next_frame() is None
        room = framer.room
        assert room is not None
        assert len(room) == 100_004 - 30_000
        framer.received(len(room))
        frame = framer.next_frame()
        assert frame is not None
        places.append(id(frame.obj))
        del frame, room
        buffers.end_of_turn()
    assert places[0] == places[1]


@pytest.mark.parametrize("megabytes", [1, 8, 90])
def test_a_length_alone_takes_no_memory(megabytes: int) -> None:
    framer = RequestFramer(100 << 20, FrameBuffers())
    framer.receive_data(memoryview(struct.pack(">i", megabytes << 20) + b"x" * 100))
    assert framer.next_frame() is None
    assert framer.room is None
    framer.release()
    assert framer.held == 104


def test_a_frame_of_exactly_the_limit_passes() -> None:
    frame = bytes(LIMIT)
    assert feed(new_framer(), [framed([frame])[:100], framed([frame])[100:]]) == [frame]


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


def test_a_header_of_very_many_tagged_fields_is_not_walked_through() -> None:
    tagged = b"\1\0"
    assert skip_tagged_fields(memoryview(bytes([100]) + tagged * 100 + b"BODY"), 0) == 201
    data = memoryview(bytes([101]) + tagged * 101 + b"BODY")
    assert skip_tagged_fields(data, 0) == len(data)
