"""From a datacenter through the batch mirror into the warehouse, and what `verify` says when it is cut."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from millrace_spark.jobs.hourly import publish

from millrace_audit.producer import AuditedProducer
from millrace_spark.jobs.mirror import mirror_topics
from millrace_warehouse.commands.verbs import Hourly, Load, Mirror
from millrace_warehouse.history.layout import read_load
from millrace_warehouse.history.manifest import LoadManifest, OriginPartition
from millrace_warehouse.storage.filesystem import LocalFilesystem
from tests.brokers import TestCluster
from tests.jobs import load_topics
from tests.support import Process, run_millrace
from tests.warehouses import EMPTY_EVENT, HOUR_MS, TestSite, loaded_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Start = Callable[..., Process]
START_MS = 1_431_856_800_000
TOPIC = "PageView"
HOURS = ["2015-05-17T10", "2015-05-17T11"]


@pytest.fixture(scope="module")
def offline(zookeeper: str, start_for_module: Start, tmp_path_factory: pytest.TempPathFactory) -> TestSite:
    folder = tmp_path_factory.mktemp("verify")
    return TestSite.start(start_for_module, f"offline-{uuid4().hex[:6]}", folder, zookeeper, brokers=2)


@pytest.fixture(scope="module")
def loaded(spark: SparkSession, offline: TestSite, zookeeper: str, start_for_module: Start) -> Path:
    """A warehouse of three loads and two hours, mirrored from dc1 step by step."""
    run = uuid4().hex[:6]
    origin = TestCluster(start_for_module, f"dc1-{run}", offline.folder, zookeeper).start_brokers(1)
    with origin.client() as client:
        client.create_topic("audit", 1)
        client.create_topic(TOPIC, 2)
    warehouse = offline.folder / "warehouse"
    for turn in range(3):
        with AuditedProducer(
            origin.bootstrap, offline.registry, cluster="dc1", server="web1", service="web"
        ) as producer:
            for number in range(100):
                time_ms = START_MS + number % 2 * HOUR_MS + number
                producer.send(TOPIC, TOPIC, EMPTY_EVENT, time_ms=time_ms, partition=number % 2)
        settings = Mirror(
            topics=[TOPIC],
            origin="dc1",
            origin_bootstrap=origin.bootstrap,
            bootstrap=offline.cluster.bootstrap,
        )
        assert sum(part.records for part in mirror_topics(spark, settings)) == 100
        (result,) = load_topics(
            spark,
            Load(
                topics=[TOPIC],
                bootstrap=offline.cluster.bootstrap,
                registry=offline.registry,
                warehouse=str(warehouse),
                run_id=f"run {turn}",
            ),
        )
        assert result.rows == 100
    publish(spark, Hourly(topic=TOPIC, hours=HOURS, warehouse=str(warehouse), run_id="hours"))
    return warehouse


@pytest.fixture
def warehouse(loaded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(loaded, tmp_path / "warehouse"))


def verified(warehouse: Path, *options: str) -> tuple[int, dict[str, Any], str]:
    done = run_millrace("verify", str(warehouse), *options, "--json")
    return done.returncode, json.loads(done.stdout), done.stderr.strip()


def manifest(warehouse: Path, number: int) -> LoadManifest:
    return read_load(LocalFilesystem(str(warehouse)), TOPIC, number)


def test_what_was_mirrored_and_loaded_verifies_also_against_the_log(
    warehouse: Path, offline: TestSite
) -> None:
    code, answer, _ = verified(warehouse, "--bootstrap", offline.cluster.bootstrap)
    assert (code, answer["ok"]) == (0, True)
    assert [table["rows"] for table in answer["tables"]] == [300, 300]
    rows = loaded_rows(warehouse, TOPIC)
    assert len({(row.instance, row.sequence) for row in rows}) == 300


def test_a_mirrored_partition_s_manifest_names_its_origin(warehouse: Path) -> None:
    origins = [part.origin for part in manifest(warehouse, 3).partitions]
    assert {origin.partition for origin in origins if origin is not None} == {0, 1}
    for origin in origins:
        assert isinstance(origin, OriginPartition)
        assert (origin.cluster, origin.topic) == ("dc1", TOPIC)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_load_that_is_removed_ends_in_one_line_with_topic_partition_and_offsets(
    warehouse: Path, number: int
) -> None:
    gone = manifest(warehouse, number)
    shutil.rmtree(warehouse / TOPIC / f"load={number:010d}")
    code, answer, line = verified(warehouse)
    assert (code, answer["ok"]) == (1, False)
    assert f"{TOPIC}/load={number:010d} is missing with 100 rows" in line
    for part in gone.partitions:
        assert f"{TOPIC}-{part.partition} [{part.start}, {part.end})" in line
    assert len(line.splitlines()) == 1


def test_a_file_cut_short_and_a_manifest_edited_are_named(warehouse: Path) -> None:
    path = min((warehouse / TOPIC / "load=0000000002").glob("date=*/hour=*/*.parquet"))
    path.write_bytes(path.read_bytes()[:-10])
    code, _, line = verified(warehouse)
    assert code == 1
    assert str(path.relative_to(warehouse)) in line
    edited = warehouse / TOPIC / "load=0000000001" / "_manifest.json"
    edited.write_text(edited.read_text().replace('"rejected": 0', '"rejected": 1', 1))
    _, answer, _ = verified(warehouse)
    problems = [problem for table in answer["tables"] for problem in table["problems"]]
    assert any("load=0000000001" in problem and "edited" in problem for problem in problems)
