"""`millrace promote`: another schema for a table, recorded."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from millrace.errors import ConfigError
from millrace_spark.commands.options import (
    JSON,
    WAREHOUSE,
    SparkOptions,
    absolute_warehouse,
    show,
    spark_options,
    submit_job,
    table_of,
)


@click.command()
@click.argument("topic")
@WAREHOUSE
@click.option(
    "--registry", envvar="MILLRACE_REGISTRY", default="", metavar="URL", help="The schema registry."
)
@click.option(
    "--schema-id", type=int, default=None, help="A registered schema of the topic; the newest without it."
)
@click.option("--reason", default="", metavar="TEXT", help="Why, for those who read the history.")
@click.option("--list", "list_", is_flag=True, help="Show which schemas the table has had, change nothing.")
@spark_options
@JSON
def promote(
    topic: str,
    warehouse: str,
    registry: str,
    schema_id: int | None,
    reason: str,
    list_: bool,
    spark: SparkOptions,
    as_json: bool,
) -> None:
    """Give the table of TOPIC another schema: loads from now on have its columns.

    Refused unless the new schema can read what was written with the old one, and the files that are there
    can be read with its columns. Rows loaded before have null in a column they lack. A warehouse on hdfs://
    is written by a Spark job, any other one without Spark.

    Example: millrace promote PageView --warehouse /data/warehouse --registry http://127.0.0.1:8081
    --reason "country is in every event now"
    """
    root = absolute_warehouse(warehouse)
    if list_:
        entries = _history(root, topic, spark)
        if as_json:
            click.echo(json.dumps(entries))
        else:
            _show_history(entries)
        return
    if not registry or not reason:
        raise ConfigError("give --registry and --reason: a promotion says why; or --list to see the history")
    result = _promote(root, topic, registry, schema_id, reason, spark)
    if as_json:
        click.echo(json.dumps(result))
    elif result["promotion"] is None:
        click.echo(f"{topic}: schema {result['schema_id']} is the table's already")
    else:
        before, number = result["promotion"]["previous_schema_id"], result["promotion"]["number"]
        click.echo(
            f"{topic}: loads from now on have schema {result['schema_id']}, before it was {before}"
            f" (promotion {number})"
        )
        for change in result["changes"]:
            click.echo(f"  {change}")


def _promote(
    root: str, topic: str, registry: str, schema_id: int | None, reason: str, spark: SparkOptions
) -> Mapping[str, Any]:
    if not root.startswith("/"):
        settings = {"schema_id": schema_id, "reason": reason, "registry": registry}
        answer: Mapping[str, Any] = submit_job(
            "promote", {"topic": topic, "warehouse": root, **settings}, spark, fast_start=True
        )
        return answer
    from millrace_registry.client import SchemaRegistryClient
    from millrace_spark.files.filesystem import open_filesystem
    from millrace_spark.warehouse.promotions import promote_registered

    with SchemaRegistryClient(registry) as client:
        result = promote_registered(open_filesystem(root), client, topic, schema_id, reason)
    return dataclasses.asdict(result)


def _history(root: str, topic: str, spark: SparkOptions) -> Sequence[Mapping[str, Any]]:
    if not root.startswith("/"):
        answer: Sequence[Mapping[str, Any]] = submit_job(
            "promote", {"topic": topic, "warehouse": root}, spark, fast_start=True
        )
        return answer
    from millrace_spark.files.filesystem import open_filesystem
    from millrace_spark.warehouse.promotions import history

    return [dataclasses.asdict(entry) for entry in history(open_filesystem(root), topic)]


def _show_history(entries: Sequence[Mapping[str, Any]]) -> None:
    table = table_of("promotion", "schema", "from load", "since", "by", "reason")
    for entry in entries:
        columns = ("number", "schema_id", "first_load", "created", "by", "reason")
        table.add_row(*("" if entry[name] is None else str(entry[name]) for name in columns))
    show(table)
