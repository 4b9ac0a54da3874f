"""Expiry as a job: under Spark for a warehouse on Hadoop storage, without it for a folder."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from millrace_spark.files.filesystem import open_filesystem
from millrace_spark.jobs.steps import to_stderr
from millrace_spark.jobs.verbs import Expire
from millrace_spark.table.expire import ExpireRun, expire_topic
from millrace_spark.warehouse.staging import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def expire(spark: SparkSession | None, request: Expire, progress: Progress | None = None) -> dict[str, Any]:
    """Delete what is old and not needed; what that was."""
    run = ExpireRun(
        fs=open_filesystem(request.warehouse, spark),
        older_than_s=request.older_than_s,
        reader_grace_s=request.reader_grace_s,
        dry_run=request.dry_run,
        progress=progress or to_stderr(f"expire {request.topic}"),
    )
    return asdict(expire_topic(run, request.topic))


if __name__ == "__main__":
    from millrace_spark.jobs.entry import main

    main(Expire, expire)
