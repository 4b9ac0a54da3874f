"""Loads and re-loads whose tasks run on Spark's executors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from millrace.steps import Count, to_stderr
from millrace_spark.jobs.entry import JVM_HAS_ENDED, jvm_has_ended
from millrace_spark.jobs.tasks import in_tasks
from millrace_spark.load_task import without_pandas
from millrace_warehouse.commands import loads
from millrace_warehouse.commands.loads import NoMoreTasks, ReloadedLoads, TopicFailure
from millrace_warehouse.load.load import LoadResult
from millrace_warehouse.load.task import RunTasks
from millrace_warehouse.requests import Load, Reload

if TYPE_CHECKING:
    from pyspark import SparkContext

T = TypeVar("T")
R = TypeVar("R")


def load_topics(spark: SparkContext, request: Load) -> list[LoadResult | TopicFailure]:
    """Load every topic, many in one Spark application."""
    return loads.load_topics(on_executors(spark, Count(to_stderr("load"), "ranges")), request)


def reload_loads(spark: SparkContext, request: Reload) -> ReloadedLoads:
    """Re-load loads of a topic."""
    return loads.reload_loads(on_executors(spark, Count(to_stderr("reload"), "ranges")), request)


def on_executors(spark: SparkContext, count: Count | None = None) -> RunTasks:
    """Return the function that runs a load's tasks on Spark. Each thread has a share of the cores."""

    def run(function: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        try:
            spark.setLocalProperty("spark.scheduler.pool", threading.current_thread().name)
            return in_tasks(spark, partial(without_pandas, function), tasks, count)
        except Exception as error:
            if jvm_has_ended():
                raise NoMoreTasks(JVM_HAS_ENDED) from error
            raise

    return run
