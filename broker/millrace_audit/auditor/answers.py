"""From the database to verdicts: gathers the evidence, has it judged, and says what the answer is.

Reads only, but for `settle`, which notes the verdicts of final windows so that a later change is noticed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from millrace_audit.answer import Completeness, Instance, Topic, Verdict, Window, iso, overall, utc
from millrace_audit.auditor.store import (
    CountedRow,
    InstanceRow,
    InstanceTopicRow,
    ReportedRow,
    TierRow,
    TopicRow,
    UncountedRow,
    UnheardRow,
    WindowRow,
    slices,
)
from millrace_audit.auditor.verdict import Evidence, Gap, Surroundings, final_through, judge, unheard
from millrace_audit.reports.counts import WINDOW_MS, SequenceTally, window_start
from millrace_audit.reports.messages import FOR_EVER, NOTHING
from millrace_audit.reports.ranges import SequenceRanges


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRules:
    """What the operator says about the installation."""

    origins: Sequence[str]
    """Clusters that are produced to; each must be heard of before anything is final."""
    grace_ms: int = 60_000
    """How far clocks may differ: a window can be final this long after its end at the earliest."""
    clock_ms: Callable[[], int] = _now_ms
    """The auditor's own: no reader, whatever its clock says, has counted what is still to come."""


@dataclass(slots=True)
class _TopicView:
    """Everything about a topic that does not belong to one window."""

    topic: str
    instances: dict[int, Instance]
    """Those that may have something to say yet, or were accepted."""
    around: Surroundings
    announced: bool
    """An audited producer sends it, or has sent it."""

    @property
    def final_through(self) -> int:
        """Time (ms) up to which every window is final."""
        return final_through(self.instances.values(), self.around) if self.announced else NOTHING


class _Counted(NamedTuple):
    """What a tier holds of an instance in a window."""

    server: str
    service: str
    ranges: Sequence[Sequence[int]]


def completeness(session: Session, rules: AuditRules, topic: str, start: int, end: int) -> Completeness:
    """The answer about [start, end), ms: a verdict on each window it touches and on all together."""
    first, last = window_start(start), window_start(end - 1)
    starts = range(first, last + WINDOW_MS, WINDOW_MS)
    known = session.get(TopicRow, topic)
    watermark = None
    if known is None:
        # No producer and no reader has ever named it: nothing is known, and nothing must not look complete.
        reason = f"no producer and no reader has spoken of topic {topic}"
        windows = [unheard(window, reason) for window in starts]
    else:
        view = _view(session, rules, topic)
        here = (WindowRow.topic == topic, WindowRow.window.between(first, last))
        revisions = {row.window: row.revision for row in session.scalars(select(WindowRow).where(*here))}
        windows = [
            replace(window, revision=revisions.get(at, 0))
            for at, window in zip(starts, _judge(session, view, starts), strict=True)
        ]
        watermark = _watermark(session, view)
    return Completeness(
        topic=topic,
        start=utc(start),
        end=utc(end),
        verdict=overall(window.verdict for window in windows),
        watermark=watermark,
        foreign=known.foreign if known else {},
        windows=windows,
    )


def settle(session: Session, rules: AuditRules) -> None:
    """Note the verdict of every window that has become final; call it when all that was said is applied."""
    for topic in session.scalars(select(TopicRow)):
        view = _view(session, rules, topic.topic)
        through = view.final_through
        topic.settled_through = max(topic.settled_through, through)
        rows = session.scalars(
            select(WindowRow)
            .where(
                WindowRow.topic == topic.topic,
                WindowRow.settled.is_(None),
                WindowRow.window <= max(through, NOTHING + WINDOW_MS) - WINDOW_MS,
            )
            .order_by(WindowRow.window)
        ).all()
        judged = _judge(session, view, [row.window for row in rows])
        for row, window in zip(rows, judged, strict=True):
            if window.verdict != Verdict.UNKNOWN:  # as it is while the window is not final
                row.settled = window.verdict


def topics(session: Session, rules: AuditRules) -> list[Topic]:
    """Every topic the auditor knows, with its watermark and the instances that have not ended."""
    names = session.scalars(select(TopicRow.topic).order_by(TopicRow.topic))
    views = [_view(session, rules, name) for name in names]
    return [Topic(view.topic, _watermark(session, view), [*view.instances.values()]) for view in views]


def heartbeats(session: Session) -> dict[str, str]:
    """Tier -> time up to which it is counted."""
    return {row.tier: iso(row.heartbeat) for row in session.scalars(select(TierRow).order_by(TierRow.tier))}


def _view(session: Session, rules: AuditRules, topic: str) -> _TopicView:
    rows = session.scalars(
        select(InstanceRow)
        .join(InstanceTopicRow, InstanceTopicRow.instance == InstanceRow.instance)
        .where(InstanceTopicRow.topic == topic, ~InstanceRow.done)
        .order_by(InstanceRow.instance)
    )
    now = rules.clock_ms()
    tiers = {
        row.tier: min(row.heartbeat, now)
        for row in session.scalars(select(TierRow))
        if row.heartbeat > NOTHING
    }
    gaps = [_gap(row) for row in session.scalars(select(UncountedRow).where(UncountedRow.topic == topic))]
    gaps += [_silence(row) for row in session.scalars(select(UnheardRow))]
    around = Surroundings(tuple(rules.origins), tiers, rules.grace_ms, gaps)
    anyone = select(InstanceTopicRow.instance).where(InstanceTopicRow.topic == topic).limit(1)
    announced = session.scalar(anyone) is not None
    return _TopicView(topic, {row.instance: _instance(row) for row in rows}, around, announced)


def _gap(row: UncountedRow) -> Gap:
    reason = (
        f"offsets {row.start} to {row.end} of partition {row.partition} were never counted in full at tier"
        f" {row.tier}: messages or counts had expired by {iso(row.until)}"
    )
    return Gap(row.tier, row.since, row.until, reason)


def _silence(row: UnheardRow) -> Gap:
    reason = (
        f"audit records expired before the auditor read them (offsets {row.start} to {row.end}): it does not"
        f" know who sent what from {iso(row.since)} to {iso(row.until)}"
    )
    return Gap(None, row.since, row.until, reason)


def _instance(row: InstanceRow) -> Instance:
    reports = SequenceRanges(row.reports)
    numbers = SequenceRanges([(0, reports.last)] if reports else [])
    return Instance(
        instance=row.instance,
        server=row.server,
        service=row.service,
        cluster=row.cluster,
        closed_through=row.closed_through,
        missing_reports=numbers - reports,
        accepted=row.accepted,
    )


def _judge(session: Session, view: _TopicView, windows: Sequence[int]) -> list[Window]:
    evidence = _evidence(session, view, windows)
    instances = list(view.instances.values())
    # Messages of producers that are not ours may be there; nobody says how many there should be.
    nobody = f"no audited producer has announced itself for topic {view.topic}"
    return [
        judge(window, instances, evidence.get(window, []), view.around)
        if view.announced or window in evidence
        else unheard(window, nobody)
        for window in windows
    ]


def _evidence(session: Session, view: _TopicView, windows: Sequence[int]) -> dict[int, list[Evidence]]:
    """Window -> what is known of each instance in it."""
    reported: dict[tuple[int, int], tuple[Any, Any, int]] = {}
    counted: dict[tuple[int, int], dict[str, _Counted]] = {}
    # Columns, not objects: a day of a hundred instances is a hundred thousand rows.
    R, C = ReportedRow, CountedRow
    told = select(R.window, R.instance, R.acknowledged, R.failed, R.reported_at).where(R.topic == view.topic)
    there = select(C.window, C.instance, C.tier, C.server, C.service, C.ranges).where(C.topic == view.topic)
    for some in slices(windows):
        for window, number, acknowledged, failed, at in session.execute(told.where(R.window.in_(some))):
            reported[window, number] = (acknowledged, failed, at)
        rows = session.execute(there.where(C.window.in_(some)).order_by(C.tier))
        for window, number, tier, server, service, ranges in rows:
            counted.setdefault((window, number), {})[tier] = _Counted(server, service, ranges)
    instances = _others(session, view, {number for _, number in (*reported, *counted)})
    evidence: dict[int, list[Evidence]] = {}
    for window, number in sorted({*reported, *counted}):
        tiers = counted.get((window, number), {})
        acknowledged, failed, reported_at = reported.get((window, number), ((), (), NOTHING))
        evidence.setdefault(window, []).append(
            Evidence(
                _named(instances.get(number), number, tiers),
                SequenceRanges(acknowledged),
                SequenceRanges(failed),
                reported_at,
                {tier: SequenceTally(row.ranges) for tier, row in tiers.items()},
            )
        )
    return evidence


def _others(session: Session, view: _TopicView, numbers: Collection[int]) -> dict[int, Instance]:
    """The view's instances and those of `numbers` that are known besides: ended, or of another topic."""
    found = dict(view.instances)
    for some in slices(sorted(set(numbers) - found.keys())):
        for row in session.scalars(select(InstanceRow).where(InstanceRow.instance.in_(some))):
            found[row.instance] = _instance(row)
    return found


def _named(known: Instance | None, number: int, tiers: Mapping[str, _Counted]) -> Instance:
    """The instance; one that nobody has announced as its own messages name it."""
    if known is not None and known.cluster is not None:
        return known
    row = next(iter(tiers.values()))
    accepted = known.accepted if known is not None else None
    return Instance(instance=number, server=row.server, service=row.service, cluster=None, accepted=accepted)


def _watermark(session: Session, view: _TopicView) -> datetime | None:
    """The time before which every window is complete; None when not even the first one is."""
    first = session.scalar(select(func.min(WindowRow.window)).where(WindowRow.topic == view.topic))
    through = view.final_through
    for gap in view.around.gaps:
        if gap.tier is None and gap.since == NOTHING and first is not None:  # what is known begins behind it
            first = max(first, window_start(gap.until - 1) + WINDOW_MS)
        elif gap.tier is None:
            through = min(through, gap.since)
    if first is None or through < first + WINDOW_MS:
        return None
    reached = _first_doubt(session, view, first, window_start(min(through, FOR_EVER - WINDOW_MS)))
    return utc(reached) if reached > first else None


def _first_doubt(session: Session, view: _TopicView, first: int, end: int) -> int:
    """The first window of [first, end) that is not complete; `end` when all are."""
    doubtful = session.scalars(
        select(WindowRow.window)
        .where(
            WindowRow.topic == view.topic,
            WindowRow.window.between(first, end - 1),
            or_(WindowRow.settled.is_(None), WindowRow.settled != Verdict.COMPLETE),
        )
        .order_by(WindowRow.window)
    ).all()
    for some in slices(doubtful):
        for start, window in zip(some, _judge(session, view, some), strict=True):
            if window.verdict != Verdict.COMPLETE:
                return start
    return end
