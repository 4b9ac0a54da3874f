"""The verification as a job: under Spark for Hadoop storage, without it for a folder.

The driver does all of it, file by file, from Hadoop storage through a copy on its own disk: no executor has
anything to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millrace.client.cluster_client import ClusterClient
from millrace_spark.files.filesystem import open_filesystem
from millrace_spark.jobs.steps import to_stderr
from millrace_spark.jobs.verbs import Verify
from millrace_spark.verify import TableReport, verify
from millrace_spark.warehouse.staging import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def verify_warehouse(
    spark: SparkSession | None, request: Verify, progress: Progress | None = None
) -> list[TableReport]:
    """Check every table of the warehouse, or those of one topic."""
    fs = open_filesystem(request.warehouse, spark)
    progress = progress or to_stderr("verify")
    if request.bootstrap is None:
        return verify(fs, request.topic, None, progress)
    with ClusterClient(request.bootstrap) as client:
        return verify(fs, request.topic, client, progress)


def job(
    spark: SparkSession | None, request: Verify, progress: Progress | None = None
) -> list[dict[str, Any]]:
    """The reports as JSON values."""
    return [report.as_json() for report in verify_warehouse(spark, request, progress)]


if __name__ == "__main__":
    from millrace_spark.jobs.entry import main

    main(Verify, job)
