"""What is done with a warehouse: `millrace hourly`, `expire`, `promote` and `verify`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import click

from millrace.errors import ConfigError, MillraceError
from millrace_spark.commands import early
from millrace_warehouse.commands.options import Invocation, command_of, run_job, show, table_of
from millrace_warehouse.commands.verbs import Expire, Hourly, Promote, Verify
from millrace_warehouse.commands.words import parse_hours


@command_of(Hourly)
def hourly(request: Hourly, invocation: Invocation) -> None:
    """Publish hours of TOPIC from its loads; an hour without news since its last revision stays as it is.

    With --late alone: the next revision of every published hour that has late rows, or was read again. Hours
    named beside it are published also while they are empty, so that their first rows count as late.

    With --unpublished: every hour that was loaded and never published, if the auditor calls it complete, or
    cannot judge it after --unproven-after. An incomplete one is named and left: --hour publishes it.

    Example: millrace hourly PageView --hour 2015-05-17T10 --warehouse /data/warehouse
    """
    if request.hours or request.start or request.end:
        request = replace(request, hours=parse_hours(request.hours, request.start, request.end))
    elif not (request.late or request.unpublished):
        raise ConfigError(
            "which hours? give --hour, as often as needed, or --from and --to, or --late, or --unpublished"
        )
    early.check_table(request.warehouse, request.topic)
    hours = run_job("hourly", request, invocation)
    which = "hour" if request.unpublished else "published hour"
    invocation.print({"topic": request.topic, "hours": hours}, partial(_show_hours, which))


def _show_hours(which: str, answer: Mapping[str, Any]) -> None:
    if not answer["hours"]:
        click.echo(f"{answer['topic']}: every {which} has all rows that its loads have of it")
        return
    table = table_of("hour", "rev", "rows", "verdict", "")
    for hour in answer["hours"]:
        revision = "" if hour["revision"] is None else str(hour["revision"])
        table.add_row(hour["hour"], revision, f"{hour['rows']:,}", hour["verdict"], hour["message"])
    show(table)


@command_of(Expire)
def expire(request: Expire, invocation: Invocation) -> None:
    """Delete data files of old loads of TOPIC whose rows are all in published hours, and old revisions.

    A load is kept while one of its hours is not published from its newest edition, or the hour's own files
    are damaged. Manifests and rejected records stay.

    Example: millrace expire PageView --warehouse /data/warehouse --older-than 30d
    """
    answer = run_job("expire", request, invocation)
    invocation.print(answer, partial(_show_expired, "would delete" if request.dry_run else "deleted"))


def _show_expired(deleted: str, answer: Mapping[str, Any]) -> None:
    columns = ("loads", "revisions", "plans", "files", "bytes")
    table = table_of("", *columns, "")
    table.add_row(deleted, *(f"{answer[name]:,}" for name in columns), "")
    show(table)
    for folder, reason in answer["kept"].items():
        click.echo(f"kept: {folder}: {reason}", err=True)


@command_of(Promote)
def promote(request: Promote, invocation: Invocation) -> None:
    """Give the table of TOPIC another schema: loads from now on have its columns.

    Refused unless the new schema can read what was written with the old one, and the files that are there
    can be read with its columns. Rows loaded before have null in a column they lack. A warehouse on hdfs://
    is written by a Spark job, any other one without Spark.

    Example: millrace promote PageView --warehouse /data/warehouse --registry http://127.0.0.1:8081
    --reason "country is in every event now"
    """
    if not request.history and not (request.registry and request.reason):
        raise ConfigError("give --registry and --reason: a promotion says why; or --list to see the history")
    answer = run_job("promote", request, invocation)
    invocation.print(answer, _show_history if request.history else _show_promotion)


def _show_promotion(result: Mapping[str, Any]) -> None:
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


@command_of(Verify)
def verify(request: Verify, invocation: Invocation) -> None:
    """Prove that WAREHOUSE is what was published; exit code 1 when a load, a file or a row is not.

    A warehouse on hdfs:// is read by a Spark job, any other one without Spark.

    Example: millrace verify /data/warehouse --topic PageView
    """
    tables = run_job("verify", request, invocation)
    problems = [problem for table in tables for problem in table["problems"]]
    invocation.print({"ok": not problems, "tables": tables}, _show_tables)
    if problems:
        raise MillraceError(f"{len(problems)} problem(s) in {request.warehouse}: {problems[0]}")


def _show_tables(answer: Mapping[str, Any]) -> None:
    shown = table_of("table", "folders", "expired", "files", "rows", "problems")
    for table in answer["tables"]:
        numbers = (*(table[name] for name in ("folders", "expired", "files", "rows")), len(table["problems"]))
        shown.add_row(table["table"], *(f"{number:,}" for number in numbers))
    show(shown)
    for kind in ("note", "problem"):
        for line in (line for table in answer["tables"] for line in table[f"{kind}s"]):
            click.echo(f"{kind}: {line}")
