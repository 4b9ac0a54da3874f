"""Fetches that wait take a bounded part of the broker, and nothing once their client has gone."""

from __future__ import annotations

import pytest

from millrace.broker import fetch as fetch_module
from millrace.broker.fetch import Reads
from millrace.wire.fetch import FetchRequest
from tests.unit.broker.running import NEVER_MS, Running, Start, topic


def wants(partitions: int) -> FetchRequest:
    return FetchRequest(NEVER_MS, 1, 1 << 20, [("t", [(0, 0, 1, -1)] * partitions)])


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
    running = start()
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


def test_a_fetch_that_waits_for_more_looks_again_when_there_may_be_enough(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    read = fetch_module.Fetch._read

    def counting(fetch: fetch_module.Fetch) -> object:
        looks.append(1)
        return read(fetch)

    monkeypatch.setattr(fetch_module.Fetch, "_read", counting)
    running = start(topic("t", *[1] * 50))
    answers = running.fetch(*[("t", number, 0) for number in range(50)], min_bytes=1000)
    for number in range(50):
        running.produce("x" * 20, partition=number)
        running.turn()
        running.broker.partition("t", number).finalize()
        running.turn()
        if answers:
            break
    (found,) = answers
    sizes = [read.records.length for _, reads in found for read in reads if read.records is not None]
    assert 1000 <= sum(sizes) < 1000 + sizes[0]
    assert len(looks) == 2, "when it came and when there was enough"
