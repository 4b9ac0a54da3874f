"""Loads from real brokers by real Spark, in one session and under spark-submit; killed, raced, repeated."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow.parquet as pq
import pytest

from millrace.client.cluster_client import ClusterClient
from millrace.errors import MillraceError
from millrace_audit.producer import AuditedProducer
from millrace_registry.client import SchemaRegistryClient
from millrace_spark.jobs.submit import TIMEOUT, submit
from millrace_spark.jobs.tasks import in_tasks
from millrace_warehouse.history.layout import Topic, newest_load
from millrace_warehouse.history.schemas import first_schema
from millrace_warehouse.load.load import LoadResult
from millrace_warehouse.load.range_writer import Pinned
from millrace_warehouse.load.task import CutTask, write_cut
from millrace_warehouse.log.messages import Filing
from millrace_warehouse.log.ranges import Range, cut_ranges
from millrace_warehouse.requests import Load
from millrace_warehouse.storage import open_storage
from tests.access_log import AccessLog
from tests.jobs import kill_at_a_step, load_topics
from tests.support import ROUNDS, WAIT_S, Process, run_millrace
from tests.warehouses import EMPTY_EVENT, HOUR_MS, TestSite, loaded_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Start = Callable[..., Process]
START_MS = 1_431_856_800_000


@pytest.fixture(scope="module")
def site(zookeeper: str, start_for_module: Start, tmp_path_factory: pytest.TempPathFactory) -> TestSite:
    folder = tmp_path_factory.mktemp("load")
    return TestSite.start(start_for_module, f"offline-{uuid4().hex[:6]}", folder, zookeeper, brokers=2)


def load(
    spark: SparkSession, site: TestSite, warehouse: Path, *topics: str, **changes: object
) -> list[LoadResult]:
    settings: dict[str, object] = {
        "topics": topics,
        "bootstrap": site.cluster.bootstrap,
        "registry": site.registry,
        "warehouse": str(warehouse),
        "run_id": uuid4().hex,
        "cut_bytes": 200_000,
    }
    return load_topics(spark, Load(**{**settings, **changes}))  # type: ignore[arg-type]


@pytest.mark.slow
def test_every_line_of_an_access_log_becomes_one_row_in_a_file_of_its_hour(
    spark: SparkSession, site: TestSite, tmp_path: Path, access_log: AccessLog
) -> None:
    topic = site.topic(f"PageView-{access_log.name}")
    hours = access_log.hours()
    lines = hours.total()
    assert site.publish(topic, access_log.times_ms()) == lines
    (result,) = load(spark, site, tmp_path, topic)
    assert (result.rows, result.rejected, result.gaps) == (lines, 0, [])
    assert result.hours == hours

    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup())
    site.publish(topic, [START_MS])
    (more,) = load(spark, site, tmp_path, topic)
    assert (more.load, more.rows) == (2, 1)
    assert len(set(tracker.getJobIdsForGroup()) - before) == 1, "a load is one Spark job"
    rows = loaded_rows(tmp_path, topic)
    assert len({(row.instance, row.sequence) for row in rows}) == len(rows) == lines + 1
    verified = run_millrace(
        "verify",
        "--warehouse",
        str(tmp_path),
        "--no-catalog",
        "--bootstrap",
        site.cluster.bootstrap,
        "--json",
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert json.loads(verified.stdout)["ok"]


def test_several_topics_in_one_application_and_one_that_fails_does_not_stop_the_others(
    spark: SparkSession, site: TestSite, tmp_path: Path
) -> None:
    for topic in ("TopicA", "TopicB"):
        site.publish(site.topic(topic, 2), [START_MS + n for n in range(50)])
    assert [each.rows for each in load(spark, site, tmp_path, "TopicA", "TopicB")] == [50, 50]
    site.publish("TopicA", [START_MS])
    site.publish("TopicB", [START_MS])
    with pytest.raises(Exception, match="topic 'Missing' does not exist") as caught:
        load(spark, site, tmp_path, "TopicA", "Missing", "TopicB")
    assert "\n" not in str(caught.value)
    assert [len(loaded_rows(tmp_path, topic)) for topic in ("TopicA", "TopicB")] == [51, 51]


@pytest.mark.slow
def test_a_table_has_new_columns_once_it_is_promoted_and_older_rows_are_null_there(
    spark: SparkSession, site: TestSite, tmp_path: Path
) -> None:
    topic = site.topic("Evolved", 1)
    with SchemaRegistryClient(site.registry) as registry:
        schema = dict(registry.latest(topic).schema)
        fields = schema["fields"]
        schema["fields"] = [*fields, {"name": "weight", "type": "int", "default": 0}]
        registry.register(topic, schema)
        publish_with(site, topic, 20, weight=1)
        load(spark, site, tmp_path, topic)
        country = {"name": "country", "type": ["null", "string"], "default": None}
        schema["fields"] = [*fields, {"name": "weight", "type": "long", "default": 0}, country]
        registry.register(topic, schema)
    publish_with(site, topic, 5, weight=1 << 40, country="is")
    # An int column cannot take them; they are kept aside, and the next load does not lose its way.
    (kept_aside,) = load(spark, site, tmp_path, topic)
    assert (kept_aside.rows, kept_aside.rejected) == (0, 5)
    places = ["--warehouse", str(tmp_path), "--registry", site.registry]
    promoted = run_millrace("promote", topic, *places, "--reason", "weights grew")
    assert promoted.returncode == 0, promoted.stderr
    assert "new column country" in promoted.stdout
    publish_with(site, topic, 5, weight=1 << 40, country="is")
    (result,) = load(spark, site, tmp_path, topic)
    assert (result.rows, result.rejected) == (5, 0)
    assert not [note for note in result.notes if "fields that the table lacks" in note]
    newest = newest_load(Topic(open_storage(str(tmp_path)), topic))
    assert newest is not None
    assert [hour[:11] for hour in result.hours] == ["2015-05-17T"] * 5
    added = [
        (row["country"], row["weight"])
        for file in newest.files
        for row in pq.read_table(tmp_path / topic / file.path).to_pylist()
    ]
    assert added == [("is", 1 << 40)] * 5
    shown = run_millrace("promote", topic, "--warehouse", str(tmp_path), "--list", "--json")
    assert [(e["number"], e["first_load"]) for e in json.loads(shown.stdout)] == [(1, 1), (2, 3)]
    verified = run_millrace("verify", "--warehouse", str(tmp_path), "--no-catalog", "--json")
    assert verified.returncode == 0, verified.stdout + verified.stderr


def publish_with(site: TestSite, topic: str, count: int, **fields: object) -> None:
    """Events an hour apart from the first hour on, with more fields than the usual ones."""
    with site.producer() as producer:
        for number in range(count):
            time_ms = START_MS + (number * HOUR_MS if count == 5 else number)
            producer.send(topic, topic, {**EMPTY_EVENT, **fields}, time_ms=time_ms)


def test_runs_of_so_many_bytes_take_a_topic_part_by_part_and_say_what_is_left(
    spark: SparkSession, site: TestSite, tmp_path: Path
) -> None:
    topic = site.topic("Bounded", 3)
    for first in range(0, 600, 100):  # a producer each, so that no batch reaches over the time below
        site.publish(topic, [START_MS + n * 1_000 for n in range(first, first + 100)])
    (early,) = load(spark, site, tmp_path, topic, until_ms=START_MS + 300_000)
    assert early.rows == 300
    rows, left = early.rows, early.left_bytes
    assert left
    for _ in range(50):
        (result,) = load(spark, site, tmp_path, topic, max_bytes=left // 2)
        rows += result.rows
        assert result.left_bytes is not None
        assert result.left_bytes < left
        left = result.left_bytes
        if not left:
            break
    assert (rows, left) == (600, 0)
    assert len(loaded_rows(tmp_path, topic)) == 600
    verified = run_millrace(
        "verify", "--warehouse", str(tmp_path), "--no-catalog", "--bootstrap", site.cluster.bootstrap
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_a_task_that_cannot_read_its_cut_says_why_in_its_own_words(
    spark: SparkSession, tmp_path: Path
) -> None:
    def connect() -> ClusterClient:
        raise MillraceError("no broker of dc1 answers: start one")

    storage, schema = open_storage(str(tmp_path)), {"type": "record", "name": "R", "fields": []}
    source = Pinned.from_schema(
        first_schema(Topic(storage, "Unread"), 1, schema), connect, {1: schema}.get
    ).source
    cuts = cut_ranges([Range("Unread", partition, 0, 1_000) for partition in (0, 1)], 500)
    tasks = [
        CutTask(
            source=source, cut=cut, index=index, storage=storage, folder="Unread/rows/x", filing=Filing(1, 0)
        )
        for index, cut in enumerate(cuts)
    ]
    with pytest.raises(MillraceError) as error:
        in_tasks(spark.sparkContext, write_cut, tasks)
    assert str(error.value) == "no broker of dc1 answers: start one"
    assert storage.files("Unread/rows") == []


@pytest.mark.soak
def test_two_drivers_that_race_load_no_row_twice(spark: SparkSession, site: TestSite, tmp_path: Path) -> None:
    topic = site.topic("Raced", 2)
    for turn in range(ROUNDS):
        site.publish(topic, [START_MS + n * HOUR_MS // 50 for n in range(200)])
        barrier, failures = threading.Barrier(2), list[BaseException]()

        def drive(
            run_id: str, barrier: threading.Barrier = barrier, failures: list[BaseException] = failures
        ) -> None:
            try:
                barrier.wait(WAIT_S)
                load(spark, site, tmp_path, topic, run_id=run_id)
            except BaseException as error:
                failures.append(error)

        drivers = [threading.Thread(target=drive, args=(f"{turn} {rival}",)) for rival in "ab"]
        for driver in drivers:
            driver.start()
        for driver in drivers:
            driver.join(120)
        assert not failures
        rows = loaded_rows(tmp_path, topic)
        assert len(rows) == len({(row.instance, row.sequence) for row in rows}) == 200 * (turn + 1)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("engine", ["local", "spark"])
def test_killed_at_random_steps_and_run_again_the_rows_are_those_of_an_undisturbed_run(
    spark: SparkSession, site: TestSite, tmp_path: Path, engine: str
) -> None:
    topic, warehouse = site.topic(f"Killed-{engine}", 3), tmp_path / "killed"
    chance = random.Random(time.time_ns())
    turns = max(1, ROUNDS - 1)
    for turn in range(1, turns + 1):
        site.publish(topic, [START_MS + n * 4_703 for n in range(2_000)])
        options = [*site.load_options(warehouse), "--run-id", f"turn {turn}", "--engine", engine]
        command = ["load", topic, *options]
        kill_at_a_step(Process(command), steps=chance.randrange(0, 8), pause_s=chance.uniform(0, 0.3))
        if turn < turns:
            (again,) = load(spark, site, warehouse, topic, run_id=f"turn {turn}")
            assert (again.load, again.rows) == (turn, 2_000)
        else:
            done = run_millrace(*command)  # once all the way through the command
            assert done.returncode == 0, done.stderr
            (result,) = json.loads(done.stdout)
            assert (result["load"], result["rows"]) == (turn, 2_000)
        assert len(loaded_rows(warehouse, topic)) == 2_000 * turn
    load(spark, site, tmp_path / "undisturbed", topic)
    assert loaded_rows(warehouse, topic) == loaded_rows(tmp_path / "undisturbed", topic)
    verified = run_millrace("verify", "--warehouse", str(warehouse), "--no-catalog", "--json")
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_an_unusable_java_is_one_clear_line(site: TestSite, tmp_path: Path) -> None:
    topic = site.topic("Javaless", 1)
    load = ["load", topic, *site.load_options(tmp_path)]
    done = run_millrace(*load, env={"JAVA_HOME": str(tmp_path)})
    assert done.returncode == 1
    assert done.stderr.strip().startswith("millrace: no Java")
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.slow
def test_a_jobs_driver_imports_neither_sparks_zip_nor_pandas(
    site: TestSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"bootstrap": site.cluster.bootstrap, "registry": site.registry, "warehouse": str(tmp_path)}
    lines: list[str] = []
    monkeypatch.setenv("PYTHONVERBOSE", "1")
    (answer,) = submit("load", {**settings, "topics": ["No"]}, master="local[1]", on_line=lines.append)
    assert "error" in answer
    imported = {line.split("'")[1]: line for line in lines if line.startswith("import '")}
    assert "SourceFileLoader" in imported["pyspark.core.context"]
    assert not [line for line in imported.values() if "zipimporter" in line]
    assert "pandas" not in imported, "half a second of CPU, as is PySpark from its zip"


@pytest.mark.slow
@pytest.mark.parametrize("module", ["pyspark.daemon", "millrace_spark.jobs.daemon"])
def test_a_jobs_workers_import_the_installed_pyspark_and_not_its_zip(module: str) -> None:
    script = """
import sys
from pyspark import SparkConf, SparkContext
conf = SparkConf().setMaster("local[1]").set("spark.python.daemon.module", sys.argv[1])
context = SparkContext(conf=conf)
print(context.parallelize([0], 1).map(lambda _: sys.modules["pyspark"].__file__).first())
"""
    done = subprocess.run([sys.executable, "-c", script, module], capture_output=True, text=True, check=True)
    (zipped,) = [".zip" in line for line in done.stdout.splitlines() if "pyspark" in line]
    assert zipped == (module == "pyspark.daemon")


def test_a_bound_on_the_wait_for_executors_that_is_no_time_is_refused(site: TestSite, tmp_path: Path) -> None:
    load = ["load", site.topic("NoTime", 1), *site.load_options(tmp_path)]
    done = run_millrace(*load, "--conf", f"{TIMEOUT}=soon")
    assert done.returncode == 1
    assert done.stderr == f"millrace: {TIMEOUT}=soon is not a time like 90s, 10m or 1h\n"


def test_a_worker_does_not_read_the_directories_of_zips_again_before_each_task(spark: SparkSession) -> None:
    def zips_known(_: int) -> int:
        return sum(path.endswith(".zip") for path in sys.path_importer_cache)

    zips = in_tasks(spark.sparkContext, zips_known, range(8))
    assert min(zips) == 0, "of the tasks of one worker all but the first begin without them"


@pytest.mark.slow
def test_the_command_loads_the_topics_of_a_pattern_and_says_nothing_but_its_steps(
    site: TestSite, tmp_path: Path
) -> None:
    for topic in ("PatternA", "PatternB"):
        site.publish(site.topic(topic, 2), [START_MS + n for n in range(30)])
    with site.cluster.client() as client:
        client.create_topic("PatternBare", 1)
    options = [*site.load_options(tmp_path), "--max-rejected", "0"]
    done = run_millrace("load", "--topics-matching", "Pattern.*", *options)
    assert done.returncode == 0, done.stderr
    loads = {each["topic"]: each for each in json.loads(done.stdout)}
    assert [loads[topic]["rows"] for topic in ("PatternA", "PatternB")] == [30, 30]
    assert loads["PatternBare"] == {"topic": "PatternBare", "left_out": "no schema is registered for it"}
    lines = done.stderr.splitlines()
    assert [line for line in lines if not line.startswith(("step: load", "left out: PatternBare"))] == []


def test_a_topic_is_loaded_by_the_subject_that_its_producers_register(
    spark: SparkSession, site: TestSite, tmp_path: Path
) -> None:
    topic, subject = "Standard", "Standard-value"
    with site.cluster.client() as client:
        client.create_topic(topic, 1)
    with SchemaRegistryClient(site.registry) as registry:
        schema = {**registry.latest("PageView").schema, "doc": "registered by a serializer of Confluent's"}
        schema_id = registry.register(subject, schema)
        options = {"cluster": site.cluster.name, "server": "s", "service": "w", "subjects": ["topic-value"]}
        with AuditedProducer(site.cluster.bootstrap, site.registry, **options) as producer:  # type: ignore[arg-type]
            producer.send(topic, None, EMPTY_EVENT, time_ms=START_MS)
        with pytest.raises(Exception, match=f"--subject {topic}=SUBJECT"):
            load(spark, site, tmp_path, topic)
        (by_strategy,) = load(spark, site, tmp_path / "a", topic, subjects=["topic-value"])
        (by_name,) = load(spark, site, tmp_path / "b", topic, subjects=[f"{topic}={subject}"])
        assert (by_strategy.rows, by_name.rows) == (1, 1)
        assert not [note for note in (*by_strategy.notes, *by_name.notes) if "of subject" in note]
        registry.register(topic, {**schema, "doc": "nobody writes with it"})
        (loaded,) = load(spark, site, tmp_path / "c", topic)
        assert loaded.rows == 1
        assert [note for note in loaded.notes if f"schema id {schema_id} of subject {subject}" in note]
        # The record decides, and the first load finds it in the messages.
        registry.register("millrace.events.PageView", schema)
        (by_record,) = load(spark, site, tmp_path / "d", topic, subjects=["record"])
        assert by_record.rows == 1
        country = {"name": "country", "type": ["null", "string"], "default": None}
        newest = registry.register(subject, {**schema, "fields": [*schema["fields"], country]})
    promoted = run_millrace(
        "promote", topic, "--warehouse", str(tmp_path / "a"), "--registry", site.registry,
        "--reason", "country", "--subject", "topic-value", "--json",
    )  # fmt: skip
    assert promoted.returncode == 0, promoted.stderr
    assert json.loads(promoted.stdout)["schema_id"] == newest
