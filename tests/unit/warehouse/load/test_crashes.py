"""Killed at every step of a load and of a re-load, then run again: the same rows, once each.

No JVM: the steps are those of the driver, and what they leave behind is the same under Spark.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import run_python
from tests.unit.warehouse.load.crashing import LOAD_STEPS, RELOAD_STEPS
from tests.unit.warehouse.memory_log import TOPIC, rows_of
from tests.unit.warehouse.storages import problems


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("crashed")
    done = run_python("-m", "tests.unit.warehouse.load.crashing", str(folder), timeout_s=120)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("step", LOAD_STEPS)
def test_a_load_killed_at_any_step_and_run_again_loads_every_row_once(crashed: Path, step: str) -> None:
    warehouse = crashed / "load" / step
    assert [row.sequence for row in rows_of(warehouse)] == list(range(180))
    assert [path.name for path in (warehouse / TOPIC / "loads").iterdir()] == ["0000000001.json"]
    assert [path.name for path in (warehouse / TOPIC / "ledger/loads").iterdir()] == ["0000000001.json"]
    assert problems(warehouse, TOPIC) == []


@pytest.mark.parametrize("step", RELOAD_STEPS)
def test_a_re_load_killed_at_any_step_and_run_again_makes_one_edition(crashed: Path, step: str) -> None:
    warehouse = crashed / "reload" / step
    assert [row.sequence for row in rows_of(warehouse)] == list(range(180))
    assert [path.name for path in (warehouse / TOPIC / "editions").iterdir()] == ["0000000001.0002.json"]
    assert problems(warehouse, TOPIC) == []
