"""`millrace mirror-batch`: what is new in an origin's topic, into the aggregate cluster."""

from __future__ import annotations

import json

import click

from millrace.config import parse_addresses
from millrace_spark.commands.options import JSON, SparkOptions, show, spark_options, submit_job, table_of


@click.command("mirror-batch")
@click.argument("topic")
@click.option(
    "--origin", required=True, metavar="CLUSTER", help="Name of the origin cluster, for example dc1."
)
@click.option("--origin-bootstrap", required=True, metavar="HOST:PORT", help="Brokers of the origin cluster.")
@click.option("--bootstrap", required=True, metavar="HOST:PORT", help="Brokers of the aggregate cluster.")
@spark_options
@JSON
def mirror_batch(
    topic: str, origin: str, origin_bootstrap: str, bootstrap: str, spark: SparkOptions, as_json: bool
) -> None:
    """Copy what is new in TOPIC of an origin cluster into the aggregate cluster, each batch exactly once.

    Example: millrace mirror-batch SearchQuery --origin dc1 --origin-bootstrap 127.0.0.1:9092
    --bootstrap 127.0.0.1:9094
    """
    parse_addresses(origin_bootstrap, "--origin-bootstrap")
    parse_addresses(bootstrap, "--bootstrap")
    settings = {
        "topic": topic,
        "origin": origin,
        "origin_bootstrap": origin_bootstrap,
        "bootstrap": bootstrap,
    }
    answer = submit_job("mirror", settings, spark, fast_start=True)
    if as_json:
        click.echo(json.dumps(answer))
        return
    table = table_of("origin partition", "target", "from", "to", "batches", "records", "dropped")
    for part in answer["partitions"]:
        table.add_row(f"{origin}/{topic}-{part['partition']}", *(f"{part[key]:,}" for key in _MIRRORED))
    show(table)


_MIRRORED = ("target_partition", "start", "end", "batches", "records", "dropped")
