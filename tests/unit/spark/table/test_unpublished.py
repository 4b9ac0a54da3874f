"""Hours that were loaded and never published: named by loads and `verify`, published once nothing objects."""

from __future__ import annotations

import dataclasses
import random
import time
from pathlib import Path

import pytest

from millrace_spark.files.filesystem import LocalFilesystem
from millrace_spark.load.load import load_topic
from millrace_spark.reload import reload_topic
from millrace_spark.table.publish import (
    HourResult,
    publish_hours,
    publish_late_hours,
    publish_unpublished_hours,
)
from millrace_spark.table.sources import unpublished_hours
from millrace_spark.verify import verify
from millrace_spark.warehouse.manifest import Verdict
from tests.unit.spark.interleaved import Scenario, moved_event
from tests.unit.spark.memory_log import HOUR, START, TOPIC, MemoryLog, hourly_run, load_run, rows_of

TEN, LOST, LAST = "2015-05-17T10", "2001-09-09T01", "9999-12-31T23"
DAY_S = 24 * 3600.0


@pytest.fixture
def log() -> MemoryLog:
    """Two events of the hour that is published, one of an hour before it."""
    log = MemoryLog(1)
    log.append_events(0, [START, START + 1, 1_000_000_000_000])
    return log


@pytest.fixture
def warehouse(tmp_path: Path, log: MemoryLog) -> Path:
    load_topic(load_run(log, tmp_path), TOPIC)
    publish_hours(hourly_run(tmp_path), TOPIC, [TEN])
    return tmp_path


def publish(warehouse: Path, verdict: str, after_s: float = DAY_S) -> list[HourResult]:
    run = hourly_run(warehouse)
    reasons = [] if verdict == "complete" else ["web1 is silent"]
    run = dataclasses.replace(run, verdict_of=lambda *_: Verdict(verdict=verdict, reasons=reasons))
    return publish_unpublished_hours(run, TOPIC, after_s)


def notes(warehouse: Path) -> list[str]:
    reports = verify(LocalFilesystem(str(warehouse)), TOPIC, None, lambda folder: None)
    assert not [problem for report in reports for problem in report.problems]
    return [note for report in reports for note in report.notes]


def waiting(warehouse: Path) -> dict[str, int]:
    return {each.hour: each.rows for each in unpublished_hours(LocalFilesystem(str(warehouse)), TOPIC)}


def test_rows_of_an_hour_that_nobody_published_are_noted_until_they_are_in_the_table(warehouse: Path) -> None:
    assert publish_late_hours(hourly_run(warehouse), TOPIC) == []
    (note,) = notes(warehouse)
    assert note.startswith(
        f"{TOPIC}: 1 row(s) of 1 hour(s) are loaded and in no table: {LOST} (1); run `mill"
    )
    (result,) = publish(warehouse, "complete")
    assert (result.hour, result.rows, result.published) == (LOST, 1, True)
    assert waiting(warehouse) == {}
    assert notes(warehouse) == []
    assert publish(warehouse, "complete") == []
    assert len(rows_of(warehouse, f"{TOPIC}.hourly/date=*/hour=*/rev=*/*.parquet")) == 3


def test_a_warehouse_without_a_table_of_hours_has_its_rows_noted(tmp_path: Path, log: MemoryLog) -> None:
    load_topic(load_run(log, tmp_path), TOPIC)
    (note,) = notes(tmp_path)
    assert f"3 row(s) of 2 hour(s) are loaded and in no table: {LOST} (1), {TEN} (2);" in note


def test_many_hours_are_counted_and_a_few_named(tmp_path: Path) -> None:
    log = MemoryLog(1)
    log.append_events(0, [START + hour * HOUR for hour in range(8)])
    load_topic(load_run(log, tmp_path), TOPIC)
    (note,) = notes(tmp_path)
    assert "8 row(s) of 8 hour(s)" in note
    assert "2015-05-17T14 (1) and 3 more;" in note


@pytest.mark.parametrize(
    ("verdict", "after_s", "published"),
    [
        ("complete", 1e9, True),
        ("unknown", DAY_S, True),
        ("unasked", DAY_S, True),
        ("unknown", 1e9, False),
        ("incomplete", 0, False),
    ],
)
def test_what_the_auditor_cannot_judge_waits_and_what_it_calls_incomplete_is_left_and_named(
    warehouse: Path, verdict: str, after_s: float, published: bool
) -> None:
    (result,) = publish(warehouse, verdict, after_s)
    assert (result.hour, result.rows, result.verdict, result.published) == (LOST, 1, verdict, published)
    assert waiting(warehouse) == ({} if published else {LOST: 1})
    if not published:
        assert "web1 is silent" in result.message
        advice = f"--hour {LOST}" if verdict == "incomplete" else "--unproven-after"
        assert advice in result.message


def test_rows_of_a_clock_that_is_fast_by_years_wait_from_their_load_on(tmp_path: Path) -> None:
    log = MemoryLog(1)
    log.append_events(0, [253_402_300_799_000])
    began = time.time()
    load_topic(load_run(log, tmp_path), TOPIC)
    assert notes(tmp_path) == []  # nobody has had a day for it
    (result,) = publish(tmp_path, "unknown", DAY_S)
    assert (result.hour, result.published) == (LAST, False)
    (result,) = publish(tmp_path, "unknown", began - time.time() - 1)
    assert (result.hour, result.published) == (LAST, True)


def test_an_hour_that_only_a_reload_has_rows_of_is_found(tmp_path: Path) -> None:
    scene = Scenario(tmp_path, random.Random(1))
    scene.log.append(0, [moved_event(0, START, START + HOUR)])
    scene._load(scene.filesystem())
    assert waiting(tmp_path) == {TEN: 1}
    scene.fixed = True
    reload_topic(scene.reload_run(scene.filesystem()), TOPIC, [1])
    assert waiting(tmp_path) == {"2015-05-17T11": 1}
