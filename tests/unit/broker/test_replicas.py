"""One broker of a partition with two replicas; the other one is played by hand."""

from __future__ import annotations

import dataclasses
import errno
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from millrace.config import LogConfig
from millrace.errors import (
    BrokerError,
    ErrorCode,
    LeaderNotAvailable,
    MillraceError,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    RequestTimedOut,
    StorageError,
    UnknownTopicOrPartition,
)
from millrace.records import split_batches
from millrace.records.file_slice import FileSlice
from millrace.wire.fetch import FetchRequest
from millrace.wire.messages import ApiKey
from millrace.wire.replica import (
    Acked,
    Copied,
    ReplicaAckRequest,
    ReplicaFetchRequest,
    ReplicaPartition,
    Wanted,
)
from millrace.zookeeper.topic_state import NO_LEADER, BrokerAddress, PartitionState, TopicState
from millrace_broker.partitions import broker, copier, replicas, topic_writes
from millrace_broker.partitions.fetch import Reads
from millrace_broker.partitions.hosted import HostedPartition
from millrace_broker.partitions.replicas import Replicas
from millrace_broker.partitions.replicated_partition import ReplicatedPartition
from millrace_broker.replication.copying import Copying, checked
from millrace_broker.replication.leader_thread import LeaderThread, Received
from millrace_broker.replication.leadership import Leadership, Snapshot
from millrace_broker.replication.replica import Replica
from millrace_broker.replication.state import UNKNOWN_EPOCHS
from millrace_broker.storage.log_directory import partition_name
from millrace_broker.storage.partition_log import PartitionLog
from millrace_broker.storage.segment import CutFailed, Segment
from tests.support import WAIT_S, wait_until
from tests.unit.broker.asking import ask
from tests.unit.broker.running import NEVER_MS, Disk, FakeCluster, Outcome, Running, fail_once
from tests.unit.storage.logs import ORIGIN, batch, batches_at, log_files, origin_batches, position

OURS, THEIRS = "a" * 16, "b" * 16
PLACE = ReplicaPartition(UUID(int=7), 0)
BROKERS = {
    1: BrokerAddress("127.0.0.1", 1, directory=OURS),
    2: BrokerAddress("127.0.0.1", 2, directory=THEIRS),
}


class Registries(FakeCluster):
    """ZooKeeper's compare-and-set in memory."""

    def __init__(self, minimum: int) -> None:
        state = PartitionState(NO_LEADER, (1, 2), {1: OURS, 2: THEIRS}, 0)
        super().__init__(
            TopicState("t", PLACE.topic_id, {"min.insync.replicas": str(minimum)}, {0: state}, 1)
        )
        self.brokers = dict(BROKERS)
        self.writes = 0

    @property
    def state(self) -> PartitionState:
        return self.topics["t"].partitions[0]

    def change_topic(self, name: str, change: Callable[[TopicState], TopicState]) -> TopicState:
        before = self.topics[name]
        after = change(before)
        if after != before:
            self.writes += 1
            after = dataclasses.replace(after, version=before.version + 1)
            self.set(after)
        return after


class Connection:
    def __init__(self) -> None:
        self.closed = False

    def abort(self, reason: str) -> None:
        self.closed = True


class Other:
    """The follower on broker 2."""

    def __init__(self, running: Running) -> None:
        self._broker, self._connection = running.broker, Connection()
        self._named = False
        self.heard: list[Sequence[Copied]] = []

    def fetch(self, epoch: int, position: int, *, flushed: int, last_epoch: int = -1) -> None:
        wanted = Wanted(PLACE, epoch, position, last_epoch, flushed)
        request = ReplicaFetchRequest(2, THEIRS, not self._named, 10_000, 1 << 20, [wanted], ())
        self._named = True
        self._broker.replicas.fetch(self._connection, request, self.heard.append)

    def ack(self, epoch: int, flushed: int) -> None:
        self._broker.replicas.acknowledged(ReplicaAckRequest(2, THEIRS, [Acked(PLACE, epoch, flushed)]))

    def hang_up(self) -> None:
        self._connection.closed = True


Begin = Callable[..., tuple[Running, Registries, Other]]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    started: list[Running] = []

    def start(minimum: int = 1, lag_ms: int = 1000) -> tuple[Running, Registries, Other]:
        cluster = Registries(minimum)
        log = LogConfig(flush_ms=NEVER_MS)
        running = Running(tmp_path, cluster, log, directory=OURS, replica_lag_ms=lag_ms)
        started.append(running)
        running.until("it is elected", lambda: cluster.state.leader == 1)
        return running, cluster, Other(running)

    yield start
    for running in started:
        running.stop()


def serving(begin: Begin, **settings: Any) -> tuple[Running, Registries, Other]:
    running, cluster, other = begin(**settings)

    def serves() -> bool:
        other.fetch(1, 0, flushed=0)
        return ("t", 0) in running.broker.partitions

    running.until("it serves", serves)
    other.heard.clear()
    return running, cluster, other


def test_a_new_leader_serves_once_its_replicas_in_sync_have_what_it_began_with(begin: Begin) -> None:
    running, cluster, other = begin(lag_ms=60_000)
    assert cluster.state.leader_epoch == 1
    running.until("it leads", lambda: running.broker.replicas.numbers().roles["leading"])
    running.turn()
    with pytest.raises(LeaderNotAvailable):
        running.broker.partition("t", 0)
    # Java's consumer ends at LEADER_NOT_AVAILABLE, which no broker of Kafka answers to a fetch.
    ((_, (read,)),) = running.fetch(("t", 0, 0))[0]
    assert read.error == ErrorCode.NOT_LEADER_OR_FOLLOWER

    def serves() -> bool:
        other.fetch(1, 0, flushed=0)
        return ("t", 0) in running.broker.partitions

    running.until("it serves", serves)


def sent(running: Running, sequence: int, producer: int = 9) -> int:
    """Produce a batch of an idempotent producer; 0, or the code of the error."""
    outcome = Outcome()
    data = memoryview(batch(1, producer=producer, sequence=sequence))
    try:
        running.broker.produce("t", 0, data, outcome, 0)
    except BrokerError as error:
        return int(error.code)
    running.until("the answer", lambda: outcome.heard)
    (heard,) = outcome.heard
    return int(heard.code) if isinstance(heard, BrokerError) else 0


def test_a_new_leader_stores_no_batch_before_an_earlier_one_that_came_before_it_served(begin: Begin) -> None:
    running, _, other = begin(lag_ms=60_000)
    running.until("it leads", lambda: running.broker.replicas.numbers().roles["leading"])
    assert sent(running, 0) == ErrorCode.LEADER_NOT_AVAILABLE

    def serves() -> bool:
        other.fetch(1, 0, flushed=0)
        return ("t", 0) in running.broker.partitions

    running.until("it serves", serves)
    assert sent(running, 1) == ErrorCode.LEADER_NOT_AVAILABLE
    assert [sent(running, 0), sent(running, 1)] == [0, 0]


@pytest.mark.parametrize("comes_back", [True, False])
def test_after_a_start_a_replica_waits_a_session_for_the_others_in_sync(
    tmp_path: Path, comes_back: bool
) -> None:
    cluster = Registries(1)
    del cluster.brokers[2]
    lasts_ms = 60_000 if comes_back else 1000
    log = LogConfig(flush_ms=NEVER_MS)
    running = Running(tmp_path, cluster, log, directory=OURS, session_timeout_ms=lasts_ms)
    try:
        begun = time.monotonic()
        running.until("it has waited", lambda: time.monotonic() > begun + 0.5)
        assert cluster.state.leader == NO_LEADER
        if comes_back:
            cluster.brokers = dict(BROKERS)
            running.broker.refresh()
        running.until("it is elected", lambda: cluster.state.leader == 1)
    finally:
        running.stop()


def test_a_replica_is_elected_though_a_look_whether_it_is_its_turn_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Registries(1)
    del cluster.brokers[2]
    fail_once(monkeypatch, Replica, "_rank")
    log = LogConfig(flush_ms=NEVER_MS)
    running = Running(tmp_path, cluster, log, directory=OURS, session_timeout_ms=1000)
    try:
        running.until("it is elected", lambda: cluster.state.leader == 1)
    finally:
        running.stop()
    assert caplog.text.count("Traceback") == 1


def test_a_bug_after_one_election_loses_no_other_outcome_of_the_same_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Registries(1)
    topic = cluster.topics["t"]
    cluster.set(dataclasses.replace(topic, partitions=dict.fromkeys(range(3), cluster.state)))
    fail_once(monkeypatch, Replica, "won")
    running = Running(tmp_path, cluster, LogConfig(flush_ms=NEVER_MS), directory=OURS)
    try:
        running.until("both lead", lambda: running.broker.replicas.numbers().roles["leading"] == 2)
    finally:
        running.stop()
    assert cluster.writes == 1
    assert "Traceback" in caplog.text
    assert "MemoryError" in caplog.text


def test_a_replica_whose_turn_it_is_is_elected_at_once_and_its_whole_log_is_not_cut(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(log: PartitionLog, position: int) -> None:
        raise AssertionError("there is nothing to cut")

    monkeypatch.setattr(PartitionLog, "cut", cut)
    running, cluster, _ = serving(begin)
    before = cluster.topics["t"]
    for leader, epoch in ((2, 2), (NO_LEADER, 2)):
        state = dataclasses.replace(before.partitions[0], leader=leader, leader_epoch=epoch)
        version = cluster.topics["t"].version + 1
        cluster.set(dataclasses.replace(before, partitions={0: state}, version=version))
        running.turn()
    running.until("it is elected again", lambda: cluster.state.leader == 1)
    assert cluster.state.leader_epoch == 3


def test_a_replica_whose_log_cannot_be_cut_does_not_campaign_over_and_over(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuts: list[float] = []

    def cut(log: PartitionLog, position: int) -> None:
        cuts.append(time.monotonic())
        if len(cuts) == 1:
            raise StorageError("No space left on device")

    monkeypatch.setattr(PartitionLog, "cut", cut)
    monkeypatch.setattr(PartitionLog, "whole_end", property(lambda log: log.end - 1))
    monkeypatch.setattr(replicas, "CAMPAIGN_AGAIN_S", 0.5)
    begin()
    failed, tried_again = cuts
    assert tried_again - failed >= 0.4


def test_acks_all_is_answered_and_a_message_shown_once_both_disks_have_it(begin: Begin) -> None:
    running, _, other = serving(begin)
    other.fetch(1, 0, flushed=0)
    outcome = running.produce(acks_all=True)
    running.turn()
    (copied,) = other.heard[-1]
    assert isinstance(copied.records, FileSlice), "who waits hears of it in the turn of the append"
    log = running.broker.partition("t", 0).log
    running.until("this disk has it", lambda: log.flushed == log.end)
    running.turn()
    assert not outcome.heard
    assert running.high_watermark() == 0
    other.ack(1, log.end)
    assert outcome.base_offset == 0
    assert running.high_watermark() == 1


def test_a_report_of_another_epoch_commits_nothing_and_a_newer_one_ends_the_leadership(begin: Begin) -> None:
    running, _, other = serving(begin)
    outcome = running.produce(acks_all=True)
    running.turn()
    log = running.broker.partition("t", 0).log
    running.until("this disk has it", lambda: log.flushed == log.end)
    other.ack(0, log.end)
    assert not outcome.heard
    other.ack(2, log.end)
    running.until("it is refused", lambda: outcome.heard)
    assert isinstance(outcome.heard[0], NotLeader)


def test_below_the_minimum_acks_all_is_refused_before_and_acks_1_taken_and_not_shown(begin: Begin) -> None:
    running, cluster, _ = serving(begin, minimum=2)
    waiting = running.produce(acks_all=True)
    waiting.timeout_ms = 1000
    running.turn()
    del cluster.brokers[2]
    cluster.changed()
    running.until("the other one is out", lambda: set(cluster.state.isr) == {1})
    assert cluster.state.eligible == {2: THEIRS}
    running.until("who waits hears it in time", lambda: waiting.heard)
    assert isinstance(waiting.heard[0], NotEnoughReplicasAfterAppend)
    running.until("the leader knows it", lambda: isinstance(_refused(running), NotEnoughReplicas))
    end = running.broker.partition("t", 0).log.end
    outcome = running.produce()
    running.turn()
    assert isinstance(outcome.heard[0], int)
    assert running.broker.partition("t", 0).log.end > end
    assert running.high_watermark() == 0


def _refused(running: Running) -> object:
    outcome = running.produce(acks_all=True)
    outcome.timeout_ms = 1
    running.turn()
    return outcome.heard[0] if outcome.heard else None


def test_acks_all_waits_no_longer_than_its_producer(begin: Begin) -> None:
    running, _, other = serving(begin, lag_ms=100_000)
    outcome = running.produce(acks_all=True)
    outcome.timeout_ms = 300
    later = running.produce(acks_all=True)
    running.turn()
    running.broker.partition("t", 0).refuse_late(running.mailbox.now())  # type: ignore[attr-defined]
    assert not outcome.heard
    running.broker.partition("t", 0).refuse_late(running.mailbox.now() + 1)  # type: ignore[attr-defined]
    assert isinstance(outcome.heard[0], RequestTimedOut)
    assert not later.heard
    log = running.broker.partition("t", 0).log
    running.until("this disk has it", lambda: log.flushed == log.end)
    other.ack(1, log.end)
    assert isinstance(later.heard[0], int)


def test_a_follower_that_hangs_up_is_out_and_comes_in_again(begin: Begin) -> None:
    running, cluster, other = serving(begin)
    other.fetch(1, 0, flushed=0)
    other.hang_up()
    running.until("it is out", lambda: set(cluster.state.isr) == {1})
    running.until("it is counted", lambda: running.broker.replicas.numbers().under_replicated == 1)
    again = Other(running)
    again.fetch(1, 0, flushed=0)
    running.until("it is in", lambda: set(cluster.state.isr) == {1, 2})
    running.until("it is counted", lambda: running.broker.replicas.numbers().under_replicated == 0)
    events = {"elected": 1, "unclean": 0, "in_sync": 1, "out_of_sync": 1, "cut": 0}
    running.until("both are counted", lambda: running.broker.replicas.numbers().events == events)
    assert running.broker.replicas.numbers().roles["leading"] == 1


def test_what_a_follower_has_not_flushed_is_counted_and_what_a_reassignment_waits_for(begin: Begin) -> None:
    running, cluster, other = serving(begin, lag_ms=100_000)
    numbers = running.broker.replicas.numbers
    other.fetch(1, 0, flushed=0)
    running.produce(acks_all=True)
    running.turn()
    log = running.broker.partition("t", 0).log
    assert (numbers().lags, numbers().moving_bytes) == ({2: log.end}, 0)
    other.ack(1, log.end)
    assert numbers().lags == {2: 0}
    topic = cluster.topics["t"]
    moving = dataclasses.replace(cluster.state, replicas=(1, 2, 3), adding=(3,))
    cluster.set(dataclasses.replace(topic, partitions={0: moving}, version=topic.version + 1))
    running.broker.refresh()
    assert (numbers().lags, numbers().moving_bytes) == ({2: 0, 3: log.end}, log.end)


def test_a_follower_that_does_not_flush_is_out_after_the_lag(begin: Begin) -> None:
    running, cluster, other = serving(begin)
    other.fetch(1, 0, flushed=0)
    outcome = running.produce(acks_all=True)
    running.turn()
    running.until("it is out", lambda: set(cluster.state.isr) == {1})
    running.until("the rest commit without it", lambda: outcome.heard)
    assert outcome.base_offset == 0


def preferring_the_other(cluster: Registries, isr: dict[int, str]) -> None:
    topic = cluster.topics["t"]
    state = dataclasses.replace(cluster.state, replicas=(2, 1), isr=isr)
    cluster.set(dataclasses.replace(topic, partitions={0: state}, version=topic.version + 1))


def test_who_gives_way_to_the_first_replica_waits_for_what_is_written(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "PREFER_AFTER_LAGS", 0)
    running, cluster, other = serving(begin, lag_ms=100_000)
    other.fetch(1, 0, flushed=0)
    written = running.produce(acks_all=True)
    preferring_the_other(cluster, {1: OURS, 2: THEIRS})
    running.turn()
    running.turn()
    with pytest.raises(LeaderNotAvailable):
        running.broker.partition("t", 0)
    assert cluster.state.leader == 1
    other.ack(1, running.broker._hosted["t", 0].log.end)
    running.until("this disk has it", lambda: written.heard)
    assert written.base_offset == 0
    running.until("nobody leads", lambda: cluster.state.leader == NO_LEADER)
    assert set(cluster.state.isr) == {1, 2}


def test_who_gives_way_to_a_replica_that_is_gone_meanwhile_leads_on(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "PREFER_AFTER_LAGS", 0)
    running, cluster, other = serving(begin, lag_ms=100_000)
    other.fetch(1, 0, flushed=0)
    waiting = running.produce(acks_all=True)
    preferring_the_other(cluster, {1: OURS, 2: THEIRS})
    running.turn()
    running.turn()
    preferring_the_other(cluster, {1: OURS})
    running.until("it commits alone", lambda: waiting.heard)
    assert waiting.base_offset == 0
    running.until("it is served", lambda: ("t", 0) in running.broker.partitions)
    assert cluster.state.leader == 1
    again = running.produce(acks_all=True)
    running.until("it takes writes", lambda: again.heard)
    assert again.base_offset > 0


def test_who_cannot_write_that_it_gives_way_serves_until_it_can(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "PREFER_AFTER_LAGS", 0)
    running, cluster, other = serving(begin, lag_ms=100_000)
    other.fetch(1, 0, flushed=0)
    assert sent(running, 0) == 0
    write = cluster.change_topic

    def change_topic(name: str, change: Callable[[TopicState], TopicState]) -> TopicState:
        raise RequestTimedOut("ZooKeeper does not answer")

    cluster.change_topic = change_topic  # type: ignore[method-assign]
    preferring_the_other(cluster, {1: OURS, 2: THEIRS})
    running.turn()
    running.turn()
    assert ("t", 0) not in running.broker.partitions
    assert [sent(running, 1), sent(running, 0, producer=10)] == [ErrorCode.LEADER_NOT_AVAILABLE] * 2
    running.until("it is served again", lambda: ("t", 0) in running.broker.partitions)
    assert [sent(running, 2), sent(running, 1, producer=10)] == [ErrorCode.LEADER_NOT_AVAILABLE] * 2
    assert [sent(running, 1), sent(running, 0, producer=10)] == [0, 0]
    cluster.change_topic = write  # type: ignore[method-assign]
    running.until("nobody leads", lambda: cluster.state.leader == NO_LEADER)


def test_a_mistake_before_a_leader_gives_way_keeps_it_neither_from_that_nor_from_later_changes(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(replicas, "PREFER_AFTER_LAGS", 0)
    running, cluster, other = serving(begin, lag_ms=100_000)
    other.fetch(1, 0, flushed=0)
    fail_once(monkeypatch, ReplicatedPartition, "write")
    preferring_the_other(cluster, {1: OURS, 2: THEIRS})
    running.broker.refresh()
    running.until("nobody leads", lambda: cluster.state.leader == NO_LEADER)
    assert caplog.text.count("Traceback") == 1


def _cannot_be_cut(*_: object) -> None:
    raise CutFailed(5, "Input/output error")


def test_a_leader_whose_log_takes_no_more_appends_gives_way_and_stays_eligible(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, cluster, _ = serving(begin, minimum=2)
    monkeypatch.setattr(Segment, "append", _cannot_be_cut)
    outcome = running.produce()
    running.turn()
    assert isinstance(outcome.heard[0], StorageError)
    running.until("it leads no more", lambda: cluster.state.leader == NO_LEADER)
    assert (set(cluster.state.isr), cluster.state.eligible) == ({2}, {1: OURS})
    assert "takes no writes" in running.broker.failed["t", 0]
    del cluster.brokers[2]  # from here on it would be its turn
    cluster.changed()
    begun = time.monotonic()
    running.until("its turn would have come", lambda: time.monotonic() > begun + 0.3)
    assert cluster.state.leader == NO_LEADER


def test_a_leader_that_takes_no_appends_and_is_the_only_one_in_sync_is_read_until_another_one_is(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, cluster, other = serving(begin)
    running.produce(acks_all=True)
    running.turn()
    other.hang_up()
    running.until("it is alone", lambda: set(cluster.state.isr) == {1})
    running.until("it is committed", lambda: running.high_watermark() == 1)
    with monkeypatch.context() as failing:
        failing.setattr(Segment, "append", _cannot_be_cut)
        running.produce()
        running.turn()
    time.sleep(0.3)
    running.turn()
    assert cluster.state.leader == 1
    assert running.high_watermark() == 1
    again = Other(running)
    again.fetch(1, 0, flushed=running.broker.partition("t", 0).log.end)
    running.until("it leads no more", lambda: cluster.state.leader == NO_LEADER)
    assert set(cluster.state.isr) == {2}


def test_a_follower_whose_log_takes_no_more_appends_is_stopped(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, cluster, _ = serving(begin)
    before = cluster.topics["t"]
    elsewhere = dataclasses.replace(before.partitions[0], leader=2, leader_epoch=2)
    cluster.set(dataclasses.replace(before, partitions={0: elsewhere}, version=before.version + 1))
    running.until("it follows", lambda: running.broker.replicas.numbers().roles["following"] == 1)
    running.whole_log().refusal = "the disk takes no writes"
    running.until("it is told", lambda: running.broker.failed)
    assert running.broker.failed == {("t", 0): "the disk takes no writes"}
    assert running.broker.replicas.numbers().roles["stopped"] == 1


def test_a_leader_whose_disk_has_failed_resigns_as_soon_as_zookeeper_answers(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "WRITE_AGAIN_S", 0.05)
    running, cluster, _ = serving(begin)
    answers, change = [False, False, True], cluster.change_topic

    def away(name: str, change_: Callable[[TopicState], TopicState]) -> TopicState:
        if not (answers.pop(0) if answers else True):
            raise RequestTimedOut("ZooKeeper does not answer")
        return change(name, change_)

    monkeypatch.setattr(cluster, "change_topic", away)
    log = running.whole_log()
    log.refusal = log.flush_refusal = "the disk takes nothing"
    running.until("it leads no more", lambda: cluster.state.leader == NO_LEADER)
    assert answers == []


def test_a_replica_whose_disk_fails_between_its_campaign_and_the_answer_resigns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "WRITE_AGAIN_S", 0.05)
    cluster = Registries(1)
    answers, change = threading.Event(), cluster.change_topic

    def change_topic(name: str, change_: Callable[[TopicState], TopicState]) -> TopicState:
        assert answers.wait(WAIT_S)
        return change(name, change_)

    monkeypatch.setattr(cluster, "change_topic", change_topic)
    log = LogConfig(flush_ms=NEVER_MS)
    running = Running(tmp_path, cluster, log, directory=OURS, replica_lag_ms=60_000)
    try:
        one = running.broker._hosted["t", 0]
        running.until("it campaigns", lambda: one.replica.is_campaigning)
        whole = running.whole_log()
        whole.refusal = whole.flush_refusal = "the disk takes nothing"
        running.until("it is stopped", lambda: one.stopped)
        answers.set()
        running.until("it is elected", lambda: cluster.writes)
        running.until("it resigns", lambda: cluster.state.leader == NO_LEADER)
        assert set(cluster.state.isr) == {2}
    finally:
        answers.set()
        running.stop()


@pytest.mark.parametrize(("error", "eligible"), [(StorageError, {1: OURS}), (MillraceError, {})])
def test_a_broker_that_is_named_as_the_leader_and_cannot_open_the_log_gives_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[MillraceError], eligible: dict[int, str]
) -> None:
    """It is registered, so nobody else would campaign."""

    def damaged(*_: object, **__: object) -> PartitionLog:
        raise error("the log is damaged")

    monkeypatch.setattr("millrace_broker.storage.log_directory.PartitionLog", damaged)
    cluster = Registries(minimum=2)
    before = cluster.topics["t"]
    named = dataclasses.replace(before.partitions[0], leader=1, leader_epoch=1)
    cluster.set(dataclasses.replace(before, partitions={0: named}))
    running = Running(tmp_path, cluster, LogConfig(flush_ms=NEVER_MS), directory=OURS)
    try:
        running.until("it gives way", lambda: cluster.state.leader == NO_LEADER)
        assert (set(cluster.state.isr), cluster.state.eligible) == ({2}, eligible)
    finally:
        running.stop()


def test_a_broker_whose_disk_refuses_a_flush_while_a_log_is_opened_is_not_taken_for_whole(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(broker, "RETENTION_INTERVAL_S", 0.02)
    cluster = Registries(minimum=2)
    before = cluster.topics["t"]
    named = dataclasses.replace(before.partitions[0], leader=1, leader_epoch=1)
    cluster.set(dataclasses.replace(before, partitions={0: named}))
    left = tmp_path / partition_name("t", 0, before.topic_id) / f"{0:020d}.log"
    left.parent.mkdir(parents=True)
    left.touch()  # its process was killed before the checkpoint
    disk.fails = True
    running = Running(tmp_path, cluster, LogConfig(flush_ms=NEVER_MS), directory=OURS)
    disk.fails = False  # the next flush would succeed, whatever became of those bytes
    try:
        running.until("it gives way", lambda: cluster.state.leader == NO_LEADER)
        assert (set(cluster.state.isr), cluster.state.eligible) == ({2}, {})
        syncs, rounds = disk.syncs, list[None]()
        monkeypatch.setattr(running.logs, "delete_expired", lambda: rounds.append(None))
        running.until("it could have been tried again", lambda: len(rounds) > 3)
        assert disk.syncs == syncs
        assert "until a restart" in caplog.text
    finally:
        running.stop()


def test_a_broker_that_stops_gives_up_what_it_leads_in_one_write(begin: Begin) -> None:
    running, cluster, _ = serving(begin)
    ended: list[bool] = []
    before = cluster.writes
    running.broker.hand_over(lambda: ended.append(True))
    with pytest.raises(NotLeader):
        running.broker.partition("t", 0)
    running.until("it may stop", lambda: ended)
    assert (cluster.state.leader, set(cluster.state.isr), cluster.writes) == (NO_LEADER, {2}, before + 1)


def test_a_broker_that_stops_after_a_failed_flush_does_not_count_as_whole(begin: Begin) -> None:
    running, cluster, _ = serving(begin, minimum=2)
    log = running.whole_log()
    log.refusal = log.flush_refusal = "the disk takes nothing"
    ended: list[bool] = []
    running.broker.hand_over(lambda: ended.append(True))
    running.until("it may stop", lambda: ended)
    assert (cluster.state.leader, set(cluster.state.isr), cluster.state.eligible) == (NO_LEADER, {2}, {})


def test_a_broker_that_stops_is_not_elected(tmp_path: Path) -> None:
    cluster = Registries(1)
    del cluster.brokers[2]
    log = LogConfig(flush_ms=NEVER_MS)
    running = Running(tmp_path, cluster, log, directory=OURS, session_timeout_ms=60_000)
    try:
        running.broker.hand_over(lambda: None)
        cluster.brokers = dict(BROKERS)
        cluster.changed()
        begun = time.monotonic()
        running.until("its turn would have come", lambda: time.monotonic() > begun + 0.5)
        assert cluster.writes == 0
    finally:
        running.stop()


def test_a_broker_stops_and_gives_up_its_leads_though_its_last_messages_cannot_be_written(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    running, cluster, _ = serving(begin)
    fail_once(monkeypatch, ReplicatedPartition, "write")
    ended: list[bool] = []
    running.broker.hand_over(lambda: ended.append(True))
    running.until("it may stop", lambda: ended)
    assert cluster.state.leader == NO_LEADER
    assert "MemoryError" in caplog.text


def test_a_broker_whose_zookeeper_does_not_answer_stops_all_the_same(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "RESIGN_S", 0.2)
    running, cluster, _ = serving(begin)
    answers = threading.Event()

    def away(*_: object) -> TopicState:
        assert answers.wait(WAIT_S)
        raise RequestTimedOut("ZooKeeper does not answer")

    monkeypatch.setattr(cluster, "change_topic", away)
    ended: list[bool] = []
    running.broker.hand_over(lambda: ended.append(True))
    running.until("it may stop", lambda: ended)
    answers.set()
    running.stop()
    assert ended == [True]
    assert cluster.state.leader == 1


def test_a_broker_whose_zookeeper_refuses_its_last_write_stops_at_once(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "RESIGN_S", WAIT_S)
    running, cluster, _ = serving(begin)

    def away(*_: object) -> TopicState:
        raise RequestTimedOut("ZooKeeper does not answer")

    monkeypatch.setattr(cluster, "change_topic", away)
    ended: list[float] = []
    begun = time.monotonic()
    running.broker.hand_over(lambda: ended.append(time.monotonic()))
    running.until("it may stop", lambda: ended)
    assert ended[0] - begun < WAIT_S / 2


def records_of_a_leader(tmp_path: Path) -> memoryview:
    leader = PartitionLog(tmp_path / "leader", LogConfig(), time.time)
    leader.lead(2)
    leader.append([batch()], ["User:a"])
    leader.flush()
    (file,) = log_files(leader.directory)
    records = memoryview(file.read_bytes())
    leader.close()
    return records


def test_a_follower_whose_flush_fails_once_flushes_again_and_acknowledges(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(copier, "FLUSH_AGAIN_S", 0.05)
    acked: list[Acked] = []
    monkeypatch.setattr(LeaderThread, "ack", lambda thread, one: acked.append(one))
    running, cluster, _ = serving(begin)
    before = cluster.topics["t"]
    led_by_2 = dataclasses.replace(before.partitions[0], leader=2, leader_epoch=2)
    cluster.set(dataclasses.replace(before, partitions={0: led_by_2}, version=before.version + 1))
    running.until("it copies", lambda: running.broker._hosted["t", 0].copying)
    records = records_of_a_leader(tmp_path)
    one = running.broker._hosted["t", 0]
    assert one.copying is not None
    assert one.thread is not None
    wanted = one.copying.wanted
    copied = Copied(PLACE, 0, committed=0, log_start=0, start_offset=0, segment=0, records=records)
    fail_once(monkeypatch, PartitionLog, "flush")
    running.broker.replicas._copier._take(one.thread, [Received(wanted, checked(copied, wanted))])
    running.until("it acknowledges", lambda: acked)
    assert acked == [Acked(PLACE, 2, len(records))]
    assert "flush of t-0 failed" in caplog.text
    assert "MemoryError" in caplog.text


def following(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> tuple[Running, list[Copying]]:
    """A broker that follows the leader on broker 2, and all that it asks of that leader."""
    monkeypatch.setattr(replicas, "COPY_AGAIN_S", 0.05)
    asked: list[Copying] = []
    monkeypatch.setattr(LeaderThread, "want", lambda thread, copying: asked.append(copying))
    running, cluster, _ = serving(begin)
    before = cluster.topics["t"]
    led_by_2 = dataclasses.replace(before.partitions[0], leader=2, leader_epoch=2)
    cluster.set(dataclasses.replace(before, partitions={0: led_by_2}, version=before.version + 1))
    running.until("it copies", lambda: asked)
    return running, asked


def take(one: HostedPartition, running: Running, answer: Copied) -> None:
    """Answer the follower's newest request."""
    assert one.copying is not None
    assert one.thread is not None
    wanted = one.copying.wanted
    running.broker.replicas._copier._take(one.thread, [Received(wanted, checked(answer, wanted))])


@pytest.mark.parametrize(
    ("mistake", "answer"),
    [
        ("take", Copied(PLACE, 0, committed=0, log_start=0, start_offset=0, segment=0)),
        ("_cut", Copied(PLACE, 0, committed=0, log_start=1, diverging_epoch=-1, diverging_end=1)),
    ],
)
def test_a_mistake_while_an_answer_is_taken_costs_a_pause_and_no_other_answer(
    begin: Begin,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    mistake: str,
    answer: Copied,
) -> None:
    running, asked = following(begin, monkeypatch)
    one = running.broker._hosted["t", 0]
    assert one.thread is not None
    wanted = asked[0].wanted
    fail_once(monkeypatch, Copying, mistake)
    stranger = wanted._replace(partition=PLACE._replace(number=1))
    taken: list[ReplicaPartition] = []
    find = running.broker._hosted.replica

    def noted(partition: ReplicaPartition) -> HostedPartition | None:
        taken.append(partition)
        return find(partition)

    monkeypatch.setattr(running.broker._hosted, "replica", noted)
    received = [Received(which, checked(answer, which)) for which in (wanted, stranger)]
    running.broker.replicas._copier._take(one.thread, received)
    assert len(taken) == 2
    running.until("it asks again", lambda: len(asked) == 2)
    assert asked[1] is one.copying
    assert caplog.text.count("Traceback") == 1


def test_a_follower_whose_flush_fails_pauses_though_answers_come(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, _ = following(begin, monkeypatch)
    monkeypatch.setattr(copier, "FLUSH_AGAIN_S", 60.0)
    records = records_of_a_leader(tmp_path)
    flushes: list[float] = []

    def flush(log: PartitionLog) -> None:
        flushes.append(time.monotonic())
        raise StorageError("Too many open files")

    one = running.broker._hosted["t", 0]
    assert one.copying is not None
    assert one.thread is not None
    copying, thread = one.copying, one.thread

    def take(answer: Copied) -> None:
        wanted, taken = copying.wanted, time.monotonic()
        running.broker.replicas._copier._take(thread, [Received(wanted, checked(answer, wanted))])
        running.until("it could flush", lambda: time.monotonic() > taken + 0.1)

    copied = Copied(PLACE, 0, committed=0, log_start=0, start_offset=0, segment=0, records=records)
    with monkeypatch.context() as failing:
        failing.setattr(PartitionLog, "flush", flush)
        for answer in (copied, *[copied._replace(records=None)] * 3):
            take(answer)
    assert len(flushes) == 1


def test_a_replica_that_follows_before_it_could_report_leaves_its_log_alone(
    begin: Begin, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, cluster, _ = serving(begin)
    one = running.broker._hosted["t", 0]
    disk.free.clear()
    disk.entered.clear()
    running.produce(acks_all=True)
    running.until("the flush begins", disk.entered.is_set)
    running.broker.zookeeper_restored()
    running.turn()
    assert one.leading is None

    changed: list[object] = []
    change_log = Replicas._change_log

    def noted(*arguments: Any) -> Any:
        changed.append(arguments)
        return change_log(*arguments)

    monkeypatch.setattr(Replicas, "_change_log", noted)
    before = cluster.topics["t"]
    chosen = dataclasses.replace(before.partitions[0], leader=2, leader_epoch=UNKNOWN_EPOCHS)
    cluster.set(dataclasses.replace(before, partitions={0: chosen}, version=before.version + 1))
    running.turn()
    assert one.copying is None, "the flush of its leadership still uses the log"
    disk.free.set()
    running.until("it follows", lambda: one.copying)
    assert not changed


def test_only_a_registered_broker_with_its_directory_is_a_follower(begin: Begin) -> None:
    running, _, _ = begin()
    request = ReplicaFetchRequest(2, OURS, True, 0, 1, (), ())
    with pytest.raises(NotLeader, match="broker 2 is not registered"):
        running.broker.replicas.fetch(Connection(), request, lambda copied: None)


def test_a_request_that_tells_something_ends_the_wait_of_the_one_before(begin: Begin) -> None:
    _, _, other = serving(begin)
    other.fetch(1, 0, flushed=0)
    other.heard.clear()
    other.fetch(1, 0, flushed=0)
    assert other.heard == [[]]


def test_a_reader_with_another_epoch_hears_that_its_leader_is_another_one(begin: Begin) -> None:
    running, _, _ = serving(begin)
    codes = {0: ErrorCode.FENCED_LEADER_EPOCH, 1: 0, -1: 0, 2: ErrorCode.UNKNOWN_LEADER_EPOCH}
    for epoch, code in codes.items():
        answers: list[Reads] = []
        request = FetchRequest(0, 1, 1 << 20, [("t", [(0, 0, 1 << 20, epoch, -1)])])
        running.broker.fetch(request, answers.append, running.aborted_fetches.append)
        assert [read.error for _, reads in answers[0] for read in reads] == [code]


def test_a_leader_without_zookeeper_refuses_no_offset_that_another_leader_may_have(begin: Begin) -> None:
    running, cluster, _ = serving(begin)
    codes = []
    for cluster.is_connected in (True, False):
        for offset in (0, 1):
            ((_, (read,)),) = running.fetch(("t", 0, offset), max_wait=0)[0]
            codes.append(read.error)
    assert codes == [0, ErrorCode.OFFSET_OUT_OF_RANGE, 0, ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_sizes_on_the_disk_are_told_of_what_another_broker_leads(begin: Begin) -> None:
    running, cluster, _ = serving(begin)
    running.produce()
    running.turn()
    size = running.broker.partition("t", 0).log.size
    before = cluster.topics["t"]
    elsewhere = dataclasses.replace(before.partitions[0], leader=2, leader_epoch=2)
    cluster.set(dataclasses.replace(before, partitions={0: elsewhere}, version=before.version + 1))
    running.until("another broker leads", lambda: not running.broker.partitions)
    (directory,) = ask(running, ApiKey.DESCRIBE_LOG_DIRS, 1, {"topics": None}).results
    (told,) = directory.topics
    assert told.name == "t"
    assert [(one.partition_index, one.partition_size) for one in told.partitions] == [(0, size)]
    assert size > 0


def test_the_log_of_a_replica_that_was_moved_away_is_put_aside_and_begun_anew(
    begin: Begin, tmp_path: Path
) -> None:
    running, cluster, _ = serving(begin)
    before = cluster.topics["t"]
    elsewhere = dataclasses.replace(before.partitions[0], replicas=(2, 3), leader=2, isr={2: THEIRS})
    cluster.set(dataclasses.replace(before, partitions={0: elsewhere}, version=before.version + 1))
    running.until("it is put aside", lambda: list(tmp_path.glob("t-0-*.foreign-*")))
    with pytest.raises(NotLeader):
        running.broker.partition("t", 0)
    cluster.set(dataclasses.replace(before, version=before.version + 2))
    running.until("it is elected again", lambda: cluster.state.leader_epoch == 2)
    assert len(list(tmp_path.glob("t-0-*"))) == 2


@pytest.mark.parametrize("is_deleted", [False, True])
def test_what_was_staged_in_the_turn_in_which_its_partition_goes_is_answered_in_that_turn(
    begin: Begin, is_deleted: bool
) -> None:
    running, cluster, _ = serving(begin)
    moved = dataclasses.replace(cluster.state, replicas=(2, 3), isr={2: THEIRS}, leader=NO_LEADER)
    topics = {"t": dataclasses.replace(cluster.topics["t"], partitions={0: moved})}
    produced = running.produce()
    cluster.topics = {} if is_deleted else topics
    running.broker.refresh()
    running.broker.end_of_turn()  # a later answer might come after that to the client's next request
    assert [type(why) for why in produced.heard] == [UnknownTopicOrPartition if is_deleted else NotLeader]


def test_a_log_stays_where_a_snapshot_alone_says_that_it_was_moved_away(begin: Begin, tmp_path: Path) -> None:
    running, cluster, _ = serving(begin)
    before = cluster.topics["t"]
    elsewhere = dataclasses.replace(before.partitions[0], replicas=(2, 3), leader=2, isr={2: THEIRS})
    asked: list[bool] = []

    def confirm(topic: str | None = None) -> None:
        asked.append(True)
        raise RequestTimedOut("ZooKeeper does not answer")

    cluster.confirm = confirm  # type: ignore[method-assign]
    cluster.set(dataclasses.replace(before, partitions={0: elsewhere}, version=before.version + 1))
    running.until("ZooKeeper was asked", lambda: asked)
    running.until("it is let go of", lambda: ("t", 0) not in running.broker._hosted)
    assert not list(tmp_path.glob("t-0-*.foreign-*"))


def test_an_election_that_is_answered_after_the_replica_was_moved_away_and_back_is_nobodys(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_writes, "GATHER_S", 1.0)
    cluster = Registries(1)
    running = Running(tmp_path, cluster, LogConfig(flush_ms=NEVER_MS), directory=OURS)
    try:
        before = cluster.topics["t"]
        running.until("it campaigns", lambda: running.broker.replicas.numbers().roles["waiting"])
        elsewhere = dataclasses.replace(before.partitions[0], replicas=(2, 3), isr={2: THEIRS})
        cluster.set(dataclasses.replace(before, partitions={0: elsewhere}, version=2))
        running.until("it is put aside", lambda: list(tmp_path.glob("t-0-*.foreign-*")))
        cluster.set(dataclasses.replace(before, version=3))
        running.until("it is back", lambda: running.broker.logs)
        assert cluster.writes == 0
        other = Other(running)

        def serves() -> bool:
            other.fetch(cluster.state.leader_epoch, 0, flushed=0)
            return ("t", 0) in running.broker.partitions

        running.until("it serves", serves)
        assert running.broker.replicas.numbers().events["elected"] == 1
        assert running.broker.partition("t", 0).log is running.broker.logs["t", 0]
    finally:
        running.stop()


def test_a_replica_that_cannot_begin_to_copy_tries_again(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, cluster, _ = serving(begin)
    tries: list[int] = []
    real = os.pipe2

    def pipe2(flags: int) -> tuple[int, int]:
        tries.append(flags)
        if len(tries) == 1:
            raise OSError(errno.EMFILE, "Too many open files")
        return real(flags)

    monkeypatch.setattr(os, "pipe2", pipe2)
    before = cluster.topics["t"]
    led_by_2 = dataclasses.replace(before.partitions[0], leader=2, leader_epoch=2)
    cluster.set(dataclasses.replace(before, partitions={0: led_by_2}, version=before.version + 1))
    running.until("it follows", lambda: running.broker.replicas.numbers().roles["following"])
    running.until(
        "it copies", lambda: any(thread.name == "copy from broker 2" for thread in threading.enumerate())
    )
    assert len(tries) == 2


def test_a_copy_that_becomes_the_only_replica_gives_up_the_first_part_of_an_append(
    begin: Begin, tmp_path: Path
) -> None:
    running, cluster, _ = serving(begin)
    before = cluster.topics["t"]
    led_by_2 = dataclasses.replace(before.partitions[0], leader=2, leader_epoch=2, origin=ORIGIN)
    cluster.set(dataclasses.replace(before, partitions={0: led_by_2}, version=before.version + 1))
    running.until("it follows", lambda: not running.broker.partitions)
    leader = PartitionLog(tmp_path / "leader", LogConfig(), time.time)
    leader.lead(2)
    leader.append_mirrored(ORIGIN, None, origin_batches([1]), position(1, batches=1, records=1))
    leader.append_mirrored(ORIGIN, 1, origin_batches([1, 1], 1), position(3, batches=3, records=3))
    leader.flush()
    (file,) = log_files(leader.directory)
    headers = [header for header, _ in split_batches(file.read_bytes())]
    leader.close()
    mirrored, cut_off = headers[:-2], headers[-2:]
    assert [header.is_control for header in cut_off] == [False, True]
    ours = running.whole_log()
    end = sum(header.size for header in mirrored)
    ours.append_copied(mirrored, memoryview(file.read_bytes())[:end], 0)
    assert ours.whole_end < ours.end == end

    alone = dataclasses.replace(led_by_2, replicas=(1,), leader=1, leader_epoch=3, isr={1: OURS})
    cluster.set(dataclasses.replace(before, partitions={0: alone}, version=before.version + 2))
    running.until("it serves alone", lambda: ("t", 0) in running.broker.partitions)
    log = running.whole_log()
    log.append_mirrored(ORIGIN, 1, origin_batches([2], 1), position(3, batches=2, records=3))
    log.publish(log.flush())
    read = [header for header in batches_at(log, 0) if not header.is_control]
    assert [header.records_count for header in read] == [1, 2]


def test_a_copy_that_becomes_the_only_replica_shows_all_that_its_leader_may_have_shown(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, _ = following(begin, monkeypatch)
    records, one = records_of_a_leader(tmp_path), running.broker._hosted["t", 0]
    take(one, running, Copied(PLACE, 0, committed=0, log_start=0, start_offset=0, segment=0, records=records))
    before = running.cluster.topics["t"]
    alone = dataclasses.replace(before.partitions[0], replicas=(1,), leader=1, leader_epoch=3, isr={1: OURS})
    running.cluster.set(dataclasses.replace(before, partitions={0: alone}, version=before.version + 1))
    running.until("it serves alone", lambda: ("t", 0) in running.broker.partitions)
    assert running.high_watermark() == 3


def test_a_copy_that_becomes_the_only_replica_while_its_log_is_opened_shows_all_of_it(tmp_path: Path) -> None:
    cluster = Registries(1)
    copied, cluster.topics = cluster.topics["t"], {}
    cluster.unreadable = {"t"}
    folder = tmp_path / partition_name("t", 0, PLACE.topic_id)
    log = PartitionLog(folder, LogConfig(), time.time, is_replica=True)
    records = records_of_a_leader(tmp_path)
    headers = [header for header, _ in split_batches(records)]
    log.append_copied(headers, records, 0)
    log.close()
    running = Running(tmp_path, cluster, LogConfig(flush_ms=NEVER_MS), directory=OURS)
    is_free = threading.Event()
    for _ in range(broker.POOLS["open"]):
        running.broker._pools["open"].submit(is_free.wait)
    state = dataclasses.replace(copied.partitions[0], leader=2, leader_epoch=2)
    cluster.set(dataclasses.replace(copied, partitions={0: state}))
    running.until("it opens", lambda: running.broker.opening("t"))
    alone = dataclasses.replace(state, replicas=(1,), leader=1, leader_epoch=3, isr={1: OURS})
    cluster.set(dataclasses.replace(copied, partitions={0: alone}, version=2))
    running.turn()
    is_free.set()
    running.until("it serves alone", lambda: ("t", 0) in running.broker.partitions)
    assert running.high_watermark() == 3
    running.stop()


@pytest.mark.parametrize(("noted", "is_behind"), [(OURS, False), (THEIRS, True)])
def test_a_replica_that_left_with_everything_committed_waits_for_no_limit(
    begin: Begin, noted: str, is_behind: bool
) -> None:
    running, cluster, _ = serving(begin, minimum=2)
    before = cluster.topics["t"]
    led_by_2 = PartitionState(2, (1, 2), {2: THEIRS}, 2, eligible={1: noted})
    cluster.set(dataclasses.replace(before, partitions={0: led_by_2}, version=before.version + 1))
    running.until("it copies", lambda: running.broker._hosted["t", 0].copying)
    copying = running.broker._hosted["t", 0].copying
    assert copying is not None
    assert copying.is_behind == is_behind, "while writes may wait for it, it does not wait"


def test_an_answer_that_comes_behind_newer_news_is_not_taken_for_the_newest(begin: Begin) -> None:
    running, cluster, _ = serving(begin)
    replica = running.broker._hosted["t", 0].replica
    before = cluster.topics["t"]
    moving = dataclasses.replace(before.partitions[0], replicas=(1, 2, 3), adding=(3,))
    cluster.set(dataclasses.replace(before, version=before.version + 2))  # says again what it said before
    running.broker.refresh()
    replica.observe(Snapshot(before.version + 1, moving, 1), 0.0)
    assert replica.snapshot is not None
    assert replica.snapshot.state == before.partitions[0]


def test_followers_hear_of_what_retention_appends(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    running, _, other = serving(begin)
    log = running.broker.partition("t", 0).log

    def roll(log: PartitionLog, leader_start: int | None = None) -> list[int]:
        log.append([batch()], ["User:a"])  # as the position batch that begins a new file of an idle mirror
        return []

    monkeypatch.setattr(PartitionLog, "apply_retention", roll)
    other.fetch(1, 0, flushed=0)
    running.mailbox.begin(running.broker._apply_retention())
    running.until(
        "the follower hears of it", lambda: any(one.records for heard in other.heard for one in heard)
    )
    assert log.end > 0


def test_a_flush_that_outlasts_a_change_of_leader_is_acknowledged_to_the_new_one(
    begin: Begin, disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acked: list[Acked] = []
    monkeypatch.setattr(LeaderThread, "ack", lambda thread, one: acked.append(one))
    running, asked = following(begin, monkeypatch)
    cluster, one = running.cluster, running.broker._hosted["t", 0]
    records = records_of_a_leader(tmp_path)
    disk.free.clear()
    disk.entered.clear()
    copied = Copied(PLACE, 0, committed=0, log_start=0, start_offset=0, segment=0, records=records)
    take(one, running, copied)
    running.until("the flush begins", disk.entered.is_set)
    before = cluster.topics["t"]
    led_again = dataclasses.replace(before.partitions[0], leader_epoch=3)
    cluster.set(dataclasses.replace(before, partitions={0: led_again}, version=before.version + 1))
    running.until("it copies in the new epoch", lambda: asked[-1].following.epoch == 3)
    take(one, running, copied._replace(records=None))
    disk.free.set()
    running.until("it acknowledges", lambda: acked)
    assert acked == [Acked(PLACE, 3, len(records))]


def test_a_replica_that_is_elected_during_its_last_flush_as_a_follower_serves(
    begin: Begin, disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, _ = following(begin, monkeypatch)
    cluster, one = running.cluster, running.broker._hosted["t", 0]
    disk.free.clear()
    disk.entered.clear()
    take(one, running, Copied(PLACE, 0, 0, 0, 0, segment=0, records=records_of_a_leader(tmp_path)))
    running.until("the flush begins", disk.entered.is_set)
    before = cluster.topics["t"]
    alone = dataclasses.replace(before.partitions[0], leader=NO_LEADER, isr={1: OURS})
    cluster.set(dataclasses.replace(before, partitions={0: alone}, version=before.version + 1))
    running.until("it leads", lambda: one.leading)
    running.turn()
    assert one.partition is None
    disk.free.set()
    running.until("it serves", lambda: one.partition)
    assert one.log.visible_end == one.log.end > 0


def test_a_replica_serves_whose_last_flush_as_a_follower_ends_while_it_begins_to_lead(
    begin: Begin, disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, _ = following(begin, monkeypatch)
    cluster, one = running.cluster, running.broker._hosted["t", 0]
    disk.free.clear()
    disk.entered.clear()
    take(one, running, Copied(PLACE, 0, 0, 0, 0, segment=0, records=records_of_a_leader(tmp_path)))
    running.until("the flush begins", disk.entered.is_set)
    look = Leadership.flushed

    def flush_ends_after_the_look(leading: Leadership) -> bool:
        grown = look(leading)
        disk.free.set()
        wait_until("the flush ends", lambda: one.log.flushed == one.log.end)
        return grown

    monkeypatch.setattr(Leadership, "flushed", flush_ends_after_the_look)
    before = cluster.topics["t"]
    alone = dataclasses.replace(before.partitions[0], leader=NO_LEADER, isr={1: OURS})
    cluster.set(dataclasses.replace(before, partitions={0: alone}, version=before.version + 1))
    running.until("it serves", lambda: one.partition)
