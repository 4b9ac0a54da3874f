"""`millrace promote`: another schema for a table, recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from millrace.errors import ConfigError
from millrace_spark.commands.options import Invocation, command_of, run_job, show, table_of
from millrace_spark.jobs.verbs import Promote


@command_of(Promote)
def promote(request: Promote, invocation: Invocation) -> None:
    """Give the table of TOPIC another schema: loads from now on have its columns.

    Refused unless the new schema can read what was written with the old one, and the files that are there
    can be read with its columns. Rows loaded before have null in a column they lack. A warehouse on hdfs://
    is written by a Spark job, any other one without Spark.

    Example: millrace promote PageView --warehouse /data/warehouse --registry http://127.0.0.1:8081
    --reason "country is in every event now"
    """
    from millrace_spark.jobs.promote import promote as job

    if not request.history and not (request.registry and request.reason):
        raise ConfigError("give --registry and --reason: a promotion says why; or --list to see the history")
    answer = run_job("promote", request, invocation, job)
    invocation.print(answer, _show_history if request.history else _show)


def _show(result: Mapping[str, Any]) -> None:
    topic, schema_id, promotion = result["topic"], result["schema_id"], result["promotion"]
    if promotion is None:
        click.echo(f"{topic}: schema {schema_id} is the table's already")
        return
    click.echo(
        f"{topic}: loads from now on have schema {schema_id}, before it was"
        f" {promotion['previous_schema_id']} (promotion {promotion['number']})"
    )
    for change in result["changes"]:
        click.echo(f"  {change}")


def _show_history(entries: Sequence[Mapping[str, Any]]) -> None:
    table = table_of("promotion", "schema", "from load", "since", "by", "reason")
    for entry in entries:
        columns = ("number", "schema_id", "first_load", "created", "by", "reason")
        table.add_row(*("" if entry[name] is None else str(entry[name]) for name in columns))
    show(table)
