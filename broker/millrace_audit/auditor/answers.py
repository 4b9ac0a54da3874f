"""From the database to verdicts: has windows judged where something has changed, and says what the answer is.

`settle` judges what needs it and notes the verdicts; all else reads them. A window is judged again only when
its evidence or its circumstances are others than at its last verdict.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, case, delete, func, or_, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from millrace_audit.answer import (
    Completeness,
    Instance,
    Topic,
    Verdict,
    Window,
    iso,
    overall,
    to_json,
    utc,
    window_from_json,
)
from millrace_audit.auditor import beats, store
from millrace_audit.auditor.beats import Progress
from millrace_audit.auditor.circumstances import AuditRules, TopicView, note_unheard, to_instance, views
from millrace_audit.auditor.evidence import MOST_RANGES_KEPT, Evidence
from millrace_audit.auditor.store import CoverageRow, HistoryRow, ProducerRow, TopicRow, WindowRow
from millrace_audit.auditor.verdict import Circumstances, judge
from millrace_audit.reports.counts import MOST_AHEAD_MS, WINDOW_MS, window_start
from millrace_audit.reports.messages import FOR_EVER, NOTHING, WAREHOUSE

_SETTLING = (Verdict.INCOMPLETE, Verdict.CARRIED, Verdict.COMPLETE)
_AT_ONCE = 1000
"""Windows that are folded in one transaction."""
MOST_UNCOUNTED = 100
"""Topics that are judged though no reader names them: who may produce to `audit` may make up any number."""
Settled = Callable[[Window, Circumstances, str], object]


@dataclass(frozen=True, slots=True)
class Bad:
    """A window that is not complete."""

    topic: str
    window: Window


def completeness(session: Session, rules: AuditRules, topic: str, start: int, end: int) -> Completeness:
    """The answer about [start, end), ms: a verdict on each window it touches and on all together."""
    first, last = window_start(start), window_start(end - 1)
    starts = range(first, last + WINDOW_MS, WINDOW_MS)
    watermark, held_by = None, None
    known = session.get(TopicRow, topic)
    if known is None:
        # No producer and no reader has ever named it: nothing is known, and nothing must not look complete.
        held_by = f"no producer and no reader has spoken of topic {topic}"
        unheard = Circumstances(waiting=[(Verdict.UNKNOWN, held_by)])
        windows = [judge(window, Evidence(), {}, unheard) for window in starts]
    else:
        (view,) = views(session, rules, Progress(session), [topic])
        here = (WindowRow.topic == topic, WindowRow.window.between(first, last))
        rows = {row.window: row for row in session.execute(_COLUMNS.where(*here))}
        windows = [
            _judged(rows[at], view.now)
            if at in rows
            else judge(at, Evidence(), {}, _EXPIRED if at < known.kept_from else view.around(at, None))
            for at in starts
        ]
        watermark, held_by = watermark_of(session, view)
    foreign: Counter[str] = Counter()
    for window in windows:
        foreign.update(window.foreign)
    return Completeness(
        topic=topic,
        start=utc(start),
        end=utc(end),
        verdict=overall(window.verdict for window in windows),
        watermark=watermark,
        held_by=held_by,
        foreign=foreign,
        enough=Verdict.CARRIED if re.fullmatch(rules.carried, topic) else Verdict.COMPLETE,
        windows=windows,
    )


_IN_HAND = Circumstances(waiting=[(Verdict.PENDING, "news of it is being judged")])
_TO_COME = Circumstances(
    waiting=[
        (Verdict.PENDING, "by the auditor's clock it is still to come: is the clock of its producer right?")
    ]
)
_EXPIRED = Circumstances(
    waiting=[(Verdict.UNKNOWN, "it is older than --keep-days, and what was known of it is deleted")]
)
_TOO_MUCH = (
    f"more than {MOST_RANGES_KEPT} ranges of sequences were reported or counted in it: look for who sends"
    " sequences out of order, or in others' names"
)
_COLUMNS = select(
    WindowRow.window, WindowRow.revision, WindowRow.dirty, WindowRow.positions, WindowRow.judged
)


def _judged(row: Any, now: int) -> Window:
    """The window as it was judged last; nothing of which there is news is complete."""
    if row.judged is None:
        around = _IN_HAND if row.window <= now else _TO_COME
        return replace(judge(row.window, Evidence(), {}, around), revision=row.revision)
    window = replace(window_from_json(row.judged), revision=row.revision)
    if not row.dirty:
        return window
    verdict = overall((window.verdict, Verdict.PENDING))
    return replace(
        window, verdict=verdict, reasons=[*window.reasons, *(text for _, text in _IN_HAND.waiting)]
    )


class _Judge:
    """Judges windows of a topic, and reads of every producer once who it is."""

    def __init__(
        self, session: Session, rules: AuditRules, heartbeats: Mapping[str, int], topic: str
    ) -> None:
        self._session, self._rules, self._heartbeats = session, rules, heartbeats
        self._topic = topic
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
                    row, heartbeat, self._rules, is_of_topic=topic is not None
                )
        if evidence.is_too_much:
            around.waiting.append((Verdict.UNKNOWN, _TOO_MUCH))
        return judge(start, evidence, self._instances, around)


def is_listed(topic: InstrumentedAttribute[str]) -> ColumnElement[bool]:
    """True for a topic that a reader or a load names, and for the first few others."""
    counted = select(CoverageRow.topic)
    others = select(TopicRow.topic).where(TopicRow.topic.not_in(counted))
    return or_(topic.in_(counted), topic.in_(others.order_by(TopicRow.topic).limit(MOST_UNCOUNTED)))


def settle(session: Session, rules: AuditRules, settled: Settled = lambda *_: None) -> int:
    """Judge every window whose verdict may have changed; call it when all that was said is applied.

    Returns how many were judged; `settled` hears of those that are final for the first time.
    """
    progress = Progress(session)
    _note_hellos(session, progress)
    note_unheard(session, progress)
    judged = 0
    listed = select(TopicRow).where(is_listed(TopicRow.topic)).order_by(TopicRow.topic)
    topics = {row.topic: row for row in session.scalars(listed)}
    for view in views(session, rules, progress, [*topics]):
        topic = topics[view.topic]
        if view.announced:
            topic.final_through = max(topic.final_through, view.final_through)
        judging = _Judge(session, rules, progress.heartbeats, topic.topic)
        judged += _settle(session, judging, view, settled)
    return judged


def _settle(session: Session, judging: _Judge, view: TopicView, settled: Settled) -> int:
    columns = select(
        WindowRow.window,
        WindowRow.revision,
        WindowRow.dirty,
        WindowRow.positions,
        WindowRow.signature,
        WindowRow.last_settled,
    )
    # What is still to come nobody can have sent, whatever clocks say: it waits for its time.
    still_open = columns.where(
        ~WindowRow.settled, WindowRow.topic == view.topic, WindowRow.window <= view.now
    )
    changes = []
    for row in session.execute(still_open.order_by(WindowRow.window)).all():
        around = view.around(row.window, row.positions)
        signature = _signature(around)
        if not row.dirty and signature == row.signature:
            continue
        window = judging.judge(row.window, around)
        is_final = window.verdict in _SETTLING and all(v in _SETTLING for v, _ in around.waiting)
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
        if is_final and row.last_settled is None:
            settled(window, around, view.topic)
        elif is_final and row.last_settled != window.verdict:
            what = f"{row.last_settled} became {window.verdict} at revision {row.revision}"
            _remember(session, view.now, view.topic, row.window, "the auditor", what)
    if changes:
        session.execute(update(WindowRow), changes)
    return len(changes)


def _signature(around: Circumstances) -> str:
    a = around
    sets = [sorted(some) for some in (a.past, a.ahead)]
    names = [sorted(some) for some in (a.unheard, a.doubted)]
    causes = [sorted(some.items()) for some in (a.deaf, a.lost, a.lacks)]
    said = repr((a.waiting, *sets, *names, *causes, a.notes))
    return hashlib.blake2b(said.encode(), digest_size=16).hexdigest()


def _note_hellos(session: Session, progress: Progress) -> None:
    """Note of new instances from when on they are awaited: their cluster's heartbeat behind the hello."""
    new = (ProducerRow.announced, ~ProducerRow.done, ProducerRow.next_report == 0, ~ProducerRow.counted)
    for row in session.scalars(select(ProducerRow).where(*new, ProducerRow.awaited_from == NOTHING)):
        if beat := progress.beats[row.origin].first(reported_at=row.hello_at):
            row.awaited_from = beat.time


def _remember(
    session: Session, time: int, topic: str | None, window: int | None, who: str, what: str
) -> None:
    session.add(HistoryRow(time=time, topic=topic, window=window, who=who, what=what))


def tidy(session: Session, rules: AuditRules) -> bool:
    """Fold complete windows that no longer change, delete expired ones; True if there is more to do."""
    now = rules.clock_ms()
    kept_from = window_start(now - rules.keep_ms)
    old = (
        WindowRow.touched < kept_from,
        WindowRow.window < kept_from,
        WindowRow.verdict != Verdict.INCOMPLETE,
    )
    newest = select(WindowRow.topic, func.max(WindowRow.window)).where(*old).group_by(WindowRow.topic)
    for topic, last in session.execute(newest).all():
        row = session.get_one(TopicRow, topic)
        row.kept_from = max(row.kept_from, last + WINDOW_MS)
        session.execute(delete(WindowRow).where(*old, WindowRow.topic == topic))
    far = (WindowRow.touched < kept_from, WindowRow.window > now + MOST_AHEAD_MS)  # a stranger's
    session.execute(delete(WindowRow).where(*far))
    _forget_producers(session, now, kept_from)
    session.execute(delete(HistoryRow).where(HistoryRow.time < now - rules.keep_ms))
    session.execute(delete(store.UnheardRow).where(store.UnheardRow.until < kept_from))
    still = (WindowRow.touched < now - rules.fold_after_ms, ~WindowRow.folded)
    complete = (WindowRow.settled, WindowRow.verdict == Verdict.COMPLETE)
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
    still_open = select(func.min(WindowRow.window)).where(~WindowRow.settled, is_listed(WindowRow.topic))
    first_open = session.scalar(still_open)
    heard = [time for tier, time in heartbeats(session).items() if tier != WAREHOUSE]  # which has no beats
    if heard:
        beats.forget(session, min(*heard, FOR_EVER if first_open is None else first_open) - beats.ALL_KEPT_MS)
    return len(folded) == _AT_ONCE


def _forget_producers(session: Session, now: int, kept_from: int) -> None:
    """Delete producers that have ended and of whom no window holds anything, and topics of nobody."""
    table = ProducerRow
    ended = (
        or_(table.done, table.accepted.is_not(None), ~table.announced),
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
        session.execute(delete(table).where(table.producer.in_(some)))
    named = (select(CoverageRow.topic), select(link.topic), select(WindowRow.topic))
    session.execute(delete(TopicRow).where(*(TopicRow.topic.not_in(topics) for topics in named)))


def bad(session: Session, rules: AuditRules, topic: str | None, most: int) -> list[Bad]:
    """Windows that are over and not complete, of one topic or of all, the worst first."""
    now = rules.clock_ms()
    over = WindowRow.window < now - rules.grace_ms - WINDOW_MS
    worst = case({str(verdict): at for at, verdict in enumerate(Verdict)}, value=WindowRow.verdict)
    rows = (
        select(WindowRow.topic, *_COLUMNS.selected_columns)
        .where(or_(WindowRow.verdict != Verdict.COMPLETE, WindowRow.dirty))
        .where(or_(over, WindowRow.verdict == Verdict.INCOMPLETE))
        .order_by(worst, WindowRow.topic, WindowRow.window)
        .limit(most)
    )
    rows = rows.where(is_listed(WindowRow.topic) if topic is None else WindowRow.topic == topic)
    return [Bad(row.topic, _judged(row, now)) for row in session.execute(rows)]


def topics(session: Session, rules: AuditRules) -> list[Topic]:
    """Every topic the auditor knows, with its watermark and the instances that have not ended."""
    progress = Progress(session)
    listed = select(TopicRow.topic).where(is_listed(TopicRow.topic)).order_by(TopicRow.topic)
    names = session.scalars(listed).all()
    return [
        Topic(view.topic, *watermark_of(session, view), view.instances)
        for view in views(session, rules, progress, names)
    ]


def heartbeats(session: Session) -> dict[str, int]:
    """Tier -> time up to which it is counted."""
    return {
        row.tier: row.heartbeat for row in session.scalars(select(store.TierRow)) if row.heartbeat != NOTHING
    }


def strangers(session: Session) -> list[dict[str, Any]]:
    """Records that have no effect, because who wrote them cannot be who they say; the newest first."""
    table = store.StrangerRow
    return [
        {
            "place": row.place,
            "kind": row.kind,
            "cause": row.cause,
            "who": row.who,
            "count": row.count,
            "first": iso(row.first),
            "last": iso(row.last),
        }
        for row in session.scalars(select(table).order_by(table.last.desc()))
    ]


def history(session: Session, topic: str, start: int, end: int) -> list[dict[str, Any]]:
    """What operators said of a topic, and how final verdicts of [start, end) changed; the oldest first."""
    table = HistoryRow
    here = or_(table.window.between(window_start(start), end - 1), table.window.is_(None))
    rows = session.scalars(select(table).where(table.topic == topic, here).order_by(table.number))
    return [
        {
            "time": iso(row.time),
            "window": None if row.window is None else iso(row.window),
            "who": row.who,
            "what": row.what,
        }
        for row in rows
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """Without whose word an operator goes on: of one instance, or of a service up to a time."""

    instance: int | None = None
    service: str | None = None
    server: str | None = None
    before: int = FOR_EVER
    """Only those that were last heard of before (ms)."""
    disown: bool = False
    """They are nobody: what they have reported does not count, either."""
    reason: str
    who: str


def accept(session: Session, rules: AuditRules, said: Acceptance) -> list[Instance]:
    """Go on without the word of silent or false instances from now on; returns them.

    A later reason takes over.
    """
    table = ProducerRow
    rows = select(table).where(table.announced, table.heard_at < said.before)
    if said.instance is not None:
        rows = rows.where(table.instance == said.instance)
    else:
        rows = rows.where(table.service == said.service)
        if not said.disown:
            rows = rows.where(~table.done, table.accepted.is_(None))
        if said.server is not None:
            rows = rows.where(table.server == said.server)
    accepted = []
    now = rules.clock_ms()
    link = store.ProducerTopicRow
    topics: Counter[str] = Counter()
    for row in session.scalars(rows.order_by(table.instance)).all():
        row.accepted = said.reason
        if said.disown:
            row.disowned = row.done = True
        accepted.append(to_instance(row, NOTHING, rules))
        topics.update(session.scalars(select(link.topic).where(link.producer == row.producer)))
    for topic, count in topics.items():
        gap = store.UnheardRow  # it stays, without a time: who was not heard may speak from now on
        crowd = update(gap).where(gap.topic == topic, gap.to.is_(None))
        session.execute(crowd.values(to=gap.at, since=0, until=0))
        if said.disown:  # what it said may be in any window, and have made it incomplete
            again = update(WindowRow).where(WindowRow.topic == topic)
            session.execute(again.values(dirty=True, settled=False))
        whom = (
            f"instance {said.instance}" if said.instance is not None else f"{count} of service {said.service}"
        )
        done = "disowned" if said.disown else "accepted"
        _remember(session, now, topic, None, said.who, f"{done} {whom}: {said.reason}")
    return accepted


def watermark_of(session: Session, view: TopicView) -> tuple[datetime | None, str | None]:
    """The time before which every window is complete or carried, and what holds it there."""
    here = WindowRow.topic == view.topic
    first = session.scalar(select(func.min(WindowRow.window)).where(here))
    through, held_by = view.final_through, view.holding()
    for gap in view.gaps:
        if gap.since == NOTHING and first is not None:  # what is known begins behind it
            if gap.until == FOR_EVER:
                return None, gap.reason
            first = max(first, window_start(gap.until - 1) + WINDOW_MS)
        elif gap.is_of_all and gap.since < through:
            through, held_by = gap.since, gap.reason
    if first is None:
        return None, "nothing was reported or counted yet"
    doubtful = or_(~WindowRow.settled, WindowRow.verdict == Verdict.INCOMPLETE)
    bad = select(WindowRow.window, WindowRow.verdict, WindowRow.judged).where(here, doubtful)
    row = session.execute(bad.where(WindowRow.window >= first).order_by(WindowRow.window).limit(1)).first()
    end = window_start(max(min(through, FOR_EVER - WINDOW_MS), 0))
    if row is not None and row.window < end:
        end, held_by = row.window, f"{row.verdict}: {_first_cause(row.judged)}"
    return (utc(end) if end > first else None), held_by


def _first_cause(judged: Mapping[str, Any] | None) -> str:
    """What is wrong with a window first, in one sentence."""
    if judged is None:
        return "it is being judged"
    for finding in judged["findings"]:
        who = f"{finding['service']} on {finding['server']}" if finding["server"] else finding["service"]
        return f"{finding['count']} {finding['kind']} at {finding['tier']} ({who})"
    reasons: Sequence[str] = judged["reasons"]
    return reasons[0] if reasons else "it is not final yet"
