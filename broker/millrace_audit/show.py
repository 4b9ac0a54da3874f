"""A verdict for people: one line for each hour or window, then what is wrong and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from rich.console import Console
from rich.table import Table

from millrace_audit.answer import Bad, Completeness, Window, by_hour, tiers_of
from millrace_audit.reports.ranges import in_words

STYLES = {
    "complete": "green",
    "carried": "green",
    "pending": "cyan",
    "unknown": "yellow",
    "incomplete": "red",
}
_WIDE = 250


def print_completeness(answer: Completeness, *, by_window: bool) -> None:
    console = Console(soft_wrap=True, highlight=False)
    if not console.is_terminal:
        console.width = _WIDE  # in a file or a pipe nothing is cut off
    tiers = tiers_of(answer.windows)
    # Messages without a header have columns of their own where there are any.
    foreign = [tier for tier in tiers_of([_foreign(answer)]) if answer.foreign.get(tier)]
    table = Table(title=f"Events of {answer.topic}, times in UTC")
    table.add_column("window" if by_window else "hour", no_wrap=True)
    more = [f"no header: {tier}" for tier in foreign]
    for name in ("acknowledged", "failed", "unreported", *tiers, *more, "revision"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for row in answer.windows if by_window else by_hour(answer.windows):
        time = _minute(row.start) if by_window else row.start.strftime("%Y-%m-%d %H")
        counts = (row.acknowledged, row.failed, row.carried, *(row.tiers.get(tier, 0) for tier in tiers))
        without = (row.foreign.get(tier, 0) for tier in foreign)
        figures = (f"{count:,}" for count in (*counts, *without, row.revision))
        table.add_row(time, *figures, styled(row.verdict))
    console.print(table)
    for line in [*_findings(answer.windows), *_reasons(answer.windows)]:
        console.print(line, markup=False)
    console.print(_watermark(answer), markup=False)
    enough = ", which is enough for this topic" if answer.proven and answer.verdict == "carried" else ""
    console.print(f"{answer.topic}: {styled(answer.verdict)}{enough}{_empty(answer)}")


def _foreign(answer: Completeness) -> Window:
    return replace(answer.windows[0], tiers=answer.foreign)


def _empty(answer: Completeness) -> str:
    if any(window.acknowledged or window.failed or any(window.tiers.values()) for window in answer.windows):
        return ""
    return ", and without any event" if not answer.foreign else ""


def _watermark(answer: Completeness) -> str:
    if answer.watermark is None:
        return f"nothing of it is proven from its beginning on: {answer.held_by}"
    held = f"; what follows is held by: {answer.held_by}" if answer.held_by else ""
    return f"proven from its beginning up to {_minute(answer.watermark)}{held}"


def print_bad(windows: Sequence[Bad], limit: int) -> None:
    """One line for each window that is not complete, then what to do about each kind of cause."""
    console = Console(soft_wrap=True, highlight=False)
    for one in windows:
        window = one.window
        causes = [*_findings([window]), *window.reasons]
        more = f" (and {len(causes) - 1} more)" if len(causes) > 1 else ""
        cause = causes[0].removeprefix(f"{_minute(window.start)}: ") if causes else ""
        console.print(f"{styled(window.verdict)} {one.topic} {_minute(window.start)}", end=": ")
        console.print(f"{cause}{more}", markup=False)
    if not windows:
        console.print("every window that is over is complete")
    elif len(windows) == limit:
        console.print(f"the first {limit}: --limit shows more", markup=False)


def styled(verdict: str) -> str:
    return f"[{STYLES.get(verdict, '')}]{verdict}[/]"


def _findings(windows: Sequence[Window]) -> Iterable[str]:
    for window in windows:
        for finding in window.findings:
            who = f"server {finding.server}, service {finding.service}, instance {finding.instance}"
            what = f"{who}, sequences {in_words(finding.sequences)}" if finding.server else finding.service
            where = f"{finding.count} {finding.kind} at tier {finding.tier}"
            yield f"{_minute(window.start)}: {where}: {what}; {finding.remedy}"


def _reasons(windows: Sequence[Window]) -> Iterable[str]:
    counts = Counter(reason for window in windows for reason in window.reasons)
    for reason, count in counts.items():
        yield reason if count == 1 else f"{reason} ({count} windows)"


def _minute(time: datetime) -> str:
    return time.strftime("%Y-%m-%d %H:%M")
