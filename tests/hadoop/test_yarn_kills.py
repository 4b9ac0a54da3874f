"""Loads on YARN while the command, the driver, the NodeManager or the ResourceManager is killed: nothing is
lost, and nothing is loaded twice."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from tests.jobs import kill_at_a_step
from tests.peers.yarn import DRIVER, EXECUTOR, PYTHON
from tests.support import Process, wait_until

if TYPE_CHECKING:
    from tests.hadoop.yarn_world import YarnWarehouse, YarnWorld

pytest_plugins = ["tests.hadoop.yarn_world"]
EVENTS = 2_000
WAIT_S = 300.0


def run_of(world: YarnWorld, yarn_warehouse: YarnWarehouse, topic: str) -> list[str]:
    """The same run each time, with its driver on the cluster."""
    return [*yarn_warehouse.command("load", topic, "--run-id", "the:run"), *world.yarn.cluster_mode]


def filled(yarn_warehouse: YarnWarehouse, name: str) -> str:
    """A topic with events."""
    topic = yarn_warehouse.site.topic(name, 2)
    yarn_warehouse.produce(topic, EVENTS)
    return topic


def test_a_killed_command_in_client_mode_is_run_again(
    yarn_world: YarnWorld, yarn_warehouse: YarnWarehouse
) -> None:
    topic = filled(yarn_warehouse, "Client-killed")
    run = [*yarn_warehouse.command("load", topic, "--run-id", "the:run"), *yarn_world.yarn.options]
    kill_at_a_step(Process(run), steps=2, pause_s=0, timeout_s=WAIT_S)
    (again,) = yarn_warehouse.run(*run)
    assert again["rows"] == EVENTS
    yarn_warehouse.check(topic)


def test_a_driver_outlives_its_command_and_the_same_run_waits_for_it(
    yarn_world: YarnWorld, yarn_warehouse: YarnWarehouse
) -> None:
    topic, before = filled(yarn_warehouse, "Command-killed"), len(yarn_world.yarn.applications())
    run = run_of(yarn_world, yarn_warehouse, topic)
    killed = Process(run)
    application = yarn_world.tagged(killed)
    killed.kill()
    waiting = Process(run)
    assert waiting.wait(timeout_s=WAIT_S) == 0, waiting.output
    assert "an earlier command has left driver millrace-" in waiting.output
    assert yarn_world.state(application) == "FINISHED SUCCEEDED"
    assert len(yarn_world.yarn.applications()) == before + 1
    yarn_warehouse.check(topic)


def test_a_command_killed_while_it_submits_leaves_at_most_a_driver_that_the_same_run_finds(
    yarn_world: YarnWorld, yarn_warehouse: YarnWarehouse
) -> None:
    topic = filled(yarn_warehouse, "Submission-killed")
    run = run_of(yarn_world, yarn_warehouse, topic)
    killed = Process(run)
    wait_until("the driver is noted", lambda: [*yarn_warehouse.storage.files(".drivers")], timeout_s=WAIT_S)
    killed.kill()
    (again,) = yarn_warehouse.run(*run)
    assert again["rows"] == EVENTS
    yarn_warehouse.check(topic)


def test_a_command_that_is_told_to_stop_ends_its_application(
    yarn_world: YarnWorld, yarn_warehouse: YarnWarehouse
) -> None:
    topic = filled(yarn_warehouse, "Stopped")
    stopped = Process(run_of(yarn_world, yarn_warehouse, topic))
    application = yarn_world.tagged(stopped)
    stopped.signal(signal.SIGTERM)
    assert stopped.wait(timeout_s=WAIT_S) != 0
    wait_until("it is killed", lambda: yarn_world.state(application) == "KILLED KILLED", timeout_s=WAIT_S)
    assert [*yarn_warehouse.storage.files(".drivers")] == []
    wait_until("its processes are gone", lambda: not yarn_world.yarn.containers(PYTHON), timeout_s=WAIT_S)


@pytest.mark.parametrize("word", [DRIVER, PYTHON, EXECUTOR], ids=["its JVM", "its Python", "its executor"])
def test_a_driver_whose_processes_are_killed_is_followed_by_another_one_that_goes_on(
    yarn_world: YarnWorld, yarn_warehouse: YarnWarehouse, word: bytes
) -> None:
    topic = filled(yarn_warehouse, f"Driver-killed-{word.decode()}")
    run = run_of(yarn_world, yarn_warehouse, topic)
    command = Process(run)
    yarn_world.tagged(command)
    wait_until("it has an executor", lambda: yarn_world.yarn.containers(EXECUTOR), timeout_s=WAIT_S)
    assert yarn_world.yarn.kill_containers(word)
    if command.wait(timeout_s=WAIT_S) != 0:  # a lost executor is replaced
        assert word != EXECUTOR, command.output
        assert "--run-id the:run to go on" in command.output
        yarn_warehouse.run(*run)
    yarn_warehouse.check(topic)


def test_a_node_that_is_lost_with_the_driver_leaves_a_run_that_goes_on(
    yarn_world: YarnWorld, yarn_warehouse: YarnWarehouse
) -> None:
    topic = filled(yarn_warehouse, "Node-killed")
    run = run_of(yarn_world, yarn_warehouse, topic)
    command = Process(run)
    yarn_world.tagged(command)
    wait_until("it has an executor", lambda: yarn_world.yarn.containers(EXECUTOR), timeout_s=WAIT_S)
    yarn_world.yarn.nodemanagers[0].kill()
    for word in (DRIVER, PYTHON, EXECUTOR):  # the machine is gone with all that ran there
        yarn_world.yarn.kill_containers(word)
    wait_until(
        "YARN has lost the node",
        lambda: yarn_world.yarn.ask("metrics")["clusterMetrics"]["activeNodes"] == 0,
        timeout_s=WAIT_S,
    )
    yarn_world.yarn.start()
    if command.wait(timeout_s=WAIT_S) != 0:
        yarn_warehouse.run(*run)
    yarn_warehouse.check(topic)


def test_a_resource_manager_that_restarts_and_knows_its_applications_is_waited_for(
    yarn_world: YarnWorld, yarn_warehouse: YarnWarehouse
) -> None:
    topic, yarn = filled(yarn_warehouse, "Restarted"), yarn_world.yarn
    command = Process(run_of(yarn_world, yarn_warehouse, topic))
    application = yarn_world.tagged(command)
    wait_until("the driver runs", lambda: yarn.containers(PYTHON), timeout_s=WAIT_S)
    yarn.resourcemanager.kill()
    yarn.start()
    assert command.wait(timeout_s=WAIT_S) == 0, command.output
    assert yarn_world.state(application) == "FINISHED SUCCEEDED"
    yarn_warehouse.check(topic)


def test_a_resource_manager_that_has_forgotten_the_application_ends_the_command_and_the_same_run_goes_on(
    yarn_world: YarnWorld, yarn_warehouse: YarnWarehouse
) -> None:
    topic, yarn = filled(yarn_warehouse, "Forgotten"), yarn_world.yarn
    run = run_of(yarn_world, yarn_warehouse, topic)
    command = Process(run)
    yarn_world.tagged(command)
    wait_until("the driver runs", lambda: yarn.containers(PYTHON), timeout_s=WAIT_S)
    yarn.resourcemanager.kill()
    shutil.rmtree(yarn.folder / "state")
    yarn.start()
    if command.wait(timeout_s=WAIT_S) != 0:
        assert "UNKNOWN without an answer" in command.output
        yarn_warehouse.run(*run)
    for pid in yarn.containers(PYTHON):  # a driver whose ResourceManager has forgotten it
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    yarn_warehouse.check(topic)
