"""Answers from the auditor's database: verdicts, watermarks, instances, rejected records, history.

Judges only windows without a row. `judging` has judged all others.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Select, bindparam, case, func, or_, select
from sqlalchemy.orm import Session

from millrace_audit.answer import (
    Bad,
    Changes,
    Completeness,
    JudgedHour,
    LoadHour,
    NewestLoad,
    Topic,
    Verdict,
    Window,
    iso,
    overall,
    sender,
    utc,
    window_from_json,
)
from millrace_audit.auditor import store
from millrace_audit.auditor.judging import incidents
from millrace_audit.auditor.judging.judge import window_of
from millrace_audit.auditor.judging.topic_facts import TopicFacts, is_listed, listed, topic_facts
from millrace_audit.auditor.options import AuditOptions
from millrace_audit.auditor.records.load_counts import newest_load
from millrace_audit.auditor.records.progress import Progress
from millrace_audit.auditor.store import (
    ChangedRow,
    DatabaseRow,
    HistoryRow,
    LoadHourRow,
    LoadRow,
    TopicRow,
    WindowRow,
)
from millrace_audit.auditor.verdict.facts import Special, WindowFacts
from millrace_audit.auditor.verdict.rules import causes, gap_text, judge
from millrace_audit.reports.counts import HOUR_MS, WINDOW_MS, window_start
from millrace_audit.reports.messages import FOR_EVER, NOTHING


def completeness(session: Session, options: AuditOptions, topic: str, start: int, end: int) -> Completeness:
    """Return the verdicts on [start, end), in ms: on each window that it touches and on all together."""
    first, last = window_start(start), window_start(end - 1)
    starts = range(first, last + WINDOW_MS, WINDOW_MS)
    watermark, held_by, live_through = None, None, None
    known = session.get(TopicRow, topic)
    if known is None:
        # No producer and no reader has named the topic. An unknown topic must not look complete.
        windows = [_special(topic, window, Special.UNKNOWN_TOPIC) for window in starts]
        held_by = windows[0].reasons[0]
    else:
        (facts,) = topic_facts(session, options, Progress(session), [topic])
        here = (WindowRow.topic == topic, WindowRow.window.between(first, last))
        rows = {row.window: row for row in session.execute(_COLUMNS.where(*here))}
        missing = [at for at in starts if at not in rows and at >= known.kept_from]
        empty = _without_events(facts, missing, known.final_through)
        windows = [
            _judged(topic, rows[at], facts.now)
            if at in rows
            else _special(topic, at, Special.DELETED)
            if at < known.kept_from
            else empty[at]
            for at in starts
        ]
        keys = incidents.keys_of_windows(session, topic, first, last)
        windows = [replace(w, incidents=keys.get(w.start, ())) for w in windows]
        firsts = first_windows(session, [topic])[topic]
        watermark, held_by = watermark_of(session, facts, firsts)
        live_through = _live_through(facts)
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
        newest_load=_newest(session, topic),
        hours=_hours(session, topic, start, end),
        enough=Verdict.CARRIED if options.carried_is_enough(topic) else Verdict.COMPLETE,
        owner=options.owner_of(topic),
        live_through=live_through,
        windows=windows,
    )


def _newest(session: Session, topic: str) -> NewestLoad | None:
    row = newest_load(session, topic)
    return None if row is None else NewestLoad(row.load, row.sha256)


def _hours(session: Session, topic: str, start: int, end: int) -> list[JudgedHour]:
    """Return the loads with rows in each hour of [start, end), each with its newest counted edition."""
    first, last = start - start % HOUR_MS, end - 1 - (end - 1) % HOUR_MS
    found: dict[int, list[LoadHour]] = {hour: [] for hour in range(first, last + HOUR_MS, HOUR_MS)}
    hours, loads = LoadHourRow, LoadRow
    same = (loads.topic == hours.topic) & (loads.load == hours.load) & (loads.edition == hours.edition)
    columns = select(hours.hour, hours.load, hours.edition, loads.sha256, hours.rows, hours.rejected)
    here = (hours.topic == topic, hours.hour.between(first, last), hours.rows > 0)
    counted = columns.join(loads, same).where(*here, loads.counted == loads.parts)
    for hour, load, edition, sha256, rows, rejected in session.execute(counted.order_by(hours.load)):
        found[hour].append(LoadHour(load, edition, sha256, rows, rejected))
    return [JudgedHour(utc(hour), of_hour) for hour, of_hour in found.items()]


MOST_CHANGES = 10_000
"""Most hours in one answer."""
_CURSOR = re.compile(r"(.*)\.([0-9]{1,18})")


def changes(session: Session, topic: str, since: str) -> Changes:
    """Return hours whose verdict may have changed after a cursor; all for another database's cursor."""
    table, name = ChangedRow, session.scalar(select(DatabaseRow.name)) or ""
    cursor = _CURSOR.fullmatch(since)
    after = int(cursor[2]) if cursor is not None and cursor[1] == name else 0
    columns = select(table.hour, table.number).where(table.topic == topic, table.number > after)
    rows = session.execute(columns.order_by(table.number).limit(MOST_CHANGES + 1)).all()
    more = len(rows) > MOST_CHANGES
    rows = rows[:MOST_CHANGES]
    return Changes(f"{name}.{rows[-1].number if rows else after}", [utc(row.hour) for row in rows], more)


_COLUMNS = select(
    WindowRow.window, WindowRow.revision, WindowRow.is_changed, WindowRow.positions, WindowRow.judged
)


def _judge(facts: WindowFacts) -> Window:
    return window_of(facts, judge(facts))


def _without_events(facts: TopicFacts, starts: Iterable[int], through: int) -> dict[int, Window]:
    """Judge windows without events, once for all windows of an hour that have equal facts.

    Commands name the hour, so windows of different hours are judged separately. No window is complete before
    judging has stored that it is final, up to `through`: its first event then changes a final verdict.
    """
    judged: dict[tuple[int, str], Window] = {}
    windows = {}
    for start in starts:
        key = (start - start % HOUR_MS, facts.digest(start, None))
        if key not in judged:
            judged[key] = _judge(facts.of_window(start, None))
        window = judged[key]
        if window.verdict == Verdict.COMPLETE and start + WINDOW_MS > through:
            window = _special(facts.topic, start, Special.BEING_JUDGED)
        windows[start] = replace(window, start=utc(start), end=utc(start + WINDOW_MS))
    return windows


def _special(topic: str, start: int, special: Special) -> Window:
    return _judge(WindowFacts(topic=topic, start=start, special=special))


def _judged(topic: str, row: Any, now: int) -> Window:
    """Return the window as it was last judged; one with new evidence is not complete."""
    if row.judged is None:
        special = Special.BEING_JUDGED if row.window <= now else Special.IN_THE_FUTURE
        return replace(_special(topic, row.window, special), revision=row.revision)
    window = replace(window_from_json(row.judged), revision=row.revision)
    if not row.is_changed:
        return window
    pending = _special(topic, row.window, Special.BEING_JUDGED)
    verdict = overall((window.verdict, pending.verdict))
    return replace(window, verdict=verdict, reasons=[*window.reasons, *pending.reasons])


def bad(session: Session, options: AuditOptions, topic: str | None, most: int) -> list[Bad]:
    """Return closed windows that are not complete, of one topic or of all, the worst first."""
    now = options.clock_ms()
    over = WindowRow.window < now - options.grace_ms - WINDOW_MS
    worst = case({str(verdict): at for at, verdict in enumerate(Verdict)}, value=WindowRow.verdict)
    rows = (
        select(WindowRow.topic, *_COLUMNS.selected_columns)
        .where(or_(WindowRow.verdict != Verdict.COMPLETE, WindowRow.is_changed))
        .where(or_(over, WindowRow.verdict == Verdict.INCOMPLETE))
        .order_by(worst, WindowRow.topic, WindowRow.window)
        .limit(most)
    )
    rows = rows.where(is_listed(WindowRow.topic) if topic is None else WindowRow.topic == topic)
    return [Bad(row.topic, _judged(row.topic, row, now)) for row in session.execute(rows)]


def topics(session: Session, options: AuditOptions) -> list[Topic]:
    """Return every listed topic with its watermark and the instances that have not ended."""
    names = listed(session)
    firsts = first_windows(session, names)
    found = topic_facts(session, options, Progress(session), names)
    return [known_of(session, facts, firsts[facts.topic]) for facts in found]


def known_of(session: Session, facts: TopicFacts, firsts: FirstWindows) -> Topic:
    watermark, held_by = watermark_of(session, facts, firsts)
    return Topic(facts.topic, watermark, held_by, facts.instances, facts.owner, _live_through(facts))


def _live_through(facts: TopicFacts) -> datetime | None:
    return None if facts.live_through is None else utc(facts.live_through)


def heartbeats(session: Session) -> dict[str, int]:
    """Return tier -> time up to which it is counted."""
    return {
        row.tier: row.heartbeat for row in session.scalars(select(store.TierRow)) if row.heartbeat != NOTHING
    }


def rejected_records(session: Session) -> list[dict[str, Any]]:
    """Return the rejected records with their causes, the newest first."""
    table = store.RejectedRecordRow
    columns = (table.place, table.kind, table.cause, table.who, table.count, table.first, table.last)
    rows = session.execute(select(*columns).order_by(table.last.desc()))
    return [{**row._mapping, "first": iso(row.first), "last": iso(row.last)} for row in rows]


def history(session: Session, topic: str, start: int, end: int) -> list[dict[str, Any]]:
    """Return operators' decisions on a topic and changes of final verdicts in [start, end), oldest first."""
    table = HistoryRow
    here = or_(table.window.between(window_start(start), end - 1), table.window.is_(None))
    columns = select(table.time, table.window, table.who, table.what)
    rows = session.execute(columns.where(table.topic == topic, here).order_by(table.number))
    return [
        {**row._mapping, "time": iso(row.time), "window": None if row.window is None else iso(row.window)}
        for row in rows
    ]


class FirstWindows(NamedTuple):
    """First window of a topic, and its first window that is not final or is incomplete; None without one."""

    first: int | None
    doubtful: Any = None
    """Row with `window`, `verdict` and `judged`."""


# Built once: building a statement takes longer than executing it.
_WINDOWS = select(WindowRow.topic, WindowRow.window, WindowRow.verdict, WindowRow.judged)
_FIRST_DOUBTFUL = (
    _WINDOWS.where(WindowRow.topic == bindparam("topic"))
    .where(or_(~WindowRow.is_final, WindowRow.verdict == Verdict.INCOMPLETE))
    .where(WindowRow.window >= bindparam("first"))
    .order_by(WindowRow.window)
    .limit(1)
)


_FIRSTS = select(
    TopicRow.topic,
    select(func.min(WindowRow.window))
    .where(WindowRow.topic == TopicRow.topic)
    .correlate(TopicRow)
    .scalar_subquery(),
)


def first_windows(session: Session, topics: Sequence[str]) -> dict[str, FirstWindows]:
    """Return the first windows of each topic, read for many topics at once."""
    found: dict[str, FirstWindows] = {}
    for some in store.slices(topics):
        for topic, first in session.execute(_FIRSTS.where(TopicRow.topic.in_(some))):
            found[topic] = FirstWindows(first)
    only = topics[0] if len(topics) == 1 else None
    for row in (row for doubtful in _first_doubtfuls(only) for row in session.execute(doubtful)):
        known = found.get(row.topic)
        if known is not None and (known.doubtful is None or row.window < known.doubtful.window):
            found[row.topic] = known._replace(doubtful=row)
    return found


def _first_doubtfuls(topic: str | None) -> Iterator[Select[Any]]:
    """Yield a query of each topic's first window that is not final, and one of its first incomplete window.

    Each has an index. In one query, or with a list of topics, SQLite would scan the windows.
    """
    for condition in (WindowRow.is_final.is_(False), WindowRow.verdict == Verdict.INCOMPLETE):
        firsts = select(WindowRow.topic, func.min(WindowRow.window).label("window")).where(condition)
        if topic is not None:
            firsts = firsts.where(WindowRow.topic == topic)
        first = firsts.group_by(WindowRow.topic).subquery()
        yield _WINDOWS.join(first, (WindowRow.topic == first.c.topic) & (WindowRow.window == first.c.window))


def watermark_of(
    session: Session, facts: TopicFacts, firsts: FirstWindows
) -> tuple[datetime | None, str | None]:
    """Return the time before which every window is final and not incomplete, and what holds it there."""
    first, row = firsts
    through, held_by = facts.final_through, _first_reason(facts)
    for gap in facts.gaps:
        if gap.since == NOTHING and first is not None:  # the known part begins after the gap
            if gap.until == FOR_EVER:
                return None, gap_text(gap, facts.topic)
            first = max(first, window_start(gap.until - 1) + WINDOW_MS)
        elif gap.is_of_all and gap.since < through:
            through, held_by = gap.since, gap_text(gap, facts.topic)
    if first is None:
        return None, "nothing was reported or counted yet"
    end = window_start(max(min(through, FOR_EVER - WINDOW_MS), 0))
    if row is not None and row.window < first:
        row = session.execute(_FIRST_DOUBTFUL, {"topic": facts.topic, "first": first}).first()
    if row is not None and row.window < end:
        end, held_by = row.window, f"{row.verdict}: {_first_cause(row.judged)}"
    return (utc(end) if end > first else None), held_by


def _first_reason(facts: TopicFacts) -> str | None:
    """Return the reason for which no window after `final_through` is final."""
    waited = facts.waited_for(min(facts.final_through, FOR_EVER - WINDOW_MS))
    return next((cause.text for cause in causes(waited, (Verdict.UNKNOWN, Verdict.PENDING))), None)


def _first_cause(judged: Mapping[str, Any] | None) -> str:
    """Return the first finding or reason of a window as one sentence."""
    if judged is None:
        return "it is being judged"
    for finding in judged["findings"]:
        who = finding["service"]
        if finding["server"] or not who:
            who = sender(finding["server"], who)
        return f"{finding['count']} {finding['kind']} at {finding['tier']} ({who})"
    reasons: Sequence[str] = judged["reasons"]
    return reasons[0] if reasons else "it is not final yet"
