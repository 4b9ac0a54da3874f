"""Whole DAG runs through Airflow itself, each in a fresh home, against a real schema registry."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from millrace_airflow.operators.publish import table_asset
from millrace_registry.client import SchemaRegistryClient
from tests.conftest import Start
from tests.support import REPOSITORY, WAIT_S, run_python, start_for_the_test_run, wait_until

HOURS = ("--start", "2015-05-17T10:00:00Z", "--end", "2015-05-17T12:00:00Z")

# The operators are the real ones; only the commands they run are replaced, by ones that need no cluster.
DAG_FILE = """
import sys
from datetime import UTC, datetime, timedelta
from airflow.sdk import DAG, Param, task_group
from millrace_airflow.operators.load import LoadTopicOperator
from millrace_airflow.operators.publish import PublishOperator
from millrace_airflow.operators.schemas import RegisterSchemasOperator

SECOND_TRY_WORKS = '''
import json, pathlib, sys
tries = pathlib.Path(sys.argv[1])
tries.open("a").write(sys.argv[2] + chr(10))
if len(tries.read_text().split()) == 1:
    sys.exit("millrace: the first try fails")
print(json.dumps([{"topic": "PageView", "rows": 7}]))
'''
PUBLISHED = '''
import json, sys
published = sys.argv[2] == "PageView"
answer = dict.fromkeys(("path", "sha256", "snapshot_id", "complete_until"), "x")
answer |= {"publication": 3, "rows": 7, "published": published, "waiting": [], "hours": int(published)}
changes = [{"hour": sys.argv[1], "last": ""}] if published else []
print(json.dumps([{**answer, "topic": sys.argv[2], "changes": changes}]))
'''

class Load(LoadTopicOperator):
    def command(self, settings, run_id):
        return [sys.executable, "-c", SECOND_TRY_WORKS, settings.warehouse, run_id]

class Publish(PublishOperator):
    def command(self, settings, run_id):
        return [sys.executable, "-c", PUBLISHED, self.start, self.topic]

@task_group
def table(topic):
    Publish(task_id="publish", topic=topic, map_index_template="{{ task.topic }}",
            start="{{ params.start }}", end="{{ params.end }}")

with DAG("journey", schedule=None, start_date=datetime(2025, 1, 1, tzinfo=UTC),
         params={"start": Param(None, type=["null", "string"]), "end": Param(None, type=["null", "string"])},
         default_args={"retries": 1, "retry_delay": timedelta(0), "deferrable": True, "poll_s": 0.05}):
    schemas = RegisterSchemasOperator(task_id="schemas", schemas_dir=SCHEMAS)
    load = Load(task_id="load", topics=["PageView"])
    mistake = PublishOperator(task_id="mistake", topic="PageView", start="yesterday", end="today")
    schemas >> load >> table.expand(topic=["PageView", "SearchQuery"]) >> mistake
    RegisterSchemasOperator(task_id="broken", schemas_dir="/no/such/folder", retries=0)
"""


ENDLESS = """
import sys
from datetime import UTC, datetime, timedelta
from airflow.sdk import DAG
from millrace_airflow.operators.load import LoadTopicOperator

TELL_AND_SLEEP = '''
import os, pathlib, sys, time
part = pathlib.Path(sys.argv[1] + ".part")
part.write_text(str(os.getpid()))
part.rename(sys.argv[1])
time.sleep(1000)
'''

class Load(LoadTopicOperator):
    def command(self, settings, run_id):
        return [sys.executable, "-c", TELL_AND_SLEEP, settings.warehouse]

with DAG("endless", schedule=None, start_date=datetime(2025, 1, 1, tzinfo=UTC), default_args={"retries": 3}):
    Load(task_id="load", topics=["PageView"])
"""


# The shipped DAG as it is, with a file of topics; only what its commands do is replaced.
SHIPPED = """
import sys
from millrace_airflow.operators.job import MillraceJobOperator
from millrace_airflow.sensors.completeness import CompletenessSensor

ANSWER = '''
import json, sys
verb, topic = sys.argv[1:]
if (verb, topic) == ("load", "Bad"):
    sys.exit("millrace: no topic Bad: create it")
answer = dict.fromkeys(("path", "sha256", "snapshot_id", "complete_until", "publication", "rows"), 1)
print(json.dumps([{**answer, "topic": topic, "published": False, "waiting": [], "changes": [], "hours": 0}]))
'''
MillraceJobOperator.command = lambda self, settings, run_id: [
    sys.executable, "-c", ANSWER, self.command_name, *self.named_topics()]
CompletenessSensor.execute = lambda self, context: "complete"
source = open(SOURCE).read()
assert '"retries": 2' in source
exec(source.replace('"retries": 2', '"retries": 0'))
"""
TOPICS = """
[PageView]
[Bad]
[SearchQuery]
mirror = true
"""


def run_once(
    dag_id: str, dags: Path, home: Path, connection: Mapping[str, object], *arguments: str
) -> subprocess.CompletedProcess[str]:
    command = ["-m", "millrace_demo.run_once", dag_id, "--dags-folder", str(dags)]
    command += ["--airflow-home", str(home)]
    environment = {"AIRFLOW_CONN_MILLRACE_DEFAULT": json.dumps(connection)}
    return run_python(*command, *arguments, timeout_s=10 * WAIT_S, env=environment)


def connection(registry: str, warehouse: Path) -> dict[str, Any]:
    extra = {"registry": f"http://{registry}", "auditor": "http://127.0.0.1:1", "warehouse": str(warehouse)}
    return {"conn_type": "millrace", "host": "127.0.0.1:1", "extra": extra}


@pytest.fixture
def registry(start: Start, tmp_path: Path) -> str:
    database = f"sqlite:///{tmp_path}/registry.db"
    return start("registry", "--listen", "127.0.0.1:0", "--database-url", database).ready()


@pytest.mark.slow
def test_a_run_retries_under_the_same_run_id_tells_what_it_published_and_names_the_task_that_failed(
    registry: str, tmp_path: Path
) -> None:
    dags, home, tries = tmp_path / "dags", tmp_path / "home", tmp_path / "tries"
    dags.mkdir()
    (dags / "journey.py").write_text(DAG_FILE.replace("SCHEMAS)", f"{str(REPOSITORY / 'schemas')!r})"))
    done = run_once("journey", dags, home, connection(registry, tries), *HOURS)
    assert done.returncode == 1, done.stdout + done.stderr
    *tasks, last = done.stdout.splitlines()
    reason = "no folder /no/such/folder: name the folder that holds the .avsc files"
    mistake = "start 'yesterday' is not a time like 2015-05-17T10:00:00Z"
    assert last.startswith("millrace: DAG journey failed: ")
    assert {f"broken: {reason}", f"mistake: {mistake}"} == set(
        last.removeprefix("millrace: DAG journey failed: ").split("; ")
    )
    one_after_another = [line.rpartition(" (")[0] for line in tasks if not line.startswith("broken")]
    one_after_another[3:5] = sorted(one_after_another[3:5])  # the tasks of a mapped operator run side by side
    assert one_after_another == [
        "schemas: success",
        f"load: up_for_retry: `{Path(sys.executable).name}` failed with exit code 1: the first try fails",
        "load: success",
        "table.publish[PageView]: success",
        "table.publish[SearchQuery]: success",
        f"mistake: failed: {mistake}",
    ]
    with SchemaRegistryClient(f"http://{registry}") as client:
        assert client.versions("AuditReport") == [1]
    first, second = tries.read_text().split()
    assert first == second
    query = "select name, uri, asset_event.extra from asset_event join asset on asset.id = asset_id"
    with closing(sqlite3.connect(home / "airflow.db")) as database:
        [(name, uri, extra)] = database.execute(query).fetchall()
    assert (name, uri) == (table_asset("PageView").name, "iceberg://millrace_default/millrace/PageView")
    said = json.loads(extra)
    assert (said["publication"], said["hours"], said["rows"]) == (3, 1, 7)
    assert said["first_hour"] == said["last_hour"] == "2015-05-17T10:00:00Z"
    assert list((home / "millrace-jobs").iterdir()) == []


@pytest.mark.slow
def test_the_shipped_dag_publishes_every_topic_but_the_one_that_cannot_be_loaded(
    registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dags, source = tmp_path / "dags", str(REPOSITORY / "dags" / "warehouse_load.py")
    dags.mkdir()
    (dags / "shipped.py").write_text(SHIPPED.replace("SOURCE", repr(source)))
    (tmp_path / "topics.toml").write_text(TOPICS)
    monkeypatch.setenv("MILLRACE_TOPICS_FILE", str(tmp_path / "topics.toml"))
    monkeypatch.setenv("MILLRACE_SCHEMAS", str(REPOSITORY / "schemas"))
    place = connection(registry, tmp_path / "warehouse")
    place["extra"]["origins"] = {"dc1": "127.0.0.1:1", "dc2": "127.0.0.1:2"}
    done = run_once("warehouse_load", dags, tmp_path / "home", place, *HOURS)
    *tasks, last = done.stdout.splitlines() or [""]
    assert last == (
        "millrace: DAG warehouse_load failed: table.load[Bad]: "
        f"`{Path(sys.executable).name}` failed with exit code 1: no topic Bad: create it"
    ), done.stderr
    assert {line.partition(":")[0] for line in tasks if ": success (" in line} == {
        "wait_for_last_events",
        "register_schemas",
        *(f"table.{task}[PageView]" for task in ("load", "wait", "publish")),
        "origins_SearchQuery",
        "mirror_SearchQuery[0]",
        "mirror_SearchQuery[1]",
        *(f"SearchQuery.{task}" for task in ("load", "wait", "publish")),
    }


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_and_its_jobs(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "endless.py").write_text(ENDLESS)
    told = tmp_path / "job"
    environment = {**os.environ, "AIRFLOW_CONN_MILLRACE_DEFAULT": json.dumps(connection("127.0.0.1:1", told))}
    command = [sys.executable, "-m", "millrace_demo.run_once", "endless", "--dags-folder"]
    with start_for_the_test_run(
        [*command, str(tmp_path / "dags"), "--airflow-home", str(tmp_path / "home")],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as run:
        try:
            pid = int(
                wait_until(
                    "the job has begun", lambda: told.exists() and told.read_text(), timeout_s=10 * WAIT_S
                )
            )
            run.send_signal(number)
            assert run.wait(timeout=WAIT_S) == 128 + number
        finally:
            run.kill()
    assert not Path(f"/proc/{pid}").exists()


def test_a_dag_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    done = run_once("journey", tmp_path, tmp_path / "home", connection("127.0.0.1:1", tmp_path))
    assert done.returncode == 1
    assert done.stdout == f"millrace: DAG journey failed: no DAG journey in {tmp_path}; there are: none\n"
