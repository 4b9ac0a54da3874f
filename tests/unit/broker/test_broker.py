"""Produce, fetch and flush of one broker on real logs, its loop turned by hand."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from millrace.errors import (
    BrokerError,
    ErrorCode,
    MessageTooLarge,
    NotLeader,
    PolicyViolation,
    StorageError,
    UnknownTopicOrPartition,
)
from millrace.records import Message, build_batch
from millrace.records.compression import Buffer
from millrace.zookeeper.topic_state import TopicState
from millrace_broker.partitions import broker
from millrace_broker.storage import landmarks, partition_log
from millrace_broker.storage.checkpoint import Checkpoint
from millrace_broker.storage.landmarks import Landmarks
from millrace_broker.storage.partition_log import PartitionLog
from tests.support import WAIT_S, wait_until
from tests.unit.broker.running import ORIGIN, Disk, Outcome, Running, Start, topic


def test_acks_1_is_answered_after_the_append_and_stays_invisible_until_the_flush(
    start: Start, disk: Disk
) -> None:
    running = start()
    opening = disk.syncs
    outcome = running.produce()
    assert outcome.heard == []
    running.turn()
    assert outcome.base_offset == 0
    assert (disk.syncs, running.high_watermark()) == (opening, 0)


def test_acks_all_is_answered_only_after_the_flush_it_starts_at_once(start: Start, disk: Disk) -> None:
    running = start()
    disk.free.clear()
    disk.entered.clear()
    outcome = running.produce(acks_all=True)
    running.turn()
    assert disk.entered.wait(WAIT_S)
    running.turn()
    assert outcome.heard == []
    assert running.high_watermark() == 0
    disk.free.set()
    running.until("the answer", lambda: outcome.heard)
    assert outcome.base_offset == 0
    assert running.high_watermark() == 1


def test_whatever_comes_during_a_flush_shares_the_next_one(start: Start, disk: Disk) -> None:
    running = start()
    opening = disk.syncs
    disk.entered.clear()
    disk.free.clear()
    first = running.produce(acks_all=True)
    running.turn()
    assert disk.entered.wait(WAIT_S)
    later = []
    for _ in range(20):
        later.append(running.produce(acks_all=True))
        running.turn()
    disk.free.set()
    running.until("all answers", lambda: all(outcome.heard for outcome in [first, *later]))
    assert disk.syncs == opening + 2
    assert [o.base_offset for o in [first, *later]] == sorted(o.base_offset for o in [first, *later])


def test_what_one_turn_staged_is_one_write_per_partition(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start(topic("t", 1, 1))
    writes: list[int] = []
    writev = os.writev

    def counting(fd: int, parts: Sequence[Buffer]) -> int:
        writes.append(len(parts))
        return writev(fd, parts)

    monkeypatch.setattr(os, "writev", counting)
    for number in range(30):
        running.produce(partition=number % 2)
    running.turn()
    assert writes == [15, 15]


def test_a_flush_is_due_after_so_many_messages_or_so_much_time(start: Start, disk: Disk) -> None:
    by_count = start(
        topic("t", 1, settings={"flush.messages": "10"}), topic("u", 1, settings={"flush.ms": "30"})
    )
    by_count.produce(count=9)
    by_count.turn()
    by_count.produce(topic="u")
    began = time.monotonic()
    by_count.turn()
    by_count.until("the time", lambda: by_count.high_watermark("u") == 1)
    assert time.monotonic() - began >= 0.03
    assert disk.syncs > 0
    assert by_count.high_watermark() == 0
    disk.syncs = 0
    by_count.produce()
    by_count.turn()
    by_count.until("the tenth message", lambda: by_count.high_watermark() > 0)
    assert disk.syncs > 0


def test_a_consumer_that_waits_sees_a_message_after_its_flush_long_before_its_time(
    start: Start, disk: Disk
) -> None:
    running = start()
    answers = running.fetch(("t", 0, 0))
    disk.free.clear()
    disk.entered.clear()
    disk.syncs = 0
    running.produce()
    running.turn()
    wait_until("the flush has begun", disk.entered.is_set)
    running.turn()
    assert (answers, running.high_watermark()) == ([], 0)
    disk.free.set()
    running.until("the answer", lambda: answers)
    assert (disk.syncs, running.high_watermark()) == (1, 1)


def test_a_failed_flush_refuses_who_waits_and_all_writes_after_it(start: Start, disk: Disk) -> None:
    running = start()
    visible = running.produce(acks_all=True)
    running.until("the first", lambda: visible.heard)
    disk.fails = True
    lost = running.produce(acks_all=True)
    running.turn()
    running.until("the refusal", lambda: lost.heard)
    assert isinstance(lost.heard[0], StorageError)
    after = running.produce()
    running.turn()
    assert isinstance(after.heard[0], StorageError)
    assert running.high_watermark() == 1, "nothing becomes visible any more"
    (found,) = running.fetch(("t", 0, 0))
    assert found[0][1][0].records is not None, "reads go on"


def test_acks_all_is_answered_before_a_due_checkpoint_is_written(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start()
    go_on, began = threading.Event(), threading.Event()
    write = Checkpoint.write

    def hold(checkpoint: Checkpoint, directory: Path) -> None:
        began.set()
        assert go_on.wait(WAIT_S)
        write(checkpoint, directory)

    monkeypatch.setattr(Checkpoint, "write", hold)
    log = running.whole_log()
    monkeypatch.setattr(partition_log, "CHECKPOINT_INTERVAL_S", 0)
    for _ in range(3):  # the flushes behind it do not wait for it either
        outcome = running.produce(acks_all=True)
        running.turn()
        running.until("the answer", lambda: outcome.heard)  # noqa: B023
        assert began.wait(WAIT_S)
    go_on.set()
    wait_until("the checkpoint", lambda: (found := Checkpoint.read(log.directory)) and found.flushed > 0)


def test_a_flush_that_found_no_descriptor_is_refused_and_tried_again(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start()
    log = running.whole_log()
    with monkeypatch.context() as patch:
        patch.setattr(partition_log, "sync_directory", out_of_descriptors)
        log._directory_changed = True  # as after a roll
        refused = running.produce(acks_all=True)
        running.turn()
        running.until("the refusal", lambda: refused.heard)
    assert isinstance(refused.heard[0], StorageError)
    running.until("the next try, without anybody asking", lambda: running.high_watermark() == 1)
    outcome = running.produce(acks_all=True)
    running.turn()
    running.until("the answer", lambda: outcome.heard)
    assert outcome.base_offset > 0


def out_of_descriptors(_: Path) -> None:
    raise OSError(errno.EMFILE, "Too many open files")


def test_a_retry_is_answered_with_the_first_offset_once_that_is_on_the_disk(start: Start, disk: Disk) -> None:
    running = start()
    batch = build_batch([Message(1, None, b"x")], producer_id=7, producer_epoch=0, base_sequence=0)
    disk.free.clear()
    outcomes = []
    for _ in range(2):
        outcomes.append(Outcome(acks_all=True))
        running.broker.produce("t", 0, memoryview(bytearray(batch)), outcomes[-1], 0)
        running.turn()
    assert [outcome.heard for outcome in outcomes] == [[], []]
    disk.free.set()
    running.until("both answers", lambda: all(outcome.heard for outcome in outcomes))
    assert [outcome.base_offset for outcome in outcomes] == [0, 0]
    assert running.broker.partition("t", 0).log.end == len(batch)


def test_produce_is_refused_with_the_reason(start: Start) -> None:
    running = start(
        topic("t", 1, 2),
        topic("mirrored", 1, origin=ORIGIN),
        topic("small", 1, settings={"max.message.bytes": "70"}),
    )
    for name, partition, error in [
        ("no", 0, UnknownTopicOrPartition),
        ("t", 5, UnknownTopicOrPartition),
        ("t", 1, NotLeader),
        ("mirrored", 0, PolicyViolation),
        ("small", 0, MessageTooLarge),
    ]:
        with pytest.raises(error):
            running.produce("x" * 20, topic=name, partition=partition)
    running.turn()


def test_a_parked_fetch_answers_once_when_any_partition_has_something(start: Start) -> None:
    running = start(topic("a", 1), topic("b", 1))
    answers = running.fetch(("a", 0, 0), ("b", 0, 0))
    assert answers == []
    running.produce(topic="a", acks_all=True)
    running.produce(topic="b", acks_all=True)
    running.turn()
    running.until("the answer", lambda: answers)
    running.until("both flushes", lambda: running.high_watermark("b") == 1)
    assert len(answers) == 1
    assert not running.broker.partition("a", 0).parked
    assert not running.broker.partition("b", 0).parked


def without_landmarks(start: Start, monkeypatch: pytest.MonkeyPatch) -> tuple[Running, int]:
    """A broker with a log as an older Millrace left it, and an offset that it lacks them to find."""
    monkeypatch.setattr(landmarks, "WALKED_HEADERS", 10)
    monkeypatch.setattr(landmarks, "SPAN_BYTES", 1000)
    running = start()
    for _ in range(50):
        last = running.produce(acks_all=True)
    running.turn()
    running.until("the answers", lambda: last.heard)
    running.whole_log().snapshot[1].segments[0].landmarks = Landmarks()
    return running, last.base_offset - 1


def test_a_fetch_that_lacks_landmarks_waits_until_they_are_built(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, offset = without_landmarks(start, monkeypatch)
    answers = running.fetch(("t", 0, offset))
    assert answers == []
    running.until("the answer", lambda: answers)
    assert answers[0][0][1][0].records is not None


def test_landmarks_for_which_no_thread_was_left_are_built_for_a_later_fetch(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    running, offset = without_landmarks(start, monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_thread)
        (refused,) = running.fetch(("t", 0, offset))
    assert refused[0][1][0].error == ErrorCode.STORAGE_ERROR
    answers = running.fetch(("t", 0, offset))
    running.until("the answer", lambda: answers)
    assert answers[0][0][1][0].records is not None


def test_a_fetch_waits_for_min_bytes_across_partitions(start: Start) -> None:
    running = start(topic("a", 1), topic("b", 1))
    size = len(build_batch([Message(1, None, b"x")]))
    answers = running.fetch(("a", 0, 0), ("b", 0, 0), min_bytes=size + 1)
    running.produce(topic="a", acks_all=True)
    running.until("the first", lambda: running.high_watermark("a") == 1)
    assert answers == []
    running.produce(topic="b", acks_all=True)
    running.until("the answer", lambda: answers)


def test_a_fetch_answers_with_nothing_when_its_time_is_up(start: Start) -> None:
    running = start()
    began = time.monotonic()
    answers = running.fetch(("t", 0, 0), max_wait=50)
    running.until("the answer", lambda: answers)
    assert time.monotonic() - began >= 0.05
    assert answers[0][0][1][0].records is None


def test_an_error_in_one_partition_is_told_at_once(start: Start) -> None:
    running = start()
    ((_, (unknown,)), (_, (good,))) = running.fetch(("no", 0, 0), ("t", 0, 0))[0]
    assert (unknown.error, good.error) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE)


def test_a_deleted_topic_answers_whoever_waits_and_its_files_go(
    start: Start, disk: Disk, tmp_path: Path
) -> None:
    running = start()
    answers = running.fetch(("t", 0, 0))
    disk.free.clear()
    waiting = running.produce(acks_all=True)
    running.turn()
    running.cluster.set()
    running.until("the fetch's answer", lambda: answers)
    assert answers[0][0][1][0].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert isinstance(waiting.heard[0], UnknownTopicOrPartition)
    disk.free.set()
    running.until("the files are gone", lambda: not list((tmp_path / "logs").glob("t-*")))


def test_a_topic_made_anew_at_once_starts_empty_and_keeps_its_log(
    start: Start, disk: Disk, tmp_path: Path
) -> None:
    running = start()
    disk.free.clear()  # the old one's flush is still running when the new topic comes
    running.produce(acks_all=True)
    running.turn()
    again = topic("t", 1)
    running.cluster.set(again)
    running.turn()
    with pytest.raises(BrokerError):
        running.broker.partition("t", 0)
    disk.free.set()

    def reopened() -> bool:
        try:
            return running.broker.partition("t", 0).topic_id == again.topic_id
        except BrokerError:
            return False

    running.until("the new log", reopened)
    assert running.high_watermark() == 0
    outcome = running.produce(acks_all=True)
    running.until("the answer", lambda: outcome.heard)
    assert [path.name for path in (tmp_path / "logs").glob("t-*")] == [f"t-0-{again.topic_id.hex}"]


def test_a_log_that_cannot_be_opened_refuses_its_partition_only(start: Start, tmp_path: Path) -> None:
    running = start()
    broken = topic("broken", 1)
    (tmp_path / "logs" / f"broken-0-{broken.topic_id.hex}").write_text("a file where a folder must be")
    running.cluster.set(running.cluster.topics["t"], broken)

    def refused() -> bool:
        try:
            running.broker.partition("broken", 0)
        except BrokerError as error:
            return error.code == ErrorCode.STORAGE_ERROR
        return False

    running.until("the refusal", refused)
    assert running.produce().heard == []


def test_a_topic_with_a_setting_that_is_not_known_is_served_once_it_has_lost_it(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "RETENTION_INTERVAL_S", 0.05)
    running = start()
    newer = topic("newer", 1, settings={"of.a.newer.release": "1"})
    running.cluster.set(running.cluster.topics["t"], newer)
    running.until("the refusal", lambda: ("newer", 0) in running.broker.failed)
    running.cluster.set(
        running.cluster.topics["t"], TopicState("newer", newer.topic_id, {}, newer.partitions)
    )
    running.until("it is served", lambda: ("newer", 0) in running.broker.partitions)
    assert not running.broker.failed


def test_new_settings_of_a_topic_reach_its_open_log(start: Start) -> None:
    running = start()
    before = running.cluster.topics["t"]
    changed = TopicState("t", before.topic_id, {"retention.ms": "5"}, before.partitions)
    running.cluster.set(changed)
    running.turn()
    assert running.broker.partition("t", 0).log.config.retention_ms == 5


@pytest.mark.parametrize("changed", [{"flush.ms": "20"}, {"flush.messages": "1"}])
def test_a_message_that_waits_for_its_flush_waits_no_longer_than_new_settings_say(
    start: Start, changed: dict[str, str]
) -> None:
    running = start()
    running.produce()
    running.turn()
    assert running.high_watermark() == 0
    before = running.cluster.topics["t"]
    running.cluster.set(TopicState("t", before.topic_id, changed, before.partitions))
    running.until("the flush", lambda: running.high_watermark() == 1)


def test_stopping_brings_everything_to_the_disk_and_answers(start: Start) -> None:
    running = start()
    plain, waiting = running.produce(), Outcome(acks_all=True)
    batch = bytearray(build_batch([Message(1, None, b"y")]))
    running.broker.produce("t", 0, memoryview(batch), waiting, 0)
    log = running.broker.partition("t", 0).log
    running.broker.finalize()
    assert plain.heard
    assert waiting.heard
    assert log.visible_end == log.end > 0


def test_a_thread_that_looks_a_partition_up_while_it_is_deleted_never_gets_none(start: Start) -> None:
    running = start()
    looked_up = running.broker._hosted["t", 0]  # by a thread that reads its partition a moment later
    running.cluster.set()
    running.until("the deletion", lambda: not running.broker._hosted)
    assert looked_up.partition is not None


def test_a_failed_build_of_landmarks_is_not_tried_again_by_who_waits(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    running = start()
    partition = running.broker.partition("t", 0)
    woken: list[str] = []

    class Waiting:
        any_is_enough = False

        def grown(self, partition: object, size: int) -> None: ...

        def wake(self) -> None:
            woken.append("now")

    def broken(_: PartitionLog) -> None:
        raise OSError(errno.EIO, "Input/output error")

    partition.park(Waiting())
    with monkeypatch.context() as patched:
        patched.setattr(PartitionLog, "build_landmarks", broken)
        running.broker.build_landmarks(partition)
        running.until("it was tried", lambda: not running.broker._lacking_landmarks)
    assert "cannot build the landmarks of t-0" in caplog.text
    assert woken == []
    monkeypatch.setattr(PartitionLog, "build_landmarks", lambda _: None)
    running.broker.build_landmarks(partition)
    running.until("who waits is woken", lambda: woken)
