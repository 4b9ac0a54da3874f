"""Fetches that wait take a bounded part of the broker, and nothing once their client has gone."""

from __future__ import annotations

import pytest

from millrace.wire.fetch import FetchRequest
from millrace_broker.partitions import fetch as fetch_module
from millrace_broker.partitions.fetch import Reads
from tests.unit.broker.running import NEVER_MS, Running, Start, topic


def wants(partitions: int) -> FetchRequest:
    return FetchRequest(
        NEVER_MS, 1, 1 << 20, [("t", [(number, 0, 1, -1, -1) for number in range(partitions)])]
    )


def waiting(running: Running) -> int:
    return len(running.broker.partition("t", 0).parked)


def test_a_fetch_whose_client_has_gone_waits_for_nothing(start: Start) -> None:
    running = start()
    answers: list[Reads] = []
    fetch = running.broker.fetch(wants(1), answers.append, pytest.fail)
    assert (waiting(running), running.broker.parked_partitions) == (1, 1)
    fetch.abandon()
    assert (waiting(running), running.broker.parked_partitions) == (0, 0)
    assert running.mailbox.seconds_to_next() is not None  # retention's, not the fetch's
    running.produce()
    running.turn()
    running.broker.finalize()
    assert answers == []


def test_fetches_of_many_partitions_do_not_wait_when_too_many_are_waited_for(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_module, "MAX_PARKED_PARTITIONS", 100)
    running = start(topic("t", *[1] * 40))
    answers: list[Reads] = []
    for _ in range(3):
        running.broker.fetch(wants(40), answers.append, pytest.fail)
    assert (len(answers), waiting(running)) == (1, 2)
    for _ in range(10):
        running.broker.fetch(wants(16), answers.append, pytest.fail)  # a consumer's usual few still wait
    assert (len(answers), waiting(running)) == (1, 12)
    running.produce()
    running.turn()
    running.broker.partition("t", 0).finalize()
    running.turn()
    assert (len(answers), running.broker.parked_partitions) == (13, 0)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One for each time that a fetch has read all its partitions."""
    looks: list[int] = []
    read = fetch_module.Fetch._read

    def counting(fetch: fetch_module.Fetch) -> object:
        looks.append(1)
        return read(fetch)

    monkeypatch.setattr(fetch_module.Fetch, "_read", counting)
    return looks


def show(running: Running, partition: int) -> None:
    """One more message of 20 bytes, flushed and published."""
    running.produce("x" * 20, partition=partition)
    running.turn()
    running.broker.partition("t", partition).finalize()
    running.turn()


def lengths(found: Reads) -> list[int]:
    return [read.records.length for _, reads in found for read in reads if read.records is not None]


def test_a_fetch_that_waits_for_more_looks_again_when_there_may_be_enough(
    start: Start, looks: list[int]
) -> None:
    running = start(topic("t", *[1] * 50))
    answers = running.fetch(*[("t", number, 0) for number in range(50)], min_bytes=1000)
    for number in range(50):
        show(running, number)
        if answers:
            break
    (found,) = answers
    sizes = lengths(found)
    assert 1000 <= sum(sizes) < 1000 + sizes[0]
    assert len(looks) == 2, "when it came and when there was enough"


def test_a_fetch_that_takes_no_more_of_a_partition_does_not_look_again_when_it_grows(
    start: Start, looks: list[int]
) -> None:
    running = start(topic("t", 1, 1))
    show(running, 0)
    answers: list[Reads] = []
    wanted = [(0, 0, 1, -1, -1), (1, 0, 1 << 20, -1, -1)]
    running.broker.fetch(FetchRequest(NEVER_MS, 150, 1 << 20, [("t", wanted)]), answers.append, pytest.fail)
    for _ in range(20):
        show(running, 0)
    assert (answers, len(looks)) == ([], 1)
    show(running, 1)
    assert (len(answers), len(looks)) == (1, 2)
    assert len(lengths(answers[0])) == 2


def test_a_fetch_reads_a_partition_once_however_often_it_is_named(start: Start) -> None:
    running = start()
    show(running, 0)
    answers: list[Reads] = []
    wanted = [(0, 0, 1 << 20, -1, -1)] * 3
    running.broker.fetch(FetchRequest(NEVER_MS, 1, 1 << 20, [("t", wanted)]), answers.append, pytest.fail)
    ((_, reads),) = answers[0]
    assert [read.error for read in reads] == [0, 0, 0]
    assert [read.records is not None for read in reads] == [True, False, False]


@pytest.mark.parametrize("topics", [[], [("none", [])] * 3, [("t", [(0, 0, 1, -1, -1)]), ("none", [])]])
def test_a_fetch_that_names_no_partition_of_a_topic_is_answered_at_once(
    start: Start, topics: list[tuple[str, list[tuple[int, int, int, int, int]]]]
) -> None:
    running = start()
    answers: list[Reads] = []
    running.broker.fetch(FetchRequest(NEVER_MS, 1, 1 << 20, topics), answers.append, pytest.fail)
    (found,) = answers
    assert [name for name, _ in found] == [name for name, _ in topics]
    assert (waiting(running), running.broker.parked_partitions) == (0, 0)


def test_a_partition_that_a_fetch_names_often_is_counted_as_often(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_module, "MAX_PARKED_PARTITIONS", 100)
    running = start()
    answers: list[Reads] = []
    wanted = FetchRequest(NEVER_MS, 1, 1 << 20, [("t", [(0, 0, 1, -1, -1)] * 60)])
    for _ in range(2):
        running.broker.fetch(wanted, answers.append, pytest.fail)
    assert (len(answers), running.broker.parked_partitions) == (1, 60)
