"""kafka-python and aiokafka with their own defaults: idempotent producers, admin calls, assignments."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable

import aiokafka
import aiokafka.admin
import aiokafka.errors
import pytest

from tests.compat.brokers import RunningBroker, start_broker
from tests.support import Process

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.admin
    import kafka.errors

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def broker(
    start_for_module: Callable[..., Process], zookeeper: str, tmp_path_factory: pytest.TempPathFactory
) -> RunningBroker:
    return start_broker(start_for_module, zookeeper, tmp_path_factory.mktemp("broker"), "compat-python")


def test_kafka_python_round_trip_with_a_group_id_and_assigned_partitions(broker: RunningBroker) -> None:
    topic = broker.create_topic("kp", 2, flush_ms=5)
    producer = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap)
    sent = [
        producer.send(topic, b"%d" % n, key=b"k", headers=[("h", b"1")], partition=n % 2, timestamp_ms=n + 1)
        for n in range(200)
    ]
    offsets = {(f.get(30).partition, f.get(30).offset) for f in sent}
    producer.close()
    assert len(offsets) == 200
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=broker.bootstrap,
        group_id="one",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        consumer_timeout_ms=3000,
    )
    places = [kafka.TopicPartition(topic, p) for p in (0, 1)]
    consumer.assign(places)
    found = [next(consumer) for _ in range(200)]
    assert {(record.partition, record.offset) for record in found} == offsets
    assert {record.timestamp for record in found} == set(range(1, 201))
    assert found[0].headers == [("h", b"1")]
    assert consumer.beginning_offsets(places) == dict.fromkeys(places, 0)
    assert consumer.end_offsets(places) == {place: consumer.position(place) for place in places}
    at = consumer.offsets_for_times({places[0]: 1})[places[0]]
    assert at.offset == 0
    assert consumer.committed(places[0]) is None
    consumer.close()


def test_kafka_python_admin(broker: RunningBroker) -> None:
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    admin.create_topics([kafka.admin.NewTopic("kpa", 2, 1)])
    assert "kpa" in admin.list_topics()
    with pytest.raises(kafka.errors.TopicAlreadyExistsError):
        admin.create_topics([kafka.admin.NewTopic("kpa", 2, 1)])
    admin.delete_topics(["kpa"])
    assert "kpa" not in admin.list_topics()
    admin.close()


def test_aiokafka_round_trip_with_a_group_id_and_assigned_partitions(broker: RunningBroker) -> None:
    topic = broker.create_topic("aio", 2, flush_ms=5)

    async def run() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=broker.bootstrap, acks="all")
        await producer.start()
        sent = [
            await producer.send_and_wait(topic, b"%d" % n, key=b"k", partition=n % 2, headers=[("h", b"1")])
            for n in range(50)
        ]
        await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=broker.bootstrap,
            group_id="one",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        await consumer.start()
        places = [aiokafka.TopicPartition(topic, p) for p in (0, 1)]
        consumer.assign(places)
        found = [await asyncio.wait_for(consumer.getone(), 20) for _ in range(50)]
        assert {(r.partition, r.offset) for r in found} == {(m.partition, m.offset) for m in sent}
        assert found[0].headers == (("h", b"1"),)
        ends = await consumer.end_offsets(places)
        assert ends == {place: await consumer.position(place) for place in places}
        first = next(record for record in found if record.partition == 0)
        times = await consumer.offsets_for_times({places[0]: first.timestamp})
        await consumer.stop()
        assert times[places[0]].offset == first.offset == 0

    asyncio.run(run())


def test_aiokafka_refuses_offsets_out_of_range(broker: RunningBroker) -> None:
    topic = broker.create_topic("aio-range", 1)

    async def run() -> None:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="none")
        await consumer.start()
        place = aiokafka.TopicPartition(topic, 0)
        consumer.assign([place])
        consumer.seek(place, 1 << 40)
        with pytest.raises(aiokafka.errors.OffsetOutOfRangeError):
            await asyncio.wait_for(consumer.getone(), 20)
        await consumer.stop()

    asyncio.run(run())


def test_aiokafka_admin(broker: RunningBroker) -> None:
    async def run() -> None:
        admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        await admin.create_topics([aiokafka.admin.NewTopic("aioa", 2, 1)])
        assert "aioa" in await admin.list_topics()
        await admin.delete_topics(["aioa"])
        assert "aioa" not in await admin.list_topics()
        await admin.close()

    asyncio.run(run())
