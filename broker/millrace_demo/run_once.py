"""Runs one DAG once through Airflow itself, without a scheduler: `python -m millrace_demo.run_once DAG`.

For the demo and for tests. It does more than `airflow dags test`: Ctrl-C and SIGTERM end the run together
with its jobs, and the last line names the task that failed and the reason, with exit code 1. Airflow keeps
its state in a database of its own under --airflow-home. One line per task goes to standard output, Airflow's
logs to standard error.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Any, NoReturn

import click
from pluggy import HookimplMarker

from millrace_airflow.job import Job, JobFailed
from millrace_airflow.settings import JOBS

if TYPE_CHECKING:
    from airflow.sdk import DAG

hookimpl = HookimplMarker("airflow")
JOB_STOP_S = 4.0
"""Seconds between SIGTERM and SIGKILL of a job. Work that the job has not committed may be lost."""


@click.command()
@click.argument("dag_id")
@click.option("--dags-folder", type=click.Path(exists=True, file_okay=False), required=True)
@click.option("--airflow-home", type=click.Path(file_okay=False), help="Default: a temporary folder.")
@click.option("--start", help="First hour to publish, ISO 8601; default: the DAG's data interval.")
@click.option("--end", help="End of the last hour to publish.")
def main(dag_id: str, dags_folder: str, airflow_home: str | None, start: str | None, end: str | None) -> None:
    """Run DAG_ID once and wait for its end.

    Example: python -m millrace_demo.run_once warehouse_load --dags-folder dags
    --start 2015-05-17T10:00:00Z --end 2015-05-20T22:00:00Z
    """
    report = _reserve_standard_output()
    folder = Path(dags_folder).resolve()
    run_conf = {name: value for name, value in (("start", start), ("end", end)) if value}
    with tempfile.TemporaryDirectory(prefix="millrace-airflow-") as temporary:
        home = Path(airflow_home or temporary).resolve()
        _configure(folder, home)
        end_on_signals = partial(_on_signals, partial(_end, home / JOBS, Path(temporary)))
        end_on_signals()
        failures = run_dag(dag_id, folder, run_conf, report, end_on_signals)
    if failures:
        report.write(f"millrace: DAG {dag_id} failed: {'; '.join(failures)}\n")
        report.flush()
        sys.exit(1)


def _on_signals(end: Callable[[int, FrameType | None], NoReturn]) -> None:
    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGTERM, end)


def _end(jobs: Path, temporary: Path, number: int, _: FrameType | None) -> NoReturn:
    """End the process here: Airflow would mistake an exception for a task's failure, and continue."""
    try:
        for ignored in (signal.SIGINT, signal.SIGTERM):
            signal.signal(ignored, signal.SIG_IGN)
        for directory in jobs.glob("*"):
            _kill(Job(directory))
        shutil.rmtree(temporary, ignore_errors=True)
    finally:
        os._exit(128 + number)


def _kill(job: Job) -> None:
    """End a job. A job that has just begun gets two seconds to note its processes."""
    deadline = time.monotonic() + 2.0
    while job.directory.is_dir() and time.monotonic() < deadline:
        try:
            job.kill(JOB_STOP_S)
            return
        except (OSError, ValueError, JobFailed):
            time.sleep(0.05)


def run_dag(
    dag_id: str, dags_folder: Path, run_conf: dict[str, str], report: IO[str], on_task: Callable[[], None]
) -> list[str]:
    """Run the DAG in a migrated database; return `task: reason` of each failed task, [] on success.

    `on_task` is called as each task begins, so that it can take back the handling of signals from the task.
    """
    from airflow.sdk.listener import get_listener_manager
    from airflow.utils.db import initdb
    from airflow.utils.state import DagRunState

    dag = _parse(dag_id, dags_folder)
    if isinstance(dag, str):
        return [dag]
    initdb()
    listener = _Reporter(report, on_task)
    get_listener_manager().add_listener(listener)  # type: ignore[no-untyped-call]
    run = dag.test(run_conf=run_conf)
    if run.state == DagRunState.SUCCESS:
        return []
    return listener.failures or [f"the run ended {run.state} without a failed task"]


def _parse(dag_id: str, dags_folder: Path) -> DAG | str:
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(str(dags_folder))
    if (dag := bag.dags.get(dag_id)) is not None:
        return dag
    if bag.import_errors:
        path, error = next(iter(bag.import_errors.items()))
        return f"{path} cannot be imported: {error.strip().splitlines()[-1]}"
    return f"no DAG {dag_id} in {dags_folder}; there are: {', '.join(sorted(bag.dags)) or 'none'}"


def _reserve_standard_output() -> IO[str]:
    """Return standard output for the report's lines.

    Everything else that is printed goes to standard error.
    """
    sys.stdout.flush()
    report = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return report


def _configure(dags_folder: Path, home: Path) -> None:
    # Airflow reads these variables when it is first imported, so it must not be imported before this line.
    home.mkdir(parents=True, exist_ok=True)
    os.environ |= {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags_folder),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
    }


class _Reporter:
    """A plugin of Airflow that prints one line for each task that ends, and keeps the reasons of finally
    failed tasks.
    """

    def __init__(self, report: IO[str], on_task: Callable[[], None]) -> None:
        self.failures: list[str] = []
        self._report, self._on_task = report, on_task
        self._began: dict[str, float] = {}

    @hookimpl
    def on_task_instance_running(self, task_instance: Any) -> None:
        self._on_task()
        # A deferred task runs twice; its time counts from the first run.
        self._began.setdefault(_name(task_instance), time.monotonic())

    @hookimpl
    def on_task_instance_success(self, task_instance: Any) -> None:
        self._ended(task_instance, "success")

    @hookimpl
    def on_task_instance_skipped(self, task_instance: Any) -> None:
        self._ended(task_instance, "skipped")

    @hookimpl
    def on_task_instance_failed(self, task_instance: Any, error: BaseException | str | None) -> None:
        reason = str(error).strip().partition("\n")[0] or "no reason given"
        state = str(getattr(task_instance.state, "value", task_instance.state))
        # Not up_for_retry, nor a task that only repeats that another has failed.
        if state == "failed" and task_instance.task.trigger_rule != "one_failed":
            self.failures.append(f"{_name(task_instance)}: {reason}")
        self._ended(task_instance, f"{state}: {reason}")

    def _ended(self, task_instance: Any, how: str) -> None:
        name = _name(task_instance)
        seconds = time.monotonic() - self._began.get(name, time.monotonic())
        self._report.write(f"{name}: {how} ({seconds:.1f} s)\n")


def _name(task_instance: Any) -> str:
    """Return the task's id; of a mapped task, with its own name or index."""
    index = task_instance.map_index
    if index is None or index < 0:
        return str(task_instance.task_id)
    return f"{task_instance.task_id}[{getattr(task_instance, 'rendered_map_index', None) or index}]"


if __name__ == "__main__":
    main()
