"""Gaps of topics, read from the database: lost reports, lost counts, and messages that were never counted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session

from millrace_audit.answer import Verdict
from millrace_audit.auditor.records.batch import Place
from millrace_audit.auditor.records.progress import Progress
from millrace_audit.auditor.store import LostReportsRow, UncountedRow, UnreadableRow, WindowRow
from millrace_audit.auditor.verdict.facts import Gap, GapKind
from millrace_audit.reports.messages import FOR_EVER, TABLE, WAREHOUSE


def gaps_of(session: Session, progress: Progress, topics: Sequence[str]) -> dict[str, list[Gap]]:
    """Return the gaps of each topic, read for many topics at once."""
    found: defaultdict[str, list[Gap]] = defaultdict(list)
    for topic, gap in (*_not_counted(session, topics), *_reports_lost(session, progress, topics)):
        found[topic].append(gap)
    return {
        topic: [*found[topic], *found[""], *map(_unreadable, progress.unreadable[topic])] for topic in topics
    }


def note_reports_lost(session: Session, progress: Progress) -> None:
    """Store the times of lost reports as soon as they are known, since checkpoints expire."""
    table = LostReportsRow
    unknown = or_(table.since.is_(None), table.until == FOR_EVER)
    for row in session.scalars(select(table).where(unknown)):
        if row.since is None:
            time, is_known = progress.checkpoints[row.origin].time_before(row.at)
            row.since = time if is_known else None
        if row.since is not None and row.to is not None and row.until == FOR_EVER:
            behind = progress.checkpoints[row.origin].first(row.since, row.to)
            row.until = FOR_EVER if behind is None else behind.time


def note_counts_lost(session: Session, place: Place, tier: str, since: int, start: int, end: int) -> None:
    """Note that a tier's records at offsets [start, end) are lost; `since`: newest heartbeat before them.

    If the warehouse's reader wrote them, counts of published tables that were known may be outdated.
    """
    key: dict[str, Any] = {
        "tier": tier,
        "topic_id": place.topic_id,
        "partition": place.partition,
        "start": start,
    }
    serial = place.serial(start)
    session.merge(UncountedRow(**key, end=end, topic="", since=since, serial=serial))
    if tier == WAREHOUSE:
        proven = (WindowRow.is_final, WindowRow.verdict.in_((Verdict.COMPLETE, Verdict.CARRIED)))
        is_published = WindowRow.positions["counted", TABLE].as_string().is_not(None)
        again = update(WindowRow).where(*proven, is_published).values(is_final=False, is_changed=True)
        session.execute(again, execution_options={"synchronize_session": False})


def _reports_lost(session: Session, progress: Progress, topics: Sequence[str]) -> Iterator[tuple[str, Gap]]:
    for row in session.scalars(select(LostReportsRow).where(LostReportsRow.topic.in_((*topics, "")))):
        since = progress.checkpoints[row.origin].time_before(row.at)[0] if row.since is None else row.since
        kind = GapKind.TOO_MANY_PRODUCERS if row.topic else GapKind.REPORTS_LOST
        yield row.topic, Gap(kind=kind, origin=row.origin, since=since, until=row.until, is_of_all=True)


def _not_counted(session: Session, topics: Sequence[str]) -> Iterator[tuple[str, Gap]]:
    for row in session.scalars(select(UncountedRow).where(UncountedRow.topic.in_((*topics, "")))):
        yield (
            row.topic,
            Gap(
                kind=GapKind.MESSAGES_NOT_COUNTED if row.topic else GapKind.COUNTS_LOST,
                tier=row.tier,
                since=row.since,
                until=row.until,
                is_of_all=not row.topic,
                serial=row.serial,
                partition=row.partition,
                start=row.start,
                end=row.end,
                recounted_after=row.recounted_after,
            ),
        )


def _unreadable(row: UnreadableRow) -> Gap:
    return Gap(
        kind=GapKind.UNREADABLE,
        tier=row.tier,
        since=row.since,
        until=FOR_EVER,
        serial=row.serial,
        partition=row.partition,
        start=row.offset,
        cause=row.cause,
    )
