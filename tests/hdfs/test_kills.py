"""Drivers that are killed, that race, and that come back as zombies: the same rows, none twice."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.hdfs.warehouse import HdfsWarehouse, at_each_step
from tests.jobs import kill_at_a_step
from tests.support import Process, run_millrace, wait_until

STEPS = ("planned", "written", "verified", "described", "synced", "published", "recorded", "counted")
ROWS = 600
PATIENCE_S = 300
"""For a job to reach a step on a machine that does other things, too."""
RACES = 3


@pytest.mark.parametrize("step", range(len(STEPS)), ids=STEPS)
def test_a_driver_killed_at_a_step_and_run_again_loads_every_message_once(
    warehouse: HdfsWarehouse, step: int
) -> None:
    topic = warehouse.site.topic(f"Killed-{STEPS[step]}", 2)
    warehouse.publish(topic, ROWS)
    assert warehouse.load(topic).load == 1
    warehouse.publish(topic, ROWS)
    # The first step of every driver but the first is `healed`.
    command = warehouse.command("load", topic, "--run-id", "killed")
    kill_at_a_step(Process(command), steps=step + 2, pause_s=0, timeout_s=PATIENCE_S)
    again = warehouse.load(topic, run_id="killed")
    assert (again.load, again.rows) == (2, ROWS)
    warehouse.check_loads(topic)


def test_killed_at_random_moments_and_run_again_in_a_process_of_its_own(warehouse: HdfsWarehouse) -> None:
    topic, chance = warehouse.site.topic("Killed-at-random", 2), random.Random(time.time_ns())
    for turn in (1, 2):
        warehouse.publish(topic, ROWS)
        command = warehouse.command("load", topic, "--run-id", f"turn {turn}")
        kill_at_a_step(
            Process(command), steps=chance.randrange(0, 8), pause_s=chance.uniform(0, 1), timeout_s=PATIENCE_S
        )
        done = run_millrace(*command, timeout_s=PATIENCE_S)
        assert done.returncode == 0, done.stderr
        assert [(each["load"], each["rows"]) for each in json.loads(done.stdout)] == [(turn, ROWS)]
    warehouse.check_loads(topic)


@pytest.mark.parametrize("run_ids", [("same", "same"), ("one", "other")], ids=["one run id", "two run ids"])
def test_two_drivers_that_race_load_every_message_once(
    warehouse: HdfsWarehouse, run_ids: tuple[str, str]
) -> None:
    topic = warehouse.site.topic(f"Raced-{'-'.join(run_ids)}", 2)
    for turn in range(1, RACES + 1):
        warehouse.publish(topic, ROWS)
        barrier = threading.Barrier(2)

        def drive(run_id: str, barrier: threading.Barrier = barrier, turn: int = turn) -> int | None:
            barrier.wait(PATIENCE_S)
            return warehouse.load(topic, run_id=f"{run_id} {turn}").load

        with ThreadPoolExecutor(2) as drivers:
            assert set(drivers.map(drive, run_ids)) == {turn}
        assert warehouse.rows(topic) == warehouse.messages(topic)
    warehouse.check_loads(topic)


def test_of_two_zombies_that_publish_one_number_at_the_same_moment_one_wins(warehouse: HdfsWarehouse) -> None:
    topic = warehouse.site.topic("Zombies", 2)
    for turn in range(1, RACES + 1):
        warehouse.publish(topic, ROWS)
        ready, steps = threading.Barrier(2), list[str]()

        def hold(step: str, ready: threading.Barrier = ready, steps: list[str] = steps) -> None:
            steps.append(step)
            if step == "synced" and steps.count("synced") <= 2:
                ready.wait(PATIENCE_S)  # both have written, described and synced the load of this number

        with at_each_step(hold), ThreadPoolExecutor(2) as drivers:
            results = list(
                drivers.map(lambda name: warehouse.load(topic, run_id=name), (f"a{turn}", f"b{turn}"))
            )
        assert [result.load for result in results] == [turn, turn]
        assert sorted(result.published for result in results) == [False, True]
        assert Counter(steps)["published"] == 1
    warehouse.check_loads(topic)
    assert warehouse.fs.names(f"{topic}/_staging") == []


def test_a_zombie_that_wakes_up_after_others_went_on_publishes_nothing_twice(
    warehouse: HdfsWarehouse,
) -> None:
    topic = warehouse.site.topic("Woken", 2)
    warehouse.publish(topic, ROWS)
    sleeping, wake = threading.Event(), threading.Event()

    def sleep_before_the_rename(step: str) -> None:
        if step == "synced" and not sleeping.is_set():
            sleeping.set()
            assert wake.wait(PATIENCE_S)

    with ThreadPoolExecutor(1) as zombie:
        with at_each_step(sleep_before_the_rename):
            woken = zombie.submit(warehouse.load, topic, run_id="zombie")
            assert sleeping.wait(PATIENCE_S)
        assert warehouse.load(topic).load == 1
        warehouse.publish(topic, ROWS)
        assert warehouse.load(topic).load == 2
        wake.set()
        result = woken.result(PATIENCE_S)
    assert not result.published
    warehouse.check_loads(topic)


def test_a_reader_sees_whole_loads_while_they_are_published(warehouse: HdfsWarehouse) -> None:
    topic = warehouse.site.topic("Read", 2)
    warehouse.publish(topic, ROWS)
    warehouse.load(topic)
    seen: list[int] = []

    def read(until: threading.Event) -> None:
        while not until.is_set():
            seen.append(warehouse.rows(topic).total())

    done = threading.Event()
    with ThreadPoolExecutor(1) as reader:
        reading = reader.submit(read, done)
        for _ in range(2):
            warehouse.publish(topic, ROWS)
            warehouse.load(topic)
        wait_until("the reader has seen all", lambda: seen and seen[-1] == 3 * ROWS, timeout_s=60)
        done.set()
        reading.result(60)
    assert set(seen) <= {ROWS, 2 * ROWS, 3 * ROWS}
    assert seen == sorted(seen)


def test_hours_killed_at_random_and_published_again(warehouse: HdfsWarehouse) -> None:
    topic, chance = warehouse.site.topic("Hours-killed", 2), random.Random(time.time_ns())
    warehouse.publish(topic, ROWS)
    warehouse.load(topic)
    hours = sorted(warehouse.hours(topic))
    command = warehouse.command("hourly", topic)
    for hour in hours:
        command += ["--hour", f"{hour}:00Z"]
    kill_at_a_step(
        Process(command), steps=chance.randrange(1, 8), pause_s=chance.uniform(0, 0.3), timeout_s=PATIENCE_S
    )
    assert {revision for revision, _ in warehouse.hourly(topic, hours).values()} == {1}
    warehouse.check_hours(topic)
