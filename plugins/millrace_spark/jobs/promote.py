"""A promotion, or a table's history of them: under Spark for Hadoop storage, without it for a folder."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from millrace_registry.client import SchemaRegistryClient
from millrace_spark.files.filesystem import open_filesystem
from millrace_spark.jobs.steps import to_stderr
from millrace_spark.jobs.verbs import Promote
from millrace_spark.warehouse.promotions import history, promote_registered
from millrace_spark.warehouse.staging import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def promote(spark: SparkSession | None, request: Promote, progress: Progress | None = None) -> Any:
    """Record the promotion; what it did, or the history's entries where only these are asked for."""
    fs = open_filesystem(request.warehouse, spark)
    (progress or to_stderr(f"promote {request.topic}"))("opened")
    if request.history:
        return [asdict(entry) for entry in history(fs, request.topic)]
    with SchemaRegistryClient(request.registry) as registry:
        return asdict(promote_registered(fs, registry, request.topic, request.schema_id, request.reason))


if __name__ == "__main__":
    from millrace_spark.jobs.entry import main

    main(Promote, promote)
