"""What will never be known: what producers said and nobody heard, what a tier held and nobody counted.

Reads the rows that tell it, and says each in a sentence. What follows for a window is said in `topic_view`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from millrace_audit.answer import iso
from millrace_audit.auditor import store
from millrace_audit.auditor.beats import Progress
from millrace_audit.reports.messages import FOR_EVER, NOTHING


@dataclass(frozen=True, slots=True)
class Gap:
    """What was said of events of [since, until) is not known in full, or of a tier what it holds of them."""

    tier: str | None
    """The tier that was not counted in full; None when it is not known in full what producers said."""
    since: int
    until: int
    reason: str
    serial: int = NOTHING
    """Of what first told it in the tier's counts."""
    is_of_all: bool = False
    """It concerns windows without events, too."""
    origin: str = ""
    """Where producers were not heard."""


def gaps_of(session: Session, progress: Progress, topics: Sequence[str]) -> dict[str, list[Gap]]:
    found: defaultdict[str, list[Gap]] = defaultdict(list)
    for topic, gap in (*_uncounted(session, topics), *_unheard(session, progress, topics)):
        found[topic].append(gap)
    return {
        topic: [*found[topic], *found[""], *(_unreadable(row) for row in progress.unreadable[topic])]
        for topic in topics
    }


def note_unheard(session: Session, progress: Progress) -> None:
    """Note the times of what was not heard as soon as they are known: beats that tell them are not kept."""
    table = store.UnheardRow
    unknown = or_(table.since.is_(None), table.until == FOR_EVER)
    for row in session.scalars(select(table).where(unknown)):
        if row.since is None:
            time, is_known = progress.beats[row.origin].time_before(row.at)
            row.since = time if is_known else None
        if row.since is not None and row.to is not None and row.until == FOR_EVER:
            behind = progress.beats[row.origin].first(row.since, row.to)
            row.until = FOR_EVER if behind is None else behind.time


def _unheard(session: Session, progress: Progress, topics: Sequence[str]) -> Iterator[tuple[str, Gap]]:
    table = store.UnheardRow
    for row in session.scalars(select(table).where(table.topic.in_((*topics, "")))):
        since = progress.beats[row.origin].time_before(row.at)[0] if row.since is None else row.since
        reason = (
            f"too many instances of topic {row.topic} are open in {row.origin}: others are not heard since"
            f" {iso(since)}: accept who is nobody (`millrace audit --accept-service NAME --reason TEXT`)"
        )
        if not row.topic:
            reason = (
                "audit records were lost before the auditor read them (of the producers in"
                f" {row.origin}): it does not know who sent what from {iso(since)} to {iso(row.until)}"
            )
        yield row.topic, Gap(None, since, row.until, reason, is_of_all=True, origin=row.origin)


def _uncounted(session: Session, topics: Sequence[str]) -> Iterator[tuple[str, Gap]]:
    table = store.UncountedRow
    for row in session.scalars(select(table).where(table.topic.in_((*topics, "")))):
        reason = (
            f"offsets {row.start} to {row.end} of partition {row.partition} were never counted in full at"
            f" tier {row.tier}: messages or counts had expired, or the log was truncated, by {iso(row.until)}"
        )
        if not row.topic:
            reason = (
                f"audit records were lost before the auditor read them (of tier {row.tier}): it does not know"
                f" what was counted from {iso(row.since)} to {iso(row.until)}"
            )
        gap = Gap(row.tier, row.since, row.until, reason, is_of_all=not row.topic, serial=row.serial)
        yield row.topic, gap


def _unreadable(bad: store.UnreadableRow) -> Gap:
    where = f"the log of {bad.topic}-{bad.partition} in {bad.tier}"
    reason = (
        f"{where} cannot be read at offset {bad.offset}: {bad.cause}; look at the disk of its broker with"
        " `millrace log verify`"
    )
    return Gap(bad.tier, bad.since, FOR_EVER, reason, bad.serial)
