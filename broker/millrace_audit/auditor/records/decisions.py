"""Operators' decisions: their rows, and the conditions that are evaluated when windows are judged.

No decision changes a producer's row, so its order among the records of other partitions does not matter. Only
a decision to replace loads changes counts, and all counts of loads are in the partition of the decisions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from sqlalchemy import ColumnElement, ScalarSelect, and_, delete, exists, func, or_, select, update
from sqlalchemy.orm import Session

from millrace_audit.auditor import store
from millrace_audit.auditor.records.batch import Changes, storable
from millrace_audit.auditor.records.load_counts import LoadCounts, first_counted, judge_again
from millrace_audit.auditor.store import DecisionRow, HistoryRow, ProducerRow
from millrace_audit.reports.counts import window_start
from millrace_audit.reports.messages import (
    ACCEPT,
    ACCEPT_REJECTED,
    DISOWN,
    FOR_EVER,
    NOTHING,
    REPLACE_LOADS,
    Decision,
)

WRITE_AGAIN_MS = 24 * 3_600_000
"""Age of a decision's newest record at which the auditor writes it again, long before it expires."""
_AT_ONCE = 1000
"""Most decisions to write at once."""


def _concerns() -> ColumnElement[bool]:
    """Return the condition under which a decision concerns a producer."""
    decision, producer = DecisionRow, ProducerRow
    is_permanent = decision.before == FOR_EVER
    of_instance = (decision.instance == producer.instance) & (
        is_permanent | (producer.heard_at < decision.before)
    )
    of_service = (decision.service == producer.service) & (
        decision.server.is_(None) | (decision.server == producer.server)
    )
    silent = (decision.kind == ACCEPT) & ~producer.done & (producer.heard_at < decision.before)
    foreign = (decision.kind == DISOWN) & (producer.first_at < decision.before)
    return and_(
        producer.announced,
        decision.kind.in_((ACCEPT, DISOWN)),
        or_(of_instance, of_service & or_(silent, foreign)),
    )


def is_accepted() -> ColumnElement[bool]:
    """Return the condition under which a producer is accepted or disowned."""
    return exists().where(_concerns()).correlate(ProducerRow)


def is_disowned() -> ColumnElement[bool]:
    """Return the condition under which a producer's reports do not count."""
    return exists().where(_concerns(), DecisionRow.kind == DISOWN).correlate(ProducerRow)


def reason_of() -> ScalarSelect[str]:
    """Return why a producer is disowned, or else accepted, by the newest such decision; null without one."""
    first = ((DecisionRow.kind == DISOWN).desc(), DecisionRow.time.desc(), DecisionRow.id.desc())
    reasons = select(DecisionRow.reason).where(_concerns()).order_by(*first).limit(1)
    return reasons.correlate(ProducerRow).scalar_subquery()


def producers_of(session: Session, decision: str) -> list[ProducerRow]:
    """Return the producers that a decision concerns, given its id."""
    rows = select(ProducerRow).join(DecisionRow, _concerns()).where(DecisionRow.id == decision)
    return [*session.scalars(rows.order_by(ProducerRow.instance))]


def owes_from(row: ProducerRow) -> int:
    """Return the time from which on a producer can have unreported events."""
    return NOTHING if row.missing else row.closed_through


def judge_windows_of(session: Session, producers: Mapping[int, int], *, final_only: bool) -> None:
    """Have windows judged again, given producer -> time from which on windows of its topics concern it.

    Of an acceptance only final windows are marked: a producer in debt is in the digest of every open window.
    """
    first: dict[str, int] = {}
    link = store.ProducerTopicRow
    for some in store.slices([*producers]):
        links = select(link.topic, link.producer).where(link.producer.in_(some))
        for topic, producer in session.execute(links):
            first[topic] = min(first.get(topic, FOR_EVER), producers[producer])
    for topic, start in first.items():
        judge_again(session, topic, window_start(start) if start > 0 else NOTHING, final_only=final_only)


def due_decisions(session: Session, now: int) -> list[Decision]:
    """Return the decisions to write again. Decisions to replace loads take effect once, and may expire."""
    row = DecisionRow
    due = select(row).where(row.written < now - WRITE_AGAIN_MS, row.kind != REPLACE_LOADS)
    names = [field.name for field in fields(Decision)]
    rows = session.scalars(due.order_by(row.time, row.id).limit(_AT_ONCE))
    return [Decision(**{name: getattr(each, name) for name in names} | {"written": now}) for each in rows]


def forget_decisions(session: Session, kept_from: int) -> None:
    """Delete decisions applied before `kept_from` that concern no kept producer or rejected message."""
    decision, rejected = DecisionRow, store.RejectedRow
    of_load = (rejected.topic == decision.topic) & (rejected.load == decision.load)
    concerned = exists().where(_concerns()).correlate(decision), exists().where(of_load).correlate(decision)
    session.execute(delete(decision).where(decision.applied < kept_from, ~or_(*concerned)))


class Decisions:
    """Applies the decisions in a batch of records."""

    def __init__(self, session: Session, changes: Changes, loads: LoadCounts) -> None:
        self._session, self._changes, self._loads = session, changes, loads

    def take(self, decision: Decision) -> str | None:
        """Apply a decision once. Return the reason if it has no effect, else None."""
        row = self._session.get(DecisionRow, storable(decision.id)[:32])
        if row is not None:
            row.written = max(row.written, decision.written)
            return None
        if decision.kind not in (ACCEPT, DISOWN, ACCEPT_REJECTED, REPLACE_LOADS):
            return f"a decision of an unknown kind, {storable(decision.kind)[:100]}"
        row = row_of(decision, self._changes.now_ms)
        self._session.add(row)
        self._session.flush()
        if decision.kind in (ACCEPT, DISOWN):
            self._of_producers(row)
        elif decision.kind == ACCEPT_REJECTED:
            self._of_rejected(row)
        else:
            return self._replace(row)
        return None

    def _of_producers(self, row: DecisionRow) -> None:
        is_disowning = row.kind == DISOWN
        producers = producers_of(self._session, row.id)
        starts = {each.producer: NOTHING if is_disowning else owes_from(each) for each in producers}
        judge_windows_of(self._session, starts, final_only=not is_disowning)
        link, gap = store.ProducerTopicRow, store.LostReportsRow
        numbers: dict[str, int] = {}
        for some in store.slices([*starts]):
            counts = select(link.topic, func.count()).where(link.producer.in_(some)).group_by(link.topic)
            for topic, number in self._session.execute(counts):
                numbers[topic] = numbers.get(topic, 0) + number
        for topic, number in numbers.items():
            crowd = update(gap).where(gap.topic == topic, gap.to.is_(None))  # too many instances made the gap
            applied = select(store.TierRow.applied_through).where(store.TierRow.tier == gap.origin)
            self._session.execute(crowd.values(to=applied.scalar_subquery()))
            whom = (
                f"instance {row.instance}"
                if row.instance is not None
                else f"{number} of service {row.service}"
            )
            self._note(row, topic, f"{'disowned' if is_disowning else 'accepted'} {whom}")

    def _of_rejected(self, row: DecisionRow) -> None:
        table, messages = store.RejectedRow, 0
        here = (table.topic == row.topic, table.load == row.load, table.edition == row.edition)
        for rejected in self._session.scalars(select(table).where(*here)).all():
            judge_again(self._session, rejected.topic, rejected.window, rejected.last)
            messages += rejected.messages
        self._note(row, row.topic, f"accepted {messages} messages that load {row.load} rejected")

    def _replace(self, row: DecisionRow) -> str | None:
        """Take the counts of lost loads out, and count their replacements."""
        topic = row.topic or ""
        state = self._session.get(store.WarehouseStateRow, topic)
        counted = first_counted(self._session, topic, row.load)
        is_same = counted is not None and counted.sha256 == row.sha256
        if state is None or state.lost_from != row.load or not is_same:  # an old record has no effect
            return f"load {row.load} of topic {topic} with that manifest is not the first one that is lost"
        first, table, parts = row.load, store.LoadRow, store.LoadPartRow
        lost = select(func.sum(table.counted)).where(table.topic == topic, table.load >= first)
        kept = select(func.count()).where(parts.topic == topic, parts.load >= first, ~parts.waits)
        if self._session.scalar(kept) != self._session.scalar(lost):
            return f"the counts of topic {topic} from load {first} on are no longer kept"
        self._loads.lose_from(state, FOR_EVER)
        replaced = self._loads.take_out(topic, first)
        for record, serial in self._loads.waiting(topic):
            self._loads.take(record, serial)
        self._note(row, topic, f"replaced {len(replaced)} lost loads from load {first} on")
        return None

    def _note(self, row: DecisionRow, topic: str | None, what: str) -> None:
        what = f"{what}: {row.reason}"
        self._session.add(HistoryRow(time=row.time, topic=topic, window=None, who=row.who, what=what))


def row_of(decision: Decision, now: int) -> DecisionRow:
    """Return a decision as a row that is applied now."""
    values: dict[str, Any] = asdict(decision)
    values |= {name: storable(value) for name, value in values.items() if isinstance(value, str)}
    values |= {"id": values["id"][:32], "sha256": values["sha256"][:64]}
    return DecisionRow(**values, applied=now)
