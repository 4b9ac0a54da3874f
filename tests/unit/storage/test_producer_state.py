"""De-duplication of idempotent producers: retries are answered, not stored; gaps are refused."""

from __future__ import annotations

import errno
import threading
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from millrace.config import LogConfig
from millrace.errors import InvalidProducerEpoch, InvalidRecord, MillraceError, OutOfOrderSequence
from millrace.records import BatchHeader
from millrace_broker.storage import producer_state, sealed
from millrace_broker.storage.checkpoint import Checkpoint
from millrace_broker.storage.partition_log import PartitionLog
from millrace_broker.storage.producer_state import (
    EXPIRY_S,
    FILE_NAME,
    ProducerLimit,
    ProducerStates,
    StagedProducers,
)
from millrace_broker.storage.refused import MAX_SEQUENCE
from tests.unit.storage.logs import (
    PRINCIPAL,
    Appended,
    Clock,
    append,
    appended,
    batch,
    checkpoint,
    consume,
    crash,
    flush,
    open_log,
)


def test_a_retry_is_answered_with_the_first_base_offset(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    appended(log, batch(1))
    first = appended(log, batch(3, producer=9, sequence=0))[0]
    again = appended(log, batch(3, producer=9, sequence=0))[0]
    assert (again.base_offset, again.duplicate) == (first.base_offset, True)
    assert again.end == first.end > log.visible_end, "an acks=all retry waits for the first one's flush"
    flush(log)
    assert again.end <= log.visible_end
    assert len(list(consume(log, 0))) == 2
    log.close()


def test_a_retry_within_one_append_is_found_too(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    results = appended(log, *[batch(2, producer=9, sequence=sequence) for sequence in (0, 2, 0, 2, 4)])
    assert [result.duplicate for result in results] == [False, False, True, True, False]
    assert results[2].base_offset == results[0].base_offset
    log.close()


def test_the_last_five_batches_are_remembered(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    sent = [appended(log, batch(2, producer=9, sequence=2 * index))[0] for index in range(8)]
    for index in range(3, 8):
        again = appended(log, batch(2, producer=9, sequence=2 * index))[0]
        assert (again.base_offset, again.duplicate) == (sent[index].base_offset, True)
    assert isinstance(append(log, batch(2, producer=9, sequence=4))[0], OutOfOrderSequence)
    log.close()


@pytest.mark.parametrize("sequence", [1, 2, 4, 100])
def test_a_batch_that_does_not_follow_the_last_one_is_refused(tmp_path: Path, sequence: int) -> None:
    log = open_log(tmp_path)
    appended(log, batch(3, producer=9, sequence=0))
    assert isinstance(append(log, batch(3, producer=9, sequence=sequence))[0], OutOfOrderSequence)
    appended(log, batch(3, producer=9, sequence=3))
    log.close()


def test_the_same_first_sequence_with_another_count_is_no_retry(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    appended(log, batch(3, producer=9, sequence=0))
    assert isinstance(append(log, batch(2, producer=9, sequence=0))[0], OutOfOrderSequence)
    log.close()


def test_an_unknown_producer_may_start_anywhere(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    appended(log, batch(3, producer=9, sequence=500))
    appended(log, batch(3, producer=9, sequence=503))
    log.close()


def test_a_newer_epoch_starts_at_zero_and_an_older_one_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    appended(log, batch(3, producer=9, sequence=0, epoch=4))
    assert isinstance(append(log, batch(1, producer=9, sequence=3, epoch=5))[0], OutOfOrderSequence)
    appended(log, batch(1, producer=9, sequence=0, epoch=5))
    assert isinstance(append(log, batch(1, producer=9, sequence=3, epoch=4))[0], InvalidProducerEpoch)
    assert isinstance(append(log, batch(3, producer=9, sequence=0, epoch=4))[0], InvalidProducerEpoch)
    log.close()


def test_a_producer_id_without_a_sequence_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert isinstance(append(log, batch(3, producer=9, sequence=-1))[0], InvalidRecord)
    log.close()


def test_sequences_wrap_to_zero(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    appended(log, batch(3, producer=9, sequence=MAX_SEQUENCE - 1))
    assert not appended(log, batch(2, producer=9, sequence=1))[0].duplicate
    appended(log, batch(1, producer=8, sequence=MAX_SEQUENCE))
    assert not appended(log, batch(1, producer=8, sequence=0))[0].duplicate
    log.close()


def test_a_producer_is_forgotten_after_a_day(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path, clock)
    appended(log, batch(3, producer=9, sequence=0))
    clock.now += EXPIRY_S - 1
    assert isinstance(append(log, batch(3, producer=9, sequence=7))[0], OutOfOrderSequence)
    clock.now += 2
    assert not appended(log, batch(3, producer=9, sequence=7))[0].duplicate
    clock.now += EXPIRY_S + 1
    log.apply_retention()
    assert len(log.active_producers()) == 0
    log.close()


def test_producers_do_not_share_sequences(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    appended(log, batch(3, producer=1, sequence=0))
    assert not appended(log, batch(3, producer=2, sequence=0))[0].duplicate
    log.close()


@pytest.mark.parametrize("clean", [True, False])
def test_retries_are_known_after_a_restart(tmp_path: Path, clean: bool) -> None:
    log = open_log(tmp_path)
    sent = [appended(log, batch(2, producer=9, sequence=2 * index))[0] for index in range(6)]
    if clean:
        log.close()
    else:
        crash(log)  # nothing but the batch headers is left
    log = open_log(tmp_path)
    for index in range(1, 6):
        again = appended(log, batch(2, producer=9, sequence=2 * index))[0]
        assert (again.base_offset, again.duplicate) == (sent[index].base_offset, True)
    assert isinstance(append(log, batch(2, producer=9, sequence=14))[0], OutOfOrderSequence)
    assert not appended(log, batch(2, producer=9, sequence=12))[0].duplicate
    log.close()


def test_a_checkpoint_and_the_headers_above_it_add_up(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path, clock)
    first = appended(log, batch(2, producer=9, sequence=0))[0]
    clock.now += 60
    flush(log)  # writes a checkpoint
    second = appended(log, batch(2, producer=9, sequence=2))[0]
    crash(log)
    log = open_log(tmp_path, clock)
    assert appended(log, batch(2, producer=9, sequence=0))[0].base_offset == first.base_offset
    assert appended(log, batch(2, producer=9, sequence=2))[0].base_offset == second.base_offset
    log.close()


def test_a_batch_that_a_power_cut_took_is_not_remembered_as_stored(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path, clock)
    appended(log, batch(2, producer=9, sequence=0))
    clock.now += 60
    log.publish(log.flush())
    end = log.end
    appended(log, batch(2, producer=9, sequence=2))
    log.write_due_checkpoint()
    crash(log)
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:end])
    log = open_log(tmp_path, clock)
    retried = appended(log, batch(2, producer=9, sequence=2))[0]
    assert (retried.base_offset, retried.duplicate) == (end, False)
    log.close()


# Many producers: a file of their own


def many(log: PartitionLog, count: int, sequence: int = 0, first: int = 0) -> list[Appended]:
    """One batch of each of many producers."""
    return appended(log, *[batch(1, producer=first + number, sequence=sequence) for number in range(count)])


COUNT = producer_state.FEW_PRODUCERS + 50


def checkpointed_producers(directory: Path) -> list[Any] | int:
    checkpoint = Checkpoint.read(directory)
    assert checkpoint is not None
    return checkpoint.producers


def test_the_states_of_many_producers_are_not_written_with_each_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    log = open_log(tmp_path, clock)
    written: list[str] = []
    write = sealed.write

    def noted(path: Path, fields: Mapping[str, Any]) -> None:
        written.append(path.name)
        write(path, fields)

    monkeypatch.setattr(sealed, "write", noted)
    for turn in range(10):
        many(log, COUNT, turn)
        clock.now += 60
        flush(log)
    assert written == [FILE_NAME, "checkpoint", *["checkpoint"] * 9]
    assert (tmp_path / "checkpoint").stat().st_size < 1000
    monkeypatch.setattr(producer_state, "MAX_REPLAY_BYTES", 1000)
    written.clear()
    for turn in range(10, 12):
        many(log, COUNT, turn)
        clock.now += 60
        flush(log)
    assert written == [FILE_NAME, "checkpoint"] * 2
    log.close()


@pytest.mark.parametrize("end", ["close", "kill", "kill before the checkpoint"])
@pytest.mark.parametrize("segment_bytes", [1 << 30, 20_000])
def test_retries_of_many_producers_are_known_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, segment_bytes: int
) -> None:
    clock = Clock()
    log = open_log(tmp_path, clock, segment_bytes=segment_bytes)
    sent = [many(log, COUNT, 0)]
    clock.now += 60
    flush(log)
    for turn in range(1, 7):
        sent.append(many(log, COUNT, turn))
        clock.now += 60
        flush(log)
    appended(log, batch(1))
    if end == "close":
        log.close()
    elif end == "kill":
        crash(log)
    else:
        with monkeypatch.context() as patch:
            patch.setattr(Checkpoint, "write", lambda *_: None)
            log.close()
    log = open_log(tmp_path, clock, segment_bytes=segment_bytes)
    assert len(log.active_producers()) == COUNT
    for turn in range(2, 7):
        again = many(log, COUNT, turn)
        assert [each.base_offset for each in again] == [each.base_offset for each in sent[turn]]
    assert all(isinstance(each, OutOfOrderSequence) for each in append(log, batch(1, producer=3, sequence=1)))
    many(log, COUNT, 7)
    log.close()


@pytest.mark.parametrize("spoil", ["missing", "damaged"])
def test_a_spoilt_file_of_producers_is_made_good_from_the_log(
    tmp_path: Path, spoil: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log(tmp_path, segment_bytes=20_000)
    sent = [many(log, COUNT, turn) for turn in range(3)]
    log.close()
    path = tmp_path / FILE_NAME
    path.write_bytes(path.read_bytes()[:-9]) if spoil == "damaged" else path.unlink()
    log = open_log(tmp_path, segment_bytes=20_000)
    assert "reading every header" in caplog.text
    assert [each.base_offset for each in many(log, COUNT, 2)] == [each.base_offset for each in sent[2]]
    log.close()


def test_a_file_that_tells_of_what_a_cut_took_is_not_believed(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path, clock)
    many(log, COUNT, 0)
    clock.now += 60
    flush(log)
    checkpoint = (tmp_path / "checkpoint").read_bytes()
    cut = log.end
    many(log, COUNT, 1)
    log.close()  # writes the file
    (tmp_path / "checkpoint").write_bytes(checkpoint)
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:cut])
    for _ in range(2):
        log = open_log(tmp_path, clock)
        assert all(each.duplicate for each in many(log, COUNT, 0))
        crash(log)
    log = open_log(tmp_path, clock)
    assert not any(each.duplicate for each in many(log, COUNT, 1))
    flush(log)
    crash(log)
    log = open_log(tmp_path, clock)
    assert all(each.duplicate for each in many(log, COUNT, 1))
    log.close()


def test_a_checkpoint_is_not_made_of_the_producers_in_the_middle_of_a_commit(tmp_path: Path) -> None:
    limit = ProducerLimit()
    log = PartitionLog(tmp_path, LogConfig(), Clock(), producer_limit=limit)
    appended(log, batch(1, producer=5, sequence=0))
    log.flush()
    states = log._producers._states
    thread = threading.Thread(target=checkpoint, args=(log,))
    with limit.lock:  # as `commit` does it
        state = states.pop(5)
        thread.start()
        thread.join(0.1)
        states[5] = state
    thread.join()
    log = open_log(crash(log))
    assert [producer for producer, _ in log.active_producers()] == [5]
    log.close()


def test_a_flush_in_the_middle_of_an_append_does_not_forget_its_producers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    commit = ProducerStates.commit

    def flushed_before(states: ProducerStates, staged: StagedProducers) -> None:
        log.flush()
        checkpoint(log)
        commit(states, staged)

    with monkeypatch.context() as patched:
        patched.setattr(ProducerStates, "commit", flushed_before)
        (sent,) = appended(log, batch(1, producer=5, sequence=0))
    log = open_log(crash(log))
    assert appended(log, batch(1, producer=5, sequence=0))[0].base_offset == sent.base_offset
    log.close()


@pytest.mark.parametrize("end", ["close", "kill"])
def test_producers_of_a_log_that_was_cut_while_it_was_open_are_known_after_a_restart(
    tmp_path: Path, end: str
) -> None:
    clock = Clock()
    log = PartitionLog(tmp_path, LogConfig(), clock, is_replica=True)
    log.lead(1)
    many(log, COUNT, 0)
    log.publish(log.flush())
    committed = log.end
    many(log, COUNT, 1)
    log.flush()
    checkpoint(log)  # and the file of producers, which tells of the cut ones
    log.cut(committed)
    log.lead(2)
    sent = appended(log, batch(1, producer=5, sequence=1))
    appended(log, *(batch(1) for _ in range(COUNT)))  # more than was cut
    log.publish(log.flush())
    checkpoint(log)
    log.close() if end == "close" else crash(log)
    log = PartitionLog(tmp_path, LogConfig(), clock, is_replica=True)
    log.lead(3)
    assert [one.base_offset for one in appended(log, batch(1, producer=5, sequence=1))] == [
        sent[0].base_offset
    ]
    assert not any(one.duplicate for one in appended(log, batch(1, producer=6, sequence=1)))
    log.close()


def test_few_producers_stand_in_the_checkpoint_again_once_the_others_are_forgotten(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path, clock)
    many(log, COUNT, 0)
    clock.now += 60
    flush(log)
    assert isinstance(checkpointed_producers(tmp_path), int)
    clock.now += EXPIRY_S
    appended(log, batch(1, producer=7, sequence=1))
    clock.now += 60
    log.apply_retention()
    flush(log)
    clock.now += 60
    log.apply_retention()
    producers = checkpointed_producers(tmp_path)
    assert isinstance(producers, list)
    assert [state[0] for state in producers] == [7]
    log.close()


def test_a_log_that_cannot_be_opened_counts_no_producers_however_often_it_is_tried(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    many(log, 3)
    crash(log)

    def refuse(_: int) -> None:
        raise OSError(errno.EIO, "the disk refuses")

    limit = ProducerLimit()
    for _ in range(2):
        with pytest.raises(MillraceError):
            PartitionLog(tmp_path / "t-0", LogConfig(), Clock(), refuse, limit)
        assert len(limit.copied) == 0
    log = PartitionLog(tmp_path / "t-0", LogConfig(), Clock(), producer_limit=limit)
    assert len(limit.copied) == 3
    log.close()


def test_a_full_set_of_producers_takes_the_memory_that_the_documents_say(tmp_path: Path) -> None:
    limit = ProducerLimit()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        states = ProducerStates(tmp_path, Clock(), limit)
        for number in range(2000):
            for sequence in range(5):
                end = 10**10 + 1000 * number + sequence
                sent = BatchHeader(0, 100, -1, 2, 0, 0, 0, 0, 0, 10**15 + number, 0, sequence, 1)
                staged: StagedProducers = {}
                states.admit(sent, PRINCIPAL, staged)
                states.stage(sent, end - 70, end, staged, PRINCIPAL)
                states.commit(staged)
        assert (tracemalloc.get_traced_memory()[0] - before) / 2000 < 1600
    finally:
        tracemalloc.stop()
