"""Commands for the upkeep of a warehouse: `millrace promote`, `expire`, `erase` and `verify`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from millrace.errors import ConfigError, MillraceError
from millrace.printing import print_table, say
from millrace.steps import own_steps
from millrace_warehouse.commands.options import Output, command_of
from millrace_warehouse.requests import Erase, Expire, Promote, Verify


@command_of(Expire, Output)
def expire(request: Expire, output: Output) -> None:
    """Delete old data files of TOPIC that its table no longer needs, files of failed runs and old metadata.

    A load is kept while one of its rows is unpublished, or while a snapshot of the table names one of its
    files. Manifests, rejected records and tombstones stay.

    Example: millrace expire PageView --warehouse /data/warehouse --older-than 30d
    """
    from millrace_warehouse.commands import execute

    with own_steps(f"expire {request.topic}", counts_only=True) as progress:
        answer = asdict(execute.expire(request, progress))
    output.print(answer, partial(_show_expired, "would delete" if request.dry_run else "deleted"))


def _show_expired(done: str, answer: Mapping[str, Any]) -> None:
    counts = ("data_files", "compacted_files", "metadata_files", "strays", "plans", "bytes", "waiting")
    print_table([{**answer, "done": done}], ("", "done"), *counts)
    for load, reason in answer["kept"].items():
        say(f"kept: {load}: {reason}", err=True)


@command_of(Promote, Output)
def promote(request: Promote, output: Output) -> None:
    """Give the table of TOPIC another schema: new loads have its columns, and the next publication adds them
    to the table.

    The schema is refused unless it can read messages written with the old schema, and existing files can be
    read with its columns. Rows loaded before have null in columns that they lack.

    Example: millrace promote PageView --warehouse /data/warehouse --registry http://127.0.0.1:8081 --reason
    "country is in every event now"
    """
    if not request.history and not (request.registry and request.reason):
        raise ConfigError("give --registry and --reason, or --list to see the history")
    from millrace_warehouse.commands import execute

    if request.history:
        output.print([asdict(record) for record in execute.schema_history(request)], _show_history)
    else:
        output.print(asdict(execute.promote(request)), _show_promotion)


def _show_promotion(result: Mapping[str, Any]) -> None:
    topic, schema_id, record = result["topic"], result["schema_id"], result["record"]
    if record is None:
        say(f"{topic}: schema {schema_id} is the table's already")
        return
    say(
        f"{topic}: loads from now on have schema {schema_id}, before it was"
        f" {record['previous_schema_id']} (record {record['number']})"
    )
    for change in result["changes"]:
        say(f"  {change}")


def _show_history(records: Sequence[Mapping[str, Any]]) -> None:
    numbers = ("number", "schema_id", "first_load")
    rows = (
        {**record, **{name: record[name] and str(record[name]) for name in numbers}} for record in records
    )
    columns = (("record", "number"), ("schema", "schema_id"), ("from load", "first_load"))
    print_table(rows, *columns, ("since", "created"), "by", "reason")


@command_of(Verify, Output)
def verify(request: Verify, output: Output) -> None:
    """Prove that the warehouse holds what was loaded and published, of TOPIC or of every topic.

    There are three proofs: the loads against their manifests and files, the publications against the loads,
    and the rows of each table against both.

    Example: millrace verify PageView --warehouse /data/warehouse
    """
    from millrace_warehouse.commands import execute

    with own_steps("verify", counts_only=True) as progress:
        topics = [asdict(report) for report in execute.verify(request, progress)]
    problems = [problem for topic in topics for problem in topic["problems"]]
    output.print({"ok": not problems, "topics": topics}, _show_topics)
    if problems:
        raise MillraceError(f"{len(problems)} problem(s) in {request.warehouse}: {problems[0]}")


def _show_topics(answer: Mapping[str, Any]) -> None:
    topics = ({**topic, "problems": len(topic["problems"])} for topic in answer["topics"])
    print_table(topics, "topic", "loads", "publications", "files", "expired", "rows", "published", "problems")
    for kind in ("note", "problem"):
        for line in (line for topic in answer["topics"] for line in topic[f"{kind}s"]):
            say(f"{kind}: {line}")


@command_of(Erase, Output)
def erase(request: Erase, output: Output) -> None:
    """Remove the rows of TOPIC that match a condition from its loads and its table, and delete their bytes.

    From then on, loads and re-loads leave out matching rows. Logs are not changed: give --log for each
    cluster to see the offsets that its log still holds, and for how long. Begin with --dry-run.

    Example: millrace erase PageView --where "memberId = 42" --reason "request 4711" --warehouse
    /data/warehouse --log 127.0.0.1:9392
    """
    if not (request.where or request.id):
        raise ConfigError("give --where and --reason, or the --id of an erasure to continue")
    from millrace_warehouse.commands import execute

    with own_steps(f"erase {request.topic}", counts_only=True) as progress:
        answer = execute.erase(request, progress)
    output.print(answer, _show_erased)


def _show_erased(answer: Mapping[str, Any]) -> None:
    hours = ({"hour": hour, "rows": rows} for hour, rows in sorted(answer["hours"].items()))
    print_table(hours, "hour", "rows")
    topic, id_ = answer["topic"], answer["id"]
    rows, files, loads = answer["rows"], answer["files"], len(answer["loads"])
    aside = answer["rejected"]
    bytes_of = f", and the bytes and keys of {aside:,} rejected record(s) and tombstone(s)" if aside else ""
    say(f"{topic}: {answer['message']}: {rows:,} rows of {loads:,} load(s), in {files:,} file(s){bytes_of}")
    if answer["done"]:
        until = answer["in_force_until"] or "for ever"
        say(f"erasure {id_} is in force {'until ' if answer['in_force_until'] else ''}{until}")
    if answer["columns_not_everywhere"]:
        names = ", ".join(answer["columns_not_everywhere"])
        say(f"note: {names} is null in rows whose schema lacks it", err=True)
    for log in answer["logs"]:
        say(
            f"log: {log['bootstrap']} holds {log['offsets']:,} offsets of {topic} ({log['retention']});"
            f" {log['loads_again']:,} load(s) could be read again, without what is erased"
        )
    for origin in answer["origins_not_asked"]:
        say(f"log: {origin}, which is mirrored, was not asked: give its --log", err=True)
    for left in (answer["purged"] or {}).get("left", ()):
        say(f"left: {left['what']}{', until ' + left['until'] if left['until'] else ''}", err=True)
