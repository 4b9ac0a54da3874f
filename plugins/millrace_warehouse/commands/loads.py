"""Loads topics, many at a time, and re-loads them. The caller passes the function that runs their tasks."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from millrace.errors import MillraceError
from millrace_warehouse.commands.answer import unexpected
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

TOPICS_AT_A_TIME = 8
"""Threads that load topics. They mostly wait for tasks; the cores are shared fairly."""


class NoMoreTasks(MillraceError):
    """Nothing runs tasks any more: every topic would fail with this error, and it is reported once."""


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


def load_topics(run_tasks: RunTasks, request: Load) -> list[LoadResult | TopicFailure]:
    """Load every topic, a few at a time. Return the loads, then the failures, in the topics' order."""
    storage = open_storage(request.warehouse)
    with ThreadPoolExecutor(TOPICS_AT_A_TIME, "load") as pool:
        results = list(pool.map(partial(_load_one, run_tasks, storage, request), request.topics))
    return sorted(results, key=lambda result: isinstance(result, TopicFailure))


def _load_one(run_tasks: RunTasks, storage: Storage, request: Load, topic: str) -> LoadResult | TopicFailure:
    """Load one topic in a separate thread, with its own connections and its own share of the cores."""
    try:
        folder = Topic(storage, topic)
        result = _load(run_tasks, request.for_topic(topic), folder)
        notes = [*result.notes, *notes_on(folder, request, result)]
        return dataclasses.replace(result, notes=notes)
    except NoMoreTasks:
        raise
    except MillraceError as error:
        return TopicFailure(topic=topic, error=str(error))
    except Exception as error:
        traceback.print_exc()
        return TopicFailure(topic=topic, error=f"{topic}: {unexpected(error)}")


def _load(run_tasks: RunTasks, request: Load, topic: Topic) -> LoadResult:
    note = compare_with_auditor(request.auditor, topic)
    with load_context(request, "load", topic, run_tasks) as context:
        result = load_topic(run_of(context, request), topic.name)
    return dataclasses.replace(result, notes=[*note, *result.notes, *show_live(request, topic)])


def reload_loads(run_tasks: RunTasks, request: Reload) -> ReloadedLoads:
    """Re-load the loads of some hours, or the named loads. Raise MillraceError when there are none."""
    topic = Topic(open_storage(request.warehouse), request.topic)
    loads = request.loads or loads_of(topic, request.hours)
    if not loads:
        raise MillraceError(f"no load of {request.topic} has rows or rejected records of these hours")
    with load_context(request, "reload", topic, run_tasks) as context:
        results = reload_topic(ReloadRun(context=context, reason=request.reason), request.topic, loads)
    return ReloadedLoads(loads=results, notes=show_reloaded(request, topic))
