"""Attempts that were given up and come back to life put nothing into a published folder."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from millrace.errors import MillraceError
from millrace_spark.files.filesystem import LocalFilesystem
from millrace_spark.load.load import load_topic
from millrace_spark.table.publish import publish_hours
from millrace_spark.table.revisions import newest_revisions
from millrace_spark.verify import verify
from millrace_spark.warehouse.layout import (
    HOURLY,
    STAGING,
    STALE_STAGING_S,
    load_numbers,
    no_progress,
    read_load,
    sweep_staging,
)
from tests.support import REPOSITORY
from tests.unit.spark_load.memory_log import TOPIC, filled_log, hourly_run, load_run, rows_of
from tests.unit.spark_load.zombie import PAUSES


@pytest.fixture(scope="module")
def haunted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("haunted")
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.spark_load.zombie", str(folder)],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
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
