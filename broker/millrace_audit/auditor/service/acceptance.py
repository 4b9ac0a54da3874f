"""Decisions before they are written: operators' are checked, those about silent instances are made here.

All functions read the database and leave it unchanged.
"""

from __future__ import annotations

import secrets
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from millrace.errors import MillraceError
from millrace.topics_file import NO_POLICY
from millrace_audit.auditor import store
from millrace_audit.auditor.options import AuditOptions
from millrace_audit.auditor.records.decisions import is_accepted, producers_of, row_of
from millrace_audit.auditor.records.load_counts import first_counted
from millrace_audit.auditor.records.progress import Progress
from millrace_audit.auditor.store import ProducerRow
from millrace_audit.reports.messages import (
    ACCEPT,
    ACCEPT_REJECTED,
    AUDITOR,
    DISOWN,
    FOR_EVER,
    NOTHING,
    REPLACE_LOADS,
    Decision,
)

_AT_ONCE = 1000
"""Most silent instances to accept at once."""


def accept(
    session: Session,
    options: AuditOptions,
    *,
    reason: str,
    who: str,
    instance: int | None = None,
    service: str | None = None,
    server: str | None = None,
    before: int | None = None,
    disown: bool = False,
) -> tuple[Decision, list[int]]:
    """Return a decision to accept or disown instances, and the affected instances.

    Instances of a service that are already accepted are left out. `before` defaults to the decision's time.
    """
    now = options.clock_ms()
    whom: dict[str, Any] = {"instance": instance, "service": service, "server": server}
    if service is not None:
        whom["before"] = now + 1 if before is None else before
    decision = _decision(now, DISOWN if disown else ACCEPT, reason, who, **whom)
    accepted = {*session.scalars(select(ProducerRow.producer).where(is_accepted()))}
    trial = session.begin_nested()
    session.add(row_of(decision, now))
    session.flush()
    rows = producers_of(session, decision.id)
    if instance is None and not disown:
        rows = [row for row in rows if row.producer not in accepted]
    instances = [row.instance for row in rows]
    trial.rollback()
    return decision, instances


def accept_silent(session: Session, options: AuditOptions) -> list[Decision]:
    """Return decisions to accept the instances that were silent for the `silent_after` of all their topics.

    An instance that reports later is awaited again. A cluster's silence counts up to its newest checkpoint
    with all earlier reports applied, so a slow mirror makes no instance silent.
    """
    if not options.policies:
        return []
    now, applied_times, link = options.clock_ms(), Progress(session).applied_times, store.ProducerTopicRow
    waiting = select(ProducerRow, link.topic).join(link, link.producer == ProducerRow.producer)
    waiting = waiting.where(ProducerRow.announced, ~ProducerRow.done, ~is_accepted())
    instances: dict[int, list[tuple[ProducerRow, str]]] = {}  # several clusters may have one instance
    for row, topic in session.execute(waiting.order_by(ProducerRow.heard_at, ProducerRow.producer)):
        instances.setdefault(row.instance, []).append((row, topic))
    decisions = []
    for instance, found in instances.items():
        policies = [options.policies.get(topic, NO_POLICY) for _, topic in found]
        if not all(policy.silent_after for policy in policies):
            continue
        policy = max(policies, key=lambda policy: policy.silent_after_ms or 0)
        known = min(now, *(applied_times.get(row.origin, NOTHING) for row, _ in found))
        before = known - (policy.silent_after_ms or 0)
        if all(row.heard_at < before for row, _ in found):
            reason = f"silent for {policy.silent_after}"
            decisions.append(_decision(now, ACCEPT, reason, AUDITOR, instance=instance, before=before))
    return decisions[:_AT_ONCE]


def accept_rejected(
    session: Session, options: AuditOptions, topic: str, load: int, reason: str, who: str
) -> tuple[Decision, int]:
    """Return a decision to give up the messages that a load's newest edition rejected, and their number.

    Their windows are `carried` at best from then on. Another edition of the load needs its own decision.
    """
    table = store.RejectedRow
    rows = session.scalars(select(table).where(table.topic == topic, table.load == load)).all()
    if not rows:
        raise MillraceError(
            f"load {load} of topic {topic} has no rejected messages that are counted: `millrace audit {topic}"
            " --from TIME --to TIME` names the loads that have"
        )
    edition = session.get_one(store.LoadRow, (topic, load, rows[0].edition))
    of_load: dict[str, Any] = {
        "topic": topic,
        "load": load,
        "edition": edition.edition,
        "sha256": edition.sha256,
    }
    decision = _decision(options.clock_ms(), ACCEPT_REJECTED, reason, who, **of_load)
    return decision, sum(row.messages for row in rows)


def replace_loads(
    session: Session, options: AuditOptions, topic: str, reason: str, who: str
) -> tuple[Decision, list[int]]:
    """Return a decision to count the replacements of lost loads, and the numbers of the lost loads.

    Raise MillraceError if no load is lost, or if the counts of a lost load are no longer kept.
    """
    first, table, parts = first_lost(session, topic), store.LoadRow, store.LoadPartRow
    if first == FOR_EVER:
        raise MillraceError(f"no load of topic {topic} is lost: there is nothing to replace")
    lost = session.scalars(select(table).where(table.topic == topic, table.load >= first)).all()
    kept = select(func.count()).where(parts.topic == topic, parts.load >= first, ~parts.waits)
    if session.scalar(kept) != sum(row.counted for row in lost):
        raise MillraceError(
            f"the auditor has forgotten what load {first} of topic {topic} held, and cannot take it out: give"
            " it an empty database, which the audit topics fill again"
        )
    counted = first_counted(session, topic, first)
    of_load = {"topic": topic, "load": first, "sha256": "" if counted is None else counted.sha256}
    decision = _decision(options.clock_ms(), REPLACE_LOADS, reason, who, **of_load)
    return decision, sorted({row.load for row in lost})


def first_lost(session: Session, topic: str) -> int:
    """Return the first counted load that is gone from the warehouse or differs there; FOR_EVER for none."""
    state = session.get(store.WarehouseStateRow, topic)
    return FOR_EVER if state is None else state.lost_from


def _decision(now: int, kind: str, reason: str, who: str, **of: Any) -> Decision:
    return Decision(time=now, written=now, id=secrets.token_hex(16), kind=kind, who=who, reason=reason, **of)
