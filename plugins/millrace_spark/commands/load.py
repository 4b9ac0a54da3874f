"""`millrace load`: what is new in topics, into the warehouse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import click

from millrace.errors import ConfigError, MillraceError
from millrace_spark.commands import early
from millrace_spark.commands.options import Invocation, command_of, show, submit_job, table_of
from millrace_spark.jobs.verbs import Load


@command_of(Load)
def load(request: Load, invocation: Invocation) -> None:
    """Load what is new in each TOPIC into the warehouse, exactly once, by one rename per topic.

    Several topics are loaded at a time; one that fails does not stop the others. Records that cannot be
    decoded are set aside in the load, with reason and raw bytes; exit code 1 says so. A run that is repeated
    under its --run-id keeps to the end it first planned.

    Example: millrace load PageView --warehouse /data/warehouse --bootstrap 127.0.0.1:9392
    --registry http://127.0.0.1:8081
    """
    if not request.topics and not request.topics_matching:
        raise ConfigError("name the topics to load, or give --topics-matching")
    request, left_out = _resolved(request)
    # Topics share the cores, so that a small one does not wait until a big one has no task left to start.
    fair = replace(invocation, conf={"spark.scheduler.mode": "FAIR", **invocation.conf})
    answer = submit_job("load", request, fair, fast_start=request.sink == "direct")
    reason = "no schema is registered for it"
    invocation.print([*answer, *({"topic": topic, "left_out": reason} for topic in left_out)], _show)
    for topic in left_out:
        click.echo(f"left out: {topic} has no schema at {request.registry}", err=True)
    if reasons := _failures(answer, request.accept_rejected):
        raise MillraceError("; ".join(reasons))


def _resolved(request: Load) -> tuple[Load, Sequence[str]]:
    """The load with all its topics by name, and those without a schema; MillraceError when it would fail."""
    early.check_warehouse(request.warehouse)
    found = early.topics_to_load(
        request.warehouse, request.bootstrap, request.registry, request.topics, request.topics_matching
    )
    early.check_schemas(request.warehouse, request.registry, found.topics)
    if not request.accept_new_topic:
        early.check_same_logs(request.warehouse, request.bootstrap, found.topics)
    return replace(request, topics=found.topics), found.without_schema


def _show(answer: Sequence[Mapping[str, Any]]) -> None:
    loads = [each for each in answer if "load" in each]
    table = table_of("topic", "load", "rows", "rejected", "hours", "bytes left", "")
    for load in loads:
        numbers = (load["load"], load["rows"], load["rejected"], len(load["hours"]), load["left_bytes"])
        words = ("" if number is None else f"{number:,}" for number in numbers)
        table.add_row(load["topic"], *words, load["message"])
    if loads:
        show(table)
    for load in loads:
        for kind, lines in (("gap", load["gaps"]), ("note", load["notes"])):
            for line in lines:
                click.echo(f"{kind}: {line}", err=True)


def _failures(answer: Sequence[Mapping[str, Any]], accept_rejected: bool) -> list[str]:
    """Every topic that failed, then the loads that are published and have set records aside."""
    reasons = [each["error"] for each in answer if "error" in each]
    set_aside = [
        f"{each['rejected']} in {each['topic']}/load={each['load']:010d}/_rejected"
        for each in answer
        if each.get("rejected") and not accept_rejected
    ]
    if set_aside:
        reasons.append(
            f"loaded, but records could not be decoded: {', '.join(set_aside)}, with reason and raw bytes;"
            " for an unknown schema id register the schema, then `millrace reload`;"
            " --accept-rejected makes such a load a success"
        )
    return reasons
