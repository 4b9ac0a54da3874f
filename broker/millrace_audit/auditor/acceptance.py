"""Operators' decisions: silent instances to accept, instances to disown, and loads that count."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from millrace.errors import MillraceError
from millrace_audit.answer import Instance
from millrace_audit.auditor import store
from millrace_audit.auditor.batch import Changes, Producers
from millrace_audit.auditor.load_counts import LoadCounts, judge_again
from millrace_audit.auditor.options import AuditOptions
from millrace_audit.auditor.store import HistoryRow, ProducerRow
from millrace_audit.auditor.topic_facts import to_instance
from millrace_audit.reports.messages import FOR_EVER, NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """Instances to accept or disown: one instance, or those of a service up to a time."""

    instance: int | None = None
    service: str | None = None
    server: str | None = None
    before: int = FOR_EVER
    """Only instances whose newest hello or report is from before this time (ms)."""
    disown: bool = False
    """True to ignore everything that the instances have reported, too."""
    reason: str
    who: str


def accept(session: Session, options: AuditOptions, said: Acceptance) -> list[Instance]:
    """Stop waiting for silent instances, or disown false ones; return the instances.

    A later reason replaces an earlier one.
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
    now = options.clock_ms()
    link = store.ProducerTopicRow
    topics: Counter[str] = Counter()
    for row in session.scalars(rows.order_by(table.instance)).all():
        row.accepted = said.reason
        if said.disown:
            row.disowned = row.done = True
        accepted.append(to_instance(row, NOTHING, options))
        topics.update(session.scalars(select(link.topic).where(link.producer == row.producer)))
    for topic, count in topics.items():
        gap = store.UnheardRow  # a gap of too many instances ends here
        crowd = update(gap).where(gap.topic == topic, gap.to.is_(None))
        heard = select(store.TierRow.heard_through).where(store.TierRow.tier == gap.origin)
        session.execute(crowd.values(to=heard.scalar_subquery()))
        if said.disown:  # its reports may have made any window incomplete
            judge_again(session, topic)
        whom = (
            f"instance {said.instance}" if said.instance is not None else f"{count} of service {said.service}"
        )
        done = "disowned" if said.disown else "accepted"
        what = f"{done} {whom}: {said.reason}"
        session.add(HistoryRow(time=now, topic=topic, window=None, who=said.who, what=what))
    return accepted


def accept_rejected(
    session: Session, options: AuditOptions, topic: str, load: int, reason: str, who: str
) -> int:
    """Give up the messages that the newest edition of a load set aside; return their number.

    Their windows are `carried` at best from then on. Another edition of the load needs its own decision.
    """
    table = store.RejectedRow
    rows = session.scalars(select(table).where(table.topic == topic, table.load == load)).all()
    if not rows:
        raise MillraceError(
            f"load {load} of topic {topic} has no rejected messages that are counted: `millrace audit {topic}"
            " --from TIME --to TIME` names the loads that have"
        )
    now, messages = options.clock_ms(), sum(row.messages for row in rows)
    edition = rows[0].edition
    session.add(
        store.AcceptanceRow(time=now, topic=topic, load=load, edition=edition, who=who, reason=reason)
    )
    for row in rows:
        judge_again(session, topic, row.window, row.last)
    what = f"accepted {messages} messages that load {load} rejected: {reason}"
    session.add(HistoryRow(time=now, topic=topic, window=None, who=who, what=what))
    return messages


def replace_loads(session: Session, options: AuditOptions, topic: str, reason: str, who: str) -> list[int]:
    """Take the counts of lost loads out, and count their replacements; return the lost loads.

    Raise MillraceError if no load is lost, or if the counts of a lost load are no longer kept.
    """
    state = session.get(store.WarehouseStateRow, topic)
    if state is None or state.lost_from == FOR_EVER:
        raise MillraceError(f"no load of topic {topic} is lost: there is nothing to replace")
    first, table = state.lost_from, store.LoadRow
    parts = store.LoadPartRow
    lost = session.scalars(select(table).where(table.topic == topic, table.load >= first)).all()
    kept = select(func.count()).where(parts.topic == topic, parts.load >= first, ~parts.waits)
    if session.scalar(kept) != sum(row.counted for row in lost):
        raise MillraceError(
            f"the auditor has forgotten what load {first} of topic {topic} held, and cannot take it out: give"
            " it an empty database, which the audit topics fill again"
        )
    now = options.clock_ms()
    changes = Changes(session, now)
    loads = LoadCounts(session, changes, Producers(session))
    loads.lose_from(state, FOR_EVER)
    replaced = loads.take_out(topic, first)
    old = store.AcceptanceRow
    session.execute(delete(old).where(old.topic == topic, old.load >= first))
    for record, serial in loads.waiting(topic):
        loads.take(record, serial)
    changes.write()
    what = f"replaced {len(replaced)} lost loads from load {first} on: {reason}"
    session.add(HistoryRow(time=now, topic=topic, window=None, who=who, what=what))
    return replaced
