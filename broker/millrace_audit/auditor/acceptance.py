"""What an operator says: without whose word the audit goes on, and who is nobody."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from millrace_audit.answer import Instance
from millrace_audit.auditor import store
from millrace_audit.auditor.rules import AuditRules
from millrace_audit.auditor.store import HistoryRow, ProducerRow, WindowRow
from millrace_audit.auditor.topic_view import to_instance
from millrace_audit.reports.messages import FOR_EVER, NOTHING


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
        gap = store.UnheardRow  # a crowd's ends here: what others said meanwhile stays unknown
        crowd = update(gap).where(gap.topic == topic, gap.to.is_(None))
        heard = select(store.TierRow.heard_through).where(store.TierRow.tier == gap.origin)
        session.execute(crowd.values(to=heard.scalar_subquery()))
        if said.disown:  # what it said may be in any window, and have made it incomplete
            again = update(WindowRow).where(WindowRow.topic == topic)
            session.execute(again.values(dirty=True, settled=False))
        whom = (
            f"instance {said.instance}" if said.instance is not None else f"{count} of service {said.service}"
        )
        done = "disowned" if said.disown else "accepted"
        what = f"{done} {whom}: {said.reason}"
        session.add(HistoryRow(time=now, topic=topic, window=None, who=said.who, what=what))
    return accepted
