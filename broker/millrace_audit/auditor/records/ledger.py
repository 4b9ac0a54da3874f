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
from millrace_audit.auditor.records.batch import Changes, Heard, Place, Strangers
from millrace_audit.auditor.records.counted import Counted
from millrace_audit.auditor.records.gaps import note_counts_lost
from millrace_audit.auditor.records.reported import Reported
from millrace_audit.auditor.store import TierRow
from millrace_audit.reports.messages import FOR_EVER, SIGNED, WAREHOUSE, Hello, LoadCount, OtherVersion

logger = logging.getLogger("millrace.audit.auditor")
_AWAY = (OperationalError, InterfaceError)
"""Errors of a database that does not answer."""

__all__ = ["Heard", "Place", "apply", "lose"]


def apply(
    session: Session, place: Place, heard: Sequence[Heard], now_ms: int, *, goes_on: bool = False
) -> None:
    """Apply records of one partition; repeated records have no effect.

    A record that cannot be applied is listed as rejected, so that it does not stop all others. With
    `goes_on`, more records may lie before the same offset of the origin's log.
    """
    try:
        with session.begin_nested():
            _take(session, place, heard, now_ms, goes_on)
    except _AWAY:
        raise
    except Exception as error:
        if len(heard) > 1:
            for entry in heard:
                apply(session, place, [entry], now_ms, goes_on=goes_on)
            return
        logger.error("%s: the record at %d cannot be taken in: %r", place.name, heard[0].offset, error)
        _take(session, place, [heard[0]._replace(record=None)], now_ms, goes_on)


def _take(session: Session, place: Place, heard: Sequence[Heard], now_ms: int, goes_on: bool) -> None:
    changes, strangers = Changes(session, now_ms), Strangers(place)
    belong = []
    for entry in heard:
        kind = "message" if entry.kind is None else entry.kind.__name__
        if entry.kind is OtherVersion:
            strangers.add(entry, kind, "a record of another version of Millrace: upgrade who writes it")
        elif entry.kind not in place.takes:
            strangers.add(entry, kind, "no audit record that belongs here")
        elif entry.kind in SIGNED and entry.turn is None:
            strangers.add(entry, kind, "no reader of the tier has signed it")
        elif entry.record is None:
            strangers.add(entry, kind, "it cannot be read")
        else:
            belong.append(entry)
    if belong:
        part = Reported if Hello in place.takes else Counted
        part(session, place, changes, strangers).take_all(belong)
    if heard and Hello in place.takes:
        gap = store.UnheardRow
        here = (gap.origin == place.tier, gap.topic == "", gap.to.is_(None))
        session.execute(update(gap).where(*here).values(to=heard[0].at))
        if not goes_on:
            note_heard(session, place, max(entry.at for entry in heard))
    changes.write()
    strangers.write(session)


def note_heard(session: Session, place: Place, through: int) -> None:
    """Note that all reports before offset `through` of the cluster's own audit topic are applied."""
    if Hello in place.takes:
        tier = _tier(session, place)
        tier.heard_through = max(tier.heard_through, through)


def miss_words(session: Session, place: Place, goes_on_at: int | None, until: int = FOR_EVER) -> None:
    """Note that reports after the applied ones are lost.

    The origin's log goes on at `goes_on_at`; None if unknown. If that is before the applied offset, the log
    was recreated, and `until` is the time at which it goes on.
    """
    if Hello in place.takes:
        tier = _tier(session, place)
        if goes_on_at == tier.heard_through:
            return
        gap = store.UnheardRow(origin=tier.tier, topic="", at=tier.heard_through, to=goes_on_at)
        if goes_on_at is not None and goes_on_at < tier.heard_through:  # its log was recreated
            gap.until, tier.heard_through = until, goes_on_at
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
    miss_words(session, place, None)
    if place.takes and Hello not in place.takes:
        tier = _tier(session, place)
        for lost in (tier.tier, WAREHOUSE) if LoadCount in place.takes else (tier.tier,):
            note_counts_lost(session, place, lost, tier.heartbeat, start, end)
