"""A broker while its topics change, its disk fails and it stops: nobody is left without an answer."""

from __future__ import annotations

import dataclasses
import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.config import LogConfig
from millrace.errors import BrokerError, LeaderNotAvailable, NotLeader, StorageError, UnknownTopicOrPartition
from millrace.zookeeper.topic_state import PartitionState, TopicState
from millrace_broker.partitions import topic_changes
from millrace_broker.partitions.broker import POOLS, Broker
from millrace_broker.partitions.hosted import HostedPartition
from millrace_broker.storage.partition_log import PartitionLog
from tests.support import WAIT_S
from tests.unit.broker.running import Disk, FakeCluster, Running, Start, fail_once, topic


def test_records_of_the_turn_that_deletes_their_topic_are_refused_not_forgotten(start: Start) -> None:
    running = start()
    plain, waiting = running.produce(), running.produce(acks_all=True)
    running.cluster.set()
    running.turn()
    assert [type(outcome.heard[0]) for outcome in (plain, waiting)] == [UnknownTopicOrPartition] * 2


def test_a_mistake_while_a_new_partition_begins_to_be_served_is_told_and_does_not_leave_it_opening(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start()

    def mistaken(one: HostedPartition, config: object) -> None:
        if one.topic.name == "late":
            raise ValueError("a mistake")

    monkeypatch.setattr(HostedPartition, "configure", mistaken)
    running.cluster.set(*running.cluster.topics.values(), topic("late", 1))
    running.until("it is told", lambda: ("late", 0) in running.broker.failed)
    with pytest.raises(StorageError, match="a mistake"):
        running.broker.partition("late", 0)
    assert running.broker.opening("late") == []
    running.cluster.set()
    running.turn()
    assert not running.broker.failed


def led_by(before: TopicState, leader: int) -> TopicState:
    return dataclasses.replace(before, partitions={0: PartitionState(leader, (leader,), {leader: ""}, 1)})


def test_a_partition_that_another_broker_leads_now_keeps_its_log(start: Start) -> None:
    running = start()
    first = running.cluster.topics["t"]
    outcome = running.produce(acks_all=True)
    running.until("the answer", lambda: outcome.heard)
    waiting = running.produce(acks_all=True)
    running.cluster.set(led_by(first, 2))
    running.turn()
    assert isinstance(waiting.heard[0], NotLeader)
    with pytest.raises(NotLeader):
        running.broker.partition("t", 0)
    running.cluster.set(first)
    running.until("it is back", lambda: ("t", 0) in running.broker.partitions)
    assert running.high_watermark() == 1


def test_a_partition_that_gets_replicas_keeps_its_log_and_waits_for_an_election(start: Start) -> None:
    running = start()
    first = running.cluster.topics["t"]
    outcome = running.produce(acks_all=True)
    running.until("the answer", lambda: outcome.heard)
    several = PartitionState(1, (1, 2), {1: "a", 2: "b"}, 1)
    running.cluster.set(dataclasses.replace(first, partitions={0: several}))

    def waits_for_an_election() -> bool:
        with pytest.raises(LeaderNotAvailable) as refused:
            running.broker.partition("t", 0)
        return "has a new leader" in str(refused.value)

    running.turn()
    running.until("its log is open", waits_for_an_election)
    running.cluster.set(first)
    running.until("it is back", lambda: ("t", 0) in running.broker.partitions)
    assert running.high_watermark() == 1


def test_a_topic_created_while_the_broker_opens_its_logs_is_served(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Broker._open_log
    late = topic("late", 1)

    def opening(broker: Broker, place: Any, found: TopicState) -> Any:
        cluster: Any = broker.cluster
        if late.name not in cluster.topics:
            cluster.set(*cluster.topics.values(), late)
        return opened(broker, place, found)

    monkeypatch.setattr(Broker, "_open_log", opening)
    running = start()
    running.until("the late one", lambda: ("late", 0) in running.broker.partitions)


def test_a_mistake_while_a_partition_is_put_to_service_is_logged_once(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    running = start()
    late = topic("late", 1)
    fail_once(monkeypatch, HostedPartition, "configure")
    running.cluster.set(late)
    running.until("it has failed", lambda: running.broker.failed)
    assert caplog.text.count("Traceback") == 1


def test_a_topic_made_anew_is_served_where_the_old_ones_log_could_not_be_opened(
    start: Start, tmp_path: Path
) -> None:
    running = start()
    broken, again = topic("broken", 1), topic("broken", 1)
    (tmp_path / "logs" / f"broken-0-{broken.topic_id.hex}").write_text("a file where a folder must be")
    running.cluster.set(broken)

    def refused() -> bool:
        try:
            running.broker.partition("broken", 0)
        except BrokerError as error:
            return isinstance(error, StorageError)
        return False

    running.until("the refusal", refused)
    running.cluster.set(again)
    running.until("the new one", lambda: ("broken", 0) in running.broker.partitions)


def test_what_was_appended_before_a_disk_went_bad_is_still_flushed_and_answered(
    start: Start, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start()
    disk.entered.clear()
    disk.free.clear()
    first = running.produce(acks_all=True)
    running.turn()
    assert disk.entered.wait(WAIT_S)
    second = running.produce(acks_all=True)
    running.turn()

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(os, "writev", full)
        broken.setattr(os, "ftruncate", full)
        third = running.produce(acks_all=True)
        running.turn()
    assert isinstance(third.heard[0], StorageError)
    disk.free.set()
    running.until("both answers", lambda: first.heard and second.heard)
    assert first.base_offset < second.base_offset < running.high_watermark()


def test_a_broker_that_stops_does_not_wait_for_work_that_needs_its_loop(start: Start) -> None:
    running = start()
    creating, go_on = threading.Event(), threading.Event()

    def create_topic(name: str, partitions: int, settings: Any, **placed: Any) -> None:
        creating.set()
        assert go_on.wait(WAIT_S)

    running.cluster.create_topic = create_topic  # type: ignore[attr-defined]

    def create() -> None:
        topic_changes.create_topic(running.broker, "new", 1, {})
        topic_changes.wait_until_open(running.broker, ["new"])

    running.broker.in_zookeeper_thread(create)
    assert creating.wait(WAIT_S)
    stopping = threading.Thread(target=running.stop, daemon=True)
    stopping.start()
    time.sleep(0.1)  # into the shutdown, so that the loop is no more when the topic is there
    go_on.set()
    stopping.join(10)
    assert not stopping.is_alive()


def test_a_broker_opens_its_logs_side_by_side(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    opening, one_by_one = threading.Barrier(3), PartitionLog

    def open_together(*arguments: Any, **more: Any) -> PartitionLog:
        opening.wait(WAIT_S)
        return one_by_one(*arguments, **more)

    monkeypatch.setattr("millrace_broker.storage.log_directory.PartitionLog", open_together)
    assert len(start(topic("t", 1, 1, 1)).broker.partitions) == 3


def test_a_look_up_does_not_wait_for_work_that_waits_for_zookeeper(start: Start) -> None:
    running = start()
    go_on = threading.Event()
    for _ in range(2 * POOLS["zookeeper"]):
        running.broker.in_zookeeper_thread(lambda: go_on.wait(WAIT_S))
    assert running.broker.in_look_up_thread(lambda: "found").result(WAIT_S) == "found"
    go_on.set()


def test_the_log_of_a_topic_deleted_while_the_broker_was_away_is_set_aside(
    start: Start, tmp_path: Path
) -> None:
    kept, gone, unreadable = topic("kept", 1), topic("gone", 1, 1), topic("unreadable", 1)
    running = start(kept, gone, unreadable)
    running.produce(topic="gone", partition=1)
    running.stop()
    cluster = FakeCluster(kept)
    cluster.unreadable.add("unreadable")  # in no snapshot, but nobody has deleted it
    again = Running(tmp_path / "logs", cluster, LogConfig())
    try:
        names = sorted(
            path.name.rpartition("-")[0] for path in (tmp_path / "logs").iterdir() if path.is_dir()
        )
        aside = [f"gone-{n}-{gone.topic_id.hex}.foreign" for n in (0, 1)]
        assert names == [*aside, "kept-0", "unreadable-0"]
        with pytest.raises(UnknownTopicOrPartition):
            again.broker.partition("gone", 1)
    finally:
        again.stop()


class _Counted(dict[int, PartitionState]):
    """Partitions of a topic; counts how often somebody goes through them."""

    looks = 0

    def __iter__(self) -> Iterator[int]:
        self.looks += 1
        return super().__iter__()

    def items(self) -> Any:
        self.looks += 1
        return super().items()


def test_a_change_of_one_topic_touches_no_other(start: Start) -> None:
    others = [topic(f"t{number}", 1) for number in range(3)]
    others = [dataclasses.replace(one, partitions=_Counted(one.partitions)) for one in others]
    running = start(*others)
    partitions = [one.partitions for one in others]
    before = [one.looks for one in partitions if isinstance(one, _Counted)]
    new = topic("new", 1)
    running.cluster.set(*others, new)
    running.until("it is open", lambda: ("new", 0) in running.broker.partitions)
    running.cluster.set(*others)
    running.until("it is gone", lambda: ("new", 0) not in running.broker.logs)
    assert [one.looks for one in partitions if isinstance(one, _Counted)] == before


def test_a_recreated_topic_takes_no_more_writes_into_its_former_log_however_many_topics_are_new(
    start: Start, monkeypatch: pytest.MonkeyPatch, disk: Disk
) -> None:
    monkeypatch.setattr("millrace_broker.partitions.broker.TOPICS_OF_A_TURN", 1)
    running = start(topic("t", 1), topic("u", 1))
    disk.free.clear()
    waiting = running.produce(acks_all=True)
    running.turn()
    running.cluster.set(*(topic(f"new{number}", 1) for number in range(3)), topic("t", 1))
    running.turn()
    assert isinstance(waiting.heard[0], UnknownTopicOrPartition)
    with pytest.raises(LeaderNotAvailable):
        running.produce(acks_all=True)
    with pytest.raises(UnknownTopicOrPartition):
        running.produce(acks_all=True, topic="u")
    disk.free.set()
    running.until("the new one is open", lambda: ("t", 0) in running.broker.partitions)
    assert running.high_watermark() == 0


def test_many_changed_topics_are_opened_a_few_in_each_turn(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace_broker.partitions.broker.TOPICS_OF_A_TURN", 3)
    running = start()
    applied: list[str] = []
    apply = running.broker.apply

    def noted(name: str) -> None:
        applied.append(name)
        apply(name)

    monkeypatch.setattr(running.broker, "apply", noted)
    fail_once(monkeypatch, running.broker, "_apply_to", ValueError("a mistake"))
    topics = [*running.cluster.topics.values(), *(topic(f"t{number}", 1) for number in range(7))]
    running.cluster.set(*topics)
    running.turn()
    assert len(applied) == 3
    running.until("the others come", lambda: len(running.broker.partitions) == 7)
    assert sorted(applied) == [f"t{number}" for number in range(7)]
    running.cluster.set(*topics)
    running.until("the one that failed comes at the next change", lambda: len(running.broker.partitions) == 8)


def test_the_brokers_record_says_which_partitions_are_stored_here(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace_broker.partitions.broker.RECORD_DELAY_S", 0.01)
    first = topic("t", 1, 2)
    running = start(first)
    assert running.cluster.stored == [("t", 0)], "known before the broker is registered"
    several = [("t", 0), ("u", 0), ("u", 1), ("u", 2)]
    running.cluster.set(first, topic("u", 1, 1, 1))
    running.until("new ones are recorded", lambda: running.cluster.stored == several)
    running.cluster.set(first)
    running.until("they are gone from it", lambda: running.cluster.stored == [("t", 0)])


def test_a_record_that_could_not_be_written_is_written_again(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("millrace_broker.partitions.broker.RECORD_DELAY_S", 0.01)
    running = start(topic("t", 1))
    running.until("the record of the start", lambda: running.cluster.stored == [("t", 0)])
    fail_once(monkeypatch, running.cluster, "store", MemoryError("no room"))
    running.cluster.set(topic("t", 1), topic("u", 1))
    running.until("the change is recorded", lambda: running.cluster.stored == [("t", 0), ("u", 0)])
    assert any("cannot write the broker's record" in line.message for line in caplog.records)
    caplog.clear()


def test_a_failure_of_retention_is_told(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("millrace_broker.partitions.broker.RETENTION_INTERVAL_S", 0.01)
    running = start(topic("t", 1))

    def fails() -> None:
        raise ValueError("a mistake")

    monkeypatch.setattr(running.logs, "delete_expired", fails)
    running.until("a line", lambda: any("retention failed" in line.message for line in caplog.records))
