"""Application of audit records to the database: producers, reports and counts.

A batch holds records of one partition in their order, and is applied inside the caller's transaction. Its
effect depends on that partition alone, so any interleaving of partitions has the same result. Repeated
records count once. Records of an unknown or unauthorized writer are listed as rejected, and have no effect.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from sqlalchemy import update
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.orm import Session

from millrace_audit.auditor import store
from millrace_audit.auditor.records.batch import Changes, Entry, Place, RejectedRecords
from millrace_audit.auditor.records.counted import Counted
from millrace_audit.auditor.records.gaps import note_counts_lost
from millrace_audit.auditor.records.reported import Reported
from millrace_audit.auditor.store import TierRow
from millrace_audit.reports.messages import FOR_EVER, SIGNED, WAREHOUSE, Hello, LoadCount, OtherVersion

logger = logging.getLogger("millrace.audit.auditor")
_AWAY = (OperationalError, InterfaceError)
"""Errors of a database that does not answer."""

__all__ = ["Entry", "Place", "apply", "lose"]


def apply(
    session: Session, place: Place, entries: Sequence[Entry], now_ms: int, *, goes_on: bool = False
) -> None:
    """Apply records of one partition; repeated records have no effect.

    A record that cannot be applied is listed as rejected, so that it does not stop all others. With
    `goes_on`, more records may lie before the same offset of the origin's log.
    """
    try:
        with session.begin_nested():
            _take(session, place, entries, now_ms, goes_on)
    except _AWAY:
        raise
    except Exception as error:
        if len(entries) > 1:
            for entry in entries:
                apply(session, place, [entry], now_ms, goes_on=goes_on)
            return
        logger.error("%s: the record at %d cannot be taken in: %r", place.name, entries[0].offset, error)
        _take(session, place, [entries[0]._replace(record=None)], now_ms, goes_on)


def _take(session: Session, place: Place, entries: Sequence[Entry], now_ms: int, goes_on: bool) -> None:
    changes, rejected_records = Changes(session, now_ms), RejectedRecords(place)
    belong = []
    for entry in entries:
        kind = "message" if entry.kind is None else entry.kind.__name__
        if entry.kind is OtherVersion:
            rejected_records.add(
                entry, kind, "a record of another version of Millrace: upgrade who writes it"
            )
        elif entry.kind not in place.takes:
            rejected_records.add(entry, kind, "no audit record that belongs here")
        elif entry.kind in SIGNED and entry.turn is None:
            rejected_records.add(entry, kind, "no reader of the tier has signed it")
        elif entry.record is None:
            rejected_records.add(entry, kind, "it cannot be read")
        else:
            belong.append(entry)
    if belong:
        part = Reported if Hello in place.takes else Counted
        part(session, place, changes, rejected_records).take_all(belong)
    if entries and Hello in place.takes:
        gap = store.LostReportsRow
        here = (gap.origin == place.tier, gap.topic == "", gap.to.is_(None))
        session.execute(update(gap).where(*here).values(to=entries[0].at))
        if not goes_on:
            note_applied(session, place, max(entry.at for entry in entries))
    changes.write()
    rejected_records.write(session)


def note_applied(session: Session, place: Place, through: int) -> None:
    """Note that all reports before offset `through` of the cluster's own audit topic are applied."""
    if Hello in place.takes:
        tier = _tier(session, place)
        tier.applied_through = max(tier.applied_through, through)


def note_reports_lost(session: Session, place: Place, goes_on_at: int | None, until: int = FOR_EVER) -> None:
    """Note that reports after the applied ones are lost.

    The origin's log goes on at `goes_on_at`; None if unknown. If that is before the applied offset, the log
    was recreated, and `until` is the time at which it goes on.
    """
    if Hello in place.takes:
        tier = _tier(session, place)
        if goes_on_at == tier.applied_through:
            return
        gap = store.LostReportsRow(origin=tier.tier, topic="", at=tier.applied_through, to=goes_on_at)
        if goes_on_at is not None and goes_on_at < tier.applied_through:  # its log was recreated
            gap.until, tier.applied_through = until, goes_on_at
        session.merge(gap)
        session.flush()


def _tier(session: Session, place: Place) -> TierRow:
    tier = session.get(TierRow, place.tier)
    if tier is None:
        tier = TierRow(tier=place.tier)
        session.add(tier)
        session.flush()
    return tier


def lose(session: Session, place: Place, start: int, end: int) -> None:
    """Note that offsets [start, end) of an audit partition expired before they were applied."""
    note_reports_lost(session, place, None)
    if place.takes and Hello not in place.takes:
        tier = _tier(session, place)
        for lost in (tier.tier, WAREHOUSE) if LoadCount in place.takes else (tier.tier,):
            note_counts_lost(session, place, lost, tier.heartbeat, start, end)
