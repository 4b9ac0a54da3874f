"""The console: one web page, rendered from the database on every request.

    GET /console?days=2&until=ISO             incidents, hours, topics, mirrors, loads, groups, replicas
    GET /console?...&topic=NAME&at=DATE[THH]  the same, after details of one day or hour of a topic

The page changes nothing, and judges no window itself. The template escapes all texts from producers. Headers
allow the browser only the script and the style file beside the template.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from fastapi import FastAPI, Response
from fastapi.responses import HTMLResponse
from sqlalchemy import String, bindparam, cast, func, select
from sqlalchemy.orm import Session

from millrace.client.cluster_client import LATEST, ClusterClient
from millrace.client.group_client import GroupClient
from millrace.config import parse_time
from millrace.errors import MillraceError
from millrace.service.pages import HEADERS, templates_in
from millrace.service.web import ICON
from millrace_audit.answer import Completeness, Verdict, by_hour, iso, tiers_of, utc
from millrace_audit.auditor.judging import incidents
from millrace_audit.auditor.options import AuditOptions
from millrace_audit.auditor.records.progress import Progress, names_by_number
from millrace_audit.auditor.service import answers
from millrace_audit.auditor.service.heat import TopicHours, hours_of_all, newest_end
from millrace_audit.auditor.service.metrics import AuditNumbers
from millrace_audit.auditor.store import AuditStore, LoadRow, RejectedRecordRow, WindowRow
from millrace_audit.reports.counts import HOUR_MS
from millrace_audit.reports.messages import OFFLINE, TABLE, WAREHOUSE
from millrace_audit.reports.mirrors import NO_ID
from millrace_audit.reports.ranges import in_words

DAY_MS = 24 * HOUR_MS
DAYS = (2, 7, 30)
"""Numbers of days that a picture may show."""
MOST_GROUPS = 100
MOST_INCIDENTS = 20
MOST_LACKING = 100
"""Most partitions to show that lack a leader or replicas."""
_LOOKED_AT = 48
"""Number of a topic's newest windows in which to look for the newest published hour."""
MARKS: Mapping[Verdict | None, str] = {
    Verdict.COMPLETE: "+",
    Verdict.CARRIED: "=",
    Verdict.PENDING: "~",
    Verdict.UNKNOWN: "?",
    Verdict.INCOMPLETE: "X",
    None: "·",
}
"""Character of each verdict in the picture, which is readable without colours."""
_PAGES = Path(__file__).with_name("pages")
_LOOK_AGAIN_S = 5.0
_BROKERS_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class GroupLag:
    """A consumer group of the aggregate cluster and its lag in a topic."""

    group: str
    state: str
    members: int
    topic: str
    lag: int | None
    """Offsets over all partitions: bytes on Millrace, messages on Apache Kafka; None if unknown."""


@dataclass(frozen=True, slots=True)
class LackingPartition:
    """A partition of the aggregate cluster without a leader, or with replicas that are not in sync."""

    name: str
    leader: int
    """Broker id; -1 without a leader."""
    replicas: Sequence[int]
    in_sync: Sequence[int]


@dataclass(frozen=True, slots=True)
class ClusterSeen:
    """The aggregate cluster's groups, and its partitions that lack a leader or replicas."""

    groups: Sequence[GroupLag] = ()
    lacking: Sequence[LackingPartition] = ()
    is_known: bool = False
    """False if the cluster was not read; `trouble` has the reason."""
    trouble: str = ""
    """Reason for which the cluster is not shown in full."""


class ClusterLook:
    """State of the aggregate cluster, seconds old, so that no page waits for a broker."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._lock = threading.Lock()
        self._due = 0.0
        self._seen = ClusterSeen(trouble="the brokers are being asked: look again in a moment")

    def seen(self) -> ClusterSeen:
        """Return the last state; when it is old, start a thread that reads it again."""
        with self._lock:
            if time.monotonic() >= self._due:
                self._due = float("inf")  # until this look is over
                threading.Thread(target=self._look, name="console-cluster", daemon=True).start()
            return self._seen

    def _look(self) -> None:
        try:
            seen = self._ask()
        except (MillraceError, OSError) as error:
            seen = ClusterSeen(trouble=str(error))
        finally:
            with self._lock:
                self._due = time.monotonic() + _LOOK_AGAIN_S
        self._seen = seen

    def _ask(self) -> ClusterSeen:
        with ClusterClient(self._bootstrap, timeout_s=_BROKERS_TIMEOUT_S) as cluster:
            lacking = _lacking(cluster)
            client = GroupClient(cluster)
            groups = sorted(client.groups().items())
            lags = []
            ends: dict[str, Mapping[int, int]] = {}
            for name, group in groups[:MOST_GROUPS]:
                topics: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
                for (topic, partition), offset in client.offsets(name).items():
                    topics[topic].append((partition, offset))
                for topic, committed in topics.items():
                    if topic not in ends:
                        ends[topic] = _ends(cluster, topic)
                    behind = [max(ends[topic].get(number, at) - at, 0) for number, at in committed]
                    lag = sum(behind) if ends[topic] else None
                    lags.append(GroupLag(name, group.state, len(group.members), topic, lag))
                if not topics:
                    lags.append(GroupLag(name, group.state, len(group.members), "", None))
        more = len(groups) - MOST_GROUPS
        trouble = f"{more} more groups: see `millrace groups list`" if more > 0 else ""
        return ClusterSeen(lags, lacking, is_known=True, trouble=trouble)


def _lacking(cluster: ClusterClient) -> Sequence[LackingPartition]:
    return [
        LackingPartition(f"{name}-{number}", topic.partitions[number], copies.replicas, copies.isr)
        for name, topic in sorted(cluster.topics().items())
        for number, copies in topic.copies.items()
        if topic.partitions[number] < 0 or len(copies.isr) < len(copies.replicas)
    ]


def _ends(cluster: ClusterClient, topic: str) -> Mapping[int, int]:
    try:
        served = [number for number, leader in cluster.topic(topic).partitions.items() if leader >= 0]
        return cluster.list_offsets(topic, LATEST, served)
    except MillraceError:  # deleted since, or its brokers are away
        return {}


@dataclass(frozen=True, slots=True)
class Run:
    """Hours of a row that are next to each other and have one verdict, or one hour alone."""

    text: str
    verdict: str
    link: str
    title: str


@dataclass(slots=True)
class PartitionLine:
    """A partition at a tier: the offset up to which it is counted, and its lag behind its source."""

    topic: str
    tier: str
    partition: int
    end: int
    source: str = ""
    lag: int | None = None
    """Offsets of the source that this tier lacks; None if unknown."""


def add_console(
    app: FastAPI, store: AuditStore, options: AuditOptions, numbers: AuditNumbers, cluster: ClusterLook | None
) -> None:
    """Serve the page and its three files."""
    templates = templates_in(_PAGES)
    templates.globals.update(marks=MARKS, iso=iso, in_words=in_words, verdicts=[*Verdict][::-1])
    templates.filters.update(minute=_minute, ago=_ago, count=_count)
    page = templates.get_template("console.html")

    @app.get("/console", response_class=HTMLResponse)
    def console(
        days: int = DAYS[0], until: str | None = None, topic: str | None = None, at: str | None = None
    ) -> Response:
        """Render the web page."""
        try:
            view = _View.of(days, until)
            with store.reading() as session:
                shown = _Console(session, options, numbers, view)
                detail = shown.detail(topic, at) if topic and at else None
                overview = shown.overview()
        except MillraceError as error:
            return HTMLResponse(page.render(error=str(error)), status_code=400, headers=HEADERS)
        seen = cluster.seen() if cluster else ClusterSeen(trouble="no broker is asked here")
        text = page.render(error=None, detail=detail, cluster=seen, most=MOST_LACKING, **overview)
        return HTMLResponse(text, headers=HEADERS)

    for name, kind in (("console.css", "text/css"), ("console.js", "text/javascript")):
        _serve(app, name, f"{kind}; charset=utf-8", (_PAGES / name).read_bytes())
    _serve(app, "icon.svg", "image/svg+xml", ICON)


def _serve(app: FastAPI, name: str, kind: str, content: bytes) -> None:
    @app.get(f"/console/{name}", name=name)
    def file() -> Response:
        """Return a file of the console."""
        return Response(content, media_type=kind, headers=HEADERS)


@dataclass(frozen=True, slots=True)
class _View:
    """Requested hours: a number of days up to a time, or up to now."""

    days: int
    until: int | None

    @classmethod
    def of(cls, days: int, until: str | None) -> _View:
        if days not in DAYS:
            raise MillraceError(f"days={days}: take {', '.join(map(str, DAYS[:-1]))} or {DAYS[-1]}")
        return cls(days, None if until is None else _full_hour(until, "until"))

    def link(self, **more: Any) -> str:
        query: dict[str, Any] = {"days": self.days}
        if self.until is not None:
            query["until"] = iso(self.until)
        return "?" + urlencode(query | more)


class _Console:
    """Content of one page, read from one state of the database."""

    def __init__(self, session: Session, options: AuditOptions, numbers: AuditNumbers, view: _View) -> None:
        self._session, self._options, self._numbers, self._view = session, options, numbers, view
        self._now = options.clock_ms()
        self._end = newest_end(session, self._now) if view.until is None else view.until
        self._start = self._end - view.days * DAY_MS

    def overview(self) -> dict[str, Any]:
        session = self._session
        progress = Progress(session)
        topics = hours_of_all(session, self._options, progress, self._start, self._end)
        partitions = list(_partitions(progress))
        by_topic: defaultdict[str, list[PartitionLine]] = defaultdict(list)
        for line in partitions:
            by_topic[line.topic].append(line)
        newest = answers.heartbeats(session)
        rejected_records = session.scalar(select(func.sum(RejectedRecordRow.count))) or 0
        tiers = [
            (tier, utc(newest[tier]) if tier in newest else None, (self._now - newest.get(tier, 0)) / 1000)
            for tier in dict.fromkeys((*self._options.origins, OFFLINE, *sorted(newest)))
        ]
        view, span = self._view, self._view.days * DAY_MS
        return {
            "now": utc(self._now),
            "tiers": tiers,
            "view": view,
            "spans": [(days, _View(days, view.until).link()) for days in DAYS],
            "earlier": _View(view.days, self._end - span).link(),
            "later": _View(view.days, self._end + span).link()
            if self._end + span <= self._now + span
            else "",
            "newest": _View(view.days, None).link(),
            "start": utc(self._start),
            "end": utc(self._end),
            "scale": self._scale(),
            "rows": [(topic.known, [*self._runs(topic)]) for topic in topics],
            "worst": _worst(topics),
            "incidents": incidents.find(session, self._options, is_open=True),
            "most_incidents": MOST_INCIDENTS,
            "by_topic": by_topic,
            "mirrors": _mirrors(partitions),
            "loads": _loads(session),
            "live": {row.known.topic: row.known.live_through for row in topics if row.known.live_through},
            "rejected_records": rejected_records,
        }

    def _scale(self) -> str:
        """Return the line above the picture: days and, in a short picture, every sixth hour."""
        text, hours = "", (self._end - self._start) // HOUR_MS
        for hour in range(self._start, self._end, HOUR_MS):
            if len(text) > (hour - self._start) // HOUR_MS:
                continue
            at, forms = utc(hour), tuple[str, ...]()
            if at.hour == 0:
                forms = ("%a %d %b", "%a %d", "%d")  # shorter forms for the end of the line
            elif self._view.days == DAYS[0] and at.hour % 6 == 0:
                forms = ("%H",)
            names = (at.strftime(form) for form in forms)
            text += next((name for name in names if len(name) <= hours - len(text)), "") + " "
        return text[:hours]

    def _runs(self, row: TopicHours) -> Iterator[Run]:
        """Yield a row's links to its hours, or in a long picture to its days, split by verdict."""
        base = self._view.link(topic=row.known.topic)
        done = 0
        for name, size in self._links:
            for verdict, group in groupby(row.hours[done : done + size]):
                title = f"{name}: {verdict or 'no events'}"
                yield Run(
                    MARKS[verdict] * len([*group]), verdict or "none", f"{base}&at={name}#detail", title
                )
            done += size

    @cached_property
    def _links(self) -> Sequence[tuple[str, int]]:
        """Hours or days that a row links to: name in the link, and number of hours in the picture."""
        by_hour = self._view.days == DAYS[0]
        step = HOUR_MS if by_hour else DAY_MS
        steps = groupby(range(self._start, self._end, HOUR_MS), lambda at: at - at % step)
        form = "%Y-%m-%dT%H" if by_hour else "%Y-%m-%d"
        return [(utc(at).strftime(form), len([*hours])) for at, hours in steps]

    def detail(self, topic: str, at: str) -> dict[str, Any]:
        """Return the details of an hour by its windows, or of a day by its hours."""
        first, is_hour = _full_hour(at, "at"), "T" in at
        last = first + (HOUR_MS if is_hour else DAY_MS)
        answer = answers.completeness(self._session, self._options, topic, first, last)
        rows = answer.windows if is_hour else by_hour(answer.windows)
        base = self._view.link(topic=topic)
        links = {} if is_hour else {one.start: f"{base}&at={one.start:%Y-%m-%dT%H}#detail" for one in rows}
        return {
            "answer": answer,
            "is_hour": is_hour,
            "rows": rows,
            "rejected": any(row.rejected for row in rows),
            "links": links,
            "close": self._view.link(),
            "tiers": tiers_of(answer.windows),
            "findings": [(window.start, one) for window in answer.windows for one in window.findings],
            "reasons": _reasons(answer),
            "delays": self._numbers.delays(topic),
            "partitions": [line for line in _partitions(Progress(self._session)) if line.topic == topic],
            "history": answers.history(self._session, topic, first, last),
        }


def _partitions(progress: Progress) -> Iterator[PartitionLine]:
    """Yield every partition at every tier that counts it, with its lag behind its source."""
    rows = [row for row in progress.coverage if not row.gone]
    ends = {(row.tier, f"{row.topic_id}-{row.partition}"): row.end for row in rows}
    of_topic: defaultdict[tuple[str, str], list[Any]] = defaultdict(list)
    for row in rows:
        of_topic[row.tier, row.topic].append(row)
    for row in rows:
        line = PartitionLine(row.topic, row.tier, row.partition, row.end)
        if row.origin is not None:
            cluster, name, at = row.origin
            line.source = f"{cluster}-{name.rpartition('-')[2]}"
            if name.startswith(NO_ID.hex):
                name = names_by_number(of_topic[cluster, row.topic]).get(name, name)
            there = ends.get((cluster, name))
            if there is not None and (at is not None or not there):  # no position before the first append
                line.lag = max(there - (at or 0), 0)
        elif row.tier == WAREHOUSE:
            there = ends.get((OFFLINE, f"{row.topic_id}-{row.partition}"))
            line.source, line.lag = OFFLINE, None if there is None else max(there - row.end, 0)
        yield line


@dataclass(frozen=True, slots=True)
class MirrorLine:
    """Mirrored partitions of an origin, all topics together."""

    origin: str
    partitions: int
    lag: int
    behind: int
    """Partitions that lag behind their origin."""
    unknown: int
    """Partitions with an unknown lag."""


def _mirrors(partitions: Sequence[PartitionLine]) -> list[MirrorLine]:
    by_origin: defaultdict[str, list[PartitionLine]] = defaultdict(list)
    for line in partitions:
        if line.tier == OFFLINE and line.source:
            by_origin[line.source.rpartition("-")[0]].append(line)
    return [
        MirrorLine(
            origin,
            len(lines),
            sum(line.lag or 0 for line in lines),
            sum(bool(line.lag) for line in lines),
            sum(line.lag is None for line in lines),
        )
        for origin, lines in sorted(by_origin.items())
    ]


_NEWEST = (
    select(WindowRow.window, cast(WindowRow.positions, String).label("positions"))
    .where(WindowRow.topic == bindparam("topic"))
    .order_by(WindowRow.window.desc())
    .limit(_LOOKED_AT)
    .subquery()
)
_NEWEST_IN_TABLE = select(func.max(_NEWEST.c.window)).where(_NEWEST.c.positions.contains(f'"{TABLE}"'))


def _loads(session: Session) -> list[dict[str, Any]]:
    """Return each topic's newest reported load, and the newest hour in its published table."""
    newest = select(LoadRow.topic, func.max(LoadRow.load).label("load")).group_by(LoadRow.topic).subquery()
    rows = session.scalars(
        select(LoadRow)
        .join(newest, (LoadRow.topic == newest.c.topic) & (LoadRow.load == newest.c.load))
        .order_by(LoadRow.topic, LoadRow.edition)
    ).all()
    found = {}
    for row in rows:
        window = session.scalar(_NEWEST_IN_TABLE, {"topic": row.topic})
        found[row.topic] = {
            "topic": row.topic,
            "load": row.load,
            "edition": row.edition,
            "counted": row.counted,
            "parts": row.parts,
            "table": None if window is None else utc(window - window % HOUR_MS),
        }
    return [*found.values()]


def _worst(topics: Sequence[TopicHours]) -> list[tuple[str, int]]:
    """Return the number of the picture's hours with each verdict that is no proof."""
    hours = [verdict for topic in topics for verdict in topic.hours]
    named = (Verdict.INCOMPLETE, Verdict.UNKNOWN, Verdict.PENDING)
    return [(str(verdict), count) for verdict in named if (count := hours.count(verdict))]


def _reasons(answer: Completeness) -> list[str]:
    return [*dict.fromkeys(reason for window in answer.windows for reason in window.reasons)]


def _full_hour(text: str, name: str) -> int:
    at = int(parse_time(text.strip(), name).timestamp() * 1000)
    if at % HOUR_MS or at < 0:
        raise MillraceError(f"{name}={text} is no full hour: write it like 2026-03-01T12:00Z")
    return at


def _minute(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M")


def _ago(seconds: float) -> str:
    """Format a duration with its unit."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def _count(number: int) -> str:
    return f"{number:,}"
