"""A real Airflow that loads all the time, and whose task is killed in the middle of it.

Scheduler, API server and DAG processor are processes of their own; one DAG, run after run, has the project's
operator as its only task. SIGKILL meets the task's process: the millrace job it watched lives on by itself,
and the scheduler starts the next try beside it, so that two drivers load at once.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from millrace_airflow.job import Job, JobFailed
from tests.brokers import free_port
from tests.support import Process, wait_until
from tests.trials.faultload.kills import Kills, kill
from tests.trials.faultload.place import Place, topics_file

KIND = "airflow task"
START_TIMEOUT_S = 300.0
RUN_TIMEOUT_S = 900.0
JOB_TIMEOUT_S = 300.0
USUAL_S = 12.0
"""Usual time of a task: the moment of a kill is drawn from it."""
DAG = """
import json, pathlib
from datetime import UTC, datetime, timedelta
from airflow.sdk import DAG
from millrace_airflow.operators.load import LoadTopicOperator

with DAG("load_all_the_time", schedule="@continuous", start_date=datetime(2025, 1, 1, tzinfo=UTC),
         catchup=False, max_active_runs=1, is_paused_upon_creation=False):
    LoadTopicOperator(task_id="load", topics=json.loads(pathlib.Path(TOPICS).read_text()), poll_s=0.2,
                      retries=20, retry_delay=timedelta(seconds=0), deferrable=False)
"""


class Airflow:
    """Runs the DAG until `wanted` tasks were killed and every run that began is through; a thread."""

    def __init__(
        self, place: Place, kills: Kills, wanted: int, chance: random.Random, say: Callable[[str], None]
    ) -> None:
        self._place, self._kills, self._wanted = place, kills, wanted
        self._chance, self._say = chance, say
        self._home = place.folder / "airflow"
        self._processes: list[Process] = []
        self.runs = 0
        """Runs of the DAG that succeeded."""
        self.problem: str | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="airflow", daemon=True)

    def start(self) -> Airflow:
        """Begin."""
        self._thread.start()
        return self

    @property
    def running(self) -> bool:
        """True until it has done what was wanted, or failed."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """End it, whether it is done or not."""
        self._stop.set()
        self._thread.join(JOB_TIMEOUT_S + 60)

    def _run(self) -> None:
        try:
            self._prepare()
            while not self._stop.is_set() and self._kills.done[KIND] < self._wanted:
                self._kill_in_a_run()
        except Exception as error:  # must not vanish with the thread
            self.problem = f"Airflow: {error!r}"
        finally:
            for process in reversed(self._processes):
                process.kill()
                (self._home / f"{process.arguments[0]}.log").write_text(process.output)
            self._wait_for_jobs()

    def _wait_for_jobs(self) -> None:
        """A job whose task was killed goes on by itself: it must not publish behind the last comparison."""
        try:
            wait_until("the jobs have ended", lambda: not self._jobs(), timeout_s=JOB_TIMEOUT_S)
        except AssertionError:
            self.problem = self.problem or f"Airflow: jobs do not end: {', '.join(map(str, self._jobs()))}"

    def _prepare(self) -> None:
        dags = self._home / "dags"
        dags.mkdir(parents=True)
        (dags / "load.py").write_text(DAG.replace("TOPICS)", f"{str(topics_file(self._place))!r})"))
        environment = self._environment(dags)
        with open(self._home / "migrate.log", "wb") as log:
            subprocess.run(
                [sys.executable, "-m", "airflow", "db", "migrate"],
                env={**os.environ, **environment},
                stdout=log,
                stderr=log,
                check=True,
                timeout=START_TIMEOUT_S,
            )
        port = environment["AIRFLOW__API__PORT"]
        for words in (
            ["api-server", "--host", "127.0.0.1", "--port", port],
            ["scheduler"],
            ["dag-processor"],
        ):
            self._processes.append(Process(words, env=environment, module="airflow"))
        wait_until(
            "Airflow runs the DAG", lambda: self._stop.is_set() or self._tasks(), timeout_s=START_TIMEOUT_S
        )

    def _environment(self, dags: Path) -> dict[str, str]:
        api = free_port()
        extra = {
            "registry": self._place.site.registry,
            "auditor": "http://127.0.0.1:1",
            "warehouse": str(self._place.warehouse),
            "spark_master": self._place.spark.master,
        }
        connection = {"conn_type": "millrace", "host": self._place.site.cluster.bootstrap, "extra": extra}
        return {
            **self._place.spark_environment,
            "AIRFLOW_HOME": str(self._home),
            "AIRFLOW_CONN_MILLRACE_DEFAULT": json.dumps(connection),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__PARALLELISM": "2",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{api}/execution/",
            "AIRFLOW__API__PORT": str(api),
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API__SECRET_KEY": secrets.token_hex(16),
            "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(32),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self._home}/airflow.db",
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
            "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_SERVER_PORT": str(free_port()),
        }

    def _jobs(self) -> list[Path]:
        """Folders of the jobs that still run."""
        folders = (self._home / "millrace-jobs").glob("*/lock")
        alive = []
        for lock in folders:
            with suppress(JobFailed):
                if Job(lock.parent).alive():
                    alive.append(lock.parent)
        time.sleep(0.2)
        return alive

    def _tasks(self) -> dict[str, tuple[str, int, int]]:
        """Run id -> (state of its task, pid, number of the try); {} while there is no database yet."""
        query = "select run_id, coalesce(state, ''), coalesce(pid, 0), try_number from task_instance"
        try:
            with closing(sqlite3.connect(f"file:{self._home}/airflow.db?mode=ro", uri=True)) as database:
                return {run: (state, pid, number) for run, state, pid, number in database.execute(query)}
        except sqlite3.OperationalError:  # it is written to this moment
            return {}

    def _kill_in_a_run(self) -> None:
        """Wait for a task that runs, kill it at some moment, and wait until its run has succeeded."""
        run, pid = wait_until("a task runs", self._running_task, timeout_s=RUN_TIMEOUT_S) or ("", 0)
        if self._stop.wait(self._chance.uniform(0, USUAL_S)):
            return
        if self._tasks().get(run, ("", 0, 0))[:2] == ("running", pid) and _is_task(pid) and kill(pid):
            self._kills.note(KIND, "the process of an Airflow task")
        wait_until(f"run {run} succeeds", lambda: self._ended(run), timeout_s=RUN_TIMEOUT_S)
        self.runs += 1

    def _running_task(self) -> tuple[str, int] | None:
        if self._stop.is_set():
            return "", 0
        for run, (state, pid, _) in self._tasks().items():
            if state == "running" and _is_task(pid):
                return run, pid
        time.sleep(0.2)
        return None

    def _ended(self, run: str) -> bool:
        time.sleep(0.3)
        state = self._tasks().get(run, ("", 0, 0))[0]
        if state == "failed":
            raise AssertionError(f"the task of {run} failed for good")
        return state == "success" or self._stop.is_set()


def _is_task(pid: int) -> bool:
    """True for the process in which Airflow runs a task; the number may be another process's by now."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"airflow worker -- ")
    except OSError:
        return False
