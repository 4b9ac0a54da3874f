from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.errors import MillraceError
from millrace.records import BatchHeader, Message, build_batch
from millrace.records.compression import Codec
from millrace.records.framing import Batch
from millrace.records.messages import seal
from millrace_audit.reader import counting
from millrace_audit.reader.counting import ROWS, STRONG_ROWS, BatchCounter, Tally
from millrace_audit.reader.reader import COUNT_BYTES
from millrace_audit.reports.counts import WINDOW_MS, window_start
from millrace_audit.reports.event import MAX_NAME_BYTES, EventSchema, NotAudited, read_header
from millrace_audit.reports.fingerprints import Fingerprint, fingerprint, strong_fingerprint, wrapped
from millrace_audit.reports.messages import AuditCodec, Count, ForeignCount, schema_file
from millrace_audit.reports.publish import MAX_MESSAGE_BYTES
from tests.page_view import EVENT
from tests.unit.audit.test_messages import Ids

PAGE_VIEW = EventSchema(schema_file("PageView"), 7)


def message(server: str, instance: int, time_ms: int, sequence: int) -> bytes:
    header = {
        "time": time_ms,
        "server": server,
        "service": "shop",
        "instance": instance,
        "sequence": sequence,
    }
    return PAGE_VIEW.encode(header, EVENT)


def batch_of(
    values: list[bytes | None], codec: Codec = Codec.NONE, base: int = 0, time: int = 1_000
) -> Batch:
    batch = build_batch(
        [Message(time + 300 * n, b"k" * (n % 3) or None, v) for n, v in enumerate(values)],
        codec=codec,
        base_offset=base,
    )
    return BatchHeader.of(batch), memoryview(batch)


def counted(*batches: Batch, start: int = 0, digest: Fingerprint = fingerprint) -> Tally:
    tally = Tally()
    for _ in BatchCounter(lambda schema_id: schema_id == 7, digest).count("PageView", batches, start, tally):
        pass
    return tally


def count_of(tally: Tally) -> Count:
    return Count(
        time=0,
        tier="t",
        topic="x",
        topic_id="0" * 32,
        partition=0,
        start=0,
        end=9,
        foreign=tally.foreign_counts(),
        counts=tally.counts,
    )


def expected(
    batches: Iterable[list[bytes | None]], time: int = 1_000, *, fingerprint_of: Fingerprint = fingerprint
) -> Tally:
    """The same, one message at a time."""
    tally = Tally()
    for values in batches:
        for n, value in enumerate(values):
            digest = fingerprint_of(value or b"")
            try:
                if value is None or value[:5] != b"\0\0\0\0\7":
                    raise NotAudited
                header = read_header(value)
                window = window_start(header.time)
                if max(len(header.server.encode()), len(header.service.encode())) > MAX_NAME_BYTES:
                    raise NotAudited
                if window < -(1 << 63):
                    raise NotAudited
                who = (header.server, header.service, header.instance)
                tally.counts.add(*who, window, header.sequence, None, digest)
            except NotAudited:
                tally.add_foreign(window_start(time + 300 * n), 1, digest)
    return tally


def assert_same(found: Tally, wanted: Tally) -> None:
    assert found.counts == wanted.counts
    assert found.foreign_counts() == wanted.foreign_counts()


events = st.lists(
    st.tuples(
        st.sampled_from(
            ["web-1", "web-10", "", "a name of more than eight bytes", "a name of more than eight byteS"]
        ),
        st.sampled_from([0, 1, 2**62, -(2**63)]),
        st.integers(-WINDOW_MS, 3 * WINDOW_MS),
        st.integers(0, 300),
    ),
    min_size=1,
    max_size=40,
)


@given(st.lists(events, min_size=1, max_size=4), st.sampled_from(list(Codec)))
@settings(deadline=None)
def test_every_message_of_all_batches_is_counted_once_with_its_fingerprint(
    sent: list[list[tuple[str, int, int, int]]], codec: Codec
) -> None:
    batches: list[list[bytes | None]] = [[message(*event) for event in batch] for batch in sent]
    tally = counted(*(batch_of(values, codec, 1_000 * n) for n, values in enumerate(batches)))
    assert_same(tally, expected(batches))
    assert tally.counts.total == sum(map(len, sent))


@given(
    st.lists(
        st.none()
        | st.binary(max_size=40)
        | st.binary(max_size=60).map(lambda b: b"\0\0\0\0\7" + b)
        | st.tuples(st.sampled_from(["a", "b"]), st.just(5), st.integers(0, 9), st.integers(0, 9)).map(
            lambda event: message(*event)
        ),
        min_size=1,
    ),
    st.sampled_from([fingerprint, strong_fingerprint]),
)
@settings(deadline=None)
def test_anything_else_is_foreign_and_never_an_error(values: list[bytes | None], digest: Fingerprint) -> None:
    tally = counted(batch_of(values), digest=digest)
    assert_same(tally, expected([values], fingerprint_of=digest))
    assert sum(count.messages for count in tally.foreign_counts()) + tally.counts.total == len(values)


def test_foreign_messages_between_audited_ones_do_not_end_the_count() -> None:
    values = [message("web-1", 5, 0, 0), b"plain", None, b"\0\0\0\0\1other", message("web-1", 5, 0, 1)]
    tally = counted(batch_of(values))
    assert tally.counts.to_json()[0]["ranges"] == [[0, 1]]
    digests = sum(fingerprint(value or b"") for value in values[1:4])
    assert tally.foreign_counts() == [ForeignCount(0, 3, wrapped(digests))]


def test_a_foreign_message_is_in_the_window_of_its_record() -> None:
    tally = counted(batch_of([b"x", b"y"], time=WINDOW_MS - 1))
    assert [(count.window, count.messages) for count in tally.foreign_counts()] == [(0, 1), (WINDOW_MS, 1)]
    (earliest,) = counted(batch_of([b"x"], time=-(1 << 63))).foreign_counts()
    assert earliest.window >= -(1 << 63)


def test_a_message_that_ends_inside_its_header_is_foreign() -> None:
    whole = message("web-1", 2**62, 10**12, 70)
    for cut in range(5, len(whole)):
        values: list[bytes | None] = [message("web-1", 2**62, 10**12, 69), whole[:cut]]
        assert_same(counted(batch_of(values)), expected([values]))


@pytest.mark.parametrize("size", [MAX_NAME_BYTES, MAX_NAME_BYTES + 1])
def test_a_name_that_would_make_counts_large_makes_its_message_foreign(size: int) -> None:
    values: list[bytes | None] = [message("x" * size, 5, 0, 0), message("x" * size, 5, 0, 1)]
    tally = counted(batch_of(values))
    assert tally.counts.total == 2 * (size <= MAX_NAME_BYTES)
    assert_same(tally, expected([values]))


def test_two_servers_under_one_instance_number_are_two() -> None:
    names = ["web-1", "web-2", "web-1", "web-3", "web-2"] * 9
    values: list[bytes | None] = [message(name, 5, 0, n) for n, name in enumerate(names)]
    assert_same(counted(batch_of(values)), expected([values]))


@pytest.mark.parametrize("producers", [1, 3, 200])
def test_producers_whose_batches_alternate_keep_their_ranges(producers: int) -> None:
    batches: list[list[bytes | None]] = [
        [message(f"web-{n}", n, 0, 10 * turn + k) for k in range(10)]
        for turn in range(3)
        for n in range(producers)
    ]
    tally = counted(*(batch_of(values, base=n * 10_000) for n, values in enumerate(batches)))
    assert_same(tally, expected(batches))
    assert tally.counts.range_count == producers


def broken(values: list[bytes | None], base: int = 0) -> Batch:
    """A batch whose records' lengths are wrong and whose CRC is right."""
    header, batch = batch_of(values)
    damaged = bytearray(batch)
    damaged[61] = 0x7E  # the first record's length
    data = seal(
        damaged[61:],
        base_offset=base,
        attributes=0,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
        records_count=header.records_count,
    )
    return BatchHeader.of(data), memoryview(data)


def test_a_batch_that_was_sent_broken_is_as_many_foreign_messages_and_stops_nobody() -> None:
    bad = broken([b"x", b"y"], 500)
    tally = counted(
        batch_of([message("web-1", 5, 0, 0)]), bad, batch_of([message("web-1", 5, 0, 1)], base=900)
    )
    assert tally.counts.to_json()[0]["ranges"] == [[0, 1]]
    assert tally.foreign_counts() == [ForeignCount(0, 2, wrapped(fingerprint(bytes(bad[1][61:]))))]


def test_counting_goes_on_inside_a_batch() -> None:
    values: list[bytes | None] = [message("web-1", 5, 0, n) for n in range(30)]
    tally = counted(batch_of(values, base=100), start=110)
    assert tally.counts.to_json()[0]["ranges"] == [[10, 29]]
    assert counted(broken(values, 100), start=110).foreign == {}


def test_a_large_batch_is_counted_in_parts_each_with_its_end() -> None:
    values: list[bytes | None] = [message("web-1", 5, 0, n) for n in range(2 * ROWS + 5)]
    tally, whole = Tally(), counted(batch_of(values, Codec.ZSTD))
    parts = []
    for part in BatchCounter(lambda _: True).count("PageView", [batch_of(values, Codec.ZSTD)], 0, tally):
        assert part.messages == len(part.times)
        parts.append((part.end, part.messages, tally.counts.total))
    assert parts == [(ROWS, ROWS, ROWS), (2 * ROWS, ROWS, 2 * ROWS), (2 * ROWS + 5, 5, 2 * ROWS + 5)]
    assert_same(tally, whole)


def test_a_count_may_end_on_either_side_of_a_broken_batch_and_every_part_is_small() -> None:
    values: list[bytes | None] = [message("web-1", 5, 0, n) for n in range(ROWS + 5)]
    bad, behind = broken([b"x", b"y"], 30_000), batch_of([message("web-1", 5, 0, ROWS + 5)], base=40_000)
    batches, tally = [batch_of(values), bad, behind], Tally()
    parts = [
        (part.end, part.messages)
        for part in BatchCounter(lambda schema_id: schema_id == 7).count("PageView", batches, 0, tally)
    ]
    assert parts == [(ROWS, ROWS), (ROWS + 5, 5), (30_002, 2), (40_001, 1)]
    assert_same(tally, counted(*batches))
    for start, _ in parts:  # whoever goes on there counts just what is behind
        rest = counted(*(batch for batch in batches if batch[0].next_offset > start), start=start)
        assert rest.counts.total == sum(messages for end, messages in parts if end > start and messages != 2)
        assert len(rest.foreign) == (start < 30_002)


def test_many_names_under_one_instance_number_are_not_compared_with_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[int] = []

    def same_bytes(*arguments: Any) -> Any:
        compared.append(1)
        return real(*arguments)

    real = counting._same_bytes
    monkeypatch.setattr(counting, "_same_bytes", same_bytes)
    values: list[bytes | None] = [message(f"web-{n % 500}", 5, 0, n // 500) for n in range(1000)]
    assert_same(counted(batch_of(values)), expected([values]))
    assert len(compared) < 10


@pytest.mark.parametrize("digest", [fingerprint, strong_fingerprint])
def test_a_part_of_the_longest_names_makes_a_count_that_an_audit_topic_takes(digest: Fingerprint) -> None:
    values: list[bytes | None] = []
    for n in range(ROWS if digest is fingerprint else STRONG_ROWS):
        names = {"server": f"{n:0255}", "service": f"{n:0255}", "instance": (1 << 63) - 1}
        values.append(PAGE_VIEW.encode({"time": 1 << 60, **names, "sequence": (1 << 62) + n}, EVENT))
    tally = Tally()
    (_,) = BatchCounter(lambda _: True, digest).count("PageView", [batch_of(values)], 0, tally)
    size = len(AuditCodec(Ids()).encode(count_of(tally)))
    assert 5_000_000 < size < MAX_MESSAGE_BYTES - COUNT_BYTES
    assert tally.bytes > size, "the estimate is rather too much"


def test_a_registry_that_does_not_answer_leaves_nothing_half_counted() -> None:
    def ask(schema_id: int) -> bool:
        raise MillraceError("the registry does not answer")

    tally = Tally()
    with pytest.raises(MillraceError, match="registry"):
        list(BatchCounter(ask).count("PageView", [batch_of([b"plain", message("web-1", 5, 0, 0)])], 0, tally))
    assert tally == Tally()


def long(value: int) -> bytes:
    """A number as Avro writes it, of any size."""
    value, out = (value << 1) ^ (value >> 127), bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def raw(time: bytes, sequence: bytes) -> bytes:
    return b"\0\0\0\0\7" + time + b"\x0aweb-1\x08shop" + long(5) + sequence


@pytest.mark.parametrize("after_another", [False, True])
@pytest.mark.parametrize(
    "value",
    [
        raw(long(0), long(1 << 63)),
        raw(long(0), b"\xff" * 9 + b"\x7f"),
        raw(long(0), b"\xff" * 11),
        raw(long(1 << 64), long(1)),
        raw(b"\x80" * 11 + b"\0", long(1)),
        raw(long(-(1 << 63)), long(1)),  # its window begins before the smallest number there is
    ],
)
def test_a_header_with_a_number_that_no_record_can_hold_is_foreign(value: bytes, after_another: bool) -> None:
    before: list[bytes | None] = [raw(long(0), long(0))] if after_another else []
    tally = counted(batch_of([*before, value]))
    assert (tally.counts.total, len(tally.foreign)) == (len(before), 1)
    codec, count = AuditCodec(Ids()), count_of(tally)
    assert codec.decode(codec.encode(count)) == count
