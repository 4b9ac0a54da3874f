"""Messages by kind: rows, tombstones, and three kinds of rejected records, each counted and limited alone."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from millrace.errors import ConfigError, MillraceError
from millrace.records import Message
from millrace_warehouse.audit.read_back import read_back
from millrace_warehouse.history.hours import UNFILED
from millrace_warehouse.history.layout import Topic, load_numbers, read_edition, read_load
from millrace_warehouse.load.load import load_topic
from millrace_warehouse.load.rejections import RejectedLimits
from millrace_warehouse.load.reload import ReloadRun, reload_topic
from millrace_warehouse.log.kinds import ASIDE, TOMBSTONE, Kind, name_format
from millrace_warehouse.publish.hours_table import hours_identifier
from millrace_warehouse.storage import open_storage
from tests.changes import SCHEMA, batches, broken, changes, key_of
from tests.published import warehouse
from tests.unit.warehouse.memory_log import HOUR, SCHEMA_ID, START, TOPIC, MemoryLog, event, load_run

FRAME = b"\0" + (7).to_bytes(4, "big")
UNKNOWN = b"\0\0\0\0\x63body"
REJECTED_BY_HOUR = """
    SELECT date_trunc('hour', epoch_ms(CASE WHEN timestamp BETWEEN 0 AND 253402300799999 THEN timestamp END))
           AS hour, kind, sum(records)
    FROM (SELECT DISTINCT ON (partition, "offset") *
          FROM read_parquet('{rows}/*/rejected-*.parquet', union_by_name = true))
    GROUP BY ALL"""
"""The query of the page."""


def topic_of_changes(count: int, deletes: int, bad: int = 0) -> MemoryLog:
    log = MemoryLog(1)
    log.schemas = {SCHEMA_ID: SCHEMA}
    for batch in batches([*changes(count, deletes, SCHEMA_ID, START), *broken(bad, SCHEMA_ID, START)]):
        log.append(0, batch)
    return log


def sql(folder: Path, query: str) -> list[tuple[Any, ...]]:
    """The answer of DuckDB to a query; {rows} stands for the folder of the topic's rows."""
    return duckdb.sql(query.format(rows=folder / TOPIC / "rows")).fetchall()


def rejected(**kinds: int) -> dict[str, int]:
    return {kind: kinds.get(kind, 0) for kind in ("foreign_framing", "unknown_schema", "broken_body")}


def test_deletes_of_a_topic_of_changes_are_tombstones_and_their_keys_are_found_by_sql(tmp_path: Path) -> None:
    result = load_topic(load_run(topic_of_changes(2000, 200), tmp_path, cut_bytes=20_000), TOPIC)
    assert (result.rows, result.tombstones, result.rejected) == (2000, 200, 0)
    assert result.rejected_by_kind == rejected()
    found = sql(
        tmp_path,
        'SELECT DISTINCT partition, "offset", epoch_ms(timestamp), decode(key)'
        " FROM read_parquet('{rows}/*/tombstones-*.parquet') ORDER BY \"offset\"",
    )
    assert [key for *_, key in found] == [key_of(n).decode() for n in range(1800, 2000)]
    assert len({offset for _, offset, *_ in found}) == 200
    rows = sql(tmp_path, "SELECT _offset FROM read_parquet('{rows}/*/[!t]*.parquet')")
    assert not {offset for _, offset, *_ in found} & {offset for (offset,) in rows}
    with warehouse(tmp_path) as w:
        assert w.problems(rows=True) == []


def test_keys_that_are_not_text_and_times_out_of_range_fail_no_sql(tmp_path: Path) -> None:
    log = MemoryLog(1)
    log.append(0, [Message(START, b"\0\x80", None), Message(1 << 62, None, b"text")])
    load_topic(load_run(log, tmp_path), TOPIC)
    query = 'SELECT DISTINCT partition, "offset", timestamp, key'
    query += " FROM read_parquet('{rows}/*/tombstones-*.parquet')"
    assert [row[2:] for row in sql(tmp_path, query)] == [(START, b"\0\x80")]
    assert sql(tmp_path, REJECTED_BY_HOUR) == [(None, "foreign_framing", 1)]


def test_broken_bodies_among_them_are_counted_alone(tmp_path: Path) -> None:
    result = load_topic(load_run(topic_of_changes(1000, 100, bad=20), tmp_path), TOPIC)
    assert (result.rows, result.tombstones, result.rejected) == (1000, 100, 20)
    (note,) = result.notes
    assert note.startswith("PageView: rejected: 20 times '")
    assert result.rejected_by_kind == rejected(broken_body=20)


def mixed() -> MemoryLog:
    log = MemoryLog(2)
    body = event(3, START).value
    assert body is not None
    log.append(0, [event(0, START), Message(START + 5, b"gone", None), Message(START, b"k1", b'{"id": 1}')])
    log.append(1, [event(1, START), Message(START, b"k2", UNKNOWN), Message(START, b"k3", body[:-1])])
    log.append(1, [Message(START, None, None)])
    return log


def test_the_manifest_counts_each_kind_by_partition_and_rejected_records_keep_their_key(
    tmp_path: Path,
) -> None:
    load_topic(load_run(mixed(), tmp_path), TOPIC)
    manifest = read_load(Topic(open_storage(str(tmp_path)), TOPIC), 1)
    first, second = manifest.partitions
    assert (first.read, first.written, first.tombstones, first.rejected) == (3, 1, 1, 1)
    assert (second.read, second.written, second.tombstones, second.rejected) == (4, 1, 1, 2)
    assert second.rejected_by_kind == rejected(unknown_schema=1, broken_body=1)
    aside = {
        row["key"]: (row["kind"], row["schema_id"])
        for file in manifest.rejected_files
        for row in pq.read_table(tmp_path / TOPIC / file.path).to_pylist()
    }
    assert aside == {
        b"k1": ("foreign_framing", None),
        b"k2": ("unknown_schema", 99),
        b"k3": ("broken_body", SCHEMA_ID),
    }
    gone = [
        row
        for file in manifest.tombstone_files
        for row in pq.read_table(tmp_path / TOPIC / file.path).to_pylist()
    ]
    assert [(row["partition"], row["timestamp"], row["key"]) for row in gone] == [
        (0, START + 5, b"gone"),
        (1, START, None),
    ]


def test_rejected_records_are_found_by_hour_and_kind_by_sql(tmp_path: Path) -> None:
    log = mixed()
    load_topic(load_run(log, tmp_path), TOPIC)
    again = load_run(log, tmp_path, "again").context
    reload_topic(ReloadRun(context=again, reason="test"), TOPIC, [1])
    found = sql(tmp_path, REJECTED_BY_HOUR)
    hour = datetime(2015, 5, 17, 10)
    assert sorted(found) == [
        (hour, "broken_body", 1),
        (hour, "foreign_framing", 1),
        (hour, "unknown_schema", 1),
    ]


def test_no_number_of_tombstones_stops_a_topic(tmp_path: Path) -> None:
    log = MemoryLog(1)
    log.append_events(0, [START] * 5)
    log.append(0, [Message(START, b"key-%d" % n, None) for n in range(500)])
    limits = RejectedLimits.parse("0")
    result = load_topic(load_run(log, tmp_path, max_rejected=limits), TOPIC)
    assert (result.rows, result.tombstones, result.rejected) == (5, 500, 0)
    assert load_topic(load_run(log, tmp_path, "run-2"), TOPIC).published is False


def test_each_kind_has_a_limit_of_its_own(tmp_path: Path) -> None:
    log = MemoryLog(1)
    log.append_events(0, [START] * 5)
    log.append(0, [Message(START, None, UNKNOWN)] * 80 + [Message(START, None, b"text")] * 80)
    result = load_topic(load_run(log, tmp_path / "a"), TOPIC)
    assert result.rejected_by_kind == rejected(foreign_framing=80, unknown_schema=80)
    limits = RejectedLimits.parse("100, unknown_schema=79")
    with pytest.raises(MillraceError, match="80 of 165 records have a schema id that the registry does not"):
        load_topic(load_run(log, tmp_path / "b", max_rejected=limits), TOPIC)
    assert load_numbers(Topic(open_storage(str(tmp_path / "b")), TOPIC)) == []


def test_the_error_names_all_kinds_over_their_limits(tmp_path: Path) -> None:
    log = MemoryLog(1)
    log.append(0, [Message(START, None, UNKNOWN)] * 80 + [Message(START, None, b"text")] * 120)
    limits = RejectedLimits.parse("100, unknown_schema=1%")
    with pytest.raises(MillraceError) as caught:
        load_topic(load_run(log, tmp_path, max_rejected=limits), TOPIC)
    assert str(caught.value) == (
        "PageView: 120 of 200 records have a foreign framing, allowed are 100 records: 120 times 'the message"
        " does not begin with a zero byte and a schema id: it looks like plain text'; one of them begins with"
        " 74 65 78 74; 80 of 200 records have a schema id that the registry does not know, allowed are 1 %:"
        " 80 times 'schema id 99 is not in the registry'; nothing was loaded: the first looks like plain"
        ' text: load them into a new warehouse, with format = "text" for the topic, register the schema, or'
        " raise --max-rejected"
    )


def test_limits_are_given_for_all_kinds_or_by_name() -> None:
    limits = RejectedLimits.parse("5, broken_body=1%")
    assert limits.limit_for(Kind.BROKEN_BODY).allowed(1000) == 10
    assert [limits.limit_for(kind).allowed(1000) for kind in (Kind.FOREIGN_FRAMING, Kind.UNKNOWN_SCHEMA)] == [
        5,
        5,
    ]
    assert RejectedLimits.parse("broken_body=0").limit_for(Kind.UNKNOWN_SCHEMA).allowed(10) == 100
    for wrong in ("many", "101%", "tombstone=5", "broken_body", "1, 2", "broken_body=1, broken_body=2"):
        with pytest.raises(ConfigError, match="--max-rejected"):
            RejectedLimits.parse(wrong)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"", "an empty value"),
        (b' {"id": 1}', "JSON"),
        (b"[1, 2]", "a JSON array"),
        (b"{\n}", "JSON"),
        (b"[INFO] started", "plain text"),
        ("größe 5".encode(), "plain text"),
        ("é".encode() * 100, "plain text"),
        (b"Obj\1rest", "an Avro file"),
        (b"\0\0\0\1", "a schema id that is cut off"),
        (b"\x08\x96\x01\x12\x07testing", "Protocol Buffers"),
        (b"\x08\x96\x01\x12\x07test", "no format that is known here"),
        (b"\x09" + bytes(8) + b"\x15" + bytes(4), "Protocol Buffers"),
        (b"\x0a\x7f" + b"\xff" * 127, "Protocol Buffers"),
        (b"\x08\xff", "no format that is known here"),
        (b"\xff\xfe\x00\x01", "no format that is known here"),
        (FRAME + b'{"id": 1}', "JSON in Confluent's wire format"),
        (FRAME + b"\0\x08\x96\x01", "Protocol Buffers in Confluent's wire format"),
        (FRAME + b"\0\x04\x63\x30", "Avro in Confluent's wire format"),
        (FRAME, "Avro in Confluent's wire format"),
    ],
)
def test_a_foreign_framing_is_named_by_what_its_bytes_look_like(value: bytes, words: str) -> None:
    assert name_format(value) == words


def test_the_error_for_a_foreign_framing_says_what_the_messages_look_like(tmp_path: Path) -> None:
    log = MemoryLog(1)
    log.append(0, [Message(START, None, b'{"id": %d}' % n) for n in range(200)])
    with pytest.raises(MillraceError) as caught:
        load_topic(load_run(log, tmp_path), TOPIC)
    assert str(caught.value) == (
        "PageView: 200 of 200 records have a foreign framing, allowed are 0.1 % or 100 records: 200 times"
        " 'the message does not begin with a zero byte and a schema id: it looks like JSON'; one of them"
        " begins with 7b 22 69 64 22 3a 20 30; nothing was loaded: the first looks like JSON: load"
        ' them into a new warehouse, with format = "json" for the topic, or raise --max-rejected'
    )


def test_a_tombstone_is_a_row_of_nulls_where_that_is_asked_for(tmp_path: Path) -> None:
    log = topic_of_changes(20, 3)
    result = load_topic(load_run(log, tmp_path, tombstones_as_rows=True), TOPIC)
    assert (result.rows, result.tombstones, result.rejected) == (23, 0, 0)
    found = sql(
        tmp_path,
        "SELECT decode(_key), before, op, _time = _timestamp FROM read_parquet('{rows}/*/*.parquet')"
        " WHERE _schema_id IS NULL ORDER BY _offset",
    )
    assert found == [(key_of(n).decode(), None, None, True) for n in (17, 18, 19)]
    with warehouse(tmp_path) as w:
        assert w.problems(rows=True) == []


def test_a_row_of_nulls_in_a_table_of_audited_events_has_no_hour(tmp_path: Path) -> None:
    result = load_topic(load_run(mixed(), tmp_path, tombstones_as_rows=True), TOPIC)
    assert result.hours == {"2015-05-17T10": 2, UNFILED: 2}
    storage = open_storage(str(tmp_path))
    found = read_back(storage, read_load(Topic(storage, TOPIC), 1))
    assert found.counts.total == 2
    assert {window: (rows.rows, rows.unfiled) for window, rows in found.unkeyed.items()} == {START: (2, 2)}


def test_a_re_load_finds_the_same_tombstones_and_rejected_records_again(tmp_path: Path) -> None:
    log = mixed()
    load_topic(load_run(log, tmp_path), TOPIC)
    storage = open_storage(str(tmp_path))
    reload_topic(ReloadRun(context=load_run(log, storage, "again").context, reason="test"), TOPIC, [1])
    again = read_edition(Topic(storage, TOPIC), 1, 2)
    assert (again.tombstones, again.rejected) == (2, 3)
    with warehouse(tmp_path) as w:
        assert w.problems(rows=True) == []


def test_verify_names_tombstones_that_are_gone_or_not_as_many_as_stated(tmp_path: Path) -> None:
    load_topic(load_run(mixed(), tmp_path), TOPIC)
    (path, _) = sorted((tmp_path / TOPIC).glob("rows/*/tombstones-*.parquet"))
    path.unlink()
    with warehouse(tmp_path) as w:
        (gone,) = w.problems(rows=True)
        assert "tombstones-" in gone
        assert "is missing: restore it from a copy" in gone


def test_an_hour_of_tombstones_alone_moves_the_load_on_and_has_no_rows(tmp_path: Path) -> None:
    log = MemoryLog(1)
    log.append(0, [Message(START + HOUR, b"k", None)])
    result = load_topic(load_run(log, tmp_path), TOPIC)
    assert (result.published, result.rows, result.tombstones, result.hours) == (True, 0, 1, {})


def test_the_table_of_hours_counts_each_kind_with_the_hours_changes(tmp_path: Path) -> None:
    log, ten = mixed(), "2015-05-17T10"
    with warehouse(tmp_path) as w:

        def changes() -> list[tuple[str, int, int, int, int]]:
            hours = w.catalog.load_table(hours_identifier(TOPIC)).scan().to_arrow().to_pylist()
            rows = sorted(hours, key=lambda row: row["publication"])
            return [(row["kind"], *(row[kind] for kind in ASIDE)) for row in rows]

        load_topic(load_run(log, w.storage), TOPIC)
        w.publish(ten)
        assert changes() == [("first", 2, 1, 1, 1)]
        log.append(0, [Message(START, b"late", None), Message(0, b"of 1970", None)])
        load_topic(load_run(log, w.storage, "run-2"), TOPIC)
        assert not w.publish().published, "a tombstone changes no hour"
        log.append(0, [event(5, START)])
        load_topic(load_run(log, w.storage, "run-3"), TOPIC)
        publication = w.publish().publication
        assert changes()[1:] == [("late", 1, 0, 0, 0)]
        assert publication is not None
        assert publication.waiting_aside == {UNFILED: {TOMBSTONE: 1}}
        log.schemas[99] = SCHEMA
        again = load_run(log, w.storage, "again").context
        reload_topic(ReloadRun(context=again, reason="test"), TOPIC, [1])
        log.append(0, [event(6, START)])
        load_topic(load_run(log, w.storage, "run-4"), TOPIC)
        w.publish()
        assert changes()[2:] == [("reload", 0, 0, -1, 1)]
        assert w.problems(rows=True) == []
