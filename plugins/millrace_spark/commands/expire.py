"""`millrace expire`: data files that nobody needs any more."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import click

from millrace_spark.commands.options import (
    JSON,
    WAREHOUSE,
    SparkOptions,
    absolute_warehouse,
    parse_age,
    show,
    spark_options,
    steps,
    submit_job,
    table_of,
)


@click.command()
@click.argument("topic")
@WAREHOUSE
@click.option("--older-than", required=True, metavar="AGE", help="Leave what is younger, like 30d or 12h.")
@click.option(
    "--reader-grace",
    default="6h",
    show_default=True,
    metavar="AGE",
    help="Keep a revision at least that long after the next one: for queries that run.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be deleted, and delete nothing.")
@spark_options
@JSON
def expire(
    topic: str,
    warehouse: str,
    older_than: str,
    reader_grace: str,
    dry_run: bool,
    spark: SparkOptions,
    as_json: bool,
) -> None:
    """Delete data files of old loads of TOPIC whose rows are all in published hours, and old revisions.

    A load is kept while one of its hours is not published from its newest edition, or the hour's own files
    are damaged. Manifests and rejected records stay.

    Example: millrace expire PageView --warehouse /data/warehouse --older-than 30d
    """
    settings = {
        "topic": topic,
        "warehouse": absolute_warehouse(warehouse),
        "older_than_s": parse_age(older_than, "--older-than"),
        "reader_grace_s": parse_age(reader_grace, "--reader-grace"),
        "dry_run": dry_run,
    }
    if str(settings["warehouse"]).startswith("/"):
        answer = _expire_here(settings)
    else:
        answer = submit_job("expire", settings, spark, fast_start=True)
    if as_json:
        click.echo(json.dumps(answer))
        return
    table = table_of("", "loads", "revisions", "plans", "files", "bytes", "")
    numbers = (answer[name] for name in ("loads", "revisions", "plans", "files", "bytes"))
    table.add_row("would delete" if dry_run else "deleted", *(f"{number:,}" for number in numbers), "")
    show(table)
    for folder, reason in answer["kept"].items():
        click.echo(f"kept: {folder}: {reason}", err=True)


def _expire_here(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Without Spark: the warehouse is a folder."""
    from millrace_spark.files.filesystem import open_filesystem
    from millrace_spark.table.expire import ExpireRun, expire_topic
    from millrace_spark.warehouse.layout import no_progress

    with steps("expire", no_progress) as on_step:
        run = ExpireRun(
            fs=open_filesystem(settings["warehouse"]),
            older_than_s=settings["older_than_s"],
            reader_grace_s=settings["reader_grace_s"],
            dry_run=settings["dry_run"],
            progress=on_step,
        )
        return asdict(expire_topic(run, settings["topic"]))
