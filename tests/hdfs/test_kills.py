"""Drivers that are killed, that race, and that come back as zombies: the same rows, none twice."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.jobs import kill_at_a_step
from tests.remote_warehouse import RemoteWarehouse, at_each_step
from tests.support import Process, run_millrace

STEPS = ("planned", "written", "prepared", "committed", "recorded", "counted")
ROWS = 600
PATIENCE_S = 300
"""For a job to reach a step on a machine that does other things, too."""
RACES = 3


@pytest.mark.parametrize("step", range(len(STEPS)), ids=STEPS)
def test_a_driver_killed_at_a_step_and_run_again_loads_every_message_once(
    warehouse: RemoteWarehouse, step: int
) -> None:
    topic = warehouse.site.topic(f"Killed-{STEPS[step]}", 2)
    warehouse.produce(topic, ROWS)
    assert warehouse.load(topic).load == 1
    warehouse.produce(topic, ROWS)
    # The first step of every driver but the first is `ledger checked`.
    command = warehouse.command("load", topic, "--run-id", "killed")
    kill_at_a_step(Process(command), steps=step + 2, pause_s=0, timeout_s=PATIENCE_S)
    again = warehouse.load(topic, run_id="killed")
    assert (again.load, again.rows) == (2, ROWS)
    warehouse.check_loads(topic)


def test_killed_at_random_moments_and_run_again_in_a_process_of_its_own(warehouse: RemoteWarehouse) -> None:
    topic, chance = warehouse.site.topic("Killed-at-random", 2), random.Random(time.time_ns())
    for turn in (1, 2):
        warehouse.produce(topic, ROWS)
        for verb, options in (
            ("load", ["--run-id", f"turn {turn}"]),
            ("publish", hours_of(warehouse, topic)),
        ):
            command = warehouse.command(verb, topic, *options)
            kill_at_a_step(
                Process(command),
                steps=chance.randrange(0, 6),
                pause_s=chance.uniform(0, 0.5),
                timeout_s=PATIENCE_S,
            )
            done = run_millrace(*command, timeout_s=PATIENCE_S)
            assert done.returncode == 0, done.stderr
            if verb == "load":
                assert [(each["load"], each["rows"]) for each in json.loads(done.stdout)] == [(turn, ROWS)]
        warehouse.check_table(topic)


def hours_of(warehouse: RemoteWarehouse, topic: str) -> list[str]:
    """Every hour of the topic as options of `publish`."""
    hours = [option for hour in sorted(warehouse.hours(topic)) for option in ("--hour", f"{hour}:00Z")]
    return [*hours, "--unasked"]


@pytest.mark.parametrize("run_ids", [("same", "same"), ("one", "other")], ids=["one run id", "two run ids"])
def test_two_drivers_that_race_load_every_message_once(
    warehouse: RemoteWarehouse, run_ids: tuple[str, str]
) -> None:
    topic = warehouse.site.topic(f"Raced-{'-'.join(run_ids)}", 2)
    for turn in range(1, RACES + 1):
        warehouse.produce(topic, ROWS)
        barrier = threading.Barrier(2)

        def drive(run_id: str, barrier: threading.Barrier = barrier, turn: int = turn) -> int | None:
            barrier.wait(PATIENCE_S)
            return warehouse.load(topic, run_id=f"{run_id} {turn}").load

        with ThreadPoolExecutor(2) as drivers:
            assert set(drivers.map(drive, run_ids)) == {turn}
    warehouse.check_loads(topic)


def test_of_two_zombies_that_create_one_number_at_the_same_moment_one_wins(
    warehouse: RemoteWarehouse,
) -> None:
    topic = warehouse.site.topic("Zombies", 2)
    for turn in range(1, RACES + 1):
        warehouse.produce(topic, ROWS)
        ready, steps = threading.Barrier(2), list[str]()

        def hold(step: str, ready: threading.Barrier = ready, steps: list[str] = steps) -> None:
            steps.append(step)
            if step == "prepared" and steps.count("prepared") <= 2:
                ready.wait(PATIENCE_S)  # both have written and prepared the load of this number

        with at_each_step(hold), ThreadPoolExecutor(2) as drivers:
            results = list(
                drivers.map(lambda name: warehouse.load(topic, run_id=name), (f"a{turn}", f"b{turn}"))
            )
        assert [result.load for result in results] == [turn, turn]
        assert sorted(result.published for result in results) == [False, True]
        assert Counter(steps)["committed"] == 1
    warehouse.check_loads(topic)
    assert len(warehouse.storage.names(f"{topic}/rows")) == RACES  # who lost has cleaned up


def test_a_zombie_that_wakes_up_after_others_went_on_counts_nothing_twice(warehouse: RemoteWarehouse) -> None:
    topic = warehouse.site.topic("Woken", 2)
    warehouse.produce(topic, ROWS)
    sleeping, wake = threading.Event(), threading.Event()

    def sleep_before_the_create(step: str) -> None:
        if step == "prepared" and not sleeping.is_set():
            sleeping.set()
            assert wake.wait(PATIENCE_S)

    with ThreadPoolExecutor(1) as zombie:
        with at_each_step(sleep_before_the_create):
            woken = zombie.submit(warehouse.load, topic, run_id="zombie")
            assert sleeping.wait(PATIENCE_S)
        assert warehouse.load(topic).load == 1
        warehouse.produce(topic, ROWS)
        assert warehouse.load(topic).load == 2
        wake.set()
        result = woken.result(PATIENCE_S)
    assert not result.published
    warehouse.check_loads(topic)


def test_a_reader_sees_whole_publications_while_they_are_made(warehouse: RemoteWarehouse) -> None:
    topic = warehouse.site.topic("Read", 2)
    warehouse.produce(topic, ROWS)
    warehouse.load(topic)
    warehouse.publish(topic)
    seen: list[int] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.append(warehouse.rows(topic).total())

    with ThreadPoolExecutor(1) as reader:
        reading = reader.submit(read)
        try:
            for _ in range(2):
                warehouse.produce(topic, ROWS)
                warehouse.load(topic)
                warehouse.publish(topic)
        finally:
            done.set()
        reading.result(60)
    seen.append(warehouse.rows(topic).total())
    assert set(seen) <= {ROWS, 2 * ROWS, 3 * ROWS}
    assert seen == sorted(seen)
    assert seen[-1] == 3 * ROWS
