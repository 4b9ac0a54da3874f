"""Judges windows whose facts have changed since their last verdict, and keeps the verdicts.

The number of open windows is not bounded. So windows are judged in turns of a bounded time: a portion of each
topic per transaction, the newest first. An operator's decision is applied between two transactions. A window
that waits for its turn has a verdict that proves nothing.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from sqlalchemy import bindparam, select, update
from sqlalchemy.orm import Session

from millrace_audit.answer import Instance, Verdict, Window, to_json, utc
from millrace_audit.auditor import store
from millrace_audit.auditor.judging import incidents
from millrace_audit.auditor.judging.topic_facts import TopicFacts, listed, to_instance, topic_facts
from millrace_audit.auditor.options import AuditOptions
from millrace_audit.auditor.records.batch import NO_NAMES
from millrace_audit.auditor.records.decisions import is_disowned, reason_of
from millrace_audit.auditor.records.gaps import note_reports_lost
from millrace_audit.auditor.records.load_counts import final_hours, judge_again, note_changed
from millrace_audit.auditor.records.progress import Progress
from millrace_audit.auditor.store import AuditStore, HistoryRow, ProducerRow, TopicRow, WindowRow
from millrace_audit.auditor.verdict import reconcile
from millrace_audit.auditor.verdict.evidence import Evidence, pairs
from millrace_audit.auditor.verdict.facts import WindowFacts
from millrace_audit.auditor.verdict.rules import Judged, judge, unreported_messages
from millrace_audit.reports.counts import window_start
from millrace_audit.reports.messages import FOR_EVER, NOTHING, OFFLINE, TABLE
from millrace_audit.reports.ranges import SequenceRanges

MOST_REASONS = 20
"""Most reasons that a window lists; the others are counted."""
PORTION = 300
"""Most windows of a topic to judge in one transaction."""
COMPARED = 3000
"""Most windows of a topic whose facts are compared in one transaction."""
TRANSACTION_S = 0.5
"""Time of judging after which a transaction begins with no other topic."""
_BETWEEN_S = 0.02
"""Pause between transactions, in which waiting writers get the lock."""
Final = Callable[[Window, WindowFacts], object]


class Judging:
    """Judge of open windows, in turns: first the newest windows, then those left by the turn before."""

    def __init__(self, store: AuditStore, options: AuditOptions, note_final: Final = lambda *_: None) -> None:
        """`note_final` is called with each window that is final for the first time."""
        self._store, self._options, self._note_final = store, options, note_final
        self._next = ""
        """Topic at which the next turn begins."""
        self._below: dict[str, int] = {}
        """Topic -> window before which its windows are still to be judged."""
        self._unknown_from: dict[str, int] = {}
        """Topic -> `TopicFacts.unknown_from` of its last turn."""
        self.is_behind = False
        """True if the last turn has left windows to the next."""

    def turn(self, seconds: float) -> int:
        """Judge until everything is judged or the time is over; return the number of judged windows.

        Call it when all fetched records are applied.
        """
        until = time.monotonic() + seconds
        with self._store.reading() as session:
            topics = listed(session)
        first = bisect_left(topics, self._next)
        queue = dict.fromkeys([*topics[first:], *topics[:first]], FOR_EVER)
        judged = self._transaction(queue)
        while queue and time.monotonic() < until:
            time.sleep(_BETWEEN_S)
            judged += self._transaction(queue)
        self._next, self.is_behind = next(iter(queue), ""), bool(queue)
        return judged

    def _transaction(self, queue: dict[str, int]) -> int:
        """Judge a portion of each queued topic, before its window in the queue; queue the rest again.

        With the newest portion of a topic comes a portion of its older windows, so each turn advances both.
        """
        until, judged, final, unknown_from = math.inf, 0, [], dict[str, int]()
        with self._store.writing() as session:
            progress = Progress(session)
            _note_hellos(session, progress)
            note_reports_lost(session, progress)
            rows = session.execute(select(TopicRow.topic, TopicRow.final_through))
            through = {row.topic: row.final_through for row in rows}
            for facts in topic_facts(session, self._options, progress, [*queue]):
                until = min(until, time.monotonic() + TRANSACTION_S)  # common facts are read by now
                if facts.is_announced:
                    final.append({"name": facts.topic, "through": facts.final_through})
                _doubt_table(session, facts)
                if facts.opened_from < through.get(facts.topic, NOTHING):
                    first = window_start(max(facts.opened_from, 0))
                    judge_again(session, facts.topic, first, final_only=True)  # later turns find none to mark
                if facts.unknown_from < self._unknown_from.get(facts.topic, FOR_EVER):
                    note_changed(session, facts.topic, final_hours(session, facts.topic, facts.unknown_from))
                unknown_from[facts.topic] = facts.unknown_from
                judging = _TopicJudge(session, self._options, progress.heartbeats, facts, self._note_final)
                below, older = queue.pop(facts.topic), self._below.pop(facts.topic, None)
                changed, rest = judging.portion(below)
                judged += changed
                if rest is not None and below == FOR_EVER and older is not None:  # windows between are judged
                    changed, rest = judging.portion(min(rest, older))
                    judged += changed
                if rest is not None:
                    queue[facts.topic] = self._below[facts.topic] = rest
                if time.monotonic() >= until:
                    break
            if final:
                session.connection().execute(_FINAL, final)
        self._unknown_from |= unknown_from
        return judged


# Built once, from tables instead of classes: building a query takes longer than executing it.
_windows = WindowRow.__table__.c
_OPEN = (
    select(
        _windows.window,
        _windows.revision,
        _windows.is_changed,
        _windows.positions,
        _windows.facts_digest,
        _windows.last_final,
        _windows.verdict,
    )
    .where(~_windows.is_final, _windows.topic == bindparam("topic"), _windows.window < bindparam("below"))
    .order_by(_windows.window.desc())
    .limit(bindparam("most"))
)
"""Open windows of a topic, the newest first."""
_FINAL = (
    update(TopicRow)
    .where(TopicRow.topic == bindparam("name"), TopicRow.final_through < bindparam("through"))
    .values(final_through=bindparam("through"))
)


class _TopicJudge:
    """Judge of a topic's windows; reads each producer's names once."""

    def __init__(
        self,
        session: Session,
        options: AuditOptions,
        heartbeats: Mapping[str, int],
        facts: TopicFacts,
        note_final: Final,
    ) -> None:
        self._session, self._options, self._heartbeats = session, options, heartbeats
        self._facts, self._note_final = facts, note_final
        self._instances: dict[int, Instance] = {}
        self._announced: dict[int, int] = {}
        """Producers of events without names -> the announced producer with the same instance."""

    def portion(self, below: int) -> tuple[int, int | None]:
        """Judge the newest open windows before `below`; return the number judged, and where to go on."""
        topic = self._facts.topic
        # Windows in the future, by the auditor's clock, are not judged yet.
        here = {"topic": topic, "below": min(below, self._facts.now + 1), "most": COMPARED}
        rows = self._session.execute(_OPEN, here).all()
        rest = rows[-1].window if len(rows) == COMPARED else None
        changes, changed, causes = [], set(), {}
        for row in rows:
            digest = self._facts.digest(row.window, row.positions)
            if not row.is_changed and digest == row.facts_digest:
                continue
            facts = self._with_evidence(self._facts.of_window(row.window, row.positions))
            judged = judge(facts)
            window = window_of(facts, judged)
            change = {
                "topic": topic,
                "window": row.window,
                "verdict": judged.verdict,
                "events": window.acknowledged + window.carried,
                "is_final": judged.is_final,
                "last_final": judged.verdict if judged.is_final else row.last_final,
                "is_changed": False,
                "facts_digest": digest,
                "judged": to_json(window),
            }
            changes.append(change)
            causes[row.window] = judged.causes
            # A late event has made the row of a window that was final, and perhaps complete, without one.
            last_final = row.last_final or (Verdict.COMPLETE if row.revision else None)
            before = last_final if row.verdict == Verdict.PENDING else row.verdict
            if last_final is not None and judged.verdict not in (Verdict.PENDING, before):
                changed.add(facts.hour)
            if judged.is_final and row.last_final is None:
                self._note_final(window, facts)
            if judged.is_final and last_final not in (None, judged.verdict):
                self._session.add(_became(judged, row, self._facts))
            if len(changes) == PORTION:
                rest = row.window
                break
        if changes:
            self._session.execute(update(WindowRow), changes)
            incidents.note(self._session, topic, causes, self._facts.now)
        note_changed(self._session, topic, changed)
        return len(changes), rest

    def _with_evidence(self, facts: WindowFacts) -> WindowFacts:
        """Return a window's facts with its evidence and the rows to compare it with."""
        here = (WindowRow.topic == facts.topic, WindowRow.window == facts.start)
        evidence = Evidence.unpack(self._session.scalar(select(WindowRow.evidence).where(*here)) or b"")
        self._read_instances(evidence.producers())
        for producer in evidence.producers() & self._announced.keys():
            evidence.move(producer, self._announced[producer])
        loads, is_unkeyed = self._facts.loads, bool(evidence.unkeyed or evidence.unkeyed_rows)
        return replace(
            facts,
            rejected=[*facts.rejected, *loads.rejected_in(self._session, facts.start)],
            has_too_many_ranges=evidence.is_too_much,
            sources=reconcile.sources_of(evidence, self._instances, with_table=facts.is_table_compared),
            unkeyed=evidence.unkeyed,
            unkeyed_rows=evidence.unkeyed_rows,
            erased=loads.erased_in(self._session, facts.start) if is_unkeyed else 0,
            uncounted=loads.uncounted_in(self._session, facts.start) if is_unkeyed else (),
        )

    def _read_instances(self, producers: Set[int]) -> None:
        link = store.ProducerTopicRow
        named = (link.producer == ProducerRow.producer) & (link.topic == self._facts.topic)
        rows = select(ProducerRow, link.topic, reason_of(), is_disowned()).outerjoin(link, named)
        unnamed: list[ProducerRow] = []
        for some in store.slices(sorted(producers - self._instances.keys())):
            here = rows.where(ProducerRow.producer.in_(some))
            for row, topic, accepted, disowned in self._session.execute(here):
                heartbeat = self._heartbeats.get(row.origin, NOTHING)
                is_own = topic is not None and not disowned
                self._instances[row.producer] = to_instance(
                    row, heartbeat, self._options, accepted, is_own=is_own
                )
                if row.names == NO_NAMES and row.origin and not row.announced:
                    unnamed.append(row)
        if unnamed:
            self._name(unnamed)

    def _name(self, unnamed: Sequence[ProducerRow]) -> None:
        """Give events that were counted without names the names of their instance's hello.

        Events that something has copied to another cluster have the names of the hello at their own cluster.
        """
        origins = {*self._options.origins, OFFLINE, *(row.origin for row in unnamed)}
        announced: defaultdict[int, dict[str, ProducerRow]] = defaultdict(dict)
        for some in store.slices(sorted({row.instance for row in unnamed})):
            here = (ProducerRow.origin.in_(origins), ProducerRow.instance.in_(some), ProducerRow.announced)
            for row in self._session.scalars(select(ProducerRow).where(*here)):
                announced[row.instance][row.origin] = row
        for row in unnamed:
            known = announced[row.instance]
            if row.origin in known:
                self._announced[row.producer] = known[row.origin].producer
            elif known:
                named = known[min(known)]
                instance = self._instances[row.producer]
                self._instances[row.producer] = replace(instance, server=named.server, service=named.service)
        self._read_instances({*self._announced.values()})


def read_facts(
    session: Session,
    options: AuditOptions,
    progress: Progress,
    of_topic: TopicFacts,
    start: int,
    positions: Mapping[str, Mapping[str, int]],
) -> WindowFacts:
    """Return all facts about a window that has a row, as judging reads them."""
    judge_of_topic = _TopicJudge(session, options, progress.heartbeats, of_topic, lambda *_: None)
    return judge_of_topic._with_evidence(of_topic.of_window(start, positions))


def window_of(facts: WindowFacts, judged: Judged) -> Window:
    """Return the window as answers show it."""
    reported = [source.reported for source in facts.sources]
    return Window(
        start=utc(facts.start),
        end=utc(facts.end),
        verdict=judged.verdict,
        revision=0,
        acknowledged=sum(
            len(reconcile.acknowledged_of(each)) if each.failed else reconcile.size(each.acknowledged)
            for each in reported
        ),
        failed=sum(len(SequenceRanges(pairs(each.failed))) for each in reported if each.failed),
        tiers=_totals(facts),
        findings=judged.findings,
        reasons=_at_most(judged.reasons),
        carried=unreported_messages(facts),
        foreign=_unkeyed(facts),
        rejected=sum(each.messages for each in facts.rejected if not each.is_span),
    )


def _at_most(reasons: list[str]) -> list[str]:
    more = len(reasons) - MOST_REASONS
    return reasons if more <= 0 else [*reasons[:MOST_REASONS], f"and {more} more"]


def _unkeyed(facts: WindowFacts) -> dict[str, int]:
    """Count the messages and rows without an audit header at each tier."""
    found: Counter[str] = Counter()
    for tier, rows in facts.unkeyed_rows.items():
        if rows[0] and (tier != TABLE or facts.is_table_compared):
            found[tier] = rows[0]
    for tiers in facts.unkeyed.values():
        found.update({tier: messages for tier, (messages, _) in tiers.items()})
    return dict(found)


def _totals(facts: WindowFacts) -> dict[str, int]:
    """Count the messages of every source at each tier."""
    totals: Counter[str] = Counter()
    for source in facts.sources:
        if source.home:
            totals[source.home] += 0
        for tier, held in source.observed.items():
            totals[tier] += reconcile.size(held.ranges)
    return {**totals, **{tier: totals[tier] for tier in facts.tiers_behind}}


def _became(judged: Judged, row: Any, facts: TopicFacts) -> HistoryRow:
    before = row.last_final or "a window with late messages"
    what = f"{before} became {judged.verdict} at revision {row.revision}"
    return HistoryRow(time=facts.now, topic=facts.topic, window=row.window, who="the auditor", what=what)


def _doubt_table(session: Session, facts: TopicFacts) -> None:
    """Have a topic's windows judged again once its published table has been gone for too long."""
    state = facts.loads.state
    if state is not None and not state.is_table_doubted and facts.loads.table_troubles(facts.now):
        state.is_table_doubted = True
        final = update(WindowRow).where(WindowRow.topic == facts.topic, WindowRow.is_final)
        session.execute(final.values(is_final=False, is_changed=True))


def _note_hellos(session: Session, progress: Progress) -> None:
    """Store the time from which new instances are awaited: the first checkpoint after their hello."""
    new = (ProducerRow.announced, ~ProducerRow.done, ProducerRow.next_report == 0, ~ProducerRow.counted)
    for row in session.scalars(select(ProducerRow).where(*new, ProducerRow.awaited_from == NOTHING)):
        if checkpoint := progress.checkpoints[row.origin].first(reported_at=row.hello_at):
            row.awaited_from = checkpoint.time
