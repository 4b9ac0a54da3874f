"""`millrace hourly`: hours of a topic, published from its loads."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from millrace.errors import ConfigError
from millrace_spark.commands.options import (
    JSON,
    RUN_ID,
    SINK,
    WAREHOUSE,
    SparkOptions,
    absolute_warehouse,
    manual_run_id,
    parse_time,
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
@click.option("--auditor", default="", metavar="URL", help="Auditor whose verdict is written into each hour.")
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
    auditor: str,
    run_id: str,
    sink: str,
    spark: SparkOptions,
    as_json: bool,
) -> None:
    """Publish hours of TOPIC from its loads; an hour without news since its last revision stays as it is.

    Example: millrace hourly PageView --hour 2015-05-17T10 --warehouse /data/warehouse
    """
    settings = {
        "topic": topic,
        "hours": _hours(hours, start, end),
        "warehouse": absolute_warehouse(warehouse),
        "run_id": run_id or manual_run_id(),
        "auditor": auditor,
        "sink": sink,
    }
    answer = submit_job("hourly", settings, spark, fast_start=sink == "direct")
    if as_json:
        click.echo(json.dumps(answer))
        return
    table = table_of("hour", "rev", "rows", "verdict", "")
    for each in answer["hours"]:
        revision = "" if each["revision"] is None else str(each["revision"])
        table.add_row(each["hour"], revision, f"{each['rows']:,}", each["verdict"], each["message"])
    show(table)


def _hours(hours: Sequence[str], start: str | None, end: str | None) -> list[str]:
    from millrace_spark.hourly import hours_between

    if (hours and (start or end)) or (not hours and not (start and end)):
        raise ConfigError("give either --hour, as often as needed, or --from and --to")
    if start and end:
        return hours_between(parse_time(start, "--from"), parse_time(end, "--to"))
    return [parse_time(hour, "--hour").strftime("%Y-%m-%dT%H") for hour in hours]
