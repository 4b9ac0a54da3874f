"""Replicas moved and leaders elected by operators, under traffic on real brokers: every promise is kept.

Promised is what a delivery report of an acks=all producer or a consumer was told.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest
from click.testing import CliRunner

from millrace.zookeeper.topic_state import PartitionState
from millrace_broker.coordination.cluster import Cluster
from millrace_broker.replication.leader_thread import ANSWER_BYTES
from millrace_broker.storage.comparison import compare
from millrace_commands.brokers import brokers
from millrace_commands.topics import topics
from tests.brokers import TestCluster
from tests.integration.faults.ledger import Ledger
from tests.integration.faults.traffic import PLAIN, NumberedProducer, Reader, run, run_until_stored
from tests.support import WAIT_S, Process, wait_until

BROKERS = (1, 2, 3, 4)
RATE = 2_000_000
LAG_MS = 2000


class World:
    """Four brokers, a topic of one partition, and clients that go on through every move."""

    def __init__(self, start: Callable[..., Process], zookeeper: str, folder: Path, lag_ms: int) -> None:
        self.name = f"moving-{folder.name}"
        settings = f"replica_lag_ms = {lag_ms}\nreplica_catch_up_bytes_per_second = {RATE}\n"
        self.brokers = TestCluster(start, self.name, folder, zookeeper, settings).start_brokers(*BROKERS)
        self.cluster = Cluster.connect(zookeeper, self.name, create=False)
        self.ledger = Ledger("traffic")
        self.producers = [NumberedProducer(self.brokers.bootstrap, self.ledger, PLAIN, 1)]

    def create(self, replicas: int) -> None:
        with self.brokers.client() as client:
            client.create_topic("traffic", 1, {"segment.bytes": "200000"}, replicas=replicas)
        wait_until("the topic is known", lambda: "traffic" in self.cluster.topics)

    @property
    def state(self) -> PartitionState:
        return self.cluster.topics["traffic"].partitions[0]

    def move(self, *replicas: int) -> None:
        """Have the partition move, and wait until it has."""
        self.brokers.reassign("traffic", 0, replicas)
        wait_until(
            f"the replicas are {replicas}",
            lambda: self.state.replicas == replicas and set(self.state.isr) == set(replicas),
        )
        wait_until("one of them leads", lambda: self.state.leader in replicas)

    def check(self, where: str) -> None:
        with self.brokers.client() as client:
            self.ledger.check(client, range(1), where)

    def finish(self, reader: Reader) -> None:
        for producer in self.producers:
            producer.finish()
        with self.brokers.client() as client:
            found = self.ledger.check(client, range(1), "at the end")
        for producer in self.producers:
            producer.check(0, found[0])
        reader.wait_for(0, found[0])
        assert not reader.problems, reader.problems[0]
        wait_until("all are in sync", lambda: len(self.state.isr) == len(self.state.replicas))
        replicas = self.state.replicas
        for broker in self.brokers.brokers.values():
            broker.process.stop()
        (compared,) = compare([self.brokers.directory(broker) for broker in replicas])
        assert (compared.difference, len(compared.replicas)) == (None, len(replicas))
        assert compared.compared > 0


@pytest.fixture
def world(
    start: Callable[..., Process], zookeeper: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[World]:
    made = World(start, zookeeper, tmp_path, getattr(request, "param", LAG_MS))
    yield made
    made.cluster.close()


def test_a_partition_gets_more_replicas_others_and_one_again_under_traffic(world: World) -> None:
    world.create(1)
    with Reader(world.brokers.bootstrap, world.ledger, 1) as reader:
        for replicas in (1, 2, 3), (4, 2, 3), (4, 1), (2,), (2, 3, 4):
            run_until_stored(world.producers, 100)
            world.move(*replicas)
            world.check(f"on {replicas}")
        run_until_stored(world.producers, 100)
        world.finish(reader)


def test_the_first_replica_leads_again_when_an_operator_says_so(world: World) -> None:
    world.create(3)
    first = wait_until("there is a leader", lambda: max(0, world.state.leader))
    run_until_stored(world.producers, 50)
    world.brokers.brokers[first].kill()
    wait_until("another leads", lambda: world.state.leader not in (first, -1))
    world.brokers.restart(first)
    wait_until("all are in sync", lambda: len(world.state.isr) == 3)
    done = CliRunner().invoke(topics, ["elect", "traffic-0", "--bootstrap", world.brokers.bootstrap])
    assert done.output == "traffic-0: its first replica leads from now on\n"
    wait_until("the first replica leads", lambda: world.state.leader == first == world.state.replicas[0])
    with Reader(world.brokers.bootstrap, world.ledger, 1) as reader:
        run_until_stored(world.producers, 50)
        world.finish(reader)


@pytest.mark.slow
def test_the_first_replica_leads_again_by_itself_when_it_has_been_in_sync_for_a_while(world: World) -> None:
    world.create(2)
    first = wait_until("there is a leader", lambda: max(0, world.state.leader))
    with Reader(world.brokers.bootstrap, world.ledger, 1) as reader:
        run_until_stored(world.producers, 50)
        world.brokers.brokers[first].kill()
        wait_until("another leads", lambda: world.state.leader not in (first, -1))
        epoch = world.state.leader_epoch
        world.brokers.restart(first)
        wait_until("all are in sync", lambda: len(world.state.isr) == 2)
        wait_until("the first replica leads", lambda: world.state.leader == first)
        assert world.state.leader_epoch == epoch + 1
        assert len(world.state.isr) == 2, "who led before follows, and was not out of sync for it"
        logs = "".join(broker.process.output for broker in world.brokers.brokers.values())
        assert "traffic-0: the first replica is in sync again and is to lead" in logs
        run_until_stored(world.producers, 50)
        world.finish(reader)


def test_a_partition_whose_disks_are_gone_goes_on_when_an_operator_names_a_replica(world: World) -> None:
    world.create(2)
    leader = wait_until("there is a leader", lambda: max(0, world.state.leader))
    run_until_stored(world.producers, 50)
    world.producers[0].finish()
    (other,) = set(world.state.replicas) - {leader}
    world.brokers.brokers[other].kill()
    wait_until("the leader is alone", lambda: set(world.state.isr) == {leader})
    world.brokers.brokers[leader].kill()
    shutil.rmtree(world.brokers.directory(leader))
    world.brokers.restart(other)
    wait_until(
        "it is registered, and the dead one not",
        lambda: set(world.cluster.brokers) == set(BROKERS) - {leader},
    )

    def elect(replica: int) -> str:
        arguments = ["--unclean", "traffic-0", "--replica", str(replica), "--reason", "its disk is gone"]
        done = CliRunner().invoke(topics, ["elect", *arguments, "--bootstrap", world.brokers.bootstrap])
        return done.output or str(done.exception)

    wait_until("the dead one is refused", lambda: f"broker {leader} is no live replica" in elect(leader))
    wait_until("it goes on", lambda: "continues with" in elect(other))
    wait_until("it leads", lambda: world.state.leader == other)
    world.check("after the election")
    logs = "".join(broker.process.output for broker in world.brokers.brokers.values())
    assert f"has broker {other} lead traffic-0, which may lose committed messages" in logs
    assert "Reason: its disk is gone" in logs


@pytest.mark.slow
@pytest.mark.parametrize("world", [10_000], indirect=True)  # a busy machine's pause takes no replica out
def test_a_replica_catches_up_no_faster_than_the_limit_and_replicas_in_sync_go_on(world: World) -> None:
    with world.brokers.client() as client:
        client.create_topic("large", 1, replicas=1)
        ((_, leader),) = client.topic("large").partitions.items()
    producer = confluent_kafka.Producer({"bootstrap.servers": world.brokers.bootstrap})
    for _ in range(100):
        producer.produce("large", bytes(100_000), partition=0)
        producer.flush()
    follower, other, _ = set(BROKERS) - {leader}
    world.create(1)
    world.move(leader)
    world.move(leader, follower, other)
    run_until_stored(world.producers, 50)
    world.brokers.reassign("large", 0, (leader, follower))

    def copied() -> int:
        return sum(file.stat().st_size for file in world.brokers.directory(follower).glob("large-0-*/*.log"))

    samples = [(time.monotonic(), copied(), time.monotonic())]
    before, in_sync = world.producers[0].stored_count, set[int]()
    while follower not in world.cluster.topics["large"].partitions[0].isr:
        run(world.producers, 0.02)
        samples.append((time.monotonic(), copied(), time.monotonic()))
        in_sync.add(len(world.state.isr))
        assert samples[-1][0] - samples[0][0] < WAIT_S, f"{samples[-1][1]} bytes are copied"
    burst = RATE // 4 + 2 * ANSWER_BYTES  # the bucket, an answer too much, and one not yet in the log
    for index, (begin, first, _) in enumerate(samples):
        assert all(last - first <= RATE * (end - begin) + burst for _, last, end in samples[index:])
    assert samples[-1][1] > 100 * 100_000
    assert world.producers[0].stored_count > before
    assert in_sync == {3}
    world.check("after it has caught up")


def test_a_broker_is_drained_under_traffic_and_listed_without_anything(world: World) -> None:
    world.create(3)
    leaving = wait_until("there is a leader", lambda: max(0, world.state.leader))
    with Reader(world.brokers.bootstrap, world.ledger, 1) as reader:
        run_until_stored(world.producers, 100)
        at = ("--bootstrap", world.brokers.bootstrap)
        done = CliRunner().invoke(brokers, ["drain", str(leaving), *at])
        assert f"broker {leaving} stores nothing any more; 1 partitions have moved" in done.output
        listed = json.loads(CliRunner().invoke(brokers, ["list", "--json", *at]).output)
        stored = {row["broker"]: row["stored"] for row in listed}
        assert stored == {broker: int(broker != leaving) for broker in BROKERS}
        assert listed[0]["directory"].endswith(f"{world.name}-1")
        run_until_stored(world.producers, 100)
        world.finish(reader)


def test_what_a_dead_broker_shares_with_others_moves_and_what_it_alone_had_is_named(world: World) -> None:
    world.create(2)
    gone = wait_until("there is a leader", lambda: max(0, world.state.leader))
    run_until_stored(world.producers, 50)
    with world.brokers.client() as client:
        client.create_topic("alone", len(BROKERS), replicas=1)
        (lost,) = [number for number, leader in client.topic("alone").partitions.items() if leader == gone]
    world.brokers.brokers[gone].kill()
    wait_until("it is forgotten", lambda: gone not in world.cluster.brokers)
    wait_until("another leads", lambda: world.state.leader not in (gone, -1))
    at = ",".join(broker.address for number, broker in world.brokers.brokers.items() if number != gone)
    done = CliRunner().invoke(brokers, ["drain", str(gone), "--bootstrap", at])
    assert f"the only replica of alone-{lost}: start the broker" in str(done.exception)
    assert "1 partitions have moved" in str(done.exception)
    assert gone not in world.state.replicas
    with Reader(world.brokers.bootstrap, world.ledger, 1) as reader:
        run_until_stored(world.producers, 50)
        world.finish(reader)
