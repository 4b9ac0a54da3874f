"""Topics with several replicas on real brokers: what was acknowledged or shown survives any one of them.

Promised is what a delivery report of an acks=all producer or a consumer was told. After each fault the topic
is compared with every promise, and in the end all replicas' files with each other, byte by byte.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import confluent_kafka
import confluent_kafka.admin
import pytest

from millrace.client.cluster_client import EARLIEST, LATEST
from millrace.coordination.cluster import Cluster
from millrace.coordination.state import NO_LEADER, PartitionState
from tests.brokers import TestCluster, read_partition
from tests.integration.faults.ledger import Ledger
from tests.integration.faults.traffic import LZ4, PLAIN, NumberedProducer, Reader, run, run_until_stored
from tests.support import ROUNDS, Process, wait_until

pytestmark = pytest.mark.soak

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

    def states(self) -> list[PartitionState]:
        return [self.state(partition) for partition in range(PARTITIONS)]

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


def _kill_and_lose_the_disk(world: World, broker: int) -> None:
    world.brokers.brokers[broker].kill()
    shutil.rmtree(world.directory(broker))
    run_until_stored(world.producers, 100)
    world.check(f"without broker {broker} and its disk")
    world.brokers.restart(broker)


def _kill(world: World, broker: int) -> None:
    world.brokers.brokers[broker].kill()
    run(world.producers, 0.5)
    world.brokers.restart(broker)


def _stop(world: World, broker: int) -> None:
    led = [partition for partition in range(PARTITIONS) if world.state(partition).leader == broker]
    epochs = {partition: world.state(partition).leader_epoch for partition in led}
    world.brokers.brokers[broker].process.stop()

    def handed_over() -> bool:
        return all(world.state(partition).leader_epoch > epochs[partition] for partition in led)

    wait_until(f"others lead what broker {broker} led", handed_over)
    run_until_stored(world.producers, 50)
    world.brokers.restart(broker)


def _stand_still(world: World, broker: int) -> None:
    """Longer than ZooKeeper's session and the allowed lag: it is out of the replicas in sync then."""
    process = world.brokers.brokers[broker].process
    process.signal(signal.SIGSTOP)
    try:
        run_until_stored(world.producers, 50)
        wait_until(
            f"broker {broker} is out", lambda: all(broker not in state.isr for state in world.states())
        )
        run_until_stored(world.producers, 50)
    finally:
        process.signal(signal.SIGCONT)


@pytest.mark.long
def test_leaders_go_on_without_zookeeper_and_elections_when_it_is_back(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    data = str(tmp_path / "zookeeper")
    zookeeper = start("zookeeper", "--port", "0", "--data-dir", data)
    address = zookeeper.ready()
    world = World(start, address, tmp_path)
    with Reader(world.brokers.bootstrap, world.ledger, PARTITIONS) as reader:
        run_until_stored(world.producers, 50)
        world.until_in_sync()
        zookeeper.kill()
        run_until_stored(world.producers, 100)
        killed = world.leader()
        world.brokers.brokers[killed].kill()
        run(world.producers, 1.0)
        start("zookeeper", "--port", address.rpartition(":")[2], "--data-dir", data).ready()
        run_until_stored(world.producers, 50, timeout_s=60)
        world.check("after ZooKeeper was away, and without the leader")
        world.brokers.restart(killed)
        world.until_in_sync()
        world.finish(reader)
    world.cluster.close()


FAULTS = (_stop, _stand_still, _kill, _kill_and_lose_the_disk)


def test_what_was_acknowledged_or_shown_survives_what_happens_to_leaders_and_followers(world: World) -> None:
    """Each fault once, or as many as the soak has rounds, and by turns to a leader and to a follower."""
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    faults = chance.sample(FAULTS, len(FAULTS))
    if "MILLRACE_ROUNDS" in os.environ:
        faults = chance.choices(FAULTS, k=ROUNDS)
    with Reader(world.brokers.bootstrap, world.ledger, PARTITIONS) as reader:
        for number, strike in enumerate(faults):
            run_until_stored(world.producers, 50)
            leader = world.leader()
            struck = leader if number % 2 == 0 else chance.choice([b for b in BROKERS if b != leader])
            strike(world, struck)
            world.until_in_sync()
            world.check(f"seed {seed}, round {number}: {strike.__name__} of broker {struck}")
        world.finish(reader)


def test_a_mirror_goes_on_where_another_broker_leads_its_target(
    start: Callable[..., Process], zookeeper: str, tmp_path: Path
) -> None:
    origin = TestCluster(start, f"origin-{tmp_path.name}", tmp_path, zookeeper).start_brokers(1)
    with origin.client() as client:
        client.create_topic("copied", 1, {"flush.ms": "5"})
    mirror = f'[mirror.origin]\nbootstrap = "{origin.bootstrap}"\ntopics = ["copied"]\n'
    name = f"target-{tmp_path.name}"
    target = TestCluster(start, name, tmp_path, zookeeper, SETTINGS + mirror).start_brokers(*BROKERS)
    ledger = Ledger("copied")
    producer = NumberedProducer(origin.bootstrap, ledger, PLAIN, 1)
    with Cluster.connect(zookeeper, name, create=False) as cluster:
        leader = wait_until("the target is led", lambda: _leader_of(cluster, "copied"))
        for _ in range(2):
            run_until_stored([producer], 200)
            target.brokers[leader].kill()
            run_until_stored([producer], 200)
            before = leader
            leader = wait_until("another one leads", partial(_other_leader, cluster, before))
            target.restart(before)
            wait_until("all are in sync", lambda: len(cluster.topics["copied"].partitions[0].isr) == 3)
    producer.finish()
    with origin.client() as client:
        sent = read_partition(client, "copied", 0).values
    with target.client() as client:
        wait_until("all is copied", lambda: len(read_partition(client, "copied", 0).values) >= len(sent))
        assert read_partition(client, "copied", 0).values == sent


def test_records_that_were_deleted_stay_so_when_another_replica_leads(world: World, tmp_path: Path) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": world.brokers.bootstrap, "acks": "all"})
    for _ in range(3):
        producer.produce("traffic", b"x" * 100, partition=0)
        assert producer.flush(60) == 0
    with world.brokers.client() as client:
        end = client.list_offsets("traffic", LATEST)[0]
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": world.brokers.bootstrap})
    (deleted,) = admin.delete_records([confluent_kafka.TopicPartition("traffic", 0, end)]).values()
    assert deleted.result().low_watermark == end
    wait_until(
        "the followers have noted it",
        lambda: len(list(tmp_path.glob(f"{world.name}-*/traffic-0-*/start"))) == len(BROKERS),
    )
    leader = world.leader()
    world.brokers.brokers[leader].kill()
    wait_until("another one leads", lambda: world.state().leader not in (leader, NO_LEADER))
    with world.brokers.client() as client:
        assert client.list_offsets("traffic", EARLIEST)[0] == end


def _leader_of(cluster: Cluster, topic: str) -> int:
    state = cluster.topics.get(topic)
    return max(0, state.partitions[0].leader) if state is not None and state.partitions else 0


def _other_leader(cluster: Cluster, gone: int) -> int:
    leader = _leader_of(cluster, "copied")
    return 0 if leader == gone else leader
