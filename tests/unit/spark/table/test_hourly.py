"""Hours: made from every load that has some of them, published once, revised when rows come late."""

from __future__ import annotations

import dataclasses
import hashlib
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from millrace.errors import ConfigError, MillraceError
from millrace_spark.files.filesystem import LocalFilesystem
from millrace_spark.files.task_storage import SharedFolder
from millrace_spark.jobs.words import parse_hours
from millrace_spark.load.direct import Source
from millrace_spark.load.load import load_topic
from millrace_spark.load.writing import Pinned
from millrace_spark.table.expire import ExpireRun, expire_topic
from millrace_spark.table.merge import MergeInput, MergeTask, merge_files
from millrace_spark.table.publish import HourResult, hours_between, publish_hours, publish_late_hours
from millrace_spark.table.revisions import newest_revisions, read_revision, revision_numbers
from millrace_spark.tables import dataset
from millrace_spark.verify import verify
from millrace_spark.warehouse.manifest import UNASKED, Verdict
from tests.unit.spark.memory_log import (
    HOUR,
    SCHEMA,
    SCHEMA_ID,
    START,
    TOPIC,
    MemoryLog,
    filled_log,
    hourly_run,
    load_run,
    no_progress,
)

TEN, ELEVEN, TWELVE = "2015-05-17T10", "2015-05-17T11", "2015-05-17T12"


@pytest.fixture
def log() -> MemoryLog:
    return filled_log()


@pytest.fixture
def warehouse(tmp_path: Path, log: MemoryLog) -> Path:
    load_topic(load_run(log, tmp_path), TOPIC)
    return tmp_path


def publish(warehouse: Path, *hours: str) -> list[HourResult]:
    return publish_hours(hourly_run(warehouse), TOPIC, hours)


def sequences(warehouse: Path, hour: int | None = None) -> list[int]:
    table = dataset(str(warehouse), TOPIC).to_table(filter=None if hour is None else pc.field("hour") == hour)
    return sorted(row["sequence"] for row in table["header"].to_pylist())


def test_hours_hold_the_rows_of_their_loads(warehouse: Path) -> None:
    results = publish(warehouse, TEN, ELEVEN, TWELVE)
    assert [(each.hour, each.revision, each.rows) for each in results] == [
        (TEN, 1, 87),
        (ELEVEN, 1, 38),
        (TWELVE, 1, 55),
    ]
    assert sequences(warehouse) == list(range(180))


def test_an_hour_without_news_keeps_its_revision(warehouse: Path) -> None:
    publish(warehouse, TEN)
    (again,) = publish(warehouse, TEN)
    assert (again.revision, again.rows, again.published) == (1, 87, False)
    assert again.message == "nothing new since rev=1"


def test_late_rows_make_the_next_revision_and_readers_see_that_one_only(
    warehouse: Path, log: MemoryLog
) -> None:
    publish(warehouse, TEN, ELEVEN)
    log.append_events(1, [START + 1, START + 2])
    load_topic(load_run(log, warehouse, "late"), TOPIC)
    ten, eleven = publish(warehouse, TEN, ELEVEN)
    assert (ten.revision, ten.rows, ten.published) == (2, 89, True)
    assert (eleven.revision, eleven.published) == (1, False)
    assert len(sequences(warehouse, 10)) == 89
    fs = LocalFilesystem(str(warehouse))
    first, second = (read_revision(fs, TOPIC, TEN, number).manifest for number in (1, 2))
    assert [part.load for part in second.loads] == [1, 2]
    assert second.previous == first.sha256


def test_the_tenth_revision_is_newer_than_the_ninth(warehouse: Path, log: MemoryLog) -> None:
    publish(warehouse, TEN)
    for turn in range(10):
        log.append_events(1, [START])
        load_topic(load_run(log, warehouse, f"late {turn}"), TOPIC)
        publish(warehouse, TEN)
    (newest,) = newest_revisions(LocalFilesystem(str(warehouse)), TOPIC)
    assert newest.manifest.revision == 11
    assert len(sequences(warehouse, 10)) == 97


def test_an_hour_no_load_has_is_not_published(warehouse: Path) -> None:
    (result,) = publish(warehouse, "2015-05-18T00")
    assert (result.revision, result.published, result.message) == (None, False, "no load has rows of it")
    assert not (warehouse / f"{TOPIC}.hourly" / "date=2015-05-18").exists()


def test_an_hour_that_was_empty_when_it_was_published_gets_its_rows_when_they_come(
    warehouse: Path, log: MemoryLog
) -> None:
    nine = "2015-05-17T09"
    (result,) = publish_hours(hourly_run(warehouse), TOPIC, [nine], also_empty=True)
    assert (result.revision, result.rows, result.published) == (1, 0, True)
    (again,) = publish_hours(hourly_run(warehouse), TOPIC, [nine], also_empty=True)
    assert (again.revision, again.published) == (1, False)
    assert publish_late_hours(hourly_run(warehouse), TOPIC) == []
    log.append_events(1, [START - HOUR])
    load_topic(load_run(log, warehouse, "late"), TOPIC)
    (late,) = publish_late_hours(hourly_run(warehouse), TOPIC)
    assert (late.hour, late.revision, late.rows) == (nine, 2, 1)
    reports = verify(LocalFilesystem(str(warehouse)), TOPIC, None, no_progress)
    assert [problem for report in reports for problem in report.problems] == []


def test_large_rows_are_merged_in_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace_spark.table.merge.ROW_GROUP_BYTES", 8 << 20)
    schema, sources = pa.schema([("blob", pa.binary())]), []
    for number in range(2):
        path = tmp_path / f"{number}.parquet"
        with pq.ParquetWriter(path, schema, compression="zstd") as writer:
            for _ in range(12):
                writer.write_table(pa.table({"blob": [bytes(1 << 20)] * 4}, schema))
        sources.append(MergeInput(str(path), hashlib.sha256(path.read_bytes()).hexdigest(), ()))
    before, peaks = pa.total_allocated_bytes(), []
    real = pq.ParquetWriter.write_table

    def write_table(writer: pq.ParquetWriter, table: pa.Table) -> None:
        peaks.append(pa.total_allocated_bytes() - before)
        real(writer, table)

    monkeypatch.setattr(pq.ParquetWriter, "write_table", write_table)
    file = merge_files(MergeTask(sources, sources[0].path, SharedFolder(), str(tmp_path), TEN, 0))
    assert file.rows == 96
    assert max(peaks) < 32 << 20


def test_two_attempts_at_one_file_of_an_hour_write_into_files_of_their_own(tmp_path: Path) -> None:
    source = tmp_path / "source.parquet"
    pq.write_table(pa.table({"n": [1, 2, 3]}), source)
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    inputs = [MergeInput(str(source), digest, ())]
    task = MergeTask(inputs, str(source), SharedFolder(), str(tmp_path / "work"), TEN, 0)
    first = merge_files(task)
    written = (tmp_path / "work" / first.path).stat().st_mtime_ns
    second = merge_files(task)  # speculation: the first may be published while this one writes
    assert first.path != second.path
    assert (tmp_path / "work" / first.path).stat().st_mtime_ns == written


def test_the_verdict_of_the_moment_is_written_in(warehouse: Path) -> None:
    verdict = Verdict(verdict="incomplete", watermark="2015-05-17T09:00:00Z", reasons=("web1 is silent",))
    run = dataclasses.replace(hourly_run(warehouse), verdict_of=lambda *_: verdict)
    (result,) = publish_hours(run, TOPIC, [TEN])
    assert result.verdict == "incomplete"
    assert read_revision(LocalFilesystem(str(warehouse)), TOPIC, TEN, 1).manifest.verdict == verdict


def test_an_hour_published_again_without_asking_says_which_verdict_it_had(
    warehouse: Path, log: MemoryLog
) -> None:
    complete = dataclasses.replace(hourly_run(warehouse), verdict_of=lambda *_: Verdict(verdict="complete"))
    publish_hours(complete, TOPIC, [TEN])
    log.append_events(0, [START])
    load_topic(load_run(log, warehouse, "late"), TOPIC)
    unasked = dataclasses.replace(hourly_run(warehouse), verdict_of=lambda *_: Verdict(verdict=UNASKED))
    (result,) = publish_hours(unasked, TOPIC, [TEN])
    assert result.message == "published rev=2; rev=1 was complete: ask again with --auditor"


def test_the_loser_of_a_race_for_an_hour_finds_nothing_left_to_do(warehouse: Path) -> None:
    raced: list[bool] = []

    def overtaken(step: str) -> None:
        if step == "verified" and not raced:
            raced.append(True)
            publish(warehouse, TEN, ELEVEN)

    results = publish_hours(hourly_run(warehouse, progress=overtaken), TOPIC, [TEN, ELEVEN, TWELVE])
    assert [(each.revision, each.published) for each in results] == [(1, False), (1, False), (1, True)]
    assert sequences(warehouse) == list(range(180))
    assert not list((warehouse / f"{TOPIC}.hourly" / "_staging").iterdir())


def test_a_run_that_looked_at_the_loads_too_early_does_not_take_late_rows_away_again(
    warehouse: Path, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[bool] = []

    def overtaken(fs: LocalFilesystem, topic: str, hour: str) -> list[int]:
        if not done:  # between the slow run's looks at the loads and at the hours
            done.append(True)
            log.append_events(1, [START + 1])
            load_topic(load_run(log, warehouse, "late"), TOPIC)
            publish(warehouse, TEN)
        return revision_numbers(fs, topic, hour)

    monkeypatch.setattr("millrace_spark.table.publish.revision_numbers", overtaken)
    (result,) = publish(warehouse, TEN)
    assert (result.revision, result.rows) == (1, 88)
    assert len(sequences(warehouse, 10)) == 88


def test_the_columns_are_those_of_the_newest_load_whatever_number_its_schema_has(
    warehouse: Path, log: MemoryLog
) -> None:
    # A registry numbers schemas by content: one that another subject had before has the lower number.
    publish(warehouse, TEN)
    log.append_events(1, [START + HOUR])
    status = {"name": "status", "type": ["null", "int"], "default": None}
    wider = {**SCHEMA, "fields": [*SCHEMA["fields"], status]}
    source = Source(lambda: log, {SCHEMA_ID: SCHEMA, 3: wider}.get, wider)
    load_topic(load_run(log, warehouse, "wider", pin=lambda *_: Pinned(source, 3)), TOPIC)
    publish(warehouse, ELEVEN)
    table = dataset(str(warehouse), TOPIC).to_table()
    assert table["status"].null_count == len(table) == 87 + 39


def test_many_hours_are_published_in_one_go(tmp_path: Path) -> None:
    log = MemoryLog(1)
    log.append_events(0, [START + HOUR * (n % 84) for n in range(500)])
    load_topic(load_run(log, tmp_path, cut_bytes=1 << 20), TOPIC)
    written: list[str] = []
    run = hourly_run(tmp_path, progress=written.append)
    start = datetime.fromtimestamp(START / 1000, UTC)
    hours = hours_between(start, start.replace(day=21))
    results = publish_hours(run, TOPIC, hours)
    assert sum(result.published for result in results) == 84
    assert written.count("written") == 1
    assert [step for step in written if step.endswith("published")] == [
        f"{n} of 84: {hour} published"
        for n, hour in enumerate([result.hour for result in results if result.published], 1)
    ]
    assert sequences(tmp_path) == list(range(500))


def test_a_column_that_came_later_is_null_in_older_rows(warehouse: Path, log: MemoryLog) -> None:
    publish(warehouse, TEN, ELEVEN)
    log.append_events(1, [START + HOUR])
    status = {"name": "status", "type": ["null", "int"], "default": None}
    wider = {**SCHEMA, "fields": [*SCHEMA["fields"], status]}
    source = Source(lambda: log, {SCHEMA_ID: SCHEMA, 9: wider}.get, wider)
    load_topic(load_run(log, warehouse, "wider", pin=lambda *_: Pinned(source, 9)), TOPIC)
    publish(warehouse, TEN, ELEVEN)
    table = dataset(str(warehouse), TOPIC).to_table()
    assert table.schema.field("status").type == pa.int32()
    assert table["status"].null_count == len(table) == 87 + 39


def test_a_load_that_is_gone_stops_the_hour_instead_of_shrinking_it(warehouse: Path) -> None:
    publish(warehouse, TEN)
    (warehouse / TOPIC / "load=0000000001").rename(warehouse / "elsewhere")
    with pytest.raises(MillraceError, match="is gone"):
        publish(warehouse, TEN)


def test_a_folder_of_a_load_that_is_gone_does_not_shrink_the_hour_it_is_folded_into(
    warehouse: Path, log: MemoryLog
) -> None:
    publish(warehouse, TEN)
    (warehouse / TOPIC / "load=0000000001" / "date=2015-05-17" / "hour=10").rename(warehouse / "elsewhere")
    log.append_events(1, [START])
    load_topic(load_run(log, warehouse, "late"), TOPIC)
    (late,) = publish(warehouse, TEN)
    assert (late.revision, late.rows) == (2, 88)
    assert len(sequences(warehouse, 10)) == 88


def test_a_revision_that_is_gone_is_not_silently_made_again(warehouse: Path) -> None:
    publish(warehouse, TEN)
    folder = warehouse / f"{TOPIC}.hourly" / "date=2015-05-17" / "hour=10" / "rev=1"
    folder.rename(warehouse / "elsewhere")
    with pytest.raises(MillraceError, match="rev=1 was published and is gone"):
        publish(warehouse, TEN)


def test_hours_of_a_topic_that_was_never_loaded_are_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(MillraceError, match="run `millrace load Nope` first"):
        publish_hours(hourly_run(tmp_path), "Nope", [TEN])
    with pytest.raises(MillraceError, match="millrace hourly Nope"):
        dataset(str(tmp_path), "Nope")


def test_an_empty_topic_that_was_loaded_has_nothing_to_publish(tmp_path: Path) -> None:
    load_topic(load_run(MemoryLog(), tmp_path), TOPIC)
    (result,) = publish_hours(hourly_run(tmp_path), TOPIC, [TEN])
    assert (result.revision, result.published) == (None, False)


@pytest.mark.parametrize(
    ("start", "end", "hours"),
    [
        ("0001-01-01T00", "0001-01-01T01", ["0001-01-01T00"]),
        ("0999-12-31T23", "1000-01-01T01", ["0999-12-31T23", "1000-01-01T00"]),
        ("1969-12-31T23", "1970-01-01T01", ["1969-12-31T23", "1970-01-01T00"]),
        ("9999-12-31T22", "9999-12-31T23:59", ["9999-12-31T22", "9999-12-31T23"]),
    ],
)
def test_every_hour_of_the_calendar_can_be_named(start: str, end: str, hours: list[str]) -> None:
    assert parse_hours([], start, end) == hours
    assert parse_hours(hours, None, None) == hours


@pytest.mark.parametrize("time", ["0001-01-01T00+05:00", "9999-12-31T23-05:00"])
def test_an_hour_that_its_zone_takes_out_of_the_calendar_is_one_clear_line(time: str) -> None:
    with pytest.raises(ConfigError, match=r"^--hour '.*' is not a time like"):
        parse_hours([time], None, None)


def test_rows_of_the_first_and_the_last_hour_of_the_calendar_are_published_and_then_expire(
    tmp_path: Path,
) -> None:
    log = MemoryLog()
    log.append_events(0, [-62_135_596_800_000, 253_402_300_799_000])
    hours = list(load_topic(load_run(log, tmp_path), TOPIC).hours)
    assert hours == ["0001-01-01T00", "9999-12-31T23"]
    results = publish_hours(hourly_run(tmp_path), TOPIC, parse_hours(hours, None, None))
    assert [(each.hour, each.rows, each.published) for each in results] == [(h, 1, True) for h in hours]
    expiring = ExpireRun(
        fs=LocalFilesystem(str(tmp_path)), older_than_s=-1, reader_grace_s=0, progress=no_progress
    )
    expired = expire_topic(expiring, TOPIC)
    assert (expired.loads, expired.kept) == (1, {})


def test_an_interval_is_the_hours_it_touches() -> None:
    start = datetime(2015, 5, 17, 10, 30, tzinfo=UTC)
    assert hours_between(start, datetime(2015, 5, 17, 12, tzinfo=UTC)) == [TEN, ELEVEN]
    assert hours_between(start, datetime(2015, 5, 17, 12, 1, tzinfo=UTC)) == [TEN, ELEVEN, TWELVE]
    with pytest.raises(ConfigError, match="not before"):
        hours_between(start, start)


def test_a_run_that_is_repeated_tells_again_what_its_earlier_try_has_published(
    warehouse: Path, log: MemoryLog
) -> None:
    publish(warehouse, TEN, ELEVEN)
    log.append_events(0, [START])
    load_topic(load_run(log, warehouse, "late"), TOPIC)
    run = hourly_run(warehouse)
    first = [*publish_hours(run, TOPIC, [TWELVE]), *publish_late_hours(run, TOPIC)]
    again = [*publish_hours(run, TOPIC, [TWELVE]), *publish_late_hours(run, TOPIC)]
    for told in (first, again):
        assert {(each.hour, each.revision) for each in told if each.published} == {(TEN, 2), (TWELVE, 1)}
    assert publish_late_hours(hourly_run(warehouse), TOPIC) == []
