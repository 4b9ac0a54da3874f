"""A promotion, or a table's history of them, as a Spark job: for warehouses that only Spark can reach."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from millrace_registry.client import SchemaRegistryClient
from millrace_spark.files.filesystem import open_filesystem
from millrace_spark.jobs.entry import main, to_stderr
from millrace_spark.warehouse.promotions import history, promote_registered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class PromoteSettings:
    """What `millrace promote` hands to the job."""

    topic: str
    warehouse: str
    registry: str = field(default="", repr=False)
    """Empty to only list the history."""
    schema_id: int | None = None
    reason: str = ""


def job(spark: SparkSession, settings: PromoteSettings) -> Any:
    """What the main prints: the result, or the history's entries."""
    fs = open_filesystem(settings.warehouse, spark)
    to_stderr(f"promote {settings.topic}")("opened")
    if not settings.registry:
        return [asdict(entry) for entry in history(fs, settings.topic)]
    with SchemaRegistryClient(settings.registry) as registry:
        return asdict(promote_registered(fs, registry, settings.topic, settings.schema_id, settings.reason))


if __name__ == "__main__":
    main(PromoteSettings, job)
