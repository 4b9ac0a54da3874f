"""Consumers of 2,000 partitions and administrators of 1,050 topics: every client names them all at once."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]

from tests.compat.brokers import RunningBroker, start_broker
from tests.support import WAIT_S, Process

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
TOPICS, PARTITIONS, SMALL_TOPICS = ["wide-0", "wide-1"], 1_000, 1_050


@pytest.fixture(scope="module")
def broker(
    start_for_module: Callable[..., Process], zookeeper: str, tmp_path_factory: pytest.TempPathFactory
) -> RunningBroker:
    """A broker with a message in each of 2,000 partitions."""
    started = start_broker(start_for_module, zookeeper, tmp_path_factory.mktemp("broker"), "compat-many")
    failed: list[str] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": started.bootstrap, "linger.ms": 50})
    for topic in TOPICS:
        started.create_topic(topic, PARTITIONS)
        for partition in range(PARTITIONS):
            producer.produce(
                topic,
                b"v",
                partition=partition,
                on_delivery=lambda e, _: failed.append(str(e)) if e else None,
            )
    assert producer.flush(WAIT_S) == 0
    assert not failed, failed[:3]
    return started


def test_a_confluent_consumer_reads_and_commits_two_thousand_partitions(broker: RunningBroker) -> None:
    def read(expected: int, seconds: float) -> int:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": "confluent",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe(TOPICS)
        got, end = 0, time.monotonic() + seconds
        while got < expected and time.monotonic() < end:
            got += sum(not message.error() for message in consumer.consume(500, timeout=1))
        if got == 2_000:
            committed = consumer.commit(asynchronous=False)
            assert not {str(each.error) for each in committed if each.error}
            assert len(committed) == 2_000
        consumer.close()
        return got

    assert read(2_000, WAIT_S) == 2_000
    assert read(1, 8) == 0, "it goes on where it committed"


def test_a_kafka_python_consumer_reads_and_commits_two_thousand_partitions(broker: RunningBroker) -> None:
    def read(expected: int, seconds: float) -> int:
        consumer = kafka.KafkaConsumer(
            *TOPICS,
            bootstrap_servers=broker.bootstrap,
            group_id="kafka-python",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        got, end = 0, time.monotonic() + seconds
        while got < expected and time.monotonic() < end:
            got += sum(len(records) for records in consumer.poll(timeout_ms=1000).values())
        if got == 2_000:
            consumer.commit()
        consumer.close()
        return got

    assert read(2_000, WAIT_S) == 2_000
    assert read(1, 8) == 0, "it goes on where it committed"


def test_an_administrator_lists_the_offsets_of_a_thousand_topics(broker: RunningBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    names = [f"small-{number}" for number in range(SMALL_TOPICS)]
    new = [NewTopic(name, 1, 1) for name in names]
    for at in range(0, len(new), 50):
        for made in admin.create_topics(new[at : at + 50]).values():
            made.result(WAIT_S)
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = {confluent_kafka.TopicPartition(name, 0): latest for name in names}
    listed = admin.list_offsets(asked, request_timeout=60)
    assert {future.result(WAIT_S).offset for future in listed.values()} == {0}
