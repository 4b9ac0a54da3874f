"""Facts about the windows of a topic, read from the database: for all windows once, then for each window.

Judges nothing. `rules` concludes from the facts.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, join, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from millrace_audit.answer import Instance
from millrace_audit.auditor import store
from millrace_audit.auditor.judging.load_facts import LoadFacts, load_facts
from millrace_audit.auditor.options import AuditOptions
from millrace_audit.auditor.records.decisions import is_disowned, reason_of
from millrace_audit.auditor.records.gaps import gaps_of
from millrace_audit.auditor.records.progress import Checkpoint, Ends, Progress
from millrace_audit.auditor.store import CoverageRow, ProducerRow, TopicRow
from millrace_audit.auditor.verdict.facts import (
    Debt,
    DebtState,
    Gap,
    GapKind,
    Leg,
    LegState,
    Reader,
    ReaderState,
    ReportStream,
    StreamState,
    VerifyProblem,
    WindowFacts,
)
from millrace_audit.reports.counts import FIRST_EVENT_MS, HOUR_MS, WINDOW_MS, window_start
from millrace_audit.reports.messages import FOR_EVER, NOTHING, OFFLINE, TABLE, WAREHOUSE

MOST_UNCOUNTED = 100
"""Most topics to judge that no reader names, since a client of `audit` may invent any number."""
MOST_NAMED = 10
"""Most producers in debt that a window names; the others are counted."""
STALE_MS = 60_000
"""Age of the newest heartbeat after which a reader is stale."""


class _Debts:
    """Debts of producers that have not ended, sorted by the time through which they owe nothing."""

    def __init__(self, debts: Iterable[tuple[Debt, int]]) -> None:
        """`debts` pairs each debt with the time before which its producer owes nothing."""
        awaited = sorted((pair for pair in debts if not pair[0].instance.idle), key=itemgetter(1))
        self.debts = [debt for debt, _ in awaited]
        self.closed = [time for _, time in awaited]
        self._before = {  # debts of each state among the first ones
            state: [0, *accumulate(int(debt.state == state) for debt in self.debts)] for state in DebtState
        }

    def count(self, end: int) -> int:
        """Return the number of producers that have not closed all before `end`."""
        return bisect_left(self.closed, end)

    def first(self, count: int) -> tuple[Sequence[Debt], dict[DebtState, int]]:
        """Return some of the first `count` producers, and the number of the others."""
        named = min(count, MOST_NAMED)
        others = {state: before[count] - before[named] for state, before in self._before.items()}
        return self.debts[:named], {state: number for state, number in others.items() if number}


class Start(NamedTuple):
    """Beginning of a producer instance."""

    hello: int
    """Window of its hello by its own clock or, if earlier, of its cluster's newest checkpoint before it;
    NOTHING if that is not known."""
    first_window: int
    """First window with its events or reports; FOR_EVER if there is none."""


def _start(row: ProducerRow, progress: Progress) -> Start:
    if row.first_report > 0:  # earlier reports are not all known
        return Start(NOTHING, row.first_window)
    before, _ = progress.checkpoints[row.origin].time_before(row.hello_at - 1)
    # If its clock is behind, its events have earlier times than the checkpoint. Thinning checkpoints to one
    # per ten minutes does not change the window.
    hello = min(before, row.first_at)
    return Start(hello if hello == NOTHING else window_start(hello), row.first_window)


def _owes_from(instance: Instance, start: Start, *, has_events: bool) -> int:
    """Return the time from which a producer holds windows open: windows with events, or windows without.

    A producer that has never closed a window may still send events from before its hello, or was killed. Of
    the windows before its hello it holds only those with events open, from its own first events on.
    """
    if instance.missing_reports:
        return NOTHING
    if instance.closed_through != NOTHING:
        return instance.closed_through
    return min(start.hello, start.first_window) if has_events else start.hello


class _Common(NamedTuple):
    """Facts that many windows of a topic have in common."""

    values: Mapping[str, Any]
    digest: str


@dataclass(slots=True)
class _Way:
    """State of the tiers' reading of one window."""

    legs: list[Leg] = field(default_factory=list)
    awaited: list[str] = field(default_factory=list)
    """Tiers whose readers the window waits for."""
    checkpoints: dict[str, Checkpoint] = field(default_factory=dict)
    """Tier -> the checkpoint by which it had read the window."""
    pending_reports: list[str] = field(default_factory=list)


class TopicFacts:
    """Facts that hold for every window of a topic."""

    def __init__(
        self,
        options: AuditOptions,
        progress: Progress,
        topic: str,
        *,
        is_announced: bool,
        instances: Sequence[Instance],
        starts: Sequence[Start],
        gaps: Sequence[Gap],
        loads: LoadFacts,
    ) -> None:
        """`starts` gives the start of each instance, in the order of `instances`."""
        self.topic, self._options, self._progress = topic, options, progress
        self.owner = options.owner_of(topic)
        self.is_announced, self.instances, self.gaps, self.loads = is_announced, instances, gaps, loads
        tiers = (*options.origins, OFFLINE)
        self._is_counted = any(progress.counted_since(tier, topic) is not None for tier in tiers)
        self.now = options.clock_ms()
        self._watermarks = {
            tier: min(time, self.now) for tier, time in progress.heartbeats.items() if time != NOTHING
        }
        self._applied = {
            origin: min(self._watermark(origin), progress.applied_times.get(origin, NOTHING))
            for origin in options.origins
        }
        debts = [(self._debt(one), start) for one, start in zip(instances, starts, strict=True)]
        self._debts, self._accepted = (
            {
                has_events: _Debts(
                    (debt, _owes_from(debt.instance, start, has_events=has_events))
                    for debt, start in debts
                    if (debt.instance.accepted is not None) == is_accepted
                )
                for has_events in (False, True)
            }
            for is_accepted in (False, True)
        )
        applied = [time - options.grace_ms for time in self._applied.values()]
        self._times = sorted((*map(self._watermark, options.origins), *self._applied.values()))
        self._common: dict[tuple[bool, int, int, int], _Common] = {}
        closed = self._debts[False].closed[:1]
        self.final_through = max(min((*applied, *closed), default=FOR_EVER), NOTHING)
        """Time (ms) up to which every window is final."""

        awaited = [*zip(self._debts[False].debts, self._debts[False].closed, strict=True)]
        # A missing report, or a producer that promises nothing, opens no final window with events.
        opened = (debt.instance.closed_through for debt, _ in awaited)
        self.opened_from = min((time for time in opened if time != NOTHING), default=FOR_EVER)
        """Time (ms) from which windows are open for a producer, also those that were final."""
        unknown = (time for debt, time in awaited if debt.state != DebtState.OPEN)
        self.unknown_from = next(unknown, FOR_EVER)
        """Time (ms) from which windows are unknown because of a silent producer or a missing report."""

    @property
    def live_through(self) -> int | None:
        """Time (ms) before which every row that reached the warehouse is in branch `live` of the table; None
        if no such branch was reported.

        The warehouse's reader vouches for no later time than that of its heartbeat. Any program may write the
        time of a snapshot, also one that is no date.
        """
        state, heartbeat = self.loads.state, self._watermark(WAREHOUSE)
        if state is None or state.live_through is None:
            return None
        through = min(state.live_through, heartbeat)
        return through if through >= FIRST_EVENT_MS else None

    def waited_for(self, start: int, *, has_events: bool = False) -> WindowFacts:
        """Readers, reports and producers that a window waits for, whichever events it has."""
        common = self._common_at(start + WINDOW_MS, has_events=has_events)
        return WindowFacts(topic=self.topic, start=start, **common.values)

    def of_window(self, start: int, positions: Mapping[str, Mapping[str, int]] | None) -> WindowFacts:
        """Return a window's facts without its evidence; `positions` of its row, None without events."""
        common, own = self._of_window(start, positions)
        return WindowFacts(topic=self.topic, start=start, **{**common.values, **own})

    def digest(self, start: int, positions: Mapping[str, Mapping[str, int]] | None) -> str:
        """Return a hash of a window's facts. The verdict changes only if the hash or the evidence changes."""
        common, own = self._of_window(start, positions)
        return _hash(f"{common.digest} {own}")

    def _common_at(self, end: int, *, has_events: bool) -> _Common:
        """Return the facts shared by windows that end between the same two times of producers and origins."""
        closes_at = end + self._options.grace_ms
        in_debt, let_off = self._debts[has_events], self._accepted[has_events]
        key = (has_events, in_debt.count(end), let_off.count(end), bisect_left(self._times, closes_at))
        if key not in self._common:
            debts, more_debts = in_debt.first(key[1])
            accepted, more_accepted = let_off.first(key[2])
            origins = self._options.origins
            values = {
                "origins": origins,
                "is_announced": self.is_announced,
                "readers": [self._reader(o) for o in origins if self._watermark(o) < closes_at],
                "streams": [*self._streams(closes_at)],
                "debts": debts,
                "more_debts": more_debts,
                "accepted": [debt.instance for debt in accepted],
                "more_accepted": sum(more_accepted.values()),
            }
            self._common[key] = _Common(values, _hash(repr(values)))
        return self._common[key]

    def _of_window(
        self, start: int, positions: Mapping[str, Mapping[str, int]] | None
    ) -> tuple[_Common, dict[str, Any]]:
        """Return the facts that a window shares with others, and its own facts, which replace shared ones."""
        common = self._common_at(start + WINDOW_MS, has_events=bool(positions))
        hour, loads = start - start % HOUR_MS, self.loads
        closes_at = start + WINDOW_MS + self._options.grace_ms
        counted = (positions or {}).get("counted", {})
        # Gaps of single partitions matter only for windows with events.
        gaps = [
            replace(gap, is_recounted=True) if counted.get(gap.tier, NOTHING) > gap.recounted_after else gap
            for gap in self.gaps
            if start < gap.until and (positions or gap.is_of_all)
        ]
        early = [gap for gap in gaps if gap.since < closes_at]
        blocked = {gap.tier for gap in early if gap.is_ongoing}
        way = self._follow(positions, closes_at, blocked) if positions else _Way()
        late = [*_late((gap for gap in gaps if gap.since >= closes_at), way.checkpoints)]
        readers = {reader.tier: reader for reader in common.values["readers"]}
        readers |= {tier: self._reader(tier) for tier in way.awaited if tier not in readers}
        table_counted = counted.get(TABLE)
        is_published = table_counted is not None
        own = {
            "is_counted": self._is_counted or bool((positions or {}).get("origins")),
            "has_events": bool(positions),
            "readers": [*readers.values()],
            "gaps": [*early, *late],
            "legs": way.legs,
            "read_at": {tier: checkpoint.time for tier, checkpoint in way.checkpoints.items()},
            "pending_reports": way.pending_reports,
            "problems": [
                VerifyProblem(problem.text, problem.hour is None)
                for problem in self._progress.verified[self.topic]
                if problem.hour is None or problem.hour <= start < problem.hour + HOUR_MS
            ],
            "lost_loads": [*loads.lost.get(hour, ()), *loads.lost_somewhere],
            "has_other_editions": hour in loads.others,
            "table_troubles": loads.table_troubles(self.now) if is_published else (),
            "lost_reports": () if table_counted is None else self._lost_reports(table_counted),
            "are_unkeyed_rows_known": start >= loads.unkeyed_from,
            "rejected": loads.spans_over(start),
        }
        return common, own

    def _lost_reports(self, table_counted: int) -> list[Gap]:
        """Return the newest loss of records of the warehouse's reader after a log position."""
        lost = (gap for gap in self.gaps if gap.kind == GapKind.COUNTS_LOST and gap.tier == WAREHOUSE)
        later = (gap for gap in lost if gap.is_after(table_counted))
        return sorted(later, key=lambda gap: gap.serial)[-1:]

    def _watermark(self, tier: str) -> int:
        return self._watermarks.get(tier, NOTHING)

    def _reader(self, tier: str) -> Reader:
        if tier not in self._watermarks:
            return Reader(tier, ReaderState.NEVER_SEEN)
        watermark = self._watermarks[tier]
        if self.now - watermark > STALE_MS:
            return Reader(tier, ReaderState.STALE, watermark)
        return Reader(tier, ReaderState.CURRENT)

    def _streams(self, closes_at: int) -> Iterator[ReportStream]:
        for origin, applied in self._applied.items():
            if not applied < closes_at <= self._watermark(origin):
                continue
            since = applied if applied != NOTHING else self._progress.checkpoints[origin][0].time
            if self._watermark(origin) - since > STALE_MS:
                yield ReportStream(origin, StreamState.STUCK, since)
            else:
                yield ReportStream(origin, StreamState.APPLYING)

    def _debt(self, instance: Instance) -> Debt:
        since = self._watermark(instance.cluster) - instance.heard_at
        # A producer whose newest report is from the future counts as silent, too.
        is_silent = not -self._options.grace_ms <= since <= self._options.hello_patience_ms
        if is_silent and not instance.missing_reports:
            return Debt(instance, DebtState.SILENT)
        # The time of the newest report changes with every report, so it is no fact about a window.
        instance = replace(instance, heard_at=NOTHING)
        return Debt(instance, DebtState.REPORT_MISSING if instance.missing_reports else DebtState.OPEN)

    def _follow(self, positions: Mapping[str, Mapping[str, int]], closes_at: int, blocked: set[str]) -> _Way:
        """Find out how far each tier has read a window; `blocked` tiers cannot be read further."""
        way, ends = _Way(), dict[str, Ends]()
        reported, counted = positions.get("reported", {}), positions.get("counted", {})
        origins = sorted(positions.get("origins", ()))
        for origin in origins:
            newest = (reported.get(origin, NOTHING), counted.get(origin, NOTHING))
            checkpoint, state = self._home(origin, closes_at, *newest)
            way.legs.append(Leg(origin, origin, state))
            if checkpoint is None:
                if state in (LegState.OPEN, LegState.NOT_COUNTED):
                    way.awaited.append(origin)
                continue
            way.checkpoints[origin] = checkpoint
            if not self._progress.has_applied(origin, checkpoint):
                way.pending_reports.append(origin)
            ends[origin] = self._progress.ends_at(origin, self.topic, checkpoint)
            if origin != OFFLINE:
                copied = counted.get(OFFLINE, NOTHING)
                self._follow_copy(way, origin, ends[origin], copied, is_blocked=origin in blocked)
        read = {leg.origin for leg in way.legs if leg.tier == OFFLINE and leg.state == LegState.READ}
        if read.issuperset(origins):
            self._follow_loads(way, ends, counted.get(OFFLINE, NOTHING))
        if counted.get(TABLE, NOTHING) > counted.get(WAREHOUSE, NOTHING):
            way.legs.append(Leg("", TABLE, LegState.READ, is_surplus_final=True))
        return way

    def _home(
        self, origin: str, closes_at: int, reported: int, counted: int
    ) -> tuple[Checkpoint | None, LegState]:
        """Return the checkpoint by which an origin has read a window, or None, and the state of its leg."""
        checkpoints = self._progress.checkpoints[origin]
        if self.now < closes_at or checkpoints.first(closes_at, reported, counted) is None:
            if origin not in self._options.origins and origin != OFFLINE:
                return None, LegState.ORIGIN_NOT_CONFIGURED
            is_open = self._watermark(origin) < closes_at
            return None, LegState.OPEN if is_open else LegState.NOT_COUNTED
        counted_since = self._progress.counted_since(origin, self.topic)
        if counted_since is None:
            return None, LegState.TOPIC_NOT_COUNTED
        checkpoint = checkpoints.first(closes_at, reported, max(counted, counted_since))
        return checkpoint, LegState.TOPIC_NOT_COUNTED if checkpoint is None else LegState.READ

    def _follow_copy(self, way: _Way, origin: str, ends: Ends, copied: int, *, is_blocked: bool) -> None:
        """Add the leg of an origin into the aggregate cluster."""
        progress, topic = self._progress, self.topic
        if progress.is_mirrored(topic, origin, ends):
            state = LegState.UPSTREAM_BLOCKED if is_blocked else LegState.READ
            is_final = progress.is_ahead(topic, origin, copied)
            way.legs.append(Leg(origin, OFFLINE, state, is_final))
            if not is_final:
                way.awaited.append(origin)
        elif any(gap.tier == OFFLINE and gap.is_ongoing for gap in self.gaps):
            way.legs.append(Leg(origin, OFFLINE, LegState.BLOCKED))
        elif not progress.holds_mirror(topic, origin):
            way.legs.append(Leg(origin, OFFLINE, LegState.NOT_MIRRORED))
        else:
            way.legs.append(Leg(origin, OFFLINE, LegState.IN_FLIGHT))
            way.awaited.append(OFFLINE)

    def _follow_loads(self, way: _Way, ends: Mapping[str, Ends], copied: int) -> None:
        """Add the leg into the warehouse; `ends` of each origin at its checkpoint."""
        progress, topic = self._progress, self.topic
        mirrored = {origin: end for origin, end in ends.items() if origin != OFFLINE}
        found = progress.first_mirrored(topic, mirrored, copied)
        if found is None:
            way.awaited.append(OFFLINE)
            return
        checkpoint, offline_ends = found
        way.checkpoints[OFFLINE] = max(checkpoint, way.checkpoints.get(OFFLINE, checkpoint))
        if not progress.is_loaded(topic, {**offline_ends, **ends.get(OFFLINE, {})}):
            way.legs.append(Leg("", WAREHOUSE, LegState.NOT_LOADED))
            return
        is_final = progress.is_ahead_of_loads(topic)
        way.legs.append(Leg("", WAREHOUSE, LegState.READ, is_final))
        if not is_final:
            way.awaited.append(OFFLINE)


def _late(gaps: Iterable[Gap], checkpoints: Mapping[str, Checkpoint]) -> Iterator[Gap]:
    """Yield late gaps that may hold a window's events or reports."""
    for gap in gaps:
        checkpoint = checkpoints.get(gap.tier or gap.origin)
        if gap.tier:
            is_before = checkpoint is not None and gap.serial <= checkpoint.serial
            yield replace(gap, is_late=True, hides_missing=gap.tier == WAREHOUSE or is_before)
        elif checkpoint is not None and gap.since <= checkpoint.time <= gap.until:
            yield replace(gap, is_late=True)


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def topic_facts(
    session: Session, options: AuditOptions, progress: Progress, topics: Sequence[str]
) -> Iterator[TopicFacts]:
    """Yield the facts of each topic, read for many topics at once."""
    link = store.ProducerTopicRow
    named = join(link, ProducerRow, ProducerRow.producer == link.producer)
    for some in store.slices(topics):
        instances: defaultdict[str, list[Instance]] = defaultdict(list)
        starts: defaultdict[str, list[Start]] = defaultdict(list)
        rows = select(link.topic, ProducerRow, reason_of()).select_from(named).where(link.topic.in_(some))
        open_ones = rows.where(~ProducerRow.done, ~is_disowned())
        known: dict[int, tuple[Instance, Start]] = {}
        by_number = (ProducerRow.instance, ProducerRow.origin)
        for topic, row, accepted in session.execute(open_ones.order_by(*by_number)):
            if row.producer not in known:
                heartbeat = progress.heartbeats.get(row.origin, NOTHING)
                instance = to_instance(row, heartbeat, options, accepted)
                known[row.producer] = instance, _start(row, progress)
            instance, start = known[row.producer]
            instances[topic].append(instance)
            starts[topic].append(start)
        own = select(link.topic).distinct().select_from(named)
        announced = {*session.scalars(own.where(link.topic.in_(some), ~is_disowned()))}
        gaps = gaps_of(session, progress, some)
        rows_told = select(TopicRow.topic, TopicRow.unkeyed_from).where(TopicRow.topic.in_(some))
        loads = load_facts(session, some, {row[0]: row[1] for row in session.execute(rows_told)})
        for topic in some:
            yield TopicFacts(
                options,
                progress,
                topic,
                is_announced=topic in announced,
                instances=instances[topic],
                starts=starts[topic],
                gaps=gaps[topic],
                loads=loads[topic],
            )


def is_listed(topic: InstrumentedAttribute[str]) -> ColumnElement[bool]:
    """True for a topic that a reader or a load names, and for the first few others."""
    counted = select(CoverageRow.topic)
    others = select(TopicRow.topic).where(TopicRow.topic.not_in(counted))
    return or_(topic.in_(counted), topic.in_(others.order_by(TopicRow.topic).limit(MOST_UNCOUNTED)))


def listed(session: Session) -> Sequence[str]:
    """Return the topics that are judged and shown, by name."""
    return session.scalars(
        select(TopicRow.topic).where(is_listed(TopicRow.topic)).order_by(TopicRow.topic)
    ).all()


def to_instance(
    row: ProducerRow, heartbeat: int, options: AuditOptions, accepted: str | None, *, is_own: bool = True
) -> Instance:
    """Return a producer as an instance, with the reason of an operator's decision about it.

    `is_own` is False for a topic that the producer has not announced, and for a disowned producer.
    """
    nothing_heard = row.announced and not row.counted and row.next_report == 0 and not row.missing
    return Instance(
        instance=row.instance,
        server=row.server,
        service=row.service,
        cluster=row.origin,
        announced=row.announced and is_own,
        heard_at=row.heard_at,
        closed_through=row.closed_through,
        missing_reports=row.missing,
        first_report=row.first_report,
        idle=nothing_heard
        and row.awaited_from != NOTHING
        and heartbeat - row.awaited_from >= options.hello_patience_ms,
        accepted=accepted,
    )
