"""A topic's table in the layout of its policy, loaded and published by the commands."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import StringType

from millrace_warehouse.publish.catalog import connect, table_identifier
from millrace_warehouse.storage import open_storage
from tests.support import WAIT_S, Process, run_millrace
from tests.warehouses import TestSite

Start = Callable[..., Process]
START_MS = 1_431_856_800_000


@pytest.fixture(scope="module")
def site(zookeeper: str, start_for_module: Start, tmp_path_factory: pytest.TempPathFactory) -> TestSite:
    folder = tmp_path_factory.mktemp("layouts")
    return TestSite.start(start_for_module, f"offline-{uuid4().hex[:6]}", folder, zookeeper)


def produce(site: TestSite, topic: str) -> None:
    producer = Producer({"bootstrap.servers": site.cluster.bootstrap})
    for number in range(200):
        producer.produce(topic, b"line %d" % (number * 37 % 100), timestamp=START_MS + number)
    assert producer.flush(WAIT_S) == 0


@pytest.mark.slow
def test_a_policy_lays_out_the_table_and_a_wrong_one_is_refused_before_a_message_is_read(
    site: TestSite, tmp_path: Path
) -> None:
    topic, warehouse, file = "lines", tmp_path / "warehouse", tmp_path / "topics.toml"

    def load(layout: str) -> subprocess.CompletedProcess[str]:
        file.write_text(f'[{topic}]\nformat = "text"\n{layout}')
        words = "--metrics-dir", str(tmp_path), "--topics-file", str(file)
        return run_millrace("load", topic, *site.load_options(warehouse), *words)

    with site.cluster.client() as client:
        client.create_topic(topic, 2)
    produce(site, topic)
    refused = load('sort = ["line"]\n')
    assert refused.returncode == 1
    assert "there is no column line; the columns are value, headers" in refused.stderr
    assert not list(warehouse.glob(f"{topic}/rows/*"))
    done = load('partition = ["bucket(3, value)"]\nsort = ["value DESC"]\n')
    assert done.returncode == 0, done.stderr
    options = "--warehouse", str(warehouse), "--unasked", "--hour", "2015-05-17T10"
    published = run_millrace("publish", topic, *options)
    assert published.returncode == 0, published.stderr
    verified = run_millrace("verify", "--warehouse", str(warehouse), "--rows", "--json")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert json.loads(verified.stdout)
    bucket = BucketTransform(3).transform(StringType())
    with connect(open_storage(str(warehouse))) as catalog:
        table = catalog.load_table(table_identifier(topic))
        assert table.scan().to_arrow().num_rows == 200
        found = table.scan("value = 'line 7'")
        assert {task.file.partition[1] for task in found.plan_files()} == {bucket("line 7")}
        assert found.to_arrow().num_rows == 2
        (field,) = table.sort_order().fields
        assert str(field.direction) == "DESC"
