"""The jobs on a real Spark standalone cluster: two workers with one core each, separate from the driver."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from millrace_spark.jobs.submit import TIMEOUT
from tests.brokers import TestCluster, read_topic
from tests.integration.test_resident_load import loads_in
from tests.integration.test_resident_spark import are_shown
from tests.packed_environment import pack
from tests.peers.spark_application import SparkApplication
from tests.peers.spark_cluster import CONF, SparkCluster
from tests.support import Process, run_millrace, wait_until
from tests.warehouses import HOUR_MS, TestSite, loaded_rows

Start = Callable[..., Process]
pytestmark = pytest.mark.slow
START_MS = 1_431_856_800_000
EVENTS = 2_000
ON_CLUSTER = {
    **CONF,
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@pytest.fixture(scope="module")
def site(zookeeper: str, start_for_module: Start, tmp_path_factory: pytest.TempPathFactory) -> TestSite:
    folder = tmp_path_factory.mktemp("on-cluster")
    return TestSite.start(start_for_module, f"offline-{uuid4().hex[:6]}", folder, zookeeper)


@pytest.fixture(scope="module")
def aggregate(
    zookeeper: str, start_for_module: Start, tmp_path_factory: pytest.TempPathFactory
) -> TestCluster:
    folder = tmp_path_factory.mktemp("aggregate")
    return TestCluster(start_for_module, f"aggregate-{uuid4().hex[:6]}", folder, zookeeper).start_brokers(1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("spark")) as cluster:
        yield cluster


def command_options(cluster: SparkCluster) -> list[str]:
    """--master and what keeps its executors small."""
    return ["--master", cluster.master, *(w for pair in CONF.items() for w in ("--conf", "=".join(pair)))]


def millrace(*arguments: str) -> Any:
    """The JSON that a command prints; AssertionError with its words when it fails."""
    done = run_millrace(*arguments, "--json", timeout_s=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def packed_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack(tmp_path_factory.mktemp("packed"))


def check(site: TestSite, warehouse: Path, topic: str) -> None:
    """Every event once in the loads and in the table, and `verify` agrees."""
    rows = loaded_rows(warehouse, topic)
    assert len(rows) == len({(row.instance, row.sequence) for row in rows}) == EVENTS
    hours = [
        word for hour in sorted({f"{row.time:%Y-%m-%dT%H}" for row in rows}) for word in ("--hour", hour)
    ]
    millrace("publish", topic, *hours, "--warehouse", str(warehouse), "--unasked")
    report = millrace("verify", "--warehouse", str(warehouse), "--bootstrap", site.cluster.bootstrap)
    assert report["ok"]
    assert [table["published"] for table in report["topics"]] == [EVENTS]


def test_load_and_mirror_run_on_the_executors_of_a_cluster(
    site: TestSite, aggregate: TestCluster, cluster: SparkCluster, tmp_path: Path
) -> None:
    topic, warehouse = site.topic("OnCluster"), tmp_path / "w"
    assert site.publish(topic, [START_MS + n * HOUR_MS // 500 for n in range(EVENTS)]) == EVENTS
    sources = {"topics": [topic], "bootstrap": site.cluster.bootstrap, "registry": site.registry}
    with SparkApplication(cluster.master, ON_CLUSTER, tmp_path / "driver.log") as application:
        (result,) = application.run("load", {**sources, "warehouse": str(warehouse), "run_id": "all"})
        assert (result["rows"], result["rejected"]) == (EVENTS, 0)
        origin = {"origin": "dc1", "origin_bootstrap": site.cluster.bootstrap}
        mirrored = application.run("mirror", {"topics": [topic], **origin, "bootstrap": aggregate.bootstrap})
        assert sum(part["records"] for part in mirrored) == EVENTS
        assert len(cluster.executors()) == len(cluster.workers) == 2
        assert len(cluster.python_workers()) >= 2
    check(site, warehouse, topic)
    with aggregate.client() as copies:
        assert sum(len(each.records) for each in read_topic(copies, topic).values()) == EVENTS


def test_a_resident_loader_reads_on_after_its_executors_were_killed(
    site: TestSite, cluster: SparkCluster, start: Start, tmp_path: Path
) -> None:
    topic = site.topic("Executors", 2)
    words = ["--follow", "--live", "--every", "1s", "--engine", "spark", *command_options(cluster)]
    loader = start("load", topic, *site.load_options(tmp_path), *words)
    loader.ready()
    sent = 0
    for _ in range(3):
        sent += site.publish(topic, [START_MS + n * 1000 for n in range(100)])
        wait_until("rows in branch live", partial(are_shown, tmp_path, topic, sent), timeout_s=180)
        while cluster.kill_executor():
            pass
    assert loader.stop() == 0, loader.output
    assert [load["rows"] for load in loads_in(loader)] == [sent]
    rows = loaded_rows(tmp_path, topic)
    assert len(rows) == len({(row.partition, row.offset) for row in rows}) == sent


def test_a_load_says_that_the_cluster_gives_it_no_executor_and_ends_after_its_bound(
    site: TestSite, cluster: SparkCluster, start: Start, tmp_path: Path
) -> None:
    topic = site.topic("Starved")
    assert site.publish(topic, [START_MS + n * 1000 for n in range(20)]) == 20
    load = ["load", topic, *site.load_options(tmp_path / "w"), *command_options(cluster)]
    with SparkApplication(cluster.master, ON_CLUSTER, tmp_path / "driver.log"):
        wait_until("an idle application has every core", lambda: len(cluster.executors()) == 2, timeout_s=60)
        bounded = run_millrace(*load, "--conf", f"{TIMEOUT}=15s", timeout_s=300)
        assert bounded.returncode == 1
        assert bounded.stdout == ""
        *steps, error = bounded.stderr.splitlines()
        assert [
            line for line in steps if not line.startswith((f"step: load {topic}: ", "step: load: 0 of "))
        ] == [
            f"step: load: no executor from {cluster.master} for 10 s; waiting for one, at most 15 s"
            f" (--conf {TIMEOUT}=TIME)"
        ]
        assert error.startswith(f"millrace: {cluster.master} has given this job no executor within 15 s: ")
        assert f"--conf {TIMEOUT}=TIME" in error
        waiting = start(*load)
        wait_until("it says so", lambda: "no executor" in waiting.output, timeout_s=120)
    assert waiting.wait(timeout_s=120) == 0
    assert len(loaded_rows(tmp_path / "w", topic)) == 20


def in_cluster_mode(cluster: SparkCluster) -> list[str]:
    """The options for a driver on the cluster; it and the executor have a worker each."""
    confs = cluster.cluster_mode
    return [*command_options(cluster), *(w for pair in confs.items() for w in ("--conf", "=".join(pair)))]


def test_a_driver_on_the_cluster_outlives_its_command_and_the_same_run_waits_for_it(
    site: TestSite, cluster: SparkCluster, start: Start, tmp_path: Path
) -> None:
    topic, warehouse = site.topic("Elsewhere"), tmp_path / "w"
    assert site.publish(topic, [START_MS + n * HOUR_MS // 500 for n in range(EVENTS)]) == EVENTS
    run = ["load", topic, *site.load_options(warehouse), *in_cluster_mode(cluster), "--run-id", "the:run"]
    before = cluster.drivers()

    def since() -> list[str]:
        return [driver for driver in cluster.drivers() if driver.split()[0] not in " ".join(before)]

    killed = start(*run)
    wait_until("the driver is submitted", lambda: "is submitted" in killed.output, timeout_s=120)
    killed.kill()
    (driver,) = (each.split()[0] for each in since())
    waiting = start(*run)
    assert waiting.wait(timeout_s=300) == 0, waiting.output
    assert f"an earlier command has left driver {driver} (" in waiting.output
    assert since() == [f"{driver} FINISHED"]
    assert {path.suffix for path in (warehouse / ".drivers").iterdir()} == {".answer"}
    check(site, warehouse, topic)
    # Once more: the run has ended, so a new driver finds that there is nothing left to do.
    assert run_millrace(*run, timeout_s=300).returncode == 0
    assert [each.split()[1] for each in since()] == ["FINISHED"] * 2
    assert len(list((warehouse / topic / "loads").glob("[0-9]*.json"))) == 1


@pytest.mark.long
def test_of_a_command_killed_while_it_submits_and_the_same_run_one_driver_works(
    site: TestSite, cluster: SparkCluster, start: Start, tmp_path: Path
) -> None:
    topic, warehouse = site.topic("Submitting"), tmp_path / "w"
    assert site.publish(topic, [START_MS + n * HOUR_MS // 500 for n in range(EVENTS)]) == EVENTS
    run = ["load", topic, *site.load_options(warehouse), *in_cluster_mode(cluster), "--run-id", "r"]
    before = set(cluster.drivers())
    killed = start(*run)
    wait_until("the run is claimed", lambda: [*warehouse.glob(".drivers/*.claim")], timeout_s=120)
    killed.kill()
    assert run_millrace(*run, timeout_s=300).returncode == 0
    ended = [driver.split()[1] for driver in set(cluster.drivers()) - before]
    assert ended.count("FINISHED") == 1, ended
    check(site, warehouse, topic)


@pytest.mark.long
def test_what_fails_in_a_driver_on_the_cluster_is_the_commands_own_line(
    site: TestSite, cluster: SparkCluster, tmp_path: Path
) -> None:
    topic = site.topic("Unreadable")
    assert site.publish(topic, [START_MS]) == 1
    load = ["load", topic, *site.load_options(tmp_path / "w"), *in_cluster_mode(cluster), "--run-id", "r"]
    done = run_millrace(*load, "--conf", "spark.driver.memory=100m", timeout_s=300)
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-1].startswith("millrace: Spark does not start (")
    assert "has ended as FAILED: its output is on the page of 127.0.0.1:" in done.stderr
    # The same run again does not wait for what has failed.
    assert run_millrace(*load, timeout_s=300).returncode == 0
    assert len(loaded_rows(tmp_path / "w", topic)) == 1


@pytest.mark.long
def test_a_command_that_is_told_to_stop_ends_its_driver(
    site: TestSite, cluster: SparkCluster, start: Start, tmp_path: Path
) -> None:
    topic = site.topic("Stopped")
    assert site.publish(topic, [START_MS]) == 1
    stopped = start("load", topic, *site.load_options(tmp_path / "w"), *in_cluster_mode(cluster))
    wait_until("the driver is submitted", lambda: "is submitted" in stopped.output, timeout_s=120)
    stopped.signal(signal.SIGTERM)
    assert stopped.wait(timeout_s=60) != 0
    wait_until("the driver is gone", lambda: "KILLED" in " ".join(cluster.drivers()), timeout_s=60)
    assert not [*(tmp_path / "w" / ".drivers").iterdir()]


@pytest.mark.long
def test_every_command_with_a_job_runs_on_a_cluster(
    site: TestSite, aggregate: TestCluster, cluster: SparkCluster, tmp_path: Path
) -> None:
    topic, warehouse = site.topic("EveryCommand"), tmp_path / "w"
    assert site.publish(topic, [START_MS + n * HOUR_MS // 500 for n in range(EVENTS)]) == EVENTS
    options = command_options(cluster)
    into = site.load_options(warehouse)[:-1]
    (result,) = millrace("load", topic, *into, *options)
    assert result["rows"] == EVENTS
    again = millrace("reload", topic, "--loads", "1", "--reason", "a test", *into, *options)
    assert [(each["edition"], each["rows"]) for each in again["loads"]] == [(2, EVENTS)]
    check(site, warehouse, topic)
    places = ["--origin-bootstrap", site.cluster.bootstrap, "--bootstrap", aggregate.bootstrap]
    assert millrace("mirror-batch", topic, "--origin", "dc1", *places, *options)["records"] == EVENTS
    with aggregate.client() as copies:
        assert sum(len(each.records) for each in read_topic(copies, topic).values()) == EVENTS


@pytest.mark.long
def test_a_packed_environment_is_all_that_executors_need(
    site: TestSite, cluster: SparkCluster, packed_environment: Path, tmp_path: Path
) -> None:
    topic = site.topic("Packed")
    assert site.publish(topic, [START_MS + n * HOUR_MS // 500 for n in range(EVENTS)]) == EVENTS
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    load = ["load", topic, *site.load_options(tmp_path / "w"), *command_options(cluster)]
    without = run_millrace(*load, "--conf", f"spark.pyspark.python={bare}/bin/python", timeout_s=600)
    assert without.returncode == 1
    assert "No module named" in without.stderr
    archive = ["--archives", f"{packed_environment}#environment"]
    (result,) = millrace(
        "load", topic, *site.load_options(tmp_path / "w")[:-1], *archive, *command_options(cluster)
    )
    assert result["rows"] == EVENTS
    check(site, tmp_path / "w", topic)
