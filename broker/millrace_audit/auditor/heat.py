"""The verdict on every hour of every topic, for a picture of many days: read in one query, judged before.

An hour is as bad as its worst window, as everywhere. Knows no page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from millrace_audit.answer import Topic, Verdict, overall
from millrace_audit.auditor import answers
from millrace_audit.auditor.beats import Progress
from millrace_audit.auditor.rules import AuditRules
from millrace_audit.auditor.store import WindowRow
from millrace_audit.auditor.topic_view import TopicView, listed, views
from millrace_audit.reports.counts import HOUR_MS, WINDOW_MS, window_start

_WORST_FIRST = tuple(Verdict)
_RECENT_MS = 30 * 24 * HOUR_MS
"""A picture ends now when the newest event is younger than this, else behind the newest event."""


@dataclass(frozen=True, slots=True)
class TopicHours:
    """What is known of a topic, and of each hour of the picture its verdict; None for one without events."""

    known: Topic
    hours: Sequence[Verdict | None]


def newest_end(session: Session, now: int) -> int:
    """Where a picture ends that nobody has asked for: behind the hour of now, or of the newest event."""
    newest = session.scalar(select(func.max(WindowRow.window)).where(WindowRow.window <= now))
    end = now if newest is None or newest > now - _RECENT_MS else newest
    return end - end % HOUR_MS + HOUR_MS


def hours_of_all(session: Session, rules: AuditRules, start: int, end: int) -> list[TopicHours]:
    """Every topic by name, with its verdicts on the hours of [start, end), both full hours in ms."""
    judged = _judged_hours(session, start, end)
    return [
        TopicHours(
            answers.known_of(session, view),
            [_verdict(judged.get((view.topic, hour)), view, hour) for hour in range(start, end, HOUR_MS)],
        )
        for view in views(session, rules, Progress(session), listed(session))
    ]


def _judged_hours(session: Session, start: int, end: int) -> Mapping[tuple[str, int], Verdict]:
    """The worst verdict on the windows of each hour that has any; news that is not judged yet is pending."""
    ranks = {str(verdict): rank for rank, verdict in enumerate(_WORST_FIRST)}
    pending = ranks[Verdict.PENDING]
    rank = case(ranks, value=WindowRow.verdict, else_=pending)
    rank = case((WindowRow.dirty & (rank > pending), pending), else_=rank)
    hour = WindowRow.window // HOUR_MS
    rows = select(WindowRow.topic, hour, func.min(rank)).where(
        WindowRow.window >= start, WindowRow.window < end
    )
    found = session.execute(rows.group_by(WindowRow.topic, hour))
    return {(topic, number * HOUR_MS): _WORST_FIRST[rank] for topic, number, rank in found}


def _verdict(judged: Verdict | None, view: TopicView, hour: int) -> Verdict | None:
    """Of one hour: where somebody may still say something of it, no event is no proof."""
    if hour + HOUR_MS <= view.final_through or hour > view.now:
        return judged
    newest = min(hour + HOUR_MS - WINDOW_MS, window_start(view.now))
    waiting = [verdict for verdict, _ in view.around(newest, None).waiting if verdict != Verdict.CARRIED]
    if judged is None and not waiting:
        return None
    return overall([*waiting, *([] if judged is None else [judged])])
