"""From the database to verdicts: gathers the evidence, has it judged, and says what the answer is.

Reads only, but for `settle`, which notes the verdicts of final windows so that a later change is noticed.
"""

# mypy: ignore-errors
from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from millrace_audit.answer import Completeness, Instance, Topic, Verdict, Window, iso, overall, utc
from millrace_audit.auditor import store
from millrace_audit.auditor.store import CountedRow, InstanceRow, ReportedRow, TierRow, TopicRow, WindowRow
from millrace_audit.auditor.verdict import Evidence, Gap, TopicView, judge, unheard
from millrace_audit.reports.counts import WINDOW_MS, SequenceTally, window_start
from millrace_audit.reports.messages import FOR_EVER, NOTHING, now_ms
from millrace_audit.reports.ranges import SequenceRanges


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRules:
    """What the operator says about the installation."""

    origins: Sequence[str]
    """Clusters that are produced to; each must be heard of before anything is final."""
    grace_ms: int = 60_000
    """How far clocks may differ: a window can be final this long after its end at the earliest."""
    clock_ms: Callable[[], int] = now_ms
    """The auditor's own: no reader, whatever its clock says, has counted what is still to come."""


def completeness(session: Session, rules: AuditRules, topic: str, start: int, end: int) -> Completeness:
    """The answer about [start, end), ms: a verdict on each window it touches and on all together."""
    first, last = window_start(start), window_start(end - 1)
    starts = range(first, last + WINDOW_MS, WINDOW_MS)
    row = session.get(TopicRow, topic)
    watermark = None
    if row is None:
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
        foreign=row.foreign if row else {},
        windows=windows,
    )


def settle(session: Session, rules: AuditRules) -> None:
    """Note the verdict of every window that has become final; call it when all that was said is applied."""
    for topic in session.scalars(select(TopicRow)):
        view = _view(session, rules, topic.topic)
        topic.settled_through = max(topic.settled_through, view.final_through)
        ended = WindowRow.window <= max(view.final_through, NOTHING + WINDOW_MS) - WINDOW_MS
        open_windows = select(WindowRow).where(WindowRow.topic == topic.topic, WindowRow.settled.is_(None))
        rows = session.scalars(open_windows.where(ended).order_by(WindowRow.window)).all()
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


def _view(session: Session, rules: AuditRules, topic: str) -> TopicView:
    link = store.InstanceTopicRow
    instances = (
        select(InstanceRow)
        .join(link, link.instance == InstanceRow.instance)
        .where(link.topic == topic, ~InstanceRow.done)
        .order_by(InstanceRow.instance)
    )
    anyone = select(link.instance).where(link.topic == topic).limit(1)
    now = rules.clock_ms()
    tiers = session.scalars(select(TierRow).where(TierRow.heartbeat > NOTHING))
    return TopicView(
        topic=topic,
        announced=session.scalar(anyone) is not None,
        instances={row.instance: _instance(row) for row in session.scalars(instances)},
        origins=tuple(rules.origins),
        grace_ms=rules.grace_ms,
        heartbeats={row.tier: min(row.heartbeat, now) for row in tiers},
        gaps=_gaps(session, topic),
    )


def _gaps(session: Session, topic: str) -> list[Gap]:
    gaps = []
    for row in session.scalars(select(store.UncountedRow).where(store.UncountedRow.topic == topic)):
        reason = (
            f"offsets {row.start} to {row.end} of partition {row.partition} were never counted in full at"
            f" tier {row.tier}: messages or counts had expired by {iso(row.until)}"
        )
        gaps.append(Gap(row.tier, row.since, row.until, reason))
    for lost in session.scalars(select(store.UnheardRow)):
        reason = (
            f"audit records expired before the auditor read them (offsets {lost.start} to {lost.end}): it"
            f" does not know who sent what from {iso(lost.since)} to {iso(lost.until)}"
        )
        gaps.append(Gap(None, lost.since, lost.until, reason))
    return gaps


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


def _judge(session: Session, view: TopicView, windows: Sequence[int]) -> list[Window]:
    evidence = _evidence(session, view, windows)
    return [judge(window, evidence[window], view) for window in windows]


def _evidence(session: Session, view: TopicView, windows: Sequence[int]) -> defaultdict[int, list[Evidence]]:
    """Window -> what is known of each instance in it."""
    reported: dict[tuple[int, int], tuple[Any, Any, int]] = {}
    counted: defaultdict[tuple[int, int], dict[str, SequenceTally]] = defaultdict(dict)
    named: dict[tuple[int, int], tuple[str, str]] = {}
    # Columns, not objects: a day of a hundred instances is a hundred thousand rows.
    R, C = ReportedRow, CountedRow
    reports = select(R.window, R.instance, R.acknowledged, R.failed, R.reported_at)
    counts = select(C.window, C.instance, C.tier, C.server, C.service, C.ranges).order_by(C.tier)
    for some in store.slices(windows):
        rows = session.execute(reports.where(R.topic == view.topic, R.window.in_(some)))
        for window, number, acknowledged, failed, at in rows:
            reported[window, number] = (acknowledged, failed, at)
        more = session.execute(counts.where(C.topic == view.topic, C.window.in_(some)))
        for window, number, tier, server, service, ranges in more:
            counted[window, number][tier] = SequenceTally(ranges)
            named.setdefault((window, number), (server, service))
    instances = _instances(session, view, {number for _, number in (*reported, *counted)})
    evidence: defaultdict[int, list[Evidence]] = defaultdict(list)
    for key in sorted({*reported, *counted}):
        window, number = key
        instance = instances.get(number)
        if instance is None or instance.cluster is None:  # not announced: it is who its messages say it is
            server, service = named[key]
            accepted = instance.accepted if instance else None
            instance = Instance(
                instance=number, server=server, service=service, cluster=None, accepted=accepted
            )
        acknowledged, failed, reported_at = reported.get(key, ((), (), NOTHING))
        said = (SequenceRanges(acknowledged), SequenceRanges(failed), reported_at)
        evidence[window].append(Evidence(instance, *said, counted.get(key, {})))
    return evidence


def _instances(session: Session, view: TopicView, numbers: Collection[int]) -> dict[int, Instance]:
    """The view's instances and those of `numbers` that are known besides: ended, or of another topic."""
    instances = dict(view.instances)
    for some in store.slices(sorted(set(numbers) - instances.keys())):
        for row in session.scalars(select(InstanceRow).where(InstanceRow.instance.in_(some))):
            instances[row.instance] = _instance(row)
    return instances


def _watermark(session: Session, view: TopicView) -> datetime | None:
    """The time before which every window is complete; None when not even the first one is."""
    first = session.scalar(select(func.min(WindowRow.window)).where(WindowRow.topic == view.topic))
    through = view.final_through
    for gap in view.gaps:
        if gap.tier is None and gap.since == NOTHING and first is not None:  # what is known begins behind it
            first = max(first, window_start(gap.until - 1) + WINDOW_MS)
        elif gap.tier is None:
            through = min(through, gap.since)
    if first is None or through < first + WINDOW_MS:
        return None
    end = _first_doubt(session, view, first, window_start(min(through, FOR_EVER - WINDOW_MS)))
    return utc(end) if end > first else None


def _first_doubt(session: Session, view: TopicView, first: int, end: int) -> int:
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
    for some in store.slices(doubtful):
        for start, window in zip(some, _judge(session, view, some), strict=True):
            if window.verdict != Verdict.COMPLETE:
                return start
    return end
