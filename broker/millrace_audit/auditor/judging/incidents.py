"""Incidents: one for each cause, whatever the number of affected windows.

`note` takes the causes of the windows that a transaction has judged, so its cost follows the change.
An incident is resolved when no window has its cause any more. A pending rule makes one only with a command.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import and_, delete, exists, func, insert, or_, select, update
from sqlalchemy.orm import Session

from millrace.errors import MillraceError
from millrace_audit.answer import Incident, Verdict, utc
from millrace_audit.auditor import store
from millrace_audit.auditor.options import AuditOptions
from millrace_audit.auditor.store import IncidentRow, IncidentWindowRow, WindowRow
from millrace_audit.auditor.verdict.rules import RULES, Cause
from millrace_audit.reports.counts import HOUR_MS, MOST_AHEAD_MS

RULE_BY_NAME = {rule.name: rule for rule in RULES}
MOST_NAMES = 20
"""Most names of topics, of services and of servers that an incident keeps."""
_WORST_FIRST = tuple(Verdict)
Noted = tuple[str, str, int]
"""Reason, command and number of wrong events of a window's causes."""


def key_of(cause: Cause) -> str:
    """Return the key of the incident of a cause."""
    return f"{cause.rule}:{cause.key}" if cause.key else cause.rule


def is_incident(cause: Cause) -> bool:
    """True for a cause that an operator can act on, or that proves that something is wrong."""
    if cause.verdict == Verdict.PENDING:
        return bool(cause.command)
    return cause.verdict in (Verdict.INCOMPLETE, Verdict.UNKNOWN)


def note(session: Session, topic: str, judged: Mapping[int, Sequence[Cause]], now: int) -> None:
    """Open, update and resolve the incidents of a topic. `judged` maps each judged window to its causes."""
    causes: defaultdict[str, dict[int, list[Cause]]] = defaultdict(dict)
    for window, of_window in judged.items():
        for cause in filter(is_incident, of_window):
            causes[key_of(cause)].setdefault(window, []).append(cause)
    table = IncidentWindowRow
    span = table.window.between(min(judged), max(judged))
    columns = select(table.window, table.incident, table.title, table.command, table.events)
    before: dict[tuple[int, int], Noted] = {
        (row.incident, row.window): (row.title, row.command, row.events)
        for row in session.execute(columns.where(table.topic == topic, span))
        if row.window in judged
    }
    if not causes and not before:
        return
    rows = _open(session, topic, causes, now)
    after = {
        (rows[key].number, window): _noted(some)
        for key, windows in causes.items()
        for window, some in windows.items()
    }
    wider = {number for number, _ in after.keys() - before.keys()}
    for row in rows.values():
        if row.verdict == Verdict.INCOMPLETE and row.number in wider:  # no operator has seen the new windows
            row.acknowledged_by = row.note = ""
    _refresh(session, sorted(_store_windows(session, topic, before, after)), now)


def _store_windows(
    session: Session,
    topic: str,
    before: Mapping[tuple[int, int], Noted],
    after: Mapping[tuple[int, int], Noted],
) -> set[int]:
    """Replace the values of (incident, window) by those after; return the incidents with a change."""
    table, gone = IncidentWindowRow, defaultdict[int, list[int]](list)
    for (incident, window), noted in before.items():
        if after.get((incident, window)) != noted:
            gone[incident].append(window)
    for incident, windows in gone.items():
        here = (table.topic == topic, table.window.in_(windows), table.incident == incident)
        session.execute(delete(table).where(*here))
    changed = {key: noted for key, noted in after.items() if before.get(key) != noted}
    new = [
        {
            "topic": topic,
            "window": window,
            "incident": incident,
            "title": title,
            "command": command,
            "events": events,
        }
        for (incident, window), (title, command, events) in changed.items()
    ]
    if new:
        session.execute(insert(table), new)
    return {*gone, *(incident for incident, _ in changed)}


def _open(
    session: Session, topic: str, causes: Mapping[str, Mapping[int, Sequence[Cause]]], now: int
) -> dict[str, IncidentRow]:
    """Return the incidents of the causes by key; create new incidents, and open resolved ones again."""
    rows: dict[str, IncidentRow] = {}
    for some in store.slices(sorted(causes)):
        found = session.scalars(select(IncidentRow).where(IncidentRow.key.in_(some)))
        rows |= {row.key: row for row in found}
    for key, windows in causes.items():
        hours = [window - window % HOUR_MS for window in windows]
        every = [cause for some in windows.values() for cause in some]
        cause, row = every[0], rows.get(key)
        if row is None:
            row = rows[key] = IncidentRow(
                key=key,
                rule=cause.rule,
                verdict=cause.verdict,
                first_seen=now,
                first_hour=min(hours),
                last_hour=max(hours),
            )
            session.add(row)
        elif row.resolved is not None:
            row.first_seen, row.resolved = now, None
            row.first_hour, row.last_hour = min(hours), max(hours)
            row.topics, row.services, row.servers = [], [], []
            row.acknowledged_by = row.note = ""
        row.verdict = cause.verdict  # another release may have given the rule another one
        row.first_hour, row.last_hour = min(row.first_hour, *hours), max(row.last_hour, *hours)
        row.topics = _with(row.topics, [topic])
        row.services = _with(row.services, (cause.service for cause in every if cause.server))
        row.servers = _with(row.servers, (cause.server for cause in every))
    session.flush()
    return rows


def _with(names: Sequence[str], more: Iterable[str]) -> list[str]:
    return sorted({*names, *filter(None, more)})[:MOST_NAMES]


def _noted(causes: Sequence[Cause]) -> Noted:
    """Return the reason, the command and the number of events of a window's causes with one key."""
    first, *others = sorted(causes, key=lambda cause: (cause.reason, cause.command))
    events = sum(cause.finding.count for cause in causes if cause.finding is not None)
    return f"{first.reason} (and {len(others)} more)" if others else first.reason, first.command, events


def _refresh(session: Session, numbers: Sequence[int], now: int) -> None:
    """Copy the texts of the newest window into each incident; resolve incidents without a window."""
    table = IncidentWindowRow
    for number in numbers:
        row = session.get_one(IncidentRow, number)
        texts = select(table.title, table.command).where(table.incident == number)
        newest = session.execute(texts.order_by(table.window.desc(), table.topic).limit(1)).first()
        if newest is not None:
            row.title, row.command = newest
        elif row.resolved is None:
            row.resolved = now


def forget(session: Session, now: int, kept_from: int) -> None:
    """Take expired windows out of their incidents, and delete incidents that were resolved long ago."""
    table = IncidentWindowRow
    there = exists().where(WindowRow.topic == table.topic, WindowRow.window == table.window)
    expired = or_(table.window < kept_from, table.window > now + MOST_AHEAD_MS)
    session.execute(delete(table).where(expired, ~there))
    has_window = exists().where(table.incident == IncidentRow.number)
    without = and_(IncidentRow.resolved.is_(None), ~has_window)
    session.execute(update(IncidentRow).where(without).values(resolved=now))
    session.execute(delete(IncidentRow).where(IncidentRow.resolved < kept_from))


def find(
    session: Session,
    options: AuditOptions,
    *,
    is_open: bool | None = None,
    topic: str | None = None,
    rule: str | None = None,
    owner: str | None = None,
    key: str | None = None,
    resolved_since: int | None = None,
    limit: int | None = None,
) -> list[Incident]:
    """Return incidents: open before resolved, then the worst verdict first, then the most hours first.

    With `limit`, return only the first ones.
    """
    rows = select(IncidentRow)
    if resolved_since is not None:
        rows = rows.where(IncidentRow.resolved >= resolved_since)
    if is_open is not None:
        rows = rows.where(IncidentRow.resolved.is_(None) if is_open else IncidentRow.resolved.is_not(None))
    if rule is not None:
        rows = rows.where(IncidentRow.rule == rule)
    if key is not None:
        rows = rows.where(IncidentRow.key == key)
    found = session.scalars(rows).all()
    numbers = [row.number for row in found if row.resolved is None]
    hours, events = _hours(session, numbers), _events(session, numbers)
    incidents = [_incident(row, hours[row.number], events[row.number], options) for row in found]
    if topic is not None:
        incidents = [one for one in incidents if topic in one.topics]
    if owner is not None:
        incidents = [one for one in incidents if owner in map(options.owner_of, one.topics)]
    return sorted(incidents, key=_worst_first)[:limit]


def _worst_first(one: Incident) -> tuple[Any, ...]:
    size = sum(map(len, one.hours.values()))
    return one.resolved is not None, _WORST_FIRST.index(Verdict(one.verdict)), -size, one.key


def _hours(session: Session, numbers: Sequence[int]) -> defaultdict[int, dict[str, list[datetime]]]:
    """Return incident -> topic -> affected hours."""
    table = IncidentWindowRow
    found: defaultdict[int, dict[str, list[datetime]]] = defaultdict(dict)
    hour = (table.window - table.window % HOUR_MS).label("hour")
    columns = select(table.incident, table.topic, hour).distinct()
    for some in store.slices(numbers):
        rows = session.execute(columns.where(table.incident.in_(some)).order_by(table.topic, hour))
        for number, topic, start in rows:
            found[number].setdefault(topic, []).append(utc(start))
    return found


def _events(session: Session, numbers: Sequence[int]) -> defaultdict[int, dict[str, int]]:
    """Return incident -> topic -> number of wrong events, without topics that have none."""
    table, found = IncidentWindowRow, defaultdict[int, dict[str, int]](dict)
    columns = select(table.incident, table.topic, func.sum(table.events))
    columns = columns.where(table.events > 0).group_by(table.incident, table.topic).order_by(table.topic)
    for some in store.slices(numbers):
        for number, topic, events in session.execute(columns.where(table.incident.in_(some))):
            found[number][topic] = int(events)
    return found


def _incident(
    row: IncidentRow,
    hours: Mapping[str, Sequence[datetime]],
    events: Mapping[str, int],
    options: AuditOptions,
) -> Incident:
    rule, until = RULE_BY_NAME.get(row.rule), options.clock_ms() if row.resolved is None else row.resolved
    topics = [*hours] or row.topics
    affected = sorted({hour for some in hours.values() for hour in some})
    affected = affected or [utc(row.first_hour), utc(row.last_hour)]
    return Incident(
        key=row.key,
        rule=row.rule,
        verdict=row.verdict,
        what="" if rule is None else rule.when,
        title=row.title,
        first_seen=utc(row.first_seen),
        last_seen=utc(until),
        resolved=None if row.resolved is None else utc(row.resolved),
        duration_s=max(until - row.first_seen, 0) / 1000,
        topics=topics,
        first_hour=affected[0],
        last_hour=affected[-1],
        hours=hours,
        events=events,
        services=row.services,
        servers=row.servers,
        owner=", ".join(sorted({*filter(None, map(options.owner_of, topics))})),
        command=row.command,
        runbook=f"{options.runbooks}#{rule.runbook.lower()}" if rule is not None and rule.runbook else "",
        acknowledged_by=row.acknowledged_by,
        note=row.note,
    )


def acknowledge(session: Session, key: str, who: str, text: str) -> None:
    """Note who works on an open incident. Raise MillraceError if there is none with the key."""
    row = session.scalar(select(IncidentRow).where(IncidentRow.key == key, IncidentRow.resolved.is_(None)))
    if row is None:
        raise MillraceError(f"no incident {key} is open: `millrace audit --bad` lists the open incidents")
    row.acknowledged_by, row.note = who, text


def keys_of_windows(session: Session, topic: str, first: int, last: int) -> dict[datetime, list[str]]:
    """Return the keys of the incidents of each window from `first` to `last`, the worst first."""
    table, found = IncidentWindowRow, defaultdict[datetime, list[str]](list)
    columns = select(table.window, IncidentRow.key, IncidentRow.verdict)
    columns = columns.join(IncidentRow, IncidentRow.number == table.incident).order_by(IncidentRow.key)
    here = (table.topic == topic, table.window.between(first, last))
    rows = session.execute(columns.where(*here)).all()
    for window, key, _ in sorted(rows, key=lambda row: _WORST_FIRST.index(Verdict(row.verdict))):
        found[utc(window)].append(key)
    return found


def by_labels(incidents: Iterable[Incident]) -> Counter[tuple[str, str, str, str]]:
    """Count incidents by rule, verdict, owner, and whether an operator has acknowledged them."""
    return Counter(
        (one.rule, one.verdict, one.owner, "yes" if one.acknowledged_by else "no") for one in incidents
    )
