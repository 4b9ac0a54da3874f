"""The `millrace` data source on Apache Kafka: transactions, compaction, new partitions, what expires."""

from __future__ import annotations

import itertools
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from pyspark.errors import StreamingQueryException

from millrace.client.cluster_client import LATEST
from tests.brokers import read_topic
from tests.compat.transactions import transact
from tests.integration.test_streaming import Place, drain, places
from tests.peers.kafka import KafkaBroker, kafka_tool
from tests.support import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass
class World:
    """Kafka and Spark."""

    kafka: KafkaBroker
    spark: SparkSession

    def topic(self, partitions: int = 1, **settings: str) -> str:
        name = f"source-{uuid4().hex[:6]}"
        with self.kafka.client() as client:
            client.create_topic(name, partitions, {k.replace("_", "."): v for k, v in settings.items()})
        return name

    def produce(self, topic: str, count: int, partition: int = -1, batch: int = 5) -> None:
        producer = Producer({"bootstrap.servers": self.kafka.address, "batch.num.messages": batch})
        for number in range(count):
            producer.produce(topic, b"%d" % number, key=str(number % 4), partition=partition)
        assert producer.flush(30) == 0

    def tool(self, command: str, *arguments: str) -> None:
        done = kafka_tool(command, "--bootstrap-server", self.kafka.address, *arguments)
        assert done.returncode == 0, done.stdout

    def stream(self, topic: str, **options: str) -> DataFrame:
        return self.spark.readStream.format("millrace").options(**self.options(topic, **options)).load()

    def options(self, topic: str, **options: str) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.kafka.address,
            "subscribe": topic,
            "startingOffsets": "earliest",
            **options,
        }

    def stored(self, topic: str) -> list[Place]:
        """Every committed record."""
        with self.kafka.client() as client:
            contents = read_topic(client, topic)
        return sorted((topic, p, record.offset) for p, each in contents.items() for record in each.records)

    def drained(self, frame: DataFrame, folder: Path) -> list[list[Place]]:
        """The micro-batches until nothing is left."""
        batches: list[list[Place]] = []
        drain(frame, folder, lambda batch, _: batches.append(places(batch)))
        return batches


@pytest.fixture(scope="module")
def world(kafka: KafkaBroker, spark: SparkSession) -> World:
    return World(kafka, spark)


def flat(batches: list[list[Place]]) -> list[Place]:
    return sorted(itertools.chain(*batches))


def test_a_stream_reads_committed_records_once_and_waits_for_open_transactions(
    world: World, tmp_path: Path
) -> None:
    topic = world.topic()
    world.produce(topic, 40)
    aborted = [f"aborted {number}".encode() for number in range(7)]
    transact(world.kafka.address, topic, aborted, commit=False)
    transact(world.kafka.address, topic, [b"committed"] * 5, commit=True)
    open_one = Producer(
        {
            "bootstrap.servers": world.kafka.address,
            "transactional.id": uuid4().hex,
            "transaction.timeout.ms": 600_000,  # the stream takes a while where the machine is busy
        }
    )
    open_one.init_transactions(30)
    open_one.begin_transaction()
    open_one.produce(topic, b"open", partition=0)
    assert open_one.flush(30) == 0
    world.produce(topic, 3)
    frame = world.stream(topic, maxOffsetsPerTrigger="10", minPartitions="3")
    first = world.drained(frame, tmp_path)
    assert len(flat(first)) == 45
    assert all(len(batch) <= 10 for batch in first)
    open_one.commit_transaction(30)
    with world.kafka.client() as client:
        wait_until("the transaction has ended", lambda: client.list_offsets(topic, LATEST)[0] == 59)
    second = world.drained(frame, tmp_path)
    assert len(flat(second)) == 4
    batch = world.spark.read.format("millrace").options(**world.options(topic)).load()
    assert places(batch) == flat(first + second)
    values = {bytes(row["value"]) for row in batch.collect()}
    assert not values & set(aborted)
    assert {b"open", b"committed"} <= values


def test_new_partitions_are_read_from_their_start(world: World, tmp_path: Path) -> None:
    topic = world.topic(2)
    world.produce(topic, 20)
    frame = world.stream(topic)
    batches = world.drained(frame, tmp_path)
    world.tool("TopicCommand", "--alter", "--topic", topic, "--partitions", "4")
    with world.kafka.client() as client:
        wait_until("four partitions", lambda: len(client.topic(topic).partitions) == 4)
    for partition in range(4):
        world.produce(topic, 5, partition=partition)
    batches += world.drained(frame, tmp_path)
    assert flat(batches) == world.stored(topic)
    assert {partition for _, partition, _ in flat(batches)} == {0, 1, 2, 3}


def test_the_gaps_of_compaction_are_no_loss(world: World, tmp_path: Path) -> None:
    topic = world.topic(
        cleanup_policy="compact",
        segment_ms="100",
        max_compaction_lag_ms="200",
        min_cleanable_dirty_ratio="0.01",
    )
    for _ in range(4):
        world.produce(topic, 4)
        time.sleep(0.12)  # the next one begins a new segment: only closed ones are compacted
    wait_until("all but the last segment hold each key once", lambda: len(world.stored(topic)) == 8)
    found = world.drained(world.stream(topic, maxOffsetsPerTrigger="3"), tmp_path)
    assert flat(found) == world.stored(topic)


def test_what_expires_between_micro_batches_stops_the_query_or_is_left_out_as_asked(
    world: World, tmp_path: Path
) -> None:
    topic = world.topic()
    world.produce(topic, 10, batch=1)
    assert len(flat(world.drained(world.stream(topic), tmp_path))) == 10
    world.produce(topic, 10, batch=1)
    file = tmp_path / "delete.json"
    file.write_text(
        json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 14}]})
    )
    world.tool("DeleteRecordsCommand", "--offset-json-file", str(file))
    with pytest.raises(StreamingQueryException, match=r"offsets \[10, 14\) expired while the query ran"):
        world.drained(world.stream(topic), tmp_path)
    rest = world.drained(world.stream(topic, failOnDataLoss="false"), tmp_path)
    assert [offset for _, _, offset in flat(rest)] == [14, 15, 16, 17, 18, 19]


def test_a_topic_created_anew_stops_the_query(world: World, tmp_path: Path) -> None:
    topic = world.topic()
    world.produce(topic, 3)
    world.drained(world.stream(topic), tmp_path)
    with world.kafka.client() as client:
        client.delete_topic(topic)
        wait_until("it is gone", lambda: topic not in client.topics())
        client.create_topic(topic, 1)
    world.produce(topic, 9)
    with pytest.raises(StreamingQueryException, match="was deleted and recreated"):
        world.drained(world.stream(topic), tmp_path)
    assert len(flat(world.drained(world.stream(topic, failOnDataLoss="false"), tmp_path))) == 9
