"""Per hour and tier: the counts and the verdict, as a table for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from millrace_audit.client import Completeness, Window

STYLES = {"complete": "green", "incomplete": "red", "unknown": "yellow"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hour:
    """One hour of one topic: what was acknowledged, what each tier has, and what was published."""

    topic: str
    start: datetime
    acknowledged: int
    tiers: Mapping[str, int]
    rows: int
    """Rows of the newest revision in the hourly table."""
    verdict: str

    @property
    def complete(self) -> bool:
        """True when the audit says so and the hourly table has just those rows."""
        return self.verdict == "complete" and self.rows == self.acknowledged


def hours_of(answers: Iterable[Completeness], warehouse: Path) -> list[Hour]:
    """The hours that have messages, in order, per topic."""
    hours = []
    for answer in answers:
        windows: dict[datetime, list[Window]] = {}
        for window in answer.windows:
            if window.acknowledged or window.failed or any(window.tiers.values()):
                windows.setdefault(window.start.replace(minute=0), []).append(window)
        hours += [_hour(answer.topic, start, group, warehouse) for start, group in sorted(windows.items())]
    return hours


def _hour(topic: str, start: datetime, windows: Sequence[Window], warehouse: Path) -> Hour:
    tiers: dict[str, int] = {}
    for window in windows:
        for tier, count in window.tiers.items():
            tiers[tier] = tiers.get(tier, 0) + count
    verdicts = {window.verdict for window in windows}
    return Hour(
        topic=topic,
        start=start,
        acknowledged=sum(window.acknowledged for window in windows),
        tiers=tiers,
        rows=_hourly_rows(warehouse / f"{topic}.hourly" / f"date={start:%Y-%m-%d}" / f"hour={start:%H}"),
        verdict=next(verdict for verdict in ("incomplete", "unknown", "complete") if verdict in verdicts),
    )


def _hourly_rows(folder: Path) -> int:
    """Rows of the newest revision, counted in its files."""
    revisions = sorted(folder.glob("rev=*"), key=lambda path: int(path.name.removeprefix("rev=")))
    files = sorted(revisions[-1].glob("*.parquet")) if revisions else []
    return sum(pq.read_metadata(file).num_rows for file in files)


def print_hours(hours: Sequence[Hour], console: Console) -> None:
    """One line per topic and hour, and the totals."""
    tiers = sorted({tier for hour in hours for tier in hour.tiers}, key=_tier_order)
    table = Table(title="Messages per hour and tier")
    table.add_column("topic")
    table.add_column("hour (UTC)")
    for name in ("acknowledged", *tiers, "hourly rows"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    for hour in hours:
        counts = (hour.acknowledged, *(hour.tiers.get(tier, 0) for tier in tiers), hour.rows)
        table.add_row(
            hour.topic,
            f"{hour.start:%Y-%m-%d %H}-{hour.start + timedelta(hours=1):%H}",
            *(f"{count:,}" for count in counts),
            f"[{STYLES[hour.verdict]}]{hour.verdict}[/]",
        )
    console.print(table)


def _tier_order(tier: str) -> tuple[int, str]:
    """Datacenters first, then the way the data goes."""
    return {"offline": 1, "warehouse": 2}.get(tier, 0), tier
