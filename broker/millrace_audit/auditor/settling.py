"""Judges windows whose evidence or circumstances have changed since their last verdict, and keeps verdicts.

Producers decide how many windows are open. So windows are judged in turns of a bounded time: a portion of
each topic in a transaction, the newest first. An operator's decision goes between two transactions. A window
that waits for its turn has a verdict that proves nothing.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Set
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from millrace_audit.answer import Instance, Verdict, Window, to_json
from millrace_audit.auditor import store
from millrace_audit.auditor.beats import Progress
from millrace_audit.auditor.circumstances import FINAL, Circumstances
from millrace_audit.auditor.evidence import MOST_RANGES_KEPT, Evidence
from millrace_audit.auditor.gaps import note_unheard
from millrace_audit.auditor.load_facts import erased_in, rejected_in
from millrace_audit.auditor.options import AuditOptions
from millrace_audit.auditor.store import AuditStore, ChangedRow, HistoryRow, ProducerRow, TopicRow, WindowRow
from millrace_audit.auditor.topic_view import TopicView, listed, to_instance, views
from millrace_audit.auditor.verdict import judge
from millrace_audit.reports.counts import HOUR_MS
from millrace_audit.reports.messages import FOR_EVER, NOTHING

_TOO_MUCH = (
    f"more than {MOST_RANGES_KEPT} ranges of sequences were reported or counted in it: look for who sends"
    " sequences out of order, or in others' names"
)
PORTION = 300
"""Windows of a topic in one transaction."""
TRANSACTION_S = 0.5
"""Time of judging after which a transaction begins with no other topic."""
_BETWEEN_S = 0.02
"""Pause between transactions: who waits for the lock gets it."""
Settled = Callable[[Window, Circumstances, str], object]


class Settling:
    """Judges open windows in turns: each one the newest, then those that the turn before has left."""

    def __init__(self, store: AuditStore, options: AuditOptions, settled: Settled = lambda *_: None) -> None:
        """`settled` is called with each window that is final for the first time."""
        self._store, self._options, self._settled = store, options, settled
        self._next = ""
        """The topic that the next turn begins with."""
        self._below: dict[str, int] = {}
        """Topic -> the window below which its windows are still to be judged."""
        self.is_behind = False
        """True if the last turn has left windows to the next."""

    def turn(self, seconds: float) -> int:
        """Judge until everything is judged or that time is over; return how many windows were judged.

        Call it when all that was said is applied.
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
        """Judge a portion of each topic in the queue, below its window there; what is left is queued again.

        The newest portion of a topic comes with one of its older windows: each turn brings both forward.
        """
        until, judged = math.inf, 0
        with self._store.writing() as session:
            progress = Progress(session)
            _note_hellos(session, progress)
            note_unheard(session, progress)
            for view in views(session, self._options, progress, [*queue]):
                until = min(until, time.monotonic() + TRANSACTION_S)  # what they all need is read by now
                if view.announced:
                    topic = session.get_one(TopicRow, view.topic)
                    topic.final_through = max(topic.final_through, view.final_through)
                _doubt_table(session, view)
                judging = _Judge(session, self._options, progress.heartbeats, view)
                below, older = queue.pop(view.topic), self._below.pop(view.topic, None)
                changed, rest = _settle(session, judging, view, below, self._settled)
                judged += changed
                if rest is not None and below == FOR_EVER and older is not None:  # all between is judged
                    changed, rest = _settle(session, judging, view, min(rest, older), self._settled)
                    judged += changed
                if rest is not None:
                    queue[view.topic] = self._below[view.topic] = rest
                if time.monotonic() >= until:
                    break
        return judged


def _settle(
    session: Session, judging: _Judge, view: TopicView, below: int, settled: Settled
) -> tuple[int, int | None]:
    """Judge the newest open windows below one; return how many, and below which window others are left."""
    columns = select(
        WindowRow.window,
        WindowRow.revision,
        WindowRow.dirty,
        WindowRow.positions,
        WindowRow.signature,
        WindowRow.last_settled,
        WindowRow.verdict,
    )
    # What is still to come nobody can have sent, whatever clocks say: it waits for its time.
    still_open = columns.where(
        ~WindowRow.settled,
        WindowRow.topic == view.topic,
        WindowRow.window <= view.now,
        WindowRow.window < below,
    )
    rows = session.execute(still_open.order_by(WindowRow.window.desc()).limit(PORTION)).all()
    changes, changed = [], set()
    for row in rows:
        around = view.around(row.window, row.positions)
        signature = around.digest()
        if not row.dirty and signature == row.signature:
            continue
        window = judging.judge(row.window, around)
        is_final = window.verdict in FINAL and around.is_over
        change = {
            "topic": view.topic,
            "window": row.window,
            "verdict": window.verdict,
            "settled": is_final,
            "last_settled": window.verdict if is_final else row.last_settled,
            "dirty": False,
            "signature": signature,
            "judged": to_json(window),
        }
        changes.append(change)
        before = row.last_settled if row.verdict == Verdict.PENDING else row.verdict
        if row.last_settled is not None and window.verdict not in (Verdict.PENDING, before):
            changed.add(row.window - row.window % HOUR_MS)
        if is_final and row.last_settled is None:
            settled(window, around, view.topic)
        elif is_final and row.last_settled != window.verdict:
            session.add(_became(window, row, view))
    if changes:
        session.execute(update(WindowRow), changes)
    _note_changed(session, view.topic, changed)
    return len(changes), rows[-1].window if len(rows) == PORTION else None


def _became(window: Window, row: Any, view: TopicView) -> HistoryRow:
    what = f"{row.last_settled} became {window.verdict} at revision {row.revision}"
    return HistoryRow(time=view.now, topic=view.topic, window=row.window, who="the auditor", what=what)


class _Judge:
    """Judges windows of a topic, and reads of every producer once who it is."""

    def __init__(
        self, session: Session, options: AuditOptions, heartbeats: Mapping[str, int], view: TopicView
    ) -> None:
        self._session, self._options, self._heartbeats = session, options, heartbeats
        self._topic, self._loads = view.topic, view.loads
        self._instances: dict[int, Instance] = {}

    def judge(self, start: int, around: Circumstances) -> Window:
        here = (WindowRow.topic == self._topic, WindowRow.window == start)
        evidence = Evidence.unpack(self._session.scalar(select(WindowRow.evidence).where(*here)) or b"")
        link = store.ProducerTopicRow
        named = (link.producer == ProducerRow.producer) & (link.topic == self._topic)
        rows = select(ProducerRow, link.topic).outerjoin(link, named)
        for some in store.slices(sorted(evidence.producers() - self._instances.keys())):
            for row, topic in self._session.execute(rows.where(ProducerRow.producer.in_(some))):
                heartbeat = self._heartbeats.get(row.origin, NOTHING)
                self._instances[row.producer] = to_instance(
                    row, heartbeat, self._options, is_of_topic=topic is not None
                )
        if evidence.is_too_much:
            around.waiting.append((Verdict.UNKNOWN, _TOO_MUCH))
        around.rejected = rejected_in(self._session, self._loads, start)
        around.waiting += map(self._loads.of_rejected, around.rejected)
        if evidence.foreign or evidence.unkeyed:
            around.set_aside = erased_in(self._session, self._topic, start)
            around.set_aside += sum(span.messages for span in self._loads.spans_over(start))
        return judge(start, evidence, self._instances, around)


def _note_changed(session: Session, topic: str, hours: Set[int]) -> None:
    """Number the hours after all earlier changes: a client asks for the changes after its newest one."""
    if hours:
        number = (session.scalar(select(func.max(ChangedRow.number))) or 0) + 1
        for hour in sorted(hours):
            session.merge(ChangedRow(topic=topic, hour=hour, number=number))
            number += 1
        session.flush()


def _doubt_table(session: Session, view: TopicView) -> None:
    """Have a topic's windows judged again once its published table has been gone for too long."""
    state = view.loads.state
    if state is not None and not state.is_table_doubted and view.loads.is_table_gone(view.now):
        state.is_table_doubted = True
        settled = update(WindowRow).where(WindowRow.topic == view.topic, WindowRow.settled)
        session.execute(settled.values(settled=False, dirty=True))


def _note_hellos(session: Session, progress: Progress) -> None:
    """Note of new instances from when on they are awaited: their cluster's heartbeat behind the hello."""
    new = (ProducerRow.announced, ~ProducerRow.done, ProducerRow.next_report == 0, ~ProducerRow.counted)
    for row in session.scalars(select(ProducerRow).where(*new, ProducerRow.awaited_from == NOTHING)):
        if beat := progress.beats[row.origin].first(reported_at=row.hello_at):
            row.awaited_from = beat.time
