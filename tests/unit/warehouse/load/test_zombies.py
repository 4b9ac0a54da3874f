"""Attempts that were given up and come back to life put nothing into what counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace_warehouse.history.layout import Topic, attempted, load_numbers, read_load
from millrace_warehouse.load.load import load_topic
from millrace_warehouse.storage import open_storage
from tests.support import run_python
from tests.unit.warehouse.load.zombie import PAUSES
from tests.unit.warehouse.memory_log import START, TOPIC, filled_log, load_run, rows_of
from tests.unit.warehouse.storages import problems


@pytest.fixture(scope="module")
def haunted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("haunted")
    done = run_python("-m", "tests.unit.warehouse.load.zombie", str(folder), timeout_s=120)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("pause_at", PAUSES)
def test_a_task_that_was_stopped_and_wakes_up_later_changes_no_file_that_a_manifest_names(
    haunted: Path, pause_at: str
) -> None:
    warehouse = haunted / pause_at
    assert [row.sequence for row in rows_of(warehouse)] == list(range(180))
    assert problems(warehouse, TOPIC) == []
    named = {Path(file.path).name for file in read_load(Topic(open_storage(str(warehouse)), TOPIC), 1).files}
    there = {path.name for path in (warehouse / TOPIC / "rows").glob("*/2015*.parquet")}
    assert named < there, "the stopped tasks went on and stored what they had"


def test_a_driver_that_sleeps_while_its_number_is_taken_makes_no_load(tmp_path: Path) -> None:
    """It has written everything and wakes up at its create; what it wrote may be gone by then."""
    log, storage = filled_log(), open_storage(str(tmp_path))
    slept: list[str] = []

    def sleep(step: str) -> None:
        if step == "prepared" and not slept:
            (folder,) = storage.names(f"{TOPIC}/rows")
            slept.append(folder)
            log.append_events(0, [START])
            load_topic(load_run(log, tmp_path, "awake"), TOPIC)
            storage.delete(f"{TOPIC}/rows/{folder}")

    result = load_topic(load_run(log, tmp_path, "asleep", progress=sleep), TOPIC)
    assert attempted(slept[0]) == (1, 1)
    assert (result.load, result.published) == (1, False)
    assert load_numbers(Topic(storage, TOPIC)) == [1]
    assert read_load(Topic(storage, TOPIC), 1).run_id == "awake"
    assert problems(tmp_path, TOPIC) == []
