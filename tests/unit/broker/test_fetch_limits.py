"""Fetches that wait take a bounded part of the broker, and nothing once their client has gone."""

from __future__ import annotations

import pytest

from millrace.broker import Found
from millrace.broker import fetch as fetch_module
from millrace.wire.messages import FetchPartition, FetchRequest, FetchTopic
from tests.unit.broker.running import NEVER_MS, Running, Start


def wants(partitions: int) -> FetchRequest:
    asked = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)
    topics = (FetchTopic(topic="t", partitions=(asked,) * partitions),)
    return FetchRequest(max_wait=NEVER_MS, min_bytes=1, max_bytes=1 << 20, topics=topics)


def waiting(running: Running) -> int:
    return len(running.broker.partition("t", 0).parked)


def test_a_fetch_whose_client_has_gone_waits_for_nothing(start: Start) -> None:
    running = start()
    answers: list[Found] = []
    fetch = running.broker.fetch(wants(1), answers.append)
    assert (waiting(running), running.broker.parked_partitions) == (1, 1)
    fetch.abandon()
    assert (waiting(running), running.broker.parked_partitions) == (0, 0)
    assert running.mailbox.seconds_to_next() is not None  # retention's, not the fetch's
    running.produce()
    running.turn()
    running.broker.settle()
    assert answers == []


def test_fetches_of_many_partitions_do_not_wait_when_too_many_are_waited_for(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_module, "MAX_PARKED_PARTITIONS", 100)
    running = start()
    answers: list[Found] = []
    for _ in range(3):
        running.broker.fetch(wants(40), answers.append)
    assert (len(answers), waiting(running)) == (1, 2)
    for _ in range(10):
        running.broker.fetch(wants(16), answers.append)  # a consumer's usual few still wait
    assert (len(answers), waiting(running)) == (1, 12)
    running.produce()
    running.turn()
    running.broker.partition("t", 0).settle()
    running.turn()
    assert (len(answers), running.broker.parked_partitions) == (13, 0)
