"""Attempts that were given up and come back to life put nothing into a published folder."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from millrace_warehouse.history.staging import STALE_STAGING_S, SWEPT, sweep_staging
from millrace_warehouse.table.merge import DirectMerge, merge_files
from millrace_warehouse.table.publish import publish_hours
from millrace_warehouse.table.revisions import newest_revisions

from millrace.errors import MillraceError
from millrace_warehouse.history.layout import HOURLY, STAGING, load_numbers, read_load
from millrace_warehouse.load.load import load_topic
from millrace_warehouse.load.task import DirectSink, write_cut
from millrace_warehouse.storage.filesystem import LocalFilesystem
from millrace_warehouse.verify import verify
from tests.support import REPOSITORY, wait_until
from tests.unit.warehouse.load.zombie import PAUSES
from tests.unit.warehouse.memory_log import (
    TOPIC,
    filled_log,
    hourly_run,
    load_run,
    local_run,
    no_progress,
    rows_of,
)


@pytest.fixture(scope="module")
def haunted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("haunted")
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.warehouse.load.zombie", str(folder)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("pause_at", PAUSES)
def test_a_task_that_was_stopped_and_wakes_up_later_leaves_no_stray_file(
    haunted: Path, pause_at: str
) -> None:
    warehouse = haunted / pause_at
    # What anybody sees who reads the folder itself, whatever a manifest says.
    assert [row.sequence for row in rows_of(warehouse)] == list(range(180))
    reports = verify(LocalFilesystem(str(warehouse)), TOPIC, None, no_progress)
    assert [problem for report in reports for problem in report.problems] == []


@pytest.mark.parametrize("step", ["written", "verified", "synced", "recorded"])
def test_a_driver_whose_staging_was_swept_in_its_sleep_publishes_no_hour_without_its_rows(
    tmp_path: Path, step: str
) -> None:
    fs, staging = LocalFilesystem(str(tmp_path)), f"{TOPIC}{HOURLY}/{STAGING}"
    load_topic(load_run(filled_log(), tmp_path), TOPIC)

    def sweep_in_its_sleep(reached: str) -> None:
        if reached.endswith(step):
            (name,) = fs.names(staging)
            os.utime(tmp_path / staging / name, (time.time() - STALE_STAGING_S - 60,) * 2)
            sweep_staging(fs, f"{TOPIC}{HOURLY}")

    hours = sorted(read_load(fs, TOPIC, 1).rows_by_hour())
    assert len(hours) > 1
    with pytest.raises(MillraceError):
        publish_hours(hourly_run(tmp_path, progress=sweep_in_its_sleep), TOPIC, hours)
    reports = verify(fs, TOPIC, None, no_progress)
    assert [problem for report in reports for problem in report.problems] == []
    publish_hours(hourly_run(tmp_path), TOPIC, hours)
    rows = [each.manifest.rows for each in newest_revisions(fs, TOPIC)]
    assert rows == list(read_load(fs, TOPIC, 1).rows_by_hour().values())


class WakesWhileSwept(LocalFilesystem):
    """Deletes the first file of a folder, then lets somebody else do something, then goes on."""

    def __init__(self, root: str, wake: Callable[[], None]) -> None:
        super().__init__(root)
        self._wake = wake

    def delete(self, path: str) -> None:
        files = [name for name, _ in self.files(path) if name.endswith(".parquet")]
        if files:
            super().delete(f"{path}/{files[0]}")
            self._wake()
        super().delete(path)


def test_a_driver_that_wakes_up_while_its_staging_is_swept_publishes_nothing(tmp_path: Path) -> None:
    fs, staging = LocalFilesystem(str(tmp_path)), f"{TOPIC}/{STAGING}"

    def sweep_in_its_sleep(step: str) -> None:
        if step == "synced":
            (name,) = fs.names(staging)
            os.utime(tmp_path / staging / name, (time.time() - STALE_STAGING_S - 60,) * 2)
            wake = partial(publish, f"{staging}/{name}")
            sweep_staging(WakesWhileSwept(str(tmp_path), wake), TOPIC)

    def publish(folder: str) -> None:
        with suppress(FileNotFoundError):
            fs.move(folder, f"{TOPIC}/load=0000000001")

    with pytest.raises(MillraceError, match="is gone: this run stood still for more than a day"):
        load_topic(load_run(filled_log(), tmp_path, progress=sweep_in_its_sleep), TOPIC)
    assert load_numbers(fs, TOPIC) == []
    assert fs.names(staging) == []


def aged(folder: Path) -> bool:
    """Let everything a run has staged look untouched for more than a day; True if there is anything."""
    staged = [path for path in folder.iterdir() if not path.name.endswith(SWEPT)]
    for path in staged:
        os.utime(path, (time.time() - STALE_STAGING_S - 60,) * 2)
    return bool(staged)


@pytest.mark.parametrize("table", [TOPIC, f"{TOPIC}{HOURLY}"])
def test_a_run_that_takes_longer_than_a_day_keeps_its_staging(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    monkeypatch.setattr("millrace_warehouse.history.staging.BEAT_S", 0.01)
    fs, log = LocalFilesystem(str(tmp_path)), filled_log()
    folder = tmp_path / table / STAGING

    def a_day_passes(tasks: Sequence[Any], function: Callable[[Any], Any]) -> list[Any]:
        done = local_run(tasks, function)
        assert aged(folder)
        names = [name for name in fs.names(f"{table}/{STAGING}") if fs.files(f"{table}/{STAGING}/{name}")]
        paths = [f"{table}/{STAGING}/{name}" for name in names]
        wait_until(
            "the driver touches its folders", lambda: all(fs.age_s(path) < STALE_STAGING_S for path in paths)
        )
        sweep_staging(fs, table)
        assert [name for name in fs.names(f"{table}/{STAGING}") if name in names] == names
        return done

    sink = DirectSink(fs, partial(a_day_passes, function=write_cut) if table == TOPIC else local_run)
    loaded = load_topic(load_run(log, tmp_path, sink=sink), TOPIC)
    assert (loaded.published, loaded.rows) == (True, 180)
    merge = DirectMerge(fs, partial(a_day_passes if table != TOPIC else local_run, function=merge_files))
    run = dataclasses.replace(hourly_run(tmp_path), merge=merge)
    results = publish_hours(run, TOPIC, sorted(loaded.hours))
    assert sum(result.rows for result in results if result.published) == 180
    assert fs.names(f"{table}/{STAGING}") == []
