"""Expiry, promotion and verification: under Spark for Hadoop storage, without it for a folder.

The driver does all of it, file by file, from Hadoop storage through a copy on its own disk: no executor has
anything to do. `progress` is called with each step; without it steps are written to standard error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from millrace_warehouse.history.staging import Progress
from millrace_warehouse.table.expire import ExpireResult, ExpireRun, expire_topic

from millrace.client.cluster_client import ClusterClient
from millrace_registry.client import SchemaRegistryClient
from millrace_warehouse.commands.steps import to_stderr
from millrace_warehouse.commands.verbs import Expire, Promote, Verify
from millrace_warehouse.history.promotions import HistoryEntry, PromoteResult, history, promote_registered
from millrace_warehouse.storage.filesystem import open_filesystem
from millrace_warehouse.verify import verify
from millrace_warehouse.verify.report import TableReport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def expire(spark: SparkSession | None, request: Expire, progress: Progress | None = None) -> ExpireResult:
    """Delete what is old and not needed; what that was."""
    run = ExpireRun(
        fs=open_filesystem(request.warehouse, spark),
        older_than_s=request.older_than_s,
        reader_grace_s=request.reader_grace_s,
        dry_run=request.dry_run,
        progress=progress or to_stderr(f"expire {request.topic}"),
    )
    return expire_topic(run, request.topic)


def promote(
    spark: SparkSession | None, request: Promote, progress: Progress | None = None
) -> PromoteResult | Sequence[HistoryEntry]:
    """Record the promotion; what it did, or the history's entries where only these are wanted."""
    fs = open_filesystem(request.warehouse, spark)
    (progress or to_stderr(f"promote {request.topic}"))("opened")
    if request.history:
        return history(fs, request.topic)
    with SchemaRegistryClient(request.registry) as registry:
        return promote_registered(fs, registry, request.topic, request.schema_id, request.reason)


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
