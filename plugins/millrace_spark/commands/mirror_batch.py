"""`millrace mirror-batch`: what is new in an origin's topic, into the aggregate cluster."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from millrace.config import parse_addresses
from millrace_spark.commands.early import parse_bytes
from millrace_spark.commands.options import JSON, SparkOptions, show, spark_options, submit_job, table_of


@click.command("mirror-batch")
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option(
    "--origin", required=True, metavar="CLUSTER", help="Name of the origin cluster, for example dc1."
)
@click.option("--origin-bootstrap", required=True, metavar="HOST:PORT", help="Brokers of the origin cluster.")
@click.option("--bootstrap", required=True, metavar="HOST:PORT", help="Brokers of the aggregate cluster.")
@click.option(
    "--max-bytes",
    default="",
    metavar="SIZE",
    help="Copy about so much of all topics (500MB, 2GiB); the next run goes on there.",
)
@spark_options
@JSON
def mirror_batch(
    topics: Sequence[str], origin: str, origin_bootstrap: str, bootstrap: str, max_bytes: str,
    spark: SparkOptions, as_json: bool,
) -> None:  # fmt: skip
    """Copy what is new in TOPICs of an origin cluster into the aggregate cluster, each batch exactly once.

    Example: millrace mirror-batch SearchQuery --origin dc1 --origin-bootstrap 127.0.0.1:9192
    --bootstrap 127.0.0.1:9392
    """
    parse_addresses(origin_bootstrap, "--origin-bootstrap")
    parse_addresses(bootstrap, "--bootstrap")
    settings: dict[str, Any] = {
        "topics": list(dict.fromkeys(topics)),
        "origin": origin,
        "origin_bootstrap": origin_bootstrap,
        "bootstrap": bootstrap,
    }
    if max_bytes:
        settings["max_bytes"] = parse_bytes(max_bytes, "--max-bytes")
    answer = submit_job("mirror", settings, spark, fast_start=True)
    if as_json:
        click.echo(json.dumps(answer))
        return
    table = table_of("origin partition", *_MIRRORED, "left")
    for part in answer["partitions"]:
        numbers = (f"{part[key]:,}" for key in (*_MIRRORED.values(), "lag"))
        table.add_row(f"{origin}/{part['topic']}-{part['partition']}", *numbers)
    show(table)


_MIRRORED = {
    "target": "target_partition", "from": "start", "to": "end", "batches": "batches", "records": "records",
    "dropped": "dropped", "bytes": "bytes",
}  # fmt: skip
