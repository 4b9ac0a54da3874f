"""Any order of loads, publications, re-loads, compaction and expiry, cut off anywhere: no row is lost."""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from millrace_warehouse.load.reload import reload_topic
from millrace_warehouse.storage import Storage
from tests.support import ROUNDS
from tests.unit.warehouse.interleaved import HOURS, Scenario
from tests.unit.warehouse.memory_log import HOUR, START, TOPIC
from tests.unit.warehouse.storages import CutOff, problems

STEPS = 18


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_every_order_of_things_shows_the_newest_editions_of_what_is_published(
    seed: int, tmp_path: Path
) -> None:
    run(seed, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 1000 + 10 * ROUNDS))
def test_every_order_of_things_for_longer(seed: int, tmp_path: Path) -> None:
    run(seed, tmp_path)


def run(seed: int, folder: Path) -> None:
    scenario = Scenario(folder, random=random.Random(seed))
    for _ in range(STEPS):
        scenario.step()
    scenario.settle()


def prepared(folder: Path) -> Scenario:
    """Three loads, one of them read again, and records that wait: every action has work to do."""
    scenario = Scenario(folder, random=random.Random(4))
    storage = scenario.storage()
    for _ in range(2):
        scenario.produce(storage)
    scenario.fixed = True
    reload_topic(scenario.reload_run(storage, "first"), TOPIC, [2])
    scenario.produce(storage)
    scenario.log.append_events(0, [START, START + HOUR])
    return scenario


ACTIONS: dict[str, Callable[[Scenario, Storage], object]] = {
    "load": lambda scenario, storage: scenario.load(storage),
    "reload": lambda scenario, storage: reload_topic(scenario.reload_run(storage), TOPIC, [1, 3]),
}


@pytest.mark.parametrize("action", ACTIONS)
def test_cut_off_at_some_changes_and_run_again_the_table_is_that_of_an_undisturbed_run(
    action: str, tmp_path: Path
) -> None:
    cut_off_and_run_again(action, tmp_path, every=4)


@pytest.mark.long
@pytest.mark.parametrize("action", ACTIONS)
def test_cut_off_at_every_change_and_run_again_the_table_is_that_of_an_undisturbed_run(
    action: str, tmp_path: Path
) -> None:
    cut_off_and_run_again(action, tmp_path, every=1)


def cut_off_and_run_again(action: str, folder: Path, *, every: int) -> None:
    begun = prepared(folder / "begun")
    undisturbed = begun.copied(folder / "undisturbed")
    ACTIONS[action](undisturbed, undisturbed.storage())
    undisturbed.publish(undisturbed.storage(), *HOURS)
    expected, _ = undisturbed.visible()
    for changes in itertools.count(1, every):
        scenario = begun.copied(folder / str(changes))
        try:
            ACTIONS[action](scenario, scenario.mortal(changes))
            break
        except CutOff:
            scenario.runs = begun.runs  # the same run again
        ACTIONS[action](scenario, scenario.storage())
        assert problems(scenario.folder, TOPIC) == [], (action, changes)
        scenario.publish(scenario.storage(), *HOURS)
        scenario.look()
        assert scenario.visible()[0] == expected, (action, changes)
        assert scenario.problems() == [], (action, changes)
        shutil.rmtree(scenario.folder)
    assert changes > every, "nothing was cut off"
