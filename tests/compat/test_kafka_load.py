"""Loads straight from Apache Kafka: committed events become rows, once; what is missing is told."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException

from millrace.errors import MillraceError
from millrace_audit.producer import AuditedProducer
from millrace_registry.client import SchemaRegistryClient
from millrace_spark.source.data_source import MillraceDataSource
from millrace_warehouse.load.load import LoadResult
from millrace_warehouse.requests import Load
from tests.brokers import read_topic
from tests.compat.transactions import transact
from tests.jobs import load_topics
from tests.peers.kafka import KafkaBroker, kafka_tool
from tests.support import REPOSITORY, Process, run_millrace, wait_until
from tests.warehouses import EMPTY_EVENT, loaded_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START_MS = 1_431_856_800_000


@dataclass
class World:
    """Kafka with a registry beside it, and Spark."""

    kafka: KafkaBroker
    registry: str
    spark: SparkSession

    def topic(self, name: str, partitions: int = 2, **settings: str) -> str:
        with self.kafka.client() as client:
            # Kafka's retention goes by the events' own times, and these lie years back.
            configs = {"retention.ms": "-1"} | {k.replace("_", "."): v for k, v in settings.items()}
            client.create_topic(name, partitions, configs)
            if "audit" not in client.topics():
                client.create_topic("audit", 1)
        with SchemaRegistryClient(self.registry) as client:
            client.register(name, json.loads((REPOSITORY / "schemas" / "PageView.avsc").read_text()))
        return name

    def publish(self, topic: str, count: int, *, flush_every: int = 0, **settings: Any) -> None:
        """Events with the keys 0 to 3 in turn, in segments of `flush_every` where the topic's are short."""
        with AuditedProducer(
            self.kafka.address, self.registry, cluster="dc1", server="web", service="shop", config=settings
        ) as producer:
            for number in range(count):
                producer.send(topic, topic, EMPTY_EVENT, time_ms=START_MS + number, key=str(number % 4))
                if flush_every and number % flush_every == flush_every - 1:
                    producer.flush()
                    time.sleep(0.12)  # the next one begins a new segment: only closed ones are compacted

    def load(self, warehouse: Path, topic: str, **changes: object) -> LoadResult:
        settings: dict[str, object] = {
            "topics": [topic],
            "bootstrap": self.kafka.address,
            "registry": self.registry,
            "warehouse": str(warehouse),
            "run_id": uuid4().hex,
            "cut_bytes": 30_000,
        }
        (result,) = load_topics(self.spark, Load(**{**settings, **changes}))  # type: ignore[arg-type]
        return result

    def values(self, topic: str) -> list[bytes]:
        with self.kafka.client() as client:
            contents = read_topic(client, topic)
        return [v for each in contents.values() for v in each.values if v is not None]

    def delete_records(self, topic: str, offset: int) -> None:
        file = self.kafka.folder / "delete.json"
        where = {"topic": topic, "partition": 0, "offset": offset}
        file.write_text(json.dumps({"version": 1, "partitions": [where]}))
        done = kafka_tool(
            "DeleteRecordsCommand", "--bootstrap-server", self.kafka.address, "--offset-json-file", str(file)
        )
        assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def world(
    kafka: KafkaBroker,
    spark: SparkSession,
    start_for_module: Callable[..., Process],
    tmp_path_factory: pytest.TempPathFactory,
) -> World:
    database = f"sqlite:///{tmp_path_factory.mktemp('kafka-load')}/registry.db"
    registry = start_for_module("registry", "--listen", "127.0.0.1:0", "--database-url", database)
    spark.dataSource.register(MillraceDataSource)
    return World(kafka, f"http://{registry.ready()}", spark)


def test_committed_events_become_rows_and_the_next_load_goes_on_behind_them(
    world: World, tmp_path: Path
) -> None:
    topic = world.topic("KafkaLoaded", compression_type="producer")
    config: dict[str, Any] = {"compression.type": "zstd", "batch.num.messages": 20}
    world.publish(topic, 700, **config)
    events = world.values(topic)
    transact(world.kafka.address, topic, events[:30], commit=False)
    first = world.load(tmp_path, topic)
    assert (first.rows, first.rejected, first.gaps) == (700, 0, [])
    transact(world.kafka.address, topic, events[:5], commit=False)
    world.publish(topic, 50)
    second = world.load(tmp_path, topic)
    assert (second.rows, second.rejected, second.gaps) == (50, 0, [])
    assert world.load(tmp_path, topic).published is False
    rows = loaded_rows(tmp_path, topic)
    assert len(rows) == len({(row.instance, row.sequence) for row in rows}) == 750
    verified = run_millrace(
        "verify", "--warehouse", str(tmp_path), "--bootstrap", world.kafka.address, "--json"
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_an_open_transaction_is_left_for_the_load_after_its_end(world: World, tmp_path: Path) -> None:
    topic = world.topic("KafkaOpen", 1)
    world.publish(topic, 3)
    event = world.values(topic)[0]
    producer = Producer({"bootstrap.servers": world.kafka.address, "transactional.id": "load-open"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, event, partition=0)
    assert producer.flush(30) == 0
    world.publish(topic, 2)
    assert world.load(tmp_path, topic).rows == 3
    producer.commit_transaction(30)
    with world.kafka.client() as client:
        wait_until("the transaction has ended", lambda: client.list_offsets(topic, -1)[0] == 7)
    assert world.load(tmp_path, topic).rows == 3


def test_offsets_that_expired_are_a_gap_and_those_of_compaction_are_told(
    world: World, tmp_path: Path
) -> None:
    topic = world.topic("KafkaExpired", 1)
    world.publish(topic, 5)
    world.delete_records(topic, 3)
    result = world.load(tmp_path, topic)
    assert (result.rows, list(result.gaps)) == (2, [f"{topic}-0 offsets [0, 3) are expired"])


def test_a_compacted_topic_is_loaded_as_it_is(world: World, tmp_path: Path) -> None:
    topic = world.topic(
        "KafkaCompacted",
        1,
        cleanup_policy="compact",
        segment_ms="100",
        max_compaction_lag_ms="200",
        min_cleanable_dirty_ratio="0.01",
        message_timestamp_type="LogAppendTime",
    )
    world.publish(topic, 16, flush_every=4)
    with world.kafka.client() as client:
        wait_until(
            "all but the last segment hold each key once",
            lambda: len(read_topic(client, topic)[0].records) == 8,
        )
    result = world.load(tmp_path, topic)
    assert result.rows == 8
    assert list(result.gaps) == [f"{topic}-0 offsets [0, 8) are absent"]


def test_a_topic_created_anew_is_refused_until_it_is_accepted(world: World, tmp_path: Path) -> None:
    topic = world.topic("KafkaAnew", 1)
    world.publish(topic, 5)
    assert world.load(tmp_path, topic).rows == 5
    with world.kafka.client() as client:
        client.delete_topic(topic)
        wait_until("it is gone", lambda: topic not in client.topics())
    world.topic(topic, 1)
    world.publish(topic, 9)
    with pytest.raises(MillraceError, match="was deleted and recreated"):
        world.load(tmp_path, topic)
    assert world.load(tmp_path, topic, accept_new_topic=True).rows == 9


def test_what_expires_while_a_query_runs_fails_it_or_is_left_out_as_asked(world: World) -> None:
    topic = world.topic("KafkaLosing", 1)
    one_by_one: dict[str, Any] = {"batch.num.messages": 1}
    world.publish(topic, 10, **one_by_one)

    def frame(fail: str) -> DataFrame:
        reader = world.spark.read.format("millrace").option("bootstrap", world.kafka.address)
        return reader.option("subscribe", topic).option("failOnDataLoss", fail).load()

    strict, lenient = frame("true"), frame("false")
    world.delete_records(topic, 4)
    with pytest.raises(PySparkException, match=r"offsets \[0, 4\) expired while the query ran"):
        strict.collect()
    assert sorted(row["offset"] for row in lenient.collect()) == list(range(4, 10))


def test_the_data_source_reads_committed_records_and_the_broker_s_own_time(world: World) -> None:
    topic = world.topic("KafkaSource", 2, message_timestamp_type="LogAppendTime")
    world.publish(topic, 40)
    events = world.values(topic)
    transact(world.kafka.address, topic, events[:10], commit=False)
    frame = (
        world.spark.read.format("millrace")
        .option("bootstrap", world.kafka.address)
        .option("subscribe", topic)
        .option("minPartitions", "7")
        .load()
    )
    assert frame.rdd.getNumPartitions() >= 7
    rows = frame.collect()
    assert sorted(bytes(row["value"]) for row in rows) == sorted(events)
    with world.kafka.client() as client:
        contents = read_topic(client, topic)
    kept = {(p, r.offset): r.timestamp for p, each in contents.items() for r in each.records}
    for row in rows:
        at = row["timestamp"].timestamp() * 1000
        assert round(at) == kept[row["partition"], row["offset"]]
