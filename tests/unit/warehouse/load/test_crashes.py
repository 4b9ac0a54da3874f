"""Killed at every step of a load and of an hourly run, then run again: the same rows, once each.

No JVM: the steps are those of the driver, and what they leave behind is the same under Spark.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from millrace_spark.tables import dataset
from millrace_warehouse.storage.filesystem import LocalFilesystem
from millrace_warehouse.verify import verify
from tests.support import REPOSITORY
from tests.unit.warehouse.load.crashing import HOUR_STEPS, LOAD_STEPS
from tests.unit.warehouse.memory_log import TOPIC, no_progress, rows_of


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("crashed")
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.warehouse.load.crashing", str(folder)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def problems(warehouse: Path) -> list[str]:
    reports = verify(LocalFilesystem(str(warehouse)), TOPIC, None, no_progress)
    return [problem for report in reports for problem in report.problems]


@pytest.mark.parametrize("step", LOAD_STEPS)
def test_a_load_killed_at_any_step_and_run_again_loads_every_row_once(crashed: Path, step: str) -> None:
    warehouse = crashed / "load" / step
    assert [row.sequence for row in rows_of(warehouse)] == list(range(180))
    assert [path.name for path in (warehouse / TOPIC).glob("load=*")] == ["load=0000000001"]
    assert [path.name for path in (warehouse / TOPIC / "_ledger").iterdir()] == ["load=0000000001.json"]
    assert problems(warehouse) == []


@pytest.mark.parametrize("step", LOAD_STEPS)
def test_a_load_killed_at_any_step_has_told_the_auditor_once_it_has_run_again(
    crashed: Path, step: str
) -> None:
    assert set((crashed / "load" / step / "counts").read_text().split()) == {"1"}


@pytest.mark.parametrize("step", HOUR_STEPS)
def test_hours_killed_at_any_step_and_run_again_are_published_once(crashed: Path, step: str) -> None:
    warehouse = crashed / "hourly" / step
    table = dataset(str(warehouse), TOPIC).to_table()
    assert sorted(row["sequence"] for row in table["header"].to_pylist()) == list(range(180))
    assert {path.name for path in (warehouse / f"{TOPIC}.hourly").glob("date=*/hour=*/*")} == {"rev=1"}
    assert problems(warehouse) == []
