"""Verdicts on every hour of every topic, for a picture of many days.

The verdict on an hour is that of its worst window. Windows are judged before they are read here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import BigInteger, bindparam, case, exists, func, literal, or_, select, true
from sqlalchemy.orm import Session

from millrace_audit.answer import Topic, Verdict, overall
from millrace_audit.auditor.judging.topic_facts import TopicFacts, listed, topic_facts
from millrace_audit.auditor.options import AuditOptions
from millrace_audit.auditor.records.progress import Progress
from millrace_audit.auditor.service import answers
from millrace_audit.auditor.store import TopicRow, WindowRow, slices
from millrace_audit.auditor.verdict.rules import NOTE, judge
from millrace_audit.reports.counts import HOUR_MS, WINDOW_MS, window_start

_WORST_FIRST = tuple(Verdict)
_RECENT_MS = 30 * 24 * HOUR_MS
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
    return [
        TopicHours(answers.known_of(session, facts), _hours(judged[facts.topic], facts, start, end))
        for facts in topic_facts(session, options, progress, topics)
    ]


def _judged_hours(
    session: Session, topics: Sequence[str], start: int, end: int
) -> Mapping[str, list[Verdict | None]]:
    """Return topic -> worst verdict of each hour's windows with events; unjudged changes are pending."""
    ranks = {str(verdict): rank for rank, verdict in enumerate(_WORST_FIRST)}
    pending = ranks[Verdict.PENDING]
    rank = case(ranks, value=WindowRow.verdict, else_=pending)
    rank = case((WindowRow.is_changed & (rank > pending), pending), else_=rank)
    hour = WindowRow.window - WindowRow.window % HOUR_MS
    here = (WindowRow.window >= start, WindowRow.window < end)
    # Nearly all hours are complete: querying only the others is several times as fast.
    not_complete = select(WindowRow.topic, hour, func.min(rank)).group_by(WindowRow.topic, hour)
    not_complete = not_complete.where(or_(WindowRow.verdict != Verdict.COMPLETE, WindowRow.is_changed), *here)
    hours = select(literal(start, BigInteger).label("start")).cte(recursive=True)
    next_hour = hours.c.start + HOUR_MS
    hours = hours.union_all(select(next_hour).where(next_hour < end))
    its_events = (
        WindowRow.topic == TopicRow.topic,
        WindowRow.window.between(hours.c.start, hours.c.start + HOUR_MS - 1),
    )
    without_events = (
        select(TopicRow.topic, hours.c.start)
        .join_from(TopicRow, hours, true())
        .where(~exists().where(*its_events))
    )
    judged: dict[str, list[Verdict | None]] = {
        topic: [Verdict.COMPLETE] * ((end - start) // HOUR_MS) for topic in topics
    }
    for some in slices(topics):
        for topic, at in session.execute(without_events.where(TopicRow.topic.in_(some))):
            judged[topic][(at - start) // HOUR_MS] = None
        for topic, at, worst in session.execute(not_complete.where(WindowRow.topic.in_(some))):
            judged[topic][(at - start) // HOUR_MS] = _WORST_FIRST[worst]
    return judged


def _hours(verdicts: list[Verdict | None], facts: TopicFacts, start: int, end: int) -> list[Verdict | None]:
    """Return the verdict on each hour; an hour that is not final can be pending without events."""
    hours = range(start, end, HOUR_MS)
    open_at = bisect_right(hours, facts.final_through - HOUR_MS)
    future_at = max(bisect_right(hours, facts.now), open_at)
    for index in range(open_at, future_at):
        verdicts[index] = _open(verdicts[index], facts, hours[index])
    return verdicts


def _open(judged: Verdict | None, facts: TopicFacts, hour: int) -> Verdict | None:
    """Return the verdict on an hour that is not final as a whole."""
    newest = min(hour + HOUR_MS - WINDOW_MS, window_start(facts.now))
    causes = judge(facts.of_window(newest, None)).causes
    waiting = [cause.verdict for cause in causes if cause.verdict not in (Verdict.CARRIED, NOTE)]
    if judged is None and not waiting:
        return None
    return overall([*waiting, *([] if judged is None else [judged])])
