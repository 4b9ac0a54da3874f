"""The load as a Spark job: many topics in one application, a few of them at a time."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from millrace.client.cluster_client import ClusterClient
from millrace.config import OFFLINE_AUDIT_TOPIC
from millrace.errors import MillraceError, UnknownTopicOrPartition
from millrace_audit.reports.publish import publish_edition_counts
from millrace_registry.client import SchemaRegistryClient, UnknownSchema
from millrace_spark.files.filesystem import Filesystem, open_filesystem
from millrace_spark.jobs.entry import in_tasks, jvm_has_ended, main, said
from millrace_spark.jobs.steps import to_stderr
from millrace_spark.jobs.verbs import Load
from millrace_spark.load.direct import DirectSink, Sink, Source, write_cut
from millrace_spark.load.load import LoadResult, LoadRun, load_topic
from millrace_spark.load.writing import Pinned
from millrace_spark.parquet.rejections import DEFAULT_LIMIT, RejectedLimit
from millrace_spark.source.data_source import RegistryLookup
from millrace_spark.table.revisions import without_revision
from millrace_spark.table.sources import UNPROVEN_AFTER_S, unpublished_note
from millrace_spark.topic.bounds import Bounds
from millrace_spark.warehouse.layout import load_folder, sequences_of
from millrace_spark.warehouse.manifest import LoadManifest
from millrace_spark.warehouse.promotions import PinnedId
from millrace_spark.warehouse.staging import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


TOPICS_AT_A_TIME = 8
"""Loaded by as many threads of the driver, which mostly wait for tasks; the cores are shared fairly."""


def pin(
    registry: SchemaRegistryClient, connect: partial[ClusterClient], topic: str, pinned: PinnedId | None
) -> Pinned:
    """The topic's source with its pinned schema; without one, the newest registered under its name."""
    lookup = RegistryLookup(registry)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFailure:
    """Why a topic could not be loaded."""

    topic: str
    error: str


def load_all(spark: SparkSession, request: Load) -> tuple[list[LoadResult], list[TopicFailure]]:
    """Load every topic, a few at a time; what was loaded and what failed, each in the order of the topics."""
    fs = open_filesystem(request.warehouse, spark)
    with ThreadPoolExecutor(TOPICS_AT_A_TIME, "load") as pool:
        done = list(pool.map(partial(_load_one, spark, fs, request), request.topics))
    loads = [each for each in done if isinstance(each, LoadResult)]
    return loads, [each for each in done if isinstance(each, TopicFailure)]


def load_topics(spark: SparkSession, request: Load) -> list[LoadResult]:
    """Load every topic; MillraceError with every failure, after all the others were tried."""
    loads, failures = load_all(spark, request)
    if failures:
        raise MillraceError("; ".join([*(failure.error for failure in failures), *_set_aside(loads)]))
    return loads


def _load_one(spark: SparkSession, fs: Filesystem, request: Load, topic: str) -> LoadResult | TopicFailure:
    """Load one topic in a thread of its own, with its own connections and its own share of the cores."""
    try:
        if len(request.topics) > 1:
            spark.sparkContext.setLocalProperty("spark.scheduler.pool", topic)
        with ClusterClient(request.bootstrap) as client, SchemaRegistryClient(request.registry) as registry:
            result = load_topic(_run_of(spark, fs, request, client, registry, topic), topic)
        return dataclasses.replace(result, notes=[*result.notes, *_unpublished(fs, result)])
    except MillraceError as error:
        return TopicFailure(topic=topic, error=str(error))
    except Exception as error:
        if jvm_has_ended():
            raise  # every topic fails with it, and the job says so once
        traceback.print_exc()
        return TopicFailure(topic=topic, error=f"{topic}: {said(error)}")


def _unpublished(fs: Filesystem, result: LoadResult) -> list[str]:
    """A note of the hours just loaded that ended so long ago that no schedule will publish them."""
    ended = datetime.now(UTC) - timedelta(seconds=UNPROVEN_AFTER_S)
    # As text: an hour is written so that it sorts as its time does.
    old = [hour for hour in result.hours if hour < ended.isoformat()[: len("2015-05-17T10")]]
    rows = {hour: result.hours[hour] for hour in without_revision(fs, result.topic, old)}
    return [unpublished_note(result.topic, rows)] if rows else []


def _run_of(
    spark: SparkSession,
    fs: Filesystem,
    request: Load,
    client: ClusterClient,
    registry: SchemaRegistryClient,
    topic: str,
) -> LoadRun:
    progress = to_stderr(f"load {topic}")
    limit = request.max_rejected

    def publish_counts(manifest: LoadManifest) -> None:
        counts = sequences_of(fs, f"{manifest.topic}/{load_folder(manifest.load)}", manifest)
        publish_edition_counts(
            client.bootstrap, registry.address, topic=manifest.topic, load=manifest.load, editions=[counts]
        )

    return LoadRun(
        fs=fs,
        client=client,
        pin=partial(pin, registry, partial(ClusterClient, request.bootstrap)),
        sink=sink_named(spark, fs, request.sink),
        run_id=request.run_id,
        cut_bytes=request.cut_bytes,
        publish_counts=lambda manifest: if_audited(client, progress, partial(publish_counts, manifest)),
        progress=progress,
        bounds=Bounds(max_bytes=request.max_bytes, until_ms=request.until_ms),
        max_rejected=RejectedLimit.parse(limit) if limit else DEFAULT_LIMIT,
        accept_new_topic=request.accept_new_topic,
        accept_gaps=request.accept_gaps,
    )


def _set_aside(results: Sequence[LoadResult]) -> list[str]:
    """What a failure of another topic must not hide: the next run has nothing more to say of these."""
    return [
        f"{result.topic} is loaded, with {result.rejected} records set aside in its _rejected folder"
        for result in results
        if result.rejected
    ]


def sink_named(spark: SparkSession, fs: Filesystem, name: str) -> Sink:
    if name == "direct":
        return DirectSink(fs, partial(in_tasks, spark, write_cut))
    from millrace_spark.spark_sink import SparkSink

    return SparkSink(spark, fs)


def if_audited(client: ClusterClient, progress: Progress, publish_counts: Callable[[], None]) -> None:
    """Tell the auditor, if there is one: without its topic nobody compares, and nobody is told `complete`."""
    try:
        client.topic(OFFLINE_AUDIT_TOPIC)
    except UnknownTopicOrPartition:
        progress(f"not audited: {client.bootstrap} has no topic {OFFLINE_AUDIT_TOPIC}")
    else:
        publish_counts()


def job(spark: SparkSession, request: Load) -> list[dict[str, Any]]:
    """The loads, then for each topic that failed its name and the `error`, as JSON values."""
    loads, failures = load_all(spark, request)
    return [*map(asdict, loads), *map(asdict, failures)]


if __name__ == "__main__":
    main(Load, job)
