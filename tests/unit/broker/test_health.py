"""Problems that a health check finds with a broker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from millrace_broker.metrics import health
from tests.support import WAIT_S, wait_until
from tests.unit.broker.running import Disk, Running, Start, topic


@contextmanager
def turning(running: Running) -> Iterator[None]:
    """The broker's loop runs in a thread."""
    stop = threading.Event()

    def turns() -> None:
        running.until("the test's end", stop.is_set)

    thread = threading.Thread(target=turns)
    thread.start()
    yield
    stop.set()
    thread.join(10)


def problems_of(running: Running, connected: bool = True) -> list[str]:
    client = SimpleNamespace(connected=connected)
    running.cluster.session = SimpleNamespace(client=client)  # type: ignore[attr-defined]
    return health.problems(running.broker)


def test_a_broker_that_works_has_no_problems(start: Start) -> None:
    running = start()
    with turning(running):
        assert problems_of(running) == []


def test_a_loop_that_hangs_is_a_problem(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "LOOP_TIMEOUT_S", 0.05)
    assert problems_of(start()) == ["the broker's loop has not answered within 0 s"]


def test_a_lost_zookeeper_is_a_problem(start: Start) -> None:
    running = start()
    with turning(running):
        assert problems_of(running, connected=False) == ["not connected to ZooKeeper"]


def test_a_disk_that_does_not_answer_is_a_problem(
    start: Start, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "FLUSH_TIMEOUT_S", 0.0)
    running = start(topic("t", 1))
    disk.free.clear()
    outcome = running.produce(acks_all=True)
    running.turn()
    assert disk.entered.wait(WAIT_S)
    with turning(running):
        (problem,) = wait_until("the flush that hangs", lambda: problems_of(running))
    assert problem.startswith("a flush has taken")
    disk.free.set()
    running.until("the answer", lambda: outcome.heard)
    with turning(running):
        wait_until("no problem is left", lambda: problems_of(running) == [])


def test_a_failed_disk_is_a_problem_of_its_partitions(start: Start, disk: Disk) -> None:
    running = start(topic("t", *[1] * 13))
    disk.fails = True
    outcomes = [running.produce(acks_all=True, partition=number) for number in range(13)]
    running.turn()
    running.until("the failures", lambda: all(outcome.heard for outcome in outcomes))
    with turning(running):
        problems = problems_of(running)
    assert len(problems) == health.MAX_LOGS + 1
    assert "takes no writes until the broker restarts" in problems[0]
    assert problems[-1] == "and 3 partitions more"
