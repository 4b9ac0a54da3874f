"""`millrace verify`: the proof that a warehouse is what was published."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from millrace.config import parse_addresses
from millrace.errors import MillraceError
from millrace_spark.commands.options import (
    JSON,
    SparkOptions,
    absolute_warehouse,
    show,
    spark_options,
    steps,
    submit_job,
    table_of,
)

if TYPE_CHECKING:
    from millrace_spark.verify import TableReport


@click.command()
@click.argument("warehouse")
@click.option("--topic", default=None, help="Check this topic only.")
@click.option("--bootstrap", default=None, metavar="HOST:PORT", help="Also compare with this cluster's logs.")
@spark_options
@JSON
def verify(
    warehouse: str, topic: str | None, bootstrap: str | None, spark: SparkOptions, as_json: bool
) -> None:
    """Prove that WAREHOUSE is what was published; exit code 1 when a load, a file or a row is not.

    A warehouse on hdfs:// is read by a Spark job, any other one without Spark.

    Example: millrace verify /data/warehouse --topic PageView
    """
    if bootstrap is not None:
        parse_addresses(bootstrap, "--bootstrap")
    root = absolute_warehouse(warehouse)
    reports = _here(root, topic, bootstrap) if root.startswith("/") else _job(root, topic, bootstrap, spark)
    problems = [problem for report in reports for problem in report.problems]
    if as_json:
        click.echo(json.dumps({"ok": not problems, "tables": [report.as_json() for report in reports]}))
    else:
        table = table_of("table", "folders", "expired", "files", "rows", "problems")
        for report in reports:
            shown = (report.folders, report.expired, report.files, report.rows, len(report.problems))
            table.add_row(report.table, *(f"{each:,}" for each in shown))
        show(table)
        for note in (note for report in reports for note in report.notes):
            click.echo(f"note: {note}")
        for problem in problems:
            click.echo(f"problem: {problem}")
    if problems:
        raise MillraceError(f"{len(problems)} problem(s) in {warehouse}: {problems[0]}")


def _here(warehouse: str, topic: str | None, bootstrap: str | None) -> list[TableReport]:
    """What this process finds in a folder."""
    from millrace.client.cluster_client import ClusterClient
    from millrace_spark.files.filesystem import open_filesystem
    from millrace_spark.verify import verify as verify_warehouse
    from millrace_spark.warehouse.layout import no_progress

    fs = open_filesystem(warehouse)
    with steps("verify", no_progress) as on_folder:
        if bootstrap is None:
            return verify_warehouse(fs, topic, None, on_folder)
        with ClusterClient(bootstrap) as client:
            return verify_warehouse(fs, topic, client, on_folder)


def _job(warehouse: str, topic: str | None, bootstrap: str | None, spark: SparkOptions) -> list[TableReport]:
    """What a Spark job finds in HDFS."""
    from millrace_spark.verify import TableReport

    given = {"warehouse": warehouse, "topic": topic, "bootstrap": bootstrap}
    settings = {key: value for key, value in given.items() if value is not None}
    return [TableReport(**each) for each in submit_job("verify", settings, spark, fast_start=True)]
