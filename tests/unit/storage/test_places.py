"""Places for producer ids: shared out by principal, and kept by every id that may still retry."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from millrace.config import LogConfig
from millrace.errors import BrokerError, TooManyProducers
from millrace_broker.storage.partition_log import PartitionLog
from millrace_broker.storage.producer_state import EXPIRY_S, RETRIED_S, ProducerLimit
from tests.unit.storage.logs import Appended, Clock, append, appended, batch, crash, flush
from tests.unit.storage.test_write_errors import no_file_larger_than

A, B, C = "User:a", "User:b", "User:c"
IN_ALL = 100
HERE = IN_ALL // 10
"""Places of a partition. One principal takes at most half of them."""
SEEDS = int(os.environ.get("MILLRACE_ROUNDS", "1")) * 40


@pytest.fixture
def clock() -> Clock:
    return Clock()


def opened(directory: Path, clock: Clock, limit: ProducerLimit | None = None) -> PartitionLog:
    return PartitionLog(directory, LogConfig(), clock, producer_limit=limit or ProducerLimit(IN_ALL))


def send(log: PartitionLog, principal: str, producer: int, sequence: int = 0) -> Appended | BrokerError:
    return append(log, batch(1, producer=producer, sequence=sequence), principal=principal)[0]


def takes(log: PartitionLog, principal: str, *producers: int) -> list[bool]:
    """For each new producer whether it was taken; else it was refused for want of a place."""
    outcomes = [send(log, principal, producer) for producer in producers]
    assert all(isinstance(each, (Appended, TooManyProducers)) for each in outcomes)
    return [isinstance(each, Appended) for each in outcomes]


def is_known(log: PartitionLog, principal: str, producer: int, sequence: int = 0) -> bool:
    """True if a retry is answered instead of stored."""
    outcome = send(log, principal, producer, sequence)
    assert isinstance(outcome, Appended)
    return outcome.duplicate


def test_a_principal_takes_at_most_half_of_a_partitions_places_and_others_find_the_rest(
    tmp_path: Path, clock: Clock
) -> None:
    log = opened(tmp_path, clock)
    assert takes(log, A, *range(7)) == [True] * 5 + [False] * 2
    assert takes(log, B, *range(10, 16)) == [True] * 5 + [False]
    assert takes(log, C, 20) == [False], "all places are taken by ids that may still retry"
    assert all(is_known(log, A, producer) for producer in range(5))
    log.close()


def test_a_refused_id_stores_nothing_and_its_later_batches_wait_for_the_first(
    tmp_path: Path, clock: Clock
) -> None:
    log = opened(tmp_path, clock)
    takes(log, A, *range(5))
    end = log.end
    assert isinstance(send(log, A, 7, 0), TooManyProducers)
    assert isinstance(send(log, A, 7, 1), TooManyProducers)
    assert log.end == end
    clock.now += RETRIED_S + 1
    assert isinstance(send(log, A, 7, 1), TooManyProducers), "a place is there, but 0 must come first"
    assert isinstance(send(log, A, 7, 0), Appended)
    assert isinstance(send(log, A, 7, 1), Appended)
    log.close()


def test_a_principal_with_half_of_the_places_gives_up_its_own_longest_silent_id(
    tmp_path: Path, clock: Clock
) -> None:
    log = opened(tmp_path, clock)
    takes(log, B, 10)
    takes(log, A, *range(5))
    clock.now += RETRIED_S
    assert takes(log, A, 5) == [False], "0 may still be retried"
    send(log, A, 0, 1)
    clock.now += 1
    assert takes(log, A, 6) == [True]
    assert is_known(log, B, 10), "that of another principal stays, though it was silent for longer"
    assert is_known(log, A, 0, 1)
    clock.now += 1
    assert not is_known(log, A, 1), "1 was the longest silent"
    log.close()


def test_when_all_places_are_taken_the_longest_silent_id_of_all_goes(tmp_path: Path, clock: Clock) -> None:
    log = opened(tmp_path, clock)
    takes(log, A, *range(5))
    clock.now += 1
    takes(log, B, *range(10, 15))
    clock.now += RETRIED_S
    assert takes(log, C, 20, 21) == [True, True]
    assert [is_known(log, A, producer) for producer in (2, 3, 4)] == [True] * 3
    assert all(is_known(log, B, producer) for producer in range(10, 15))
    log.close()


def test_an_id_that_sends_in_the_same_append_as_a_new_one_keeps_its_place(
    tmp_path: Path, clock: Clock
) -> None:
    log = opened(tmp_path, clock)
    takes(log, A, *range(5))
    for turn in range(1, 4):
        clock.now += RETRIED_S + 1
        sent = [batch(1, producer=producer, sequence=turn) for producer in range(5)]
        new = [batch(1, producer=100 * turn + number, sequence=0) for number in range(5)]
        results = append(log, *sent, *new, principal=A)
        assert [type(each) for each in results] == [Appended] * 5 + [TooManyProducers] * 5
    assert len(log.active_producers()) == 5
    log.close()


def test_what_could_not_be_written_takes_no_place(tmp_path: Path, clock: Clock) -> None:
    log = opened(tmp_path, clock)
    appended(log, batch(1))
    with no_file_larger_than(log.end):
        for producer in range(20):
            assert not isinstance(send(log, A, producer), (Appended, TooManyProducers))
    assert takes(log, A, *range(20, 25)) == [True] * 5
    with no_file_larger_than(log.end):
        assert not isinstance(send(log, B, 20, 1), Appended), "an id that another principal used"
    assert takes(log, B, *range(30, 35)) == [True] * 5
    log.close()


def test_one_principal_takes_at_most_half_of_a_brokers_places(tmp_path: Path, clock: Clock) -> None:
    limit = ProducerLimit(IN_ALL)
    logs = [opened(tmp_path / f"t-{number}", clock, limit) for number in range(21)]
    takes(logs[20], B, 1)
    for log in logs[:10]:
        assert takes(log, A, *range(10, 15)) == [True] * 5
    assert takes(logs[10], A, 1) == [False]
    assert takes(logs[10], B, 2) == [True]
    clock.now += RETRIED_S + 1
    assert takes(logs[10], A, 1) == [True]
    assert len(logs[0].active_producers()) == 4, "the longest silent of the principal was there"
    assert is_known(logs[20], B, 1)
    for log in logs:
        log.close()
    assert len(limit.places) == 0


def test_ids_that_came_with_the_log_keep_their_places_while_they_may_retry(
    tmp_path: Path, clock: Clock
) -> None:
    log = opened(tmp_path, clock)
    takes(log, B, 10)
    takes(log, A, *range(5))
    crash(log)
    log = opened(tmp_path, clock)
    assert takes(log, A, *range(100, 105)) == [True] * 4 + [False]
    assert takes(log, C, 20) == [False]
    assert is_known(log, B, 10)
    assert all(is_known(log, A, producer) for producer in range(5))
    clock.now += RETRIED_S + 1
    assert takes(log, C, 20) == [True]
    log.close()


def test_copied_ids_take_no_places_of_a_brokers_clients(tmp_path: Path, clock: Clock) -> None:
    limit = ProducerLimit(IN_ALL)
    for number in range(12):
        log = opened(tmp_path / f"copied-{number}", clock)
        takes(log, A, *range(5))
        takes(log, B, *range(10, 15))
        crash(log)
    copies = [opened(tmp_path / f"copied-{number}", clock, limit) for number in range(12)]
    assert len(limit.copied) == IN_ALL, "the longest silent are forgotten"
    log = opened(tmp_path / "led", clock, limit)
    assert takes(log, A, 1) == [True]
    for each in (log, *copies):
        each.close()
    assert (len(limit.places), len(limit.copied)) == (0, 0)


def test_a_log_that_is_read_again_keeps_the_newest_ids(tmp_path: Path, clock: Clock) -> None:
    log = opened(tmp_path, clock)
    for turn in range(4):
        takes(log, A, *range(10 * turn, 10 * turn + 5))
        clock.now += RETRIED_S + 1
    takes(log, B, 1000)
    crash(log)
    log = opened(tmp_path, clock, ProducerLimit(60))
    assert len(log.active_producers()) == 6
    assert is_known(log, B, 1000)
    assert all(is_known(log, A, producer) for producer in range(30, 35))
    log.close()


def test_refused_batches_are_noted_by_principal_in_bounded_memory(tmp_path: Path, clock: Clock) -> None:
    limit = ProducerLimit(IN_ALL)
    log = opened(tmp_path, clock, limit)
    takes(log, A, *range(5))
    takes(log, B, *range(10, 15))
    assert takes(log, B, 1000) == [False]
    for producer in range(2000, 2100):
        takes(log, A, producer)
    assert len(limit.refused) == IN_ALL // 8 + 1
    clock.now += RETRIED_S + 1
    assert isinstance(send(log, B, 1000, 1), TooManyProducers), "its first batch is still awaited"
    assert isinstance(send(log, B, 1000, 0), Appended)
    log.close()
    assert len(limit.refused) == 0


def test_a_clock_that_is_set_back_keeps_no_id_for_as_long(tmp_path: Path, clock: Clock) -> None:
    log = opened(tmp_path, clock)
    takes(log, A, *range(5))
    clock.now -= EXPIRY_S
    assert takes(log, A, 5) == [True]
    log.close()


def test_places_are_freed_with_the_producers_that_are_forgotten(tmp_path: Path, clock: Clock) -> None:
    limit = ProducerLimit(IN_ALL)
    one, two = (opened(tmp_path / f"t-{number}", clock, limit) for number in range(2))
    takes(one, A, 1, 2)
    takes(two, A, 1, 2)
    two.delete()
    assert len(limit.places) == 2
    clock.now += EXPIRY_S + 1
    one.apply_retention()
    assert len(limit.places) == 0
    one.close()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_id_is_forgotten_while_it_may_retry_whatever_others_send(tmp_path: Path, seed: int) -> None:
    """Random appends to two partitions, with restarts, beside a model of what was stored when."""
    rng, clock, limit = random.Random(seed), Clock(), ProducerLimit(IN_ALL)
    paths = [tmp_path / "t-0", tmp_path / "t-1"]
    logs = [opened(path, clock, limit) for path in paths]
    stored: dict[tuple[int, int], tuple[str, int, float, int]] = {}
    new = 0
    for _ in range(400):
        clock.now += rng.choice([0, 0, 1, 5, 30])
        where = rng.randrange(2)
        log, kind = logs[where], rng.random()
        young = [
            (producer, *known)
            for (at, producer), known in stored.items()
            if at == where and clock.now - known[2] <= RETRIED_S
        ]
        if kind < 0.5 or not young:
            principal = rng.choice([A, A, A, B, C])
            for _ in range(rng.randint(1, 4)):
                new += 1
                if isinstance(outcome := send(log, principal, new), Appended):
                    stored[where, new] = (principal, 0, clock.now, outcome.base_offset)
        elif kind < 0.7:
            producer, principal, sequence, _, _ = rng.choice(young)
            outcome = send(log, principal, producer, sequence + 1)
            assert isinstance(outcome, Appended)
            assert not outcome.duplicate
            stored[where, producer] = (principal, sequence + 1, clock.now, outcome.base_offset)
        elif kind < 0.98:
            producer, principal, sequence, _, base = rng.choice(young)
            outcome = send(log, principal, producer, sequence)
            assert isinstance(outcome, Appended)
            assert (outcome.duplicate, outcome.base_offset) == (True, base)
        else:
            flush(log)
            crash(log) if rng.random() < 0.5 else log.close()
            logs[where] = opened(paths[where], clock, limit)
    for log in logs:
        log.close()
    assert (len(limit.places), len(limit.copied), len(limit.refused)) == (0, 0, 0)
