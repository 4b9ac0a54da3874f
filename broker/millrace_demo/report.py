"""Per hour and tier: the counts and the verdict, as a table for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from millrace_audit.answer import Completeness, Window, by_hour, tiers_of
from millrace_audit.show import styled


@dataclass(frozen=True, slots=True)
class Hour:
    """One hour of one topic: what the audit says of it, and the rows of its newest revision."""

    topic: str
    audited: Window
    rows: int

    @property
    def complete(self) -> bool:
        """True when the audit says so and the hourly table has just the rows that were acknowledged."""
        return self.audited.verdict == "complete" and self.rows == self.audited.acknowledged


def hours_of(answers: Iterable[Completeness], warehouse: Path) -> list[Hour]:
    """The hours that have messages, in order, per topic."""
    return [
        Hour(answer.topic, hour, _hourly_rows(warehouse / f"{answer.topic}.hourly", hour))
        for answer in answers
        for hour in by_hour(window for window in answer.windows if _has_messages(window))
    ]


def _has_messages(window: Window) -> bool:
    return bool(window.acknowledged or window.failed or any(window.tiers.values()))


def _hourly_rows(table: Path, hour: Window) -> int:
    """Rows of the hour's newest revision, counted in its files."""
    folder = table / f"date={hour.start:%Y-%m-%d}" / f"hour={hour.start:%H}"
    revisions = sorted(folder.glob("rev=*"), key=lambda path: int(path.name.removeprefix("rev=")))
    files = sorted(revisions[-1].glob("*.parquet")) if revisions else []
    return sum(pq.read_metadata(file).num_rows for file in files)


def print_hours(hours: Sequence[Hour], console: Console) -> None:
    tiers = tiers_of(hour.audited for hour in hours)
    table = Table(title="Messages per hour and tier")
    table.add_column("topic")
    table.add_column("hour (UTC)")
    for name in ("acknowledged", *tiers, "hourly rows"):
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
