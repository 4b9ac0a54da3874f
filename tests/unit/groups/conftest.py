"""Fixtures of the group tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millrace.zookeeper.topic_state import BrokerAddress
from tests.unit.groups.coordinating import Broker, Cluster, topic_state
from tests.unit.groups.driving import Driven, new_group
from tests.unit.groups.registry import MemoryRegistry


@pytest.fixture(autouse=True)
def _nothing_fails_on_the_loop(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """The loop goes on when something on it fails, so only its log tells."""
    yield
    assert [record for record in caplog.get_records("call") if record.levelname == "ERROR"] == []


@pytest.fixture
def driven() -> Iterator[Driven]:
    """A group without members, with a clock of its own."""
    yield from new_group()


@pytest.fixture
def registry() -> MemoryRegistry:
    return MemoryRegistry()


@pytest.fixture
def cluster() -> Cluster:
    brokers = {number: BrokerAddress("127.0.0.1", number) for number in (1, 2)}
    return Cluster(brokers, {"t": topic_state("t")})


@pytest.fixture
def brokers(cluster: Cluster, registry: MemoryRegistry) -> Iterator[dict[int, Broker]]:
    made = {number: Broker(number, cluster, registry) for number in (1, 2)}
    yield made
    registry.may_go_on.set()
    for broker in made.values():
        broker.groups.close()
        broker.mailbox.close()


@pytest.fixture
def one(brokers: dict[int, Broker]) -> Broker:
    return brokers[1]


@pytest.fixture
def two(brokers: dict[int, Broker]) -> Broker:
    return brokers[2]
