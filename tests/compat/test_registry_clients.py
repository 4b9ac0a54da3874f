"""Other people's clients of a schema registry against ours, with the options that change their requests."""

from __future__ import annotations

import asyncio
import json
from importlib import import_module
from typing import Any

import pytest
from confluent_kafka.schema_registry import (
    AsyncSchemaRegistryClient,
    Metadata,
    MetadataProperties,
    Schema,
    SchemaRegistryClient,
    header_schema_id_serializer,
    record_subject_name_strategy,
    topic_record_subject_name_strategy,
    topic_subject_name_strategy,
)
from confluent_kafka.schema_registry._async.avro import AsyncAvroDeserializer, AsyncAvroSerializer
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.serialization import MessageField, SerializationContext

from tests.conftest import Start

OLD: dict[str, Any] = {"type": "record", "name": "n.View", "fields": [{"name": "url", "type": "string"}]}
NEW = {**OLD, "fields": [*OLD["fields"], {"name": "status", "type": "int", "default": 200}]}
BROKEN = {**OLD, "fields": [{"name": "url", "type": "int"}]}

EVENT = {"url": "/index.html"}  # the deserializer takes no message of less than six bytes


@pytest.fixture(scope="module")
def url(start_for_module: Start, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A registry that the module's tests share; take a topic of your own."""
    database = f"sqlite:///{tmp_path_factory.mktemp('registry') / 'r.db'}"
    registry = start_for_module("registry", "--listen", "127.0.0.1:0", "--database-url", database)
    return f"http://{registry.ready()}"


def context(topic: str) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE, headers=[])


@pytest.mark.parametrize(
    ("strategy", "subject"),
    [
        (topic_subject_name_strategy, "named-value"),
        (record_subject_name_strategy, "n.View"),
        (topic_record_subject_name_strategy, "named-n.View"),
    ],
)
def test_confluent_kafka_names_subjects_by_every_strategy(url: str, strategy: Any, subject: str) -> None:
    with SchemaRegistryClient({"url": url}) as client:
        serialize = AvroSerializer(client, json.dumps(OLD), conf={"subject.name.strategy": strategy})
        message = serialize(EVENT, context("named"))
        assert message is not None
        assert client.get_latest_version(subject).schema_id == int.from_bytes(message[1:5], "big")


OPTIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "normalize.schemas": {"normalize.schemas": True},
    "auto.register.schemas off": {"auto.register.schemas": False},
    "use.latest.version": {"auto.register.schemas": False, "use.latest.version": True},
    "use.latest.with.metadata": {"auto.register.schemas": False, "use.latest.with.metadata": {"major": "1"}},
    "schema.id.serializer header": {"schema.id.serializer": header_schema_id_serializer},
}


def prepare(client: SchemaRegistryClient, topic: str) -> None:
    pairs = Metadata(None, MetadataProperties({"major": "1"}), None)
    client.register_schema(f"{topic}-value", Schema(json.dumps(OLD), metadata=pairs))


@pytest.mark.parametrize("option", OPTIONS)
def test_confluent_kafka_writes_and_reads_with_every_option(url: str, option: str) -> None:
    topic = f"sync {option}"
    with SchemaRegistryClient({"url": url}) as client, SchemaRegistryClient({"url": url}) as another:
        prepare(client, topic)
        written = context(topic)
        message = AvroSerializer(client, json.dumps(OLD), conf=OPTIONS[option])(EVENT, written)
        read = AvroDeserializer(another, json.dumps(NEW))(message, written)
        assert read == {**EVENT, "status": 200}


@pytest.mark.parametrize("option", OPTIONS)
def test_confluent_kafka_does_the_same_asynchronously(url: str, option: str) -> None:
    topic = f"async {option}"

    async def there_and_back() -> Any:
        with SchemaRegistryClient({"url": url}) as client:
            prepare(client, topic)
        async with AsyncSchemaRegistryClient({"url": url}) as client:
            serialize = await AsyncAvroSerializer(client, json.dumps(OLD), conf=OPTIONS[option])
            deserialize = await AsyncAvroDeserializer(client, json.dumps(NEW))
            written = context(topic)
            return await deserialize(await serialize(EVENT, written), written)

    assert asyncio.run(there_and_back()) == {**EVENT, "status": 200}


def test_confluent_kafka_refuses_to_produce_what_breaks_the_level(url: str) -> None:
    with SchemaRegistryClient({"url": url}) as client:
        AvroSerializer(client, json.dumps(OLD))(EVENT, context("guarded"))
        with pytest.raises(SchemaRegistryError, match="Schema being registered is incompatible") as refusal:
            AvroSerializer(client, json.dumps(BROKEN))({"url": 7}, context("guarded"))
        assert (refusal.value.http_status_code, refusal.value.error_code) == (409, 40901)


def test_python_schema_registry_client_is_answered(url: str) -> None:
    theirs = import_module("schema_registry.client")  # its types do not hold
    serializers = import_module("schema_registry.serializers")
    client = theirs.SchemaRegistryClient(url)
    old, new, broken = (theirs.schema.AvroSchema(schema) for schema in (OLD, NEW, BROKEN))
    first = client.register("theirs", old)
    assert client.register("theirs", old) == first
    assert client.test_compatibility("theirs", new)
    assert not client.test_compatibility("theirs", broken)
    second = client.register("theirs", new)
    assert client.check_version("theirs", new).version == 2
    assert client.get_by_id(second).schema["name"] == "n.View"
    assert client.get_schema("theirs").schema_id == second
    assert client.get_versions("theirs") == [1, 2]
    assert [use.subject for use in client.get_schema_subject_versions(second)] == ["theirs"]
    assert "theirs" in client.get_subjects()
    assert client.get_compatibility() == "BACKWARD"
    assert client.update_compatibility("FULL", "theirs")
    assert client.get_compatibility("theirs") == "FULL"
    serializer = serializers.AvroMessageSerializer(client)
    message = serializer.encode_record_with_schema("theirs", new, {"url": "/", "status": 404})
    assert serializer.decode_message(message) == {"url": "/", "status": 404}
    assert client.delete_version("theirs", 1)
    assert client.delete_subject("theirs") == [2]
    client.register("theirs-2", old)
    with pytest.raises(Exception, match="Incompatible schema"):
        client.register("theirs-2", broken)
