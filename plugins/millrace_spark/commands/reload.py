"""`millrace reload`: loads of past hours, read again from the log."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from millrace.config import parse_addresses
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
    parse_hours,
    show,
    spark_options,
    submit_job,
    table_of,
)


@click.command()
@click.argument("topic")
@WAREHOUSE
@click.option("--bootstrap", required=True, metavar="HOST:PORT", help="Brokers of the cluster to read from.")
@click.option(
    "--registry", envvar="MILLRACE_REGISTRY", required=True, metavar="URL", help="The schema registry."
)
@click.option("--reason", required=True, metavar="TEXT", help="Why; it is kept in the manifest.")
@click.option("--hour", "hours", multiple=True, metavar="TIME", help="An hour; may be repeated.")
@click.option("--from", "start", default=None, metavar="TIME", help="Every hour from this time on ...")
@click.option("--to", "end", default=None, metavar="TIME", help="... up to, and without, this one.")
@click.option(
    "--loads", default="", metavar="A-B", help="Instead of hours: these loads, by number, like 7 or 7-9."
)
@RUN_ID
@SINK
@spark_options
@JSON
def reload(
    topic: str,
    warehouse: str,
    bootstrap: str,
    registry: str,
    reason: str,
    hours: Sequence[str],
    start: str | None,
    end: str | None,
    loads: str,
    run_id: str,
    sink: str,
    spark: SparkOptions,
    as_json: bool,
) -> None:
    """Read the loads of past hours of TOPIC again, from the offsets they recorded, as their next edition.

    For after a decoder or a registry was mended. The loads are those that have rows of the hours, or rejected
    records that may belong to them; offsets that have expired are refused. `millrace hourly --late` then
    publishes the hours.

    Example: millrace reload PageView --hour 2015-05-17T10 --reason "schema 7 was missing"
    --warehouse /data/warehouse --bootstrap 127.0.0.1:9392 --registry http://127.0.0.1:8081
    """
    parse_addresses(bootstrap, "--bootstrap")
    if not reason.strip():
        raise ConfigError("--reason is empty: say why these loads are read again")
    if loads and (hours or start or end):
        raise ConfigError("give either --loads, or hours by --hour or --from and --to")
    root, by_number = absolute_warehouse(warehouse), _numbers(loads) if loads else []
    settings = {
        "topic": topic,
        "bootstrap": bootstrap,
        "registry": registry,
        "warehouse": root,
        "run_id": run_id or manual_run_id(),
        "reason": reason.strip(),
        "hours": [] if loads else parse_hours(hours, start, end),
        "loads": by_number,
        "sink": sink,
    }
    early.check_table(root, topic, by_number)
    answer = submit_job("reload", settings, spark, fast_start=sink == "direct")
    if as_json:
        click.echo(json.dumps(answer))
        return
    table = table_of("load", "edition", "rows", "before", "rejected", "before", "")
    for each in answer["loads"]:
        numbers = (each[name] for name in ("rows", "rows_before", "rejected", "rejected_before"))
        message = "read again" if each["published"] else "this run had read it again already"
        table.add_row(f"{each['load']:010d}", str(each["edition"]), *(f"{n:,}" for n in numbers), message)
    show(table)
    command = f"millrace hourly {topic} --late --warehouse {warehouse} --auditor URL"
    click.echo(f"publish the hours with `{command}`")


def _numbers(text: str) -> list[int]:
    """`7` or `7-9` as numbers of loads."""
    first, _, last = text.partition("-")
    if not (first.isdigit() and (last or first).isdigit() and 0 < int(first) <= int(last or first)):
        raise ConfigError(f"--loads {text!r} is not a load or a range of them, like 7 or 7-9")
    return list(range(int(first), int(last or first) + 1))
