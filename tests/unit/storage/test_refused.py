"""Refused batches that are noted before the log of their partition is open, and passed to it."""

from __future__ import annotations

import threading
from pathlib import Path
from uuid import UUID

import pytest

from millrace.config import LogConfig
from millrace.errors import ErrorCode, LeaderNotAvailable
from millrace.records import BatchHeader
from millrace_broker.storage.partition_log import PartitionLog
from millrace_broker.storage.producer_state import ProducerLimit
from millrace_broker.storage.refused import REFUSED_S, UnservedBatches
from tests.support import WAIT_S
from tests.unit.storage.logs import PRINCIPAL, Clock, batch

PLACE = ("t", 0, UUID(int=7))
WHY = LeaderNotAvailable("t-0 is being opened")
REFUSED, OUT_OF_ORDER = int(ErrorCode.LEADER_NOT_AVAILABLE), int(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def unserved(clock: Clock) -> UnservedBatches:
    return UnservedBatches(clock, 40)


def opened(path: Path, clock: Clock, limit: ProducerLimit | None = None) -> PartitionLog:
    return PartitionLog(path, LogConfig(), clock, producer_limit=limit)


def refuse(
    unserved: UnservedBatches, sequence: int, *, producer: int = 9, epoch: int = 0, number: int = 0
) -> None:
    header = BatchHeader.of(batch(1, producer=producer, sequence=sequence, epoch=epoch))
    unserved.note(("t", number, PLACE[2]), header, PRINCIPAL, WHY)


def pass_on(unserved: UnservedBatches, log: PartitionLog) -> None:
    for refused in unserved.of(*PLACE):
        log.take_refused(refused)


def codes(log: PartitionLog, *sequences: int, producer: int = 9, epoch: int = 0) -> list[int]:
    """0 or the error's code for a batch of one message with each sequence, appended together."""
    batches = [batch(1, producer=producer, epoch=epoch, sequence=sequence) for sequence in sequences]
    outcomes = log.append(batches, [PRINCIPAL] * len(batches))
    return [0 if isinstance(outcome, int) else int(outcome.code) for outcome in outcomes]


def test_the_first_of_several_refused_batches_is_awaited_and_then_kept_nowhere(
    tmp_path: Path, clock: Clock, unserved: UnservedBatches
) -> None:
    limit = ProducerLimit(1000)
    refuse(unserved, 3)
    refuse(unserved, 4)
    log = opened(tmp_path, clock, limit)
    pass_on(unserved, log)
    assert not unserved._refused
    assert codes(log, 5, 4) == [REFUSED, REFUSED]
    assert codes(log, 3, 4, 5) == [0, 0, 0]
    assert len(limit.refused) == 0
    log.close()


def test_a_batch_is_awaited_for_its_time_from_its_refusal_on(
    tmp_path: Path, clock: Clock, unserved: UnservedBatches
) -> None:
    refuse(unserved, 0)
    refuse(unserved, 0, producer=10)
    clock.now += REFUSED_S
    log = opened(tmp_path, clock)
    refuse(unserved, 5, producer=10)
    pass_on(unserved, log)
    assert codes(log, 1) == [REFUSED]
    clock.now += 1
    assert codes(log, 1) == [0]
    assert codes(log, 5, producer=10) == [REFUSED], "0 was refused again, behind which 5 was"
    refuse(unserved, 0, producer=11)
    clock.now += REFUSED_S + 1
    refuse(unserved, 5, producer=11)
    pass_on(unserved, log)
    assert codes(log, 5, producer=11) == [0], "0 is no longer awaited"
    log.close()


def test_a_batch_that_the_log_has_is_not_awaited_and_one_of_a_newer_epoch_is(
    tmp_path: Path, clock: Clock, unserved: UnservedBatches
) -> None:
    """Another leader stored the refused batch, and this log was copied from there."""
    log = opened(tmp_path, clock)
    codes(log, 0, 1, 2)
    refuse(unserved, 1)
    pass_on(unserved, log)
    assert codes(log, 9) == [OUT_OF_ORDER]
    refuse(unserved, 0, epoch=1)
    pass_on(unserved, log)
    assert codes(log, 1, epoch=1) == [REFUSED]
    assert codes(log, 0, 1, epoch=1) == [0, 0]
    log.close()


def test_clients_that_send_to_topics_of_any_name_take_bounded_memory(
    tmp_path: Path, clock: Clock, unserved: UnservedBatches
) -> None:
    for number in range(1000):
        refuse(unserved, 0, producer=number, number=number)
        refuse(unserved, 0, producer=number)
    assert len(unserved._places) == 20, "one principal takes half of the places"
    assert len(unserved._refused) == 11
    log = opened(tmp_path, clock)
    pass_on(unserved, log)
    assert (len(unserved._places), len(unserved._refused)) == (10, 10)
    log.close()


def test_a_refused_batch_is_noted_while_a_thread_cuts_the_log(tmp_path: Path, clock: Clock) -> None:
    """The loop serves all other partitions meanwhile."""
    log = opened(tmp_path, clock)
    noting = threading.Thread(
        target=log.note_refused, args=([batch(1, producer=9, sequence=0)], [PRINCIPAL], WHY), daemon=True
    )
    with log._lock:
        noting.start()
        noting.join(WAIT_S)
        assert not noting.is_alive()
    assert codes(log, 1) == [REFUSED]
    log.close()
