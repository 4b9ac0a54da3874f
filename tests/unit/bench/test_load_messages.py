"""The load benchmark's messages: all different, in good batches, spread over eight hours."""

from __future__ import annotations

import io
from typing import Any

import fastavro

from millrace.records import iter_records, split_batches
from millrace.records.compression import Codec
from tests.bench.load.messages import BATCH_RECORDS, FIRST_MS, HOURS, stream
from tests.bench.page_views import PAGE_VIEW


def test_repetitions_are_good_batches_of_different_messages_in_the_order_of_time() -> None:
    made = stream(3 * BATCH_RECORDS, 7, Codec.ZSTD)
    twice = type(made)(
        templates=made.templates,
        instances=[*made.instances, [n - 1 for n in made.instances[0]]],
        codec=made.codec,
    )
    schema = fastavro.parse_schema(PAGE_VIEW)
    seen: set[tuple[int, int]] = set()
    times: list[int] = []

    for raw in twice.batches():
        ((header, batch),) = split_batches(memoryview(raw))
        assert header.codec is Codec.ZSTD
        for record in iter_records(header, batch):
            assert record.value is not None
            assert record.value[:5] == b"\0\0\0\0\x07"
            event: Any = fastavro.schemaless_reader(io.BytesIO(record.value[5:]), schema, None)
            seen.add((event["header"]["instance"], event["header"]["sequence"]))
            times.append(int(event["header"]["time"].timestamp() * 1000))
            assert record.timestamp == times[-1]

    assert len(seen) == len(times) == twice.messages == 2 * made.messages == 6 * BATCH_RECORDS
    assert times[0] == FIRST_MS
    firsts = times[::BATCH_RECORDS]
    assert firsts == sorted(firsts)


def test_every_hour_gets_its_share() -> None:
    hours = stream(16 * BATCH_RECORDS, 1, Codec.NONE).rows_by_hour()

    assert len(hours) == HOURS
    assert set(hours.values()) == {2 * BATCH_RECORDS}


def test_there_are_as_many_messages_as_asked_for_at_least() -> None:
    assert stream(1000, 1, Codec.NONE).messages == 1000
    assert stream(1700, 1, Codec.NONE).messages == 3000  # 1,500 distinct ones, twice
