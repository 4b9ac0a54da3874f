"""Apache Kafka as a mirror's origin: what is copied, what stays behind and is counted, what stops it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from millrace.client.cluster_client import EARLIEST, LATEST
from millrace.config import BrokerConfig, load
from millrace_broker.coordination.cluster import Cluster
from millrace_mirror.status import MirrorRow, MirrorStatus
from millrace_spark.jobs.mirror import mirror_topics
from millrace_warehouse.requests import Mirror
from tests.brokers import Contents, TestCluster, read_topic, wait_for_values
from tests.compat.clients import CLIENTS, CODECS, CONFLUENT, assert_reads_exactly, assert_seeks_are_exact
from tests.compat.java_console import JAVA
from tests.compat.transactions import transact
from tests.peers.kafka import KafkaBroker, kafka_tool
from tests.support import Process, run_millrace, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPICS = (
    "codecs",
    "mixed",
    "transactions",
    "append-time",
    "compacted",
    "huge",
    "recreated",
    "expiring",
    "open",
    "restarted",
    "grown",
)


@dataclass
class World:
    """Kafka as origin dc1, and an aggregate cluster of two Millrace brokers that mirrors it."""

    kafka: KafkaBroker
    aggregate: TestCluster

    def topic(self, name: str, partitions: int = 1, **settings: str) -> None:
        with self.kafka.client() as client:
            client.create_topic(name, partitions, {k.replace("_", "."): v for k, v in settings.items()})

    def status(self) -> dict[tuple[str, int], MirrorRow]:
        """(topic, origin partition) -> the row of `mirror status`."""
        config = load(BrokerConfig, self.aggregate.brokers[1].config)
        with (
            Cluster.connect(config.zookeeper, config.cluster) as cluster,
            closing(MirrorStatus(cluster, config.mirror)) as found,
        ):
            rows = [row for row in found.rows() if row.state != "retired"]
        return {(row.topic, row.origin.partition): row for row in rows}

    def copied(self, topic: str, partition: int = 0) -> MirrorRow:
        """The partition's row, once its mirror has reached the end of what can be read."""

        def caught_up() -> MirrorRow | None:
            row = self.status().get((topic, partition))
            done = row is not None and row.position is not None and row.lag == 0
            return row if done and row is not None and row.state == "running" else None

        row = wait_until(f"{topic}-{partition} is copied", caught_up)
        assert row is not None
        return row

    def stopped(self, topic: str) -> MirrorRow:
        """The row of partition 0, once its mirror has stopped."""
        wait_until(f"{topic} stops", lambda: self.status()[topic, 0].state == "stopped")
        return self.status()[topic, 0]

    def copy(self, topic: str, partition: int = 0) -> Contents:
        """Return the aggregate cluster's copy of an origin partition, once all is there and on the disk."""
        row = self.copied(topic, partition)
        assert row.position is not None
        records = row.position.records

        def visible() -> Contents | None:
            found = read_topic(client, topic)[row.partition]
            return found if len(found.records) >= records else None

        with self.aggregate.client() as client:
            copy = wait_until(f"{topic}-{row.partition} shows {records} records", visible)
        assert copy is not None
        return copy

    def reset(self, topic: str, *options: str) -> None:
        config = str(self.aggregate.brokers[1].config)
        done = run_millrace("mirror", "reset", config, "--origin", "dc1", "--topic", topic, "--yes", *options)
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def compacted(kafka: KafkaBroker) -> Contents:
    """A topic that compaction has gone through, before any mirror has seen it."""
    settings = {
        "cleanup.policy": "compact",
        "segment.ms": "100",
        "min.cleanable.dirty.ratio": "0.01",
        "max.compaction.lag.ms": "200",
        "delete.retention.ms": "0",
    }
    with kafka.client() as client:
        client.create_topic("compacted", 1, settings)
        for turn in range(6):
            # A producer of its own each time: compaction keeps the last batch of each, emptied.
            producer = Producer({"bootstrap.servers": kafka.address, "enable.idempotence": True})
            for key in ("same", f"only {turn}"):
                producer.produce("compacted", f"{turn} {key}", key=key, partition=0)
            assert producer.flush(30) == 0
            time.sleep(0.12)  # a segment of its own: only closed ones are compacted
        wait_until(
            "compaction has made gaps: all but the last segment hold each key once",
            lambda: len(read_topic(client, "compacted")[0].records) == 8,
        )
        return read_topic(client, "compacted")[0]


@pytest.fixture(scope="module")
def world(
    kafka: KafkaBroker,
    compacted: Contents,
    zookeeper: str,
    start_for_module: Callable[..., Process],
    tmp_path_factory: pytest.TempPathFactory,
) -> World:
    names = ", ".join(f'"{name}"' for name in TOPICS)
    settings = (
        f'[log]\nflush_ms = 20\n[mirror.dc1]\nbootstrap = "{kafka.address}"\n'
        f'topics = [{names}]\nbatch_topics = ["batched"]\n'
    )
    folder = tmp_path_factory.mktemp("kafka-origin")
    cluster = TestCluster(start_for_module, f"offline-{uuid4().hex[:6]}", folder, zookeeper, settings)
    return World(kafka, cluster.start_brokers(1, 2))


def produce(bootstrap: str, topic: str, values: list[bytes], partition: int = 0, **settings: object) -> None:
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 2, **settings})
    for value in values:
        producer.produce(
            topic,
            value,
            partition=partition,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert producer.flush(30) == 0
    assert not failed, failed[0]


def numbered(tag: str, count: int, size: int = 0) -> list[bytes]:
    return [f"{tag} {number} ".encode().ljust(size, b".") for number in range(count)]


def test_every_codec_arrives_batch_by_batch_and_each_client_reads_it(world: World) -> None:
    world.topic("codecs", 2)
    expected: list[bytes] = []
    for codec in CODECS:
        values = numbered(codec, 200)
        CONFLUENT.produce(world.kafka.address, "codecs", 1, values, codec)
        expected += values
    copy = world.copy("codecs", 1)
    assert copy.values == expected
    with world.kafka.client() as client:
        assert copy.batches == read_topic(client, "codecs")[1].batches
    target = world.copied("codecs", 1).partition
    for reader in [*CLIENTS, JAVA]:
        delivered = assert_reads_exactly(reader, world.aggregate.bootstrap, "codecs", target, expected)
        # Behind the first append stands a position batch, which no client may see.
        gap = next(a for (a, _), (b, _) in itertools.pairwise(delivered) if b > a + 1) + 2
        seeks = [gap, delivered[-1][0] + 1]
        assert_seeks_are_exact(reader, world.aggregate.bootstrap, "codecs", target, delivered, seeks)


def test_spark_s_kafka_source_reads_a_mirrored_topic(world: World, spark: SparkSession) -> None:
    rows = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", world.aggregate.bootstrap)
        .option("subscribe", "codecs")
        .option("minPartitions", "9")
        .load()
        .collect()
    )
    expected = [value for value in world.copy("codecs", 1).values if value is not None]
    assert sorted(bytes(row["value"]) for row in rows) == sorted(expected)


def test_committed_transactions_are_copied_and_aborted_ones_stay_behind_counted(world: World) -> None:
    world.topic("transactions")
    produce(world.kafka.address, "transactions", numbered("plain", 3))
    transact(world.kafka.address, "transactions", numbered("committed", 4), commit=True)
    transact(world.kafka.address, "transactions", numbered("aborted", 5), commit=False)
    produce(world.kafka.address, "transactions", numbered("after", 2))
    expected = [*numbered("plain", 3), *numbered("committed", 4), *numbered("after", 2)]
    assert world.copy("transactions").values == expected
    position = world.copied("transactions").position
    assert position is not None
    # Five aborted records, and the two markers that end the transactions.
    assert (position.records, position.dropped) == (9, 7)
    with world.kafka.client() as client:
        assert position.cursor.next_offset == client.list_offsets("transactions", LATEST, [0])[0] == 16
    target = world.copied("transactions").partition
    for reader in [*CLIENTS, JAVA]:
        assert_reads_exactly(reader, world.aggregate.bootstrap, "transactions", target, expected)


def test_the_batch_mirror_ends_behind_an_aborted_transaction(world: World, spark: SparkSession) -> None:
    world.topic("batched", 2)
    produce(world.kafka.address, "batched", numbered("plain", 3))
    transact(world.kafka.address, "batched", numbered("committed", 4), commit=True)
    transact(world.kafka.address, "batched", numbered("aborted", 5), commit=False)
    settings = Mirror(
        topics=["batched"],
        origin="dc1",
        origin_bootstrap=world.kafka.address,
        bootstrap=world.aggregate.bootstrap,
    )
    parts = mirror_topics(spark.sparkContext, settings)
    assert [(part.start, part.end, part.records, part.dropped) for part in parts] == [
        (0, 14, 7, 7),
        (0, 0, 0, 0),
    ]
    again = mirror_topics(spark.sparkContext, settings)
    assert [(part.start, part.end, part.records, part.dropped) for part in again] == [
        (14, 14, 0, 0),
        (0, 0, 0, 0),
    ]
    with world.aggregate.client() as client:
        found = wait_for_values(client, "batched", 7)
    assert found[parts[0].target_partition].values == [*numbered("plain", 3), *numbered("committed", 4)]


def test_an_open_transaction_waits_and_what_stands_behind_it_too(world: World) -> None:
    world.topic("open")
    produce(world.kafka.address, "open", numbered("plain", 3))
    world.copied("open")
    producer = Producer(
        {"bootstrap.servers": world.kafka.address, "transactional.id": "open-tx", "log_level": 2}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("open", b"in doubt", partition=0)
    assert producer.flush(30) == 0
    produce(world.kafka.address, "open", numbered("after", 2))
    with world.kafka.client() as client:
        assert client.list_offsets("open", LATEST, [0]) == {0: 3}, "the rest may yet be aborted"
    row = world.copied("open")
    assert row.position is not None
    assert (row.position.records, row.state) == (3, "running")
    producer.commit_transaction(30)
    wait_until("the rest is copied", lambda: len(world.copy("open").records) == 6)
    assert world.copy("open").values == [*numbered("plain", 3), b"in doubt", *numbered("after", 2)]


def test_log_append_time_is_what_readers_of_the_copy_see(world: World) -> None:
    world.topic("append-time", message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000)
    producer = Producer({"bootstrap.servers": world.kafka.address, "linger.ms": 50})
    for number in range(5):
        producer.produce("append-time", b"x", timestamp=1000 + number, partition=0)
    assert producer.flush(30) == 0
    records = world.copy("append-time").records
    with world.kafka.client() as client:
        assert [r.timestamp for r in records] == [
            r.timestamp for r in read_topic(client, "append-time")[0].records
        ]
    assert len(records) == 5
    assert all(before - 1000 <= record.timestamp <= time.time() * 1000 for record in records)


def test_batches_larger_than_any_limit_of_ours_are_copied(world: World) -> None:
    world.topic("huge", max_message_bytes=str(30 << 20))
    values = [bytes([number]) * (12 << 20) for number in range(3)]
    produce(world.kafka.address, "huge", values, **{"message.max.bytes": 31 << 20})
    produce(world.kafka.address, "huge", [b"small"])
    assert world.copy("huge").values == [*values, b"small"]


def test_gaps_of_compaction_are_no_loss(world: World, compacted: Contents) -> None:
    offsets = [record.offset for record in compacted.records]
    assert len(offsets) < offsets[-1] - offsets[0] + 1, "records are missing in the middle"
    copy = world.copy("compacted")
    assert copy.values == compacted.values
    assert copy.batches == compacted.batches


def test_a_broker_that_is_restarted_is_copied_to_the_end(world: World) -> None:
    world.topic("restarted")
    produce(world.kafka.address, "restarted", numbered("before", 50))
    assert len(world.copy("restarted").records) == 50
    world.kafka.kill()
    world.kafka.start()
    produce(world.kafka.address, "restarted", numbered("after", 50))
    wait_until("all is copied", lambda: len(world.copy("restarted").records) == 100)
    assert world.copy("restarted").values == [*numbered("before", 50), *numbered("after", 50)]


def test_new_partitions_get_targets_of_their_own(world: World) -> None:
    world.topic("grown")
    produce(world.kafka.address, "grown", [b"0"])
    assert world.copy("grown").values == [b"0"]
    done = kafka_tool(
        "TopicCommand",
        "--bootstrap-server",
        world.kafka.address,
        "--alter",
        "--topic",
        "grown",
        "--partitions",
        "3",
    )
    assert done.returncode == 0, done.stdout
    for partition in (1, 2):
        produce(world.kafka.address, "grown", [b"%d" % partition], partition)
    assert [world.copy("grown", partition).values for partition in range(3)] == [[b"0"], [b"1"], [b"2"]]


def test_a_topic_created_anew_stops_loudly_until_it_is_reset(world: World) -> None:
    world.topic("recreated")
    produce(world.kafka.address, "recreated", numbered("old", 10))
    world.copied("recreated")
    with world.kafka.client() as client:
        client.delete_topic("recreated")
        wait_until("it is gone", lambda: "recreated" not in client.topics())
    world.topic("recreated")
    produce(world.kafka.address, "recreated", numbered("new", 20))
    assert "recreated" in world.stopped("recreated").detail
    with world.aggregate.client() as client:
        assert read_topic(client, "recreated")[0].values == numbered("old", 10)
    world.reset("recreated")
    assert world.copy("recreated").values == numbered("new", 20)


def test_offsets_that_expired_uncopied_stop_loudly_until_they_are_skipped(world: World) -> None:
    world.topic("expiring")
    produce(world.kafka.address, "expiring", [b"kept"])
    row = world.copied("expiring")
    world.aggregate.brokers[row.leader].kill()
    produce(world.kafka.address, "expiring", numbered("lost", 14))
    produce(world.kafka.address, "expiring", numbered("left", 6))
    offsets = world.kafka.folder / "delete.json"
    offsets.write_text('{"version": 1, "partitions": [{"topic": "expiring", "partition": 0, "offset": 15}]}')
    done = kafka_tool(
        "DeleteRecordsCommand", "--bootstrap-server", world.kafka.address, "--offset-json-file", str(offsets)
    )
    assert done.returncode == 0, done.stdout
    with world.kafka.client() as client:
        assert client.list_offsets("expiring", EARLIEST) == {0: 15}
    world.aggregate.restart(row.leader)
    assert "offsets 1 to 14 expired" in world.stopped("expiring").detail
    world.reset("expiring")
    assert world.copy("expiring").values == [b"kept", *numbered("left", 6)]
