"""Topics with several replicas on real brokers: what was acknowledged or shown survives any one of them.

Promised is what a delivery report of an acks=all producer or a consumer was told. After each round of faults
every topic is compared with every promise, what each producer sent is there once and in order, and `millrace
log compare` finds the replicas equal. In the end all replicas' files are, byte by byte.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TypeAlias

import confluent_kafka
import confluent_kafka.admin
import pytest

from millrace.client.cluster_client import EARLIEST, LATEST
from millrace.errors import MillraceError
from millrace.wire.messages import ApiKey
from millrace.zookeeper.topic_state import NO_LEADER, PartitionState
from millrace_broker.coordination.cluster import Cluster
from millrace_broker.storage.comparison import Comparison, compare
from millrace_consumer import Consumer
from tests import consuming
from tests.brokers import TestCluster, read_partition, read_topic, wait_for_values
from tests.consuming import BACK, THERE, Proxy
from tests.integration.faults.disk import Disk
from tests.integration.faults.ledger import Ledger
from tests.integration.faults.traffic import LZ4, PLAIN, NumberedProducer, Reader, run, run_until_stored
from tests.support import ROUNDS, Process, run_millrace, wait_until

pytestmark = pytest.mark.soak

Start = Callable[..., Process]
BROKERS = (1, 2, 3)
PARTITIONS = 2
SETTINGS = "default_replicas = 3\nreplica_lag_ms = 2000\n"
GO_ON_S = 60.0
"""The longest that producers may wait for whoever is left; only to end a test that hangs."""


class Traffic:
    """A topic with so many replicas, what was promised of it, and clients that go on through every fault."""

    def __init__(
        self, brokers: TestCluster, cluster: Cluster, topic: str, replicas: int, minimum: int
    ) -> None:
        self.topic, self.replicas = topic, replicas
        self._cluster, self._brokers = cluster, brokers
        settings = {"segment.bytes": "200000", "flush.ms": "20", "min.insync.replicas": str(minimum)}
        with brokers.client() as client:
            client.create_topic(topic, PARTITIONS, settings, replicas=replicas)
        self.ledger = Ledger(topic)
        kinds = (PLAIN, LZ4)
        self.producers = [
            NumberedProducer(brokers.bootstrap, self.ledger, kind, PARTITIONS) for kind in kinds
        ]
        self.reader = Reader(brokers.bootstrap, self.ledger, PARTITIONS)

    def state(self, partition: int = 0) -> PartitionState:
        topic = self._cluster.topics.get(self.topic)
        assert topic is not None
        return topic.partitions[partition]

    def leader(self, partition: int = 0) -> int:
        return wait_until("there is a leader", lambda: max(0, self.state(partition).leader))

    def until_in_sync(self) -> None:
        def in_sync() -> bool:
            states = [self.state(partition) for partition in range(PARTITIONS)]
            return all(len(state.isr) == self.replicas and state.leader > 0 for state in states)

        wait_until(f"all replicas of {self.topic} are in sync", in_sync)

    def check(self, where: str, *, whole: bool = False) -> None:
        """Every promise is kept; what was sent is there once and in order, and with `whole` all of it."""
        with self._brokers.client() as client:
            found = self.ledger.check(client, range(PARTITIONS), where)
        for partition in range(PARTITIONS):
            for producer in self.producers:
                producer.check(partition, found[partition], whole=whole)
            if whole:
                self.reader.wait_for(partition, found[partition])
        assert not self.reader.problems, f"{where}: {self.reader.problems[0]}"


class World:
    """Brokers on disks that may lose power, each with its own way to a ZooKeeper that may be killed."""

    def __init__(self, start: Start, folder: Path, chance: random.Random) -> None:
        self.name, self.chance = f"replicated-{folder.name}", chance
        self._start, self._zookeeper_data = start, str(folder / "zookeeper")
        self.zookeeper = start("zookeeper", "--port", "0", "--data-dir", self._zookeeper_data)
        self.zookeeper_address = self.zookeeper.ready()
        self.ways = {broker: Proxy(self.zookeeper_address) for broker in BROKERS}
        limit = chance.choice([-1, 1_000_000])
        print(f"replica_catch_up_bytes_per_second = {limit}")
        settings = f"{SETTINGS}replica_catch_up_bytes_per_second = {limit}\n"
        self.brokers = TestCluster(self._start_broker, self.name, folder, self.zookeeper_address, settings)
        self.disks = {
            broker: Disk(folder / f"disk-{broker}", self.brokers.directory(broker), chance)
            for broker in BROKERS
        }
        self.brokers.start_brokers(*BROKERS)
        self.cluster = Cluster.connect(self.zookeeper_address, self.name, create=False)
        self.topics: list[Traffic] = []

    def create(self, topic: str, replicas: int, minimum: int) -> Traffic:
        self.topics.append(Traffic(self.brokers, self.cluster, topic, replicas, minimum))
        return self.topics[-1]

    def close(self) -> None:
        self.cluster.close()
        for way in self.ways.values():
            way.close()

    def _start_broker(self, *arguments: str, **options: object) -> Process:
        broker = int(Path(arguments[1]).stem.rpartition("-")[2])
        env = {**self.disks[broker].env, "DISK_PACE": "1"}
        return self._start(*arguments, "--set", f"zookeeper={self.ways[broker].address}", env=env, **options)

    def process(self, broker: int) -> Process:
        return self.brokers.brokers[broker].process

    @property
    def producers(self) -> list[NumberedProducer]:
        return [producer for traffic in self.topics for producer in traffic.producers]

    def start_zookeeper(self) -> None:
        """At its old address, with what is on its disk."""
        port = self.zookeeper_address.rpartition(":")[2]
        self.zookeeper = self._start("zookeeper", "--port", port, "--data-dir", self._zookeeper_data)
        self.zookeeper.ready()

    def check(self, where: str) -> None:
        """Every promise is kept, and all replicas have the same bytes."""
        for traffic in self.topics:
            traffic.until_in_sync()
            traffic.check(where)
        for comparison in wait_until("all checkpoints are written", self._compared):
            assert comparison.difference is None, f"{where}: {comparison}"

    def _compared(self) -> list[Comparison]:
        try:
            return list(compare([self.brokers.directory(broker) for broker in BROKERS]))
        except MillraceError:
            return []  # a log that has just begun

    def finish(self) -> None:
        """Everything that was sent is there once and in order, and all replicas have the same bytes."""
        for producer in self.producers:
            producer.finish()
        self.check("at the end")
        for traffic in self.topics:
            traffic.check("at the end", whole=True)
        for broker in BROKERS:
            self.process(broker).stop()
        for traffic in self.topics:
            for partition in range(PARTITIONS):
                first, *others = (
                    self._files(broker, f"{traffic.topic}-{partition}")
                    for broker in traffic.state(partition).replicas
                )
                assert sum(map(len, first.values())) > 0
                for other in others:
                    assert other == first, f"the replicas of {traffic.topic}-{partition} differ"
        compared = run_millrace(
            "log", "compare", *(str(self.brokers.directory(broker)) for broker in BROKERS)
        )
        assert compared.returncode == 0, compared.stdout + compared.stderr

    def _files(self, broker: int, partition: str) -> dict[str, bytes]:
        """The contents of a replica's files that have any."""
        (folder,) = self.brokers.directory(broker).glob(f"{partition}-*")
        return {path.name: content for path in sorted(folder.glob("*.log")) if (content := path.read_bytes())}


# Faults: each is there inside its `with`, and over behind it


@contextmanager
def _stopped(world: World, broker: int) -> Iterator[None]:
    """As for an upgrade: others lead what it led."""
    led = [(traffic, n) for traffic in world.topics for n in range(PARTITIONS) if traffic.leader(n) == broker]
    epochs = [traffic.state(n).leader_epoch for traffic, n in led]
    world.process(broker).stop()
    wait_until(
        f"others lead what broker {broker} led",
        lambda: all(
            traffic.state(n).leader_epoch > epoch for (traffic, n), epoch in zip(led, epochs, strict=True)
        ),
    )
    yield
    world.brokers.restart(broker)


@contextmanager
def _killed(world: World, broker: int) -> Iterator[None]:
    world.process(broker).kill()
    if world.chance.random() < 0.5:  # else it is away for longer than its session
        world.brokers.restart(broker)
        yield
        return
    yield
    world.brokers.restart(broker)


@contextmanager
def _power_cut(world: World, broker: int) -> Iterator[None]:
    world.process(broker).kill()
    world.disks[broker].cut_power()
    yield
    world.brokers.restart(broker)


@contextmanager
def _disk_lost(world: World, broker: int) -> Iterator[None]:
    world.process(broker).kill()
    shutil.rmtree(world.brokers.directory(broker))
    world.disks[broker].begin_anew()
    yield
    world.brokers.restart(broker)


@contextmanager
def _standing_still(world: World, broker: int) -> Iterator[None]:
    """Longer than ZooKeeper's session and the allowed lag: nothing is committed until it is out."""
    world.process(broker).signal(signal.SIGSTOP)
    try:
        yield
    finally:
        world.process(broker).signal(signal.SIGCONT)


@contextmanager
def _cut_off_from_zookeeper(world: World, broker: int) -> Iterator[None]:
    """Nothing passes any more, or what it says does not get there, or what it is told does not come back."""
    world.ways[broker].cut(*world.chance.choice([(THERE, BACK), (THERE,), (BACK,)]))
    time.sleep(world.chance.choice([0.0, 3.0]))  # as long as its session, or not
    yield
    world.ways[broker].mend()


@contextmanager
def _zookeeper_killed(world: World, _: int) -> Iterator[None]:
    world.zookeeper.kill()
    yield
    world.start_zookeeper()


@contextmanager
def _all_lost_power(world: World, _: int) -> Iterator[None]:
    for broker in BROKERS:
        world.process(broker).signal(signal.SIGKILL)
    for broker in BROKERS:
        world.process(broker).wait()
        world.disks[broker].cut_power()
    run(world.producers, 0.2)
    for broker in BROKERS:
        world.brokers.restart(broker)
    yield


Fault: TypeAlias = Callable[[World, int], AbstractContextManager[None]]
OF_ONE_BROKER: Sequence[Fault] = (
    _stopped,
    _killed,
    _power_cut,
    _disk_lost,
    _standing_still,
    _cut_off_from_zookeeper,
)
FAULTS: Sequence[Fault] = (*OF_ONE_BROKER, _zookeeper_killed, _all_lost_power)
SHORT: Sequence[Fault] = (_disk_lost, _cut_off_from_zookeeper, _standing_still, _all_lost_power)


def _strike(world: World, where: str, *faults: tuple[Fault, int]) -> None:
    """Have faults come one after the other while clients go on; one alone stops nobody for long."""
    traffic = world.topics[0]
    with ExitStack() as there:
        for fault, broker in faults:
            run(world.producers, world.chance.uniform(0, 0.3))
            there.enter_context(fault(world, broker))
        run(world.producers, world.chance.uniform(0, 1.0))
        if len(faults) == 1:
            _go_on(world, traffic, where)
    _go_on(world, traffic, where)
    world.check(where)


def _go_on(world: World, traffic: Traffic, where: str) -> None:
    """Until more is acknowledged of this topic; the producers of the others go on as they can."""
    goals = [producer.stored_count + 30 for producer in traffic.producers]
    deadline = time.monotonic() + GO_ON_S
    while any(one.stored_count < goal for one, goal in zip(traffic.producers, goals, strict=True)):
        assert time.monotonic() < deadline, f"{where}: producers cannot go on for {GO_ON_S:.0f} s"
        run(world.producers, 0.02)


@pytest.mark.slow
@pytest.mark.parametrize("minimum", [pytest.param(1, marks=pytest.mark.long), 2])
def test_what_was_acknowledged_or_shown_survives_what_happens_to_brokers_disks_and_zookeeper(
    start: Start, tmp_path: Path, minimum: int
) -> None:
    """`minimum` is that of the topic with two replicas: with 1 no disk may be lost, with 2 one at a time."""
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    world = World(start, tmp_path, chance)
    try:
        triple, pair = world.create("triple", 3, 2), world.create("pair", 2, minimum)
        with triple.reader, pair.reader:
            run_until_stored(world.producers, 30, timeout_s=GO_ON_S)
            for number, faults in enumerate(_drawn(chance, minimum)):
                leader = triple.leader(number % PARTITIONS)
                others = [broker for broker in BROKERS if broker != leader]
                chance.shuffle(others)
                struck = [leader, *others] if number % 2 == 0 else [*others, leader]
                names = [
                    f"{getattr(fault, '__name__', fault)} of broker {broker}"
                    for fault, broker in zip(faults, struck, strict=False)
                ]
                where = f"seed {seed}, round {number}: {', '.join(names)}"
                print(f"{time.strftime('%H:%M:%S')} {where}", flush=True)
                _strike(world, where, *zip(faults, struck, strict=False))
            world.finish()
    finally:
        world.close()
    lost = sum(disk.lost_bytes for disk in world.disks.values())
    print(f"seed {seed}: {sum(each.ledger.count for each in world.topics)} promises kept, {lost} bytes lost")


def _drawn(chance: random.Random, minimum: int) -> list[list[Fault]]:
    """The faults of each round: of a short run one each, in a soak sometimes two of different brokers."""
    if "MILLRACE_ROUNDS" not in os.environ:
        return [[fault] for fault in chance.sample(SHORT, len(SHORT))]
    rounds = []
    for _ in range(ROUNDS):
        faults = [chance.choice([fault for fault in FAULTS if fault is not _disk_lost or minimum > 1])]
        if faults[0] in OF_ONE_BROKER and chance.random() < 0.3:
            others = [one for one in OF_ONE_BROKER if one is not faults[0] and one is not _stopped]
            second = chance.choice([*others, _zookeeper_killed])
            if second is not _disk_lost or minimum > 1:
                faults.append(second)
        rounds.append(faults)
    return rounds


@pytest.mark.slow
def test_our_own_consumer_and_a_mirror_read_each_message_once_while_leaders_are_killed_and_cut_off(
    start: Start, tmp_path: Path
) -> None:
    """A leader that is cut off from ZooKeeper does not know that others lead: nobody may go back to it."""
    seed = random.randrange(1 << 30)
    world = World(start, tmp_path, random.Random(seed))
    traffic = world.create("traffic", 3, 2)
    mirror = f'[mirror.origin]\nbootstrap = "{world.brokers.bootstrap}"\ntopics = ["traffic"]\n'
    target = TestCluster(start, f"target-{tmp_path.name}", tmp_path, world.zookeeper_address, mirror)
    target.start_brokers(1)
    reader = consuming.Reader.start(Consumer(world.zookeeper_address, world.name, "all"), {"traffic": 1})
    try:
        for number, fault in enumerate((_cut_off_from_zookeeper, _killed, _cut_off_from_zookeeper)):
            where = f"seed {seed}, round {number}: {fault.__name__}"
            _strike(world, where, (fault, traffic.leader(number % PARTITIONS)))
        for producer in traffic.producers:
            producer.finish()
        with world.brokers.client() as client:
            sent = {partition: each.values for partition, each in read_topic(client, "traffic").items()}
        count = sum(map(len, sent.values()))
        wait_until("all is consumed", lambda: len(reader.messages) >= count)
        messages = sorted(reader.messages, key=lambda message: message.partition)  # keeps their order
        for partition, values in sent.items():
            assert [one.value for one in messages if one.partition == partition] == values
        with target.client() as client:
            wait_for_values(client, "traffic", count)
            copies = [each.values for each in read_topic(client, "traffic").values()]
        assert sorted(copies) == sorted(sent.values())
    finally:
        reader.close()
        world.close()


@pytest.mark.slow
def test_a_mirror_goes_on_where_another_broker_leads_its_target(
    start: Start, zookeeper: str, tmp_path: Path
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


@pytest.mark.slow
def test_records_that_were_deleted_stay_so_when_another_replica_leads(start: Start, tmp_path: Path) -> None:
    world = World(start, tmp_path, random.Random(1))
    traffic = world.create("traffic", 3, 2)
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
    leader = traffic.leader()
    world.brokers.brokers[leader].kill()
    wait_until("another one leads", lambda: traffic.state().leader not in (leader, NO_LEADER))
    with world.brokers.client() as client:
        assert client.list_offsets("traffic", EARLIEST)[0] == end
    world.close()


def test_a_stranger_that_takes_all_connections_and_all_memory_does_not_make_followers_fall_out(
    start: Start, zookeeper: str, tmp_path: Path
) -> None:
    limits = "max_connections = 30\nmax_frame_bytes = 1_100_000\nmax_buffered_bytes = 2_200_000\n"
    settings = f"replica_lag_ms = 10_000\n{limits}log.max_message_bytes = 1_000_000\n"
    name = f"crowded-{tmp_path.name}"
    brokers = TestCluster(start, name, tmp_path, zookeeper, settings).start_brokers(1, 2)
    with Cluster.connect(zookeeper, name, create=False) as cluster, brokers.client() as client:
        client.create_topic("wanted", 1, {"min.insync.replicas": "2"}, replicas=2)
        leader = wait_until("the topic is led", lambda: _leader_of(cluster, "wanted"))
        producer = confluent_kafka.Producer({"bootstrap.servers": brokers.bootstrap, "acks": "all"})
        producer.produce("wanted", b"before")
        assert producer.flush(60) == 0
        with Stranger(brokers.brokers[leader].address) as stranger:
            wait_until("it is refused", lambda: stranger.refused > 100)
            follower = 3 - leader
            brokers.brokers[follower].kill()
            wait_until("the follower is out", lambda: len(cluster.topics["wanted"].partitions[0].isr) == 1)
            brokers.restart(follower)
            wait_until("it is in sync", lambda: len(cluster.topics["wanted"].partitions[0].isr) == 2)
            for _ in range(20):  # each is acknowledged when the follower has it
                producer.produce("wanted", b"meanwhile")
                assert producer.flush(GO_ON_S) == 0
            assert len(cluster.topics["wanted"].partitions[0].isr) == 2


class Stranger:
    """Opens as many connections as it gets, with a large unfinished request on each; a context manager."""

    def __init__(self, address: str) -> None:
        host, _, port = address.partition(":")
        self._address = (host, int(port))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stranger", daemon=True)
        self.refused = 0

    def __enter__(self) -> Stranger:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)

    def _run(self) -> None:
        held: list[socket.socket] = []
        while not self._stop.is_set():
            with contextlib.suppress(OSError):
                one = socket.create_connection(self._address, timeout=1)
                one.setblocking(False)
                one.send(struct.pack(">ihhi", 1_000_000, ApiKey.PRODUCE, 7, 1) + bytes(500_000))
                held.append(one)
            if len(held) > 200:
                ended = [one for one in held if _has_ended(one)]
                self.refused += len(ended)
                for one in ended or held[:100]:
                    one.close()
                    held.remove(one)
            time.sleep(0.002)
        for one in held:
            one.close()


def _has_ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _leader_of(cluster: Cluster, topic: str) -> int:
    state = cluster.topics.get(topic)
    return max(0, state.partitions[0].leader) if state is not None and state.partitions else 0


def _other_leader(cluster: Cluster, gone: int) -> int:
    leader = _leader_of(cluster, "copied")
    return 0 if leader == gone else leader
