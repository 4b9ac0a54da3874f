"""The verdict on every hour of every topic, for a picture of many days: judged before they are read.

An hour is as bad as its worst window, as everywhere. Knows no page.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import BigInteger, bindparam, case, exists, func, literal, or_, select, true
from sqlalchemy.orm import Session

from millrace_audit.answer import Topic, Verdict, overall
from millrace_audit.auditor import answers
from millrace_audit.auditor.beats import Progress
from millrace_audit.auditor.options import AuditOptions
from millrace_audit.auditor.rules import NOTE, judge
from millrace_audit.auditor.store import TopicRow, WindowRow, slices
from millrace_audit.auditor.topic_facts import TopicFacts, listed, topic_facts
from millrace_audit.reports.counts import HOUR_MS, WINDOW_MS, window_start

_WORST_FIRST = tuple(Verdict)
_RECENT_MS = 30 * 24 * HOUR_MS
"""A picture ends now when the newest event is younger than this, else behind the newest event."""


@dataclass(frozen=True, slots=True)
class TopicHours:
    """What is known of a topic, and of each hour of the picture its verdict; None for one without events."""

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
    """Where a picture ends that nobody has asked for: behind the hour of now, or of the newest event."""
    newest = session.scalar(_NEWEST, {"now": now})
    end = now if newest is None or newest > now - _RECENT_MS else newest
    return end - end % HOUR_MS + HOUR_MS


def hours_of_all(
    session: Session, options: AuditOptions, progress: Progress, start: int, end: int
) -> list[TopicHours]:
    """Every topic by name, with its verdicts on the hours of [start, end), both full hours in ms."""
    topics = listed(session)
    judged = _judged_hours(session, topics, start, end)
    return [
        TopicHours(answers.known_of(session, facts), _hours(judged[facts.topic], facts, start, end))
        for facts in topic_facts(session, options, progress, topics)
    ]


def _judged_hours(
    session: Session, topics: Sequence[str], start: int, end: int
) -> Mapping[str, list[Verdict | None]]:
    """Topic -> each hour's worst verdict on windows that have events; news not judged yet is pending."""
    ranks = {str(verdict): rank for rank, verdict in enumerate(_WORST_FIRST)}
    pending = ranks[Verdict.PENDING]
    rank = case(ranks, value=WindowRow.verdict, else_=pending)
    rank = case((WindowRow.dirty & (rank > pending), pending), else_=rank)
    hour = WindowRow.window - WindowRow.window % HOUR_MS
    here = (WindowRow.window >= start, WindowRow.window < end)
    # Nearly all hours are complete: a database finds the others several times as fast as the worst of each.
    not_complete = select(WindowRow.topic, hour, func.min(rank)).group_by(WindowRow.topic, hour)
    not_complete = not_complete.where(or_(WindowRow.verdict != Verdict.COMPLETE, WindowRow.dirty), *here)
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
    """Of each hour: where somebody may still say something of it, no event is no proof."""
    hours = range(start, end, HOUR_MS)
    open_at = bisect_right(hours, facts.final_through - HOUR_MS)
    future_at = max(bisect_right(hours, facts.now), open_at)
    for index in range(open_at, future_at):
        verdicts[index] = _open(verdicts[index], facts, hours[index])
    return verdicts


def _open(judged: Verdict | None, facts: TopicFacts, hour: int) -> Verdict | None:
    """Of an hour that is not final as a whole."""
    newest = min(hour + HOUR_MS - WINDOW_MS, window_start(facts.now))
    causes = judge(facts.of_window(newest, None)).causes
    waiting = [cause.verdict for cause in causes if cause.verdict not in (Verdict.CARRIED, NOTE)]
    if judged is None and not waiting:
        return None
    return overall([*waiting, *([] if judged is None else [judged])])
