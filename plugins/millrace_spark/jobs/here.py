"""A job without Spark: its driver is a process of this machine, and forks the processes that run its tasks.

    python -m millrace_spark.jobs.here NAME PROCESSES FILE

FILE has the request as JSON, and is deleted once read. The driver prints its answer as a driver on Spark
does. No JVM starts, and the tasks' processes begin with everything that the driver has imported.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from millrace.config import from_mapping
from millrace.steps import Count, to_stderr
from millrace_spark.jobs.tasks import attempt, figures_of, unpacked
from millrace_warehouse.commands.answer import answer_of, end_with, unexpected
from millrace_warehouse.commands.loads import NoMoreTasks, load_topics, reload_loads
from millrace_warehouse.requests import Load, Reload
from millrace_warehouse.without_pandas import keep_pandas_out

T = TypeVar("T")
R = TypeVar("R")

JOBS: Mapping[str, tuple[type, Callable[..., Any]]] = {
    "load": (Load, load_topics),
    "reload": (Reload, reload_loads),
}
"""Name -> the class of its request, and the function that takes a RunTasks and the request."""
_PR_SET_PDEATHSIG = 1


class Processes:
    """Processes that run tasks: a RunTasks. They end with this process, however it ends (Linux).

    To be made in the main thread: the processes are forked at once, before there are threads and connections,
    and Linux ends them with the thread that forked them.
    """

    def __init__(self, processes: int, count: Count | None = None) -> None:
        self._processes, self._count = processes, count
        fork = multiprocessing.get_context("fork")
        self._pool = ProcessPoolExecutor(processes, fork, _end_with, (os.getpid(),))
        self._pool.submit(os.getpid).result()

    def __call__(self, function: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        if self._count is not None:
            self._count.expect(len(tasks))
        # No more than `processes` tasks of one topic wait in the pool, so that topics take turns.
        with ThreadPoolExecutor(self._processes, "tasks") as threads:
            return unpacked(threads.map(partial(self._run, partial(attempt, function)), tasks))

    def _run(self, function: Callable[[T], R], task: T) -> R:
        try:
            result = self._pool.submit(function, task).result()
        except BrokenProcessPool as error:
            raise NoMoreTasks(
                "a process with a task has ended (killed, or out of memory): see the job's output, then run"
                " again"
            ) from error
        if self._count is not None:
            records, size = figures_of(result)
            self._count.add(records=records, size=size)
        return result


def _end_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended already: no signal will come
        os._exit(1)


def main() -> None:
    """Run the job that the arguments name, and end the process with its exit code."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends the job at once, as it ends Spark's driver
    name, processes, file = sys.argv[1:]
    settings = json.loads(Path(file).read_text())
    Path(file).unlink()  # it may hold passwords, and a command that is killed deletes nothing
    kind, job = JOBS[name]
    request: Any = from_mapping(kind, settings, "the job's settings")
    keep_pandas_out()
    run_tasks = Processes(int(processes), Count(to_stderr(name), "ranges"))
    end_with(answer_of(partial(job, run_tasks, request), unexpected), partial(print, flush=True))


if __name__ == "__main__":
    main()
