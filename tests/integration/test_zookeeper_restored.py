"""ZooKeeper comes back from its backup, which names replicas in sync that have fallen behind since."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from millrace.zookeeper.topic_state import PartitionState
from millrace_broker.coordination.cluster import Cluster
from tests.brokers import TestCluster, free_port
from tests.compat.clients import CONFLUENT
from tests.integration.faults.ledger import Ledger
from tests.integration.faults.traffic import LZ4, PLAIN, NumberedProducer, run
from tests.support import Process, run_millrace, wait_until

Start = Callable[..., Process]
TOPIC, PARTITIONS, BEHIND = "events", 3, 3
SETTINGS = "replica_lag_ms = 2000\n"


class World:
    """Three brokers, their ZooKeeper with its backup, and producers that count what was acknowledged."""

    def __init__(self, start: Start, folder: Path) -> None:
        self._start, self._data, self._backup = start, folder / "zookeeper", folder / "backup"
        port = str(free_port())  # a broker that connects again cannot take it while nobody listens
        self._zookeeper = start("zookeeper", "--port", port, "--data-dir", str(self._data))
        self.address = self._zookeeper.ready()
        name = f"restored-{folder.name}"
        self.brokers = TestCluster(start, name, folder, self.address, SETTINGS).start_brokers(1, 2, 3)
        with self.brokers.client() as client:
            client.create_topic(TOPIC, PARTITIONS, {"min.insync.replicas": "2", "flush.ms": "20"}, replicas=3)
        self.ledger = Ledger(TOPIC)
        self.producers = [
            NumberedProducer(self.brokers.bootstrap, self.ledger, kind, PARTITIONS) for kind in (PLAIN, LZ4)
        ]

    def write(self, more: int) -> None:
        """Send until each partition has so many more acknowledgements."""

        def acknowledged(partition: int) -> int:
            return sum(len(producer.stored[partition]) for producer in self.producers)

        goals = [acknowledged(partition) + more for partition in range(PARTITIONS)]

        def is_done() -> bool:
            run(self.producers, 0.02)
            return all(acknowledged(partition) >= goal for partition, goal in enumerate(goals))

        wait_until(f"each partition has {more} more acknowledgements", is_done)

    def until(self, what: str, holds: Callable[[PartitionState], bool]) -> None:
        """Wait until it holds of all partitions."""
        with Cluster.connect(self.address, self.brokers.name, create=False) as cluster:

            def look() -> bool:
                topic = cluster.topics.get(TOPIC)
                return topic is not None and all(holds(state) for state in topic.partitions.values())

            wait_until(what, look)

    def back_up(self) -> None:
        shutil.copytree(self._data, self._backup)

    def restore(self) -> None:
        """Stop everything and put the backup back, as docs/deployment.md says."""
        for broker in self.brokers.brokers.values():
            broker.kill()
        self.put_back()

    def put_back(self) -> None:
        """Stop ZooKeeper, put the backup in the place of its data and start it."""
        self._zookeeper.stop()  # when killed, its port is free a moment later
        shutil.rmtree(self._data)
        shutil.copytree(self._backup, self._data)
        port = self.address.rpartition(":")[2]
        self._zookeeper = self._start("zookeeper", "--port", port, "--data-dir", str(self._data))
        self._zookeeper.ready()

    def logs_of(self, *topics: str) -> set[Path]:
        """Folders that hold messages of these topics, also those that were set aside."""
        folders = (self.brokers.directory(broker) for broker in (1, 2, 3))
        found = (folder.glob(f"{topic}-*/*.log") for folder in folders for topic in topics)
        return {path.parent for paths in found for path in paths if path.stat().st_size > 100}

    def check(self) -> None:
        """Everything acknowledged is there, and all replicas are equal."""
        for producer in self.producers:
            producer.finish()
        with self.brokers.client() as client:
            found = self.ledger.check(client, range(PARTITIONS), "after ZooKeeper was restored")
        for partition in range(PARTITIONS):
            for producer in self.producers:
                producer.check(partition, found[partition], whole=False)
        done = run_millrace("log", "compare", *(str(self.brokers.directory(one)) for one in (1, 2, 3)))
        assert done.returncode == 0, done.stdout


def is_whole(state: PartitionState) -> bool:
    return state.leader > 0 and len(state.isr) == 3


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("first", [BEHIND, 1])
def test_a_restored_zookeeper_costs_nothing_acknowledged_though_a_broker_was_behind(
    start: Start, tmp_path: Path, first: int
) -> None:
    world = World(start, tmp_path)
    world.write(50)
    world.until("all replicas are in sync", is_whole)
    world.back_up()
    world.brokers.brokers[BEHIND].kill()
    world.until("the others go on", lambda state: state.leader in (1, 2) and BEHIND not in state.isr)
    world.write(100)
    world.restore()
    world.brokers.restart(first)
    if first == BEHIND:
        world.until("the broker that is behind was elected", lambda state: state.leader in (-1, BEHIND))
    for broker in {1, 2, BEHIND} - {first}:
        world.brokers.restart(broker)
    world.write(50)
    world.until("all replicas are in sync again", is_whole)
    world.check()


@pytest.mark.slow
@pytest.mark.soak
def test_brokers_that_run_on_notice_a_restored_zookeeper_and_lose_nothing(
    start: Start, tmp_path: Path
) -> None:
    world = World(start, tmp_path)
    world.write(50)
    world.until("all replicas are in sync", is_whole)
    world.back_up()
    world.brokers.brokers[BEHIND].kill()
    world.until("the others go on", lambda state: state.leader in (1, 2) and BEHIND not in state.isr)
    run(world.producers, 4)  # their generations grow once a second
    world.put_back()
    for number in (1, 2):
        process = world.brokers.brokers[number].process
        noticed = f"ZooKeeper at {world.address} was put back from an older copy"
        wait_until(f"broker {number} notices", partial(process_says, process, noticed))
    world.brokers.restart(BEHIND)
    world.write(50)
    world.until("all replicas are in sync again", is_whole)
    world.check()


@pytest.mark.slow
@pytest.mark.soak
def test_brokers_that_run_on_keep_the_logs_of_topics_that_a_restored_zookeeper_does_not_know(
    start: Start, tmp_path: Path
) -> None:
    world = World(start, tmp_path)
    run(world.producers, 4)  # generations grow once a second
    world.back_up()
    with world.brokers.client() as client:
        client.create_topic("young", 1, {"flush.ms": "20"}, replicas=3)
        client.create_topic("alone", 1, {"flush.ms": "20"}, replicas=1)
        for topic in ("young", "alone"):
            CONFLUENT.produce(world.brokers.bootstrap, topic, 0, [topic.encode() * 100], "none")
    run(world.producers, 4)
    logs = world.logs_of("young", "alone")
    assert len(logs) == 4
    world.put_back()
    for number in (1, 2, 3):
        process = world.brokers.brokers[number].process
        noticed = "may belong to a topic that ZooKeeper has lost"
        wait_until(f"broker {number} sets them aside", partial(process_says, process, noticed))
    wait_until("all are set aside", lambda: not world.logs_of("young", "alone") & logs)
    assert len(world.logs_of("young", "alone")) == 4
    world.until("all replicas are in sync again", is_whole)
    world.check()


def process_says(process: Process, text: str) -> bool:
    return text in process.output
