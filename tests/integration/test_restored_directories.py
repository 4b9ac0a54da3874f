"""A log directory from an older copy is noticed: nothing acknowledged is lost while another replica has it.

The brokers and ZooKeeper are real. Promised is what an acks=all producer or a consumer was told.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import confluent_kafka
import pytest
from click.testing import CliRunner

from millrace.client.cluster_client import LATEST
from millrace.errors import MillraceError
from millrace.zookeeper.topic_state import NO_LEADER, BrokerAddress, PartitionState
from millrace_broker.coordination.cluster import Cluster
from millrace_broker.coordination.directories import DirectoryNode, withdraw
from millrace_broker.partitions.generation import take
from millrace_broker.storage.log_directory import Owner, read_owner, write_owner
from millrace_commands.topics import topics
from tests.brokers import TestCluster, free_port, read_partition
from tests.integration.faults.ledger import Ledger
from tests.integration.faults.traffic import PLAIN, NumberedProducer, Reader, run, run_until_stored
from tests.support import Process, run_millrace, wait_until

PUT_BACK = "was put back from an older copy: it gets a new id"
Start = Callable[..., Process]


class World:
    """Some brokers, a topic of one partition, and clients that go on."""

    def __init__(self, start: Start, zookeeper: str, folder: Path, brokers: int, minimum: int) -> None:
        self.folder, self.name, self.count = folder, f"restored-{folder.name}", brokers
        numbers = range(1, brokers + 1)
        settings = "replica_lag_ms = 2000\n"
        self.brokers = TestCluster(start, self.name, folder, zookeeper, settings).start_brokers(*numbers)
        self.cluster = Cluster.connect(zookeeper, self.name, create=False)
        self.ledger = Ledger("traffic")
        with self.brokers.client() as client:
            client.create_topic("traffic", 1, {"min.insync.replicas": str(minimum)}, replicas=brokers)
        wait_until("the topic is known", lambda: "traffic" in self.cluster.topics)
        self.producer = NumberedProducer(self.brokers.bootstrap, self.ledger, PLAIN, 1)

    @property
    def state(self) -> PartitionState:
        return self.cluster.topics["traffic"].partitions[0]

    def until_in_sync(self) -> None:
        wait_until("all are in sync", lambda: len(self.state.isr) == self.count and self.state.leader > 0)

    def owner(self, broker: int) -> Owner:
        owner = read_owner(self.brokers.directory(broker), self.cluster.cluster_id, broker)
        assert owner is not None
        return owner

    def copy(self, broker: int) -> Path:
        """Copy a directory as `cp -a` does, while its broker runs; then have the broker write on."""
        copy, generation = self.folder / f"copy-{broker}", self.owner(broker).generation
        shutil.copytree(self.brokers.directory(broker), copy, copy_function=_copy_if_there)

        def has_written_on() -> bool:
            run([self.producer], 0.2)
            return self.owner(broker).generation > generation + 2

        wait_until("the generation grows", has_written_on)
        return copy

    def put_back(self, broker: int, copy: Path) -> None:
        """Kill a broker, put the copy in the place of its directory and start it at once."""
        self.brokers.brokers[broker].kill()
        shutil.rmtree(self.brokers.directory(broker))
        copy.rename(self.brokers.directory(broker))
        self.brokers.restart(broker)

    def output(self, broker: int) -> str:
        return self.brokers.brokers[broker].process.output

    def elect(self, broker: int) -> str:
        arguments = ["elect", "--unclean", "traffic-0", "--replica", str(broker), "--reason", "no newer copy"]
        done = CliRunner().invoke(topics, [*arguments, "--bootstrap", self.brokers.bootstrap])
        return done.output or str(done.exception)

    def describe(self) -> str:
        done = CliRunner().invoke(topics, ["describe", "traffic", "--bootstrap", self.brokers.bootstrap])
        assert done.exit_code == 0, done.output
        return done.output

    def check(self) -> None:
        """Everything that was sent is there once and in order, and every promise is kept."""
        with Reader(self.brokers.bootstrap, self.ledger, 1) as reader:
            self.producer.finish()
            with self.brokers.client() as client:
                found = self.ledger.check(client, [0], "at the end")[0]
            self.producer.check(0, found)
            reader.wait_for(0, found)
            assert not reader.problems


def _copy_if_there(source: str, target: str) -> None:
    with contextlib.suppress(FileNotFoundError):  # the broker removed it meanwhile
        shutil.copy2(source, target)


@pytest.fixture
def make(start: Start, zookeeper: str, tmp_path: Path) -> Iterator[Callable[[int, int], World]]:
    worlds: list[World] = []

    def made(brokers: int, minimum: int) -> World:
        worlds.append(World(start, zookeeper, tmp_path, brokers, minimum))
        return worlds[-1]

    yield made
    for world in worlds:
        world.cluster.close()


@pytest.mark.slow
@pytest.mark.parametrize(("brokers", "minimum"), [(3, 2), (2, 1)])
def test_a_leader_whose_directory_was_put_back_copies_before_it_leads(
    make: Callable[[int, int], World], brokers: int, minimum: int
) -> None:
    world = make(brokers, minimum)
    world.until_in_sync()
    run_until_stored([world.producer], 50)
    leader, before = world.state.leader, world.owner(world.state.leader).directory
    copy = world.copy(leader)
    epoch, seen = world.state.leader_epoch, list[PartitionState]()
    world.cluster.on_change(lambda: seen.append(world.state))
    world.put_back(leader, copy)
    run_until_stored([world.producer], 50)
    assert PUT_BACK in world.output(leader)
    world.until_in_sync()
    assert world.state.isr[leader] == world.owner(leader).directory != before
    first = next(state for state in seen if state.leader_epoch > epoch)
    assert first.leader not in (leader, NO_LEADER)
    world.check()


@pytest.mark.slow
def test_a_copy_that_was_torn_is_set_aside_and_copied_as_a_whole(make: Callable[[int, int], World]) -> None:
    world = make(2, 1)
    world.until_in_sync()
    run_until_stored([world.producer], 50)
    leader = world.state.leader
    world.brokers.brokers[leader].process.stop()  # it writes checkpoints
    world.brokers.restart(leader)
    world.until_in_sync()
    copy = world.copy(leader)
    (segment,) = copy.glob("traffic-0-*/*.log")
    segment.write_bytes(segment.read_bytes()[:100])
    world.put_back(leader, copy)
    run_until_stored([world.producer], 50)
    world.until_in_sync()
    assert "traffic-0 cannot be opened, and is copied from its leader" in world.output(leader)
    assert list(world.brokers.directory(leader).glob("traffic-0-*.foreign-*"))
    world.check()


@pytest.mark.slow
def test_a_partition_whose_only_replica_was_put_back_waits_for_an_operator(
    make: Callable[[int, int], World],
) -> None:
    world = make(1, 1)
    run_until_stored([world.producer], 50)
    copy = world.copy(1)
    world.producer.finish()
    with world.brokers.client() as client:
        end = client.list_offsets("traffic", LATEST)[0]
    world.put_back(1, copy)
    assert PUT_BACK in world.output(1)
    assert "wait for an operator (traffic-0)" in world.output(1)
    wait_until("it has no leader", lambda: world.state.leader == NO_LEADER)
    assert "traffic-0 has no leader: start its brokers (1). If they all run" in world.describe()
    world.brokers.brokers[1].process.stop()
    world.brokers.restart(1)
    assert PUT_BACK not in world.output(1)
    assert "wait for an operator (traffic-0)" in world.output(1), "a restart is no operator's word"
    assert world.elect(1) == "traffic-0 continues with the messages of broker 1\n"
    assert "broker 1 leads it whenever it runs" in world.elect(1)
    wait_until("it has a leader", lambda: (world.state.leader, world.state.leader_epoch) == (1, 1))
    with world.brokers.client() as client:
        kept = client.list_offsets("traffic", LATEST)[0]
        assert 0 < kept < end
        producer = confluent_kafka.Producer({"bootstrap.servers": world.brokers.bootstrap})
        producer.produce("traffic", b"after", partition=0)
        assert producer.flush(30) == 0
        assert read_partition(client, "traffic", 0).values[-1] == b"after"
    world.brokers.brokers[1].kill()
    world.brokers.restart(1)
    assert "wait for an operator" not in world.output(1)
    with world.brokers.client() as client:
        assert read_partition(client, "traffic", 0).values[-1] == b"after"


def test_a_partition_whose_only_replica_was_on_an_empty_disk_waits_for_an_operator(
    make: Callable[[int, int], World],
) -> None:
    world = make(1, 1)
    run_until_stored([world.producer], 50)
    world.producer.finish()
    moved = world.folder / "not-mounted"
    world.brokers.brokers[1].process.stop()
    world.brokers.directory(1).rename(moved)
    world.brokers.restart(1)
    assert "wait for an operator (traffic-0)" in world.output(1)
    wait_until("it has no leader", lambda: world.state.leader == NO_LEADER)
    world.brokers.brokers[1].process.stop()
    shutil.rmtree(world.brokers.directory(1))
    moved.rename(world.brokers.directory(1))
    world.brokers.restart(1)
    assert world.elect(1) == "traffic-0 continues with the messages of broker 1\n"
    world.check()


def test_a_second_broker_of_one_id_takes_nothing_from_the_first(make: Callable[[int, int], World]) -> None:
    world = make(1, 1)
    run_until_stored([world.producer], 50)
    changes = [f"log_dir={world.folder / 'other'}", f"listen=127.0.0.1:{free_port()}"]
    options = [option for change in changes for option in ("--set", change)]
    second = run_millrace("broker", str(world.brokers.brokers[1].config), *options)
    assert "broker id 1" in second.stderr
    assert "is held by a live broker" in second.stderr
    assert (world.state.leader, world.state.leader_epoch) == (1, 0)
    world.check()


@pytest.mark.slow
@pytest.mark.parametrize("brokers", [1, 2])
def test_an_ordinary_restart_changes_nothing(make: Callable[[int, int], World], brokers: int) -> None:
    world = make(brokers, brokers)
    world.until_in_sync()
    run_until_stored([world.producer], 50)
    before = [world.owner(broker) for broker in world.brokers.brokers]
    for how in ("kill", "stop", "upgrade", "move"):
        for owner in before:
            broker = owner.broker_id
            if how == "kill":
                world.brokers.brokers[broker].kill()
            else:
                world.brokers.brokers[broker].process.stop()
            generation = world.owner(broker).generation
            if how == "upgrade":
                _forget_generation(world, broker)
            elif how == "move":
                folder = world.brokers.directory(broker)
                shutil.copytree(folder, world.folder / "moved")
                shutil.rmtree(folder)
                (world.folder / "moved").rename(folder)
            world.brokers.restart(broker)
            assert PUT_BACK not in world.output(broker)
            assert "wait for an operator" not in world.output(broker)
            assert "ZooKeeper was put back" not in world.output(broker)
            assert world.owner(broker).directory == owner.directory
            assert how == "upgrade" or world.owner(broker).generation > generation
            run_until_stored([world.producer], 20)
            world.until_in_sync()
    if brokers == 1:
        assert world.state.leader_epoch == 0
    world.check()


def _forget_generation(world: World, broker: int) -> None:
    """Leave what a version before generations left, on the disk and in ZooKeeper."""
    owner = world.owner(broker)
    path = world.brokers.directory(broker) / "owner.json"
    fields = {"cluster_id": owner.cluster_id, "broker_id": broker, "directory": owner.directory}
    path.write_text(json.dumps(fields))
    client = world.cluster.session.client
    client.delete(f"/{world.name}/directories/{owner.directory}")


# Disk and ZooKeeper, without a broker


@pytest.fixture
def cluster(zookeeper: str, tmp_path: Path) -> Iterator[Cluster]:
    with Cluster.connect(zookeeper, f"generations-{tmp_path.name}") as cluster:
        yield cluster


def _numbers(cluster: Cluster, log_dir: Path) -> tuple[int, int]:
    owner = read_owner(log_dir, cluster.cluster_id, 1)
    assert owner is not None
    return owner.generation, DirectoryNode(cluster, owner.directory).read()


def test_a_start_raises_the_number_of_disk_and_zookeeper(cluster: Cluster, tmp_path: Path) -> None:
    first = take(tmp_path, cluster, 1)
    assert _numbers(cluster, tmp_path) == (1, 1)
    assert take(tmp_path, cluster, 1).directory == first.directory
    assert _numbers(cluster, tmp_path) == (2, 2)


@pytest.mark.parametrize("ends", [1, 3])
def test_a_start_that_ends_before_zookeeper_knows_of_it_is_no_copy(
    cluster: Cluster, tmp_path: Path, ends: int, caplog: pytest.LogCaptureFixture
) -> None:
    """However often: the disk is never ahead by more than one."""
    directory = take(tmp_path, cluster, 1).directory
    for _ in range(ends):
        owner = read_owner(tmp_path, cluster.cluster_id, 1)
        assert owner is not None
        write_owner(tmp_path, replace(owner, generation=2))
    assert take(tmp_path, cluster, 1).directory == directory
    assert _numbers(cluster, tmp_path) == (2, 2)
    assert not caplog.records


def test_a_first_start_that_ends_before_zookeeper_knows_of_it_is_repeated(
    cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_owner(tmp_path, Owner(cluster.cluster_id, 1, "0123456789abcdef", 1))
    assert take(tmp_path, cluster, 1).directory == "0123456789abcdef"
    assert _numbers(cluster, tmp_path) == (1, 1)
    assert not caplog.records


def test_a_start_on_an_older_copy_is_repeated_wherever_it_ended(cluster: Cluster, tmp_path: Path) -> None:
    take(tmp_path, cluster, 1)
    old = read_owner(tmp_path, cluster.cluster_id, 1)
    assert old is not None
    take(tmp_path, cluster, 1)
    cluster.register_broker(1, BrokerAddress("127.0.0.1", free_port(), directory=old.directory))
    cluster.create_topic("alone", 1, {})
    write_owner(tmp_path, old)
    withdraw(cluster, 1)  # the crash came behind it
    assert cluster.topics["alone"].partitions[0].leader == NO_LEADER
    taken = take(tmp_path, cluster, 1)
    assert taken.directory != old.directory
    new = read_owner(tmp_path, cluster.cluster_id, 1)
    assert new == Owner(cluster.cluster_id, 1, taken.directory, 1)
    cluster.session.client.delete(f"/{cluster.name}/directories/{taken.directory}")  # it came before this
    assert take(tmp_path, cluster, 1).directory == taken.directory
    assert cluster.topics["alone"].partitions[0].leader == NO_LEADER


def test_a_zookeeper_that_knows_less_than_the_disk_was_put_back(
    cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = take(tmp_path, cluster, 1).directory
    for number in (3, 4):
        owner = Owner(cluster.cluster_id, 1, directory, number)
        write_owner(tmp_path, owner)
        client = cluster.session.client
        client.set(f"/{cluster.name}/directories/{directory}", b'{"generation": 1}')
        with caplog.at_level(logging.ERROR):
            taken = take(tmp_path, cluster, 1)
        assert taken.zookeeper_is_restored
        assert taken.directory == directory
        assert "was put back from an older copy" in caplog.text
        assert _numbers(cluster, tmp_path) == (number, number)


def test_a_running_broker_notices_at_a_reconnect_that_zookeeper_was_put_back(
    cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    generation, flushes, noticed = take(tmp_path, cluster, 1), [0], list[str]()
    have_reported = threading.Event()
    generation.keep(lambda: flushes[0], lambda: noticed.append("put back"), have_reported.is_set)
    flushes[0] += 1
    wait_until("it grows", lambda: _numbers(cluster, tmp_path) == (2, 2))
    flushes[0] += 1
    wait_until("it grows again", lambda: _numbers(cluster, tmp_path) == (3, 3))
    cluster.session.client.restart()
    time.sleep(0.5)
    assert not noticed
    cluster.session.client.set(f"/{cluster.name}/directories/{generation.directory}", b'{"generation": 1}')
    with caplog.at_level(logging.ERROR):
        cluster.session.client.restart()
        wait_until("it is noticed", lambda: noticed)
    assert "was put back from an older copy" in caplog.text
    wait_until("ZooKeeper has caught up", lambda: _numbers(cluster, tmp_path) == (4, 4))
    assert _is_known_restored(cluster, tmp_path)
    with pytest.raises(MillraceError, match="put back from an older copy"):
        generation.still_there("t", 0, UUID(int=1))
    have_reported.set()
    wait_until("all have reported", lambda: not _is_known_restored(cluster, tmp_path))
    wait_until("ZooKeeper has caught up", lambda: _numbers(cluster, tmp_path) == (5, 5))
    flushes[0] += 1
    generation.close()
    assert _numbers(cluster, tmp_path) == (6, 6)
    assert noticed == ["put back"]


def test_a_start_that_ends_before_its_replicas_have_reported_leaves_the_next_one_what_it_noticed(
    cluster: Cluster, tmp_path: Path
) -> None:
    for _ in range(4):
        generation = take(tmp_path, cluster, 1)
    assert not _is_known_restored(cluster, tmp_path)
    cluster.session.client.set(f"/{cluster.name}/directories/{generation.directory}", b'{"generation": 1}')
    for _ in range(3):
        assert take(tmp_path, cluster, 1).zookeeper_is_restored
        assert _is_known_restored(cluster, tmp_path)


def _is_known_restored(cluster: Cluster, log_dir: Path) -> bool:
    owner = read_owner(log_dir, cluster.cluster_id, 1)
    assert owner is not None
    return owner.zookeeper_restored


@pytest.mark.slow
def test_the_runbook_of_a_stopped_replica_keeps_all_that_only_this_replica_has(
    make: Callable[[int, int], World], tmp_path: Path
) -> None:
    world = make(2, 1)
    world.until_in_sync()
    run_until_stored([world.producer], 50)
    leader = world.state.leader
    stopped, (log,) = 3 - leader, world.brokers.directory(leader).glob("traffic-0-*")
    shutil.copytree(log, tmp_path / "older", copy_function=_copy_if_there)
    run_until_stored([world.producer], 50)
    time.sleep(1)  # its followers learn of the last commits within half a second
    world.brokers.brokers[stopped].process.stop()
    wait_until("the leader is alone", lambda: list(world.state.isr) == [leader])
    world.brokers.brokers[leader].kill()
    log.rename(tmp_path / "newer")
    (tmp_path / "older").rename(log)
    world.brokers.restart(leader)
    world.brokers.restart(stopped)
    wait_until("it stops", lambda: "takes no part in replication until a restart" in world.output(stopped))

    world.brokers.brokers[leader].kill()
    log.rename(tmp_path / "moved-away")
    world.brokers.brokers[stopped].kill()
    world.brokers.restart(stopped)
    wait_until("the leader's broker is gone", lambda: list(world.cluster.brokers) == [stopped])
    world.elect(stopped)
    wait_until("the stopped replica leads", lambda: world.state.leader == stopped)
    world.brokers.restart(leader)
    world.until_in_sync()
    assert world.state.leader == stopped
    world.check()
