"""Expiry as a Spark job, for a warehouse on Hadoop storage; a folder needs no Spark for it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from millrace_spark.files.filesystem import open_filesystem
from millrace_spark.jobs.entry import main, to_stderr
from millrace_spark.table.expire import READER_GRACE_S, ExpireRun, expire_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireSettings:
    """What `millrace expire` hands to the job."""

    topic: str
    warehouse: str
    older_than_s: float
    reader_grace_s: float = READER_GRACE_S
    dry_run: bool = False


def expire(spark: SparkSession | None, settings: ExpireSettings) -> dict[str, Any]:
    """Delete what is old and not needed; what that was."""
    run = ExpireRun(
        fs=open_filesystem(settings.warehouse, spark),
        older_than_s=settings.older_than_s,
        reader_grace_s=settings.reader_grace_s,
        dry_run=settings.dry_run,
        progress=to_stderr(f"expire {settings.topic}"),
    )
    return asdict(expire_topic(run, settings.topic))


if __name__ == "__main__":
    main(ExpireSettings, expire)
