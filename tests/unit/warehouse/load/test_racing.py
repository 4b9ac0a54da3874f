"""Drivers in several processes race for loads and editions and are killed: every event is loaded once."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace_warehouse.load.load import load_topic
from millrace_warehouse.load.reload import ReloadRun, reload_topic
from tests.support import ROUNDS, run_python
from tests.unit.warehouse.load.racing import EVENTS, racing_log
from tests.unit.warehouse.memory_log import TOPIC, load_run, rows_of
from tests.unit.warehouse.storages import problems


def race(warehouse: Path, seed: int, kills: int) -> None:
    done = run_python(
        "-m", "tests.unit.warehouse.load.racing", str(warehouse), str(seed), str(kills), timeout_s=300
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0, "nobody was killed in time: the test shows nothing"
    assert [row.sequence for row in rows_of(warehouse)] == list(range(EVENTS))
    # What those left undone that died right behind their create, the next run does.
    run = load_run(racing_log(), warehouse, "last")
    assert not load_topic(run, TOPIC).published
    reload_topic(ReloadRun(context=run.context, reason="a test"), TOPIC, [])
    assert problems(warehouse, TOPIC) == []


def test_drivers_that_race_and_are_killed_load_every_event_once(tmp_path: Path) -> None:
    race(tmp_path, 1, 5)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 10 + 3 * ROUNDS))
def test_drivers_that_race_and_are_killed_for_longer(seed: int, tmp_path: Path) -> None:
    race(tmp_path, seed, 20)
