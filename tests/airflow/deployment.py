"""Airflow as an operator runs it: four processes and a PostgreSQL; each process can be killed and come back.

Asks the database for states and the REST API for everything else, as people do.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psycopg

from tests.brokers import free_port
from tests.jobs import descendants
from tests.support import Process, run_millrace, wait_until

START_S = 900.0
TASK_S = 1200.0
"""Limits for a machine that does much else; nothing is waited for that long."""
ENDED = ("success", "failed")


class Airflow:
    """API server, scheduler with its workers, DAG processor and triggerer; started when made."""

    def __init__(self, folder: Path, database: str, dags: Path, environment: Mapping[str, str]) -> None:
        self._database = database
        self._port = free_port()
        self.home = folder / "airflow"
        self.home.mkdir()
        self.url = f"http://127.0.0.1:{self._port}"
        self.environment = {**self._settings(database, dags), **environment}
        self._commands = {
            "api-server": ["--host", "127.0.0.1", "--port", str(self._port), "--workers", "1"],
            "dag-processor": [],
            "scheduler": ["--skip-serve-logs"],
            "triggerer": ["--skip-serve-logs"],
        }
        self.processes: dict[str, Process] = {}
        with (self.home / "migrate.log").open("wb") as log:
            migrate = [sys.executable, "-m", "airflow", "db", "migrate"]
            environment = {**os.environ, **self.environment}
            subprocess.run(migrate, env=environment, stdout=log, stderr=log, check=True, timeout=START_S)
        for name in self._commands:
            self.start(name)
        wait_until("Airflow's API answers", self._answers, timeout_s=START_S)

    def _settings(self, database: str, dags: Path) -> dict[str, str]:
        url = database.replace("postgresql://", "postgresql+psycopg://")
        return {
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": url,
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": url,
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "operator:admin",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__PARALLELISM": "4",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__SECRET_KEY": secrets.token_hex(16),
            "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(32),
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
            "AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": f"{START_S:.0f}",
            "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": f"{START_S:.0f}",
            "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_SERVER_PORT": str(free_port()),
            # Who died is noticed within two minutes; shorter, and a busy machine looks dead.
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "90",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
            "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
            "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "60",
            "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "60",
        }

    def start(self, name: str) -> None:
        """Start one of the four processes."""
        words = [name, *self._commands[name]]
        self.processes[name] = Process(words, env=self.environment, module="airflow")

    def kill(self, name: str) -> None:
        """SIGKILL to a process and to all it started, workers and their tasks; millrace's jobs live on."""
        process = self.processes[name]
        for pid in [process.pid, *descendants(process.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
        process.wait()

    def stop(self) -> None:
        """End everything; what the processes wrote is kept beside the DAGs' logs."""
        for name, process in self.processes.items():
            if process.running:
                self.kill(name)
            (self.home / f"{name}.log").write_text(process.output)

    def _answers(self) -> bool:
        with suppress(httpx.HTTPError, OSError, KeyError, ValueError):
            return bool(self.token)
        return False

    @property
    def token(self) -> str:
        """Token that a browser gets when the operator logs in."""
        [written] = self.home.glob("simple_auth_manager_passwords.json*")
        login = {"username": "operator", "password": json.loads(written.read_text())["operator"]}
        answer = httpx.post(f"{self.url}/auth/token", json=login, timeout=60)
        return str(answer.json()["access_token"])

    def ask(self, method: str, path: str, **body: Any) -> Any:
        """Return the REST API's answer."""
        headers = {"Authorization": f"Bearer {self.token}"}
        url = f"{self.url}/api/v2/{path}"
        answer = httpx.request(method, url, headers=headers, json=body or None, timeout=120)
        assert not answer.is_error, answer.text
        return answer.json()

    def query(self, sql: str, *values: object) -> list[Any]:
        """Rows of Airflow's own database."""
        with psycopg.connect(self._database) as database:
            return database.execute(sql, values).fetchall()

    def trigger(self, dag_id: str, run_id: str, **conf: str) -> None:
        """Begin a run, once the DAG is known."""
        known = "select 1 from dag where dag_id = %s and not is_stale"
        wait_until(f"DAG {dag_id} is known", lambda: self.query(known, dag_id), timeout_s=START_S)
        self.ask("POST", f"dags/{dag_id}/dagRuns", dag_run_id=run_id, logical_date=None, conf=conf)

    def states(self, run_id: str) -> dict[str, str]:
        """The tasks of a run: `task` or `task[index]`, and the state."""
        sql = "select task_id, map_index, coalesce(state, '') from task_instance where run_id = %s"
        return {
            f"{task}[{index}]" if index >= 0 else task: state
            for task, index, state in self.query(sql, run_id)
        }

    def await_run(self, run_id: str, *, timeout_s: float = TASK_S) -> str:
        """Wait until a run has ended; return its final state."""

        def ended() -> str:
            found = self.query("select state from dag_run where run_id = %s", run_id)
            return found[0][0] if found and found[0][0] in ENDED else ""

        try:
            return wait_until(f"run {run_id} has ended", ended, timeout_s=timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.states(run_id)}") from None

    def await_state(self, run_id: str, task: str, *states: str, timeout_s: float = TASK_S) -> None:
        """Wait until a task is in one of these states."""
        wait_until(
            f"{task} of {run_id} is {' or '.join(states)}",
            lambda: self.states(run_id).get(task) in states,
            timeout_s=timeout_s,
        )

    def logs(self, dag_id: str, run_id: str, task_id: str) -> list[Path]:
        """Log files of a task's tries."""
        folder = self.home / "logs" / f"dag_id={dag_id}" / f"run_id={run_id}" / f"task_id={task_id}"
        return sorted(folder.glob("*.log"))

    def jobs(self) -> list[Path]:
        """Folders of millrace's jobs that have written their command down."""
        return [path.parent for path in (self.home / "millrace-jobs").glob("*/group")]


def verify(warehouse: Path, bootstrap: str) -> None:
    """AssertionError with what `millrace verify` finds in the warehouse, its tables and the log."""
    done = run_millrace("verify", "--warehouse", str(warehouse), "--rows", "--bootstrap", bootstrap)
    assert done.returncode == 0, done.stdout + done.stderr
