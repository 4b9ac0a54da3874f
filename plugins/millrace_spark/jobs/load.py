"""Loads topics, many in one Spark application, and re-loads them."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from millrace.client.cluster_client import ClusterClient
from millrace.errors import MillraceError
from millrace.security.client import of_process
from millrace.topics_file import NO_POLICY, TopicPolicy
from millrace_registry.client import RegisteredVersion, SchemaRegistryClient, UnknownSchema
from millrace_registry.retained import ids_in
from millrace_registry.subjects import Subjects, foreign_id_lines, foreign_ids
from millrace_spark.jobs.entry import describe, jvm_has_ended
from millrace_spark.jobs.tasks import in_tasks
from millrace_spark.load_cut import write_cut_in_task
from millrace_warehouse.commands.auditor import newest_counted
from millrace_warehouse.commands.steps import to_stderr
from millrace_warehouse.history.layout import Topic, read_load, unpublished_since
from millrace_warehouse.history.manifest import now
from millrace_warehouse.history.restored import check_not_restored
from millrace_warehouse.history.schemas import (
    check_same_format,
    pin_first,
    pin_plain,
    pinned,
    with_layout,
    with_own_columns,
)
from millrace_warehouse.load.load import LoadResult, LoadRun, load_topic
from millrace_warehouse.load.range_writer import LoadContext, Pinned
from millrace_warehouse.load.rejections import DEFAULT_LIMITS, RejectedLimits
from millrace_warehouse.load.reload import ReloadResult, ReloadRun, loads_of, reload_topic
from millrace_warehouse.log.bounds import Bounds
from millrace_warehouse.log.formats import AVRO, PLAIN_SCHEMAS, MessageFormat, check_is_avro, no_schema
from millrace_warehouse.requests import Load, Reload
from millrace_warehouse.storage import Storage, open_storage

if TYPE_CHECKING:
    from pyspark import SparkContext

TOPICS_AT_A_TIME = 8
"""Threads of the driver that load topics. They mostly wait for tasks; the cores are shared fairly."""
UNPUBLISHED_AFTER = timedelta(days=1)
"""Age at which later loads note an unpublished load: no schedule has published it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFailure:
    """Reason why a topic could not be loaded."""

    topic: str
    error: str


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
        notes = [*result.notes, *_other_subjects(folder, request, result), *unpublished_notes(folder, result)]
        return dataclasses.replace(result, notes=notes)
    except MillraceError as error:
        return TopicFailure(topic=topic, error=str(error))
    except Exception as error:
        if jvm_has_ended():
            raise  # every topic fails with it, and the job reports it once
        traceback.print_exc()
        return TopicFailure(topic=topic, error=f"{topic}: {describe(error)}")


def _load(spark: SparkContext, request: Load, topic: Topic) -> LoadResult:
    limits = RejectedLimits.parse(request.max_rejected) if request.max_rejected else DEFAULT_LIMITS
    note = _compare_with_auditor(request.auditor, topic)
    with _load_context(spark, request, "load", topic) as context:
        run = LoadRun(
            context=dataclasses.replace(context, max_rejected=limits, accept_gaps=request.accept_gaps),
            bounds=Bounds(max_bytes=request.max_bytes, until_ms=request.until_ms),
            accept_new_topic=request.accept_new_topic,
        )
        result = load_topic(run, topic.name)
    return dataclasses.replace(result, notes=[*note, *result.notes])


def _compare_with_auditor(url: str, topic: Topic) -> list[str]:
    """Compare the topic's folder with the auditor's counts. Return a note when the auditor does not answer.

    Raise MillraceError when the auditor has counted a load that the topic's folder does not have.
    """
    try:
        counted = newest_counted(url, topic.name) if url else None
    except MillraceError as error:
        return [f"{topic}: whether its folder is as new as what was counted is not known: {error}"]
    check_not_restored(topic, counted)
    return []


def _other_subjects(topic: Topic, request: Load, result: LoadResult) -> list[str]:
    """Return a note for each schema id in the load's messages that is of another subject."""
    if result.load is None or not result.published:
        return []
    try:
        load = read_load(topic, result.load)
        loaded = {id_ for part in load.partitions for id_ in part.schema_ids}
        with SchemaRegistryClient(request.registry) as registry:
            others = foreign_ids(
                topic.name, loaded, Subjects.parse(request.subjects, request.policies), registry
            )
    except MillraceError as error:  # the load is committed, whatever storage and registry answer now
        return [f"{topic}: whether its messages are of the topic's subject is not known: {error}"]
    return foreign_id_lines(topic.name, others)


def unpublished_notes(topic: Topic, result: LoadResult) -> list[str]:
    """Return a note on loads that wait for `publish`, when the oldest of them has waited for long.

    Only the first load of an hour checks, because listing the publications takes longer the more there are.
    """
    load = result.load
    if load is None or not result.published:
        return []
    try:
        if load > 1 and read_load(topic, load - 1).created[:13] == now()[:13]:
            return []
        waiting = unpublished_since(topic)
    except MillraceError as error:  # the load is committed, whatever the storage answers now
        return [f"{topic}: whether older loads wait for `publish` is not known: {error}"]
    if waiting is None or datetime.now(UTC) - datetime.fromisoformat(waiting.created) < UNPUBLISHED_AFTER:
        return []
    return [f"{topic}: no load since {waiting.created} is published: run `millrace publish {topic}`"]


def reload_loads(spark: SparkContext, request: Reload) -> list[ReloadResult]:
    """Re-load the loads of some hours, or the named loads. Raise MillraceError when there are none."""
    topic = Topic(open_storage(request.warehouse), request.topic)
    loads = request.loads or loads_of(topic, request.hours)
    if not loads:
        raise MillraceError(f"no load of {request.topic} has rows or rejected records of these hours")
    with _load_context(spark, request, "reload", topic) as context:
        return reload_topic(ReloadRun(context=context, reason=request.reason), request.topic, loads)


@contextmanager
def _load_context(
    spark: SparkContext, request: Load | Reload, command: str, topic: Topic
) -> Iterator[LoadContext]:
    """Yield the context of a load or re-load while its connections are open."""
    # The tasks get the names of the files, which every worker has under the same names.
    connect = partial(ClusterClient, request.bootstrap, security=of_process())
    with connect() as client, SchemaRegistryClient(request.registry) as registry:
        subjects = Subjects.parse(request.subjects, request.policies)
        policy = request.policies.get(topic.name, NO_POLICY)
        context = LoadContext(
            storage=topic.storage,
            client=client,
            run_tasks=partial(in_tasks, spark, write_cut_in_task),
            run_id=request.run_id,
            cut_bytes=request.cut_bytes,
            pin=partial(_pin, topic.storage, registry, subjects, connect, _told(request), policy),
            progress=to_stderr(f"{command} {topic}"),
            tombstones_as_rows=policy.tombstones_as_rows,
        )
        yield context


def _told(request: Load | Reload) -> MessageFormat:
    """Return the format and time that the command or the topic's policy names, or empty values."""
    return MessageFormat(request.format, request.time) if isinstance(request, Load) else MessageFormat("")


def _pin(
    storage: Storage,
    registry: SchemaRegistryClient,
    subjects: Subjects,
    connect: partial[ClusterClient],
    told: MessageFormat,
    policy: TopicPolicy,
    name: str,
    used: int,
) -> Pinned:
    """Pin the topic's newest schema, with the layout of its policy. The first load pins the newest registered
    schema and the format.
    """
    topic = Topic(storage, name)
    table_schema = pinned(topic, used)
    if table_schema is None:
        messages = MessageFormat(told.name or AVRO, told.time)
        if messages.name in PLAIN_SCHEMAS:
            table_schema = pin_plain(topic, messages)
        else:
            with connect() as client:
                if not told.name:
                    check_is_avro(client, name, registry.find_schema)
                latest = _newest_registered(client, registry, subjects, name, messages.name)
            table_schema = pin_first(topic, latest.schema_id, latest.schema, messages)
    check_same_format(table_schema, told)
    table_schema = with_own_columns(topic, table_schema, registry.find_schema)
    table_schema = with_layout(topic, table_schema, policy.partition, policy.sort)
    return Pinned.from_schema(table_schema, connect, registry.find_schema)


def _newest_registered(
    client: ClusterClient, registry: SchemaRegistryClient, subjects: Subjects, topic: str, format: str
) -> RegisteredVersion:
    subject = subjects.of_messages(topic, lambda: ids_in(client, topic, tail_only=True), registry)
    try:
        return registry.latest(subject)
    except UnknownSchema:
        raise no_schema(client, topic, f"subject {subject!r}", registry, format) from None
