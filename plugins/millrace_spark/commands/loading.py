"""Commands that read a log: `millrace load`, `millrace reload` and `millrace mirror-batch`."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from millrace.errors import ConfigError, MillraceError
from millrace.printing import print_table, say
from millrace.signals import stop_on_signals
from millrace.topics_file import TopicPolicy, policies_of_topics
from millrace.urls import without_secret
from millrace_registry.subjects import Subjects
from millrace_spark.commands import early
from millrace_spark.commands.job import Invocation, run_job, run_resident_job
from millrace_warehouse.commands.hours import parse_hours
from millrace_warehouse.commands.options import MeasuredOutput, command_of
from millrace_warehouse.option_values import SPARK
from millrace_warehouse.requests import Load, Mirror, Reload, command_options
from millrace_warehouse.table_layout import TableLayout
from millrace_warehouse.without_pandas import keep_pandas_out


@command_options
class LoadInvocation(Invocation, MeasuredOutput):
    """Options of a load's job."""


@command_of(Load, LoadInvocation)
def load(request: Load, invocation: LoadInvocation) -> None:
    """Load the new messages of each TOPIC into the warehouse exactly once, with one manifest per topic.

    Several topics are loaded at a time. A topic that fails does not stop the remaining topics. Records that
    cannot be decoded are set aside in the load, with reason, key and raw bytes; exit code 1 reports them.
    Tombstones are set aside with their keys, and are no failure. A run that is repeated with its --run-id
    ends at the offsets of its first plan.

    With --follow one process without Spark loads the topics until SIGTERM. It prints each load. Set-aside
    records are noted and do not change its exit code, which is 1 if a topic could not be loaded. With
    --engine spark one Spark application does the same on many cores, for topics that one process loads too
    slowly.

    Example: millrace load PageView --warehouse /data/warehouse --bootstrap 127.0.0.1:9392 --registry
    http://127.0.0.1:8081
    """
    if not request.topics and not request.topics_matching:
        raise ConfigError("name the topics to load, or give --topics-matching")
    if request.follow and (request.max_bytes or request.until_ms):
        raise ConfigError("--follow has no end: leave out --max-bytes and --until")
    early.check_warehouse(request.warehouse)
    topics, without_schema = early.topics_to_load(
        request.warehouse,
        request.bootstrap,
        request.registry,
        Subjects.parse(request.subjects, request.policies),
        lambda topic: request.for_topic(topic).format,
        request.topics,
        request.topics_matching,
    )
    request = replace(request, topics=topics, policies=policies_of_topics(request.policies, topics))
    _check_policies(request)
    for topic in without_schema:
        say(f"left out: {topic} has no schema at {without_secret(request.registry)}", err=True)
    if request.follow:
        _follow(request, invocation)
    else:
        _load_once(request, invocation, without_schema)


def _load_once(request: Load, invocation: LoadInvocation, without_schema: Sequence[str]) -> None:
    """Load the topics by a job. Print the loads, and the topics that were left out."""
    answer = run_job("load", request, invocation)
    reason = "no schema is registered for it"
    left_out = [{"topic": topic, "left_out": reason} for topic in without_schema]
    invocation.print([*answer, *left_out], _show_loads)
    invocation.measure("load", answer)
    if reasons := _failures(answer, request):
        raise MillraceError("; ".join(reasons))


def _follow(request: Load, invocation: LoadInvocation) -> None:
    """Load the topics until SIGTERM or Ctrl-C. Print every load."""
    stop = threading.Event()
    stop_on_signals(stop.set)

    def on_load(made: Mapping[str, Any]) -> None:
        invocation.print(made, _show_load)
        sys.stdout.flush()
        invocation.measure("load", [made])

    if request.engine == SPARK:
        failed = run_resident_job("follow", request, invocation, stop, on_load)
    else:
        failed = _follow_here(request, stop, on_load, is_stdout_json=invocation.as_json)
    if failed:
        raise MillraceError("; ".join(failed))


def _follow_here(
    request: Load,
    stop: threading.Event,
    on_load: Callable[[Mapping[str, Any]], None],
    *,
    is_stdout_json: bool,
) -> list[str]:
    """Load the topics in this process. Return a reason for each topic that cannot be loaded."""
    keep_pandas_out()
    from millrace_warehouse.commands.following import follow_topics, ready_line, serve_numbers

    numbers = serve_numbers(request)
    say(ready_line(request), err=is_stdout_json)
    sys.stdout.flush()
    return follow_topics(request, stop, numbers, lambda made: on_load(asdict(made)))


def _show_load(load: Mapping[str, Any]) -> None:
    aside = [f"{_by_kind(load)} rejected"] if _by_kind(load) else []
    counts = (f"{load['rows']:,} rows in {len(load['hours']):,} hour(s)", *aside)
    say(f"{load['topic']}: load {load['load']}: {', '.join(counts)}")
    _show_remarks(load)


def _check_policies(request: Load) -> None:
    from millrace_warehouse.load.rejections import RejectedLimits  # imports pyarrow: not for --help

    for topic in request.topics:
        if limit := request.for_topic(topic).max_rejected:
            RejectedLimits.parse(limit)
        _check_layout(request.policies[topic])


def _check_layout(policy: TopicPolicy) -> None:
    TableLayout.parse(policy.partition or (), policy.sort or ())


def _show_loads(answer: Sequence[Mapping[str, Any]]) -> None:
    loads = [result for result in answer if "load" in result]
    shown = ({**load, "hours": len(load["hours"]), "rejected": _by_kind(load) or 0} for load in loads)
    numbers = ("rows", "tombstones", "rejected", "hours", ("bytes left", "left_bytes"))
    print_table(shown, "topic", "load", *numbers, ("", "message"))
    for load in loads:
        _show_remarks(load)


def _show_remarks(load: Mapping[str, Any]) -> None:
    for kind, lines in (("gap", load["gaps"]), ("note", load["notes"])):
        for line in lines:
            say(f"{kind}: {line}", err=True)


def _by_kind(load: Mapping[str, Any]) -> str:
    """Return the number of a load's rejected records for each kind, such as `20 broken body`."""
    kinds = load["rejected_by_kind"].items()
    return ", ".join(f"{count:,} {kind.replace('_', ' ')}" for kind, count in kinds if count)


def _failures(answer: Sequence[Mapping[str, Any]], request: Load) -> list[str]:
    """Return a reason for every topic that failed, then one reason for loads that set records aside."""
    reasons = [result["error"] for result in answer if "error" in result]
    set_aside = [
        f"{_by_kind(result)} in {result['topic']}/rows/{result['load']:010d}-*/rejected-*.parquet"
        for result in answer
        if result.get("rejected") and not request.for_topic(result["topic"]).accept_rejected
    ]
    if set_aside:
        reasons.append(
            f"loaded, but records could not be decoded: {'; '.join(set_aside)}, with reason, key and raw"
            " bytes; for an unknown schema id register the schema, then `millrace reload`;"
            " --accept-rejected makes such a load a success"
        )
    return reasons


@command_of(Reload, Invocation)
def reload(request: Reload, invocation: Invocation) -> None:
    """Load past hours of TOPIC again, from the offsets in their manifests; the new rows replace the old rows.

    Use it after a decoder or a registry was corrected. It reads every load with rows of the hours, or with
    rejected records that may belong to them. Offsets that have expired are refused. `millrace publish` then
    brings the published hours up to date.

    Example: millrace reload PageView --hour 2015-05-17T10 --reason "schema 7 was missing" --warehouse
    /data/warehouse --bootstrap 127.0.0.1:9392 --registry http://127.0.0.1:8081
    """
    if not request.loads:
        request = replace(request, hours=parse_hours(request.hours, request.start, request.end))
    elif request.hours or request.start or request.end:
        raise ConfigError("give either --loads, or hours by --hour or --from and --to")
    early.check_table(request.warehouse, request.topic, request.loads)
    request = replace(request, policies=policies_of_topics(request.policies, [request.topic]))
    _check_layout(request.policies[request.topic])
    answer = run_job("reload", request, invocation)
    invocation.print({"topic": request.topic, **answer}, partial(_show_editions, request))


def _show_editions(request: Reload, answer: Mapping[str, Any]) -> None:
    loads = (
        {
            **load,
            "load": f"{load['load']:010d}",
            "message": "read again" if load["published"] else "this run had read it again already",
        }
        for load in answer["loads"]
    )
    kinds = ("rows", "tombstones", "rejected")
    numbers = (column for kind in kinds for column in (kind, ("before", f"{kind}_before")))
    print_table(loads, "load", "edition", *numbers, ("", "message"))
    for note in answer["notes"]:
        say(f"note: {note}", err=True)
    command = f"millrace publish {request.topic} --warehouse {request.warehouse} --auditor URL"
    say(f"bring the table up to date with `{command}`")


@command_of(Mirror, Invocation)
def mirror_batch(request: Mirror, invocation: Invocation) -> None:
    """Copy the new messages of each TOPIC from an origin cluster into the aggregate cluster, each batch
    exactly once.

    Example: millrace mirror-batch SearchQuery --origin dc1 --origin-bootstrap 127.0.0.1:9192
    --bootstrap 127.0.0.1:9392
    """
    partitions = run_job("mirror", request, invocation)
    names = ("batches", "records", "dropped", "bytes", "lag")
    totals = {name: sum(part[name] for part in partitions) for name in names}
    answer = {"topics": request.topics, "origin": request.origin, **totals, "partitions": partitions}
    invocation.print(answer, _show_copied)


def _show_copied(answer: Mapping[str, Any]) -> None:
    parts = (
        {**part, "from": f"{answer['origin']}/{part['topic']}-{part['partition']}"}
        for part in answer["partitions"]
    )
    offsets = (("target", "target_partition"), ("from", "start"), ("to", "end"))
    counts = ("batches", "records", "dropped", "bytes", ("left", "lag"))
    print_table(parts, ("origin partition", "from"), *offsets, *counts)
