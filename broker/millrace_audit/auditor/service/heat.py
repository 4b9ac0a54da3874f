"""Verdicts on every hour of every topic, for a picture of many days.

The verdict on an hour is that of its worst window. Windows are judged before they are read here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import CTE, BigInteger, ColumnElement, and_, bindparam, exists, func, literal, select
from sqlalchemy.orm import Session

from millrace_audit.answer import Topic, Verdict, overall
from millrace_audit.auditor.judging.topic_facts import TopicFacts, is_listed, listed, topic_facts
from millrace_audit.auditor.options import AuditOptions
from millrace_audit.auditor.records.progress import Progress
from millrace_audit.auditor.service import answers
from millrace_audit.auditor.store import TopicRow, WindowRow, slices
from millrace_audit.auditor.verdict.facts import WindowFacts
from millrace_audit.auditor.verdict.rules import NOTE, causes
from millrace_audit.reports.counts import HOUR_MS, WINDOW_MS, window_start

DAY_MS = 24 * HOUR_MS
_RECENT_MS = 30 * DAY_MS
"""Largest age of the newest event for a picture to end now; else it ends after the newest event."""


@dataclass(frozen=True, slots=True)
class TopicHours:
    """A topic with its verdict on each hour of the picture; None for an hour without events."""

    known: Topic
    hours: Sequence[Verdict | None]


_NEWEST_OF_TOPIC = (
    select(func.max(WindowRow.window))
    .where(WindowRow.topic == TopicRow.topic, WindowRow.window <= bindparam("now"))
    .correlate(TopicRow)
    .scalar_subquery()
)
_NEWEST = select(func.max(_NEWEST_OF_TOPIC)).select_from(TopicRow)


def newest_end(session: Session, now: int) -> int:
    """Return the default end of a picture: after the current hour, or after that of the newest event."""
    newest = session.scalar(_NEWEST, {"now": now})
    end = now if newest is None or newest > now - _RECENT_MS else newest
    return end - end % HOUR_MS + HOUR_MS


def hours_of_all(
    session: Session, options: AuditOptions, progress: Progress, start: int, end: int
) -> list[TopicHours]:
    """Return every topic by name, with its verdicts on the hours of [start, end), both full hours in ms."""
    topics = listed(session)
    judged = _judged_hours(session, topics, start, end)
    firsts = answers.first_windows(session, topics)
    waiting: dict[str, Sequence[Verdict]] = {}
    return [
        TopicHours(
            answers.known_of(session, facts, firsts[facts.topic]),
            _hours(judged[facts.topic], facts, start, end, waiting),
        )
        for facts in topic_facts(session, options, progress, topics)
    ]


def _times(name: str, start: ColumnElement[int], end: ColumnElement[int], step: int) -> CTE:
    """Return the times of [start, end) at a distance of `step`, as the column `at`."""
    times = select(start.label("at")).cte(name, recursive=True)
    following = times.c.at + step
    return times.union_all(select(following).where(following < end))


def _in_span(start: ColumnElement[int], length: int) -> ColumnElement[bool]:
    """True for a window of the topic in `TopicRow` that begins in a span of time."""
    return and_(WindowRow.topic == TopicRow.topic, WindowRow.window.between(start, start + length - 1))


# Built once: building a statement takes longer than executing it.
_START, _END = (bindparam(name, type_=BigInteger) for name in ("start", "end"))
_DAYS = _times("days", _START, _END, DAY_MS)
_HOURS = _times("hours", literal(0, BigInteger), literal(DAY_MS, BigInteger), HOUR_MS)
_HOUR = _DAYS.c.at + _HOURS.c.at
_WINDOWS_OF_DAY = select(func.count()).where(_in_span(_DAYS.c.at, DAY_MS)).correlate(TopicRow, _DAYS)
_WITHOUT_EVENTS = (
    select(TopicRow.topic, _HOUR)
    .join_from(TopicRow, _DAYS, _WINDOWS_OF_DAY.scalar_subquery() < DAY_MS // WINDOW_MS)
    .join(_HOURS, _HOUR < _END)
    .where(~exists().where(_in_span(_HOUR, HOUR_MS)))
)
"""Hours without a window, by topic. Only days that lack windows are searched for them."""
_WITH_WINDOWS = (
    select(WindowRow.topic, WindowRow.window - WindowRow.window % HOUR_MS)
    .where(WindowRow.topic.in_(select(TopicRow.topic).where(is_listed(TopicRow.topic))))
    .where(WindowRow.window >= _START, WindowRow.window < _END)
    .distinct()
)
"""Hours with windows, of the listed topics: others may have as many windows as strangers report."""
_WORST_LAST = (
    (Verdict.CARRIED, _WITH_WINDOWS.where(WindowRow.verdict == Verdict.CARRIED)),
    (Verdict.PENDING, _WITH_WINDOWS.where(WindowRow.is_final.is_(False), WindowRow.is_changed)),
    (Verdict.PENDING, _WITH_WINDOWS.where(WindowRow.verdict == Verdict.PENDING)),
    (Verdict.UNKNOWN, _WITH_WINDOWS.where(WindowRow.verdict == Verdict.UNKNOWN)),
    (Verdict.INCOMPLETE, _WITH_WINDOWS.where(WindowRow.verdict == Verdict.INCOMPLETE)),
)
"""Queries of the hours with windows that are not complete; unjudged changes are pending."""


def _judged_hours(
    session: Session, topics: Sequence[str], start: int, end: int
) -> Mapping[str, list[Verdict | None]]:
    """Return topic -> worst verdict of each hour's windows with events; None for an hour without events.

    Nearly all hours have events and are complete, so only the others are queried.
    """
    judged: dict[str, list[Verdict | None]] = {
        topic: [Verdict.COMPLETE] * ((end - start) // HOUR_MS) for topic in topics
    }
    span = {"start": start, "end": end}
    for verdict, hours in _WORST_LAST:
        for topic, at in session.execute(hours, span):
            if topic in judged:
                judged[topic][(at - start) // HOUR_MS] = verdict
    for some in slices(topics):
        for topic, at in session.execute(_WITHOUT_EVENTS.where(TopicRow.topic.in_(some)), span):
            judged[topic][(at - start) // HOUR_MS] = None
    return judged


def _hours(
    verdicts: list[Verdict | None],
    facts: TopicFacts,
    start: int,
    end: int,
    waiting: dict[str, Sequence[Verdict]],
) -> list[Verdict | None]:
    """Return the verdict on each hour; an hour that is not final can be pending without events.

    `waiting` keeps what windows without events wait for, by the digest of their facts.
    """
    hours = range(start, end, HOUR_MS)
    open_at = bisect_right(hours, facts.final_through - HOUR_MS)
    future_at = max(bisect_right(hours, facts.now), open_at)
    for index in range(open_at, future_at):
        newest = min(hours[index] + HOUR_MS - WINDOW_MS, window_start(facts.now))
        digest = facts.digest(newest, None)
        if digest not in waiting:
            waiting[digest] = _waits_for(facts.of_window(newest, None))
        judged = verdicts[index]
        if judged is not None or waiting[digest]:
            verdicts[index] = overall([*waiting[digest], *([] if judged is None else [judged])])
    return verdicts


_AWAITED = [verdict for verdict in Verdict if verdict not in (Verdict.CARRIED, NOTE)]


def _waits_for(facts: WindowFacts) -> Sequence[Verdict]:
    return [cause.verdict for cause in causes(facts, _AWAITED)]
