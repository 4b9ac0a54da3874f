"""The load as a Spark job: several topics in one application, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from millrace.audit.messages import OFFLINE_AUDIT_TOPIC
from millrace.audit.publish import publish_load_counts
from millrace.errors import MillraceError, UnknownTopicOrPartition
from millrace.manifest import LoadManifest
from millrace.registry.client import SchemaRegistryClient, UnknownSchema
from millrace.wire.client import ClusterClient
from millrace_spark.filesystem import Filesystem, open_filesystem
from millrace_spark.jobs.entry import in_tasks, main, to_stderr
from millrace_spark.load import LoadResult, LoadRun, load_topic
from millrace_spark.load_writing import Pinned
from millrace_spark.origins import origin_of
from millrace_spark.promotions import PinnedId
from millrace_spark.sinks import DirectSink, Sink, Source, write_cut
from millrace_spark.source import RegistryLookup
from millrace_spark.warehouse import Progress, load_folder, sequences_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """What `millrace load` hands to the job."""

    topics: Sequence[str]
    bootstrap: str
    registry: str
    warehouse: str
    run_id: str
    """Names the plan: the same for every try of one run."""
    sink: str = "direct"
    cut_bytes: int = 64 << 20
    """Log bytes per task."""
    accept_new_topic: bool = False
    accept_gaps: bool = False


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


def load_topics(spark: SparkSession, settings: LoadSettings) -> list[LoadResult]:
    """Load every topic; MillraceError with the first failure, after all the others were tried."""
    fs = open_filesystem(settings.warehouse, spark)
    connect = partial(ClusterClient, settings.bootstrap)
    results: list[LoadResult] = []
    failures: list[str] = []
    with ClusterClient(settings.bootstrap) as client, SchemaRegistryClient(settings.registry) as registry:
        for topic in settings.topics:
            progress = to_stderr(f"load {topic}")
            run = LoadRun(
                fs=fs,
                client=client,
                pin=partial(pin, registry, connect),
                sink=_sink(spark, fs, settings.sink),
                run_id=settings.run_id,
                cut_bytes=settings.cut_bytes,
                publish_counts=partial(_publish_counts, fs, client, registry, progress),
                origin_of=partial(origin_of, client),
                progress=progress,
                accept_new_topic=settings.accept_new_topic,
                accept_gaps=settings.accept_gaps,
            )
            try:
                results.append(load_topic(run, topic))
            except MillraceError as error:
                failures.append(str(error))
    if failures:
        raise MillraceError("; ".join([*failures, *_set_aside(results)]))
    return results


def _set_aside(results: Sequence[LoadResult]) -> list[str]:
    """What a failure of another topic must not hide: the next run has nothing more to say of these."""
    return [
        f"{result.topic} is loaded, with {result.rejected} records set aside in its _rejected folder"
        for result in results
        if result.rejected
    ]


def _sink(spark: SparkSession, fs: Filesystem, name: str) -> Sink:
    if name == "direct":
        return DirectSink(fs, partial(in_tasks, spark, write_cut))
    from millrace_spark.spark_sink import SparkSink

    return SparkSink(spark, fs)


def _publish_counts(
    fs: Filesystem,
    client: ClusterClient,
    registry: SchemaRegistryClient,
    progress: Progress,
    manifest: LoadManifest,
) -> None:
    """Tell the auditor, if there is one: without its topic nobody compares, and nobody is told `complete`."""
    try:
        client.topic(OFFLINE_AUDIT_TOPIC)
    except UnknownTopicOrPartition:
        progress(f"not audited: {client.bootstrap} has no topic {OFFLINE_AUDIT_TOPIC}")
        return
    publish_load_counts(
        client.bootstrap,
        registry.url,
        topic=manifest.topic,
        load=manifest.load,
        counts=sequences_of(fs, f"{manifest.topic}/{load_folder(manifest.load)}", manifest),
    )


def job(spark: SparkSession, settings: LoadSettings) -> list[dict[str, Any]]:
    """What the main prints."""
    return [asdict(result) for result in load_topics(spark, settings)]


if __name__ == "__main__":
    main(LoadSettings, job)
