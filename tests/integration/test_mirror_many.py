"""A mirror of many topics: what appears is copied by itself, and no origin stands in another's way."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from millrace.client.cluster_client import LATEST, ClusterClient
from millrace.client.group_client import GroupClient
from millrace.client.topic_admin import add_partitions
from millrace.errors import UnknownTopicOrPartition
from tests.brokers import TestCluster, free_port, read_topic, wait_for_values
from tests.support import WAIT_S, Process, run_millrace, wait_until

Start = Callable[..., Process]
LIMIT = 1_000_000


class Trickle:
    """A broker that answers every request with a length of 100 MB and then a byte a second."""

    def __init__(self, answer: bytes, pause_s: float) -> None:
        self._answer, self._pause_s = answer, pause_s
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._stopping = threading.Event()
        self.clients = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while not self._stopping.is_set():
            with suppress(OSError):
                client, _ = self._server.accept()
                self.clients += 1
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            client.recv(65_536)
            client.sendall(self._answer)
            while self._pause_s and not self._stopping.wait(self._pause_s):
                client.sendall(b"\0")

    def close(self) -> None:
        self._stopping.set()
        self._server.close()


def produce(bootstrap: str, topic: str, values: list[bytes], partition: int = -1) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "acks": "all", "batch.size": 50_000})
    failed: list[object] = []
    for value in values:
        producer.produce(
            topic,
            value,
            partition=partition,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
        producer.poll(0)
    assert producer.flush(WAIT_S) == 0
    assert failed == []


@dataclass
class World:
    """Two good origins, one that is down, one slow, one that talks nonsense; an aggregate of all."""

    dc1: TestCluster
    dc2: TestCluster
    aggregate: TestCluster
    metrics: str

    @property
    def config(self) -> str:
        return str(self.aggregate.brokers[1].config)

    def topic(self, cluster: TestCluster, name: str, partitions: int = 1) -> str:
        with cluster.client() as client:
            client.create_topic(name, partitions)
        return name

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        text = urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=10).read().decode()
        lines = [line for line in text.splitlines() if line.startswith(f"millrace_broker_{name}")]
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if all(part in line for part in wanted))


@pytest.fixture(scope="module")
def world(
    zookeeper: str, start_for_module: Start, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    folder, run = tmp_path_factory.mktemp("many"), uuid4().hex[:6]
    flush = "[log]\nflush_ms = 20\n"
    dc1 = TestCluster(start_for_module, f"dc1-{run}", folder, zookeeper, flush).start_brokers(1)
    dc2 = TestCluster(start_for_module, f"dc2-{run}", folder, zookeeper, flush).start_brokers(1)
    slow, nonsense = (
        Trickle((100 << 20).to_bytes(4, "big"), 1.0),
        Trickle(b"HTTP/1.1 400 Bad Request\r\n\r\n", 0),
    )
    metrics = f"127.0.0.1:{free_port()}"
    settings = f'metrics_listen = "{metrics}"\n{flush}' + "".join(
        f"[mirror.{name}]\nbootstrap = {json.dumps(bootstrap)}\n{rest}\n"
        for name, bootstrap, rest in (
            ("down", f"127.0.0.1:{free_port()}", 'topics = ["*"]'),
            ("slow", slow.address, 'topics = ["*"]'),
            ("nonsense", nonsense.address, 'topics = ["*"]'),
            ("dc1", dc1.bootstrap, 'topics = ["*"]\nexclude = ["private*"]\nbatch_topics = ["batch-?"]'),
            ("dc2", dc2.bootstrap, f'topics = ["*"]\nmax_bytes_per_second = {LIMIT}'),
        )
    )
    aggregate = TestCluster(start_for_module, f"agg-{run}", folder, zookeeper, settings).start_brokers(1)
    yield World(dc1, dc2, aggregate, metrics)
    slow.close()
    nonsense.close()


@pytest.mark.slow
def test_what_appears_at_an_origin_is_copied_by_itself(world: World) -> None:
    produce(world.dc1.bootstrap, world.topic(world.dc1, "New"), [b"1", b"2"])
    world.topic(world.dc1, "private-notes")
    world.topic(world.dc1, "batch-1")
    with world.aggregate.client() as client:
        assert wait_for_values(client, "New", 2)[0].values == [b"1", b"2"]
        with world.dc1.client() as origin:
            add_partitions(origin, "New", 3)
        produce(world.dc1.bootstrap, "New", [b"3"], partition=2)
        wait_for_values(client, "New", 3)
        wait_until("it has targets and no copy", lambda: "batch-1" in client.topics())
        assert "private-notes" not in client.topics()
        # The same name at another origin: partitions of its own, in one topic.
        produce(world.dc2.bootstrap, world.topic(world.dc2, "New"), [b"4"])
        found = wait_for_values(client, "New", 4)
        assert len(found) == 4
    state = run_millrace("mirror", "status", world.config, "--json")
    assert state.returncode == 0, state.stderr
    rows = {(row["topic"], row["origin"]["cluster"]): row for row in json.loads(state.stdout)}
    assert rows["batch-1", "dc1"]["state"] == "batch"
    assert rows["New", "dc1"]["latency_ms"] is not None
    assert rows["New", "dc1"]["lag"] == 0
    assert world.metric("mirror_records_total", origin="dc1") >= 3
    assert world.metric("mirror_latency_seconds_count", origin="dc2") >= 1
    table = run_millrace("mirror", "status", world.config)
    assert "latency" in table.stdout
    assert "dc2" in table.stdout


def test_a_mirrored_topic_is_never_mirrored_back(
    world: World, start_for_module: Start, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """`back` and the aggregate mirror each other's everything: what one has from the other stays there."""
    folder, name = tmp_path_factory.mktemp("back"), f"back-{uuid4().hex[:6]}"
    settings = f'[mirror.agg]\nbootstrap = {json.dumps(world.aggregate.bootstrap)}\ntopics = ["*"]\n'
    back = TestCluster(start_for_module, name, folder, world.dc1.zookeeper, settings).start_brokers(1)
    produce(world.dc1.bootstrap, world.topic(world.dc1, "Copied"), [b"1"])
    produce(world.aggregate.bootstrap, world.topic(world.aggregate, "Own"), [b"2"])
    world.topic(world.aggregate, "audit-offline")
    with back.client() as client, world.aggregate.client() as aggregate:
        wait_for_values(aggregate, "Copied", 1)
        wait_for_values(client, "Own", 1)
        wait_until("it has looked again", lambda: "Own" in client.topics())
        assert {"Copied", "New", "audit-offline"}.isdisjoint(client.topics())
    back.brokers[1].process.stop()


@pytest.mark.slow
def test_a_limit_paces_one_origin_and_no_other(world: World) -> None:
    value = bytes(10_000)
    names = [world.topic(world.dc2, "Limited-a"), world.topic(world.dc2, "Limited-b", 2)]
    for topic in names:
        produce(world.dc2.bootstrap, topic, [value] * 300)
    world.topic(world.dc1, "Quick")
    with world.aggregate.client() as client:
        wait_until("both are known", lambda: set(names) <= client.topics().keys())
        seen = [measured(client, names)]
        produce(world.dc1.bootstrap, "Quick", [value] * 300)
        wait_for_values(client, "Quick", 300)
        while seen[-1][2] < 5_500_000:
            assert time.monotonic() < seen[0][0] + 60
            time.sleep(0.1)
            seen.append(measured(client, names))
        total = wait_for_values(client, "Limited-b", 300)
        assert sum(len(each.records) for each in total.values()) == 300, "nothing is dropped"
    # In any window: the rate's share, a bucket of a quarter of a second, and one fetch of that size.
    for at, _, size in seen:
        for _, later, grown in seen:
            if later > at:
                assert grown - size <= LIMIT * (later - at) + LIMIT * 0.75


def measured(client: ClusterClient, topics: list[str]) -> tuple[float, float, int]:
    """Return the amount copied and the times before and after counting, far apart on a busy machine."""
    before, size = time.monotonic(), copied_bytes(client, topics)
    return before, time.monotonic(), size


def copied_bytes(client: ClusterClient, topics: list[str]) -> int:
    return sum(sum(client.list_offsets(topic, LATEST).values()) for topic in topics)


def test_a_limit_changes_without_losing_anything(world: World) -> None:
    topic = world.topic(world.dc2, "Relimited")
    produce(world.dc2.bootstrap, topic, [b"%d" % n + bytes(10_000) for n in range(300)])
    with world.aggregate.client() as client:
        wait_until(
            "some of it is copied", lambda: topic in client.topics() and copied_bytes(client, [topic]) > 0
        )
    broker = world.aggregate.brokers[1]
    assert broker.process.stop() == 0
    text = broker.config.read_text()
    broker.config.write_text(
        text.replace(f"max_bytes_per_second = {LIMIT}", "max_bytes_per_second = 50000000")
    )
    world.aggregate.restart(1)
    with world.aggregate.client() as client:
        found = wait_for_values(client, topic, 300)
    assert [int((value or b"").rstrip(b"\0")) for value in found[0].values] == list(range(300))


def test_threads_do_not_grow_with_topics(world: World) -> None:
    names = [world.topic(world.dc1, f"Topic-{number}") for number in range(60)]
    produce(world.dc1.bootstrap, names[-1], [b"last"])
    with world.aggregate.client() as client:
        wait_for_values(client, names[-1], 1)
        wait_until("all have targets", lambda: set(names) <= client.topics().keys())
    status = Path(f"/proc/{world.aggregate.brokers[1].process.pid}/status").read_text()
    (threads,) = [int(line.split()[1]) for line in status.splitlines() if line.startswith("Threads:")]
    # Five origins, and pools that are filled as they are needed: on a busy machine up to about fifty.
    assert threads < len(names)


@pytest.mark.slow
def test_a_group_moves_to_the_aggregate_and_back_message_by_message(world: World) -> None:
    topic = world.topic(world.dc1, "Moving", 2)
    values = [b"%d" % number for number in range(400)]
    for start in range(0, 400, 50):
        for partition in (0, 1):
            produce(world.dc1.bootstrap, topic, values[start + 25 * partition :][:25], partition)
    with world.aggregate.client() as client:
        wait_for_values(client, topic, 400)
    options = ["--origin", "dc1", "--group", "movers"]
    read = consume(world.dc1.bootstrap, topic, 150)
    moved = run_millrace("mirror", "translate", world.config, *options, "--apply", "--json")
    assert moved.returncode == 0, moved.stderr
    assert {row["outcome"] for row in json.loads(moved.stdout)} == {"translated"}
    read += consume(world.aggregate.bootstrap, topic, 150)
    back = run_millrace("mirror", "translate", world.config, *options, "--reverse", "--apply")
    assert back.returncode == 0, back.stderr
    assert "committed 2 offsets" in back.stdout
    read += consume(world.dc1.bootstrap, topic, 100)
    assert sorted(read, key=int) == values, "each once"

    single = ["mirror", "translate", world.config, topic, "--origin", "dc1", "--partition", "0", "--offset"]
    (first,) = json.loads(run_millrace(*single, "0", "--json").stdout)
    assert first["outcome"] == "translated"
    with world.aggregate.client() as client:
        copies = read_topic(client, topic)
    record = copies[first["partition"]].records[0]
    assert first["translated"] <= record.offset < first["translated"] + 2_000
    beyond = run_millrace(*single, "99999999")
    assert beyond.returncode == 1
    assert "not copied yet" in beyond.stderr
    assert "give TOPIC" in run_millrace("mirror", "translate", world.config, "--origin", "dc1").stderr


def consume(bootstrap: str, topic: str, count: int) -> list[bytes]:
    """Read so many messages as group `movers`, commit behind the last, leave."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "movers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    found: list[bytes] = []
    ends: dict[int, int] = {}
    give_up_at = time.monotonic() + 30
    while len(found) < count:
        assert time.monotonic() < give_up_at, f"{len(found)} of {count}"
        message = consumer.poll(0.5)
        if message is not None:
            assert message.error() is None
            found.append(message.value() or b"")
            ends[message.partition() or 0] = (message.offset() or 0) + 1
    offsets = [TopicPartition(topic, partition, end) for partition, end in ends.items()]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()
    return found


def known_everywhere(client: ClusterClient, topic: str, partitions: int) -> bool:
    with suppress(UnknownTopicOrPartition):
        return len(client.list_offsets(topic, LATEST)) == partitions
    return False


def test_a_broker_that_joins_gets_its_share_of_what_is_new(world: World) -> None:
    with world.aggregate.client() as client:
        before = {name: dict(topic.partitions) for name, topic in client.topics().items()}
    second = TestCluster(
        world.aggregate.start,
        world.aggregate.name,
        world.aggregate.folder,
        world.aggregate.zookeeper,
        world.aggregate.settings.replace(world.metrics, f"127.0.0.1:{free_port()}"),
    ).start_brokers(2)
    with world.aggregate.client() as client:
        wait_until("the first broker knows it", lambda: client.broker_ids() == [1, 2])
    own = world.topic(world.aggregate, "AfterJoining", 4)
    mirrored = world.topic(world.dc1, "MirroredAfterJoining", 4)
    produce(world.dc1.bootstrap, mirrored, [b"%d" % number for number in range(40)])
    with world.aggregate.client() as client:
        wait_until("both brokers know all four", lambda: known_everywhere(client, mirrored, 4))
        wait_for_values(client, mirrored, 40)
        after = {name: dict(topic.partitions) for name, topic in client.topics().items()}
        assert {name: after[name] for name in before} == before, "what was there stays where it is"
        assert sorted(after[own].values()) == [1, 1, 2, 2]
        assert sorted(after[mirrored].values()) == [1, 1, 2, 2]
        add_partitions(client, own, 6)
        wait_until("they are there", lambda: len(client.topic(own).partitions) == 6)
        assert sorted(client.topic(own).partitions.values()) == [1, 1, 1, 2, 2, 2]
    assert second.brokers[2].process.running


@pytest.mark.slow
def test_a_group_that_has_committed_in_an_empty_partition_moves_and_misses_nothing_there(
    world: World,
) -> None:
    topic, group = world.topic(world.dc1, "Sparse", 2), "early"
    produce(world.dc1.bootstrap, topic, [b"read"], 0)
    with world.dc1.client() as client, world.aggregate.client() as aggregate:
        end = client.bounds(topic, 0)[1]
        GroupClient(client).commit(group, {(topic, 0): end, (topic, 1): 0})  # as Java's consumer commits
        wait_for_values(aggregate, topic, 1)
        options = ["mirror", "translate", world.config, "--origin", "dc1", "--group", group, "--json"]
        moved = run_millrace(*options, "--apply")
        assert moved.returncode == 0, moved.stderr
        empty = next(row["partition"] for row in json.loads(moved.stdout) if row["origin_partition"] == 1)
        assert GroupClient(aggregate).offsets(group)[topic, empty] == 0
        back = json.loads(run_millrace(*options, "--reverse").stdout)
        assert {row["origin_partition"]: row["translated"] for row in back} == {0: end, 1: 0}
        produce(world.dc1.bootstrap, topic, [b"first"], 1)
        copies = wait_for_values(aggregate, topic, 2)
        assert copies[empty].values == [b"first"]
