"""Distributes a job's work over Spark's tasks.

Every Python worker imports this module and the function's module, so they contain nothing else of a job.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from millrace.errors import MillraceError

if TYPE_CHECKING:
    from pyspark import SparkContext

T = TypeVar("T")
R = TypeVar("R")


def in_tasks(spark: SparkContext, function: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
    """Return the result of `function` for every task, in order, each computed in a separate Spark task.

    A MillraceError in a task is raised here as it is, not as a Java stack trace, after every task has run.
    """
    if not tasks:
        return []
    done = spark.parallelize(tasks, len(tasks)).map(partial(_attempt, function)).collect()
    results = []
    for result in done:
        if isinstance(result, _Failed):
            raise MillraceError(result.reason)
        results.append(result)
    return results


@dataclass(frozen=True, slots=True)
class _Failed:
    """A MillraceError on its way from a task to the driver."""

    reason: str


def _attempt(function: Callable[[T], R], task: T) -> R | _Failed:
    try:
        return function(task)
    except MillraceError as error:
        return _Failed(str(error))
    finally:
        # Before every task PySpark invalidates the import finders, and a zip's finder then reads the
        # directory of its zip: 56 ms of CPU for PySpark's own. A finder that is removed reads nothing.
        for path in [path for path in sys.path_importer_cache if path.endswith(".zip")]:
            del sys.path_importer_cache[path]
