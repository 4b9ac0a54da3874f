"""Content of the console's page of a topic: events sent and arrived, lags, loads, groups, queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from markupsafe import Markup
from sqlalchemy import String, bindparam, case, cast, func, select
from sqlalchemy.orm import Session

from millrace.service.pages import duration, short
from millrace_audit.answer import Completeness, Verdict, Window, by_hour, utc
from millrace_audit.auditor.judging import incidents
from millrace_audit.auditor.judging.topic_facts import topic_facts
from millrace_audit.auditor.options import AuditOptions
from millrace_audit.auditor.records.progress import Progress
from millrace_audit.auditor.service import answers, charts
from millrace_audit.auditor.service.cluster_look import ClusterSeen
from millrace_audit.auditor.service.heat import DAY_MS, newest_end
from millrace_audit.auditor.service.metrics import AuditNumbers
from millrace_audit.auditor.service.overview import LATE_S, hour_cells, joined
from millrace_audit.auditor.service.partitions import PartitionLine, partitions_of
from millrace_audit.auditor.service.way import Step, homes_of, steps_of
from millrace_audit.auditor.store import LoadHourRow, LoadRow, RejectedRow, TopicRow, WindowRow
from millrace_audit.reports.counts import HOUR_MS
from millrace_audit.reports.messages import NOTHING, TABLE

MOST_LOADS = 8
MOST_REJECTED = 20
_LOOKED_AT = 48
"""Number of a topic's newest windows in which to look for the newest published hour."""
_NEWEST = (
    select(WindowRow.window, cast(WindowRow.positions, String).label("positions"))
    .where(WindowRow.topic == bindparam("topic"))
    .order_by(WindowRow.window.desc())
    .limit(_LOOKED_AT)
    .subquery()
)
_NEWEST_IN_TABLE = select(func.max(_NEWEST.c.window)).where(_NEWEST.c.positions.contains(f'"{TABLE}"'))


@dataclass(frozen=True, slots=True)
class Lane:
    """Events of the windows of a day at one tier, in one line."""

    name: str
    drawn: Markup
    text: str
    is_bad: bool


@dataclass(frozen=True, slots=True)
class Load:
    """The newest counted edition of a load."""

    load: int
    edition: int
    counted: int
    parts: int
    rows: int | None
    """None for a load of an earlier version, which reported no rows."""
    rejected: int
    hours: str


class TopicPage:
    """The page's values, read from one state of the database."""

    def __init__(
        self,
        session: Session,
        options: AuditOptions,
        numbers: AuditNumbers,
        cluster: ClusterSeen,
        topic: str,
        until: int | None,
    ) -> None:
        self._session, self._options, self._numbers = session, options, numbers
        self._cluster, self._topic = cluster, topic
        self._now = options.clock_ms()
        self.now = utc(self._now)
        self._end = newest_end(session, self._now) if until is None else until
        self._start = self._end - DAY_MS

    def values(self) -> dict[str, Any]:
        """Return the values of the template."""
        session, topic = self._session, self._topic
        answer = answers.completeness(session, self._options, topic, self._start, self._end)
        homes = homes_of(self._options.origins, answer.windows)
        steps = [steps_of(homes, [window]) for window in answer.windows]
        still_open = incidents.find(session, self._options, is_open=True, topic=topic)
        cards = [one for one in still_open if one.verdict != Verdict.PENDING]
        behind_s = None if answer.watermark is None else (self.now - answer.watermark).total_seconds()
        in_table = self._newest_in_table()
        return {
            "now": self.now,
            "topic": topic,
            "answer": answer,
            "verdict": cards[0].verdict if cards else answer.verdict,
            "state": _state(answer, [one.verdict for one in cards], behind_s),
            "cards": cards,
            "behind_s": behind_s,
            "since": lambda time: duration((self.now - time).total_seconds()),
            "in_table": in_table,
            "events": sum(window.acknowledged + window.carried for window in answer.windows),
            "failed": sum(window.failed for window in answer.windows),
            "wrong": sum(one.events.get(topic, 0) for one in cards),
            "rejected_day": sum(window.rejected for window in answer.windows),
            "producers": self._producers(),
            "start": utc(self._start),
            "end": utc(self._end),
            "earlier": utc(self._start),
            "later": utc(self._end + DAY_MS) if self._end < self._now else None,
            "chart": _chart(answer.windows, self.now),
            "lanes": [*_lanes(steps)],
            "cells": self._cells(answer.windows),
            "ticks": [utc(at) for at in range(self._start, self._end, 3 * HOUR_MS)],
            "windows": [*zip(answer.windows, steps, strict=True)],
            "homes": homes,
            "hops": self._numbers.hops(topic),
            "partitions": self._partitions(),
            "loads": self._loads(),
            "rejected": self._rejected(),
            "groups": [one for one in self._cluster.groups if one.topic == topic],
            "trouble": self._cluster.trouble,
            "queries": _queries(topic, in_table, answer.watermark),
        }

    def _cells(self, windows: Sequence[Window]) -> Markup:
        verdicts = [
            Verdict(hour.verdict)
            if hour.acknowledged or hour.tiers or hour.verdict != Verdict.COMPLETE
            else None
            for hour in by_hour(windows)
        ]
        return hour_cells(self._topic, joined(verdicts), self._start, ())

    def _producers(self) -> int:
        """Return the number of producer instances that have not ended."""
        if self._session.get(TopicRow, self._topic) is None:
            return 0
        (facts,) = topic_facts(self._session, self._options, Progress(self._session), [self._topic])
        return len(facts.instances)

    def _partitions(self) -> list[tuple[PartitionLine, Markup]]:
        """Return the topic's partitions, each with its lag drawn beside the largest lag."""
        lines = [line for line in partitions_of(Progress(self._session)) if line.topic == self._topic]
        largest = max((line.lag or 0 for line in lines), default=0)
        return [(line, charts.bar((line.lag or 0) / (largest or 1))) for line in lines]

    def _loads(self) -> list[Load]:
        """Return the newest loads, the newest first."""
        newest = select(LoadRow).where(LoadRow.topic == self._topic)
        rows = self._session.scalars(
            newest.order_by(LoadRow.load.desc(), LoadRow.edition.desc()).limit(4 * MOST_LOADS)
        )
        of_load: dict[int, LoadRow] = {}
        for row in rows:
            of_load.setdefault(row.load, row)
        return [self._load(row) for row in [*of_load.values()][:MOST_LOADS]]

    def _load(self, row: LoadRow) -> Load:
        hours = LoadHourRow
        of_load = (hours.topic == row.topic, hours.load == row.load, hours.edition == row.edition)
        in_hours = case((hours.hour > NOTHING, hours.hour))  # the quarantine has no hour
        sums = (func.sum(hours.rows), func.sum(hours.rejected), func.min(in_hours), func.max(in_hours))
        rows, rejected, first, last = self._session.execute(select(*sums).where(*of_load)).one()
        text = "" if first is None else f"{utc(first):%m-%d %H}"
        if last != first:
            text += f" to {utc(last):%m-%d %H}"
        return Load(
            load=row.load,
            edition=row.edition,
            counted=row.counted,
            parts=row.parts,
            rows=int(rows or 0) if row.whole else None,
            rejected=int(rejected or 0),
            hours=text,
        )

    def _newest_in_table(self) -> datetime | None:
        """Return the end of the newest published hour with events."""
        window = self._session.scalar(_NEWEST_IN_TABLE, {"topic": self._topic})
        return None if window is None else utc(window - window % HOUR_MS + HOUR_MS)

    def _rejected(self) -> list[Mapping[str, Any]]:
        """Return the messages that loads set aside, by load and reason, the newest first."""
        table = RejectedRow
        sums = select(table.load, table.reason, func.sum(table.messages).label("messages"))
        sums = sums.where(table.topic == self._topic).group_by(table.load, table.reason)
        rows = self._session.execute(sums.order_by(table.load.desc(), table.reason).limit(MOST_REJECTED))
        return [row._asdict() for row in rows]


def _state(answer: Completeness, verdicts: Sequence[str], behind_s: float | None) -> str:
    if Verdict.INCOMPLETE in verdicts:
        return "bad"
    return "good" if not verdicts and behind_s is not None and behind_s <= LATE_S else "unknown"


def _chart(windows: Sequence[Window], now: datetime) -> Mapping[str, Any]:
    """Return the drawing of the acknowledged events, and the texts of its axis."""
    sent = [window.acknowledged + window.carried if window.start < now else None for window in windows]
    most = max(filter(None, sent), default=0)
    end = charts.axis_end(most)
    drawn = charts.drawing(
        len(sent),
        charts.grid(4),
        charts.area(sent, end, "ar c1"),
        charts.steps(sent, end, "l c1"),
        label=f"Events of each ten minutes; the most are {most:,}",
        is_read=True,
    )
    return {"drawn": drawn, "axis": [short(end * part / 4) for part in (4, 3, 2, 1, 0)]}


def _lanes(windows: Sequence[Sequence[Step]]) -> list[Lane]:
    """Return a lane for each tier: windows that are there, that lack events, or that are on their way."""
    lanes = []
    for of_tier in zip(*windows, strict=True):
        kinds = [step.state for step in of_tier]
        lost, lacks = sum(step.lost for step in of_tier), kinds.count("miss")
        waits = kinds.count("wait")
        text = f"X {lost:,}" if lost else "as before" if lacks else f"~ {waits} to come" if waits else "all"
        label = f"{of_tier[0].name}: {kinds.count('miss')} windows lack events, {waits} are on their way"
        drawn = charts.drawing(len(kinds), charts.runs(kinds), label=label, is_read=True)
        lanes.append(Lane(of_tier[0].name, drawn, text, bool(lost)))
    return lanes


def _queries(topic: str, in_table: datetime | None, watermark: datetime | None) -> list[tuple[str, str]]:
    """Return queries of the newest hour that is published and proven; none without such an hour."""
    if in_table is None or watermark is None:
        return []
    end = min(in_table, watermark.replace(minute=0))
    first, last = (f"{time:%Y-%m-%d %H:%M:%S}" for time in (end - timedelta(hours=1), end))
    table = f'CATALOG.millrace."{topic}"'
    where = f"WHERE _time >= TIMESTAMP '{first} UTC'\n  AND _time < TIMESTAMP '{last} UTC'"
    scan = f"_time >= '{first.replace(' ', 'T')}+00:00' and _time < '{last.replace(' ', 'T')}+00:00'"
    return [
        ("Spark", f"SELECT * FROM {table.replace(chr(34), chr(96))}\n{where}"),
        ("Trino", f"SELECT * FROM {table}\n{where}"),
        ("PyIceberg", f'load_catalog("CATALOG").load_table("millrace.{topic}").scan("{scan}").to_pandas()'),
    ]
