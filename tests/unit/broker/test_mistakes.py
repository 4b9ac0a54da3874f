"""A mistake in the code costs the client it was made for, or the partition: the others are served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millrace.errors import StorageError
from millrace.records import Message, build_batch
from millrace_broker.partitions.partition import Partition
from millrace_broker.storage.landmarks import Landmarks
from millrace_broker.storage.log_directory import LogDirectory
from millrace_broker.storage.partition_log import PartitionLog
from millrace_broker.storage.producer_state import ProducerStates
from millrace_broker.storage.segment import Segment, SegmentFacts
from millrace_broker.storage.staging import Staging
from tests.unit.broker.running import Outcome, Running, Start, fail_once, topic

BATCH = build_batch([Message(1, None, b"x")])


def served(running: Running, name: str = "t", partition: int = 0) -> bool:
    """True if the partition takes a message and shows it."""
    outcome = running.produce("later", acks_all=True, topic=name, partition=partition)
    running.turn()
    running.until("an answer", lambda: outcome.heard)
    return isinstance(outcome.heard[0], int)


def test_a_client_that_cannot_be_answered_loses_its_connection_alone(start: Start) -> None:
    running = start()
    outcomes = [running.produce(str(number)) for number in range(3)]
    outcomes[1].fails = True
    running.turn()
    assert [len(outcome.heard) for outcome in outcomes] == [1, 0, 1]
    assert [bool(outcome.aborted) for outcome in outcomes] == [False, True, False]
    assert served(running)


def test_a_client_that_cannot_be_answered_after_the_flush_loses_its_connection_alone(start: Start) -> None:
    running = start()
    outcomes = [running.produce(str(number), acks_all=True) for number in range(3)]
    outcomes[0].fails = True
    running.turn()
    running.until("the flush", lambda: outcomes[2].heard)
    assert [bool(outcome.aborted) for outcome in outcomes] == [True, False, False]
    assert served(running)


def test_a_client_whose_answer_and_whose_end_fail_keeps_nobody_waiting(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start()
    outcomes = [running.produce(str(number)) for number in range(2)]
    outcomes[0].fails = True
    fail_once(monkeypatch, outcomes[0], "abort")
    running.turn()
    assert outcomes[1].heard
    assert served(running)


def test_a_mistake_while_a_partition_is_written_ends_its_clients_and_no_others(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start(topic("t", 1, 1))
    fail_once(monkeypatch, running.broker.partition("t", 0), "_append")
    failed, good = running.produce(partition=0), running.produce(partition=1)
    running.turn()
    assert (bool(failed.aborted), failed.heard) == (True, [])
    assert (bool(good.aborted), good.heard) == (False, [0])
    assert served(running)


@pytest.mark.parametrize("error", [MemoryError(), ZeroDivisionError()])
def test_a_mistake_before_anything_is_written_refuses_that_append_only(
    start: Start, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    running = start()
    fail_once(monkeypatch, Staging, "add", error)
    outcome = running.produce()
    running.turn()
    assert isinstance(outcome.heard[0], StorageError)
    assert running.broker.partition("t", 0).log.end == 0
    assert served(running)


@pytest.mark.parametrize(
    ("owner", "name", "is_plain"),
    [
        (Segment, "_write_all", True),
        (Segment, "append", True),
        (SegmentFacts, "note", True),
        (Segment, "append", False),
        (Staging, "written", False),
        (ProducerStates, "commit", False),
    ],
)
def test_a_log_that_may_be_half_changed_takes_no_more_writes_until_it_is_opened_again(
    start: Start, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, is_plain: bool, tmp_path: Path
) -> None:
    running = start(topic("t", 1, 1))
    assert served(running)
    if not is_plain:
        running.whole_log().snapshot[1].segments[-1].landmarks = Landmarks()  # so that it needs a landmark
    fail_once(monkeypatch, owner, name)
    outcomes = [running.produce(), running.produce(partition=1)]
    running.turn()
    assert [isinstance(outcome.heard[0], StorageError) for outcome in outcomes] == [True, False]
    assert not served(running), "the partition is marked as failed"
    assert served(running, partition=1)
    assert running.fetch(("t", 0, 0)), "reads go on"
    running.stop()
    config = running.broker.config.log
    opened = LogDirectory.open(tmp_path / "logs", config, lambda: 0.0)
    log = opened.partition("t", 0, running.cluster.topics["t"].topic_id, config)
    assert log.refusal is None
    assert log.append([bytearray(BATCH)], ["User:a"]) == [log.end - len(BATCH)]
    opened.close()


def test_a_mistake_in_a_fetch_that_waits_ends_its_client_and_no_others(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start()
    first, second = running.fetch(("t", 0, 0)), running.fetch(("t", 0, 0))
    fail_once(monkeypatch, PartitionLog, "read")
    running.produce(acks_all=True)
    running.until("one answer", lambda: first or second)
    assert len(running.aborted_fetches) == 1
    assert len(first) + len(second) == 1
    assert running.broker.parked_partitions == 0
    assert served(running)


def test_a_mistake_when_a_fetchs_time_is_up_ends_its_client(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start()
    running.fetch(("t", 0, 0), max_wait=20)
    fail_once(monkeypatch, PartitionLog, "read")
    running.until("the end", lambda: running.aborted_fetches)
    assert not running.broker.partition("t", 0).parked


def test_retention_goes_on_after_a_mistake_before_it(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace_broker.partitions.broker.RETENTION_INTERVAL_S", 0.01)
    applied: list[PartitionLog] = []

    def apply(log: PartitionLog, leader_start: int | None = None) -> list[int]:
        applied.append(log)
        return []

    monkeypatch.setattr(PartitionLog, "apply_retention", apply)
    running = start()
    running.until("retention", lambda: applied)
    fail_once(monkeypatch, running.broker._pools["delete"], "submit")
    so_far = len(applied)
    running.until("retention after it", lambda: len(applied) > so_far + 5)


def test_a_mistake_after_a_flush_keeps_nobody_from_hearing_of_it(start: Start) -> None:
    running = start()
    partition: Partition = running.broker.partition("t", 0)
    heard: list[str] = []

    def fail() -> None:
        raise MemoryError

    partition.when_visible(1, fail)
    partition.when_visible(1, lambda: heard.append("visible"))
    waiting = running.fetch(("t", 0, 0))
    outcome: Outcome = running.produce(acks_all=True)
    running.turn()
    running.until("the flush", lambda: waiting)
    assert outcome.heard == [0]
    assert heard == ["visible"]
