"""A verdict for people: one line for each hour or window, then what is wrong and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from rich.console import Console
from rich.table import Table

from millrace_audit.auditor.verdict import DOWNSTREAM, Verdict, overall
from millrace_audit.client import Completeness, Window
from millrace_audit.reports.ranges import in_words

_WIDE = 250
_STYLES = {"complete": "green", "incomplete": "red", "unknown": "yellow"}


def print_completeness(found: Completeness, *, by_window: bool) -> None:
    """Print the table, the findings, the reasons and the verdict."""
    console = Console(soft_wrap=True, highlight=False)
    if not console.is_terminal:
        console.width = _WIDE  # in a file or a pipe nothing is cut off
    groups = [[window] for window in found.windows] if by_window else list(_hours(found.windows))
    tiers = _tiers(found.windows)
    table = Table(title=f"{found.topic}, times in UTC")
    table.add_column("window" if by_window else "hour", no_wrap=True)
    for name in ("acknowledged", "failed", *tiers, "revision"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for group in groups:
        table.add_row(*_line(group, tiers, by_window))
    console.print(table)
    for line in [*_findings(found.windows), *_reasons(found.windows)]:
        console.print(line, markup=False)
    verdict = f"[{_STYLES.get(found.verdict, '')}]{found.verdict}[/]"
    before = "not even the first window yet" if found.watermark is None else _minute(found.watermark)
    console.print(f"{found.topic}: {verdict}; from its beginning it is complete up to: {before}")


def _hours(windows: Sequence[Window]) -> Iterable[list[Window]]:
    hours: dict[datetime, list[Window]] = {}
    for window in windows:
        hours.setdefault(window.start.replace(minute=0), []).append(window)
    return hours.values()


def _tiers(windows: Sequence[Window]) -> list[str]:
    """Clusters by name first, then the tiers behind them in the order of the way."""
    names = {tier for window in windows for tier in window.tiers}
    return [*sorted(names - {*DOWNSTREAM}), *(tier for tier in DOWNSTREAM if tier in names)]


def _line(group: Sequence[Window], tiers: Sequence[str], by_window: bool) -> list[str]:
    verdict = overall(Verdict(window.verdict) for window in group)
    start = group[0].start
    return [
        _minute(start) if by_window else start.strftime("%Y-%m-%d %H"),
        f"{sum(window.acknowledged for window in group)}",
        f"{sum(window.failed for window in group)}",
        *(f"{sum(window.tiers.get(tier, 0) for window in group)}" for tier in tiers),
        f"{max(window.revision for window in group)}",
        f"[{_STYLES[verdict]}]{verdict}[/]",
    ]


def _findings(windows: Sequence[Window]) -> Iterable[str]:
    for window in windows:
        for finding in window.findings:
            yield (
                f"{_minute(window.start)}: {finding.count} {finding.kind} at tier {finding.tier}:"
                f" server {finding.server}, service {finding.service}, instance {finding.instance},"
                f" sequences {in_words(finding.sequences)}"
            )


def _reasons(windows: Sequence[Window]) -> Iterable[str]:
    counts: dict[str, int] = {}
    for window in windows:
        for reason in window.reasons:
            counts[reason] = counts.get(reason, 0) + 1
    for reason, count in counts.items():
        yield reason if count == 1 else f"{reason} ({count} windows)"


def _minute(time: datetime) -> str:
    return time.strftime("%Y-%m-%d %H:%M")
