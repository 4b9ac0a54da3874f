"""`millrace load`: what is new in topics, into the warehouse."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from millrace.config import parse_addresses
from millrace.errors import ConfigError, MillraceError
from millrace_spark.commands import early
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
@click.argument("topics", nargs=-1, metavar="TOPIC...")
@WAREHOUSE
@click.option("--bootstrap", required=True, metavar="HOST:PORT", help="Brokers of the cluster to load from.")
@click.option(
    "--registry", envvar="MILLRACE_REGISTRY", required=True, metavar="URL", help="The schema registry."
)
@click.option(
    "--topics-matching",
    default="",
    metavar="REGEX",
    help="Also every topic whose whole name matches; those without a schema are named and left out.",
)
@RUN_ID
@SINK
@click.option(
    "--max-bytes",
    default="",
    metavar="SIZE",
    help="Take at most so much of each topic's log (500MB, 2GiB); the next run takes the next part.",
)
@click.option("--until", default="", metavar="TIME", help="Take what was produced before this time.")
@click.option(
    "--max-rejected",
    default="",
    metavar="N|P%",
    help="Fail a topic if more records cannot be decoded.  [default: 0.1%, or 100 where that is more]",
)
@click.option("--accept-rejected", is_flag=True, help="Succeed although records could not be decoded.")
@click.option(
    "--accept-new-topic",
    is_flag=True,
    help="Go on with a topic that was deleted and created anew, or whose cluster was.",
)
@click.option("--accept-gaps", is_flag=True, help="Go on over offsets that are missing in the log.")
@spark_options
@JSON
def load(
    topics: Sequence[str],
    warehouse: str,
    bootstrap: str,
    registry: str,
    topics_matching: str,
    run_id: str,
    sink: str,
    max_bytes: str,
    until: str,
    max_rejected: str,
    accept_rejected: bool,
    accept_new_topic: bool,
    accept_gaps: bool,
    spark: SparkOptions,
    as_json: bool,
) -> None:
    """Load what is new in each TOPIC into the warehouse, exactly once, by one rename per topic.

    Several topics are loaded at a time; one that fails does not stop the others. Records that cannot be
    decoded are set aside in the load, with reason and raw bytes; exit code 1 says so. A run that is repeated
    under its --run-id keeps to the end it first planned.

    Example: millrace load PageView --warehouse /data/warehouse --bootstrap 127.0.0.1:9392
    --registry http://127.0.0.1:8081
    """
    if not topics and not topics_matching:
        raise ConfigError("name the topics to load, or give --topics-matching")
    parse_addresses(bootstrap, "--bootstrap")
    root = absolute_warehouse(warehouse)
    settings: dict[str, Any] = {
        "bootstrap": bootstrap,
        "registry": registry,
        "warehouse": root,
        "run_id": run_id or manual_run_id(),
        "sink": sink,
        "max_bytes": early.parse_bytes(max_bytes, "--max-bytes") if max_bytes else None,
        "until_ms": int(parse_time(until, "--until").timestamp() * 1000) if until else None,
        "max_rejected": early.checked_limit(max_rejected),
        "accept_new_topic": accept_new_topic,
        "accept_gaps": accept_gaps,
    }
    early.check_warehouse(root)
    found = early.topics_to_load(root, bootstrap, registry, topics, topics_matching)
    early.check_schemas(root, registry, found.topics)
    if not accept_new_topic:
        early.check_same_logs(root, bootstrap, found.topics)
    settings["topics"] = list(found.topics)
    # Topics share the cores, so that a small one does not wait until a big one has no task left to start.
    fair = dataclasses.replace(spark, conf={"spark.scheduler.mode": "FAIR", **spark.conf})
    answer = submit_job("load", settings, fair, fast_start=sink == "direct")
    loads = [each for each in answer if "error" not in each]
    if as_json:
        click.echo(json.dumps([*answer, *map(_left_out, found.without_schema)]))
    else:
        if loads:
            _print_loads(loads)
    for topic in found.without_schema:
        click.echo(f"left out: {topic} has no schema at {registry}", err=True)
    _refuse(loads, [each["error"] for each in answer if "error" in each], accept_rejected)


def _left_out(topic: str) -> dict[str, Any]:
    return {"topic": topic, "left_out": "no schema is registered for it"}


def _print_loads(results: Sequence[Mapping[str, Any]]) -> None:
    table = table_of("topic", "load", "rows", "rejected", "hours", "bytes left", "")
    for result in results:
        shown = (
            result["load"], result["rows"], result["rejected"], len(result["hours"]), result["left_bytes"]
        )  # fmt: skip
        table.add_row(
            result["topic"], *("" if each is None else f"{each:,}" for each in shown), result["message"]
        )
    show(table)
    for result in results:
        for kind, lines in (("gap", result["gaps"]), ("note", result["notes"])):
            for line in lines:
                click.echo(f"{kind}: {line}", err=True)


def _refuse(results: Sequence[Mapping[str, Any]], failures: Sequence[str], accept_rejected: bool) -> None:
    """MillraceError with every topic that failed, and every load that is published but set records aside."""
    reasons = list(failures)
    set_aside = [
        f"{result['rejected']} in {result['topic']}/load={result['load']:010d}/_rejected"
        for result in results
        if result["rejected"] and not accept_rejected
    ]
    if set_aside:
        reasons.append(
            f"loaded, but records could not be decoded: {', '.join(set_aside)}, with reason and raw bytes;"
            " for an unknown schema id register the schema, then `millrace reload`;"
            " --accept-rejected makes such a load a success"
        )
    if reasons:
        raise MillraceError("; ".join(reasons))
