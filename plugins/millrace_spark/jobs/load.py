"""Loading topics, many in one Spark application, and reading loads again."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from millrace_warehouse.table.revisions import without_revision
from millrace_warehouse.table.sources import UNPROVEN_AFTER_S, unpublished_note

from millrace.client.cluster_client import ClusterClient
from millrace.config import OFFLINE_AUDIT_TOPIC
from millrace.errors import MillraceError, UnknownTopicOrPartition
from millrace_audit.reports.publish import publish_edition_counts
from millrace_registry.client import SchemaRegistryClient, UnknownSchema
from millrace_spark.jobs.entry import in_tasks, jvm_has_ended, said
from millrace_warehouse.commands.steps import to_stderr
from millrace_warehouse.commands.verbs import Load, Reload
from millrace_warehouse.history.editions import edition_folder
from millrace_warehouse.history.layout import sequences_of
from millrace_warehouse.history.manifest import LoadManifest
from millrace_warehouse.history.schemas import PinnedId
from millrace_warehouse.load.load import LoadResult, LoadRun, load_topic
from millrace_warehouse.load.rejections import DEFAULT_LIMIT, RejectedLimit
from millrace_warehouse.load.reload import ReloadResult, ReloadRun, loads_of, reload_topic
from millrace_warehouse.load.task import DirectSink, Sink, Source, write_cut
from millrace_warehouse.load.writing import Pinned, Writing
from millrace_warehouse.log.bounds import Bounds
from millrace_warehouse.storage.filesystem import Filesystem, open_filesystem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPICS_AT_A_TIME = 8
"""Loaded by as many threads of the driver, which mostly wait for tasks; the cores are shared fairly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFailure:
    """Why a topic could not be loaded."""

    topic: str
    error: str


def load_topics(spark: SparkSession, request: Load) -> list[LoadResult | TopicFailure]:
    """Load every topic, a few at a time; what was loaded, then what failed, in the order of the topics."""
    fs = open_filesystem(request.warehouse, spark)
    with ThreadPoolExecutor(TOPICS_AT_A_TIME, "load") as pool:
        results = list(pool.map(partial(_load_one, spark, fs, request), request.topics))
    return sorted(results, key=lambda result: isinstance(result, TopicFailure))


def _load_one(spark: SparkSession, fs: Filesystem, request: Load, topic: str) -> LoadResult | TopicFailure:
    """Load one topic in a thread of its own, with its own connections and its own share of the cores."""
    try:
        if len(request.topics) > 1:
            spark.sparkContext.setLocalProperty("spark.scheduler.pool", topic)
        result = _load(spark, fs, request, topic)
        return dataclasses.replace(result, notes=[*result.notes, *_unpublished(fs, result)])
    except MillraceError as error:
        return TopicFailure(topic=topic, error=str(error))
    except Exception as error:
        if jvm_has_ended():
            raise  # every topic fails with it, and the job says so once
        traceback.print_exc()
        return TopicFailure(topic=topic, error=f"{topic}: {said(error)}")


def _load(spark: SparkSession, fs: Filesystem, request: Load, topic: str) -> LoadResult:
    limit = RejectedLimit.parse(request.max_rejected) if request.max_rejected else DEFAULT_LIMIT
    with _writing(spark, fs, request, f"load {topic}") as writing:
        run = LoadRun(
            writing=dataclasses.replace(writing, max_rejected=limit, accept_gaps=request.accept_gaps),
            bounds=Bounds(max_bytes=request.max_bytes, until_ms=request.until_ms),
            accept_new_topic=request.accept_new_topic,
        )
        return load_topic(run, topic)


def _unpublished(fs: Filesystem, result: LoadResult) -> list[str]:
    """A note of the hours just loaded that ended so long ago that no schedule will publish them."""
    ended = datetime.now(UTC) - timedelta(seconds=UNPROVEN_AFTER_S)
    # As text: an hour is written so that it sorts as its time does.
    old = [hour for hour in result.hours if hour < ended.isoformat()[: len("2015-05-17T10")]]
    rows = {hour: result.hours[hour] for hour in without_revision(fs, result.topic, old)}
    return [unpublished_note(result.topic, rows)] if rows else []


def reload_loads(spark: SparkSession, request: Reload) -> list[ReloadResult]:
    """Read the loads of some hours again, or those that are named; MillraceError when none is concerned."""
    fs = open_filesystem(request.warehouse, spark)
    loads = request.loads or loads_of(fs, request.topic, request.hours)
    if not loads:
        raise MillraceError(f"no load of {request.topic} has rows or rejected records of these hours")
    with _writing(spark, fs, request, f"reload {request.topic}") as writing:
        return reload_topic(ReloadRun(writing=writing, reason=request.reason), request.topic, loads)


@contextmanager
def _writing(spark: SparkSession, fs: Filesystem, request: Load | Reload, what: str) -> Iterator[Writing]:
    """What a run writes with, while its connections are open."""
    with ClusterClient(request.bootstrap) as client, SchemaRegistryClient(request.registry) as registry:
        progress = to_stderr(what)

        def publish_counts(editions: Sequence[LoadManifest]) -> None:
            # Without the auditor's topic nobody compares, and nobody is told `complete`.
            try:
                client.topic(OFFLINE_AUDIT_TOPIC)
            except UnknownTopicOrPartition:
                progress(f"not audited: {client.bootstrap} has no topic {OFFLINE_AUDIT_TOPIC}")
                return
            topic, load = editions[0].topic, editions[0].load
            counts = [
                sequences_of(fs, f"{topic}/{edition_folder(load, manifest.edition)}", manifest)
                for manifest in editions
            ]
            publish_edition_counts(
                client.bootstrap, registry.address, topic=topic, load=load, editions=counts
            )

        writing = Writing(
            fs=fs,
            client=client,
            sink=sink_named(spark, fs, request.sink),
            run_id=request.run_id,
            cut_bytes=request.cut_bytes,
            pin=partial(_pin, registry, partial(ClusterClient, request.bootstrap)),
            publish_counts=publish_counts,
            progress=progress,
        )
        yield writing


def _pin(
    registry: SchemaRegistryClient, connect: partial[ClusterClient], topic: str, pinned: PinnedId | None
) -> Pinned:
    """The topic's source with its pinned schema; without one, the newest registered under its name."""
    lookup = registry.find_schema
    if pinned is not None:
        schema = lookup(pinned.schema_id)
        if schema is None:
            raise MillraceError(
                f"the table of {topic} has schema {pinned.schema_id}, which {registry.url} does not know:"
                " give the registry it was loaded with"
            )
        return Pinned(Source(connect, lookup, schema), pinned.schema_id, pinned.promotion)
    try:
        latest = registry.latest(topic)
    except UnknownSchema:
        raise MillraceError(
            f"no schema is registered for subject {topic!r} at {registry.url}: register it with"
            " `millrace schemas apply`, then load again"
        ) from None
    return Pinned(Source(connect, lookup, latest.schema), latest.schema_id)


def sink_named(spark: SparkSession, fs: Filesystem, name: str) -> Sink:
    if name == "direct":
        return DirectSink(fs, partial(in_tasks, spark, write_cut))
    from millrace_spark.spark_sink import SparkSink

    return SparkSink(spark, fs)
