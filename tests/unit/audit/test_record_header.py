from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millrace.records import BatchHeader, Message, build_batch
from millrace.records.compression import Codec
from millrace.records.framing import Frames, frame_batches
from millrace.records.messages import seal, write_bytes, write_varint
from millrace_audit.reader.counting import ROWS, BatchCounter, Tally
from millrace_audit.reports import header_columns
from millrace_audit.reports.counts import EARLIEST_MS, WINDOW_MS, SequenceCounts
from millrace_audit.reports.fingerprints import Fingerprint, agree, fingerprint, strong_fingerprint
from millrace_audit.reports.header_columns import HeaderReader
from millrace_audit.reports.record_header import (
    HEADER_NAME,
    RecordHeader,
    audit_header,
    decode_header,
    encode_header,
    topic_tag,
)
from tests.unit.audit.test_counting import message

TOPIC = "shop.orders.v1"
TAG = topic_tag(TOPIC)
SOUND = encode_header(TAG, 5, 7, 1_000)
Headers = Sequence[tuple[str, bytes | None]]
LONG = st.integers(-(1 << 63), (1 << 63) - 1)
COUNT = st.integers(0, (1 << 63) - 1)
TIME = st.integers(EARLIEST_MS, (1 << 63) - 1)


def frames_of(*records: Headers) -> Frames:
    batch = build_batch([Message(0, None, b"{}", headers) for headers in records])
    ((frames, broken),) = frame_batches([(BatchHeader.of(batch), memoryview(batch))])
    assert not broken
    return frames


def raw_frames(*records: tuple[int, bytes]) -> Frames:
    """Records with a number of headers and the bytes that follow."""
    body = bytearray()
    for delta, (count, tail) in enumerate(records):
        record = bytearray(b"\0\0")
        write_varint(record, delta)
        write_bytes(record, None)
        write_bytes(record, b"{}")
        write_varint(record, count)
        write_bytes(body, bytes(record) + tail)
    last = len(records) - 1
    batch = seal(
        bytes(body),
        base_offset=0,
        attributes=0,
        last_offset_delta=last,
        base_timestamp=0,
        max_timestamp=0,
        records_count=len(records),
    )
    ((frames, _),) = frame_batches([(BatchHeader.of(batch), memoryview(batch))])
    return frames


def read(frames: Frames) -> dict[int, RecordHeader]:
    """The audit headers by row."""
    found = HeaderReader(TOPIC).read(frames)
    columns = (found.time.tolist(), found.instance.tolist(), found.sequence.tolist())
    return {
        row: RecordHeader(*header)
        for row, header in zip(found.rows.tolist(), zip(*columns, strict=True), strict=True)
    }


@given(COUNT, COUNT, TIME, st.text(max_size=20))
@example(instance=0, sequence=0, time=0, topic="")
def test_a_header_decodes_to_what_was_encoded(instance: int, sequence: int, time: int, topic: str) -> None:
    value = encode_header(topic_tag(topic), instance, sequence, time)
    assert len(value) == 29
    assert decode_header(value, topic_tag(topic)) == RecordHeader(time, instance, sequence)
    assert decode_header(value, topic_tag(topic) ^ 1) is None


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        SOUND[:-1],
        SOUND + b"\0",
        b"\2" + SOUND[1:],
        encode_header(TAG ^ 1, 5, 7, 1_000),
        encode_header(TAG, -1, 7, 1_000),
        encode_header(TAG, 5, -1, 1_000),
        encode_header(TAG, 5, 7, EARLIEST_MS - 1),
    ],
)
def test_a_value_of_another_size_version_or_topic_or_with_a_negative_number_is_no_header(
    value: bytes | None,
) -> None:
    assert decode_header(value, TAG) is None
    headers = [(HEADER_NAME, value), (HEADER_NAME, SOUND)]
    assert audit_header(headers, TAG) is None, "only the first header of that name counts"
    assert read(frames_of(headers, [("trace", b"1"), *headers], [(HEADER_NAME, SOUND)])) == {
        2: RecordHeader(1_000, 5, 7)
    }


def test_an_earliest_event_has_the_earliest_window() -> None:
    value = encode_header(TAG, 5, 7, EARLIEST_MS)
    assert read(frames_of([(HEADER_NAME, value)])) == {0: RecordHeader(EARLIEST_MS, 5, 7)}


names = st.sampled_from(
    [HEADER_NAME, "millrace.audi", "millrace.audit2", "millrace.audiT", "", "traceparent"]
)
values = st.one_of(
    st.builds(encode_header, st.sampled_from([TAG, TAG, TAG, 0]), LONG, LONG, LONG),
    st.builds(encode_header, st.just(TAG), COUNT, COUNT, TIME),
    st.none(),
    st.binary(max_size=70),
    st.just(b"x" * 200),
)
records = st.lists(st.tuples(names, values), max_size=5)


@given(st.lists(records, min_size=1, max_size=30), st.sampled_from([1, 4, 1_000]))
@settings(deadline=None)
def test_headers_read_at_once_are_those_read_one_by_one(messages: list[Headers], few: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(header_columns, "_FEW", few)
        found = read(frames_of(*messages))
    each = {row: audit_header(headers, TAG) for row, headers in enumerate(messages)}
    assert found == {row: header for row, header in each.items() if header is not None}


def header_bytes(headers: Headers) -> bytes:
    out = bytearray()
    for name, value in headers:
        write_bytes(out, name.encode())
        write_bytes(out, value)
    return bytes(out)


LONG_NAME_SIZE = b"\x9c\x00"  # 14 in two bytes
pieces = st.one_of(
    st.binary(max_size=12),
    st.lists(st.integers(0x80, 0xFF), min_size=8, max_size=10).map(bytes),
    records.map(header_bytes),
    st.just(LONG_NAME_SIZE + HEADER_NAME.encode() + bytes([58]) + SOUND),
)
tails = st.lists(pieces, max_size=4).map(b"".join)


@given(st.lists(st.tuples(st.integers(-1, 6), tails), min_size=1, max_size=20))
@example([(1, LONG_NAME_SIZE + HEADER_NAME.encode() + bytes([58]) + SOUND)])
@example([(2, b"\0" + b"\xff" * 9 + b"\x03" + header_bytes([(HEADER_NAME, SOUND)]))])
@settings(deadline=None)
def test_malformed_headers_are_no_error_and_both_ways_agree(messages: list[tuple[int, bytes]]) -> None:
    frames, found = raw_frames(*messages), []
    for few in (1, 1_000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(header_columns, "_FEW", few)
            found.append(read(frames))
    assert found[0] == found[1]


def test_an_unusually_long_length_of_the_name_is_read_like_any() -> None:
    tail = LONG_NAME_SIZE + HEADER_NAME.encode() + bytes([58]) + SOUND
    assert read(raw_frames((1, tail))) == {0: RecordHeader(1_000, 5, 7)}


def test_a_message_of_very_many_headers_is_read_in_time() -> None:
    headers = [("", b"")] * 200_000 + [(HEADER_NAME, SOUND)]
    assert read(frames_of(headers)) == {0: RecordHeader(1_000, 5, 7)}


# Counting.

Sent = tuple[str, int, int, int]
"""Kind, instance, time and sequence of a message."""


def counted(
    topic: str, messages: Sequence[Message], codec: Codec = Codec.NONE, digest: Fingerprint = fingerprint
) -> Tally:
    batch = build_batch(messages, codec=codec)
    tally = Tally()
    counter = BatchCounter(lambda schema_id: schema_id == 7, digest)
    for _ in counter.count(topic, [(BatchHeader.of(batch), memoryview(batch))], 0, tally):
        pass
    return tally


def sent(kind: str, instance: int, time: int, sequence: int) -> Message:
    old = message("web-1", instance, time, sequence)
    header = (HEADER_NAME, encode_header(TAG, instance, sequence, time))
    forwarded = (HEADER_NAME, encode_header(topic_tag("other"), instance, sequence, time))
    return {
        "record": Message(0, None, b'{"a": 1}', [header]),
        "tombstone": Message(0, b"k", None, [("trace", b"1"), header]),
        "value": Message(0, None, old),
        "both": Message(0, None, message("web-2", instance + 1, time, sequence + 1), [header]),
        "forwarded": Message(0, None, old, [forwarded]),
        "none": Message(0, None, b"{}"),
    }[kind]


kinds = st.sampled_from(["record", "tombstone", "value", "both", "forwarded", "none"])
events = st.tuples(
    kinds, st.sampled_from([0, 5, (1 << 63) - 2]), st.integers(0, 2 * WINDOW_MS), st.integers(0, 50)
)


@given(st.lists(events, min_size=1, max_size=60), st.sampled_from(list(Codec)))
@settings(deadline=None)
def test_a_record_header_counts_before_a_header_in_the_value(messages: list[Sent], codec: Codec) -> None:
    counts, foreign = SequenceCounts(), 0
    for kind, instance, time, sequence in messages:
        value = sent(kind, instance, time, sequence).value or b""
        window = time - time % WINDOW_MS
        if kind == "none":
            foreign += 1
        elif kind in ("value", "forwarded"):
            counts.add("web-1", "shop", instance, window, sequence, None, fingerprint(value))
        else:
            counts.add("", "", instance, window, sequence, None, fingerprint(value, sequence))
    tally = counted(TOPIC, [sent(*event) for event in messages], codec)
    assert tally.counts == counts
    assert sum(count for count, _ in tally.foreign.values()) == foreign


@pytest.mark.parametrize("digest", [fingerprint, strong_fingerprint])
def test_two_messages_that_swap_their_values_have_another_fingerprint(digest: Fingerprint) -> None:
    (one, header), (other, behind) = (
        (f"value {n}".encode(), (HEADER_NAME, encode_header(TAG, 5, n, 0))) for n in range(2)
    )
    there, swapped = (
        counted(TOPIC, [Message(0, None, first, [header]), Message(0, None, second, [behind])], digest=digest)
        for first, second in ((one, other), (other, one))
    )
    (before,), (after,) = (tally.counts.tallies.values() for tally in (there, swapped))
    assert before.pairs() == after.pairs() == [[0, 1]]
    assert not agree(before.fingerprint, after.fingerprint)


def test_messages_with_record_headers_are_counted_without_a_registry() -> None:
    def ask(_: int) -> bool:
        raise AssertionError("a message without a schema")

    batch = build_batch([sent("both", 5, 0, n) for n in range(ROWS + 3)])
    tally = Tally()
    parts = list(BatchCounter(ask).count(TOPIC, [(BatchHeader.of(batch), memoryview(batch))], 0, tally))
    assert [len(part.times) for part in parts] == [ROWS, 3]
    assert tally.counts.total == ROWS + 3
    assert tally.counts.range_count == 1
