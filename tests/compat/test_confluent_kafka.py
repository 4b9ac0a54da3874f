"""librdkafka through confluent-kafka: what applications do beyond reading a partition to its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from millrace.records import split_batches
from millrace.records.compression import Codec
from tests.compat.brokers import RunningBroker, start_broker
from tests.support import Process, wait_until


@pytest.fixture(scope="module")
def broker(
    start_for_module: Callable[..., Process], zookeeper: str, tmp_path_factory: pytest.TempPathFactory
) -> RunningBroker:
    return start_broker(start_for_module, zookeeper, tmp_path_factory.mktemp("broker"), "compat-confluent")


@pytest.fixture
def consumer(broker: RunningBroker) -> Iterator[Any]:
    made = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "someone",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 20,
        }
    )
    yield made
    started = time.monotonic()
    made.close()
    assert time.monotonic() - started < 5, "closing must not wait for a coordinator"


def send(broker: RunningBroker, topic: str, *messages: dict[str, Any], **settings: Any) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, **settings})
    errors: list[object] = []
    for message in messages:
        producer.produce(
            topic, on_delivery=lambda error, _: errors.append(error) if error else None, **message
        )
    assert producer.flush(30) == 0
    assert not errors, errors[0]


def read_all(consumer: Any, places: list[TopicPartition]) -> list[Any]:
    consumer.assign(places)
    found, ended = [], 0
    deadline = time.monotonic() + 30
    while ended < len(places):
        assert time.monotonic() < deadline
        message = consumer.poll(1)
        if message is None:
            continue
        if message.error() is None:
            found.append(message)
        else:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            ended += 1
    return found


def test_keys_headers_timestamps_and_nulls_come_back(broker: RunningBroker, consumer: Any) -> None:
    topic = broker.create_topic("whole", 1, flush_ms=5)
    headers = [("a", b"1"), ("a", None), ("empty", b"")]
    send(
        broker,
        topic,
        {"value": b"v", "key": b"k", "headers": headers, "timestamp": 1_431_000_000_123},
        {"value": None, "key": b"tombstone"},
        {"value": b"", "key": None},
    )
    first, second, third = read_all(consumer, [TopicPartition(topic, 0, 0)])
    assert (first.key(), first.value(), first.headers()) == (b"k", b"v", headers)
    assert first.timestamp() == (confluent_kafka.TIMESTAMP_CREATE_TIME, 1_431_000_000_123)
    assert (second.key(), second.value()) == (b"tombstone", None)
    assert (third.key(), third.value()) == (None, b"")


@pytest.mark.parametrize("acks", [0, 1, "all"])
@pytest.mark.parametrize("batch", [1, 1000])
def test_every_acks_and_batch_size(broker: RunningBroker, consumer: Any, acks: object, batch: int) -> None:
    topic = broker.create_topic(f"acks-{acks}-{batch}", 2, flush_ms=5)
    messages = [{"value": b"%d" % number, "partition": number % 2} for number in range(500)]
    send(broker, topic, *messages, **{"acks": acks, "batch.num.messages": batch, "linger.ms": 5})
    places = [TopicPartition(topic, partition, 0) for partition in (0, 1)]

    def values() -> list[int]:
        return sorted(int(message.value()) for message in read_all(consumer, places))

    # Without acks=all a message may be acknowledged before its flush makes it visible.
    wait_until("all are visible", lambda: len(values()) >= 500, timeout_s=20)
    assert values() == list(range(500))


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compression_is_kept(broker: RunningBroker, codec: str) -> None:
    topic = broker.create_topic(f"codec-{codec}", 1)
    send(
        broker,
        topic,
        *[{"value": b"same " * 20}] * 200,
        **{"compression.type": codec, "linger.ms": 50, "acks": "all"},
    )
    with broker.client() as client:
        fetched = client.fetch(topic, {0: 0}, max_bytes=1 << 20, max_wait_ms=0)[0]
    assert {header.codec for header, _ in split_batches(fetched.records)} == {Codec[codec.upper()]}


def test_large_messages_pass(broker: RunningBroker, consumer: Any) -> None:
    topic = broker.create_topic("large", 1)
    value = bytes(range(256)) * (3 << 12)
    send(
        broker, topic, {"value": value}, {"value": b"behind"}, **{"message.max.bytes": 8 << 20, "acks": "all"}
    )
    assert [m.value() for m in read_all(consumer, [TopicPartition(topic, 0, 0)])] == [value, b"behind"]


def test_offsets_are_committed_without_a_subscription(broker: RunningBroker, consumer: Any) -> None:
    topic = broker.create_topic("assigned", 1)
    send(broker, topic, {"value": b"x"}, acks="all")
    place = TopicPartition(topic, 0)
    assert [m.value() for m in read_all(consumer, [place])] == [b"x"]
    assert consumer.committed([place], timeout=5)[0].offset == confluent_kafka.OFFSET_INVALID
    consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    assert consumer.committed([place], timeout=5)[0].offset == 1


def test_offsets_are_committed_without_a_subscription_by_an_instance(broker: RunningBroker) -> None:
    place = TopicPartition(broker.create_topic("assigned-static", 1), 0, 1)
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "static", "group.instance.id": "one"}
    )
    try:
        consumer.assign([place])
        consumer.commit(offsets=[place], asynchronous=False)
        assert consumer.committed([place], timeout=5)[0].offset == 1
    finally:
        consumer.close()


def test_offsets_watermarks_and_times_agree(broker: RunningBroker, consumer: Any) -> None:
    topic = broker.create_topic("watermarks", 1)
    for number in range(3):
        send(broker, topic, {"value": b"%d" % number, "timestamp": 1000 * (number + 1)}, acks="all")
    found = read_all(consumer, [TopicPartition(topic, 0, 0)])
    low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=5)
    assert (low, high) == (0, found[-1].offset() + 1)
    assert consumer.position([TopicPartition(topic, 0)])[0].offset == high
    (at,) = consumer.offsets_for_times([TopicPartition(topic, 0, 1500)], timeout=5)
    assert at.offset == found[1].offset()
    (end,) = consumer.offsets_for_times([TopicPartition(topic, 0, 9000)], timeout=5)
    assert end.offset == confluent_kafka.OFFSET_END


def test_an_offset_past_the_end_resets_as_the_client_is_told(broker: RunningBroker, consumer: Any) -> None:
    topic = broker.create_topic("past", 1)
    send(broker, topic, {"value": b"x"}, acks="all")
    assert [m.value() for m in read_all(consumer, [TopicPartition(topic, 0, 1 << 40)])] == [b"x"]


def test_transactions_are_refused_at_once(broker: RunningBroker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "x"})
    started = time.monotonic()
    with pytest.raises(KafkaException):
        producer.init_transactions(20)
    assert time.monotonic() - started < 10


def test_the_admin_client_creates_lists_describes_and_deletes(broker: RunningBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_topics([NewTopic("adm", 3, 1, config={"retention.ms": "1000000"})]).values():
        future.result(10)
    with pytest.raises(KafkaException, match="exists already"):
        admin.create_topics([NewTopic("adm", 3, 1)])["adm"].result(10)
    with pytest.raises(KafkaException, match=r"2 replicas.* 1 are alive"):
        admin.create_topics([NewTopic("adm2", 3, 2)])["adm2"].result(10)
    metadata = admin.list_topics(timeout=10)
    assert sorted(metadata.topics["adm"].partitions) == [0, 1, 2]
    assert metadata.topics["adm"].partitions[0].isrs == [1]
    assert admin.describe_cluster(request_timeout=10).result(10).cluster_id == metadata.cluster_id
    admin.delete_topics(["adm"])["adm"].result(10)
    assert "adm" not in admin.list_topics(timeout=10).topics
