"""What every job's main does: settings from the command line, a Spark session, one JSON line at the end.

The line is `{"result": …}` with exit code 0, or `{"error": "one line that says what to do"}` with 1. Steps
go to standard error as they are done.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pyspark.sql import SparkSession

from millrace.config import from_mapping
from millrace.errors import MillraceError

S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")
TASKS_PER_CORE = 4
"""Short tasks are put together, so that scheduling them does not cost more than running them."""


def main(cls: type[S], job: Callable[[SparkSession, S], Any]) -> None:
    """Run a job with the settings in the first argument; the process ends with its exit code."""
    settings = from_mapping(cls, json.loads(sys.argv[1]), "the job's settings")
    spark = SparkSession.builder.getOrCreate()
    try:
        answer, code = {"result": job(spark, settings)}, 0
    except MillraceError as error:
        answer, code = {"error": str(error)}, 1
    finally:
        spark.stop()
    print(json.dumps(answer), flush=True)
    sys.exit(code)


def in_tasks(
    spark: SparkSession, function: Callable[[T], R], tasks: Sequence[T], together: int = 1
) -> list[R]:
    """`function` of every task, in order, spread over the executors; at most `together` in one Spark task."""
    if not tasks:
        return []
    context = spark.sparkContext
    slices = max(-(-len(tasks) // together), min(len(tasks), context.defaultParallelism * TASKS_PER_CORE))
    return context.parallelize(tasks, slices).map(function).collect()


def to_stderr(what: str) -> Callable[[str], None]:
    """A progress callback that writes `millrace: <what>: <step>` lines."""

    def progress(step: str) -> None:
        print(f"step: {what}: {step}", file=sys.stderr, flush=True)

    return progress
