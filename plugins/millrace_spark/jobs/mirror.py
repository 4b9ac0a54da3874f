"""The batch mirror as a Spark job: one task for each origin partition keeps the partition's order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from millrace.client.cluster_client import LATEST, ClusterClient
from millrace.records.mirror_position import Origin
from millrace.security.client import load_client, of_process
from millrace.steps import Count, to_stderr
from millrace_spark.jobs.tasks import in_tasks
from millrace_spark.mirror_batch import MirroredPartition, MirrorTask, mirror_partition, recorded_position
from millrace_warehouse.requests import Mirror

if TYPE_CHECKING:
    from pyspark import SparkContext


def mirror_topics(spark: SparkContext, request: Mirror) -> list[MirroredPartition]:
    """Copy every partition of the topics up to its present end, or as much as `max_bytes` allows."""
    tasks = tasks_of(request)
    progress = to_stderr(f"mirror {', '.join(request.topics)} from {request.origin}")
    progress(f"{len(tasks)} partitions")
    return in_tasks(spark, mirror_partition, tasks, Count(progress, "partitions"))


def tasks_of(request: Mirror) -> list[MirrorTask]:
    """Return one task per origin partition, up to the partition's present end."""
    security = of_process()
    of_origin = load_client(request.origin_client) if request.origin_client else security
    with (
        ClusterClient(request.origin_bootstrap, security=of_origin) as origin,
        ClusterClient(request.bootstrap, security=security) as target,
    ):
        tasks = [task for topic in request.topics for task in _tasks(request, topic, origin, target)]
    if request.max_bytes is None:
        return tasks
    lags = [max(0, task.end - (task.since.cursor.next_offset if task.since else 0)) for task in tasks]
    total = max(1, sum(lags))
    # Rounded up, so that each partition with something to copy advances by at least one batch.
    shares = [-(-request.max_bytes * lag // total) for lag in lags]
    return [replace(task, max_bytes=share) for task, share in zip(tasks, shares, strict=True)]


def _tasks(request: Mirror, name: str, origin: ClusterClient, target: ClusterClient) -> Iterator[MirrorTask]:
    topic = origin.topic(name)
    ends = origin.list_offsets(name, LATEST, topic.partitions)
    for partition, end in sorted(ends.items()):
        partition_of_origin = Origin(request.origin, name, topic.topic_id, partition)
        yield MirrorTask(
            origin=partition_of_origin,
            origin_bootstrap=request.origin_bootstrap,
            end=end,
            bootstrap=request.bootstrap,
            origin_security=origin.security,
            security=target.security,
            since=recorded_position(target, partition_of_origin).position,
        )
