"""A broker that stood still acknowledges nothing before it knows what became of its topics meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millrace.config import LogConfig
from millrace.errors import BrokerError, RequestTimedOut, UnknownTopicOrPartition
from millrace_broker.partitions.standstill import STANDSTILL_S
from tests.support import WAIT_S, Clock
from tests.unit.broker.running import FakeCluster, Outcome, Running, topic


class ConfirmedCluster(FakeCluster):
    """Counts how often the topics are read again, and does then what a test wants."""

    def __init__(self) -> None:
        super().__init__(topic("t", 1))
        self.read = 0
        self.meanwhile: Callable[[], None] = lambda: None

    def confirm(self, topic: str | None = None) -> None:
        self.read += 1
        self.meanwhile()


@pytest.fixture
def cluster() -> ConfirmedCluster:
    return ConfirmedCluster()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def running(tmp_path: Path, cluster: ConfirmedCluster, clock: Clock) -> Iterator[Running]:
    made = Running(tmp_path / "logs", cluster, LogConfig(), clock)
    yield made
    made.stop()


def stored(running: Running) -> bool:
    """Return whether all appended batches are on the disk, as far as the broker knows."""
    log = running.broker.partition("t", 0).log
    return log.visible_end == log.end > 0


def answered(running: Running, outcome: Outcome) -> int | BrokerError:
    running.until("the request is answered", lambda: outcome.heard)
    return outcome.heard[0]


def test_without_a_standstill_nobody_reads_the_topics_again(
    running: Running, cluster: ConfirmedCluster, clock: Clock
) -> None:
    for _ in range(3):
        clock.now += STANDSTILL_S * 0.9
        assert isinstance(answered(running, running.produce(acks_all=True)), int)
    assert cluster.read == 0


def test_after_a_standstill_acks_all_waits_until_the_topics_were_read(
    running: Running, cluster: ConfirmedCluster, clock: Clock
) -> None:
    go_on = threading.Event()

    def wait() -> None:
        assert go_on.wait(WAIT_S)

    cluster.meanwhile = wait
    clock.now += 2 * STANDSTILL_S
    waiting, sooner = running.produce(acks_all=True), running.produce()
    running.until("both are on the disk", lambda: stored(running))
    assert sooner.heard
    assert not waiting.heard
    go_on.set()
    assert answered(running, waiting) == 0
    assert isinstance(answered(running, running.produce(acks_all=True)), int)
    assert cluster.read == 1


def test_a_standstill_is_over_when_the_topics_were_read_though_the_system_has_no_thread_left(
    running: Running, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_thread)
        clock.now += 2 * STANDSTILL_S
        running.mailbox.call(running.broker.standstills)
        running.turn()
    assert answered(running, running.produce(acks_all=True)) == 0


def test_what_was_written_to_a_topic_that_is_another_by_now_is_refused(
    running: Running, cluster: ConfirmedCluster, clock: Clock
) -> None:
    running.produce()
    running.until("the first record is on the disk", lambda: stored(running))
    clock.now += 2 * STANDSTILL_S
    cluster.meanwhile = lambda: cluster.topics.update(t=topic("t", 1))
    outcome = running.produce(acks_all=True)
    assert isinstance(answered(running, outcome), UnknownTopicOrPartition)
    running.until("the new topic is served", lambda: ("t", 0) in running.broker.partitions)
    assert answered(running, running.produce(acks_all=True)) == 0


def test_a_repeated_batch_is_not_acknowledged_from_what_was_known_before(
    running: Running, cluster: ConfirmedCluster, clock: Clock
) -> None:
    """Its first try is on the disk, so there is no flush to wait for."""
    partition = running.broker.partition("t", 0)
    running.produce(acks_all=True)
    running.until("it is on the disk", lambda: stored(running))
    clock.now += 2 * STANDSTILL_S
    cluster.meanwhile = cluster.topics.clear
    outcome = Outcome(acks_all=True)
    partition.answer_when_flushed(partition.log.end, outcome)
    assert not outcome.heard
    assert isinstance(answered(running, outcome), UnknownTopicOrPartition)


def test_while_zookeeper_is_away_what_came_after_a_standstill_is_refused_and_later_served_again(
    running: Running, cluster: ConfirmedCluster, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace_broker.partitions.standstill.RETRY_S", 0.01)

    def is_away() -> None:
        raise RequestTimedOut("ZooKeeper does not answer")

    cluster.meanwhile = is_away
    clock.now += 2 * STANDSTILL_S
    assert isinstance(answered(running, running.produce(acks_all=True)), RequestTimedOut)
    cluster.meanwhile = lambda: None
    read = cluster.read
    running.until("the topics are read again", lambda: cluster.read > read)
    running.until(
        "it is trusted again", lambda: isinstance(answered(running, running.produce(acks_all=True)), int)
    )


def test_a_standstill_while_the_topics_are_read_has_them_read_once_more(
    running: Running, cluster: ConfirmedCluster, clock: Clock
) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def read_slowly() -> None:
        entered.set()
        assert go_on.wait(WAIT_S)

    cluster.meanwhile = read_slowly
    clock.now += 2 * STANDSTILL_S
    outcome = running.produce(acks_all=True)
    running.turn()
    assert entered.wait(WAIT_S)
    clock.now += 2 * STANDSTILL_S
    go_on.set()
    assert answered(running, outcome) == 0
    assert cluster.read == 2
