"""De-duplication of idempotent producers: retries are answered, not stored; gaps are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.errors import InvalidProducerEpoch, InvalidRecord, OutOfOrderSequence
from millrace.storage import producer_state
from millrace.storage.producer_state import EXPIRY_S, MAX_SEQUENCE
from tests.unit.storage.logs import Clock, append, appended, batch, consume, crash, flush, open_log


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
    assert len(log._producers) == 0
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
    flushed = log.flush()
    log.publish(flushed)
    end = log.end
    appended(log, batch(2, producer=9, sequence=2))
    log._write_checkpoint(flushed, log._files)
    crash(log)
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:end])
    log = open_log(tmp_path, clock)
    retried = appended(log, batch(2, producer=9, sequence=2))[0]
    assert (retried.base_offset, retried.duplicate) == (end, False)
    log.close()


def test_the_longest_silent_producers_are_forgotten_beyond_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_state, "MAX_PRODUCERS", 3)
    log = open_log(tmp_path)
    first = appended(log, batch(1, producer=0, sequence=0))[0]
    for producer in (1, 2):
        appended(log, batch(1, producer=producer, sequence=0))
    appended(log, batch(1, producer=0, sequence=1))
    for producer in (3, 4):
        appended(log, batch(1, producer=producer, sequence=0))
    assert len(log._producers) == 3
    again = appended(log, batch(1, producer=0, sequence=0))[0]
    assert (again.base_offset, again.duplicate) == (first.base_offset, True), "0 sent again since"
    crash(log)
    log = open_log(tmp_path)
    assert len(log._producers) == 3
    assert appended(log, batch(1, producer=0, sequence=1))[0].duplicate
    assert not appended(log, batch(1, producer=1, sequence=9))[0].duplicate
    log.close()
