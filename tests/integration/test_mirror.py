"""Two real clusters and the mirror between them: equal records in order, whatever is killed."""

from __future__ import annotations

import json
import shutil
import threading
import time
import tomllib
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import KafkaError, Producer

from millrace.client.cluster_client import ClusterClient
from millrace.client.examine import fetch, offset_rules
from millrace.client.group_client import GroupClient
from millrace.client.runs import OffsetRules, Run, beginning, runs_of
from millrace.config import BrokerConfig, load
from millrace.errors import BrokerError, PolicyViolation
from millrace.records.mirror_position import Origin, PositionMismatch
from millrace.wire.mirror_append import MirrorAppend, MirrorMode
from millrace_broker.coordination.cluster import Cluster
from millrace_mirror.status import MirrorRow, MirrorStatus
from tests.brokers import TestCluster, read_topic, wait_for_values
from tests.compat.clients import CLIENTS, CODECS, CONFLUENT, KafkaClient, assert_reads_exactly
from tests.support import ROUNDS, WAIT_S, Process, run_millrace, wait_until

Start = Callable[..., Process]


def produce(bootstrap: str, topic: str, values: list[str], codec: str = "none", partition: int = -1) -> None:
    """Produce and wait until every record is on the disk."""
    failed: list[KafkaError | None] = []
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 2, "compression.type": codec, "acks": "all"}
    )
    for value in values:
        producer.produce(
            topic,
            value,
            key=value[:3],
            headers=[("h", b"x")],
            partition=partition,
            on_delivery=lambda error, _: failed.append(error),
        )
        producer.poll(0)
    assert producer.flush(WAIT_S) == 0
    assert not any(failed)


@dataclass
class World:
    """One origin, dc1, and an aggregate cluster of two brokers that mirrors it."""

    origin: TestCluster
    aggregate: TestCluster

    def topic(self, topic: str, partitions: int = 3, **settings: str) -> None:
        with self.origin.client() as client:
            client.create_topic(topic, partitions, {k.replace("_", "."): v for k, v in settings.items()})

    def status(self) -> dict[tuple[str, int], MirrorRow]:
        """(topic, origin partition) -> the row of `mirror status`, without partitions that are history."""
        config = load(BrokerConfig, self.aggregate.brokers[1].config)
        with (
            Cluster.connect(config.zookeeper, config.cluster) as cluster,
            closing(MirrorStatus(cluster, config.mirror)) as found,
        ):
            rows = [row for row in found.rows() if row.state != "retired"]
        return {(row.topic, row.origin.partition): row for row in rows}

    def leader_says(self, origin: Origin) -> str:
        """Ask the target's leader alone about the partition; return its description."""
        with self.aggregate.client() as client:
            request = MirrorAppend(mode=MirrorMode.DESCRIBE, origin=origin)
            return client.mirror_append(origin.topic, request).state

    def are_on(self, topic: str, partition: int, brokers: tuple[int, ...]) -> bool:
        """Return whether `brokers` have the partition of the aggregate cluster, all in sync."""
        with self.aggregate.client() as client:
            found = client.topic(topic).copies[partition]
        return found.replicas == brokers and set(found.isr) == set(brokers)

    def await_state(self, topic: str, state: str) -> MirrorRow:
        """The row of the topic's partition 0, once its state is as named."""
        wait_until(f"{topic} is {state}", lambda: self.status()[topic, 0].state == state)
        return self.status()[topic, 0]

    def assert_equal(self, topic: str, count: int, *, timeout_s: float = WAIT_S) -> None:
        """Each origin partition and its target hold the same batches in the same order, `count` records."""
        with self.origin.client() as origin, self.aggregate.client() as aggregate:
            wait_for_values(origin, topic, count, timeout_s=timeout_s)
            wait_for_values(aggregate, topic, count, timeout_s=timeout_s)
            originals, copies = read_topic(origin, topic), read_topic(aggregate, topic)
            topic_id = origin.topic(topic).topic_id
            for number, original in originals.items():
                request = MirrorAppend(
                    mode=MirrorMode.DESCRIBE, origin=Origin("dc1", topic, topic_id, number)
                )
                copy = copies[aggregate.mirror_append(topic, request).partition]
                assert copy.batches == original.batches
                assert [(r.timestamp, r.key, r.value, r.headers) for r in copy.records] == [
                    (r.timestamp, r.key, r.value, r.headers) for r in original.records
                ]
            assert sum(len(each.records) for each in copies.values()) == count


class Traffic:
    """Records produced to a topic of the origin, 200 by 200 in every codec, until the block ends."""

    def __init__(self, world: World, topic: str) -> None:
        self.produced = 0
        self._world, self._topic = world, topic
        self._stop = threading.Event()
        self._failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._produce)

    def _produce(self) -> None:
        try:
            while not self._stop.is_set():
                values = [f"{self.produced + i}" for i in range(200)]
                codec = CODECS[self.produced // 200 % len(CODECS)]
                produce(self._world.origin.bootstrap, self._topic, values, codec)
                self.produced += 200
        except BaseException as error:
            self._failures.append(error)

    def wait_for_more(self) -> None:
        """Wait until records are copied that were not even produced when this began."""
        with self._world.aggregate.client() as aggregate:
            wait_for_values(aggregate, self._topic, self.produced + 200)

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._failures


@pytest.fixture(scope="module")
def world(zookeeper: str, start_for_module: Start, tmp_path_factory: pytest.TempPathFactory) -> World:
    folder, run = tmp_path_factory.mktemp("mirror"), uuid4().hex[:6]
    origin = TestCluster(start_for_module, f"dc1-{run}", folder, zookeeper, "[log]\nflush_ms = 20\n")
    origin.start_brokers(1)
    topics = [
        "codecs",
        "refused",
        "kills",
        "origin-kill",
        "recreated",
        "disk-lost",
        "expiring",
        "steady",
        "clients",
        "moved",
    ]
    settings = (
        "[log]\nflush_ms = 20\n"
        f"[mirror.dc1]\nbootstrap = {json.dumps(origin.bootstrap)}\n"
        f'topics = {json.dumps(topics)}\nbatch_topics = ["raced"]\n'
    )
    aggregate = TestCluster(start_for_module, f"offline-{run}", folder, zookeeper, settings)
    aggregate.start_brokers(1, 2)
    return World(origin, aggregate)


def test_every_codec_arrives_byte_for_byte_in_the_order_of_its_partition(world: World) -> None:
    world.topic("codecs")
    for codec in CODECS:
        produce(world.origin.bootstrap, "codecs", [f"{codec} {i}" for i in range(500)], codec)
    world.assert_equal("codecs", 500 * len(CODECS))
    config = str(world.aggregate.brokers[1].config)
    shown = run_millrace("mirror", "status", config, "--json")
    assert shown.returncode == 0, shown.stderr
    rows = [row for row in json.loads(shown.stdout) if row["topic"] == "codecs"]
    assert [(row["state"], row["lag"]) for row in rows] == [("running", 0)] * 3
    assert {row["leader"] for row in rows} == {1, 2}, "both brokers pull"
    assert sum(row["records"] for row in rows) == 500 * len(CODECS)
    table = run_millrace("mirror", "status", config)
    assert table.returncode == 0
    assert "running" in table.stdout


def test_a_mirrored_partition_refuses_ordinary_producers(world: World) -> None:
    world.topic("refused", 1)
    with world.aggregate.client() as aggregate:
        wait_until("the topic is mirrored", lambda: "refused" in aggregate.topics())
    errors: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": world.aggregate.bootstrap, "message.timeout.ms": 10_000})
    producer.produce("refused", b"x", on_delivery=lambda error, _: errors.append(error))
    producer.flush(15)
    assert [error.code() for error in errors if error is not None] == [KafkaError.POLICY_VIOLATION]


@pytest.fixture(scope="module")
def mirrored(world: World) -> tuple[int, list[bytes]]:
    """Target partition and values of a topic copied in many appends, with fillers of the origin between."""
    world.topic("clients", 1)
    expected: list[bytes] = []
    for number, codec in enumerate(CODECS * 2):
        values = [f"{number} {codec} {i}".encode() for i in range(100)]
        CONFLUENT.produce(world.origin.bootstrap, "clients", 0, values, codec)
        # More records than bytes: the origin puts a filler behind it, and so must the copy.
        crowd = [b"x"] * 30_000 if number == 4 else []
        CONFLUENT.produce(world.origin.bootstrap, "clients", 0, crowd, "zstd")
        expected += values + crowd
    world.assert_equal("clients", len(expected))
    return world.status()["clients", 0].partition, expected


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_each_client_reads_a_mirrored_partition_to_its_end(
    world: World, mirrored: tuple[int, list[bytes]], client: KafkaClient
) -> None:
    partition, expected = mirrored
    assert_reads_exactly(client, world.aggregate.bootstrap, "clients", partition, expected)


def test_of_two_writers_that_race_one_wins_each_time_and_nothing_is_there_twice(world: World) -> None:
    world.topic("raced", 2)
    for part in range(20):
        produce(world.origin.bootstrap, "raced", [f"{part} {i}" for i in range(20)])
    lost: list[int] = []
    meeting = threading.Barrier(2, timeout=60)

    def write() -> None:
        with world.origin.client() as client, world.aggregate.client() as aggregate:
            topic_id = client.topic("raced").topic_id
            for number in range(2):
                lost.append(copy_slowly(client, aggregate, Origin("dc1", "raced", topic_id, number), meeting))

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert len(lost) == 4
    assert sum(lost) >= 2, "they have met in each partition"
    world.assert_equal("raced", 400)
    assert world.status()["raced", 0].state == "batch"


def copy_slowly(
    client: ClusterClient, aggregate: ClusterClient, origin: Origin, meeting: threading.Barrier
) -> int:
    """Copy one batch at a time, and repeat every append as a zombie would; how often another was faster."""
    lost, met = 0, False
    end, rules = client.bounds(origin.topic, origin.partition)[1], offset_rules(client, origin.topic)
    while True:
        recorded = aggregate.mirror_append(
            origin.topic, MirrorAppend(mode=MirrorMode.DESCRIBE, origin=origin)
        ).position
        before = recorded or beginning(origin, 0)
        if before.cursor.next_offset >= end:
            return lost
        answer = fetch(client, origin.topic, origin.partition, before.cursor.next_offset)
        run: Run = next(runs_of(recorded, before, answer, rules))
        batch = run.batches[0]
        size = 12 + int.from_bytes(batch[8:12], "big")
        assert size == len(batch)
        # One batch only, so that there are many occasions to meet.
        end_of_answer = answer.high_watermark
        single = type(answer)(0, end_of_answer, end_of_answer, 0, batch)
        one = next(runs_of(recorded, before, single, rules))
        request = MirrorAppend(
            mode=MirrorMode.APPEND,
            origin=origin,
            expected=one.expected,
            start=before.start,
            cursor=one.position.cursor,
            records=bytes(batch),
        )
        if not met:
            meeting.wait()  # both are about to append the same batch
            met = True
        try:
            aggregate.mirror_append(origin.topic, request)
        except PositionMismatch:
            lost += 1
            continue
        with pytest.raises(PositionMismatch) as caught:
            aggregate.mirror_append(origin.topic, request)
        assert caught.value.recorded is not None
        assert caught.value.recorded.cursor.next_offset >= one.position.cursor.next_offset


def test_nonsense_is_refused_and_writes_nothing(world: World) -> None:
    world.topic("refusals", 1)
    produce(world.origin.bootstrap, "refusals", ["a", "b"])
    with world.origin.client() as client, world.aggregate.client() as aggregate:
        origin = Origin("dc1", "refusals", client.topic("refusals").topic_id, 0)
        answer = client.fetch("refusals", {0: 0}, max_bytes=1 << 20, max_wait_ms=1000)[0]
        good = MirrorAppend(mode=MirrorMode.DESCRIBE, origin=origin)
        assert aggregate.mirror_append("refusals", good).position is None
        run = next(runs_of(None, beginning(origin, 0), answer, OffsetRules(byte_positions=True)))
        damaged = bytearray(b"".join(run.batches))
        damaged[-1] ^= 1
        for records in (bytes(damaged), b"".join(run.batches)[:-1], b"rubbish"):
            with pytest.raises(BrokerError):
                aggregate.mirror_append(
                    "refusals",
                    MirrorAppend(
                        mode=MirrorMode.APPEND, origin=origin, cursor=run.position.cursor, records=records
                    ),
                )
        with pytest.raises(PositionMismatch):
            aggregate.mirror_append(
                "refusals",
                MirrorAppend(
                    mode=MirrorMode.APPEND,
                    origin=origin,
                    expected=7,
                    cursor=run.position.cursor,
                    records=b"".join(run.batches),
                ),
            )
        assert aggregate.mirror_append("refusals", good).position is None


@pytest.mark.slow
def test_a_topic_created_anew_stops_loudly_until_it_is_reset(world: World) -> None:
    world.topic("recreated", 1)
    world.topic("steady", 1)
    produce(world.origin.bootstrap, "recreated", ["old"] * 10)
    world.assert_equal("recreated", 10)
    with world.origin.client() as client:
        client.delete_topic("recreated")
        wait_until("it is gone", lambda: "recreated" not in client.topics())
    world.topic("recreated", 1)
    # The same bytes again: only the topic's id tells the new log from the old one.
    produce(world.origin.bootstrap, "recreated", ["old"] * 10 + ["new"] * 10)

    row = world.await_state("recreated", "stopped")
    assert "recreated" in row.detail
    leader = world.aggregate.brokers[row.leader].process
    wait_until(
        "the leader says so",
        lambda: any("stopped" in line and "mirror reset" in line for line in list(leader.lines)),
    )
    with world.aggregate.client() as aggregate:
        assert len(read_topic(aggregate, "recreated")[0].records) == 10
        with world.origin.client() as client:
            anew = Origin("dc1", "recreated", client.topic("recreated").topic_id, 0)
        with pytest.raises(PolicyViolation, match="recreated"):
            aggregate.mirror_append("recreated", MirrorAppend(mode=MirrorMode.DESCRIBE, origin=anew))
    produce(world.origin.bootstrap, "steady", ["others go on"])
    world.assert_equal("steady", 1)

    config = str(world.aggregate.brokers[1].config)
    for cluster in (world.origin, world.aggregate):
        with cluster.client() as client:
            GroupClient(client).commit("movers", {("recreated", 0): 0})
    single, group = ["recreated", "--partition", "0", "--offset", "0"], ["--group", "movers", "--apply"]
    for options in (single, [*single, "--reverse"], group, [*group, "--reverse"]):
        refused = run_millrace("mirror", "translate", config, "--origin", "dc1", *options)
        assert refused.returncode == 1, refused.stdout
        assert "dc1 recreated-0 was deleted and recreated" in refused.stderr
        assert "millrace mirror reset" in refused.stderr

    reset = run_millrace("mirror", "reset", config, "--origin", "dc1", "--topic", "recreated", "--yes")
    assert reset.returncode == 0, reset.stderr
    assert "into partition 1" in reset.stdout
    with world.aggregate.client() as aggregate:
        copies = wait_for_values(aggregate, "recreated", 30)
    assert copies[0].values == [b"old"] * 10
    assert copies[1].values == [b"old"] * 10 + [b"new"] * 10
    again = run_millrace("mirror", "reset", config, "--origin", "dc1", "--topic", "recreated", "--yes")
    assert "nothing to reset" in again.stdout
    moved = run_millrace("mirror", "translate", config, "--origin", "dc1", "--group", "movers", "--json")
    (row_of_new,) = json.loads(moved.stdout)
    assert (row_of_new["partition"], row_of_new["outcome"]) == (1, "translated")


@pytest.mark.slow
def test_offsets_that_expired_uncopied_stop_loudly_until_they_are_skipped(world: World) -> None:
    world.topic("expiring", 1, retention_bytes="2000", segment_bytes="1200")
    produce(world.origin.bootstrap, "expiring", ["kept"])
    with world.aggregate.client() as aggregate:
        wait_for_values(aggregate, "expiring", 1)
    row = world.status()["expiring", 0]
    assert row.position is not None
    leader, position = row.leader, row.position.cursor.next_offset
    world.aggregate.brokers[leader].kill()
    for part in range(20):
        produce(world.origin.bootstrap, "expiring", [f"lost {part} " + "x" * 300])
    with world.origin.client() as client:
        wait_until(
            "retention has deleted what was not copied",
            lambda: client.list_offsets("expiring", -2)[0] > position + 400,
        )
    world.aggregate.restart(leader)
    assert "expired" in world.await_state("expiring", "stopped").detail
    process = world.aggregate.brokers[leader].process
    wait_until(
        "the leader says so",
        lambda: any("ERROR" in line and "expired" in line for line in list(process.lines)),
    )

    config = str(world.aggregate.brokers[1].config)
    reset = run_millrace("mirror", "reset", config, "--origin", "dc1", "--topic", "expiring", "--yes")
    assert reset.returncode == 0, reset.stderr
    produce(world.origin.bootstrap, "expiring", ["after"])
    with world.aggregate.client() as aggregate:
        wait_until(
            "it goes on", lambda: read_topic(aggregate, "expiring")[0].values[-1] == b"after", timeout_s=20
        )
        copied = read_topic(aggregate, "expiring")[0].values
    assert copied[0] == b"kept"
    assert len(copied) == len(set(copied)) < 22


@pytest.mark.slow
def test_an_origin_that_lost_its_disk_stops_and_goes_on_where_the_operator_says(world: World) -> None:
    world.topic("disk-lost", 1)
    produce(world.origin.bootstrap, "disk-lost", [f"before {number} " + "x" * 200 for number in range(20)])
    world.assert_equal("disk-lost", 20)
    world.origin.brokers[1].kill()
    log_dir = Path(tomllib.loads(world.origin.brokers[1].config.read_text())["log_dir"])
    (partition,) = log_dir.glob("disk-lost-0-*")
    shutil.rmtree(partition)
    world.origin.restart(1)
    produce(world.origin.bootstrap, "disk-lost", ["anew 1", "anew 2"])
    assert "lost what it showed before" in world.await_state("disk-lost", "stopped").detail

    config = str(world.aggregate.brokers[1].config)
    reset = ["mirror", "reset", config, "--origin", "dc1", "--topic", "disk-lost", "--at", "0", "--yes"]
    assert "--at needs --partition" in run_millrace(*reset).stderr
    done = run_millrace(*reset, "--partition", "0")
    assert done.returncode == 0, done.stderr
    with world.aggregate.client() as aggregate:
        copied = wait_for_values(aggregate, "disk-lost", 22)[0].values
    assert copied[20:] == [b"anew 1", b"anew 2"]


@pytest.mark.slow
def test_an_origin_that_goes_down_and_comes_back_is_copied_to_the_end(world: World) -> None:
    world.topic("origin-kill")
    produce(world.origin.bootstrap, "origin-kill", [f"before {i}" for i in range(300)])
    world.assert_equal("origin-kill", 300)
    rows = world.status()
    world.origin.brokers[1].kill()
    wait_until("the mirror waits", lambda: "waiting" in world.leader_says(rows["origin-kill", 0].origin))
    assert world.status()["origin-kill", 0].state == "waiting"
    assert all(broker.process.running for broker in world.aggregate.brokers.values())
    with world.aggregate.client() as aggregate:
        assert sum(len(c.records) for c in read_topic(aggregate, "origin-kill").values()) == 300
    world.origin.restart(1)
    produce(world.origin.bootstrap, "origin-kill", [f"after {i}" for i in range(300)])
    world.assert_equal("origin-kill", 600)


@pytest.mark.slow
@pytest.mark.soak
def test_an_aggregate_broker_killed_while_it_copies_loses_and_repeats_nothing(world: World) -> None:
    world.topic("kills")
    with Traffic(world, "kills") as traffic:
        for number in range(ROUNDS):
            traffic.wait_for_more()
            # Anywhere in a copy, and never twice at the same place.
            time.sleep(0.05 + 0.11 * (number % 7))
            victim = world.aggregate.brokers[1 + number % 2]
            victim.kill()
            world.aggregate.restart(1 + number % 2)
    world.assert_equal("kills", traffic.produced)
    positions = [world.status()["kills", number].position for number in range(3)]
    assert sum(position.records for position in positions if position is not None) == traffic.produced


@pytest.mark.slow
def test_a_copy_moves_to_other_brokers_while_it_grows_and_loses_and_repeats_nothing(world: World) -> None:
    world.topic("moved", 1)
    with Traffic(world, "moved") as traffic:
        traffic.wait_for_more()
        first = world.status()["moved", 0]
        other = 3 - first.leader
        for replicas in (other,), (first.leader, other), (other,), (first.leader,):
            world.aggregate.reassign("moved", first.partition, replicas)
            wait_until(
                f"the copy is on {replicas}", partial(world.are_on, "moved", first.partition, replicas)
            )
            traffic.wait_for_more()
            assert world.status()["moved", 0].state == "running"
    assert world.status()["moved", 0].leader == first.leader
    world.assert_equal("moved", traffic.produced)
