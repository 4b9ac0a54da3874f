"""Spark's own Kafka source and sink on Millrace: batches and streams, offsets inside batches and gaps, times.

Always with failOnDataLoss=true, its default: an offset the source takes for lost fails the query.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from millrace.client.cluster_client import LATEST
from tests.brokers import TestCluster, read_topic
from tests.compat.clients import CODECS, CONFLUENT
from tests.support import Process, wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Place = tuple[int, int]
"""(partition, offset)"""


@dataclass
class World:
    """A cluster of two brokers, a topic in it that every codec was written to, and Spark."""

    cluster: TestCluster
    spark: SparkSession
    topic: str
    records: dict[Place, bytes]

    def read(self, topic: str, **options: str) -> DataFrame:
        reader = self.spark.read.format("kafka").option("kafka.bootstrap.servers", self.cluster.bootstrap)
        return reader.option("subscribe", topic).options(**options).load()

    def between(self, start: dict[int, int], end: dict[int, int]) -> dict[Place, bytes]:
        """Return the values written at offsets in [start, end) of each partition."""
        return {(p, o): value for (p, o), value in self.records.items() if start[p] <= o < end[p]}


def rows(frame: DataFrame) -> dict[Place, bytes]:
    found = frame.select("partition", "offset", "value").collect()
    places = {(row["partition"], row["offset"]): bytes(row["value"]) for row in found}
    assert len(places) == len(found), "no record twice"
    return places


def stored(cluster: TestCluster, topic: str) -> dict[Place, bytes]:
    with cluster.client() as client:
        contents = read_topic(client, topic)
    return {(p, r.offset): r.value or b"" for p, each in contents.items() for r in each.records}


@pytest.fixture(scope="module")
def world(
    spark: SparkSession,
    zookeeper: str,
    start_for_module: Callable[..., Process],
    tmp_path_factory: pytest.TempPathFactory,
) -> World:
    folder = tmp_path_factory.mktemp("spark-source")
    name = f"spark-{uuid4().hex[:6]}"
    cluster = TestCluster(start_for_module, name, folder, zookeeper, "[log]\nflush_ms = 20\n")
    cluster.start_brokers(1, 2)
    with cluster.client() as client:
        client.create_topic("everything", 3)
    for codec, partition in itertools.product(CODECS, range(3)):
        values = [f"{codec} {partition} {number} ".encode() + b"." * 40 for number in range(120)]
        CONFLUENT.produce(cluster.bootstrap, "everything", partition, values, codec)
    # More records than bytes, and a filler behind them.
    CONFLUENT.produce(cluster.bootstrap, "everything", 2, [b"x"] * 20_000, "zstd")
    CONFLUENT.produce(cluster.bootstrap, "everything", 2, [b"behind"], "none")
    return World(cluster, spark, "everything", stored(cluster, "everything"))


def test_a_batch_query_reads_every_codec_once(world: World) -> None:
    assert rows(world.read(world.topic)) == world.records


def test_a_query_cut_into_many_tasks_reads_the_same(world: World) -> None:
    frame = world.read(world.topic, minPartitions="20")
    assert frame.rdd.getNumPartitions() >= 20
    assert rows(frame) == world.records


def places_inside(world: World, partition: int) -> tuple[int, int]:
    """An offset inside a batch in the first half, and one in a gap in the second."""
    offsets = sorted(offset for p, offset in world.records if p == partition)
    inside = next(b for a, b in itertools.pairwise(offsets[20:]) if b == a + 1)
    gap = next(a for a, b in itertools.pairwise(offsets[len(offsets) // 2 :]) if b > a + 2) + 2
    return inside, gap


def asked(world: World, offsets: dict[int, int]) -> str:
    return json.dumps({world.topic: {str(p): offset for p, offset in offsets.items()}})


@pytest.mark.parametrize("tasks", ["1", "11"])
def test_a_query_may_begin_and_end_inside_batches_and_in_gaps(world: World, tasks: str) -> None:
    pairs = {partition: places_inside(world, partition) for partition in range(3)}
    inside = {p: pair[0] for p, pair in pairs.items()}
    gap = {p: pair[1] for p, pair in pairs.items()}
    with world.cluster.client() as client:
        end = client.list_offsets(world.topic, LATEST)
    for start, stop in ((inside, gap), (gap, end)):
        frame = world.read(
            world.topic,
            startingOffsets=asked(world, start),
            endingOffsets=asked(world, stop),
            minPartitions=tasks,
        )
        assert rows(frame) == world.between(start, stop)


def test_a_query_may_begin_and_end_at_a_time(world: World) -> None:
    with world.cluster.client() as client:
        client.create_topic("timed", 2)
    producer = Producer({"bootstrap.servers": world.cluster.bootstrap, "acks": "all"})
    for number in range(20):
        producer.produce("timed", b"%d" % number, partition=number % 2, timestamp=1000 * (number + 1))
        assert producer.flush(30) == 0
    at = {
        name: json.dumps({"timed": dict.fromkeys("01", ms)}) for name, ms in (("from", 5500), ("to", 15500))
    }
    frame = world.read("timed", startingOffsetsByTimestamp=at["from"], endingOffsetsByTimestamp=at["to"])
    assert sorted(int(value) for value in rows(frame).values()) == list(range(5, 15))


def stream(world: World, topic: str, folder: Path, **options: str) -> list[bytes]:
    """Run a streaming query until nothing is left, from its checkpoint if it has one; all it has written."""
    frame = (
        world.spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", world.cluster.bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .options(**options)
        .load()
    )
    query = (
        frame.selectExpr("CAST(value AS STRING) AS value")
        .writeStream.format("parquet")
        .option("path", str(folder / "out"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert query.exception() is None
    return [row["value"].encode() for row in world.spark.read.parquet(str(folder / "out")).collect()]


def produce(world: World, topic: str, values: Sequence[bytes]) -> None:
    producer = Producer(
        {
            "bootstrap.servers": world.cluster.bootstrap,
            "acks": "all",
            "linger.ms": 5,
            "batch.num.messages": 20,
        }
    )
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(30) == 0


def test_a_stream_goes_on_where_its_checkpoint_ends(world: World, tmp_path: Path) -> None:
    with world.cluster.client() as client:
        client.create_topic("streamed", 3)
    values = [b"%d" % number for number in range(3000)]
    produce(world, "streamed", values[:1000])
    # Offsets are bytes: so many of them at a time make several batches, which end wherever that is.
    first = stream(world, "streamed", tmp_path, maxOffsetsPerTrigger="3001")
    assert sorted(first) == sorted(values[:1000])
    batches = [path for path in (tmp_path / "checkpoint" / "commits").iterdir() if path.name.isdigit()]
    assert len(batches) > 2
    assert len(stream(world, "streamed", tmp_path)) == 1000, "nothing new is nothing more"
    produce(world, "streamed", values[1000:])
    assert sorted(stream(world, "streamed", tmp_path, minPartitions="10")) == sorted(values)


def test_spark_s_sink_writes_what_every_reader_gets(world: World) -> None:
    with world.cluster.client() as client:
        client.create_topic("sunk", 2)
    frame = world.spark.range(500).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")
    (
        frame.write.format("kafka")
        .option("kafka.bootstrap.servers", world.cluster.bootstrap)
        .option("topic", "sunk")
        .save()
    )
    wait_until("all is flushed", lambda: len(stored(world.cluster, "sunk")) == 500)
    assert sorted(int(value) for value in stored(world.cluster, "sunk").values()) == list(range(500))
    assert rows(world.read("sunk")) == stored(world.cluster, "sunk")
