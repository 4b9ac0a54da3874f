"""Loads topics, many in one Spark application, and re-loads them."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from millrace.errors import MillraceError
from millrace_spark.jobs.entry import describe, jvm_has_ended
from millrace_spark.jobs.tasks import in_tasks
from millrace_spark.load_task import without_pandas
from millrace_warehouse.commands.load_context import (
    compare_with_auditor,
    load_context,
    notes_on,
    run_of,
    show_live,
    show_reloaded,
)
from millrace_warehouse.history.layout import Topic
from millrace_warehouse.load.load import LoadResult, load_topic
from millrace_warehouse.load.reload import ReloadResult, ReloadRun, loads_of, reload_topic
from millrace_warehouse.load.task import RunTasks
from millrace_warehouse.requests import Load, Reload
from millrace_warehouse.storage import Storage, open_storage

if TYPE_CHECKING:
    from pyspark import SparkContext

T = TypeVar("T")
R = TypeVar("R")

TOPICS_AT_A_TIME = 8
"""Threads of the driver that load topics. They mostly wait for tasks; the cores are shared fairly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFailure:
    """Reason why a topic could not be loaded."""

    topic: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadedLoads:
    """Result of a re-load, and notes on it."""

    loads: Sequence[ReloadResult]
    notes: Sequence[str]


def load_topics(spark: SparkContext, request: Load) -> list[LoadResult | TopicFailure]:
    """Load every topic, a few at a time. Return the loads, then the failures, in the topics' order."""
    storage = open_storage(request.warehouse)
    with ThreadPoolExecutor(TOPICS_AT_A_TIME, "load") as pool:
        results = list(pool.map(partial(_load_one, spark, storage, request), request.topics))
    return sorted(results, key=lambda result: isinstance(result, TopicFailure))


def _load_one(spark: SparkContext, storage: Storage, request: Load, topic: str) -> LoadResult | TopicFailure:
    """Load one topic in a separate thread, with its own connections and its own share of the cores."""
    try:
        if len(request.topics) > 1:
            spark.setLocalProperty("spark.scheduler.pool", topic)
        folder = Topic(storage, topic)
        result = _load(spark, request.for_topic(topic), folder)
        notes = [*result.notes, *notes_on(folder, request, result)]
        return dataclasses.replace(result, notes=notes)
    except MillraceError as error:
        return TopicFailure(topic=topic, error=str(error))
    except Exception as error:
        if jvm_has_ended():
            raise  # every topic fails with it, and the job reports it once
        traceback.print_exc()
        return TopicFailure(topic=topic, error=f"{topic}: {describe(error)}")


def _load(spark: SparkContext, request: Load, topic: Topic) -> LoadResult:
    note = compare_with_auditor(request.auditor, topic)
    with load_context(request, "load", topic, on_executors(spark)) as context:
        result = load_topic(run_of(context, request), topic.name)
    return dataclasses.replace(result, notes=[*note, *result.notes, *show_live(request, topic)])


def on_executors(spark: SparkContext) -> RunTasks:
    """Return the function that runs a load's tasks on Spark."""

    def run(function: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        return in_tasks(spark, partial(without_pandas, function), tasks)

    return run


def reload_loads(spark: SparkContext, request: Reload) -> ReloadedLoads:
    """Re-load the loads of some hours, or the named loads. Raise MillraceError when there are none."""
    topic = Topic(open_storage(request.warehouse), request.topic)
    loads = request.loads or loads_of(topic, request.hours)
    if not loads:
        raise MillraceError(f"no load of {request.topic} has rows or rejected records of these hours")
    with load_context(request, "reload", topic, on_executors(spark)) as context:
        results = reload_topic(ReloadRun(context=context, reason=request.reason), request.topic, loads)
    return ReloadedLoads(loads=results, notes=show_reloaded(request, topic))
