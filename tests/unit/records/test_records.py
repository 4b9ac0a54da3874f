"""The record batch: framing, CRC, control batches of every size, and how batches follow one another."""

from __future__ import annotations

import struct

import pytest
from crcmod.predefined import mkPredefinedCrcFun
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import CorruptMessage, InvalidRecord
from millrace.records import (
    CONTROL_BIT,
    HEADER_BYTES,
    MIN_CONTROL_BYTES,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Cursor,
    Message,
    batch_crc,
    build_batch,
    check_produced,
    control_batch,
    control_batch_of_size,
    filler_after,
    iter_records,
    split_batches,
)
from millrace.records.compression import Codec
from millrace.records.messages import seal

messages = st.lists(
    st.builds(
        Message,
        timestamp=st.integers(0, 1 << 45),
        key=st.none() | st.binary(max_size=20),
        value=st.none() | st.binary(max_size=200),
        headers=st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2),
    ),
    min_size=1,
    max_size=30,
)


def header_of(batch: bytes) -> BatchHeader:
    header = BatchHeader.parse(batch)
    assert header is not None
    return header


def resealed(batch: bytes, position: int, layout: str, value: int) -> bytes:
    """The batch with one header field replaced and its CRC made right again."""
    changed = bytearray(batch)
    struct.pack_into(layout, changed, position, value)
    struct.pack_into(">I", changed, 17, batch_crc(changed))
    return bytes(changed)


@given(messages, st.sampled_from(Codec), st.integers(0, 1 << 50))
def test_what_goes_into_a_batch_comes_out_of_it(sent: list[Message], codec: Codec, base: int) -> None:
    batch = build_batch(sent, codec=codec, base_offset=base)
    header = check_produced(batch)
    received = list(iter_records(header, batch))
    assert [(r.timestamp, r.key, r.value, r.headers) for r in received] == [
        (m.timestamp, m.key, m.value, tuple(m.headers)) for m in sent
    ]
    assert [r.offset for r in received] == list(range(base, base + len(sent)))
    assert header.next_offset == base + len(sent)


def test_the_crc_agrees_with_the_independent_implementation() -> None:
    batch = build_batch([Message(1, b"key", b"value")])
    assert header_of(batch).crc == mkPredefinedCrcFun("crc-32c")(batch[21:])


STREAM = b"".join(build_batch([Message(n, None, b"x" * n)], base_offset=n) for n in (1, 7, 90))


@pytest.mark.parametrize("cut", range(len(STREAM) + 1))
def test_batches_do_not_depend_on_where_a_response_is_cut(cut: int) -> None:
    whole = [bytes(batch) for _, batch in split_batches(STREAM)]
    got = [bytes(batch) for _, batch in split_batches(STREAM[:cut])]
    assert got == whole[: len(got)]
    assert len(b"".join(got)) <= cut < len(b"".join(whole[: len(got) + 1])) or len(got) == len(whole)


FIRST = bytes(next(split_batches(STREAM))[1])


@pytest.mark.parametrize("position", range(16, len(FIRST)))
def test_a_flipped_bit_never_passes(position: int) -> None:
    broken = bytearray(FIRST)
    broken[position] ^= 0x10
    with pytest.raises(CorruptMessage):
        list(split_batches(broken))


@pytest.mark.parametrize("codec", list(Codec))
def test_every_cut_of_the_records_is_refused(codec: Codec) -> None:
    batch = build_batch([Message(1, b"k", b"v" * 40), Message(2, None, b"w")], codec=codec)
    for end in range(62, len(batch)):
        with pytest.raises(CorruptMessage):
            list(iter_records(header_of(batch), batch[:end]))


def test_bytes_after_the_last_record_are_refused() -> None:
    batch = build_batch([Message(1, b"k", b"v")])
    with pytest.raises(CorruptMessage, match="after its last record"):
        list(iter_records(header_of(batch), batch + b"\0"))


@pytest.mark.parametrize(
    ("position", "layout", "value", "error"),
    [
        (23, ">i", 5, InvalidRecord),  # last offset delta does not fit the count
        (57, ">i", 0, InvalidRecord),
        (57, ">i", -1, InvalidRecord),
        (21, ">h", CONTROL_BIT, InvalidRecord),
        (21, ">h", TRANSACTIONAL_BIT, InvalidRecord),
        (21, ">h", 7, InvalidRecord),  # no such codec
        (16, ">b", 1, CorruptMessage),
        (8, ">i", 10, CorruptMessage),
    ],
)
def test_a_batch_that_breaks_a_rule_is_refused(
    position: int, layout: str, value: int, error: type[Exception]
) -> None:
    batch = build_batch([Message(1, b"k", b"v")])
    with pytest.raises(error):
        check_produced(resealed(batch, position, layout, value))


def produced(content: bytes, count: int = 1, codec: Codec = Codec.NONE) -> bytes:
    """A batch with this content; everything in its header fits."""
    return seal(
        content,
        base_offset=0,
        attributes=codec,
        last_offset_delta=count - 1,
        base_timestamp=0,
        max_timestamp=0,
        records_count=count,
    )


@pytest.mark.parametrize("count", [1, 2, 4, 1 << 20])
def test_an_uncompressed_batch_states_as_many_records_as_it_holds(count: int) -> None:
    content = build_batch([Message(0, None, None)] * 3)[HEADER_BYTES:]
    assert len(content) == 3 * 7
    with pytest.raises(InvalidRecord, match=f"the {count} records"):
        check_produced(produced(content, count))
    assert check_produced(produced(content, 3)).records_count == 3
    assert check_produced(produced(content, count, Codec.ZSTD)).records_count == count


# A record is its size, attributes, two deltas (timestamp, offset), key, value, headers; numbers are doubled.
@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"\x0e\0\0\2\1\2v\0", id="an offset delta of 1"),
        pytest.param(b"\x0e\0\0\1\1\2v\0", id="an offset delta of -1"),
        pytest.param(b"\x16\0\0\x80\xa8\xd6\xb9\7\1\2v\0", id="an offset delta of 1,000,000,000"),
        pytest.param(b"\x10\0\0\0\1\2v\0", id="a record that is longer than the batch"),
        pytest.param(b"\x0e\0\0\0\1\2v\0\0", id="a byte behind the last record"),
        pytest.param(b"\x10\0\0\0\1\2v\0\0", id="a byte behind the headers"),
        pytest.param(b"\x0e\0\0\0\1\4v\0", id="a value that is longer than its record"),
        pytest.param(b"\x0e\0\0\0\1\3v\0", id="a value of -2 bytes"),
        pytest.param(b"\x0e\0\0\0\1\2v\2", id="a header that is not there"),
        pytest.param(b"\x12\0\0\0\1\2v\2\1\1", id="a header without a name"),
        pytest.param(b"\x0e\0\0\0\1\2v\1", id="-1 headers"),
        pytest.param(b"\0", id="an empty record"),
        pytest.param(b"\1", id="a size of -1"),
        pytest.param(b"\xff" * 40, id="no number"),
        pytest.param(b"\x20\0" + b"\xff" * 9 + b"\2\0\1\2v\0", id="a timestamp beyond 64 bits"),
        pytest.param(b"\x18\0\0\0\x81\x80\x80\x80\x10\2v\0", id="a length beyond 32 bits"),
    ],
)
def test_an_uncompressed_batch_whose_records_lie_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidRecord):
        check_produced(produced(content))


@pytest.mark.parametrize(
    "content",
    [b"\x0e\0\0\0\1\2v\0", b"\x20\0" + b"\xff" * 9 + b"\1\0\1\2v\0", b"\x16\0\0\0\x81\x80\x80\x80\0\2v\0"],
    ids=["short", "a timestamp of 64 bits", "a length in more bytes than it needs"],
)
def test_an_uncompressed_batch_that_is_odd_and_whole_is_taken(content: bytes) -> None:
    assert check_produced(produced(content)).records_count == 1


def test_two_batches_sent_as_one_are_refused() -> None:
    batch = build_batch([Message(1, b"k", b"v")])
    with pytest.raises(CorruptMessage, match="one batch per partition"):
        check_produced(batch + batch)


def test_append_time_replaces_every_records_own_time() -> None:
    batch = build_batch([Message(5, None, b"a"), Message(9, None, b"b")], attributes=TIMESTAMP_TYPE_BIT)
    assert [record.timestamp for record in iter_records(header_of(batch), batch)] == [9, 9]


@pytest.mark.parametrize(
    "sizes",
    [
        range(MIN_CONTROL_BYTES, 600),
        range(8_100, 8_400),
        range(16_300, 16_500),
        range((1 << 20) - 70, 1 << 20),
    ],
)
def test_a_control_batch_can_have_any_size(sizes: range) -> None:
    for size in sizes:
        batch = control_batch_of_size(1000, size, timestamp=1)
        ((header, whole),) = split_batches(batch)
        assert len(whole) == size
        assert header.is_control
        assert len(list(iter_records(header, whole))) == 1


def test_a_control_batch_below_the_smallest_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least"):
        control_batch_of_size(0, MIN_CONTROL_BYTES - 1, timestamp=1)


@given(st.integers(1, 20_000), st.integers(0, 1 << 40))
def test_offsets_behind_a_filler_never_overlap_the_batch_before_it(records: int, base: int) -> None:
    batch = build_batch([Message(0, None, None)] * records, codec=Codec.ZSTD, base_offset=base)
    header = header_of(batch)
    filler = filler_after(header, timestamp=1)
    if filler is None:
        assert header.next_offset <= base + len(batch)
        return
    mark = header_of(filler)
    assert mark.base_offset == header.next_offset
    assert mark.next_offset == base + len(batch) + len(filler)


def test_a_cursor_tells_a_gap_from_the_jump_between_batches() -> None:
    first = header_of(build_batch([Message(0, None, b"x" * 50)] * 3, base_offset=1000))
    cursor = Cursor(1000).after(first)
    assert cursor == Cursor(1003, 1000 + first.size)
    assert cursor.follows(header_of(build_batch([Message(0, None, b"")], base_offset=1000 + first.size)))
    assert cursor.follows(header_of(build_batch([Message(0, None, b"")], base_offset=1003)))
    assert not cursor.follows(
        header_of(build_batch([Message(0, None, b"")], base_offset=1000 + first.size + 80))
    )


def test_a_cursor_passes_a_filler_and_a_mark() -> None:
    large = build_batch([Message(0, None, None)] * 20_000, codec=Codec.ZSTD, base_offset=500)
    header = header_of(large)
    filler = filler_after(header, timestamp=1)
    assert filler is not None
    cursor = Cursor(500).after(header)
    assert cursor.follows(header_of(filler))
    cursor = cursor.after(header_of(filler))
    end = 500 + len(large) + len(filler)
    assert cursor == Cursor(end, end)
    mark = header_of(control_batch(end, b"mark", timestamp=1))
    assert cursor.follows(mark)
    assert cursor.after(mark).next_base == end + mark.size


def test_a_header_name_that_is_no_utf_8_hides_no_record() -> None:
    whole = build_batch([Message(1, None, b"a", [("cafXX", b"1")]), Message(2, None, b"b")])
    records = bytes(whole[HEADER_BYTES:]).replace(b"cafXX", b"caf\xe9.")
    batch = seal(
        records,
        base_offset=0,
        attributes=0,
        last_offset_delta=1,
        base_timestamp=1,
        max_timestamp=2,
        records_count=2,
    )
    first, second = iter_records(BatchHeader.of(batch), batch)
    assert (first.value, first.headers, second.value) == (b"a", (("caf\ufffd.", b"1"),), b"b")
