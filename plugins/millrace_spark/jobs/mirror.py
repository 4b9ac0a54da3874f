"""The batch mirror as a Spark job: one task per origin partition, because the order in it matters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from millrace.errors import MillraceError, UnknownTopicOrPartition
from millrace.storage.position import Origin
from millrace.wire.client import LATEST, ClusterClient
from millrace_spark.jobs.entry import in_tasks, main, to_stderr
from millrace_spark.mirror_batch import MirroredPartition, MirrorTask, mirror_partition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorSettings:
    """What `millrace mirror-batch` hands to the job."""

    topic: str
    origin: str
    """Name of the origin cluster, as in the mirrored partitions' positions."""
    origin_bootstrap: str
    bootstrap: str
    """Brokers of the aggregate cluster."""


def mirror_topic(spark: SparkSession, settings: MirrorSettings) -> list[MirroredPartition]:
    """Copy every partition of the topic up to where it ends now."""
    tasks = tasks_of(settings)
    progress = to_stderr(f"mirror {settings.topic} from {settings.origin}")
    progress(f"{len(tasks)} partitions")
    return in_tasks(spark, mirror_partition, tasks)


def tasks_of(settings: MirrorSettings) -> list[MirrorTask]:
    """One task per origin partition, each to the end its partition has now."""
    with ClusterClient(settings.origin_bootstrap) as client:
        try:
            topic = client.topic(settings.topic)
        except UnknownTopicOrPartition:
            raise MillraceError(
                f"topic {settings.topic!r} does not exist on {settings.origin_bootstrap}: check its name"
            ) from None
        ends = client.list_offsets(settings.topic, LATEST, topic.partitions)
    return [
        MirrorTask(
            Origin(settings.origin, settings.topic, topic.topic_id, partition),
            settings.origin_bootstrap,
            end,
            settings.bootstrap,
        )
        for partition, end in sorted(ends.items())
    ]


def job(spark: SparkSession, settings: MirrorSettings) -> Mapping[str, Any]:
    """What the main prints."""
    partitions = mirror_topic(spark, settings)
    totals = {
        name: sum(getattr(part, name) for part in partitions) for name in ("batches", "records", "dropped")
    }
    return {
        "topic": settings.topic,
        "origin": settings.origin,
        **totals,
        "partitions": [asdict(part) for part in partitions],
    }


if __name__ == "__main__":
    main(MirrorSettings, job)
