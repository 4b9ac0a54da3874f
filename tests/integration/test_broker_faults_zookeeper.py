"""ZooKeeper away for a while: stopped, or killed and started again on its data.

Meanwhile producing and consuming go on, no broker ends, nothing is deleted, and what needs ZooKeeper is
answered with an error in bounded time. Afterwards everything is registered again without anybody's help.
"""

from __future__ import annotations

import os
import signal
import struct
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import confluent_kafka
import pytest

from millrace.errors import ErrorCode
from millrace.wire.codec import decode, encode
from millrace.wire.messages import ApiKey, CreateTopicsRequest, CreateTopicsResponse
from tests.brokers import TestCluster
from tests.integration.faults.ledger import Ledger
from tests.integration.faults.traffic import (
    LZ4,
    PLAIN,
    GroupMember,
    NumberedProducer,
    Reader,
    run,
    run_until_stored,
)
from tests.integration.faults.wire import Wire
from tests.jobs import descendants
from tests.support import Process, wait_until

Start = Callable[..., Process]
AWAY_S = 30.0 if "MILLRACE_ROUNDS" in os.environ else 3.0
"""Longer than the brokers' sessions of 2 s in any case: they expire, and every registration with them."""
ANSWER_S = 25.0
"""The longest that an operation on topics may take to fail: less than what clients wait for it."""
PARTITIONS = 4
RETRIED = frozenset(
    {
        confluent_kafka.KafkaError._TIMED_OUT,
        confluent_kafka.KafkaError._WAIT_COORD,
        confluent_kafka.KafkaError.REQUEST_TIMED_OUT,
        confluent_kafka.KafkaError.COORDINATOR_NOT_AVAILABLE,
        confluent_kafka.KafkaError.NOT_COORDINATOR,
        # The group went to another coordinator meanwhile, and the member joins it anew.
        confluent_kafka.KafkaError.UNKNOWN_MEMBER_ID,
        confluent_kafka.KafkaError.ILLEGAL_GENERATION,
        confluent_kafka.KafkaError.REBALANCE_IN_PROGRESS,
    }
)
"""Errors of a commit after which the application tries again."""


def java_of(process: Process) -> int:
    """The Java below `millrace zookeeper`: the one that serves."""
    return descendants(process.pid)[0]


def create_topic(bootstrap: str, topic: str) -> int:
    """The error of creating a topic, which must be told within ANSWER_S."""
    wanted = CreateTopicsRequest.Topic(name=topic, num_partitions=1, replication_factor=1)
    asked = CreateTopicsRequest(topics=(wanted,), timeout=60_000)
    with Wire(bootstrap, timeout_s=ANSWER_S) as wire:
        raw = wire.ask(ApiKey.CREATE_TOPICS, 4, encode(asked, ApiKey.CREATE_TOPICS, 4))
    (answer,) = decode(CreateTopicsResponse, ApiKey.CREATE_TOPICS, 4, raw).topics
    return answer.error_code


def find_coordinator(bootstrap: str, group: str) -> int:
    """The error of asking who coordinates a group, which must be told within ANSWER_S."""
    with Wire(bootstrap, timeout_s=ANSWER_S) as wire:
        answer = wire.ask(ApiKey.FIND_COORDINATOR, 0, struct.pack(">h", len(group)) + group.encode())
    return int.from_bytes(answer[:2], "big")


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("way", ["stopped", pytest.param("killed", marks=pytest.mark.long)])
def test_clients_go_on_without_zookeeper_and_all_is_registered_when_it_is_back(
    start: Start, tmp_path: Path, way: str
) -> None:
    data = str(tmp_path / "zookeeper")
    zookeeper = start("zookeeper", "--port", "0", "--data-dir", data)
    address = zookeeper.ready()
    cluster = TestCluster(start, "away", tmp_path, address).start_brokers(1, 2)
    with cluster.client() as client:
        client.create_topic("traffic", PARTITIONS, {"segment.bytes": "100000"})
        client.create_topic("before", 2)
        topic_ids = {name: topic.topic_id for name, topic in client.topics().items()}
    ledger = Ledger("traffic")
    producers = [NumberedProducer(cluster.bootstrap, ledger, kind, PARTITIONS) for kind in (PLAIN, LZ4)]
    with (
        Reader(cluster.bootstrap, ledger, PARTITIONS) as reader,
        GroupMember(cluster.bootstrap, "traffic") as member,
        ThreadPoolExecutor(10) as pool,
    ):
        run_until_stored(producers, 50)
        wait_until("the group commits", lambda: member.last_commit)
        java = java_of(zookeeper)
        if way == "stopped":
            os.kill(java, signal.SIGSTOP)
        else:
            zookeeper.kill()
        away_until = time.monotonic() + AWAY_S
        asked = pool.submit(create_topic, cluster.brokers[1].address, "meanwhile")
        # More than the broker has threads for what takes long.
        asked_too = [pool.submit(find_coordinator, cluster.brokers[1].address, f"g{n}") for n in range(9)]
        read = member.read
        while time.monotonic() < away_until:
            run_until_stored(producers, 20)
            run(producers, 0.2)
        assert member.read > read, "a group reads on, although it cannot commit"
        back = time.monotonic()
        if way == "stopped":
            os.kill(java, signal.SIGCONT)
        else:
            port = address.rsplit(":", 1)[1]
            start("zookeeper", "--port", port, "--data-dir", data).ready()

        def whole() -> bool:
            with cluster.client() as client:
                return set(client.topic("traffic").partitions.values()) == {1, 2}

        wait_until("both brokers are registered again", whole)
        # It waits for a ZooKeeper that is away for a moment only.
        expected = ErrorCode.NONE if AWAY_S < 10 else ErrorCode.REQUEST_TIMED_OUT
        assert asked.result() == expected
        assert {future.result() for future in asked_too} <= {
            ErrorCode.NONE,
            ErrorCode.REQUEST_TIMED_OUT,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
        }
        run_until_stored(producers, 50)
        wait_until("the group commits again", lambda: member.last_commit > back)
        assert not member.problems, member.problems[0]
        assert all(error.retriable() or error.code() in RETRIED for error in member.refused), member.refused
        assert member.longest_commit_s < AWAY_S + ANSWER_S, "its client tries again for as long as it takes"
        for producer in producers:
            producer.finish()
        with cluster.client() as client:
            now = {name: topic.topic_id for name, topic in client.topics().items()}
            assert {name: now[name] for name in topic_ids} == topic_ids, "nothing was deleted"
            found = ledger.check(client, range(PARTITIONS), "afterwards")
            for partition in range(PARTITIONS):
                for producer in producers:
                    producer.check(partition, found[partition])
                reader.wait_for(partition, found[partition])
            client.create_topic("afterwards", 2)
    for broker in cluster.brokers.values():
        assert broker.process.running
        assert "Traceback" not in broker.process.output
        assert broker.process.output.count("\n") < 200, "one line per event"
