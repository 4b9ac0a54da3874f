"""From a datacenter through the batch mirror into the warehouse, and what `verify` says when it is cut."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from millrace_audit.producer import AuditedProducer
from millrace_spark.jobs.mirror import mirror_topics
from millrace_warehouse.history.layout import Topic, read_load
from millrace_warehouse.history.manifest import LoadManifest, OriginPartition
from millrace_warehouse.requests import Load, Mirror
from millrace_warehouse.storage import open_storage
from tests.brokers import TestCluster
from tests.jobs import load_topics
from tests.support import Process, run_millrace
from tests.warehouses import EMPTY_EVENT, HOUR_MS, TestSite, loaded_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Start = Callable[..., Process]
START_MS = 1_431_856_800_000
TOPIC = "PageView"
HOURS = ["--from", "2015-05-17T10", "--to", "2015-05-17T12"]


@pytest.fixture(scope="module")
def offline(zookeeper: str, start_for_module: Start, tmp_path_factory: pytest.TempPathFactory) -> TestSite:
    folder = tmp_path_factory.mktemp("verify")
    return TestSite.start(start_for_module, f"offline-{uuid4().hex[:6]}", folder, zookeeper, brokers=2)


@pytest.fixture(scope="module")
def loaded(spark: SparkSession, offline: TestSite, zookeeper: str, start_for_module: Start) -> Path:
    """A warehouse of three loads and two published hours, mirrored from dc1 step by step."""
    run = uuid4().hex[:6]
    origin = TestCluster(start_for_module, f"dc1-{run}", offline.folder, zookeeper, known_as="dc1")
    origin.start_brokers(1)
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
        assert sum(part.records for part in mirror_topics(spark.sparkContext, settings)) == 100
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
    published = run_millrace("publish", TOPIC, "--unasked", *HOURS, "--warehouse", str(warehouse))
    assert published.returncode == 0, published.stderr
    return warehouse


def verified(warehouse: Path, *options: str) -> tuple[int, dict[str, Any], str]:
    done = run_millrace("verify", "--warehouse", str(warehouse), *options, "--json")
    return done.returncode, json.loads(done.stdout), done.stderr.strip()


def manifest(warehouse: Path, number: int) -> LoadManifest:
    return read_load(Topic(open_storage(str(warehouse)), TOPIC), number)


@contextmanager
def changed(path: Path, content: bytes | None) -> Iterator[None]:
    """A file with other bytes, or without any; the table names it where it is, so no copy would do."""
    before = path.read_bytes()
    try:
        path.unlink() if content is None else path.write_bytes(content)
        yield
    finally:
        path.write_bytes(before)


def test_what_was_mirrored_loaded_and_published_verifies_also_against_the_log(
    loaded: Path, offline: TestSite
) -> None:
    code, answer, said = verified(loaded, "--rows", "--bootstrap", offline.cluster.bootstrap)
    assert (code, answer["ok"]) == (0, True), said
    (topic,) = answer["topics"]
    assert (topic["loads"], topic["rows"], topic["published"]) == (3, 300, 300)
    rows = loaded_rows(loaded, TOPIC)
    assert len({(row.instance, row.sequence) for row in rows}) == 300


def test_a_mirrored_partition_s_manifest_names_its_origin(loaded: Path) -> None:
    origins = [part.origin for part in manifest(loaded, 3).partitions]
    assert {origin.partition for origin in origins if origin is not None} == {0, 1}
    for origin in origins:
        assert isinstance(origin, OriginPartition)
        assert (origin.cluster, origin.topic) == ("dc1", TOPIC)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_load_that_is_removed_is_named_and_the_command_ends_in_one_line(loaded: Path, number: int) -> None:
    with changed(loaded / TOPIC / "loads" / f"{number:010d}.json", None):
        code, answer, line = verified(loaded)
    assert (code, answer["ok"]) == (1, False)
    problems = [problem for topic in answer["topics"] for problem in topic["problems"]]
    assert any(f"{TOPIC}/loads/{number:010d}.json" in problem for problem in problems), problems
    assert len(line.splitlines()) == 1


def test_a_file_cut_short_and_a_manifest_edited_are_named(loaded: Path) -> None:
    path = min((loaded / TOPIC / "rows").glob("0000000002-*/2015-*.parquet"))
    with changed(path, path.read_bytes()[:-10]):
        code, _, line = verified(loaded)
    assert code == 1
    assert str(path.relative_to(loaded)) in line
    edited = loaded / TOPIC / "loads" / "0000000001.json"
    with changed(edited, edited.read_bytes().replace(b'"rejected": 0', b'"rejected": 1', 1)):
        _, answer, _ = verified(loaded)
    problems = [problem for topic in answer["topics"] for problem in topic["problems"]]
    assert any("loads/0000000001.json" in problem and "edited" in problem for problem in problems)
    assert verified(loaded)[0] == 0
