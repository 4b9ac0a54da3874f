"""A topic of changes as Debezium writes it, loaded by the command: counts by kind, deleted keys by SQL."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from uuid import uuid4

import duckdb
import pytest
from confluent_kafka import Producer

from millrace.records import Message
from millrace_registry.client import SchemaRegistryClient
from tests.changes import SCHEMA, broken, changes, key_of
from tests.support import WAIT_S, Process, run_millrace
from tests.warehouses import TestSite

Start = Callable[..., Process]
START_MS = 1_431_856_800_000
NO_KINDS = {"foreign_framing": 0, "unknown_schema": 0, "broken_body": 0}


@pytest.fixture(scope="module")
def site(zookeeper: str, start_for_module: Start, tmp_path_factory: pytest.TempPathFactory) -> TestSite:
    folder = tmp_path_factory.mktemp("kinds")
    return TestSite.start(start_for_module, f"offline-{uuid4().hex[:6]}", folder, zookeeper)


def produce(site: TestSite, topic: str, messages: Iterable[Message]) -> None:
    producer = Producer({"bootstrap.servers": site.cluster.bootstrap, "linger.ms": 5})
    for message in messages:
        producer.produce(topic, message.value, message.key, timestamp=message.timestamp)
        producer.poll(0)
    assert producer.flush(WAIT_S) == 0


def load(site: TestSite, topic: str, warehouse: Path, *words: str) -> subprocess.CompletedProcess[str]:
    metrics = ["--metrics-dir", str(warehouse.parent)]
    return run_millrace("load", topic, *site.load_options(warehouse), *metrics, *words)


@pytest.mark.slow
def test_deletes_of_a_topic_of_changes_fail_no_load_and_broken_bodies_do_with_their_count_alone(
    site: TestSite, tmp_path: Path
) -> None:
    topic, warehouse = "shop.customers", tmp_path / "warehouse"
    with site.cluster.client() as client:
        client.create_topic(topic, 4)
    with SchemaRegistryClient(site.registry) as registry:
        schema_id = registry.register(topic, SCHEMA)
    produce(site, topic, changes(10_000, 1_000, schema_id, START_MS))
    done = load(site, topic, warehouse)
    assert done.returncode == 0, done.stderr
    (loaded,) = json.loads(done.stdout)
    assert (loaded["rows"], loaded["tombstones"], loaded["rejected"]) == (10_000, 1_000, 0)
    assert loaded["rejected_by_kind"] == NO_KINDS
    metrics = (tmp_path / f"millrace_load_{topic}.prom").read_text()
    assert f'millrace_load_tombstones{{topic="{topic}"}} 1000.0' in metrics
    assert f'millrace_load_rejected_rows{{kind="broken_body",topic="{topic}"}} 0.0' in metrics
    found = duckdb.sql(
        'SELECT DISTINCT partition, "offset", epoch_ms(timestamp), decode(key) AS deleted'
        f" FROM read_parquet('{warehouse}/{topic}/rows/*/tombstones-*.parquet')"
    ).fetchall()
    assert sorted(key for *_, key in found) == sorted(key_of(n).decode() for n in range(9_000, 10_000))

    produce(site, topic, broken(20, schema_id, START_MS))
    failed = load(site, topic, warehouse)
    assert failed.returncode == 1
    (loaded,) = json.loads(failed.stdout)
    assert (loaded["rows"], loaded["tombstones"], loaded["rejected"]) == (0, 0, 20)
    assert loaded["rejected_by_kind"] == {**NO_KINDS, "broken_body": 20}
    assert f"could not be decoded: 20 broken body in {topic}/rows/0000000002-*/" in failed.stderr

    (tmp_path / "topics.toml").write_text(f'["{topic}"]\ntombstones_as_rows = true\n')
    produce(site, topic, [Message(START_MS, key_of(1), None)])
    done = load(site, topic, warehouse, "--topics-file", str(tmp_path / "topics.toml"))
    assert done.returncode == 0, done.stderr
    (loaded,) = json.loads(done.stdout)
    assert (loaded["rows"], loaded["tombstones"]) == (1, 0)
    verified = run_millrace("verify", "--warehouse", str(warehouse), "--no-catalog", "--rows", "--json")
    assert verified.returncode == 0, verified.stdout + verified.stderr
