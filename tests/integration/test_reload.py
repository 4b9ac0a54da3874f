"""Past hours after a fix, on real brokers: read again, counted once, published, old files expired."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import fastavro
import pytest
from confluent_kafka import Producer
from millrace_spark.jobs.hourly import publish

from millrace_audit.reports.messages import AuditCodec, Count, LoadNumber
from millrace_registry.client import SchemaRegistryClient
from millrace_spark import tables
from millrace_spark.jobs.load import reload_loads
from millrace_warehouse.commands.verbs import Hourly, Load, Reload
from tests.brokers import read_topic
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


def test_a_schema_that_was_missing_brings_its_rows_back_exactly_once(
    spark: SparkSession, site: TestSite, tmp_path: Path
) -> None:
    topic = site.topic("Mended", 1)
    site.publish(topic, [START_MS + n * HOUR_MS // 10 for n in range(20)])
    with SchemaRegistryClient(site.registry) as registry:
        latest = registry.latest(topic)
        country = {"name": "country", "type": ["null", "string"], "default": None}
        schema = {**latest.schema, "fields": [*latest.schema["fields"], country]}
        next_id = registry.register("NextId", {"type": "enum", "name": "NextId", "symbols": ["A"]}) + 1
        send_unknown(site, topic, schema, next_id, START_MS)
        places: dict[str, Any] = {
            "bootstrap": site.cluster.bootstrap,
            "registry": site.registry,
            "warehouse": str(tmp_path),
        }
        (loaded,) = load_topics(spark, Load(topics=[topic], run_id="load", **places))
        assert (loaded.rows, loaded.rejected) == (20, 1)
        hours = Hourly(topic=topic, hours=[TEN], warehouse=str(tmp_path), run_id="hours")
        assert [each.rows for each in publish(spark, hours)] == [10]
        assert registry.register(topic, schema) == next_id

    again = Reload(topic=topic, run_id="again", reason="a schema was missing", hours=[TEN], **places)
    (result,) = reload_loads(spark, again)
    assert (result.edition, result.rows, result.rejected) == (2, 21, 0)
    with site.cluster.client() as client, SchemaRegistryClient(site.registry) as registry:
        (told,) = read_topic(client, "audit-offline").values()
        records = [AuditCodec(registry).decode(value) for value in told.values]
    counts = [each for each in records if isinstance(each, Count) and each.topic == topic]
    assert [(each.source, each.counts.total, each.removed.total) for each in counts] == [
        (LoadNumber(1), 20, 0),
        (LoadNumber(1), 20, 0),
        (LoadNumber(1, 2), 1, 0),
    ]

    late = Hourly(topic=topic, hours=[], late=True, warehouse=str(tmp_path), run_id="late")
    assert [(each.revision, each.rows) for each in publish(spark, late)] == [(2, 11)]
    publish(spark, Hourly(topic=topic, hours=["2015-05-17T11"], warehouse=str(tmp_path), run_id="2"))
    assert tables.read(spark, str(tmp_path), topic).count() == 21

    expired = run_millrace(
        "expire", topic, "--warehouse", str(tmp_path), "--older-than", "0s", "--reader-grace", "0s", "--json"
    )
    assert expired.returncode == 0, expired.stderr
    assert {name: json.loads(expired.stdout)[name] for name in ("loads", "revisions", "kept")} == {
        "loads": 2,
        "revisions": 1,
        "kept": {},
    }
    assert tables.read(spark, str(tmp_path), topic).count() == 21
    verified = run_millrace("verify", str(tmp_path), "--bootstrap", site.cluster.bootstrap, "--json")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert [table["expired"] for table in json.loads(verified.stdout)["tables"]] == [2, 1]
