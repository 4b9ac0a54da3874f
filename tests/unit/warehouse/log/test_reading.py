"""Ranges cut by bytes and read from a log in memory: each record once, each gap and control batch counted."""

from __future__ import annotations

import dataclasses
import itertools
import random
import struct
from uuid import UUID

import pytest

from millrace.client.cluster_client import TopicMetadata
from millrace.errors import MillraceError
from millrace.records import (
    CONTROL_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Cursor,
    Message,
    batch_crc,
    build_batch,
    iter_records,
)
from millrace.records.compression import Codec
from millrace_warehouse.log.messages import frames_of
from millrace_warehouse.log.ranges import Cut, Gap, Range, RangeStats, cut_ranges, join_stats
from millrace_warehouse.log.reading import read_cut
from tests.unit.warehouse import memory_log
from tests.unit.warehouse.log.logs import TOPIC_ID, MemoryLog, made_log


def range_of(log: MemoryLog, start: int | None = None, end: int | None = None) -> Range:
    first = log.log_start if start is None else start
    return Range(
        "T", 0, first, log.high_watermark if end is None else end, first if start is None else None, TOPIC_ID
    )


def read(log: MemoryLog, cut: Cut, fetch_bytes: int = 1 << 20) -> tuple[list[int], RangeStats]:
    stats = RangeStats.for_cut(cut)
    offsets: list[int] = []
    for frames, rejected in frames_of(
        cut, read_cut(log, cut, stats, fetch_bytes=fetch_bytes, timeout_s=0), stats
    ):
        assert rejected == []
        offsets += frames.offset.tolist()
    return offsets, stats


def all_offsets(log: MemoryLog) -> list[int]:
    return [
        record.offset
        for header, raw in zip(log.headers, log.batches, strict=True)
        if not header.is_control
        for record in iter_records(header, raw)
    ]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_cuts_of_every_size_give_each_record_exactly_once(seed: int) -> None:
    log = made_log(seed)
    range_, dice, expected = range_of(log), random.Random(seed), all_offsets(log)
    data = [header for header in log.headers if not header.is_control]
    control = [header for header in log.headers if header.is_control and header.base_offset < range_.end]
    for cut_bytes in [*range(150, 1500, 37), 5000, 1 << 40]:
        cuts = cut_ranges([range_], cut_bytes)
        dice.shuffle(cuts)
        results = [read(log, cut, dice.choice((1, 700, 1 << 20))) for cut in cuts]
        assert sorted(itertools.chain.from_iterable(offsets for offsets, _ in results)) == expected
        joined = join_stats(range_, [stats for _, stats in results])
        assert joined.gaps == []
        assert (joined.data_batches, joined.control_batches) == (len(data), len(control))
        assert joined.bytes == sum(header.size for header in [*data, *control])
        assert joined.records == len(expected)
        end = Cursor(range_.end, data[-1].base_offset + data[-1].size)
        assert (joined.first_base, joined.cursor) == (0, end)


def test_batches_that_an_answer_repeats_are_not_taken_twice() -> None:
    log = made_log(8)
    log.early = 2
    for cut_bytes in (400, 3000, 1 << 40):
        results = [read(log, cut, 1 << 14) for cut in cut_ranges([range_of(log)], cut_bytes)]
        assert [offset for offsets, _ in results for offset in offsets] == all_offsets(log)
        assert join_stats(range_of(log), [stats for _, stats in results]).gaps == []


def test_the_next_range_goes_on_where_the_last_one_ended_whatever_lies_between() -> None:
    log, offsets, start, base = MemoryLog(), [], 0, None
    for round_ in range(5):
        log.append([Message(0, None, b"x" * 50)] * 3)
        log.append_control(b"at the end, not served until data follows")
        range_ = Range("T", 0, start, log.high_watermark, base)
        results = [read(log, cut) for cut in cut_ranges([range_], 100)]
        offsets += [offset for found, _ in results for offset in found]
        joined = join_stats(range_, [stats for _, stats in results])
        assert joined.gaps == []
        assert joined.control_batches == (1 if round_ else 0)
        assert joined.cursor is not None
        start, base = joined.cursor.next_offset, joined.cursor.next_base
    assert offsets == all_offsets(log)


@pytest.mark.parametrize("cut_bytes", [60, 200, 1 << 40])
def test_a_range_that_begins_and_ends_inside_batches_takes_only_its_records(cut_bytes: int) -> None:
    log = MemoryLog()
    for _ in range(6):
        log.append([Message(0, None, b"x" * 20)] * 10)
    expected = all_offsets(log)
    for start, end in [
        (3, 8),
        (3, log.high_watermark),
        (expected[12], expected[44]),
        (expected[9] + 1, expected[33] + 1),
    ]:
        found = [read(log, cut)[0] for cut in cut_ranges([range_of(log, start, end)], cut_bytes)]
        assert list(itertools.chain(*found)) == [offset for offset in expected if start <= offset < end]


def test_what_is_missing_between_batches_is_a_gap_wherever_the_cuts_lie() -> None:
    log = MemoryLog()
    for _ in range(9):
        log.append([Message(0, None, b"x" * 20)] * 3)
    headers = log.headers
    range_ = range_of(log)
    for index in (0, 3, 4, 8):  # compacted away, or lost
        log.batches[index] = b""
    log.batches = [raw for raw in log.batches if raw]
    expected = [
        Gap(0, headers[1].base_offset, "absent"),
        Gap(headers[2].next_offset, headers[5].base_offset, "absent"),
        Gap(headers[7].next_offset, range_.end, "absent"),
    ]
    # The last batch is gone: the log has nothing at the end of the range, which only Apache Kafka may do.
    log.batches.append(build_batch([Message(0, None, b"later")], base_offset=range_.end))
    log.high_watermark += 1
    for cut_bytes in (30, 100, 250, 1 << 40):
        parts = [read(log, cut)[1] for cut in cut_ranges([range_], cut_bytes)]
        assert join_stats(range_, parts).gaps == expected, cut_bytes


def test_offsets_that_expired_after_planning_are_a_gap_with_that_reason() -> None:
    log = MemoryLog()
    for _ in range(9):
        log.append([Message(0, None, b"x" * 20)] * 3)
    range_ = range_of(log)
    log.expire(4)
    for cut_bytes in (30, 100, 1 << 40):
        results = [read(log, cut) for cut in cut_ranges([range_], cut_bytes)]
        assert list(itertools.chain(*(found for found, _ in results))) == all_offsets(log)
        joined = join_stats(range_, [stats for _, stats in results])
        assert joined.gaps == [Gap(0, log.log_start, "expired")], cut_bytes


def test_offsets_that_expire_between_two_tasks_are_all_accounted_for() -> None:
    log = MemoryLog()
    for _ in range(9):
        log.append([Message(0, None, b"x" * 20)] * 3)
    range_ = range_of(log)
    first, second = cut_ranges([range_], 500)[:2]
    rest = cut_ranges([range_], 500)[2:]
    parts = [read(log, first)[1]]
    log.expire(6)
    parts += [read(log, cut)[1] for cut in [second, *rest]]
    joined = join_stats(range_, parts)
    assert {gap.reason for gap in joined.gaps} == {"expired"}
    assert parts[0].cursor is not None
    assert joined.gaps[0].start == parts[0].cursor.next_offset
    assert joined.gaps[-1].end == log.log_start


def kafka_log(*bases: int, records: int = 10) -> MemoryLog:
    """Offsets count records, as in Apache Kafka: batches of ten at these offsets."""
    log = MemoryLog([build_batch([Message(0, None, b"v")] * records, base_offset=base) for base in bases])
    log.high_watermark = bases[-1] + records
    return log


@pytest.mark.parametrize("log_start", [1, 10, 13, 19, 25, 29, 30])
@pytest.mark.parametrize("cut_bytes", [300, 700, 1 << 40])
def test_records_below_a_log_start_inside_a_batch_are_gone_and_the_others_are_read(
    log_start: int, cut_bytes: int
) -> None:
    # Apache Kafka answers with the whole batch that holds its log start, also after DeleteRecords.
    log = kafka_log(0, 10, 20)
    range_ = dataclasses.replace(range_of(log), byte_positions=False)
    log.log_start = log_start
    results = [read(log, cut) for cut in cut_ranges([range_], cut_bytes)]
    assert [offset for found, _ in results for offset in found] == list(range(log_start, 30))
    joined = join_stats(range_, [stats for _, stats in results])
    assert joined.gaps == [Gap(0, log_start, "expired")]
    assert joined.records == 30 - log_start
    assert joined.cursor is not None
    assert joined.cursor.next_offset == 30


@pytest.mark.parametrize("before", [0, 3, 10, 24])
@pytest.mark.parametrize("after", [6, 10, 17, 27, 30])
def test_a_log_start_that_moves_between_tasks_takes_no_record_and_counts_none_twice(
    before: int, after: int
) -> None:
    log = kafka_log(0, 10, 20)
    range_ = dataclasses.replace(range_of(log), byte_positions=False)
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]):
        cuts = cut_ranges([range_], 800)
        results = {}
        for number, index in enumerate(order):
            log.log_start = before if number < 2 else max(before, after)
            results[index] = read(log, cuts[index])
        joined = join_stats(range_, [results[index][1] for index in sorted(results)])
        found = [offset for index in sorted(results) for offset in results[index][0]]
        lost = [offset for gap in joined.gaps for offset in range(gap.start, gap.end)]
        assert sorted(found + lost) == list(range(30)), (order, joined.gaps)
        assert set(found) >= set(range(log.log_start, 30))


def test_a_log_that_ends_before_the_range_is_an_error_not_an_end() -> None:
    log = made_log(4)
    cut = cut_ranges([Range("T", 0, 0, log.high_watermark + 1000)], 1 << 40)[0]
    with pytest.raises(MillraceError, match=r"T-0 returned no data at offset \d+ .* lost messages"):
        read(log, cut)
    with pytest.raises(MillraceError, match="the log has only"):
        read(log, Cut(cut.range, log.high_watermark + 1, log.high_watermark + 1000))


def test_where_messages_may_be_lost_the_log_s_end_is_the_end() -> None:
    log = made_log(4)
    cut = cut_ranges([Range("T", 0, 0, log.high_watermark + 1000)], 1 << 40)[0]
    read = read_cut(log, cut, RangeStats.for_cut(cut), timeout_s=0, lost_ok=True)
    data = [header for header in log.headers if not header.is_control]
    assert [header for fetched in read for header, _ in fetched.batches] == data


def test_a_topic_created_anew_is_refused() -> None:
    log = made_log(5, 3)
    with pytest.raises(MillraceError, match="recreated"):
        read(log, cut_ranges([Range("T", 0, 0, log.high_watermark, topic_id=UUID(int=8))], 1 << 40)[0])


@pytest.mark.parametrize("lost_ok", [False, True])
def test_a_topic_created_anew_while_it_is_read_is_refused(
    monkeypatch: pytest.MonkeyPatch, lost_ok: bool
) -> None:
    log = made_log(5, 3)
    ids = iter((TOPIC_ID, UUID(int=8)))
    monkeypatch.setattr(log, "topic", lambda name: TopicMetadata(name, next(ids), {0: 1}))
    cut = cut_ranges([range_of(log)], 1 << 40)[0]
    with pytest.raises(MillraceError, match="recreated"):
        list(read_cut(log, cut, RangeStats.for_cut(cut), lost_ok=lost_ok))


def test_on_apache_kafka_no_gap_passes_for_the_end_of_a_batch() -> None:
    # Offsets count records: what is missing happens to end at the number of bytes of the first batch.
    log = MemoryLog([build_batch([Message(0, None, b"first")])])
    end = len(log.batches[0])
    log.batches.append(build_batch([Message(0, None, b"second")], base_offset=end))
    log.high_watermark = end + 1
    range_ = dataclasses.replace(range_of(log), byte_positions=False)
    joined = join_stats(range_, [read(log, cut)[1] for cut in cut_ranges([range_], 1 << 40)])
    assert joined.gaps == [Gap(1, end, "absent")]
    assert joined.cursor == Cursor(end + 1, end + 1)


def test_what_expires_behind_the_reader_s_back_is_no_gap() -> None:
    log = MemoryLog()
    for _ in range(9):
        log.append([Message(0, None, b"x" * 20)] * 3)
    expected, cut = all_offsets(log), cut_ranges([range_of(log)], 1 << 40)[0]
    stats = RangeStats.for_cut(cut)
    reading = read_cut(log, cut, stats, fetch_bytes=1, timeout_s=0)
    first = [next(reading), next(reading)]
    log.expire(2)
    found = frames_of(cut, itertools.chain(first, reading), stats)
    assert [offset for frames, _ in found for offset in frames.offset.tolist()] == expected
    assert join_stats(cut.range, [stats]).gaps == []


@pytest.mark.parametrize("lost_ok", [False, True])
def test_a_log_that_is_cut_back_and_grows_again_while_it_is_read_is_refused(lost_ok: bool) -> None:
    log = memory_log.MemoryLog(1)
    log.sequence = 100  # batches of one size: no offset is missing where the next epoch begins
    log.append_events(0, [memory_log.START] * 50)
    cut = Cut(Range(log.name, 0, 0, log.partitions[0].high_watermark), 0, log.partitions[0].high_watermark)
    stats = RangeStats.for_cut(cut)
    reading = read_cut(log, cut, stats, fetch_bytes=1, lost_ok=lost_ok)
    read = [next(reading), next(reading)]
    log.put_back(0, 1)
    log.append_events(0, [memory_log.START] * 100)
    if lost_ok:
        assert len([*read, *reading]) == 5
        return
    with pytest.raises(MillraceError, match=r"PageView-0 was read up to offset \d+ in epoch 0.*: run again"):
        list(reading)


def test_a_damaged_batch_stops_the_reading_with_its_place() -> None:
    log = MemoryLog()
    log.append([Message(0, None, b"x" * 50)])
    damaged = bytearray(log.batches[0])
    damaged[-10] ^= 1
    log.batches[0] = bytes(damaged)
    with pytest.raises(MillraceError, match=r"T-0: the batch at offset 0 fails its CRC"):
        read(log, cut_ranges([range_of(log)], 1 << 40)[0])


def test_batches_of_aborted_transactions_are_counted_but_not_read() -> None:
    def sealed(raw: bytes, producer: int, bits: int) -> bytes:
        changed = bytearray(raw)
        changed[22] |= bits
        struct.pack_into(">q", changed, 43, producer)
        struct.pack_into(">I", changed, 17, batch_crc(changed))
        return bytes(changed)

    log, offset = MemoryLog(), 0
    # Offsets count records here, as in Apache Kafka: producer 1 aborts, 2 commits, then 1 commits.
    for producer, bits in [
        (1, 0),
        (2, 0),
        (1, 0),
        (1, CONTROL_BIT),
        (2, CONTROL_BIT),
        (1, 0),
        (1, CONTROL_BIT),
    ]:
        messages = [Message(0, None, b"v")] * (1 if bits else 2)
        raw = build_batch(messages, base_offset=offset)
        log.batches.append(sealed(raw, producer, bits | TRANSACTIONAL_BIT))
        offset += len(messages)
    log.batches.append(build_batch([Message(0, None, b"in no transaction")], base_offset=offset))
    log.high_watermark, log.aborted = offset + 1, ((1, 0),)
    offsets, stats = read(log, cut_ranges([range_of(log)], 1 << 40)[0])
    assert offsets == [2, 3, 8, 9, 11]
    assert (stats.data_batches, stats.control_batches) == (3, 5)


def test_the_times_of_a_cut_widen() -> None:
    stats = RangeStats("T", 0, 0, 100)
    stats.add_times(5, 9)
    stats.add_times(3, 4)
    assert (stats.min_time, stats.max_time) == (3, 9)


def test_joining_refuses_tasks_that_do_not_cover_the_range_once() -> None:
    range_ = Range("T", 0, 0, 100)
    parts = [RangeStats.for_cut(cut) for cut in cut_ranges([range_], 25)]
    join_stats(range_, parts)
    for wrong in (parts[1:], parts[:-1], [*parts, parts[0]], parts[:1] + parts[2:]):
        with pytest.raises(MillraceError, match="run the load again"):
            join_stats(range_, wrong)


def test_ranges_are_cut_without_overlap_and_without_empty_cuts() -> None:
    for span, size in itertools.product((0, 1, 2, 99, 100, 101, 1000), (1, 3, 100)):
        range_ = Range("T", 0, 50, 50 + span)
        cuts = cut_ranges([range_], size)
        assert [cut.first for cut in cuts] == [50, *[cut.last for cut in cuts[:-1]]][: len(cuts)]
        assert all(0 < cut.last - cut.first <= size for cut in cuts)
        assert sum(cut.last - cut.first for cut in cuts) == span
    with pytest.raises(ValueError, match="positive"):
        cut_ranges([], 0)


def test_a_header_is_parsed_from_every_batch_of_the_made_log() -> None:
    log = made_log(7)
    kinds = {(header.is_control, header.last_offset_delta > 0) for header in log.headers}
    assert kinds == {(False, False), (False, True), (True, False), (True, True)}
    assert {header.codec for header in log.headers} >= set(Codec)
    assert isinstance(log.headers[0], BatchHeader)
