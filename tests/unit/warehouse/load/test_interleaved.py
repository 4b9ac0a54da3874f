"""Any order of loads, hours, re-loads and expiry, cut off anywhere: each hour shows what it says it holds."""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from millrace_warehouse.table.publish import publish_hours, publish_late_hours

from millrace_warehouse.load.reload import reload_topic
from millrace_warehouse.storage.filesystem import LocalFilesystem
from tests.support import ROUNDS
from tests.unit.warehouse.interleaved import HOURS, CutOff, Scenario
from tests.unit.warehouse.memory_log import HOUR, START, TOPIC

STEPS = 18


@pytest.mark.parametrize("seed", range(6))
def test_every_order_of_things_shows_the_newest_editions_of_what_is_folded(seed: int, tmp_path: Path) -> None:
    run(seed, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1000, 1000 + 10 * ROUNDS))
def test_every_order_of_things_for_longer(seed: int, tmp_path: Path) -> None:
    run(seed, tmp_path)


def run(seed: int, folder: Path) -> None:
    scenario = Scenario(folder, random.Random(seed))
    for _ in range(STEPS):
        scenario.step()
    scenario.settle()


def prepared(folder: Path) -> Scenario:
    """Hours with late rows, a load that was read again and one that waits: every action has work to do."""
    scenario = Scenario(folder, random.Random(4))
    fs = scenario.filesystem()
    for _ in range(2):
        scenario.load(fs)
    publish_hours(scenario.hourly_run(fs), TOPIC, HOURS)
    scenario.fixed = True
    reload_topic(scenario.reload_run(fs), TOPIC, [2])
    scenario.load(fs)
    scenario.look()
    scenario.log.append_events(0, [START, START + HOUR])
    return scenario


ACTIONS: dict[str, Callable[[Scenario, LocalFilesystem], object]] = {
    "load": lambda scenario, fs: scenario._load(fs),
    "late hours": lambda scenario, fs: scenario.late(fs),
    "reload": lambda scenario, fs: reload_topic(scenario.reload_run(fs), TOPIC, [1, 3]),
    "expire": lambda scenario, fs: scenario.expire(fs),
}


@pytest.mark.parametrize("action", ACTIONS)
def test_cut_off_at_some_changes_and_run_again_the_table_is_that_of_an_undisturbed_run(
    action: str, tmp_path: Path
) -> None:
    cut_off_and_run_again(action, tmp_path, every=4)


@pytest.mark.soak
@pytest.mark.parametrize("action", ACTIONS)
def test_cut_off_at_every_change_and_run_again_the_table_is_that_of_an_undisturbed_run(
    action: str, tmp_path: Path
) -> None:
    cut_off_and_run_again(action, tmp_path, every=1)


def cut_off_and_run_again(action: str, folder: Path, *, every: int) -> None:
    begun = prepared(folder / "begun")
    undisturbed = begun.copied(folder / "undisturbed")
    ACTIONS[action](undisturbed, undisturbed.filesystem())
    publish_late_hours(undisturbed.hourly_run(undisturbed.filesystem()), TOPIC)
    expected = undisturbed.visible()
    for changes in itertools.count(1, every):
        scenario = begun.copied(folder / str(changes))
        try:
            ACTIONS[action](scenario, scenario.filesystem(changes))
            break
        except CutOff:
            scenario.look()
        ACTIONS[action](scenario, scenario.filesystem())
        scenario.look()
        publish_late_hours(scenario.hourly_run(scenario.filesystem()), TOPIC)
        assert scenario.visible() == expected, (action, changes)
        assert scenario.problems() == [], (action, changes)
        shutil.rmtree(scenario.folder)
    assert changes > every, "nothing was cut off"
