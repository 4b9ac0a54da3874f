"""Producers whose partition is not served yet: no batch is stored before an earlier one that was refused."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from millrace.errors import BrokerError, ErrorCode
from millrace.zookeeper.topic_state import TopicState
from millrace_broker.partitions import broker
from millrace_broker.storage.log_directory import partition_name
from tests.support import WAIT_S
from tests.unit.broker.running import Outcome, Running, Start, topic
from tests.unit.storage.logs import batch

LEADER_NOT_AVAILABLE = ErrorCode.LEADER_NOT_AVAILABLE


def send(running: Running, sequence: int, *, producer: int = 9, name: str = "new") -> int:
    """Produce a batch of one message; 0, or the code of the error."""
    outcome = Outcome()
    data = memoryview(batch(1, producer=producer, sequence=sequence))
    try:
        running.broker.produce(name, 0, data, outcome, 0)
    except BrokerError as error:
        return int(error.code)
    running.turn()
    (heard,) = outcome.heard
    return int(heard.code) if isinstance(heard, BrokerError) else 0


def serve(running: Running, *topics: TopicState) -> None:
    running.cluster.set(*topics)
    running.until("it is served", lambda: ("new", 0) in running.broker.partitions)


def slow_opening(running: Running, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Logs are opened once the event is set."""
    may_open, open_log = threading.Event(), running.broker._open_log

    def slow(*arguments: object) -> object:
        assert may_open.wait(WAIT_S)
        return open_log(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(running.broker, "_open_log", slow)
    return may_open


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("is being opened", LEADER_NOT_AVAILABLE),
        ("is not known yet", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("is led elsewhere", ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ("cannot be opened", ErrorCode.STORAGE_ERROR),
    ],
)
def test_no_batch_of_a_new_producer_is_stored_before_its_first_that_was_refused_as_the_partition(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str, code: int
) -> None:
    monkeypatch.setattr(broker, "RETENTION_INTERVAL_S", 0.05)
    running, new = start(), topic("new", 1)
    may_open = slow_opening(running, monkeypatch)
    obstacle = tmp_path / "logs" / partition_name("new", 0, new.topic_id)
    match reason:
        case "is being opened":
            running.cluster.set(new)
            running.turn()
        case "is led elsewhere":
            elsewhere = TopicState("new", new.topic_id, {}, topic("new", 2).partitions)
            running.cluster.set(elsewhere)
            running.turn()
        case "cannot be opened":
            may_open.set()
            obstacle.write_text("a file where a folder must be")
            running.cluster.set(new)
            running.until("it has failed", lambda: running.broker.failed)
    assert send(running, 0) == code
    may_open.set()
    if running.broker.failed:
        obstacle.unlink()
    serve(running, new)
    assert [send(running, 1), send(running, 2)] == [code, code], "librdkafka would take 0 for delivered"
    assert send(running, 1, producer=10) == 0, "a producer of which nothing was refused may start anywhere"
    assert [send(running, sequence) for sequence in range(3)] == [0, 0, 0]
    assert send(running, 5) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "it is no longer awaited"


def test_a_recreated_topic_waits_for_no_batch_that_was_sent_to_the_deleted_one(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start()
    may_open = slow_opening(running, monkeypatch)
    running.cluster.set(topic("new", 1))
    running.turn()
    assert send(running, 0) == LEADER_NOT_AVAILABLE
    running.cluster.set()
    running.turn()
    may_open.set()
    serve(running, topic("new", 1))
    assert send(running, 1) == 0


def test_what_no_idempotent_producer_sent_and_what_no_topic_can_be_called_is_not_kept(start: Start) -> None:
    running = start()
    with pytest.raises(BrokerError):
        running.produce(topic="new")
    for data in (b"", b"x" * 61):
        with pytest.raises(BrokerError):
            running.broker.produce("new", 0, memoryview(data), Outcome(), 0)
    send(running, 0, name="n" * 250)
    assert not running.broker._unserved._refused
    send(running, 0)
    assert len(running.broker._unserved._refused) == 1
