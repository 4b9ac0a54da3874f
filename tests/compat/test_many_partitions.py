"""2,000 partitions, 1,050 topics and 2,500 groups, each of which clients name all at once."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]

from tests.committed_groups import OFFSET, write_groups
from tests.compat.brokers import RunningBroker, start_broker
from tests.peers.kafka import kafka_tool
from tests.support import WAIT_S, Process

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
CLUSTER = "compat-many"
TOPICS, PARTITIONS, SMALL_TOPICS, GROUPS = ["wide-0", "wide-1"], 1_000, 1_050, 2_500
JAVA_S = 240
"""Time limit of one of Kafka's tools."""


@pytest.fixture(scope="module")
def broker(
    start_for_module: Callable[..., Process], zookeeper: str, tmp_path_factory: pytest.TempPathFactory
) -> RunningBroker:
    """A broker with a message in each of 2,000 partitions."""
    started = start_broker(start_for_module, zookeeper, tmp_path_factory.mktemp("broker"), CLUSTER)
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


@pytest.fixture(scope="module")
def small_topics(broker: RunningBroker) -> list[str]:
    """1,050 topics of one partition with one message each."""
    names = [f"small-{number}" for number in range(SMALL_TOPICS)]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for at in range(0, len(names), 50):
        for made in admin.create_topics([NewTopic(name, 1, 1) for name in names[at : at + 50]]).values():
            made.result(WAIT_S)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    for name in names:
        producer.produce(name, name.encode())
    assert producer.flush(WAIT_S) == 0
    return names


def test_an_administrator_lists_the_offsets_of_a_thousand_topics(
    broker: RunningBroker, small_topics: list[str]
) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = {confluent_kafka.TopicPartition(name, 0): latest for name in small_topics}
    listed = admin.list_offsets(asked, request_timeout=60)
    assert all(future.result(WAIT_S).offset > 0 for future in listed.values())


def java(broker: RunningBroker, tool: str, *arguments: str) -> list[str]:
    """The lines that one of Kafka's tools prints."""
    done = kafka_tool(tool, "--bootstrap-server", broker.bootstrap, *arguments, timeout_s=JAVA_S)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().splitlines()


def test_java_lists_the_offsets_of_a_thousand_topics(broker: RunningBroker, small_topics: list[str]) -> None:
    lines = java(broker, "GetOffsetShell", "--topic", "small-.*")
    assert sorted(line.rsplit(":", 2)[0] for line in lines) == sorted(small_topics)
    assert all(int(line.rsplit(":", 1)[1]) > 0 for line in lines)


def test_javas_console_consumer_reads_a_thousand_topics(
    broker: RunningBroker, small_topics: list[str]
) -> None:
    count = ("--from-beginning", "--max-messages", str(SMALL_TOPICS), "--timeout-ms", "60000")
    assert sorted(java(broker, "ConsoleConsumer", "--include", "small-.*", *count)) == sorted(small_topics)


def test_java_describes_two_thousand_five_hundred_groups(broker: RunningBroker, zookeeper: str) -> None:
    with broker.client() as client:
        topic_id = client.topic(TOPICS[0]).topic_id
    names = write_groups(zookeeper, CLUSTER, TOPICS[0], topic_id, GROUPS)
    # Its own limit is five seconds, and a busy machine needs minutes for so many groups.
    limit = ("--timeout", str(JAVA_S * 1000))
    lines = java(broker, "ConsumerGroupCommand", "--describe", "--all-groups", *limit)
    rows = {words[0]: words[1:4] for line in lines if len(words := line.split()) > 4}
    wrong = [name for name in names if rows.get(name) != [TOPICS[0], "0", str(OFFSET)]]
    assert not wrong, (len(wrong), [line for line in lines if TOPICS[0] not in line][:5])
