"""Past hours after a fix, on real brokers: read again, counted once, published, old files expired."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import fastavro
import pytest
from confluent_kafka import Producer

from millrace_registry.client import SchemaRegistryClient
from millrace_spark.jobs.load import reload_loads
from millrace_warehouse.publish.catalog import connect, table_identifier
from millrace_warehouse.requests import Load, Reload
from millrace_warehouse.storage import open_storage
from tests.jobs import load_topics
from tests.support import WAIT_S, Process, run_millrace
from tests.warehouses import EMPTY_EVENT, HOUR_MS, TestSite

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_MS = 1_431_856_800_000
TEN = "2015-05-17T10"


@pytest.fixture(scope="module")
def site(
    zookeeper: str, start_for_module: Callable[..., Process], tmp_path_factory: pytest.TempPathFactory
) -> TestSite:
    folder = tmp_path_factory.mktemp("reload")
    return TestSite.start(start_for_module, f"offline-{uuid4().hex[:6]}", folder, zookeeper)


def send_unknown(site: TestSite, topic: str, schema: dict[str, Any], schema_id: int, time_ms: int) -> None:
    """One event written with a schema that the registry will know under that id, but does not yet."""
    header = {"time": time_ms, "server": "web9", "service": "web", "instance": 9, "sequence": 0}
    body = io.BytesIO(b"\0" + schema_id.to_bytes(4, "big"))
    body.seek(5)
    fastavro.schemaless_writer(body, schema, {"header": header, **EMPTY_EVENT, "country": "is"})
    producer = Producer({"bootstrap.servers": site.cluster.bootstrap, "acks": "all"})
    producer.produce(topic, body.getvalue(), timestamp=time_ms)
    assert producer.flush(WAIT_S) == 0


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "spark"])
def test_a_schema_that_was_missing_brings_its_rows_back_exactly_once(
    spark: SparkSession, site: TestSite, tmp_path: Path, engine: str
) -> None:
    topic = site.topic(f"Mended-{engine}", 1)
    site.publish(topic, [START_MS + n * HOUR_MS // 10 for n in range(20)])
    with SchemaRegistryClient(site.registry) as registry:
        latest = registry.latest(topic)
        country = {"name": "country", "type": ["null", "string"], "default": None, "doc": engine}
        schema = {**latest.schema, "fields": [*latest.schema["fields"], country]}
        next_id = (
            registry.register(f"NextId-{engine}", {"type": "enum", "name": "NextId", "symbols": [engine]}) + 1
        )
        send_unknown(site, topic, schema, next_id, START_MS)
        places: dict[str, Any] = {
            "bootstrap": site.cluster.bootstrap,
            "registry": site.registry,
            "warehouse": str(tmp_path),
        }
        (loaded,) = load_topics(spark, Load(topics=[topic], run_id="load", **places))
        assert (loaded.rows, loaded.rejected) == (20, 1)
        assert published(tmp_path, topic, "--hour", TEN) == [(TEN, "first", 10)]
        assert registry.register(topic, schema) == next_id

    if engine == "spark":
        again = Reload(topic=topic, run_id="again", reason="a schema was missing", hours=[TEN], **places)
        result = dataclasses.asdict(reload_loads(spark.sparkContext, again).loads[0])
    else:
        words = ["--hour", TEN, "--reason", "a schema was missing", *site.load_options(tmp_path)]
        words += ["--engine", engine]
        done = run_millrace("reload", topic, *words)
        assert done.returncode == 0, done.stderr
        (result,) = json.loads(done.stdout)["loads"]
    assert (result["edition"], result["rows"], result["rejected"]) == (2, 21, 0)

    assert published(tmp_path, topic) == [(TEN, "reload", 11)]
    assert published(tmp_path, topic, "--hour", "2015-05-17T11") == [("2015-05-17T11", "first", 10)]
    storage = open_storage(str(tmp_path))
    with connect(storage) as catalog:
        rows = catalog.load_table(table_identifier(topic)).scan().to_arrow()
    found = {(row["header"]["instance"], row["header"]["sequence"]) for row in rows.to_pylist()}
    assert len(found) == rows.num_rows == 21

    no_time = ["--older-than", "0s", "--reader-grace", "0s", "--json"]
    for _ in range(2):  # written down, then deleted
        expired = run_millrace("expire", topic, "--warehouse", str(tmp_path), *no_time)
        assert expired.returncode == 0, expired.stderr
    assert json.loads(expired.stdout)["kept"] == {}
    verified = run_millrace(
        "verify", "--warehouse", str(tmp_path), "--bootstrap", site.cluster.bootstrap, "--json"
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr
    (table,) = json.loads(verified.stdout)["topics"]
    assert (table["rows"], table["published"]) == (21, 21)
    assert table["expired"] > 0


def published(warehouse: Path, topic: str, *options: str) -> list[tuple[str, str, int]]:
    """Hour, kind of the change, and rows in the table's hour: what a publication has done."""
    done = run_millrace("publish", topic, "--warehouse", str(warehouse), "--unasked", "--json", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    return [(each["hour"], each["kind"], each["added"]) for each in json.loads(done.stdout)[0]["changes"]]
