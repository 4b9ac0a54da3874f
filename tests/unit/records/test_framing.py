"""The framing of many batches at once, against the reader of single records."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millrace.errors import CorruptMessage
from millrace.records import (
    HEADER_BYTES,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    Message,
    Record,
    batch_crc,
    build_batch,
    framing,
    iter_records,
    record_bounds,
)
from millrace.records.compression import Codec
from millrace.records.framing import Batch, Frames, frame_batches, read_headers
from millrace.records.row_cursor import PADDING, Faults, PaddedBuffer, RowCursor

sent = st.lists(
    st.builds(
        Message,
        timestamp=st.integers(0, 1 << 45),
        key=st.none() | st.binary(max_size=20),
        value=st.none() | st.binary(max_size=200) | st.just(b"x" * 9000) | st.just(b"y" * 70_000),
        headers=st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2),
    ),
    min_size=1,
    max_size=80,
)


def parsed(raw: bytes) -> Batch:
    header = BatchHeader.parse(raw)
    assert header is not None
    return header, memoryview(raw)


def in_a_row(batches: list[tuple[list[Message], Codec, int]]) -> list[Batch]:
    made, base = [], 0
    for messages, codec, attributes in batches:
        made.append(parsed(build_batch(messages, codec=codec, base_offset=base, attributes=attributes)))
        base += made[-1][0].size + len(messages)
    return made


def records_of(frames: Frames) -> list[Record]:
    data = bytes(frames.buffer.data)

    def part(start: int, size: int) -> bytes | None:
        return data[start : start + size] if size >= 0 else None

    return [
        Record(
            int(frames.offset[row]),
            int(frames.timestamp[row]),
            part(frames.key[row], frames.key_size[row]),
            part(frames.value[row], frames.value_size[row]),
            tuple(read_headers(frames, row)),
        )
        for row in range(len(frames))
    ]


@given(
    st.lists(st.tuples(sent, st.sampled_from(Codec), st.sampled_from([0, TIMESTAMP_TYPE_BIT])), max_size=4)
)
@settings(max_examples=60, deadline=None)
def test_frames_hold_what_reading_record_by_record_gives(
    batches: list[tuple[list[Message], Codec, int]],
) -> None:
    made = in_a_row(batches)
    framed = list(frame_batches(made))
    assert [broken for _, broken in framed if broken] == []
    expected = [record for header, batch in made for record in iter_records(header, batch)]
    assert [record for frames, _ in framed for record in records_of(frames)] == expected


def test_groups_of_any_size_hold_the_same_records(monkeypatch: pytest.MonkeyPatch) -> None:
    made = in_a_row([([Message(n, b"k", b"v" * n)] * 3, Codec.NONE, 0) for n in range(40)])
    expected = [record for header, batch in made for record in iter_records(header, batch)]
    for limit in (1, 100, 1000, 1 << 20):
        monkeypatch.setattr(framing, "GROUP_BYTES", limit)
        groups = [records_of(frames) for frames, _ in frame_batches(made)]
        assert [record for group in groups for record in group] == expected
        assert len(groups) == {1: 40, 1 << 20: 1}.get(limit, len(groups))


def _any_message(dice: random.Random) -> Message:
    headers = dice.choice(((), (("h", b"v"),)))
    return Message(
        dice.randrange(1000), dice.choice((None, b"key")), dice.randbytes(dice.randrange(90)), headers
    )


def damaged_batches(dice: random.Random, count: int) -> list[Batch]:
    """Batches of a few records with some bytes changed and the CRC made right again."""
    made = []
    for number in range(count):
        messages = [_any_message(dice) for _ in range(dice.randint(1, 5))]
        raw = bytearray(build_batch(messages, base_offset=number * 1000))
        for _ in range(dice.randint(0, 3)):
            raw[dice.randrange(HEADER_BYTES, len(raw))] = dice.choice(
                (0, 1, 2, 0x7F, 0x80, 0xFF, dice.randrange(256))
            )
        if dice.random() < 0.1:
            del raw[dice.randrange(HEADER_BYTES, len(raw)) :]
        if dice.random() < 0.1:
            struct.pack_into(">i", raw, 57, dice.choice((-1, 0, 1, 7, 2**31 - 1)))
        struct.pack_into(">i", raw, 8, len(raw) - 12)
        struct.pack_into(">I", raw, 17, batch_crc(raw))
        made.append(parsed(bytes(raw)))
    return made


def test_damaged_framing_never_gives_a_record_that_is_not_there() -> None:
    dice, accepted, broken_batches = random.Random(11), 0, 0
    for _ in range(60):
        made = damaged_batches(dice, 50)
        ((frames, broken),) = frame_batches(made)
        lost = {header.base_offset for (header, _), _ in ((each.batch, each.reason) for each in broken)}
        broken_batches += len(broken)
        for header, batch in made:
            if header.base_offset in lost:
                continue
            last = header.base_offset + header.last_offset_delta
            rows = np.flatnonzero((frames.offset >= header.base_offset) & (frames.offset <= last))
            got = frames.select(rows)
            accepted += 1
            try:
                assert records_of(got) == list(iter_records(header, batch))
            except CorruptMessage:  # headers are only read where somebody wants them
                assert any(got.header_count > 0)
    assert accepted > 500
    assert broken_batches > 500


def test_a_broken_batch_leaves_its_neighbours_alone() -> None:
    messages = [Message(5, None, b"value")] * 3
    raw = bytearray(build_batch(messages, base_offset=100))
    raw[HEADER_BYTES] += 2
    struct.pack_into(">I", raw, 17, batch_crc(raw))
    made = [
        parsed(build_batch(messages, base_offset=0)),
        parsed(bytes(raw)),
        parsed(build_batch(messages, base_offset=200)),
    ]
    ((frames, broken),) = frame_batches(made)
    assert frames.offset.tolist() == [0, 1, 2, 200, 201, 202]
    assert [each.batch[0].base_offset for each in broken] == [100]


def test_a_batch_that_cannot_be_decompressed_is_broken_not_fatal() -> None:
    raw = bytearray(build_batch([Message(0, None, b"v")]))
    raw[22] |= Codec.ZSTD
    struct.pack_into(">I", raw, 17, batch_crc(raw))
    ((frames, broken),) = frame_batches([parsed(bytes(raw))])
    assert len(frames) == 0
    assert "zstd" in broken[0].reason


def test_a_batch_that_would_fill_the_memory_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    made = in_a_row([([Message(0, None, b"x" * 100)] * 50, codec, 0) for codec in Codec])
    monkeypatch.setattr(record_bounds, "MAX_BATCH_RECORDS", 49)
    ((frames, broken),) = frame_batches(made)
    assert (len(frames), [each.reason for each in broken]) == (0, ["50 records in one batch, at most 49"] * 5)
    monkeypatch.setattr(framing, "MAX_BATCH_BYTES", 4000)
    reasons = [each.reason for _, broken in frame_batches(made) for each in broken]
    assert sum("limit 4000" in reason for reason in reasons) == 4  # the uncompressed one is here already


@pytest.mark.parametrize("deltas", [(0, 0), (1, 0), (0, 5)])
def test_offsets_that_do_not_rise_or_leave_the_batch_break_it(deltas: tuple[int, int]) -> None:
    # Two records of equal length; the delta is the byte after length, attributes and timestamp.
    raw = bytearray(build_batch([Message(0, None, b"v")] * 2))
    size = (len(raw) - HEADER_BYTES) // 2
    for index, delta in enumerate(deltas):
        raw[HEADER_BYTES + index * size + 3] = 2 * delta
    struct.pack_into(">I", raw, 17, batch_crc(raw))
    ((frames, broken),) = frame_batches([parsed(bytes(raw))])
    assert len(frames) == 0
    assert "offset" in broken[0].reason


def test_a_compacted_batch_with_holes_or_without_records_is_read() -> None:
    raw = bytearray(build_batch([Message(0, None, b"v")] * 2, base_offset=50))
    raw[HEADER_BYTES + (len(raw) - HEADER_BYTES) // 2 + 3] = 2 * 7
    struct.pack_into(">i", raw, 23, 7)
    struct.pack_into(">I", raw, 17, batch_crc(raw))
    empty = bytearray(build_batch([Message(0, None, b"v")], base_offset=90)[:HEADER_BYTES])
    struct.pack_into(">i", empty, 8, len(empty) - 12)
    struct.pack_into(">i", empty, 57, 0)
    struct.pack_into(">I", empty, 17, batch_crc(empty))
    ((frames, broken),) = frame_batches([parsed(bytes(empty)), parsed(bytes(raw)), parsed(bytes(empty))])
    assert broken == []
    assert frames.offset.tolist() == [50, 57]


def varint(value: int, width: int = 0) -> bytes:
    """The zigzag varint of a number, padded to `width` bytes."""
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F or len(out) + 1 < width:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    return bytes([*out, value])


@given(
    st.lists(
        st.tuples(
            st.integers(-(1 << 63), (1 << 63) - 1)
            | st.integers(-(1 << 14), 1 << 14)
            | st.integers(0, 63).map(lambda bits: 1 << bits).map(lambda n: n - 1),
            st.integers(0, 10),
        ),
        min_size=1,
        max_size=30,
    )
)
@example([(-(1 << 63), 0), ((1 << 63) - 1, 0)])
@settings(max_examples=150, deadline=None)
def test_numbers_of_every_width_are_read_side_by_side(numbers: list[tuple[int, int]]) -> None:
    encoded = [varint(*number) for number in numbers]
    end = PADDING + np.cumsum([len(each) for each in encoded])
    start = end - [len(each) for each in encoded]
    rows = RowCursor(PaddedBuffer.of(encoded), start, end, Faults(len(encoded)))
    assert rows.varint("n").tolist() == [value for value, _ in numbers]
    rows.finish()
    assert not rows.faults


@pytest.mark.parametrize("bad", [b"", b"\x80", b"\xff" * 9, b"\xff" * 9 + b"\x02", b"\x80" * 10 + b"\x01"])
@pytest.mark.parametrize("neighbour", [b"\x02", varint(1 << 40), b"\xff" * 9 + b"\x01"])
def test_a_number_that_never_ends_or_is_too_wide_is_the_fault_of_its_row(
    bad: bytes, neighbour: bytes
) -> None:
    encoded = [neighbour, bad, neighbour]
    end = PADDING + np.cumsum([len(each) for each in encoded])
    rows = RowCursor(PaddedBuffer.of(encoded), end - [len(each) for each in encoded], end, Faults(3))
    rows.varint("n")
    rows.finish()
    assert list(rows.faults.reasons) == [1]
