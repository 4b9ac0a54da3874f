"""Content of the console's first page: the state in one sentence, incidents, the way of the events, the map.

Judges nothing: verdicts come from `heat`, causes from `incidents`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from millrace.errors import MillraceError
from millrace.service.pages import clock, duration, iso, short
from millrace_audit.answer import Incident, Topic, Verdict, utc
from millrace_audit.auditor.judging import incidents
from millrace_audit.auditor.options import AuditOptions
from millrace_audit.auditor.records.progress import Progress
from millrace_audit.auditor.service import answers, charts
from millrace_audit.auditor.service.heat import DAY_MS, TopicHours, hours_of_all, newest_end
from millrace_audit.auditor.store import TopicRow, WindowRow
from millrace_audit.reports.counts import HOUR_MS
from millrace_audit.reports.messages import OFFLINE, TABLE, WAREHOUSE

DAYS = (2, 7, 30)
"""Numbers of days that the map may show."""
LATE_S = 3 * 3600
"""Age of a watermark from which on its topic is held back, as for the alert MillraceWatermarkOld."""
FULL_S = 12 * 3600
"""Age of a watermark at which its bar is full."""
STALE_S = 60
"""Age of a heartbeat after which a tier is stale."""
MOST_INCIDENTS = 20
MOST_LINKED = 60
"""Most topics for which all hours of two days are links; else only those of topics that are held back."""
SORTS = {"worst": "Worst first", "name": "Name", "behind": "Furthest behind", "size": "Most events"}
STATES = ("held", Verdict.INCOMPLETE, Verdict.UNKNOWN, Verdict.PENDING, Verdict.CARRIED)
SHOWN: Sequence[Verdict | None] = (*Verdict, None)
"""Verdicts in the order of the legend; None for an hour without events."""
_WORST_FIRST = tuple(Verdict)


@dataclass(frozen=True, slots=True)
class View:
    """Requested part of the map: a number of days up to a time, or up to now, and a filter of its rows."""

    days: int = DAYS[0]
    until: int | None = None
    """End of the map in ms, a full hour."""
    words: str = ""
    state: str = ""
    sort: str = "worst"

    def __post_init__(self) -> None:
        """Raise MillraceError for a value that no page offers."""
        if self.days not in DAYS:
            raise MillraceError(f"days={self.days}: take {', '.join(map(str, DAYS[:-1]))} or {DAYS[-1]}")
        if self.state and self.state not in STATES:
            raise MillraceError(f"state={self.state}: take one of {', '.join(STATES)}")
        if self.sort not in SORTS:
            raise MillraceError(f"sort={self.sort}: take one of {', '.join(SORTS)}")

    def link(self, **more: Any) -> str:
        """Return the address of the view with other values."""
        query: dict[str, Any] = {"days": self.days}
        if self.until is not None:
            query["until"] = iso(utc(self.until))
        query |= {"q": self.words, "state": self.state, "sort": "" if self.sort == "worst" else self.sort}
        return "?" + urlencode({name: value for name, value in (query | more).items() if value != ""})


@dataclass(frozen=True, slots=True)
class Row:
    """A topic in the map."""

    known: Topic
    state: str
    """Worst verdict of its open incidents, or of the hours in the map; empty if there is none."""
    is_held: bool
    """True if an incident affects it, or if its watermark is late."""
    behind_s: float | None
    """Age of its watermark; None without one."""
    cells: Markup
    is_strip: bool
    events: Sequence[int]
    """Number of events in each of 24 hours."""

    @property
    def is_new(self) -> bool:
        """True if nothing of it is proven yet, and no incident is the reason."""
        return self.behind_s is None and not self.is_held

    @property
    def size(self) -> int:
        return sum(self.events)

    @property
    def bar(self) -> Markup:
        return charts.bar((self.behind_s or 0) / FULL_S, "late" if self.is_held else "")

    @property
    def spark(self) -> Markup:
        return charts.spark(tuple(self.events), f"events of 24 hours: {short(self.size)}")


@dataclass(frozen=True, slots=True)
class Tier:
    """A step on the way of the events."""

    name: str
    counted: str
    note: str
    state: str
    """`bad` if events were lost there, `late` if its reader is stale or missing, else empty."""


class Overview:
    """The page's values, read from one state of the database."""

    def __init__(self, session: Session, options: AuditOptions, view: View) -> None:
        self._session, self._options, self._view = session, options, view
        self._now = options.clock_ms()
        self.now = utc(self._now)
        self._end = newest_end(session, self._now) if view.until is None else view.until
        if view.days != DAYS[0]:
            self._end += -self._end % DAY_MS  # a cell is a day
        self._start = self._end - view.days * DAY_MS

    def values(self) -> dict[str, Any]:
        """Return the values of the template."""
        view, span = self._view, self._view.days * DAY_MS
        still_open = incidents.find(self._session, self._options, is_open=True)
        cards = sorted(filter(self._needs_operator, still_open), key=lambda one: bool(one.acknowledged_by))
        rows = self._rows(cards)
        proven = [row for row in rows if not row.is_held and not row.is_new]
        held = sum(row.is_held for row in rows)
        marks = [row.known.watermark for row in proven if row.known.watermark is not None]
        ended = self._ended()
        return {
            "now": self.now,
            "state": _state(cards, held),
            "view": view,
            "rows": rows,
            "proven": len(proven),
            "held": held,
            "mark": clock(min(marks), self.now) if marks else "",
            "cards": cards[:MOST_INCIDENTS],
            "open": len(cards),
            "more": len(cards) - MOST_INCIDENTS,
            "answered": sum(bool(one.acknowledged_by) for one in cards),
            "unanswered": sum(not one.acknowledged_by for one in cards),
            "waiting": [one for one in still_open if not self._needs_operator(one)],
            "wrong": _wrong(cards),
            "ended": ended,
            "way": self._way(still_open),
            "spans": [(f"{days} d" if days > 2 else "48 h", view.link(days=days), days) for days in DAYS],
            "earlier": view.link(until=iso(utc(self._end - span))),
            "later": view.link(until=iso(utc(self._end + span))) if self._end < self._now else "",
            "newest": view.link(until=""),
            "start": utc(self._start),
            "end": utc(self._end),
            "scale": [*self._scale()],
            "since": lambda time: duration((self.now - time).total_seconds()),
            "sorts": SORTS,
            "states": STATES,
            "shown": SHOWN,
        }

    def _needs_operator(self, one: Incident) -> bool:
        """True for a cause that is no wait, or for a wait that has lasted too long."""
        waits_s = (self.now - one.first_hour).total_seconds()
        return one.verdict != Verdict.PENDING or waits_s > LATE_S + 3600

    def _ended(self) -> list[Incident]:
        since = self._now - 7 * DAY_MS
        ended = incidents.find(self._session, self._options, is_open=False, resolved_since=since)
        ended = [one for one in ended if one.verdict != Verdict.PENDING]
        return sorted(ended, key=lambda one: one.last_seen, reverse=True)[:MOST_INCIDENTS]

    def _rows(self, cards: Sequence[Incident]) -> list[Row]:
        """Return the rows of the map in the order of the view."""
        progress = Progress(self._session)
        found = hours_of_all(self._session, self._options, progress, self._start, self._end)
        events = self._events()
        states: dict[str, str] = {}
        notes: dict[str, dict[datetime, str]] = {}
        for one in reversed(cards):  # the worst last
            states |= dict.fromkeys(one.topics, one.verdict)
            for topic, hours in one.hours.items():
                notes.setdefault(topic, {}).update(dict.fromkeys(hours, one.what))
        rows = [self._row(each, states, notes, events, is_long=len(found) > MOST_LINKED) for each in found]
        return sorted(rows, key=_ORDERS[self._view.sort])

    def _row(
        self,
        each: TopicHours,
        states: Mapping[str, str],
        notes: Mapping[str, Mapping[datetime, str]],
        events: Mapping[str, Sequence[int]],
        *,
        is_long: bool,
    ) -> Row:
        known = each.known
        behind_s = None if known.watermark is None else (self.now - known.watermark).total_seconds()
        is_held = known.topic in states or (behind_s is not None and behind_s > LATE_S)
        state = states.get(known.topic) or next((one for one in _WORST_FIRST if one in each.hours), "")
        is_strip = self._view.days != DAYS[0] or (is_long and not is_held)
        if is_strip:
            cells = strip(known.topic, joined(each.hours), self._start)
        else:
            noted = notes.get(known.topic)
            titles = tuple(noted.get(utc(at), "") for at in self._hours()) if noted else ()
            cells = hour_cells(known.topic, joined(each.hours), self._start, titles)
        return Row(known, state, is_held, behind_s, cells, is_strip, events.get(known.topic, [0] * 24))

    def _hours(self) -> range:
        return range(self._start, self._end, HOUR_MS)

    def _events(self) -> dict[str, list[int]]:
        """Return topic -> number of events in each of the map's newest 24 full hours."""
        end = min(self._end, self._now - self._now % HOUR_MS)
        start = end - DAY_MS
        hour = WindowRow.window - WindowRow.window % HOUR_MS
        sums = select(WindowRow.topic, hour, func.sum(WindowRow.events)).group_by(WindowRow.topic, hour)
        found: dict[str, list[int]] = {}
        # The condition on the topic makes SQLite read a part of its index, not all of it.
        here = (WindowRow.topic.in_(select(TopicRow.topic)), WindowRow.window.between(start, end - 1))
        for topic, at, number in self._session.execute(sums.where(*here)):
            found.setdefault(topic, [0] * 24)[(at - start) // HOUR_MS] = int(number)
        return found

    def _way(self, still_open: Sequence[Incident]) -> list[Tier]:
        """Return the tiers in the order of the events, with what each has lost."""
        heartbeats, lost = answers.heartbeats(self._session), dict[str, int]()
        for one in still_open:
            if tier := _LOSSES.get(one.rule) or one.key.partition(f"{_LOST_AT_HOME}:")[2]:
                lost[tier] = lost.get(tier, 0) + sum(one.events.values())
        homes = [*self._options.origins]
        names = [*homes, OFFLINE, *([WAREHOUSE, TABLE] if WAREHOUSE in heartbeats else [])]
        way = []
        for name in names:
            heartbeat = heartbeats.get(WAREHOUSE if name == TABLE else name)
            age_s = None if heartbeat is None else max(self._now - heartbeat, 0) / 1000
            is_stale = age_s is None or (age_s > STALE_S and name in (*homes, OFFLINE))
            counted = "no heartbeat" if age_s is None else f"{duration(age_s)} ago"
            note = f"lacks {lost[name]:,}" if lost.get(name) else "stale" if is_stale else "counted"
            way.append(Tier(name, counted, note, "bad" if lost.get(name) else "late" if is_stale else ""))
        return way

    def _scale(self) -> Iterator[tuple[str, str]]:
        """Yield the text and class above each column of the map."""
        if self._view.days != DAYS[0]:
            every = 1 if self._view.days == 7 else 3
            for number, at in enumerate(range(self._start, self._end, DAY_MS)):
                day = utc(at)
                yield f"{day:%m-%d}" if number % every == 0 else "", "day" if day.weekday() == 0 else ""
            return
        for hour in map(utc, self._hours()):
            text = "" if hour.hour % 6 else f"{hour:%H}" if hour.hour else f"{hour:%m-%d}"
            yield text, "" if hour.hour else "day"


_LOST_AT_HOME = "missing-at-home"
_LOSSES = {"missing-at-offline": OFFLINE, "missing-at-warehouse": WAREHOUSE, "missing-in-table": TABLE}
"""Rule about lost events -> tier that lacks them."""


def _state(cards: Sequence[Incident], held: int) -> str:
    """Return the state that the page's icon and its edge show: `good`, `unknown` or `bad`."""
    if any(one.verdict == Verdict.INCOMPLETE for one in cards):
        return "bad"
    return "unknown" if cards or held else "good"


def _wrong(cards: Sequence[Incident]) -> tuple[int, int, int]:
    """Return the number of wrong events, of hours of topics with them, and of those topics."""
    hours = {
        (topic, hour)
        for one in cards
        if one.verdict == Verdict.INCOMPLETE
        for topic, some in one.hours.items()
        for hour in some
    }
    events = sum(sum(one.events.values()) for one in cards if one.verdict == Verdict.INCOMPLETE)
    return events, len(hours), len({topic for topic, _ in hours})


def _rank(row: Row) -> tuple[bool, bool, int, float, str]:
    state = Verdict(row.state) if row.state else Verdict.COMPLETE
    worst = _WORST_FIRST.index(state) if row.is_held else len(_WORST_FIRST)
    behind_s = -(row.behind_s or 0) if row.is_held else 0
    return not row.is_held, row.is_new, worst, behind_s, row.known.topic


_ORDERS = {
    "worst": _rank,
    "name": lambda row: row.known.topic,
    "behind": lambda row: (-float("inf") if row.behind_s is None else -row.behind_s, row.known.topic),
    "size": lambda row: (-row.size, row.known.topic),
}


def joined(hours: Iterable[Verdict | None]) -> str:
    """Return the verdicts as one text, which is hashed in a fraction of the time."""
    return ",".join([verdict or "" for verdict in hours])


# Rows that have not changed since the last page are not built again.
@lru_cache(maxsize=1024)
def hour_cells(topic: str, hours: str, start: int, notes: Sequence[str]) -> Markup:
    """Return a link to the page of each hour of `joined` ones, with the incidents' `notes` as titles."""
    query = urlencode({"topic": topic})
    kinds, cells = hours.split(","), []
    for number, (verdict, at) in enumerate(zip(kinds, _times(start, len(kinds), HOUR_MS), strict=True)):
        title = Markup(' title="{}"').format(notes[number]) if notes and notes[number] else ""
        cells.append(
            f'<a href="hour?{query}&amp;at={at}" class="{verdict or "none"}"'
            f' aria-label="{at[5:10]} {at[11:]}:00 {verdict or "no events"}"{title}></a>'
        )
    return Markup("".join(cells))


@lru_cache(maxsize=64)
def _times(start: int, count: int, every: int) -> Sequence[str]:
    """Return times as links have them, such as 2026-11-27T04. Formatting costs more than the other text."""
    return [f"{utc(start + number * every):%Y-%m-%dT%H}" for number in range(count)]


@lru_cache(maxsize=1024)
def strip(topic: str, hours: str, start: int) -> Markup:
    """Return a strip of `joined` hours, and over it a link to the page of the topic for each day."""
    kinds = hours.split(",")
    query = urlencode({"topic": topic})
    first = start - start % DAY_MS
    days = [
        kinds[max(at - start, 0) // HOUR_MS : (at + DAY_MS - start) // HOUR_MS]
        for at in range(first, start + len(kinds) * HOUR_MS, DAY_MS)
    ]
    links, times = [], _times(first, len(days) + 1, DAY_MS)
    for number, those in enumerate(days):
        worst = next((verdict for verdict in _WORST_FIRST if verdict in those), "")
        title = ""
        if worst in (Verdict.INCOMPLETE, Verdict.UNKNOWN):
            title = f' title="{those.count(worst)} h {worst}"'
        links.append(
            f'<a href="topic?{query}&amp;until={times[number + 1][:10]}T00:00Z" class="d {worst or "none"}"'
            f' aria-label="{times[number][5:10]} {worst or "no events"}"{title}></a>'
        )
    drawn = Markup(
        '<svg class="strip" viewBox="0 0 {} 1" preserveAspectRatio="none" aria-hidden="true">{}</svg>'
    ).format(len(kinds), Markup(charts.runs(kinds, 1)))
    return drawn + Markup("".join(links))
