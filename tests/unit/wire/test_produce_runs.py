"""`target_at` and `run_at` read of any stream what is read of each request in it by `decode_request` and
`check_produced`."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.errors import BrokerError
from millrace.records import HEADER_BYTES, Message, batch_crc, build_batch, check_produced
from millrace.records.compression import Codec
from millrace.records.runs import scan_in_python
from millrace.wire import produce
from millrace.wire.framing import parse_header, skip_tagged_fields
from millrace.wire.produce import MAX_COMMON_BYTES, ProduceRun, Target, decode_request, run_at, target_at

MAX_FRAME_BYTES = 700
MAX_BATCH_BYTES = 500
NO_BATCHES_HERE = "elsewhere"


def max_batch_bytes(topic: str, partition: int) -> int:
    return 0 if topic == NO_BATCHES_HERE or partition > 5 else MAX_BATCH_BYTES


def sealed(batch: bytearray) -> bytes:
    batch[17:21] = batch_crc(batch).to_bytes(4, "big")
    return bytes(batch)


def string(text: str | None) -> bytes:
    if text is None:
        return struct.pack(">h", -1)
    return struct.pack(">h", len(text.encode())) + text.encode()


def varint(number: int) -> bytes:
    return bytes([number]) if number < 0x80 else bytes([number & 0x7F | 0x80]) + varint(number >> 7)


def compact(text: str | None) -> bytes:
    return b"\0" if text is None else varint(len(text.encode()) + 1) + text.encode()


def request(
    batch: bytes,
    *,
    topic: str = "t",
    partition: int = 0,
    acks: int = 1,
    version: int = 7,
    client_id: str | None = "c",
    transaction: str | None = None,
    batches: int = 1,
    correlation_id: int = 1,
    trailing: bytes = b"",
    tags: bytes = b"\0",
) -> bytes:
    """One produce request with its length in front."""
    if version >= 9:
        frame = struct.pack(">hhi", 0, version, correlation_id) + string(client_id) + b"\0"
        frame += compact(transaction) + struct.pack(">hi", acks, 1000) + b"\2" + compact(topic)
        item = struct.pack(">i", partition) + varint(len(batch) + 1) + batch + tags
        frame += varint(batches + 1) + item * batches + b"\0\0" + trailing
        return struct.pack(">i", len(frame)) + frame
    frame = struct.pack(">hhi", 0, version, correlation_id) + string(client_id) + string(transaction)
    frame += struct.pack(">hii", acks, 1000, 1) + string(topic) + struct.pack(">i", batches)
    frame += (struct.pack(">ii", partition, len(batch)) + batch) * batches + trailing
    return struct.pack(">i", len(frame)) + frame


BATCHES = st.builds(
    lambda count, value, codec: build_batch([Message(1000, None, value)] * count, codec=codec),
    st.integers(1, 20),
    st.binary(max_size=40),
    st.sampled_from([Codec.NONE, Codec.NONE, Codec.ZSTD]),
)
FLIPPED = st.builds(
    lambda batch, place, bits, seal: _flipped(batch, place, bits, seal=seal),
    BATCHES,
    st.integers(0, HEADER_BYTES - 1),
    st.integers(1, 255),
    st.booleans(),
)


def _flipped(batch: bytes, place: int, bits: int, *, seal: bool) -> bytes:
    changed = bytearray(batch)
    changed[place] ^= bits
    return sealed(changed) if seal else bytes(changed)


REQUESTS = st.builds(
    request,
    st.one_of(BATCHES, BATCHES, BATCHES, FLIPPED, st.binary(max_size=80)),
    topic=st.sampled_from(["t", "t", "t", "β", "y" * 126, "z" * 127, "x" * 249, NO_BATCHES_HERE]),
    partition=st.sampled_from([0, 0, 0, 1, 9]),
    acks=st.sampled_from([1, 1, 1, 0, -1, 2]),
    version=st.sampled_from([7, 7, 7, 3, 8, 9, 12, 12, 12]),
    client_id=st.sampled_from(["c", "c", "c", "", None, "y" * 100, "y" * MAX_COMMON_BYTES]),
    transaction=st.sampled_from([None, None, None, "", "tx"]),
    batches=st.sampled_from([1, 1, 1, 0, 2]),
    correlation_id=st.integers(-(1 << 31), (1 << 31) - 1),
    trailing=st.sampled_from([b"", b"", b"", b"more"]),
    tags=st.sampled_from([b"\0", b"\0", b"\0", b"\1\0\1x"]),
)
STREAMS = st.lists(st.tuples(REQUESTS, st.integers(1, 4)), max_size=6).map(
    lambda runs: b"".join(each * times for each, times in runs)
)


@dataclass(frozen=True)
class Single:
    """A single request's target and options, read in the general way."""

    topic: str
    partition: int
    version: int
    acks: int
    correlation_id: int
    batch: bytes
    end: int


def general(data: memoryview, position: int) -> Single | None:
    """The request at `position`, if it is whole, allowed, and brings one good batch."""
    if len(data) - position < 12:
        return None
    (size,) = struct.unpack_from(">i", data, position)
    end = position + 4 + size
    if not 8 <= size <= MAX_FRAME_BYTES or end > len(data):
        return None
    frame = data[position + 4 : end]
    _, version, correlation_id, body = parse_header(frame)
    if version >= 9:
        body = skip_tagged_fields(frame, body)
    try:
        asked = decode_request(version, frame[body:])
        ((topic, partition, batch),) = asked.batches
        check_produced(batch)
    except (BrokerError, ValueError):
        return None
    if asked.transactional_id is not None or not -1 <= asked.acks <= 1 or len(asked.topics) != 1:
        return None
    if len(batch) > max_batch_bytes(topic, partition):
        return None
    return Single(topic, partition, version, asked.acks, correlation_id, bytes(batch), end)


def next_run(data: memoryview, position: int) -> tuple[Target, ProduceRun] | None:
    """Return the run that the broker serves; None: it reads the request there in the general way."""
    target = target_at(data, position)
    if target is None:
        return None
    largest = max_batch_bytes(target.topic, target.partition)
    run = run_at(data, position, target, largest, MAX_FRAME_BYTES)
    return (target, run) if run[1] else None


def check(data: bytes, position: int) -> tuple[list[int], int] | None:
    """The correlation ids of the run and its end, held against the other form of it and the general way for
    each of its requests."""
    view = memoryview(bytearray(data))
    found = next_run(view, position)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(produce, "scan", scan_in_python)
        assert next_run(view, position) == found
    if found is None:
        return None
    asked, (correlation_ids, batches, end) = found
    for correlation_id, batch in zip(correlation_ids, batches, strict=True):
        expected = general(view, position)
        assert expected is not None
        assert (asked.topic, asked.partition, asked.version, asked.acks) == (
            expected.topic,
            expected.partition,
            expected.version,
            expected.acks,
        )
        assert (correlation_id, bytes(batch)) == (expected.correlation_id, expected.batch)
        position = expected.end
    assert position == end
    return correlation_ids, end


@settings(deadline=None)
@given(STREAMS, st.data())
def test_a_stream_cut_anywhere_brings_the_same_batches_either_way(stream: bytes, data: st.DataObject) -> None:
    cut = stream[: data.draw(st.integers(0, len(stream)))]
    position = 0
    while position + 4 <= len(cut):
        run = check(cut, position)
        if run is not None:
            position = run[1]
        else:
            position += 4 + struct.unpack_from(">i", cut, position)[0]


@settings(deadline=None, max_examples=30)
@given(
    BATCHES.filter(lambda batch: len(batch) <= MAX_BATCH_BYTES),
    st.integers(1, 3),
    st.sampled_from([7, 9, 12]),
    st.sampled_from(["t", "y" * 126, "z" * 127]),
)
def test_usual_requests_are_read_as_one_run_wherever_the_stream_is_cut(
    batch: bytes, times: int, version: int, topic: str
) -> None:
    one = request(batch, version=version, topic=topic)
    stream = b"".join(
        request(batch, version=version, topic=topic, correlation_id=number) for number in range(times)
    )
    for cut in range(len(stream) + 1):
        run = check(stream[:cut], 0)
        whole = cut // len(one)
        assert (run is None) == (whole == 0)
        if run is not None:
            assert run == (list(range(whole)), whole * len(one))


@pytest.mark.parametrize("seal", [False, True])
@pytest.mark.parametrize("position", range(HEADER_BYTES + 1))
def test_a_batch_with_a_changed_byte_is_taken_only_if_it_passes_the_check(position: int, seal: bool) -> None:
    batch = build_batch([Message(1000 + index, b"key", b"value") for index in range(3)])
    for bits in range(1, 256):
        changed = _flipped(batch, position, bits, seal=seal)
        check(request(changed), 0)
        check(request(changed, version=12), 0)


def test_an_uncompressed_batch_that_states_too_many_records_is_in_no_run() -> None:
    batch = build_batch([Message(1000, None, b"")] * 10)
    most = (len(batch) - HEADER_BYTES) // 7
    for count, taken in ((most, True), (most + 1, False), (1 << 20, False)):
        changed = bytearray(batch)
        struct.pack_into(">i", changed, 23, count - 1)
        struct.pack_into(">i", changed, 57, count)
        assert (check(request(sealed(changed)), 0) is not None) == taken


def test_views_are_of_the_received_bytes() -> None:
    data = bytearray(request(build_batch([Message(1, None, b"x")])))
    found = next_run(memoryview(data), 0)
    assert found is not None
    _, (_, batches, _) = found
    batches[0][-3:] = b"new"
    assert data.endswith(b"new")
