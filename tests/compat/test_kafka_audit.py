"""The auditing reader on Apache Kafka: every committed message is counted once, no other one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer

from millrace.client.cluster_client import LATEST
from millrace_audit.producer import AuditedProducer
from millrace_audit.reports.counts import SequenceCounts
from millrace_audit.reports.messages import COUNTS_TOPIC, NOTHING, AuditCodec, Count, Heartbeat
from millrace_registry.client import SchemaRegistryClient
from tests.brokers import read_topic
from tests.compat.transactions import transact
from tests.peers.kafka import KafkaBroker
from tests.support import REPOSITORY, Process, wait_until
from tests.warehouses import EMPTY_EVENT

START_MS = 1_431_856_800_000

CLUSTER = "dc-kafka"
"""No other test's: who counts a cluster is known by its name in a ZooKeeper that all share."""


@dataclass
class World:
    """Kafka with a registry beside it."""

    kafka: KafkaBroker
    registry: str
    zookeeper: str
    start: Callable[..., Process]
    reader: Process | None = None

    def publish(self, topic: str, count: int) -> list[bytes]:
        """Create the topic, publish events; their bytes."""
        with self.kafka.client() as client:
            for name in {topic, "audit"} - client.topics().keys():
                # Kafka's retention goes by the events' own times, and these lie years back.
                client.create_topic(name, 1, {"retention.ms": "-1"})
            with AuditedProducer(
                self.kafka.address, self.registry, cluster=CLUSTER, server="web", service="shop"
            ) as producer:
                for number in range(count):
                    producer.send(topic, "PageView", EMPTY_EVENT, time_ms=START_MS + number)
            return [value for value in read_topic(client, topic)[0].values if value is not None]

    def stop_reader(self) -> None:
        """Stop the reader, to give the next reader its turn."""
        if self.reader is not None:
            self.reader.stop()

    def count(self, topic: str) -> list[Count]:
        """Return the reader's counts of a topic up to its end, once the reader has reported them."""
        self.reader = self.start(
            "audit-reader",
            "--cluster",
            CLUSTER,
            "--tier",
            CLUSTER,
            "--bootstrap",
            self.kafka.address,
            "--registry",
            self.registry,
            "--zookeeper",
            self.zookeeper,
            "--topics",
            topic,
            "--interval-ms",
            "50",
        )

        with self.kafka.client() as client, SchemaRegistryClient(self.registry) as registry:
            codec = AuditCodec(registry)

            def counts() -> list[Count]:
                if COUNTS_TOPIC not in client.topics():
                    return []
                records = [codec.decode(value) for value in read_topic(client, COUNTS_TOPIC)[0].values]
                # The first heartbeat with a time stands behind all that was visible when it began.
                is_counted = any(isinstance(r, Heartbeat) and r.time != NOTHING for r in records)
                return [record for record in records if isinstance(record, Count)] if is_counted else []

            return wait_until(f"{topic} is counted", counts)


@pytest.fixture(scope="module")
def world(
    kafka: KafkaBroker,
    zookeeper: str,
    start_for_module: Callable[..., Process],
    tmp_path_factory: pytest.TempPathFactory,
) -> World:
    folder: Path = tmp_path_factory.mktemp("kafka-audit")
    registry = start_for_module(
        "registry", "--listen", "127.0.0.1:0", "--database-url", f"sqlite:///{folder}/registry.db"
    )
    url = f"http://{registry.ready()}"
    with SchemaRegistryClient(url) as client:
        client.register("PageView", json.loads((REPOSITORY / "schemas" / "PageView.avsc").read_text()))
    return World(kafka, url, zookeeper, start_for_module)


def test_messages_of_aborted_transactions_are_not_there(world: World) -> None:
    events = world.publish("audited", 20)
    transact(world.kafka.address, "audited", events[:5], commit=False)
    transact(world.kafka.address, "audited", [b"not ours"] * 3, commit=True)
    transact(world.kafka.address, "audited", [b"not ours"] * 2, commit=False)
    counts = world.count("audited")
    total, aborted = SequenceCounts(), SequenceCounts()
    for count in counts:
        total.merge(count.counts)
        aborted.merge(count.aborted)
    assert [(entry["ranges"], entry["duplicates"]) for entry in aborted.to_json()] == [([[0, 4]], [])]
    assert [entry["ranges"] for entry in total.to_json()] == [[[0, 19]]]
    assert [entry["duplicates"] for entry in total.to_json()] == [[]]
    assert sum(some.messages for count in counts for some in count.foreign) == 3
    with world.kafka.client() as client:
        end = client.list_offsets("audited", LATEST, [0])[0]
    assert counts[-1].end == end, (
        "the mark of the last transaction is counted over, as a mirror passes over it"
    )


def test_no_heartbeat_stands_for_events_behind_a_transaction_that_is_open(world: World) -> None:
    """They are acknowledged and reported, and no consumer sees them: they would seem to be missing."""
    topic = "held-back"
    world.publish(topic, 1)
    world.stop_reader()
    world.count(topic)
    producer = Producer({"bootstrap.servers": world.kafka.address, "transactional.id": topic, "log_level": 2})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"not ours", partition=0)
    assert producer.flush(30) == 0
    world.publish(topic, 5)
    with world.kafka.client() as client, SchemaRegistryClient(world.registry) as registry:
        codec = AuditCodec(registry)
        reported = client.list_offsets("audit", LATEST, [0])[0]

        def said() -> list[Count | Heartbeat]:
            values = read_topic(client, COUNTS_TOPIC)[0].values
            return [r for r in map(codec.decode, values) if isinstance(r, Count | Heartbeat)]

        def through() -> int:
            return max(r.reported_through or 0 for r in said() if isinstance(r, Heartbeat))

        time.sleep(3)  # many rounds, none of which may say it
        assert through() < reported
        producer.commit_transaction(30)
        wait_until("all is counted", lambda: through() >= reported)
        counts = [r for r in said() if isinstance(r, Count) and r.topic == topic]
    assert sum(count.counts.total for count in counts) == 6
    assert sum(some.messages for count in counts for some in count.foreign) == 1
