"""Attempts that were given up and come back to life put nothing into a published folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from millrace_spark.filesystem import LocalFilesystem
from millrace_spark.verify import verify
from millrace_spark.warehouse import no_progress
from tests.support import REPOSITORY
from tests.unit.spark_load.memory_log import TOPIC, rows_of
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
