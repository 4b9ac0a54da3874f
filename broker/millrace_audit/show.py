"""A verdict for people: one line for each hour or window, then what is wrong and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime

from rich.console import Console
from rich.table import Table

from millrace_audit.answer import Completeness, Window, by_hour, tiers_of
from millrace_audit.reports.ranges import in_words

STYLES = {"complete": "green", "incomplete": "red", "unknown": "yellow"}
_WIDE = 250


def print_completeness(answer: Completeness, *, by_window: bool) -> None:
    console = Console(soft_wrap=True, highlight=False)
    if not console.is_terminal:
        console.width = _WIDE  # in a file or a pipe nothing is cut off
    tiers = tiers_of(answer.windows)
    table = Table(title=f"{answer.topic}, times in UTC")
    table.add_column("window" if by_window else "hour", no_wrap=True)
    for name in ("acknowledged", "failed", *tiers, "revision"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for row in answer.windows if by_window else by_hour(answer.windows):
        time = _minute(row.start) if by_window else row.start.strftime("%Y-%m-%d %H")
        counts = (row.acknowledged, row.failed, *(row.tiers.get(tier, 0) for tier in tiers), row.revision)
        table.add_row(time, *map(str, counts), styled(row.verdict))
    console.print(table)
    for line in [*_findings(answer.windows), *_reasons(answer.windows)]:
        console.print(line, markup=False)
    before = "not even the first window yet" if answer.watermark is None else _minute(answer.watermark)
    console.print(
        f"{answer.topic}: {styled(answer.verdict)}; from its beginning it is complete up to: {before}"
    )


def styled(verdict: str) -> str:
    return f"[{STYLES.get(verdict, '')}]{verdict}[/]"


def _findings(windows: Sequence[Window]) -> Iterable[str]:
    for window in windows:
        for finding in window.findings:
            yield (
                f"{_minute(window.start)}: {finding.count} {finding.kind} at tier {finding.tier}:"
                f" server {finding.server}, service {finding.service}, instance {finding.instance},"
                f" sequences {in_words(finding.sequences)}"
            )


def _reasons(windows: Sequence[Window]) -> Iterable[str]:
    counts = Counter(reason for window in windows for reason in window.reasons)
    for reason, count in counts.items():
        yield reason if count == 1 else f"{reason} ({count} windows)"


def _minute(time: datetime) -> str:
    return time.strftime("%Y-%m-%d %H:%M")
