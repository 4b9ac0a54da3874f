"""Commands that make and show the published table: `millrace publish`, `compact`, `tables`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from millrace.errors import ConfigError, MillraceError
from millrace.printing import print_table, say
from millrace.steps import own_steps
from millrace_warehouse.commands.hours import parse_hours
from millrace_warehouse.commands.options import MeasuredOutput, Output, command_of
from millrace_warehouse.history.manifest import ACCEPTED
from millrace_warehouse.publish.state import COMPLETE
from millrace_warehouse.requests import Compact, Publish, Tables

SHOWN = 10
"""Most lines about waiting hours. A last line counts the remaining hours."""
ONE_SNAPSHOT = "one snapshot: for later rows run `millrace tables` again"
NOTES = {
    "DuckDB": ONE_SNAPSHOT,
    "pandas": f"{ONE_SNAPSHOT}; shows a null list or map of records as empty, which polars keeps null",
    "polars": ONE_SNAPSHOT,
}
"""Reader -> limits of its printed line."""


@command_of(Publish, MeasuredOutput)
def publish(request: Publish, output: MeasuredOutput) -> None:
    """Bring the Iceberg table of each TOPIC up to date with its loads, in one commit for all hours.

    Late rows of published hours, and re-loaded rows, need no option. Hours that are not published yet need an
    option: --hour, or --from and --to, name hours; --proven takes the hours that the auditor has proved;
    --unproven-after takes the hours that it cannot judge. Other hours wait, and are listed. Topics are
    published one after the other. A topic that fails does not stop the remaining topics.

    Example: millrace publish PageView --proven --warehouse /data/warehouse --auditor http://127.0.0.1:8082
    """
    if request.hours or request.start or request.end:
        request = replace(request, hours=parse_hours(request.hours, request.start, request.end))
    if not (request.auditor or request.unasked):
        raise ConfigError(
            "no auditor is named: give --auditor URL, or --unasked to publish without a verdict"
        )
    if request.unasked and (request.proven or request.unproven_after_s is not None):
        raise ConfigError("--proven and --unproven-after need the auditor's verdict: leave out --unasked")
    from millrace_warehouse.commands.execute import publish_one

    _each_topic(request, output, "publish", partial(publish_one, request), _show_publications)


@command_of(Compact, Output)
def compact(request: Compact, output: Output) -> None:
    """Merge the small files of quiet, published hours of each TOPIC. The rows stay the same.

    An hour is compacted when no publication has changed it for 6 h and it has more than 8 files below 64 MiB.
    The merged rows are compared with the rows of each load. If they differ, there is no commit.

    Example: millrace compact PageView --warehouse /data/warehouse
    """
    from millrace_warehouse.commands.execute import compact_one

    _each_topic(request, output, "compact", partial(compact_one, request), _show_compacted)


@command_of(Tables, Output)
def tables(request: Tables, output: Output) -> None:
    """Show the table of each TOPIC: its names, its state, and for each reader a command line that reads it.

    Example: millrace tables PageView --warehouse /data/warehouse
    """
    from millrace_warehouse.commands.execute import describe_one

    _each_topic(request, output, "tables", partial(describe_one, request), _show_tables)


def _each_topic(
    request: Publish | Compact | Tables,
    output: Output,
    what: str,
    run: Callable[[str, Callable[[str], None]], dict[str, Any]],
    show_answers: Callable[[Sequence[Mapping[str, Any]]], None],
) -> None:
    """Run a command for every topic and print each answer. Then fail with the reasons of all failures."""
    answers: list[dict[str, Any]] = []
    for topic in request.topics:
        with own_steps(f"{what} {topic}") as progress:
            try:
                answers.append(run(topic, progress))
            except MillraceError as error:
                answers.append({"topic": topic, "error": str(error)})
    output.print(answers, lambda every: show_answers([answer for answer in every if "error" not in answer]))
    if isinstance(output, MeasuredOutput) and isinstance(request, Publish) and not request.dry_run:
        output.measure(what, answers)
    if reasons := [answer["error"] for answer in answers if "error" in answer]:
        raise MillraceError("; ".join(reasons))


def _show_publications(answers: Sequence[Mapping[str, Any]]) -> None:
    changes = (
        {
            **change,
            "hours": f"{change['hour']} to {change['last']}" if change["last"] else change["hour"],
            "topic": answer["topic"],
            "verdict": _asked(change["verdict"]),
            "rejected": answer["rejected"].get(change["hour"], 0),
        }
        for answer in answers
        for change in answer["changes"]
    )
    print_table(changes, "topic", ("hour", "hours"), "added", "removed", "rejected", "verdict", ("", "kind"))
    for answer in answers:
        say(f"{answer['topic']}: {_outcome(answer)}")
        _show_waiting(answer["topic"], answer["waiting"])
        for note in answer["notes"]:
            say(f"note: {note}", err=True)


def _asked(verdict: Mapping[str, Any]) -> str:
    """Return the auditor's own verdict, which is `carried` where a publication stores `complete` for it."""
    first = next(iter(verdict["reasons"]), "")
    is_accepted = verdict["verdict"] == COMPLETE and first.endswith(ACCEPTED)
    return str(first.removesuffix(ACCEPTED) if is_accepted else verdict["verdict"])


def _outcome(answer: Mapping[str, Any]) -> str:
    """Return one line with the publication, if any, and the range [from, until) of complete hours."""
    hours = answer["hours"]
    if not hours:
        what = f"{answer['table']} has nothing to change"
    elif answer["published"]:
        what = f"publication {answer['publication']} of {answer['table']} changed {hours:,} hour(s)"
    else:
        what = f"would change {hours:,} hour(s) of {answer['table']}"
    first, until = answer["complete_from"], answer["complete_until"]
    proven = f", proven from {first} until {until}" if first != until else ""
    return f"{what}; {answer['rows'] or 0:,} rows{proven}"


def _show_waiting(topic: str, waiting: Sequence[Mapping[str, Any]]) -> None:
    """Print a line for each incident with the hours that it delays, and for each other waiting hour."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for hour in waiting:
        groups.setdefault(hour["incident"] or hour["hour"], []).append(hour)
    for hours in [*groups.values()][:SHOWN]:
        first, last, number = hours[0], hours[-1]["hour"], len(hours)
        when = first["hour"] if number == 1 else f"{number:,} hours from {first['hour']} to {last}"
        rows, rejected = (sum(hour[name] for hour in hours) for name in ("rows", "rejected"))
        what = f"{rows:,} rows" + (f", {rejected:,} rejected" if rejected else "")
        incident = f" [{first['incident']}]" if first["incident"] else ""
        say(f"waits: {topic} {when}: {what}, {_why(first['verdict'])}{incident}", err=True)
    if rest := sum(map(len, [*groups.values()][SHOWN:])):
        say(f"waits: {topic}: and {rest:,} more hours", err=True)


def _why(verdict: Mapping[str, Any] | None) -> str:
    if verdict is None:
        return "the auditor was not asked: give --proven, or name the hour with --hour"
    reasons = f": {verdict['reasons'][0]}" if verdict["reasons"] else ""
    return f"{verdict['verdict']}{reasons}"


def _show_compacted(answers: Sequence[Mapping[str, Any]]) -> None:
    hours = ({**hour, "topic": answer["topic"]} for answer in answers for hour in answer["hours"])
    print_table(hours, "topic", "hour", "rows", "files_before", ("after", "files_after"), "bytes")
    for answer in answers:
        for hour, reason in answer["kept"].items():
            say(f"kept: {answer['topic']} {hour}: {reason}", err=True)
        for note in answer["notes"]:
            say(f"note: {note}", err=True)
        if not answer["hours"]:
            say(f"{answer['topic']}: no quiet hour has more than 8 small files")


def _show_tables(answers: Sequence[Mapping[str, Any]]) -> None:
    for answer in answers:
        live = answer["live"]
        facts = {name: value for name, value in answer.items() if name != "readers"}
        facts["live"] = _live_state(live) if live else "off"
        for name, value in facts.items():  # lines, which a narrow terminal wraps and does not cut
            say(f"{name.replace('_', ' ')}: {'' if value is None else value}")
        _show_lines(answer["readers"], "")
        _show_lines(live["readers"] if live else {}, ": branch live, not proven")


def _live_state(live: Mapping[str, Any]) -> str:
    if live["snapshot_id"] is None:
        return "dropped by another program; the next load or publication recreates it"
    behind = f"behind by {live['behind_s']:,.0f} s" if live["behind_s"] else "shows every load"
    return f"{behind}, {live['rows_not_proven']:,} rows not proven"


def _show_lines(readers: Mapping[str, str], what: str) -> None:
    for reader, line in readers.items():
        note = f" ({NOTES[reader]})" if reader in NOTES else ""
        for shown in ("", f"# {reader}{what}{note}", *line.splitlines()):
            say(shown)
