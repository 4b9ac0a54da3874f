"""The batch mirror as a Spark job: one task per origin partition, because the order in it matters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from millrace.client.cluster_client import LATEST, ClusterClient
from millrace.errors import MillraceError, UnknownTopicOrPartition
from millrace.records.mirror_position import Origin
from millrace_spark.jobs.entry import in_tasks, main
from millrace_spark.jobs.steps import to_stderr
from millrace_spark.jobs.verbs import Mirror
from millrace_spark.mirror_batch import MirroredPartition, MirrorTask, mirror_partition, recorded_position

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def mirror_topics(spark: SparkSession, given: Mirror) -> list[MirroredPartition]:
    """Copy every partition of the topics up to where it ends now, or as much as is allowed."""
    tasks = tasks_of(given)
    progress = to_stderr(f"mirror {', '.join(given.topics)} from {given.origin}")
    progress(f"{len(tasks)} partitions")
    return in_tasks(spark, mirror_partition, tasks)


def tasks_of(given: Mirror) -> list[MirrorTask]:
    """One task per origin partition, each to the end its partition has now."""
    with ClusterClient(given.origin_bootstrap) as origin, ClusterClient(given.bootstrap) as target:
        tasks = [task for topic in given.topics for task in _tasks(given, topic, origin, target)]
    if given.max_bytes is None:
        return tasks
    lags = [max(0, task.end - (task.since.cursor.next_offset if task.since else 0)) for task in tasks]
    total = max(1, sum(lags))
    # Rounded up, so that each partition with something to copy gets on by a batch at least.
    shares = [-(-given.max_bytes * lag // total) for lag in lags]
    return [replace(task, max_bytes=share) for task, share in zip(tasks, shares, strict=True)]


def _tasks(given: Mirror, name: str, origin: ClusterClient, target: ClusterClient) -> Iterator[MirrorTask]:
    try:
        topic = origin.topic(name)
    except UnknownTopicOrPartition:
        raise MillraceError(
            f"topic {name!r} does not exist on {given.origin_bootstrap}: check its name"
        ) from None
    ends = origin.list_offsets(name, LATEST, topic.partitions)
    for partition, end in sorted(ends.items()):
        place = Origin(given.origin, name, topic.topic_id, partition)
        yield MirrorTask(
            origin=place,
            origin_bootstrap=given.origin_bootstrap,
            end=end,
            bootstrap=given.bootstrap,
            since=recorded_position(target, place).position,
        )


def job(spark: SparkSession, given: Mirror) -> Mapping[str, Any]:
    """What the main prints."""
    partitions = mirror_topics(spark, given)
    names = ("batches", "records", "dropped", "bytes", "lag")
    totals = {name: sum(getattr(part, name) for part in partitions) for name in names}
    return {
        "topics": list(given.topics),
        "origin": given.origin,
        **totals,
        "partitions": [asdict(part) for part in partitions],
    }


if __name__ == "__main__":
    main(Mirror, job)
