"""Settings changed and partitions added at run time, by the admin clients of other projects."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import aiokafka.admin
import aiokafka.admin.config_resource
import confluent_kafka.admin
import pytest
from confluent_kafka import KafkaError, KafkaException

from millrace.client.cluster_client import ClusterClient
from millrace.client.topic_admin import topic_setting
from tests.compat.brokers import RunningBroker, start_broker
from tests.support import Process

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.admin

confluent: Any = confluent_kafka.admin  # its types export only half of what it has
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def broker(
    start_for_module: Callable[..., Process], zookeeper: str, tmp_path_factory: pytest.TempPathFactory
) -> RunningBroker:
    return start_broker(start_for_module, zookeeper, tmp_path_factory.mktemp("broker"), "compat-admin")


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[ClusterClient]:
    with broker.client() as made:
        yield made


def test_librdkafka_describes_and_changes_topics(broker: RunningBroker, client: ClusterClient) -> None:
    topic = broker.create_topic("rdkafka", 2, retention_ms=60_000)
    admin = confluent.AdminClient({"bootstrap.servers": broker.bootstrap})
    resource = confluent.ConfigResource("topic", topic)

    def change(name: str, value: str | None, operation: Any) -> None:
        entry = confluent.ConfigEntry(name, value, incremental_operation=operation)
        wanted = confluent.ConfigResource("topic", topic, incremental_configs=[entry])
        (future,) = admin.incremental_alter_configs([wanted]).values()
        future.result(10)

    found = admin.describe_configs([resource])[resource].result(10)
    assert (found["retention.ms"].value, found["retention.ms"].source) == (
        "60000",
        confluent.ConfigSource.DYNAMIC_TOPIC_CONFIG.value,
    )
    assert found["flush.ms"].is_default
    assert found["cleanup.policy"].is_read_only
    change("flush.ms", "9", confluent.AlterConfigOpType.SET)
    change("retention.ms", None, confluent.AlterConfigOpType.DELETE)
    assert topic_setting(client, topic, "flush.ms") == "9"
    assert topic_setting(client, topic, "retention.ms") == str(7 * 24 * 3600 * 1000)
    with pytest.raises(KafkaException) as refused:
        change("flush.ms", "soon", confluent.AlterConfigOpType.SET)
    assert refused.value.args[0].code() == KafkaError.INVALID_CONFIG
    admin.create_partitions([confluent.NewPartitions(topic, 5)])[topic].result(10)
    assert len(client.topic(topic).partitions) == 5
    with pytest.raises(KafkaException, match="has 5 partitions already"):
        admin.create_partitions([confluent.NewPartitions(topic, 3)])[topic].result(10)
    settings_of_broker = confluent.ConfigResource("broker", "1")
    told = admin.describe_configs([settings_of_broker])[settings_of_broker].result(10)
    assert told["broker_id"].value == "1"


def test_kafka_python_describes_and_changes_topics(broker: RunningBroker, client: ClusterClient) -> None:
    topic = broker.create_topic("kafka-python", 2)
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        kind = kafka.admin.ConfigResourceType.TOPIC
        admin.alter_configs([kafka.admin.ConfigResource(kind, topic, {"flush.ms": "11"})])
        told = admin.describe_configs([kafka.admin.ConfigResource(kind, topic)])
        assert told["topic"][topic]["flush.ms"]["value"] == "11"
        admin.create_partitions({topic: kafka.admin.NewPartitions(4)})
        assert len(client.topic(topic).partitions) == 4
        (directory,) = admin.describe_log_dirs()[0]["log_dirs"]
        assert topic in {found["name"] for found in directory["topics"]}
    finally:
        admin.close()


def test_aiokafka_describes_and_changes_topics(broker: RunningBroker, client: ClusterClient) -> None:
    topic = broker.create_topic("aiokafka", 2)
    resource = aiokafka.admin.config_resource.ConfigResource
    kind = aiokafka.admin.config_resource.ConfigResourceType

    async def change() -> Any:
        admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        try:
            await admin.alter_configs([resource(kind.TOPIC, topic, {"flush.ms": "12"})])
            await admin.create_partitions({topic: aiokafka.admin.NewPartitions(3)})
            return await admin.describe_configs([resource(kind.TOPIC, topic)])
        finally:
            await admin.close()

    (response,) = asyncio.run(change())
    told = {entry[0]: entry[1] for entry in response.resources[0][4]}
    assert told["flush.ms"] == "12"
    assert topic_setting(client, topic, "flush.ms") == "12"
    assert len(client.topic(topic).partitions) == 3
