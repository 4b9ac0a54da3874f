"""The verification as a Spark job, for a warehouse that only Spark's JVM can read.

The driver does all of it, file by file through a copy on its own disk: no executor has anything to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millrace.client.cluster_client import ClusterClient
from millrace_spark.files.filesystem import open_filesystem
from millrace_spark.jobs.entry import main, to_stderr
from millrace_spark.verify import TableReport, verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifySettings:
    """What `millrace verify` hands to the job."""

    warehouse: str
    topic: str | None = None
    bootstrap: str | None = None
    """Brokers whose logs the warehouse is compared with, if any."""


def verify_warehouse(spark: SparkSession, settings: VerifySettings) -> list[TableReport]:
    """Check every table of the warehouse, or those of one topic."""
    fs = open_filesystem(settings.warehouse, spark)
    progress = to_stderr("verify")
    if settings.bootstrap is None:
        return verify(fs, settings.topic, None, progress)
    with ClusterClient(settings.bootstrap) as client:
        return verify(fs, settings.topic, client, progress)


def job(spark: SparkSession, settings: VerifySettings) -> list[dict[str, Any]]:
    """What the main prints."""
    return [report.as_json() for report in verify_warehouse(spark, settings)]


if __name__ == "__main__":
    main(VerifySettings, job)
