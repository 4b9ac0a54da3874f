"""Topics of JSON objects, text and bytes on a real broker: loaded by Spark, published, read."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import confluent_kafka
import pyarrow as pa
import pytest

from millrace.client import samples
from millrace.errors import MillraceError
from millrace_audit.reports.record_header import HEADER_NAME, encode_header, topic_tag
from millrace_registry.client import SchemaRegistryClient
from millrace_registry.subjects import LIKE_TOPICS
from millrace_spark.commands import early
from millrace_warehouse.load.load import LoadResult
from millrace_warehouse.publish.catalog import connect
from millrace_warehouse.publish.table import find_table
from millrace_warehouse.requests import Load
from millrace_warehouse.storage import open_storage
from tests.jobs import load_topics
from tests.support import WAIT_S, Process, run_millrace
from tests.warehouses import TestSite

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Start = Callable[..., Process]
START_MS = 1_431_856_800_000
ORDERS = "shop.orders.v1"
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {
            "name": "placedAt",
            "type": {"type": "long", "logicalType": "timestamp-millis", "millrace.json": "iso"},
        },
    ],
}


@pytest.fixture(scope="module")
def site(zookeeper: str, start_for_module: Start, tmp_path_factory: pytest.TempPathFactory) -> TestSite:
    folder = tmp_path_factory.mktemp("formats")
    return TestSite.start(start_for_module, f"formats-{uuid4().hex[:6]}", folder, zookeeper)


def produce(
    site: TestSite, topic: str, *values: bytes, headers: Sequence[tuple[str, bytes | None]] = (("h", b"\1"),)
) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": site.cluster.bootstrap})
    for value in values:
        producer.produce(topic, value, key=b"k", timestamp=START_MS, headers=[*headers])
    assert producer.flush(WAIT_S) == 0


def order(number: int, **more: Any) -> bytes:
    return json.dumps({"id": number, "placedAt": "2015-05-17T11:00:00Z", **more}).encode()


def load(
    spark: SparkSession, site: TestSite, warehouse: Path, topic: str, *, format: str = "", time: str = ""
) -> LoadResult:
    request = Load(
        topics=[topic],
        bootstrap=site.cluster.bootstrap,
        registry=site.registry,
        warehouse=str(warehouse),
        format=format,
        time=time,
        cut_bytes=200_000,
    )
    (result,) = load_topics(spark, request)
    return result


def published(warehouse: Path, topic: str, hour: str) -> pa.Table:
    """Publish an hour; return the rows of the table."""
    done = run_millrace("publish", topic, "--hour", hour, "--warehouse", str(warehouse), "--unasked")
    assert done.returncode == 0, done.stderr
    table = find_table(connect(open_storage(str(warehouse))), topic)
    assert table is not None
    return table.scan().to_arrow()


def test_a_topic_of_json_is_drafted_loaded_published_and_read(
    spark: SparkSession, site: TestSite, tmp_path: Path
) -> None:
    with site.cluster.client() as client:
        client.create_topic(ORDERS, 3)
    empty = run_millrace("init", "schema", ORDERS, "--from-topic", "--bootstrap", site.cluster.bootstrap)
    assert empty.stderr == f"millrace: {ORDERS} has no messages yet: send one, then run the command again\n"
    produce(site, ORDERS, *(order(number, customer="é" if number % 2 else None) for number in range(200)))
    bootstrap, warehouse = site.cluster.bootstrap, tmp_path / "warehouse"

    no_schema = (str(warehouse), bootstrap, site.registry, LIKE_TOPICS)
    with pytest.raises(MillraceError, match=r'look like JSON objects.* format = "json"'):
        early.topics_to_load(*no_schema, lambda _: "", [ORDERS], "")
    with pytest.raises(MillraceError, match=f"draft it with `millrace init schema {ORDERS} --from-topic`"):
        early.topics_to_load(*no_schema, lambda _: "json", [ORDERS], "")

    drafted = run_millrace(
        *("init", "schema", ORDERS, "--from-topic", "--bootstrap", bootstrap),
        *("--registry", site.registry, "--folder", str(tmp_path)),
    )
    assert drafted.returncode == 0, drafted.stderr
    assert "The schema is a guess from 200 JSON objects" in drafted.stdout
    assert "placedAt: taken as times of ISO 8601" in drafted.stdout
    assert f"--bootstrap {bootstrap}" not in drafted.stdout, "loads are from the offline cluster"
    assert drafted.stdout.count(f" --registry {site.registry}\n") == 2
    applied = run_millrace(*("schemas", "apply", str(tmp_path / "schemas"), "--registry", site.registry))
    assert applied.returncode == 0, applied.stdout + applied.stderr

    with pytest.raises(MillraceError, match=r'look like JSON objects.* format = "json"'):
        load(spark, site, warehouse, ORDERS)
    produce(site, ORDERS, order(200, coupon="x"), b'{"id": "secret"}')
    result = load(spark, site, warehouse, ORDERS, format="json", time="placedAt")
    assert (result.rows, result.rejected, dict(result.hours)) == (201, 1, {"2015-05-17T11": 201})
    assert "1 times 'id: Expected int, got string'" in result.notes[-1]

    rows = published(warehouse, ORDERS, "2015-05-17T11")
    assert sorted(rows["id"].to_pylist()) == [*range(201)]
    assert rows["customer"].to_pylist().count("é") == 100
    verified = run_millrace(
        "verify", "--warehouse", str(warehouse), "--rows", "--bootstrap", bootstrap, "--json"
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr


@pytest.mark.parametrize(("format", "value"), [("text", "a,é"), ("bytes", "a,é".encode())])
def test_other_messages_are_loaded_without_a_schema(
    spark: SparkSession, site: TestSite, tmp_path: Path, format: str, value: Any
) -> None:
    topic = f"lines-{format}"
    with site.cluster.client() as client:
        client.create_topic(topic, 1)
    produce(site, topic, *["a,é".encode()] * 30)
    with pytest.raises(MillraceError, match=r'look like plain text.* format = "text"'):
        load(spark, site, tmp_path, topic)
    result = load(spark, site, tmp_path, topic, format=format)
    assert (result.rows, result.rejected, result.notes) == (30, 0, [])
    with pytest.raises(MillraceError, match="with format = 'json': its first load has pinned"):
        load(spark, site, tmp_path, topic, format="json")
    row = published(tmp_path, topic, "2015-05-17T10").to_pylist()[0]
    assert (row["value"], row["headers"]) == (value, [{"key": "h", "value": b"\1"}])


@pytest.mark.slow
@pytest.mark.parametrize("format", ["json", "text", "bytes"])
def test_sparks_data_source_has_the_columns_and_rows_of_a_load(
    spark: SparkSession, site: TestSite, tmp_path: Path, format: str
) -> None:
    topic = f"both-{format}"
    with site.cluster.client() as client:
        client.create_topic(topic, 2)
    options = {"bootstrap": site.cluster.bootstrap, "subscribe": topic, "value.format": format}
    if format == "json":
        options["registry.url"] = site.registry
        with SchemaRegistryClient(site.registry) as registry:
            registry.register(topic, ORDER)
    tag = topic_tag(topic)
    for number in range(20):
        header = encode_header(tag, 7, number, START_MS)
        produce(site, topic, order(number), headers=[(HEADER_NAME, header)] if number % 2 else [("h", None)])
    load(spark, site, tmp_path, topic, format=format)
    rows = published(tmp_path, topic, "2015-05-17T10").drop_columns(["_time", "_load"])
    read = spark.read.format("millrace").options(**options).load()
    assert read.columns == rows.column_names
    place = [("_topic_partition", "ascending"), ("_offset", "ascending")]
    assert read.toArrow().sort_by(place).to_pylist() == rows.sort_by(place).to_pylist()
    assert rows["_sequence"].null_count == 10


NUMBERED = {"type": "record", "name": "Numbered", "fields": [{"name": "id", "type": "long"}]}


@pytest.mark.slow
def test_avro_without_a_frame_is_loaded_with_the_newest_schema_of_the_topic(
    spark: SparkSession, site: TestSite, tmp_path: Path
) -> None:
    topic = "numbered-unframed"
    with site.cluster.client() as client, SchemaRegistryClient(site.registry) as registry:
        client.create_topic(topic, 1)
        registry.register(topic, NUMBERED)
    produce(site, topic, *(bytes([0x80 + 2 * number, 1]) for number in range(30)))
    with pytest.raises(MillraceError, match='load expects Avro: write format = "bytes" or "avro-unframed"'):
        load(spark, site, tmp_path, topic)
    result = load(spark, site, tmp_path, topic, format="avro-unframed")
    assert (result.rows, result.rejected, result.notes) == (30, 0, [])
    assert sorted(published(tmp_path, topic, "2015-05-17T10")["id"].to_pylist()) == [*range(64, 94)]
    verified = run_millrace(
        "verify", "--warehouse", str(tmp_path), "--rows", "--bootstrap", site.cluster.bootstrap
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr


@pytest.mark.parametrize(
    ("name", "value", "format"),
    [
        ("arrays", b'[{"id": 1}]', "text"),
        ("json-schema", b'\0\0\0\x12\x67{"id": 1}', "json"),
        ("protobuf", b"\0\0\0\x12\x67\0\x08\x96\x01", "bytes"),
        ("random", b"\xff\xfe\0\1", "bytes"),
        ("empty", b"", "bytes"),
    ],
)
def test_a_load_that_expects_avro_names_the_format_of_the_messages_and_that_format_takes_them(
    spark: SparkSession, site: TestSite, tmp_path: Path, name: str, value: bytes, format: str
) -> None:
    topic = f"wrong-{name}"
    with site.cluster.client() as client, SchemaRegistryClient(site.registry) as registry:
        client.create_topic(topic, 1)
        registry.register(topic, NUMBERED)
    produce(site, topic, *[value] * 120)
    with pytest.raises(MillraceError, match=f'and the load expects Avro: write format = "{format}"'):
        load(spark, site, tmp_path / "untold", topic)
    with pytest.raises(MillraceError, match=f'into a new warehouse, with format = "{format}"'):
        load(spark, site, tmp_path / "avro", topic, format="avro")
    assert load(spark, site, tmp_path / "right", topic, format=format).rows == 120


@pytest.mark.slow
def test_a_load_takes_the_format_of_an_expression_that_matches_the_topic(
    site: TestSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "topics.toml").write_text("[topics_matching.'legacy\\..*']\nformat = 'text'\n")
    monkeypatch.setenv("MILLRACE_TOPICS_FILE", str(tmp_path / "topics.toml"))
    with site.cluster.client() as client:
        client.create_topic("legacy.lines", 1)
    produce(site, "legacy.lines", *[b"a line"] * 3)
    done = run_millrace("load", "legacy.lines", *site.load_options(tmp_path / "warehouse"))
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)
    assert (result["rows"], result["rejected"]) == (3, 0)


def test_a_sample_has_the_newest_values_within_its_bytes_and_one_at_least(
    site: TestSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    with site.cluster.client() as client:
        client.create_topic("sampled", 1)
        produce(site, "sampled", *(bytes([number]) * 400 for number in range(10)))
        monkeypatch.setattr(samples, "_MOST_BYTES", 1_300)
        assert [value[0] for value in samples.newest_values(client, "sampled", 100)] == [7, 8, 9]
        monkeypatch.setattr(samples, "_MOST_BYTES", 300)
        assert [value[0] for value in samples.newest_values(client, "sampled", 100)] == [9]
