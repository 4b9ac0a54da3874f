"""Replicas moved and leaders elected through the protocol, as Kafka's own tools ask for it."""

from __future__ import annotations

import dataclasses
import logging
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.config import LogConfig
from millrace.errors import ErrorCode
from millrace.wire.codec import decode, encode
from millrace.wire.messages import ApiKey
from millrace.wire.unclean_election import ElectUncleanRequest, ElectUncleanResponse
from millrace.zookeeper.topic_state import NO_LEADER, REPLICATING, BrokerAddress, PartitionState, TopicState
from tests.unit.broker.asking import ChangingCluster, ask
from tests.unit.broker.running import Running

LED = PartitionState(2, (2, 3), {2: "b", 3: "c"}, 7)


class Moving(Running):
    """A broker without replicas of its own, in a cluster of four that copy."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, ChangingCluster(), LogConfig())
        self.cluster.brokers = {
            number: BrokerAddress("h", number, {}, "", directory, REPLICATING)
            for number, directory in {4: "d", 2: "b", 3: "c", 5: "e"}.items()
        }
        self.set(LED, LED)

    def set(self, *states: PartitionState, **settings: str) -> None:
        named = {key.replace("_", "."): value for key, value in settings.items()}
        several = TopicState("several", uuid.uuid4(), named, dict(enumerate(states)))
        self.cluster.topics = {"several": several}

    def state(self, number: int = 0) -> PartitionState:
        return self.cluster.topics["several"].partitions[number]

    def reassign(
        self, replicas: tuple[int, ...] | None, *numbers: int, topic: str = "several", **asked: Any
    ) -> list[ErrorCode]:
        partitions = [{"partition_index": number, "replicas": replicas} for number in numbers or (0,)]
        request = {"topics": [{"name": topic, "partitions": partitions}], "timeout": 1000, **asked}
        request.setdefault("allow_replication_factor_change", True)
        answer = ask(self, ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, request)
        assert answer.error_code == 0
        return [ErrorCode(p.error_code) for found in answer.responses for p in found.partitions]

    def moving(self) -> dict[int, tuple[tuple[int, ...], ...]]:
        answer = ask(self, ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, {"topics": None, "timeout": 1000})
        return {
            p.partition_index: (p.replicas, p.adding_replicas, p.removing_replicas)
            for topic in answer.topics
            for p in topic.partitions
        }

    def elect(self, *numbers: int, election_type: int = 0) -> dict[int, ErrorCode]:
        named = [{"topic": "several", "partitions": numbers}] if numbers else None
        asked = {"topic_partitions": named, "election_type": election_type, "timeout": 1000}
        answer = ask(self, ApiKey.ELECT_LEADERS, 2, asked)
        assert answer.error_code == 0
        results = [p for t in answer.replica_election_results for p in t.partition_result]
        return {p.partition_id: ErrorCode(p.error_code) for p in results}

    def elect_unclean(self, replica: int, reason: str = "disks burnt", topic: str = "several") -> ErrorCode:
        request = ElectUncleanRequest(topic=topic, partition=0, replica=replica, reason=reason)
        answer = ask(self, ApiKey.ELECT_UNCLEAN, 0, encode(request, ApiKey.ELECT_UNCLEAN, 0))
        return ErrorCode(decode(ElectUncleanResponse, ApiKey.ELECT_UNCLEAN, 0, answer).error_code)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Moving]:
    made = Moving(tmp_path)
    yield made
    made.stop()


def test_replicas_move_and_what_moves_is_listed_until_it_is_cancelled(running: Moving) -> None:
    assert running.moving() == {}
    assert running.reassign((4, 3)) == [ErrorCode.NONE]
    assert running.state() == dataclasses.replace(LED, replicas=(4, 3, 2), adding=(4,), removing=(2,))
    assert running.moving() == {0: ((4, 3, 2), (4,), (2,))}
    assert running.reassign(None, 0, 1) == [ErrorCode.NONE, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS]
    assert running.moving() == {0: ((3, 2, 4), (), (4,))}
    assert running.state(1) == LED


@pytest.mark.parametrize("replicas", [(), (4, 4), (4, 9), (4,)])
def test_replicas_that_cannot_be_are_refused(running: Moving, replicas: tuple[int, ...]) -> None:
    running.set(LED, min_insync_replicas="2")
    assert running.reassign(replicas) == [ErrorCode.INVALID_REPLICA_ASSIGNMENT]
    assert running.state() == LED


def test_the_number_of_replicas_changes_only_for_a_client_that_allows_it(running: Moving) -> None:
    refused = running.reassign((4, 2, 3), allow_replication_factor_change=False)
    assert refused == [ErrorCode.INVALID_REPLICATION_FACTOR]
    assert running.reassign((4, 2, 3)) == [ErrorCode.NONE]
    topic = running.cluster.topics["several"]
    assert (topic.minimum(0), topic.fewest_replicas) == (1, 2), "as before until all are there"


def test_nothing_moves_while_a_broker_runs_that_does_not_copy(running: Moving) -> None:
    running.cluster.brokers = {**running.cluster.brokers, 6: BrokerAddress("h", 6)}
    assert running.reassign((4, 2)) == [ErrorCode.INVALID_REPLICATION_FACTOR]
    assert running.reassign((2, 3)) == [ErrorCode.NONE], "it is there already"


def test_the_only_replica_of_a_partition_moves_while_its_broker_lives(running: Moving) -> None:
    running.set(PartitionState(2, (2,), {2: ""}, 0), PartitionState(9, (9,), {9: ""}, 0))
    assert running.reassign((3,), 0, 1) == [ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE]
    assert running.state() == PartitionState(NO_LEADER, (3, 2), {2: "b"}, 0, adding=(3,), removing=(2,)), (
        "its leader leads on as one of several"
    )


def test_what_is_not_there_or_named_twice_is_refused(running: Moving) -> None:
    assert running.reassign((4, 2), 0, 9) == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert running.reassign((4, 2), topic="nope") == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    twice = {"name": "several", "partitions": [{"partition_index": 0, "replicas": (4, 2)}] * 2}
    asked = {"topics": [twice], "timeout": 1000}
    assert (
        ask(running, ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, asked).error_code == ErrorCode.INVALID_REQUEST
    )


def test_a_leader_resigns_for_the_first_replica_where_that_can_lead(running: Moving) -> None:
    other = dataclasses.replace(LED, leader=3)
    behind = dataclasses.replace(LED, leader=3, isr={3: "c"})
    for numbers in (0, 1, 2, 3), ():
        running.set(other, LED, behind)
        codes = running.elect(*numbers)
        named = {1: ErrorCode.ELECTION_NOT_NEEDED, 3: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert codes == {
            0: ErrorCode.NONE,
            2: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            **(named if numbers else {}),
        }
        resigned = dataclasses.replace(LED, leader=NO_LEADER)
        assert [running.state(number) for number in range(3)] == [resigned, LED, behind]


def test_an_unclean_election_takes_a_replica_and_a_reason_and_is_in_the_log(
    running: Moving, caplog: pytest.LogCaptureFixture
) -> None:
    assert running.elect(0, election_type=1) == {0: ErrorCode.INVALID_REQUEST}
    assert running.elect_unclean(3) is ErrorCode.ELECTION_NOT_NEEDED
    lost = dataclasses.replace(LED, isr={2: "burnt"})
    running.set(lost)
    assert running.elect_unclean(4) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert running.elect_unclean(3, reason=" ") is ErrorCode.INVALID_REQUEST
    assert running.elect_unclean(3, topic="nope") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert running.state() == lost
    with caplog.at_level(logging.WARNING, "millrace.replication"):
        assert running.elect_unclean(3) is ErrorCode.NONE
    assert running.state() == dataclasses.replace(lost, leader=NO_LEADER, isr={3: "c"})
    for said in ("has broker 3 lead several-0", "disks burnt", "at 127.0.0.1"):
        assert said in caplog.text
