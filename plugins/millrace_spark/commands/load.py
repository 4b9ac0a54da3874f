"""`millrace load`: what is new in topics, into the warehouse."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from millrace.config import parse_addresses
from millrace.errors import MillraceError
from millrace_spark.commands.options import (
    JSON,
    RUN_ID,
    SINK,
    WAREHOUSE,
    SparkOptions,
    absolute_warehouse,
    manual_run_id,
    show,
    spark_options,
    submit_job,
    table_of,
)


@click.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@WAREHOUSE
@click.option("--bootstrap", required=True, metavar="HOST:PORT", help="Brokers of the cluster to load from.")
@click.option("--registry", required=True, metavar="URL", help="The schema registry.")
@RUN_ID
@SINK
@click.option(
    "--accept-new-topic", is_flag=True, help="Go on with a topic that was deleted and created anew."
)
@click.option("--accept-gaps", is_flag=True, help="Go on over offsets that are missing in the log.")
@click.option("--accept-rejected", is_flag=True, help="Succeed although records could not be decoded.")
@spark_options
@JSON
def load(
    topics: Sequence[str],
    warehouse: str,
    bootstrap: str,
    registry: str,
    run_id: str,
    sink: str,
    accept_new_topic: bool,
    accept_gaps: bool,
    accept_rejected: bool,
    spark: SparkOptions,
    as_json: bool,
) -> None:
    """Load what is new in each TOPIC into the warehouse, exactly once, by one rename per topic.

    Records that cannot be decoded are set aside in the load, with reason and raw bytes; exit code 1 says so.

    Example: millrace load PageView --warehouse /data/warehouse --bootstrap 127.0.0.1:9092
    --registry http://127.0.0.1:8081
    """
    parse_addresses(bootstrap, "--bootstrap")
    settings = {
        "topics": list(dict.fromkeys(topics)),
        "bootstrap": bootstrap,
        "registry": registry,
        "warehouse": absolute_warehouse(warehouse),
        "run_id": run_id or manual_run_id(),
        "sink": sink,
        "accept_new_topic": accept_new_topic,
        "accept_gaps": accept_gaps,
    }
    results = submit_job("load", settings, spark, fast_start=sink == "direct")
    if as_json:
        click.echo(json.dumps(results))
    else:
        _print_loads(results)
    if not accept_rejected:
        _refuse_rejected(results)


def _print_loads(results: Sequence[Mapping[str, Any]]) -> None:
    table = table_of("topic", "load", "rows", "rejected", "hours", "")
    for result in results:
        shown = (result["load"], result["rows"], result["rejected"], len(result["hours"]))
        table.add_row(
            result["topic"], *("" if each is None else f"{each:,}" for each in shown), result["message"]
        )
    show(table)
    for gap in (gap for result in results for gap in result["gaps"]):
        click.echo(f"gap: {gap}", err=True)


def _refuse_rejected(results: Sequence[Mapping[str, Any]]) -> None:
    """MillraceError when a load set records aside: it is published, and somebody must look at them."""
    set_aside = [
        f"{result['rejected']} in {result['topic']}/load={result['load']:010d}/_rejected"
        for result in results
        if result["rejected"]
    ]
    if set_aside:
        raise MillraceError(
            f"loaded, but records could not be decoded: {', '.join(set_aside)}, with reason and raw bytes;"
            " register the schema or mend the producer, or accept them with --accept-rejected"
        )
