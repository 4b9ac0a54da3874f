"""The batch mirror as a Spark job: one task per origin partition, because the order in it matters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from millrace.client.cluster_client import LATEST, ClusterClient
from millrace.errors import MillraceError, UnknownTopicOrPartition
from millrace.records.mirror_position import Origin
from millrace_spark.jobs.entry import in_tasks, main, to_stderr
from millrace_spark.mirror_batch import MirroredPartition, MirrorTask, mirror_partition, recorded_position

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorSettings:
    """What `millrace mirror-batch` hands to the job."""

    topics: Sequence[str]
    origin: str
    """Name of the origin cluster, as in the mirrored partitions' positions."""
    origin_bootstrap: str
    bootstrap: str
    """Brokers of the aggregate cluster."""
    max_bytes: int | None = None
    """Copy about this much of all topics together; None copies all there is."""


def mirror_topics(spark: SparkSession, settings: MirrorSettings) -> list[MirroredPartition]:
    """Copy every partition of the topics up to where it ends now, or as much as is allowed."""
    tasks = tasks_of(settings)
    progress = to_stderr(f"mirror {', '.join(settings.topics)} from {settings.origin}")
    progress(f"{len(tasks)} partitions")
    return in_tasks(spark, mirror_partition, tasks)


def tasks_of(settings: MirrorSettings) -> list[MirrorTask]:
    """One task per origin partition, each to the end its partition has now."""
    with ClusterClient(settings.origin_bootstrap) as origin, ClusterClient(settings.bootstrap) as target:
        tasks = [task for topic in settings.topics for task in _tasks(settings, topic, origin, target)]
    if settings.max_bytes is None:
        return tasks
    lags = [max(0, task.end - (task.since.cursor.next_offset if task.since else 0)) for task in tasks]
    total = max(1, sum(lags))
    # Rounded up, so that each partition with something to copy gets on by a batch at least.
    shares = [-(-settings.max_bytes * lag // total) for lag in lags]
    return [replace(task, max_bytes=share) for task, share in zip(tasks, shares, strict=True)]


def _tasks(
    settings: MirrorSettings, name: str, origin: ClusterClient, target: ClusterClient
) -> Iterator[MirrorTask]:
    try:
        topic = origin.topic(name)
    except UnknownTopicOrPartition:
        raise MillraceError(
            f"topic {name!r} does not exist on {settings.origin_bootstrap}: check its name"
        ) from None
    ends = origin.list_offsets(name, LATEST, topic.partitions)
    for partition, end in sorted(ends.items()):
        place = Origin(settings.origin, name, topic.topic_id, partition)
        yield MirrorTask(
            origin=place, origin_bootstrap=settings.origin_bootstrap, end=end, bootstrap=settings.bootstrap,
            since=recorded_position(target, place).position,
        )  # fmt: skip


def job(spark: SparkSession, settings: MirrorSettings) -> Mapping[str, Any]:
    """What the main prints."""
    partitions = mirror_topics(spark, settings)
    names = ("batches", "records", "dropped", "bytes", "lag")
    totals = {name: sum(getattr(part, name) for part in partitions) for name in names}
    return {
        "topics": list(settings.topics),
        "origin": settings.origin,
        **totals,
        "partitions": [asdict(part) for part in partitions],
    }


if __name__ == "__main__":
    main(MirrorSettings, job)
