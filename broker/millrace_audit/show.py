"""Verdicts for the terminal: one line for each hour or window, then the findings and their causes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime

from rich.table import Table

from millrace.printing import say, show, table_of, text
from millrace_audit.answer import Bad, Completeness, Incident, Window, by_hour, in_order, tiers_of

STYLES = {
    "complete": "green",
    "carried": "green",
    "pending": "cyan",
    "unknown": "yellow",
    "incomplete": "red",
}


def print_completeness(answer: Completeness, *, by_window: bool) -> None:
    show(completeness_table(answer, by_window=by_window))
    for line in [*_findings(answer.windows), *_reasons(answer.windows), _watermark(answer)]:
        say(line)
    if answer.live_through is not None:
        through = _minute(answer.live_through)
        say(f"branch live has every row that reached the warehouse before {through}, proven or not")
    if answer.owner:
        say(f"owner: {answer.owner}")
    enough = ", which is enough for this topic" if answer.proven and answer.verdict == "carried" else ""
    show(text(f"{answer.topic}: ", styled(answer.verdict), f"{enough}{_empty(answer)}"))


def completeness_table(answer: Completeness, *, by_window: bool) -> Table:
    """Return a table of the counts of each hour or window.

    Columns that are usually 0 appear only when one of their counts is not.
    """
    rows = answer.windows if by_window else by_hour(answer.windows)
    figures = {
        "acknowledged": [row.acknowledged for row in rows],
        "failed": [row.failed for row in rows],
        "unreported": [row.carried for row in rows],
        **{tier: [row.tiers.get(tier, 0) for row in rows] for tier in tiers_of(answer.windows)},
        **{
            f"no header: {tier}": [row.foreign.get(tier, 0) for row in rows]
            for tier in in_order(answer.foreign)
        },
        "rejected": [row.rejected for row in rows],
        "revision": [row.revision for row in rows],
    }
    seldom = {
        "failed",
        "unreported",
        "rejected",
        "revision",
        *(f"no header: {tier}" for tier in answer.foreign),
    }
    shown = {name: counts for name, counts in figures.items() if name not in seldom or any(counts)}
    columns = ("window" if by_window else "hour", *shown, "verdict")
    cells = [
        (
            (_minute if by_window else hour_text)(row.start),
            *(counts[number] for counts in shown.values()),
            styled(row.verdict),
        )
        for number, row in enumerate(rows)
    ]
    return table_of(columns, cells, title=f"Events of {answer.topic}, times in UTC")


def _empty(answer: Completeness) -> str:
    if any(w.acknowledged or w.failed or w.rejected or any(w.tiers.values()) for w in answer.windows):
        return ""
    return ", and without any event" if not answer.foreign else ""


def _watermark(answer: Completeness) -> str:
    if answer.watermark is None:
        return f"nothing is proven yet from the beginning on; held back by: {answer.held_by}"
    held = f"; held back by: {answer.held_by}" if answer.held_by else ""
    return f"proven from the beginning up to {_minute(answer.watermark)}{held}"


def print_bad(windows: Sequence[Bad], limit: int) -> None:
    """Print one line for each window that is not complete, then the remedy for each kind of cause."""
    for one in windows:
        window = one.window
        causes = [*_findings([window]), *window.reasons]
        more = f" (and {len(causes) - 1} more)" if len(causes) > 1 else ""
        cause = causes[0].removeprefix(f"{_minute(window.start)}: ") if causes else ""
        show(text(styled(window.verdict), f" {one.topic} {_minute(window.start)}: {cause}{more}"))
    if not windows:
        say("every window that is over is complete")
    elif len(windows) == limit:
        say(f"the first {limit}: --limit shows more")


def print_incidents(incidents: Sequence[Incident], limit: int) -> None:
    """Print incidents; `limit` is the number that was asked for."""
    for one in incidents:
        _print_head(one)
    if not incidents:
        say("no incidents: no cause is known that needs an operator")
    elif len(incidents) == limit:
        say(f"the first {limit}: --limit shows more")


def _print_head(one: Incident) -> None:
    """Print an incident's line, then its command on a line of its own, which can be copied."""
    owner = f", owner {one.owner}" if one.owner else ""
    taken = f", acknowledged by {one.acknowledged_by}" if one.acknowledged_by else ""
    since = f"{one.extent}, since {_minute(one.first_seen)}{owner}{taken}"
    show(text(styled(one.verdict), f" {one.title} ({since}) [{one.key}]"))
    if one.command:
        say(f"    {one.command}")


def print_incident(one: Incident) -> None:
    """Print an incident with all details, and a line for each of its hours."""
    _print_head(one)
    say(f"rule {one.rule}: {one.what}")
    for name, value in (
        ("services", ", ".join(one.services)),
        ("servers", ", ".join(one.servers)),
        ("runbook", one.runbook),
        ("note", one.note),
        ("resolved", "" if one.resolved is None else _minute(one.resolved)),
    ):
        if value:
            say(f"{name}: {value}")
    for topic, hours in one.hours.items():
        for hour in hours:
            say(f"{topic} {hour_text(hour)}")


def styled(verdict: str) -> tuple[str, str]:
    """Return the verdict with its style, as a part of a text."""
    return verdict, STYLES.get(verdict, "")


def _findings(windows: Sequence[Window]) -> Iterable[str]:
    for window in windows:
        for finding in window.findings:
            command = f"; `{finding.command}`" if finding.command else ""
            yield f"{_minute(window.start)}: {finding.text}{command}"


def _reasons(windows: Sequence[Window]) -> Iterable[str]:
    counts = Counter(reason for window in windows for reason in window.reasons)
    for reason, count in counts.items():
        yield reason if count == 1 else f"{reason} ({count} windows)"


def hour_text(time: datetime) -> str:
    """Return an hour in UTC, as options take it."""
    return f"{time:%Y-%m-%dT%H}"


def _minute(time: datetime) -> str:
    return f"{time:%Y-%m-%dT%H:%M}"
