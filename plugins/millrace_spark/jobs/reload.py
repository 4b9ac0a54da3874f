"""Reading loads again as a Spark job: the loads of some hours, or those that are named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from millrace.client.cluster_client import ClusterClient
from millrace.errors import MillraceError, UnknownTopicOrPartition
from millrace_audit.reports.counts import SequenceCounts
from millrace_audit.reports.publish import publish_edition_counts
from millrace_audit.reports.topics import OFFLINE_AUDIT_TOPIC
from millrace_registry.client import SchemaRegistryClient
from millrace_spark.files.filesystem import open_filesystem
from millrace_spark.jobs.entry import main, to_stderr
from millrace_spark.jobs.load import pin, sink_named
from millrace_spark.load.origins import origin_of
from millrace_spark.reload import ReloadResult, ReloadRun, loads_of, reload_topic
from millrace_spark.warehouse.layout import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadSettings:
    """What `millrace reload` hands to the job: hours or loads."""

    topic: str
    bootstrap: str
    registry: str = field(repr=False)
    warehouse: str
    run_id: str
    """A repeated run of one name does not read again what it has read already."""
    reason: str
    hours: Sequence[str] = ()
    """`2015-05-17T10`, UTC."""
    loads: Sequence[int] = ()
    sink: str = "direct"
    cut_bytes: int = 64 << 20
    """Log bytes per task."""


def reload_loads(spark: SparkSession, settings: ReloadSettings) -> list[ReloadResult]:
    """Read the loads again; MillraceError when none is concerned."""
    fs = open_filesystem(settings.warehouse, spark)
    connect = partial(ClusterClient, settings.bootstrap)
    loads = settings.loads or loads_of(fs, settings.topic, settings.hours)
    if not loads:
        raise MillraceError(f"no load of {settings.topic} has rows or rejected records of these hours")
    with ClusterClient(settings.bootstrap) as client, SchemaRegistryClient(settings.registry) as registry:
        progress = to_stderr(f"reload {settings.topic}")
        run = ReloadRun(
            fs=fs,
            client=client,
            pin=partial(pin, registry, connect),
            sink=sink_named(spark, fs, settings.sink),
            run_id=settings.run_id,
            cut_bytes=settings.cut_bytes,
            publish_counts=partial(_publish_counts, client, registry, progress),
            origin_of=partial(origin_of, client),
            progress=progress,
            reason=settings.reason,
        )
        return reload_topic(run, settings.topic, loads)


def _publish_counts(
    client: ClusterClient,
    registry: SchemaRegistryClient,
    progress: Progress,
    topic: str,
    load: int,
    editions: Sequence[SequenceCounts],
) -> None:
    """Tell the auditor, if there is one."""
    try:
        client.topic(OFFLINE_AUDIT_TOPIC)
    except UnknownTopicOrPartition:
        progress(f"not audited: {client.bootstrap} has no topic {OFFLINE_AUDIT_TOPIC}")
        return
    publish_edition_counts(client.bootstrap, registry.address, topic=topic, load=load, editions=editions)


def job(spark: SparkSession, settings: ReloadSettings) -> dict[str, Any]:
    """What the main prints."""
    loads = [asdict(result) for result in reload_loads(spark, settings)]
    return {"topic": settings.topic, "loads": loads}


if __name__ == "__main__":
    main(ReloadSettings, job)
