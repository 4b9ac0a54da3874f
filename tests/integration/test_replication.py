"""Topics with several replicas on real brokers: what was acknowledged or shown survives any one of them.

Promised is what a delivery report of an acks=all producer or a consumer was told. After each fault the topic
is compared with every promise, and in the end all replicas' files with each other, byte by byte.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millrace.coordination.cluster import Cluster
from millrace.coordination.state import PartitionState
from tests.brokers import TestCluster
from tests.integration.faults.ledger import Ledger
from tests.integration.faults.traffic import LZ4, PLAIN, NumberedProducer, Reader, run, run_until_stored
from tests.support import Process, wait_until

BROKERS = (1, 2, 3)
PARTITIONS = 2
SETTINGS = "default_replicas = 3\nreplica_lag_ms = 2000\n"


class World:
    """Three brokers, a topic with three replicas, and clients that go on through every fault."""

    def __init__(self, start: Callable[..., Process], zookeeper: str, folder: Path) -> None:
        self.name = f"replicated-{folder.name}"
        self.brokers = TestCluster(start, self.name, folder, zookeeper, SETTINGS).start_brokers(*BROKERS)
        self.cluster = Cluster.connect(zookeeper, self.name, create=False)
        with self.brokers.client() as client:
            client.create_topic("traffic", PARTITIONS, {"segment.bytes": "200000", "flush.ms": "20"})
        self.ledger = Ledger("traffic")
        self.producers = [
            NumberedProducer(self.brokers.bootstrap, self.ledger, kind, PARTITIONS) for kind in (PLAIN, LZ4)
        ]

    def state(self, partition: int = 0) -> PartitionState:
        topic = self.cluster.topics.get("traffic")
        assert topic is not None
        return topic.partitions[partition]

    def leader(self, partition: int = 0) -> int:
        return wait_until("there is a leader", lambda: max(0, self.state(partition).leader))

    def until_in_sync(self, count: int = len(BROKERS)) -> None:
        def in_sync() -> bool:
            return all(
                len(self.state(partition).isr) == count and self.state(partition).leader > 0
                for partition in range(PARTITIONS)
            )

        wait_until(f"{count} replicas in sync", in_sync)

    def directory(self, broker: int) -> Path:
        return self.brokers.folder / f"{self.name}-{broker}"

    def check(self, where: str) -> None:
        """Every promise is kept, whoever leads."""
        with self.brokers.client() as client:
            self.ledger.check(client, range(PARTITIONS), where)

    def finish(self, reader: Reader) -> None:
        """Everything that was sent is there once and in order, and all replicas have the same bytes."""
        for producer in self.producers:
            producer.finish()
        self.until_in_sync()
        with self.brokers.client() as client:
            found = self.ledger.check(client, range(PARTITIONS), "at the end")
        for partition in range(PARTITIONS):
            for producer in self.producers:
                producer.check(partition, found[partition])
            reader.wait_for(partition, found[partition])
        assert not reader.problems, reader.problems[0]
        for broker in self.brokers.brokers.values():
            broker.process.stop()
        for partition in range(PARTITIONS):
            first, *others = (self.files(broker, partition) for broker in BROKERS)
            assert sum(map(len, first.values())) > 0
            for other in others:
                assert other == first, f"the replicas of partition {partition} differ"

    def files(self, broker: int, partition: int) -> dict[str, bytes]:
        """The contents of a replica's files that have any."""
        (folder,) = self.directory(broker).glob(f"traffic-{partition}-*")
        return {path.name: content for path in sorted(folder.glob("*.log")) if (content := path.read_bytes())}


@pytest.fixture
def world(start: Callable[..., Process], zookeeper: str, tmp_path: Path) -> Iterator[World]:
    made = World(start, zookeeper, tmp_path)
    yield made
    made.cluster.close()


def test_what_was_acknowledged_or_shown_survives_the_leader_and_its_disk(world: World) -> None:
    with Reader(world.brokers.bootstrap, world.ledger, PARTITIONS) as reader:
        run_until_stored(world.producers, 200)
        lost = world.leader()
        world.brokers.brokers[lost].kill()
        shutil.rmtree(world.directory(lost))
        run_until_stored(world.producers, 200)
        world.check("without the leader")
        world.brokers.restart(lost)
        run(world.producers, 0.3)
        world.until_in_sync()
        run_until_stored(world.producers, 100)
        world.finish(reader)
