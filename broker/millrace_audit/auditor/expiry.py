"""Expiry in the database: complete windows without changes are folded, and old windows deleted."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from sqlalchemy import delete, exists, func, or_, select, update
from sqlalchemy.orm import Session

from millrace_audit.answer import Verdict
from millrace_audit.auditor import store
from millrace_audit.auditor.judging import incidents
from millrace_audit.auditor.judging.topic_facts import is_listed
from millrace_audit.auditor.options import AuditOptions
from millrace_audit.auditor.records import progress
from millrace_audit.auditor.records.decisions import forget_decisions, is_accepted
from millrace_audit.auditor.service.answers import heartbeats
from millrace_audit.auditor.store import CoverageRow, HistoryRow, ProducerRow, TopicRow, WindowRow
from millrace_audit.auditor.verdict.evidence import Evidence
from millrace_audit.reports.counts import HOUR_MS, MOST_AHEAD_MS, WINDOW_MS, window_start
from millrace_audit.reports.messages import FOR_EVER, NOTHING, WAREHOUSE

_AT_ONCE = 1000
"""Most windows to fold in one transaction."""


def expire(session: Session, options: AuditOptions) -> bool:
    """Fold unchanged complete windows, delete expired ones; return True if there is more to do."""
    now = options.clock_ms()
    kept_from = window_start(now - options.keep_ms)
    old = (
        WindowRow.changed_at < kept_from,
        WindowRow.window < kept_from,
        WindowRow.verdict != Verdict.INCOMPLETE,
    )
    newest = select(WindowRow.topic, func.max(WindowRow.window)).where(*old).group_by(WindowRow.topic)
    for topic, last in session.execute(newest).all():
        row = session.get_one(TopicRow, topic)
        row.kept_from = max(row.kept_from, last + WINDOW_MS)
        session.execute(delete(WindowRow).where(*old, WindowRow.topic == topic))
    far = (WindowRow.changed_at < kept_from, WindowRow.window > now + MOST_AHEAD_MS)  # of wrong clocks
    session.execute(delete(WindowRow).where(*far))
    incidents.forget(session, now, kept_from)
    _forget_producers(session, now, kept_from)
    forget_decisions(session, kept_from)
    session.execute(delete(HistoryRow).where(HistoryRow.time < now - options.keep_ms))
    session.execute(delete(store.LostReportsRow).where(store.LostReportsRow.until < kept_from))
    _forget_loads(session, kept_from)
    still = (WindowRow.changed_at < now - options.fold_after_ms, ~WindowRow.folded)
    complete = (WindowRow.is_final, WindowRow.verdict == Verdict.COMPLETE)
    columns = select(WindowRow.topic, WindowRow.window, WindowRow.evidence).where(*still, *complete)
    folded = [
        {
            "topic": row.topic,
            "window": row.window,
            "folded": True,
            "evidence": Evidence.unpack(row.evidence).pack(fold=True),
        }
        for row in session.execute(columns.limit(_AT_ONCE)).all()
    ]
    if folded:
        session.execute(update(WindowRow), folded)
    still_open = select(func.min(WindowRow.window)).where(~WindowRow.is_final, is_listed(WindowRow.topic))
    first_open = session.scalar(still_open)
    # The warehouse has no checkpoints.
    times = [time for tier, time in heartbeats(session).items() if tier != WAREHOUSE]
    if times:
        needed_from = min(*times, FOR_EVER if first_open is None else first_open)
        progress.forget(session, needed_from - progress.ALL_KEPT_MS)
    return len(folded) == _AT_ONCE


def _forget_loads(session: Session, kept_from: int) -> None:
    """Delete loads' rows on expired windows, and loads' parts of the same age."""
    hours, rejected, parts = store.LoadHourRow, store.RejectedRow, store.LoadPartRow
    changed = store.ChangedRow
    newest = select(func.max(changed.number)).scalar_subquery()  # the next number follows it
    for topic, before in session.execute(select(TopicRow.topic, TopicRow.kept_from)).all():
        if before == NOTHING:
            continue
        kept = exists().where(WindowRow.topic == topic)
        of_hour = kept.where(WindowRow.window.between(hours.hour, hours.hour + HOUR_MS - 1))
        old = (hours.topic == topic, hours.hour < before, hours.hour != NOTHING, ~of_hour)
        session.execute(delete(hours).where(*old))
        of_span = kept.where(WindowRow.window.between(rejected.window, rejected.last))
        session.execute(delete(rejected).where(rejected.topic == topic, rejected.last < before, ~of_span))
        session.execute(
            delete(changed).where(changed.topic == topic, changed.hour < before, changed.number < newest)
        )
    session.execute(delete(parts).where(parts.applied_at < kept_from, ~parts.waits))


def _forget_producers(session: Session, now: int, kept_from: int) -> None:
    """Delete ended producers that no window refers to, and topics without any reference."""
    table = ProducerRow
    ended = (
        or_(table.done, is_accepted(), ~table.announced),
        or_(table.last_window < kept_from, table.last_window > now + MOST_AHEAD_MS),
        or_(table.heard_at < kept_from, table.heard_at > now + MOST_AHEAD_MS),
    )
    candidates = session.execute(select(table.producer, table.first_window, table.last_window).where(*ended))
    rows = candidates.all()
    if not rows:
        return
    there = session.scalars(select(WindowRow.window).distinct().order_by(WindowRow.window)).all()
    forgotten = [one for one, first, last in rows if bisect_left(there, first) >= bisect_right(there, last)]
    link = store.ProducerTopicRow
    for some in store.slices(forgotten):
        session.execute(delete(link).where(link.producer.in_(some)))
        session.execute(delete(store.HeldOpenRow).where(store.HeldOpenRow.producer.in_(some)))
        session.execute(delete(table).where(table.producer.in_(some)))
    named = (select(CoverageRow.topic), select(link.topic), select(WindowRow.topic))
    session.execute(delete(TopicRow).where(*(TopicRow.topic.not_in(topics) for topics in named)))
