"""Distributes a job's work over Spark's tasks.

Every Python worker imports this module and the function's module, so they contain nothing else of a job.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from millrace.errors import MillraceError
from millrace.installation import Release, release

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext

    from millrace.steps import Count

T = TypeVar("T")
R = TypeVar("R")


def in_tasks(
    spark: SparkContext, function: Callable[[T], R], tasks: Sequence[T], count: Count | None = None
) -> list[R]:
    """Return the result of `function` for every task, in order, each computed in a separate Spark task.

    A MillraceError in a task is raised here as it is, not as a Java stack trace, after every task has run.
    `count` gets each task as soon as it has ended: its figures come by Spark's accumulator, its result later.
    """
    if not tasks:
        return []
    run: Callable[[T], R | Failed] = partial(same_release, release(), function)
    if count is not None:
        count.expect(len(tasks))
        # No AccumulatorParam by its class: tasks that run without Spark import this module, too.
        figures = spark.accumulator((0, 0, 0), Figures(count))  # type: ignore[arg-type]
        run = partial(_counted, figures, run)
    return unpacked(spark.parallelize(tasks, len(tasks)).map(run).collect())


class Figures:
    """The parameter of an accumulator of tasks, records and bytes. The driver's adds to its Count."""

    def __init__(self, count: Count | None = None) -> None:
        self._count = count

    def __reduce__(self) -> tuple[type[Figures], tuple[()]]:
        return Figures, ()  # a worker has no Count

    def zero(self, value: tuple[int, int, int]) -> tuple[int, int, int]:
        return 0, 0, 0

    def addInPlace(self, so_far: tuple[int, int, int], more: tuple[int, int, int]) -> tuple[int, int, int]:
        if self._count is not None:
            self._count.add(more[0], records=more[1], size=more[2])
        return so_far[0] + more[0], so_far[1] + more[1], so_far[2] + more[2]


def _counted(figures: Accumulator[tuple[int, int, int]], run: Callable[[T], R], task: T) -> R:
    result = run(task)
    figures.add((1, *figures_of(result)))
    return result


def figures_of(result: object) -> tuple[int, int]:
    """Return the records and bytes that a task's result states, or zeros."""
    figures: tuple[int, int] = getattr(result, "figures", (0, 0))
    return figures


@dataclass(frozen=True, slots=True)
class Failed:
    """A MillraceError on its way from a task to the driver."""

    reason: str


def unpacked(done: Iterable[R | Failed]) -> list[R]:
    """Return the results that tasks sent by `attempt`. Raise MillraceError for the first that failed."""
    results = []
    for result in done:
        if isinstance(result, Failed):
            raise MillraceError(result.reason)
        results.append(result)
    return results


def same_release(of_driver: Release, function: Callable[[T], R], task: T) -> R | Failed:
    """Return a task's result, or the refusal to compute it by the rules of another release."""
    if not (here := release()).may_be(of_driver):
        return Failed(
            f"the executors have Millrace {here}, the driver has {of_driver}: give both the same release (see"
            " `Python on the executors` in docs/clusters.md), then run again"
        )
    return attempt(function, task)


def attempt(function: Callable[[T], R], task: T) -> R | Failed:
    """Return a task's result in a form that can be sent."""
    try:
        return function(task)
    except MillraceError as error:
        return Failed(str(error))
    finally:
        # Before every task PySpark invalidates the import finders, and a zip's finder then reads the
        # directory of its zip: 56 ms of CPU for PySpark's own. A finder that is removed reads nothing.
        for path in [path for path in sys.path_importer_cache if path.endswith(".zip")]:
            del sys.path_importer_cache[path]
