"""From a fetch answer to one append: what is copied, what is left out, when the origin no longer fits."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from millrace.client.runs import OffsetRules, OriginChanged, Run, beginning, readable_from, runs_of
from millrace.errors import CorruptMessage
from millrace.records import (
    CONTROL_BIT,
    HEADER_BYTES,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Cursor,
    Message,
    batch_crc,
    build_batch,
    control_batch,
    filler_after,
)
from millrace.records.mirror_position import POSITION_PREFIX, MirrorPosition, Origin
from millrace.wire.fetch import FetchedPartition

ORIGIN = Origin("dc1", "PageView", UUID(int=7), 0)
MILLRACE = OffsetRules(byte_positions=True)
KAFKA = OffsetRules(byte_positions=False)
COMPACTED = OffsetRules(byte_positions=False, compacted=True)


def next_run(
    recorded: MirrorPosition | None, before: MirrorPosition, answer: FetchedPartition, rules: OffsetRules
) -> Run | None:
    """The first run of the answer, or None when it holds nothing new."""
    return next(runs_of(recorded, before, answer, rules), None)


def batch(base: int, records: int = 3, **fields: Any) -> bytes:
    return build_batch([Message(1, None, b"v%d" % i) for i in range(records)], base_offset=base, **fields)


def in_bytes(count: int, start: int = 0) -> list[bytes]:
    """Batches as a Millrace log holds them: each base is where the batch lies."""
    found: list[bytes] = []
    for _ in range(count):
        found.append(batch(start))
        start += len(found[-1])
    return found


def consecutive(count: int, start: int = 0, **fields: int) -> list[bytes]:
    """Batches of three records as Apache Kafka numbers them."""
    return [batch(start + 3 * index, **fields) for index in range(count)]


def fetched(batches: Sequence[bytes], aborted: Sequence[tuple[int, int]] = ()) -> FetchedPartition:
    return FetchedPartition(0, 10**9, 10**9, 0, memoryview(b"".join(batches)), tuple(aborted))


def all_runs(
    batches: Sequence[bytes], rules: OffsetRules, aborted: Sequence[tuple[int, int]] = ()
) -> list[Run]:
    """Every run of an answer, from an empty copy on."""
    return list(runs_of(None, beginning(ORIGIN, 0), fetched(batches, aborted), rules))


def taken(runs: Sequence[Run]) -> list[list[bytes]]:
    return [[bytes(one) for one in run.batches] for run in runs]


def header(data: bytes) -> BatchHeader:
    found = BatchHeader.parse(data)
    assert found is not None
    return found


def changed(data: bytes, **fields: int) -> bytes:
    """The batch with other header fields, and a CRC that fits."""
    new = header(data)._replace(**fields)
    body = bytearray(struct.pack(">qiibIhiqqqhii", *new) + data[HEADER_BYTES:])
    struct.pack_into(">I", body, 17, batch_crc(body))
    return bytes(body)


def test_whole_batches_are_taken_as_they_are_and_the_position_lies_behind_them() -> None:
    data = in_bytes(3)
    before = beginning(ORIGIN, 0)
    run = next_run(None, before, fetched(data), MILLRACE)
    assert run is not None
    assert run.expected is None
    assert [bytes(taken) for taken in run.batches] == data
    last = header(data[-1])
    assert run.position == MirrorPosition(
        ORIGIN, 0, Cursor(last.next_offset, last.base_offset + last.size), 3, 9, 0
    )


def test_a_second_run_begins_where_the_first_ended_and_skips_what_it_has() -> None:
    data = in_bytes(5)
    first = next_run(None, beginning(ORIGIN, 0), fetched(data[:2]), MILLRACE)
    assert first is not None
    # An origin answers with the whole batch that holds the offset: here the last one copied.
    second = next_run(first.position, first.position, fetched(data[1:]), MILLRACE)
    assert second is not None
    assert second.expected == first.position.cursor.next_offset
    assert [bytes(taken) for taken in second.batches] == data[2:]
    assert (second.position.batches, second.position.records) == (5, 15)


def test_an_answer_with_nothing_new_is_no_run() -> None:
    data = in_bytes(1)
    assert next_run(None, beginning(ORIGIN, 0), fetched([]), MILLRACE) is None
    run = next_run(None, beginning(ORIGIN, 0), fetched(data), MILLRACE)
    assert run is not None
    assert next_run(run.position, run.position, fetched(data), MILLRACE) is None


@pytest.mark.parametrize("cut", range(0, 2 * len(in_bytes(1)[0]), 7))
def test_an_unfinished_batch_at_the_end_waits_for_the_next_fetch(cut: int) -> None:
    data = in_bytes(2)
    raw = memoryview(b"".join(data)[:cut])
    run = next_run(None, beginning(ORIGIN, 0), dataclasses.replace(fetched([]), records=raw), MILLRACE)
    whole = cut // len(data[0])
    assert (0 if run is None else len(run.batches)) == whole


@pytest.mark.parametrize("rules", [MILLRACE, KAFKA])
def test_a_missing_batch_ends_the_run_before_it_and_stops_the_next(rules: OffsetRules) -> None:
    data = in_bytes(4) if rules is MILLRACE else consecutive(4)
    run = next_run(None, beginning(ORIGIN, 0), fetched([data[0], data[2], data[3]]), rules)
    assert run is not None
    assert [bytes(taken) for taken in run.batches] == data[:1]
    with pytest.raises(OriginChanged, match="are missing") as caught:
        next_run(run.position, run.position, fetched(data[2:]), rules)
    base = header(data[2]).base_offset
    assert caught.value.resume == Cursor(base, base)


def test_a_start_on_an_emptied_log_takes_the_first_batch_wherever_it_begins() -> None:
    # Everything up to byte 384 has expired; the last record's offset was 0, so the log "starts" at 1.
    data = in_bytes(2, start=384)
    run = next_run(None, beginning(ORIGIN, 1), fetched(data), MILLRACE)
    assert run is not None
    assert len(run.batches) == 2
    with pytest.raises(OriginChanged):
        next_run(None, beginning(ORIGIN, 1), fetched([batch(384)]), KAFKA)


def test_a_gap_in_kafka_is_a_gap_even_where_it_fits_the_bytes() -> None:
    first = batch(0)
    run = next_run(None, beginning(ORIGIN, 0), fetched([first]), KAFKA)
    assert run is not None
    with pytest.raises(OriginChanged):
        next_run(run.position, run.position, fetched([batch(len(first))]), KAFKA)


def test_a_gap_in_a_compacted_topic_is_no_loss() -> None:
    data = consecutive(4)
    runs = all_runs([data[0], data[3]], COMPACTED)
    assert taken(runs) == [[data[0]], [data[3]]], "a run has no gaps inside"
    assert [run.expected for run in runs] == [None, 3]
    assert runs[-1].position.cursor.next_offset == 12


def test_a_batch_that_compaction_has_emptied_is_left_out() -> None:
    empty = changed(batch(3), records_count=0)
    runs = all_runs([batch(0), empty, batch(6)], COMPACTED)
    assert taken(runs) == [[batch(0)], [batch(6)]]
    last = runs[-1].position
    assert (last.records, last.dropped, last.cursor.next_offset, last.numbered) == (6, 0, 9, True)


def test_control_batches_of_a_millrace_origin_are_dropped_and_counted() -> None:
    tiny = changed(batch(0, 1), last_offset_delta=199, records_count=1)
    filler = filler_after(header(tiny), timestamp=1)
    assert filler is not None
    at = len(tiny) + len(filler)
    marker = control_batch(at, b"position", timestamp=1)
    data = batch(at + len(marker))
    runs = all_runs([tiny, filler, marker, data], MILLRACE)
    assert taken(runs) == [[tiny], [data]], "what is left out, but for a filler, begins a run of its own"
    assert runs[0].position.cursor == Cursor(at, at)
    last = runs[-1].position
    assert last.dropped == 2
    assert last.cursor == Cursor(header(data).next_offset, header(data).base_offset + len(data))


def test_a_filler_between_two_batches_does_not_end_the_run() -> None:
    tiny = changed(batch(0, 1), last_offset_delta=199, records_count=1)
    filler = filler_after(header(tiny), timestamp=1)
    assert filler is not None
    data = batch(len(tiny) + len(filler))
    assert taken(all_runs([tiny, filler, data], MILLRACE)) == [[tiny, data]]


@pytest.mark.parametrize(("records_end", "lost"), [(100, False), (99, False), (101, True)])
def test_a_mirror_whose_unseen_position_has_expired_is_read_on_unless_records_have(
    records_end: int, lost: bool
) -> None:
    # The origin is itself a mirror: its last position batch was never served, and retention took it.
    at = 5_000
    position = MirrorPosition(Origin("dc0", "PageView", UUID(int=1), 0), 0, Cursor(9, 80), 1, 1, 0)
    marker = control_batch(at, position.encode(records_end), timestamp=1)
    data = batch(at + len(marker))
    before = dataclasses.replace(beginning(ORIGIN, 0), cursor=Cursor(100, 160))
    answer = dataclasses.replace(fetched([marker, data]), log_start_offset=at)
    assert readable_from(before.cursor, at, at + 900, MILLRACE) == at
    if lost:
        with pytest.raises(OriginChanged, match="offsets 100 to 4999 expired"):
            next_run(before, before, answer, MILLRACE)
    else:
        run = next_run(before, before, answer, MILLRACE)
        assert run is not None
        assert taken([run]) == [[data]]


@pytest.mark.parametrize("stated", [b"{", b"[]", b"{}", b'{"records_end":"x"}', b"[" * 100_000])
def test_a_position_that_states_nonsense_accounts_for_no_gap(stated: bytes) -> None:
    marker = control_batch(5_000, POSITION_PREFIX + stated, timestamp=1)
    before = dataclasses.replace(beginning(ORIGIN, 0), cursor=Cursor(100, 160))
    with pytest.raises(OriginChanged, match="offsets 100 to 4999 are missing"):
        next_run(before, before, fetched([marker]), MILLRACE)


def test_a_fetch_that_leaves_a_filler_out_has_no_gap() -> None:
    tiny = changed(batch(0, 1), last_offset_delta=199, records_count=1)
    filler = filler_after(header(tiny), timestamp=1)
    assert filler is not None
    first = next_run(None, beginning(ORIGIN, 0), fetched([tiny]), MILLRACE)
    assert first is not None
    # Offset 200 is a byte position inside the filler, so the origin answers with the batch behind it.
    data = batch(len(tiny) + len(filler))
    second = next_run(first.position, first.position, fetched([data]), MILLRACE)
    assert second is not None
    assert [bytes(taken) for taken in second.batches] == [data]


def transaction(base: int, producer: int, *, commit: bool) -> tuple[list[bytes], tuple[int, int]]:
    """A batch of three records and its marker, as Apache Kafka has them; (producer, first offset)."""
    data = batch(base, attributes=TRANSACTIONAL_BIT, producer_id=producer, producer_epoch=0, base_sequence=0)
    key = b"\0\0\0\1" if commit else b"\0\0\0\0"
    marker = build_batch(
        [Message(1, key, b"\0\0\0\0\0\0")],
        base_offset=base + 3,
        producer_id=producer,
        producer_epoch=0,
        attributes=TRANSACTIONAL_BIT | CONTROL_BIT,
    )
    return [data, marker], (producer, base)


def test_aborted_transactions_are_dropped_committed_ones_are_kept() -> None:
    kept, _ = transaction(0, 5, commit=True)
    gone, aborted = transaction(4, 5, commit=False)
    after, _ = transaction(8, 5, commit=True)
    other = batch(12, attributes=TRANSACTIONAL_BIT, producer_id=6, producer_epoch=0, base_sequence=0)
    runs = all_runs([*kept, *gone, *after, other], KAFKA, [aborted])
    assert taken(runs) == [[kept[0]], [after[0]], [other]]
    last = runs[-1].position
    assert (last.records, last.dropped, last.cursor.next_offset) == (9, 3 + 3, 15)


def test_an_aborted_transaction_that_began_before_the_fetch_is_known() -> None:
    gone, _ = transaction(4, 5, commit=False)
    before = dataclasses.replace(beginning(ORIGIN, 0), cursor=Cursor(4, 4))
    run = next_run(before, before, fetched(gone, [(5, 0)]), KAFKA)
    assert run is not None
    assert (run.batches, run.position.dropped, run.position.cursor.next_offset) == ((), 4, 8)


def test_a_damaged_batch_is_never_copied() -> None:
    data = in_bytes(3)
    damaged = bytearray(data[1])
    damaged[-1] ^= 1
    answer = fetched([data[0], bytes(damaged), data[2]])
    run = next_run(None, beginning(ORIGIN, 0), answer, MILLRACE)
    assert run is not None
    assert [bytes(taken) for taken in run.batches] == data[:1], "what precedes it is"
    with pytest.raises(CorruptMessage):
        next_run(run.position, run.position, answer, MILLRACE)


@pytest.mark.parametrize("size", [27, 60])
def test_a_batch_that_states_to_be_shorter_than_its_header_is_damaged(size: int) -> None:
    first, forged = batch(0), bytearray(batch(3))
    struct.pack_into(">i", forged, 8, size - 12)
    struct.pack_into(">I", forged, 17, batch_crc(forged[:size]))
    run = next_run(None, beginning(ORIGIN, 0), fetched([first, bytes(forged)]), KAFKA)
    assert run is not None
    assert taken([run]) == [[first]]
    with pytest.raises(CorruptMessage, match="no batch of format 2"):
        next_run(run.position, run.position, fetched([bytes(forged)]), KAFKA)


def test_a_batch_that_covers_what_is_copied_is_refused_except_right_after_a_start() -> None:
    before = dataclasses.replace(beginning(ORIGIN, 0), cursor=Cursor(4, 4))
    with pytest.raises(OriginChanged, match="copied already") as caught:
        next_run(before, before, fetched([batch(3)]), KAFKA)
    assert caught.value.resume == Cursor(6, 6)
    # Records below a log's start may still lie in its first batch.
    start = beginning(ORIGIN, 4)
    run = next_run(None, start, fetched([batch(3)]), KAFKA)
    assert run is not None
    assert run.position.start == 4


@pytest.mark.parametrize(
    ("cursor", "earliest", "high_watermark", "expected"),
    [
        (Cursor(100, 150), 0, 100, 100),
        (Cursor(100, 150), 100, 400, 100),
        (Cursor(100, 150), 150, 400, 150),
        (Cursor(100), 150, 400, 150),
        (Cursor(100, 150), 151, 400, 151),  # what is there tells whether records are missing
    ],
)
def test_reading_goes_on_when_nothing_that_was_missing_has_expired(
    cursor: Cursor, earliest: int, high_watermark: int, expected: int
) -> None:
    assert readable_from(cursor, earliest, high_watermark, MILLRACE) == expected


@pytest.mark.parametrize(
    ("rules", "cursor", "earliest", "high_watermark", "reason"),
    [
        (KAFKA, Cursor(100, 100), 150, 400, "expired"),
        (MILLRACE, Cursor(100, 100), 150, 150, "expired"),
        (KAFKA, Cursor(100), 150, 400, "expired"),
        (MILLRACE, Cursor(100, 150), 0, 99, "lost what it showed"),
        (MILLRACE, Cursor(100, 150), 0, 149, "lost what it showed"),  # a log begun anew, not yet as long
    ],
)
def test_lost_offsets_stop_the_mirror_and_say_where_it_may_go_on(
    rules: OffsetRules, cursor: Cursor, earliest: int, high_watermark: int, reason: str
) -> None:
    with pytest.raises(OriginChanged, match=reason) as caught:
        readable_from(cursor, earliest, high_watermark, rules)
    resume = caught.value.resume
    assert resume.next_offset == (earliest if reason == "expired" else high_watermark)
    # An empty Millrace log tells its end as an offset only: the next batch may begin anywhere behind it.
    assert resume.next_base is None
