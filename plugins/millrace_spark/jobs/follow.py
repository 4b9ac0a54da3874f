"""The resident loader on Spark: one application that loads topics until its command asks it to stop.

The driver runs the loop of `millrace_warehouse.commands.following`. The tasks of each interval run on the
executors, and no interval starts a JVM. A task that Spark gives up fails its interval, which is read again.
"""

from __future__ import annotations

import dataclasses
import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from py4j.protocol import Py4JError

from millrace.errors import MillraceError
from millrace.printing import say
from millrace.steps import to_stderr
from millrace_spark.jobs.load import on_executors
from millrace_warehouse.commands.following import Engine, follow_topics, ready_line, serve_numbers
from millrace_warehouse.commands.loads import NoMoreTasks
from millrace_warehouse.load.load import LoadResult
from millrace_warehouse.requests import Load

if TYPE_CHECKING:
    from pyspark import SparkContext

T = TypeVar("T")
R = TypeVar("R")


def follow_until_stopped(spark: SparkContext, request: Load) -> list[str]:
    """Load the topics until the request's pipe has a byte. Return a reason for each that cannot be loaded.

    Raise MillraceError when Spark has stopped the application.
    """
    stop = threading.Event()
    threading.Thread(target=_set_by, args=(request.stop_pipe, stop), name="stop", daemon=True).start()
    to_stderr("follow")("started")
    numbers = serve_numbers(request)
    say(ready_line(request), err=True)
    failed = follow_topics(request, stop, numbers, _report, engine_on(spark, stop))
    if _is_stopped(spark):
        raise MillraceError("Spark has stopped the application: see the job's output, then start it again")
    return failed


def engine_on(spark: SparkContext, stop: threading.Event) -> Engine:
    """Return the engine whose tasks run on executors. It sets `stop` when Spark has ended the job."""
    run_tasks = on_executors(spark)

    @contextmanager
    def explained() -> Iterator[None]:
        try:
            yield
        except (Py4JError, NoMoreTasks) as error:
            if _is_stopped(spark):
                stop.set()
            raise MillraceError(f"Spark could not run the tasks: {cause_of(str(error))}") from error

    def run(function: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        with explained():
            return run_tasks(function, tasks)

    def cores() -> int:
        with explained():
            return spark.defaultParallelism

    return Engine(run_tasks=run, cores=cores, is_here=False)


def _set_by(pipe: str, stop: threading.Event) -> None:
    """Set `stop` when the pipe has a byte, or when the command has ended."""
    with Path(pipe).open("rb") as reading:
        reading.read(1)
    stop.set()


def _report(made: LoadResult) -> None:
    say(json.dumps({"part": dataclasses.asdict(made)}))


def _is_stopped(spark: SparkContext) -> bool:
    """Return True if Spark has ended the application, for example because the master removed it."""
    try:
        return bool(spark._jsc.sc().isStopped())
    except (Py4JError, AttributeError):
        return True


def cause_of(text: str) -> str:
    """Return one line for Java's text of a failed job: the end of a Python stack trace, or Java's reason.

    It has no numbers of stages and tasks, so that a cause that lasts has one text.
    """
    lines = text.partition("\n\tat ")[0].splitlines()  # without Java's stack
    if any("Traceback (most recent call last)" in line for line in lines):
        frame = max(index for index, line in enumerate(lines) if line.startswith("  "))
        return " ".join(lines[frame + 1 :]).partition(" SQLSTATE: ")[0].strip()
    reason = next((line for line in lines if "Exception: " in line), lines[0]).rpartition("Exception: ")[2]
    return re.sub(r".*Lost task .*?\): ", "", reason).strip()
