"""Per hour and tier: the counts and the verdict, as a table for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from rich.console import Console
from rich.table import Table

from millrace_audit.answer import Completeness, Window, by_hour, tiers_of
from millrace_audit.show import styled


@dataclass(frozen=True, slots=True)
class Hour:
    """One hour of one topic: what the audit says of it, and its rows in the published table."""

    topic: str
    audited: Window
    rows: int

    @property
    def complete(self) -> bool:
        """True when the audit says so and the table has just the rows that were acknowledged."""
        return self.audited.verdict == "complete" and self.rows == self.audited.acknowledged


def hours_of(answers: Iterable[Completeness], rows: Mapping[str, Mapping[str, int]]) -> list[Hour]:
    """The hours that have messages, in order, per topic; `rows` is topic -> hour -> rows in the table."""
    return [
        Hour(answer.topic, hour, rows[answer.topic].get(f"{hour.start:%Y-%m-%dT%H}", 0))
        for answer in answers
        for hour in by_hour(window for window in answer.windows if _has_messages(window))
    ]


def _has_messages(window: Window) -> bool:
    return bool(window.acknowledged or window.failed or any(window.tiers.values()))


def print_hours(hours: Sequence[Hour], console: Console) -> None:
    tiers = tiers_of(hour.audited for hour in hours)
    table = Table(title="Messages per hour and tier")
    table.add_column("topic")
    table.add_column("hour (UTC)")
    for name in ("acknowledged", *tiers, "published"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    for hour in hours:
        audited, end = hour.audited, hour.audited.start + timedelta(hours=1)
        counts = (audited.acknowledged, *(audited.tiers.get(tier, 0) for tier in tiers), hour.rows)
        table.add_row(
            hour.topic,
            f"{audited.start:%Y-%m-%d %H}-{end:%H}",
            *(f"{count:,}" for count in counts),
            styled(audited.verdict),
        )
    console.print(table)
