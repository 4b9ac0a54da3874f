"""One of three brokers has a full disk: each partition goes on elsewhere, and nothing is stored twice."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from millrace_broker.coordination.cluster import Cluster
from tests.brokers import TestCluster
from tests.integration.faults.ledger import Ledger
from tests.integration.faults.small_disk import empty, fill_bytes, small_disk
from tests.integration.faults.traffic import LZ4, PLAIN, NumberedProducer, run, run_until_stored
from tests.support import ROUNDS, WAIT_S, Process, run_millrace, wait_until

Start = Callable[..., Process]
BROKERS = (1, 2, 3)
FULL = 2
"""The broker whose disk is filled."""
TOPIC, PARTITIONS = "events", 3
REPLICA_LAG_MS = 10_000
FULL_S = 40.0 if "MILLRACE_ROUNDS" in os.environ else 6.0
"""Time for which the disk is full in a round; acknowledgements are awaited meanwhile in any case."""


@pytest.fixture
def brokers(start: Start, zookeeper: str, tmp_path: Path) -> Iterator[TestCluster]:
    settings = f"replica_lag_ms = {REPLICA_LAG_MS}\n"
    made = TestCluster(start, f"full-{tmp_path.name}", tmp_path, zookeeper, settings)
    with small_disk(made.directory(FULL), 48 << 20, 500):
        made.start_brokers(*BROKERS)
        options = {"min.insync.replicas": "2", "segment.bytes": "1000000", "flush.ms": "20"}
        with made.client() as client:
            client.create_topic(TOPIC, PARTITIONS, options, replicas=3)
        yield made
        for broker in made.brokers.values():
            broker.kill()


@pytest.fixture
def cluster(brokers: TestCluster, zookeeper: str) -> Iterator[Cluster]:
    connected = Cluster.connect(zookeeper, brokers.name, create=False)
    yield connected
    connected.close()


class Acknowledgements:
    """Acknowledgements of each partition from now on: their number, and the longest time without one."""

    def __init__(self, producers: Sequence[NumberedProducer]) -> None:
        self._producers, now = producers, time.monotonic()
        self._before = self._counts()
        self._since = [now] * PARTITIONS
        self.new, self.longest_gap_s = [0] * PARTITIONS, [0.0] * PARTITIONS

    def _counts(self) -> list[int]:
        return [sum(len(each.stored[number]) for each in self._producers) for number in range(PARTITIONS)]

    def look(self) -> None:
        now = time.monotonic()
        for number, count in enumerate(self._counts()):
            self.longest_gap_s[number] = max(self.longest_gap_s[number], now - self._since[number])
            if count - self._before[number] > self.new[number]:
                self.new[number], self._since[number] = count - self._before[number], now


def led_by_full(cluster: Cluster) -> list[int]:
    """The partitions that the broker with the full disk leads."""
    return [number for number, state in cluster.topics[TOPIC].partitions.items() if state.leader == FULL]


def in_sync(cluster: Cluster) -> bool:
    topic = cluster.topics.get(TOPIC)
    return topic is not None and all(len(state.isr) == 3 for state in topic.partitions.values())


@pytest.mark.slow
@pytest.mark.soak
def test_a_leader_without_room_gives_up_the_lead_and_idempotent_producers_store_nothing_twice(
    brokers: TestCluster, cluster: Cluster
) -> None:
    ledger = Ledger(TOPIC)
    producers = [NumberedProducer(brokers.bootstrap, ledger, kind, PARTITIONS) for kind in (PLAIN, LZ4)]
    for round_ in range(ROUNDS if "MILLRACE_ROUNDS" in os.environ else 1):
        wait_until("all replicas are in sync", lambda: in_sync(cluster))
        assert run_millrace("topics", "elect", "--bootstrap", brokers.bootstrap).returncode == 0
        led = wait_until("the broker leads again", lambda: led_by_full(cluster))
        run_until_stored(producers, 30)
        acknowledged = Acknowledgements(producers)
        ballast = fill_bytes(brokers.directory(FULL))
        until = time.monotonic() + FULL_S
        while time.monotonic() < until or min(acknowledged.new) < 60:
            assert time.monotonic() < until + WAIT_S, (
                "a partition stands still while one disk of three is full"
            )
            run(producers, 0.02)
            acknowledged.look()
        still_led = led_by_full(cluster)
        empty(ballast)
        gaps = ", ".join(f"{gap:.2f} s" for gap in acknowledged.longest_gap_s)
        print(f"round {round_}: it led {led}; longest without an acknowledgement: {gaps}", flush=True)
        assert still_led == []
    for producer in producers:
        producer.finish()
    with brokers.client() as client:
        found = ledger.check(client, range(PARTITIONS), "in the end")
    for partition in range(PARTITIONS):
        for producer in producers:
            producer.check(partition, found[partition])
