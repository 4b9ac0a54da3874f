"""The compiled form of `records.runs` does what the one in Python does, byte for byte."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.records import BatchHeader, Message, build_batch
from millrace.records.content import holds_records, holds_records_in_python
from millrace.records.header import crc32c
from millrace.records.runs import IS_COMPILED, StampedBatch, scan, scan_in_python, stamp, stamp_in_python
from millrace.wire.primitives import compact_length

HEAD = (b"\0\0\0\7", b"client and topic", 4)

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler: there is one form only")


def test_an_installation_with_a_compiler_has_the_compiled_form() -> None:
    assert IS_COMPILED, "broker/millrace/records/_runs.c is not built: run `make setup`"


def batch(
    count: int, value: bytes, timestamp: int, producer_id: int, more_offsets: int, sequence: int = 0
) -> bytearray:
    """`more_offsets`: how many more the header states than there are records, as a compacted log would."""
    made = bytearray(
        build_batch(
            [Message(timestamp, None, value)] * count,
            producer_id=producer_id,
            producer_epoch=sequence % 7,
            base_sequence=sequence,
        )
    )
    made[23:27] = (count - 1 + more_offsets).to_bytes(4, "big")
    return made


BATCHES = st.lists(
    st.builds(
        batch,
        st.integers(1, 9),
        st.binary(max_size=400),
        st.sampled_from([0, 5, 1_700_000_000_000, 2**63 - 1]),
        st.sampled_from([-1, -1, -1, -1, 7, 2**62]),
        st.sampled_from([0, 0, 0, 0, 1, 50, 2**31 - 10]),
        st.sampled_from([0, 5, 2**31 - 1]),
    ),
    max_size=8,
)


@given(
    batches=BATCHES,
    read_only=st.sets(st.integers(0, 7), max_size=1),
    first=st.integers(0, 8),
    base=st.sampled_from([0, 61, 2**32 - 100, 2**40]),
    epoch=st.sampled_from([0, 7, 2**31 - 1]),
    room=st.sampled_from([-1, 0, 61, 200, 1000, 10**6]),
    marked_room=st.sampled_from([0, 256, 700, 1 << 20]),
    takes_idempotent=st.booleans(),
)
def test_both_forms_stamp_the_same_batches_and_say_the_same_of_them(
    batches: Sequence[bytearray],
    read_only: set[int],
    first: int,
    base: int,
    epoch: int,
    room: int,
    marked_room: int,
    takes_idempotent: bool,
) -> None:
    def copies() -> list[bytearray | bytes]:
        return [bytes(b) if number in read_only else bytearray(b) for number, b in enumerate(batches)]

    ours, theirs = copies(), copies()
    stamped: list[list[StampedBatch] | None] = [[], []] if takes_idempotent else [None, None]
    arguments = (first, base, epoch, room, marked_room, 256)
    assert stamp(ours, *arguments, stamped[0]) == stamp_in_python(theirs, *arguments, stamped[1])
    assert ours == theirs
    assert stamped[0] == stamped[1]


def test_a_stamped_batch_of_an_idempotent_producer_is_described() -> None:
    plain, idempotent = batch(1, b"v", 0, -1, 0), batch(3, b"value", 0, 7, 0, sequence=5)
    stamped: list[StampedBatch] = []
    bases, end, *_ = stamp([plain, idempotent], 0, 500, 4, 1000, 1000, 10, stamped)
    assert stamped == [(1, 7, 5, 5, bases[1], 3, end)]
    assert len(stamp([plain, idempotent], 0, 500, 4, 1000, 1000, 10, None)[0]) == 1


def test_a_stamped_batch_states_where_it_stands_and_who_led() -> None:
    batches = [batch(3, b"value", 1000 - number, -1, 0) for number in range(3)]
    size = len(batches[0])
    bases, end, marked_room, messages, next_offset, max_timestamp = stamp(
        batches, 1, 500, 4, 2 * size, 1000, 10, None
    )
    assert bases == [500, 500 + size]
    assert (end, marked_room, messages) == (500 + 2 * size, 1000 - 2 * size, 6)
    assert (next_offset, max_timestamp) == (500 + size + 3, 999)
    header = BatchHeader.of(batches[2])
    assert (header.base_offset, header.partition_leader_epoch) == (500 + size, 4)
    assert BatchHeader.of(batches[0]).base_offset == 0


def request(content: bytes, correlation_id: int, size: int | None = None) -> bytes:
    body = HEAD[0] + correlation_id.to_bytes(4, "big", signed=True) + HEAD[1]
    body += (len(content) if size is None else size).to_bytes(4, "big", signed=True) + content
    return len(body).to_bytes(4, "big") + body


@given(
    contents=st.lists(st.binary(max_size=3000), min_size=1, max_size=4),
    correlation_id=st.integers(-(2**31), 2**31 - 1),
    flips=st.lists(st.tuples(st.integers(0, 10**4), st.integers(1, 255)), max_size=2),
    largest=st.sampled_from([100, 3000, 10**6]),
    cut=st.integers(0, 10**4),
)
def test_both_forms_find_the_same_requests_in_any_bytes(
    contents: list[bytes], correlation_id: int, flips: list[tuple[int, int]], largest: int, cut: int
) -> None:
    whole = [request(build_batch([Message(0, None, content)]), correlation_id) for content in contents]
    data = bytearray(b"".join(whole))
    for place, bits in flips:
        data[place % len(data)] ^= bits
    for end in (len(data), cut % (len(data) + 1)):
        view = memoryview(data)[:end]
        found = scan(view, 0, HEAD, b"", largest, crc32c)
        assert found == scan_in_python(view, 0, HEAD, b"", largest, crc32c)
        assert scan(view, end, HEAD, b"", largest, crc32c) == ([], [], end)


EXTREMES = [0, 1, -1, 7, 60, 61, 62, 127, 128, 16_383, 1 << 28, 2**31 - 13, 2**31 - 1, -(2**31)]
VARINTS = [b"", b"\0", b"\x80\0", b"\xff\xff\xff\xff\x07", b"\x80\x80\x80\x80\x10", b"\xff" * 5]
"""Sizes as a stranger may state them: none, overlong, near 2^31 and beyond, without an end."""
RARELY = st.sampled_from([False] * 7 + [True])
INT32S = st.one_of(st.sampled_from(EXTREMES), st.integers(-(2**31), 2**31 - 1))


def int32(number: int) -> bytes:
    return number.to_bytes(4, "big", signed=True)


@st.composite
def lying_batches(draw: st.DrawFn) -> bytes:
    """A batch with fields of its header overwritten, mostly with the CRC of what it then holds."""
    value = bytes(draw(st.sampled_from([0, 1, 40, 60, 300, 2100, 17_000])))
    made = bytearray(build_batch([Message(0, None, value)] * draw(st.integers(1, 3))))
    if draw(RARELY):
        place = draw(st.sampled_from([8, 12, 16, 20, 23, 35, 43, 57]))
        made[place : place + 4] = int32(draw(INT32S))
    if draw(RARELY):
        count = draw(INT32S)
        made[57:61], made[23:27] = int32(count), int32(max(count - 1, -(2**31)))
    if draw(RARELY):
        made[draw(st.integers(61, min(90, len(made) - 1)))] = draw(st.integers(0, 255))
    if not draw(RARELY):
        made[17:21] = crc32c(memoryview(made)[21:]).to_bytes(4, "big")
    return bytes(made[: draw(st.sampled_from([0, 60, 61]))] if draw(RARELY) else made)


@given(
    batches=st.lists(lying_batches(), min_size=1, max_size=3),
    tail=st.sampled_from([b"", b"\0\0\0", b"x"]),
    stated=st.sampled_from([None] * 20 + VARINTS),
    framed=st.sampled_from([None] * 30 + EXTREMES),
    width=st.sampled_from([None] * 15 + [1, 2, 3, 4, 5]),
    largest=st.sampled_from([-1, 60, 61, 400, *[2**31] * 6, 2**62]),
    cut=st.integers(0, 10**5),
    position=st.integers(0, 80),
)
def test_both_forms_find_the_same_requests_whatever_lengths_and_counts_they_state(
    batches: list[bytes],
    tail: bytes,
    stated: bytes | None,
    framed: int | None,
    width: int | None,
    largest: int,
    cut: int,
    position: int,
) -> None:
    data = b""
    for content in batches:
        size = compact_length(len(content)) if tail else int32(len(content))
        size = size if stated is None else stated
        width = width or (len(size) if tail else 4)
        body = HEAD[0] + int32(5) + HEAD[1] + size + content + tail
        data += int32(len(body) if framed is None else framed) + body
    head = (*HEAD[:2], width or 1)
    for end in (len(data), cut % (len(data) + 1)):
        whole = memoryview(bytearray(data[:end]))  # of its own size, so that a sanitizer sees what is beyond
        for start in (0, min(position, end)):
            found = scan(whole, start, head, tail, largest, crc32c)
            assert found == scan_in_python(whole, start, head, tail, largest, crc32c)


def test_what_the_checksum_raises_is_raised() -> None:
    data = memoryview(request(build_batch([Message(0, None, bytes(3000))]), 1))

    def checksum(part: memoryview) -> int:
        raise OSError(f"of {len(part)} bytes")

    for form in (scan, scan_in_python):
        with pytest.raises(OSError, match="bytes"):
            form(data, 0, HEAD, b"", 10**6, checksum)


SPECIAL_BYTES = st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF])


@given(
    records=st.lists(
        st.builds(
            Message,
            timestamp=st.sampled_from([0, 1, 2**40, 2**62]),
            key=st.none() | st.binary(max_size=3),
            value=st.none() | st.binary(max_size=3) | st.just(bytes(200)),
            headers=st.lists(st.tuples(st.just("h"), st.none() | st.binary(max_size=2)), max_size=2),
        ),
        min_size=1,
        max_size=70,
    ),
    changes=st.lists(st.tuples(st.integers(0, 10**5), SPECIAL_BYTES), max_size=2),
    more=st.binary(max_size=3),
    missing=st.sampled_from([0, 0, 0, 1, 5]),
    uncounted=st.sampled_from([0, 0, 0, 1, -1, 2**31 - 100]),
)
def test_both_forms_find_the_same_content_to_be_records(
    records: list[Message], changes: list[tuple[int, int]], more: bytes, missing: int, uncounted: int
) -> None:
    content = bytearray(build_batch(records)[61:])
    assert holds_records(content, len(records))
    assert holds_records_in_python(content, len(records))
    for place, byte in changes:
        content[place % len(content)] = byte
    content = content[: len(content) - missing] + more
    count = len(records) + uncounted
    assert holds_records(content, count) == holds_records_in_python(content, count)


@given(content=st.binary(max_size=40), count=st.integers(0, 4))
def test_both_forms_say_the_same_of_any_content(content: bytes, count: int) -> None:
    assert holds_records(content, count) == holds_records_in_python(content, count)
