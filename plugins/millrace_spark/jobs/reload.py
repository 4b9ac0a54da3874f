"""Reading loads again as a Spark job: the loads of some hours, or those that are named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from millrace.client.cluster_client import ClusterClient
from millrace.errors import MillraceError
from millrace_audit.reports.counts import SequenceCounts
from millrace_audit.reports.publish import publish_edition_counts
from millrace_registry.client import SchemaRegistryClient
from millrace_spark.files.filesystem import open_filesystem
from millrace_spark.jobs.entry import main
from millrace_spark.jobs.load import if_audited, pin, sink_named
from millrace_spark.jobs.steps import to_stderr
from millrace_spark.jobs.verbs import Reload
from millrace_spark.reload import ReloadResult, ReloadRun, loads_of, reload_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def reload_loads(spark: SparkSession, request: Reload) -> list[ReloadResult]:
    """Read the loads again; MillraceError when none is concerned."""
    fs = open_filesystem(request.warehouse, spark)
    connect = partial(ClusterClient, request.bootstrap)
    loads = request.loads or loads_of(fs, request.topic, request.hours)
    if not loads:
        raise MillraceError(f"no load of {request.topic} has rows or rejected records of these hours")
    with ClusterClient(request.bootstrap) as client, SchemaRegistryClient(request.registry) as registry:
        progress = to_stderr(f"reload {request.topic}")

        def publish_counts(topic: str, load: int, editions: Sequence[SequenceCounts]) -> None:
            tell = partial(publish_edition_counts, client.bootstrap, registry.address)
            if_audited(client, progress, partial(tell, topic=topic, load=load, editions=editions))

        run = ReloadRun(
            fs=fs,
            client=client,
            pin=partial(pin, registry, connect),
            sink=sink_named(spark, fs, request.sink),
            run_id=request.run_id,
            cut_bytes=request.cut_bytes,
            publish_counts=publish_counts,
            progress=progress,
            reason=request.reason,
        )
        return reload_topic(run, request.topic, loads)


def job(spark: SparkSession, request: Reload) -> dict[str, Any]:
    loads = [asdict(result) for result in reload_loads(spark, request)]
    return {"topic": request.topic, "loads": loads}


if __name__ == "__main__":
    main(Reload, job)
