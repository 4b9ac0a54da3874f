"""A DAG under Airflow's own scheduler, workers and triggerer, as `airflow standalone` starts them."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlparse

import pytest

from millrace_audit.answer import Completeness, to_json
from tests.brokers import free_port
from tests.support import start_for_the_test_run, wait_until

LONG_S = 240.0
"""Airflow's five processes take half a minute to start on an idle machine."""
# The operators are the real ones; only the commands they run are replaced, by ones that need no cluster.
DAG_FILE = """
import sys
from datetime import UTC, datetime, timedelta
from airflow.sdk import DAG, CronDataIntervalTimetable
from millrace_airflow.operators.load import LoadTopicOperator
from millrace_airflow.operators.publish import PublishOperator
from millrace_airflow.sensors.completeness import CompletenessSensor

PUBLISHED = '''
import json
answer = dict.fromkeys(("path", "sha256", "snapshot_id", "complete_until"), "x")
answer |= {"publication": 3, "rows": 7, "published": True, "waiting": [], "hours": 1}
answer["changes"] = [{"hour": "h", "last": ""}]
print(json.dumps([answer]))
'''

class Load(LoadTopicOperator):
    def command(self, settings, run_id):
        return [sys.executable, "-c", "import time; time.sleep(2); print('[]')"]

class Publish(PublishOperator):
    def command(self, settings, run_id):
        return [sys.executable, "-c", PUBLISHED]

with DAG("views", schedule=CronDataIntervalTimetable("0 * * * *", timezone="UTC"), catchup=False,
         start_date=datetime(2025, 1, 1, tzinfo=UTC),
         # A task that starts before Airflow's own server is up fails.
         default_args={"deferrable": True, "retries": 9, "retry_delay": timedelta(seconds=3)}):
    load = Load(task_id="load", topics="PageView", spark_conf={"spark.a": "b"})
    wait = CompletenessSensor(task_id="wait", topic="PageView", poke_interval=1)
    load >> wait >> Publish(task_id="publish", topic="PageView")
"""


@contextmanager
def auditor(complete: threading.Event) -> Iterator[str]:
    """The URL of an auditor that answers incomplete until the event is set."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = parse_qs(urlparse(self.path).query)
            start, end = (datetime.fromisoformat(query[name][0]) for name in ("from", "to"))
            verdict = "complete" if complete.is_set() else "incomplete"
            body = json.dumps(to_json(Completeness("PageView", start, end, verdict, None, []))).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@contextmanager
def standalone(home: Path, dags: Path, connection: dict[str, object]) -> Iterator[None]:
    """Airflow with all its processes, on ports of its own; every one of them is gone afterwards."""
    port = free_port()
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(home),
        # It starts its other processes by the name `airflow`.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW_CONN_MILLRACE_DEFAULT": json.dumps(connection),
    }
    with (home / "standalone.log").open("wb") as log:
        airflow = start_for_the_test_run(
            [sys.executable, "-m", "airflow", "standalone"],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(airflow.pid, signal.SIGKILL)
        airflow.wait()


def states(home: Path) -> dict[str, str]:
    """Task -> its state, of the one run that the schedule has made; `run` is that of the run."""
    with suppress(sqlite3.OperationalError), closing(sqlite3.connect(home / "airflow.db")) as database:
        found = dict(database.execute("select task_id, state from task_instance").fetchall())
        return found | dict(database.execute("select 'run', state from dag_run").fetchall())
    return {}


@pytest.mark.long
def test_an_hour_is_published_when_the_audit_has_proved_it_and_waiting_holds_no_worker(
    tmp_path: Path,
) -> None:
    dags, home, complete = tmp_path / "dags", tmp_path / "home", threading.Event()
    dags.mkdir()
    home.mkdir()
    (dags / "views.py").write_text(DAG_FILE)
    with auditor(complete) as url:
        extra = {"registry": "http://127.0.0.1:1", "auditor": url, "warehouse": str(tmp_path / "warehouse")}
        connection: dict[str, object] = {"conn_type": "millrace", "host": "127.0.0.1:1", "extra": extra}
        with standalone(home, dags, connection):
            wait_until("the sensor waits", lambda: states(home).get("wait") == "deferred", timeout_s=LONG_S)
            assert states(home)["load"] == "success"
            complete.set()
            wait_until("the run has ended", lambda: states(home)["run"] != "running", timeout_s=LONG_S)
    assert states(home) == dict.fromkeys(("load", "wait", "publish", "run"), "success")
    query = "select asset.uri, asset_event.extra from asset_event join asset on asset.id = asset_id"
    with closing(sqlite3.connect(home / "airflow.db")) as database:
        [(uri, said)] = database.execute(query).fetchall()
    assert uri == "iceberg://millrace_default/millrace/PageView"
    assert json.loads(said)["publication"] == 3
    assert list((home / "millrace-jobs").iterdir()) == []
