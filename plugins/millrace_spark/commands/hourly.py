"""`millrace hourly`: hours of a topic, published from its loads."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from millrace.errors import ConfigError
from millrace_spark.commands import early
from millrace_spark.commands.options import (
    JSON,
    RUN_ID,
    SINK,
    WAREHOUSE,
    SparkOptions,
    absolute_warehouse,
    manual_run_id,
    parse_age,
    parse_hours,
    show,
    spark_options,
    submit_job,
    table_of,
)


@click.command()
@click.argument("topic")
@WAREHOUSE
@click.option("--hour", "hours", multiple=True, metavar="TIME", help="An hour to publish; may be repeated.")
@click.option(
    "--from", "start", default=None, metavar="TIME", help="Publish every hour from this time on ..."
)
@click.option("--to", "end", default=None, metavar="TIME", help="... up to, and without, this one.")
@click.option("--late", is_flag=True, help="Also publish every hour published before that has news in loads.")
@click.option(
    "--unpublished",
    is_flag=True,
    help="Also publish hours that loads have rows of and nobody has published, once they are proven.",
)
@click.option(
    "--unproven-after",
    default="1d",
    show_default=True,
    metavar="AGE",
    help="With --unpublished: publish what the auditor cannot judge when it has waited that long.",
)
@click.option(
    "--auditor",
    envvar="MILLRACE_AUDITOR",
    default="",
    metavar="URL",
    help="Auditor whose verdict is written into each hour.",
)
@RUN_ID
@SINK
@spark_options
@JSON
def hourly(
    topic: str,
    warehouse: str,
    hours: Sequence[str],
    start: str | None,
    end: str | None,
    late: bool,
    unpublished: bool,
    unproven_after: str,
    auditor: str,
    run_id: str,
    sink: str,
    spark: SparkOptions,
    as_json: bool,
) -> None:
    """Publish hours of TOPIC from its loads; an hour without news since its last revision stays as it is.

    With --late alone: the next revision of every published hour that has late rows, or was read again. Hours
    named beside it are published also while they are empty, so that their first rows count as late.

    With --unpublished: every hour that was loaded and never published, if the auditor calls it complete, or
    cannot judge it after --unproven-after. An incomplete one is named and left: --hour publishes it.

    Example: millrace hourly PageView --hour 2015-05-17T10 --warehouse /data/warehouse
    """
    if not (hours or start or end or late or unpublished):
        raise ConfigError(
            "which hours? give --hour, as often as needed, or --from and --to, or --late, or --unpublished"
        )
    root = absolute_warehouse(warehouse)
    settings = {
        "topic": topic,
        "hours": parse_hours(hours, start, end) if hours or start or end else [],
        "late": late,
        "unpublished": unpublished,
        "unproven_after_s": parse_age(unproven_after, "--unproven-after"),
        "warehouse": root,
        "run_id": run_id or manual_run_id(),
        "auditor": auditor,
        "sink": sink,
    }
    early.check_table(root, topic)
    answer = submit_job("hourly", settings, spark, fast_start=sink == "direct")
    if as_json:
        click.echo(json.dumps(answer))
        return
    if not answer["hours"]:
        which = "hour" if unpublished else "published hour"
        click.echo(f"{topic}: every {which} has all rows that its loads have of it")
        return
    table = table_of("hour", "rev", "rows", "verdict", "")
    for each in answer["hours"]:
        revision = "" if each["revision"] is None else str(each["revision"])
        table.add_row(each["hour"], revision, f"{each['rows']:,}", each["verdict"], each["message"])
    show(table)
