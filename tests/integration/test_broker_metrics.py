"""Metrics and health of a running broker, over HTTP."""

from __future__ import annotations

import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from millrace.client.cluster_client import ClusterClient
from millrace.config import parse_address
from millrace.records import Message, build_batch
from millrace.service.monitoring import MAX_REQUESTS
from millrace.wire.codec import encode
from millrace.wire.group_messages import FindCoordinatorRequest, LeaveGroupRequest
from millrace.wire.messages import ApiKey
from millrace.zookeeper.session import Session
from millrace_broker.coordination.groups import CommittedOffset, ConsumerRegistry, GroupKind
from tests.bench.replay import produce_request
from tests.brokers import Start, TestCluster, free_port, read_topic
from tests.support import wait_until


@dataclass(frozen=True)
class Running:
    cluster: TestCluster
    port: int

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def produce(self, topic: str, partition: int, batch: bytes) -> None:
        """Send with acks=all, and wait for whatever the answer is."""
        with socket.create_connection(parse_address(self.cluster.bootstrap), timeout=10) as connection:
            connection.sendall(produce_request(topic, {partition: batch}, -1))
            assert connection.recv(4)

    def numbers(self) -> dict[tuple[str, ...], float]:
        """Every sample: (name, label value, ...) without `millrace_broker_`."""
        status, text = self.get("/metrics")
        assert status == 200
        return {
            (sample.name.removeprefix("millrace_broker_"), *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


@pytest.fixture(scope="module")
def running(start_for_module: Start, zookeeper: str, tmp_path_factory: pytest.TempPathFactory) -> Running:
    port = free_port()
    settings = f'metrics_listen = "127.0.0.1:{port}"\n'
    folder: Path = tmp_path_factory.mktemp("metrics")
    cluster = TestCluster(start_for_module, "metrics", folder, zookeeper, settings)
    return Running(cluster.start_brokers(1), port)


@pytest.fixture
def client(running: Running) -> Iterator[ClusterClient]:
    with running.cluster.client() as connected:
        yield connected


def test_a_groups_lag_is_told_in_bytes(running: Running, client: ClusterClient, zookeeper: str) -> None:
    client.create_topic("lagging", 1)
    batch = build_batch([Message(1, None, b"x" * 100)])
    running.produce("lagging", 0, batch)
    running.produce("lagging", 0, batch)
    session = Session.connect(zookeeper)
    try:
        registry = ConsumerRegistry(session, "metrics")
        registry.claim("readers", GroupKind.STREAMS)
        topic_id = client.topic("lagging").topic_id
        registry.commit(
            "readers",
            {
                ("lagging", 0): CommittedOffset(
                    offset=len(batch), time_ms=int(time.time() * 1000), topic_id=topic_id
                )
            },
        )
        key = ("group_lag_bytes", "readers", "0", "lagging")
        lag = wait_until("the lag", lambda: running.numbers().get(key))
        assert lag == 1  # one record behind: the last batch's offset to the high watermark
    finally:
        session.close()


def test_bytes_messages_and_requests_are_counted(running: Running, client: ClusterClient) -> None:
    client.create_topic("counted", 2)
    before = running.numbers()
    batch = build_batch([Message(1, None, b"x" * 1000)] * 3)
    for _ in range(4):
        running.produce("counted", 0, batch)
    assert read_topic(client, "counted")[0].values == [b"x" * 1000] * 12
    running.produce("counted", 7, batch)
    after = running.numbers()
    assert after["topic_bytes_in_total", "counted"] == 4 * len(batch)
    assert after["topic_batches_in_total", "counted"] == 4
    assert after["topic_messages_in_total", "counted"] == 12
    assert after["topic_bytes_out_total", "counted"] >= 4 * len(batch)
    requests = ("requests_total", "produce", "7")
    assert after[requests] - before.get(requests, 0) == 5
    assert after["request_errors_total", "produce", "UNKNOWN_TOPIC_OR_PARTITION"] == 1
    assert after["log_size_bytes", "0", "counted"] == 4 * len(batch)
    assert after["log_segments", "1", "counted"] == 1
    assert after["log_high_watermark", "0", "counted"] == 3 * len(batch) + 3
    assert after["request_seconds_count", "produce"] > 0
    assert after["request_seconds_bucket", "produce", "+Inf"] == after["request_seconds_count", "produce"]
    assert after["flush_seconds_count",] > 0
    assert after["zookeeper_connected",] == 1
    assert after["process_resident_memory_bytes",] > 1 << 20


def test_errors_of_members_that_come_and_go_are_counted(running: Running, client: ClusterClient) -> None:
    nowhere = encode(FindCoordinatorRequest(key=""), ApiKey.FIND_COORDINATOR, 2)
    stranger = encode(LeaveGroupRequest(group_id="g", member_id="stranger"), ApiKey.LEAVE_GROUP, 2)
    client.ask(1, ApiKey.FIND_COORDINATOR, 2, nowhere)
    client.ask(1, ApiKey.LEAVE_GROUP, 2, stranger)
    after = running.numbers()
    assert after["request_errors_total", "find_coordinator", "INVALID_GROUP_ID"] == 1
    assert after["request_errors_total", "leave_group", "UNKNOWN_MEMBER_ID"] == 1


def test_a_healthy_broker_says_so(running: Running) -> None:
    status, text = running.get("/healthz")
    assert (status, json.loads(text)) == (200, {"healthy": True, "problems": []})
    assert running.get("/nothing")[0] == 404


def test_silent_clients_of_the_metrics_port_do_not_take_it_all(running: Running) -> None:
    silent = [socket.create_connection(("127.0.0.1", running.port)) for _ in range(MAX_REQUESTS)]
    wait_until("a scrape is answered", lambda: _answers(running))
    silent[0].settimeout(10)
    assert silent[0].recv(1) == b"", "it was the oldest"
    for each in silent:
        each.close()


def _answers(running: Running) -> bool:
    try:
        return running.get("/healthz")[0] == 200
    except OSError:
        return False


def test_partitions_without_a_leader_or_without_replicas_are_counted(
    start: Start, zookeeper: str, tmp_path: Path
) -> None:
    port = free_port()
    cluster = TestCluster(start, "lacking", tmp_path, zookeeper, f'metrics_listen = "127.0.0.1:{port}"\n')
    cluster.start_brokers(1)
    cluster.settings = ""
    cluster.start_brokers(2)
    told = Running(cluster, port).numbers
    with cluster.client() as client:
        client.create_topic("copied", 2, replicas=2)
        client.create_topic("alone", 2, replicas=1)
    names = ("leaderless",), ("under_replicated",), ("under_min_isr",), ("moving_bytes",)
    wait_until("both lead", lambda: told()["replicas", "leading"] == told()["replicas", "following"] == 1)
    wait_until("all is there", lambda: [told()[name] for name in names] == [0, 0, 0, 0])
    assert told()["replica_lag_bytes", "2"] == 0
    cluster.brokers[2].kill()
    wait_until("it is missed", lambda: [told()[name] for name in names] == [1, 2, 0, 0])
    assert told()["replica_events_total", "elected"] == 2
    assert told()["replica_events_total", "unclean"] == 0
    address = cluster.brokers[1].address
    wait_until("it leads both", lambda: told()["replicas", "leading"] == 2)
    batch = build_batch([Message(1, None, b"x" * 100)])
    with socket.create_connection(parse_address(address), timeout=10) as connection:
        connection.sendall(produce_request("copied", {0: batch, 1: batch}, 1))
        assert connection.recv(4)
    wait_until("what it lacks is counted", lambda: told()["replica_lag_bytes", "2"] == 2 * len(batch))
