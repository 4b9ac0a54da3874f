from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.errors import CorruptMessage
from millrace.records import BatchHeader, Message, build_batch
from millrace.records.compression import Codec
from millrace_audit.reader.counting import BatchCounter
from millrace_audit.reports.counts import WINDOW_MS, SequenceCounts, window_start
from millrace_audit.reports.event import EventSchema
from millrace_audit.reports.messages import AuditCodec, Count, LoadNumber, schema_file
from tests.unit.audit.test_messages import Ids

PAGE_VIEW = EventSchema(schema_file("PageView"), 7)
EVENT: dict[str, Any] = {
    "clientAddress": "10.0.0.1",
    "method": "GET",
    "url": "/",
    "protocol": "HTTP/1.1",
    "status": 200,
}


def message(server: str, instance: int, time_ms: int, sequence: int) -> bytes:
    header = {
        "time": time_ms,
        "server": server,
        "service": "shop",
        "instance": instance,
        "sequence": sequence,
    }
    return PAGE_VIEW.encode(header, EVENT)


def counted(values: list[bytes | None], codec: Codec = Codec.NONE) -> tuple[SequenceCounts, int]:
    batch = build_batch(
        [Message(1_000 + 300 * n, b"k" * (n % 3) or None, v) for n, v in enumerate(values)], codec=codec
    )
    header = BatchHeader.parse(batch)
    assert header is not None
    counts = SequenceCounts()
    foreign = BatchCounter(lambda schema_id: schema_id == 7).count(header, batch, counts)
    return counts, foreign


events = st.lists(
    st.tuples(
        st.sampled_from(["web-1", "web-10", ""]),
        st.sampled_from([0, 1, 2**62, -(2**63)]),
        st.integers(-WINDOW_MS, 3 * WINDOW_MS),
        st.integers(0, 300),
    ),
    min_size=1,
    max_size=40,
)


@given(events, st.sampled_from(list(Codec)))
@settings(deadline=None)
def test_every_message_of_a_batch_is_counted_once(
    sent: list[tuple[str, int, int, int]], codec: Codec
) -> None:
    counts, foreign = counted([message(*event) for event in sent], codec)
    expected = SequenceCounts()
    for server, instance, time_ms, sequence in sent:
        expected.add(server, "shop", instance, window_start(time_ms), sequence)
    assert counts == expected
    assert foreign == 0


@given(
    st.lists(
        st.none() | st.binary(max_size=40) | st.binary(max_size=30).map(lambda b: b"\0\0\0\0\7" + b),
        min_size=1,
    )
)
@settings(deadline=None)
def test_anything_else_is_foreign_and_never_an_error(values: list[bytes | None]) -> None:
    counts, foreign = counted(values)
    assert foreign + counts.total == len(values)


def test_foreign_messages_between_audited_ones_do_not_end_the_count() -> None:
    values = [message("web-1", 5, 0, 0), b"plain", None, b"\0\0\0\0\1other", message("web-1", 5, 0, 1)]
    counts, foreign = counted(values)
    assert (counts.total, foreign) == (2, 3)
    assert counts.to_json()[0]["ranges"] == [[0, 1]]


def test_a_message_that_ends_inside_its_header_is_foreign() -> None:
    whole = message("web-1", 2**62, 10**12, 70)
    for cut in range(5, len(whole)):
        counts, foreign = counted([message("web-1", 2**62, 10**12, 69), whole[:cut]])
        assert foreign == (counts.total == 1), cut


def test_a_batch_with_broken_framing_is_an_error_and_not_a_smaller_count() -> None:
    batch = bytearray(build_batch([Message(0, None, message("web-1", 5, 0, 0))]))
    header = BatchHeader.parse(batch)
    assert header is not None
    batch[61] = 0x7E  # the record's length
    with pytest.raises(CorruptMessage):
        BatchCounter(lambda _: True).count(header, batch, SequenceCounts())


def test_a_batch_that_the_producer_wrote_in_order_is_one_range() -> None:
    counts, _ = counted([message("web-1", 5, 0, n) for n in range(500)], Codec.ZSTD)
    assert counts.range_count == 1


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
    before = [raw(long(0), long(0))] if after_another else []
    counts, foreign = counted([*before, value])
    assert (counts.total, foreign) == (len(before), 1)
    count = Count(time=0, tier="t", topic="x", source=LoadNumber(1), foreign=foreign, counts=counts)
    codec = AuditCodec(Ids())
    assert codec.decode(codec.encode(count)) == count
