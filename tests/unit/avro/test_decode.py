"""Raw batches to rows: every record is a row or is rejected with a reason, and is counted."""

from __future__ import annotations

import json
import random
import struct
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from millrace.errors import MillraceError
from millrace.records import Message, batch_crc
from millrace.records.compression import Codec
from millrace_audit.reports.counts import FIRST_EVENT_MS, SequenceCounts, window_start
from millrace_audit.reports.record_header import HEADER_NAME, encode_header, topic_tag
from millrace_avro.schema import SchemaError
from millrace_warehouse.columns import LOG_FIELDS, OWN_FIELDS
from millrace_warehouse.log.messages import DecodedBatch, Decoder, Filing
from millrace_warehouse.log.ranges import Range, RangeStats, cut_ranges, join_stats
from millrace_warehouse.log.reading import read_cut
from millrace_warehouse.sequences import count_sequences
from tests.support import REPOSITORY
from tests.unit.avro.avro_cases import encode
from tests.unit.warehouse.log.logs import MemoryLog

PAGE_VIEW = json.loads((REPOSITORY / "schemas" / "PageView.avsc").read_text())
NEWER = {**PAGE_VIEW, "fields": [*PAGE_VIEW["fields"], {"name": "more", "type": "string", "default": "-"}]}
OTHER = {"type": "record", "name": "Other", "fields": [{"name": "a", "type": "long"}]}
SCHEMAS: dict[int, Any] = {
    1: PAGE_VIEW,
    2: NEWER,
    3: OTHER,
    4: {"type": "enum", "name": "E", "symbols": ["A"]},
}
START = 1431857103000
MICROS = {"type": "long", "logicalType": "timestamp-micros"}


def page_view(
    sequence: int, *, time: int = START, server: str = "web-1", instance: int = 7
) -> dict[str, Any]:
    header = {"time": time, "server": server, "service": "www", "instance": instance, "sequence": sequence}
    return {
        "header": header,
        "memberId": None,
        "clientAddress": "10.0.0.1",
        "method": "GET",
        "url": "/é",
        "protocol": "HTTP/1.1",
        "referrer": None,
        "userAgent": None,
        "status": 200,
        "bytes": None,
        "more": "!",
    }


def message(schema_id: int, body: bytes, **more: Any) -> Message:
    return Message(START, more.get("key"), b"\0" + schema_id.to_bytes(4, "big") + body)


def view(sequence: int, schema_id: int = 1, **more: Any) -> Message:
    return message(schema_id, encode(SCHEMAS[schema_id], page_view(sequence, **more)))


def decode(
    log: MemoryLog,
    table: Any = PAGE_VIEW,
    cut_bytes: int = 1 << 40,
    filing: Filing | None = None,
    lookup: Any = SCHEMAS.get,
) -> tuple[list[DecodedBatch], RangeStats]:
    range_ = Range("PageView", 3, 0, log.high_watermark, 0)
    decoder, parts = Decoder(table, lookup, filing), []
    batches: list[DecodedBatch] = []
    for cut in cut_ranges([range_], cut_bytes):
        stats = RangeStats.for_cut(cut)
        batches += decoder.decode(cut, read_cut(log, cut, stats, timeout_s=0), stats)
        parts.append(stats)
    for batch in batches:
        assert batch.rows.schema == decoder.arrow_schema
        batch.rows.validate(full=True)
    return batches, join_stats(range_, parts)


def table_of(batches: list[DecodedBatch]) -> pa.Table:
    return pa.Table.from_batches([batch.rows for batch in batches])


def test_rows_carry_where_they_come_from() -> None:
    log = MemoryLog()
    log.append([view(0), Message(-1, b"key", view(1).value)], Codec.ZSTD)
    batches, stats = decode(log)
    rows = table_of(batches).to_pylist()
    assert [[row[field.name] for field in LOG_FIELDS if field.name != "_timestamp"] for row in rows] == [
        [3, 0, None, 1],
        [3, 1, b"key", 1],
    ]
    assert [row["_timestamp"].timestamp() for row in rows] == [START / 1000, -0.001]
    assert (stats.records, stats.rejected, stats.schema_ids) == (2, 0, {1: 2})
    assert (stats.min_time, stats.max_time) == (START, START)


def test_rows_outside_a_load_carry_their_sender_from_the_record_header_too() -> None:
    header = encode_header(topic_tag("PageView"), 9, 5, START)
    log = MemoryLog()
    log.append([Message(START, None, view(0).value, ((HEADER_NAME, header),)), view(1)])
    rows = table_of(decode(log)[0])
    assert rows.column_names[-2:] == ["_instance", "_sequence"]
    assert (rows["_instance"].to_pylist(), rows["_sequence"].to_pylist()) == ([9, None], [5, None])


def test_writers_of_several_schemas_fill_one_table() -> None:
    log = MemoryLog()
    log.append([view(0), view(1, 2), view(2), view(3, 2)])
    batches, stats = decode(log, NEWER)
    rows = sorted(table_of(batches).to_pylist(), key=lambda row: int(row["_offset"]))
    assert [(row["header"]["sequence"], row["more"], row["_schema_id"]) for row in rows] == [
        (0, "-", 1),
        (1, "!", 2),
        (2, "-", 1),
        (3, "!", 2),
    ]
    assert stats.schema_ids == {1: 2, 2: 2}
    assert "more" not in table_of(decode(log, PAGE_VIEW)[0]).column_names


def test_what_cannot_be_decoded_is_set_aside_with_reason_and_bytes() -> None:
    log = MemoryLog()
    bad = [
        (Message(0, None, b""), "does not begin", None),
        (Message(0, None, b"\0\0\0\1"), "does not begin", None),
        (Message(0, None, b"\1\0\0\0\1xxxx"), "does not begin", None),
        (message(99, b"xxxx"), "99 is not in the registry", 99),
        (message(0xFFFFFFFF, b"xxxx"), "4294967295 is not in the registry", -1),
        (message(3, b"\2"), "schema 3 does not fit the table: it has type Other", 3),
        (message(4, b"\0"), "schema 4 is not a record", 4),
        (message(1, b""), "past the end", 1),
        (Message(0, None, (view(0).value or b"") + b"\0"), "bytes are left", 1),
        (view(0, time=1 << 60), "header.time: out of range for timestamp-millis", 1),
    ]
    messages = [view(0), *[each for each, _, _ in bad], view(1)]
    log.append(messages)
    batches, stats = decode(log)
    assert [row["header"]["sequence"] for row in table_of(batches).to_pylist()] == [0, 1]
    rejected = sorted((each for batch in batches for each in batch.rejected), key=lambda each: each.offset)
    assert [each.offset for each in rejected] == list(range(1, len(bad) + 1))
    for each, (sent, reason, schema_id) in zip(rejected, bad, strict=True):
        assert reason in each.reason
        assert each.raw == (sent.value or b"")
        assert (each.partition, each.records, each.schema_id) == (3, 1, schema_id)
    assert (stats.records, stats.rejected, stats.schema_ids) == (len(messages), len(bad), {1: 2})


def test_a_batch_that_cannot_be_unpacked_is_set_aside_as_a_whole() -> None:
    log = MemoryLog()
    log.append([view(0)])
    log.append([view(1)] * 4)
    log.append([view(2)])
    damaged = bytearray(log.batches[1])
    damaged[22] |= Codec.ZSTD
    struct.pack_into(">I", damaged, 17, batch_crc(damaged))
    log.batches[1] = bytes(damaged)
    batches, stats = decode(log)
    assert [row["header"]["sequence"] for row in table_of(batches).to_pylist()] == [0, 2]
    ((rejected,),) = [batch.rejected for batch in batches if batch.rejected]
    assert (rejected.offset, rejected.records) == (log.headers[1].base_offset, 4)
    assert rejected.raw == bytes(damaged)
    assert "zstd" in rejected.reason
    assert (stats.records, stats.rejected) == (6, 4)


def test_the_account_closes_however_damaged_the_messages_and_wherever_the_cuts() -> None:
    dice, log, sent = random.Random(5), MemoryLog(), 0
    for _ in range(40):
        messages = []
        for _ in range(dice.randint(1, 60)):
            value = bytearray(view(sent, dice.choice((1, 2))).value or b"")
            if dice.random() < 0.2:
                value[dice.randrange(len(value))] = dice.randrange(256)
            messages.append(Message(START, None, bytes(value)))
            sent += 1
        log.append(messages, dice.choice(list(Codec)))
        log.append_control(b"x" * dice.randrange(100))
    for cut_bytes in (700, 5000, 1 << 40):
        batches, stats = decode(log, NEWER, cut_bytes)
        rows = sum(batch.rows.num_rows for batch in batches)
        rejected = sum(each.records for batch in batches for each in batch.rejected)
        assert (stats.records, stats.rejected) == (sent, rejected)
        assert rows + rejected == sent
        assert sum(stats.schema_ids.values()) == rows
        assert rejected > 50


@pytest.mark.parametrize("name", ["_offset", "_load", "_TIME", "_partition"])
def test_a_table_whose_field_has_one_of_our_names_is_refused(name: str) -> None:
    table = {"type": "record", "name": "R", "fields": [{"name": name, "type": "long"}]}
    with pytest.raises(SchemaError, match=name):
        Decoder(table, SCHEMAS.get)
    with pytest.raises(SchemaError, match="must be an Avro record"):
        Decoder({"type": "array", "items": "long"}, SCHEMAS.get)


def test_an_unreachable_registry_stops_the_task_instead_of_rejecting_rows() -> None:
    def lookup(schema_id: int) -> None:
        raise MillraceError("registry http://localhost:1 does not answer")

    log = MemoryLog()
    log.append([view(0)])
    cut = cut_ranges([Range("PageView", 0, 0, log.high_watermark)], 1 << 40)[0]
    stats = RangeStats.for_cut(cut)
    with pytest.raises(MillraceError, match="does not answer"):
        list(Decoder(PAGE_VIEW, lookup).decode(cut, read_cut(log, cut, stats), stats))


def test_a_rejected_message_is_counted_by_the_record_header_before_the_header_in_its_value() -> None:
    ours = encode_header(topic_tag("PageView"), 7, 0, START + 60_000)
    foreign = encode_header(topic_tag("Another"), 7, 1, START + 60_000)
    broken = view(5, time=START - 60_000).value
    assert broken is not None
    log = MemoryLog()
    log.append(
        [
            Message(START, None, b"{}", ((HEADER_NAME, ours),)),
            Message(START, None, b"{}", (("traceparent", b"-"), (HEADER_NAME, ours), (HEADER_NAME, foreign))),
            Message(START, None, b"{}", ((HEADER_NAME, foreign), (HEADER_NAME, ours))),
            Message(START, None, b"{}"),
            Message(START, None, broken[:-1], ((HEADER_NAME, ours),)),
            Message(START, None, broken[:-1], ((HEADER_NAME, foreign),)),
        ]
    )
    batches, _ = decode(log)
    rejected = sorted((record for batch in batches for record in batch.rejected), key=lambda r: r.offset)
    assert [(record.timestamp - START, record.keyed) for record in rejected] == [
        (60_000, True),
        (60_000, True),
        (0, False),
        (0, False),
        (60_000, True),
        (-60_000, True),
    ]


def test_events_without_an_audit_header_have_the_time_of_their_record() -> None:
    log = MemoryLog()
    log.append([message(3, b"\2")])
    batches, stats = decode(log, OTHER)
    assert (stats.min_time, stats.max_time) == (START, START)
    assert count_sequences(batches[0].rows) == SequenceCounts()
    ((filed,), _) = decode(log, OTHER, filing=Filing(1, START + 1))
    assert filed.rows["_time"].cast(pa.int64()).to_pylist() == [START * 1000]


def test_the_rows_of_a_load_carry_its_number_and_the_time_they_are_filed_by() -> None:
    log = MemoryLog()
    log.append([view(0), view(1, time=START + 1)], Codec.ZSTD)
    ((batch,), _) = decode(log, filing=Filing(load=1 << 40, file_by_ms=START + 2))
    assert batch.rows.schema.names[-len(OWN_FIELDS) :] == [field.name for field in OWN_FIELDS]
    assert batch.rows["_load"].to_pylist() == [1 << 40] * 2
    assert batch.rows["_time"].cast(pa.int64()).to_pylist() == [START * 1000, (START + 1) * 1000]
    assert "_time" not in decode(log)[0][0].rows.schema.names


YEAR_1, YEAR_9999 = -62_135_596_800_000, 253_402_300_799_999


@pytest.mark.parametrize(
    ("time", "filed"),
    [
        (YEAR_1, False),
        (0, False),
        (FIRST_EVENT_MS - 1, False),
        (FIRST_EVENT_MS, True),
        (START, True),
        (START + 9, True),
        (START + 10, False),
        (YEAR_9999, False),
    ],
)
def test_a_time_that_no_sound_clock_has_shown_files_no_row_and_loses_none(time: int, filed: bool) -> None:
    log = MemoryLog()
    log.append([view(0), view(1, time=time), view(2)])
    batches, stats = decode(log, filing=Filing(1, START + 10))
    rows = table_of(batches)
    assert rows["_time"].cast(pa.int64()).to_pylist() == [
        START * 1000,
        time * 1000 if filed else None,
        START * 1000,
    ]
    assert [row["header"]["sequence"] for row in rows.select(["header"]).to_pylist()] == [0, 1, 2]
    assert rows["header"].chunk(0).field("time")[1].value == time * 1000  # what the producer said is kept
    assert (stats.records, stats.rejected) == (3, 0)
    assert (stats.min_time, stats.max_time) == (min(START, time), max(START, time))


def test_a_row_without_a_header_or_without_a_time_in_it_is_filed_under_no_hour() -> None:
    header = {"type": "record", "name": "H", "fields": [{"name": "time", "type": ["null", MICROS]}]}
    schema = {"type": "record", "name": "R", "fields": [{"name": "header", "type": ["null", header]}]}
    log, values = (
        MemoryLog(),
        [{"header": {"time": 1000 * START}}, {"header": None}, {"header": {"time": None}}],
    )
    log.append([message(5, encode(schema, value)) for value in values])
    ((batch,), stats) = decode(log, schema, filing=Filing(1, START + 1), lookup={5: schema}.get)
    assert batch.rows["_time"].cast(pa.int64()).to_pylist() == [1000 * START, None, None]
    assert (stats.min_time, stats.max_time) == (START, START)


@pytest.mark.parametrize("zone", ["", "local-"])
@pytest.mark.parametrize("unit", ["millis", "micros"])
def test_every_timestamp_type_of_the_header_files_a_row(zone: str, unit: str) -> None:
    time = {"type": "long", "logicalType": f"{zone}timestamp-{unit}"}
    header = {"type": "record", "name": "H", "fields": [{"name": "time", "type": time}]}
    schema = {"type": "record", "name": "R", "fields": [{"name": "header", "type": header}]}
    log = MemoryLog()
    log.append(
        [message(5, encode(schema, {"header": {"time": START if unit == "millis" else 1000 * START}}))]
    )
    ((batch,), _) = decode(log, schema, filing=Filing(1, START + 1), lookup={5: schema}.get)
    assert batch.rows["_time"].cast(pa.int64()).to_pylist() == [1000 * START]


def test_a_header_whose_time_is_no_timestamp_leaves_the_records_own() -> None:
    header = {"type": "record", "name": "H", "fields": [{"name": "time", "type": "string"}]}
    schema = {"type": "record", "name": "R", "fields": [{"name": "header", "type": header}]}
    log = MemoryLog()
    log.append([message(5, encode(schema, {"header": {"time": "noon"}}))])
    ((batch,), _) = decode(log, schema, filing=Filing(1, START + 1), lookup={5: schema}.get)
    assert batch.rows["_time"].cast(pa.int64()).to_pylist() == [START * 1000]


def test_sequences_are_counted_per_producer_and_window() -> None:
    dice, log, expected = random.Random(9), MemoryLog(), SequenceCounts()
    messages = []
    for number in range(400):
        server, instance = dice.choice([("web-1", 7), ("web-2", -(1 << 60)), ("web-2", 8), ("liar", 7)])
        time = START + dice.randrange(3) * 600_000
        messages.append(view(number // 2, server=server, instance=instance, time=time))
        expected.add(server, "www", instance, window_start(time), number // 2)
    log.append(messages)
    counts = SequenceCounts()
    for batch in decode(log)[0]:
        count_sequences(batch.rows, counts)
    assert counts == expected
    assert counts.total == 400
    assert count_sequences(table_of(decode(log)[0])) == expected
    assert count_sequences(table_of(decode(log)[0]).slice(0, 0)) == SequenceCounts()


def test_numbers_that_wrap_around_are_no_run() -> None:
    log, most = MemoryLog(), (1 << 63) - 1
    log.append([view(most), view(-most - 1)])
    counts = count_sequences(table_of(decode(log)[0]))
    assert counts.to_json()[0]["ranges"] == [[-most - 1, -most - 1], [most, most]]


def test_a_row_without_a_whole_header_counts_nowhere() -> None:
    whole = {"time": datetime(2015, 5, 17, tzinfo=UTC), "server": "s", "service": "w", "instance": 1}
    header = pa.struct(
        [
            ("time", pa.timestamp("us", "UTC")),
            ("server", pa.string()),
            ("service", pa.string()),
            ("instance", pa.int64()),
            ("sequence", pa.int64()),
        ]
    )
    rows = [
        {**whole, "sequence": 1},
        None,
        {**whole, "server": None, "sequence": 2},
        {**whole, "sequence": 2},
    ]
    counts = count_sequences(pa.table({"header": pa.array(rows, header)}))
    assert counts.to_json()[0]["ranges"] == [[1, 2]]


def test_a_record_of_another_type_is_no_row_though_it_has_every_field_of_the_table() -> None:
    fields = [{"name": "id", "type": "long"}]
    created = {"type": "record", "name": "shop.Created", "fields": fields}
    schemas: dict[int, Any] = {
        1: created,
        2: {**created, "name": "shop.Refunded", "fields": [*fields, {"name": "amount", "type": "long"}]},
        3: {**created, "name": "billing.Created"},
    }
    log = MemoryLog()
    log.append([message(number, b"\2" * len(schemas[number]["fields"])) for number in schemas])
    for aliases, rows in (((), 1), (("Refunded",), 2), (("Refunded", "billing.Created"), 3)):
        batches, stats = decode(log, {**created, "aliases": list(aliases)}, lookup=schemas.get)
        assert (table_of(batches).num_rows, stats.rejected) == (rows, 3 - rows)
        for rejected in (each for batch in batches for each in batch.rejected):
            assert "the table's type shop.Created has no such alias" in rejected.reason
