"""Counts and verdicts by hour and tier, as a table for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.console import Console

from millrace.printing import table_of
from millrace_audit.answer import Completeness, Window, by_hour, tiers_of
from millrace_audit.reports.messages import TABLE
from millrace_audit.show import hour_text, styled


@dataclass(frozen=True, slots=True)
class Hour:
    """One hour of one topic: the audit's answer, and the hour's rows in the published table."""

    topic: str
    audited: Window
    rows: int

    @property
    def complete(self) -> bool:
        """True when the verdict is `complete` and the table has a row for each acknowledged event."""
        return self.audited.verdict == "complete" and self.rows == self.audited.acknowledged


def hours_of(answers: Iterable[Completeness], rows: Mapping[str, Mapping[str, int]]) -> list[Hour]:
    """Return the hours that have messages, in order, per topic.

    `rows` is the number of rows in the table, by topic and hour.
    """
    return [
        Hour(answer.topic, hour, rows[answer.topic].get(hour_text(hour.start), 0))
        for answer in answers
        for hour in by_hour(window for window in answer.windows if _has_messages(window))
    ]


def _has_messages(window: Window) -> bool:
    return bool(window.acknowledged or window.failed or any(window.tiers.values()))


def print_hours(hours: Sequence[Hour], console: Console) -> None:
    tiers = [tier for tier in tiers_of(hour.audited for hour in hours) if tier != TABLE]  # it is `published`
    rows: list[Sequence[object]] = []
    for topic, some in groupby(hours, lambda hour: hour.topic):
        rows.append([topic])
        for hour in some:
            audited = hour.audited
            counts = (audited.acknowledged, *(audited.tiers.get(tier, 0) for tier in tiers), hour.rows)
            rows.append([hour_text(audited.start), *counts, styled(audited.verdict)])
    columns = ("hour (UTC)", "acknowledged", *tiers, "published", "verdict")
    console.print(table_of(columns, rows, title="Messages per hour and tier"))
