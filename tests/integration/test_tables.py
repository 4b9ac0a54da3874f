"""Spark on the hourly table: readers while revisions are published, and hours written by Spark itself."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from millrace_spark.spark_sink import SparkMerge
from millrace_warehouse.table.publish import HourlyRun, publish_hours, publish_late_hours
from tests.unit.warehouse.table.test_tables import (
    FIRST,
    MORE,
    add,
    check_whole,
    expire,
    fs_of,
    look_in_time,
    publishing,
)

from millrace.errors import MillraceError
from millrace_spark import tables
from millrace_warehouse.load.load import load_topic
from millrace_warehouse.load.reload import reload_topic
from millrace_warehouse.storage.filesystem import LocalFilesystem
from millrace_warehouse.verify import verify
from tests.unit.warehouse.interleaved import HOURS, Scenario, later_event, moved_event
from tests.unit.warehouse.memory_log import (
    HOUR,
    START,
    TOPIC,
    MemoryLog,
    event,
    hourly_run,
    load_run,
    no_progress,
    with_field,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def rows(frame: DataFrame) -> list[tuple[int, int, int]]:
    return [tuple(row) for row in frame.select("hour", "rev", "header.sequence").collect()]


def test_a_spark_reader_sees_each_hour_as_one_revision_whole_while_others_come_and_go(
    spark: SparkSession, tmp_path: Path
) -> None:
    scene = Scenario(tmp_path, random.Random(1))
    add(scene, FIRST)
    publish_hours(scene.hourly_run(fs_of(scene)), TOPIC, HOURS)

    def look() -> int:
        frame = tables.read(spark, str(tmp_path), TOPIC)
        revision = check_whole(rows(frame))
        # Planned once, read twice: Spark has listed its files and does not look again.
        assert check_whole(rows(frame)) == revision
        return revision

    assert look() == 1
    with publishing(scene) as done:
        last_look = False
        while not last_look:
            last_look = done.is_set()
            look_in_time(look)
    add(scene, MORE)
    before = tables.read(spark, str(tmp_path), TOPIC)
    publish_late_hours(scene.hourly_run(fs_of(scene)), TOPIC)
    expire(scene, grace_s=3600)
    assert check_whole(rows(tables.read(spark, str(tmp_path), TOPIC))) == check_whole(rows(before)) + 1


def test_hours_that_spark_writes_take_over_replace_and_drop_rows_as_the_tasks_do(
    spark: SparkSession, tmp_path: Path
) -> None:
    scene = Scenario(tmp_path, random.Random(1))
    fs = LocalFilesystem(str(tmp_path))
    direct = scene.hourly_run(fs)
    run = HourlyRun(
        fs=fs, merge=SparkMerge(spark, fs), verdict_of=direct.verdict_of, run_id="spark", progress=no_progress
    )
    scene.log.append(0, [moved_event(0, START, START + HOUR), event(1, START + HOUR), later_event(2, START)])
    scene._load(fs)
    publish_hours(run, TOPIC, HOURS)
    scene.log.append(1, [event(3, START + HOUR)])
    scene._load(fs)
    scene.fixed = True
    reload_topic(scene.reload_run(fs), TOPIC, [1])
    results = publish_late_hours(run, TOPIC)
    assert [(each.revision, each.rows) for each in results] == [(2, 1), (2, 3)]
    assert scene.visible() == {(HOURS[0], 2): 1, (HOURS[1], 0): 1, (HOURS[1], 1): 1, (HOURS[1], 3): 1}
    scene.fixed = False
    scene.runs += 1
    reload_topic(scene.reload_run(fs), TOPIC, [1])
    assert [each.rows for each in publish_late_hours(run, TOPIC)] == [1, 2]
    assert scene.visible() == {(HOURS[0], 0): 1, (HOURS[1], 1): 1, (HOURS[1], 3): 1}
    assert [problem for report in verify(fs, TOPIC, None, no_progress) for problem in report.problems] == []


def published(log: MemoryLog, warehouse: Path) -> None:
    load_topic(load_run(log, warehouse), TOPIC)
    publish_hours(hourly_run(warehouse), TOPIC, ["2015-05-17T10"])


def test_spark_reads_and_writes_a_warehouse_whatever_its_path_is_called(
    spark: SparkSession, tmp_path: Path
) -> None:
    for name in ("a[1]", "a{b,c}", "a*", "a?", "a\\b", "a b", "a%20b", "a%", "a:b", "a#b"):
        warehouse, log = tmp_path / name, MemoryLog()
        log.append_events(0, [START, START + 1])
        published(log, warehouse)
        frame = tables.read(spark, str(warehouse), TOPIC)
        assert {(row.url, row.hour, row.rev) for row in frame.collect()} == {("/0", 10, 1), ("/1", 10, 1)}
    warehouse = tmp_path / "a[1]{b,c}*"
    fs, log = LocalFilesystem(str(warehouse)), MemoryLog()
    log.append_events(0, [START, START + 1])
    load_topic(load_run(log, warehouse), TOPIC)
    run = HourlyRun(
        fs=fs,
        merge=SparkMerge(spark, fs),
        verdict_of=hourly_run(warehouse).verdict_of,
        run_id="spark",
        progress=no_progress,
    )
    (result,) = publish_hours(run, TOPIC, ["2015-05-17T10"])
    assert (result.published, result.rows) == (True, 2)


def test_spark_reads_the_columns_that_an_older_version_let_a_table_have(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace_warehouse.load.load.check_pinned", lambda *_: None)
    for name in ("date", "URL"):
        log = MemoryLog()
        log.schemas[8] = with_field(name, "string", "")
        value: dict[str, Any] = {name: "x"}
        log.append_events(0, [START], schema=8, **value)
        published(log, tmp_path / name)
    (row,) = tables.read(spark, str(tmp_path / "date"), TOPIC).collect()
    assert row.date == "x"
    with pytest.raises(
        MillraceError, match=r"^the columns url and URL of PageView differ in case only: set "
    ):
        tables.read(spark, str(tmp_path / "URL"), TOPIC)
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        (row,) = tables.read(spark, str(tmp_path / "URL"), TOPIC).select("url", "URL").collect()
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
    assert tuple(row) == ("/0", "x")
