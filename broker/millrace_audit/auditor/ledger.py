"""Applying audit records to the database: who is known, what was reported, what was counted.

Each function runs inside the caller's transaction and may be given a record again: a report counts by its
number, a range by where it begins, a load by its number and part, a later edition right after the one before.
What changes a window that was final before raises its revision. Passes no verdict on its own.
"""

# mypy: ignore-errors
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from millrace.errors import MillraceError
from millrace_audit.auditor import store
from millrace_audit.reports import messages
from millrace_audit.reports.counts import WINDOW_MS, SequenceTally
from millrace_audit.reports.messages import FOR_EVER, NOTHING, AuditRecord
from millrace_audit.reports.ranges import SequenceRanges, merged

R = TypeVar("R", bound=store.Row)
W = TypeVar("W", store.WindowRow, store.ReportedRow, store.CountedRow)


def apply(session: Session, record: AuditRecord) -> None:
    """Take one audit record in; nothing happens if it was taken in before."""
    if isinstance(record, messages.Hello):
        _hello(session, record)
    elif isinstance(record, messages.Report):
        _report(session, record)
    elif isinstance(record, messages.Heartbeat):
        _heartbeat(session, record)
    else:
        _count(session, record)


def unheard(session: Session, topic_id: str, partition: int, start: int, end: int) -> None:
    """Records [start, end) of an audit topic's partition expired before they were applied."""
    heard = session.scalar(select(func.min(store.TierRow.heartbeat)))
    gap = store.UnheardRow(topic_id=topic_id, partition=partition, start=start, end=end)
    gap.since = NOTHING if heard is None else heard
    session.add(gap)


def heard_again(session: Session, topic_id: str, partition: int, records: Iterable[AuditRecord]) -> None:
    """Close the gap before these records, if there is one, with their first heartbeat."""
    here = (store.UnheardRow.topic_id == topic_id, store.UnheardRow.partition == partition)
    for row in session.scalars(select(store.UnheardRow).where(*here, store.UnheardRow.until == FOR_EVER)):
        times = (r.time for r in records if isinstance(r, messages.Heartbeat) and r.time != NOTHING)
        row.until = next(times, FOR_EVER)


def check_known(session: Session, instance: int) -> None:
    """MillraceError when neither a word nor an event of the instance was ever heard of."""
    of_it = select(store.CountedRow.instance).where(store.CountedRow.instance == instance).limit(1)
    if session.get(store.InstanceRow, instance) is None and session.scalar(of_it) is None:
        raise MillraceError(
            f"nobody has heard of instance {instance}: the reasons beside a window name those that are silent"
        )


def accept(session: Session, instance: int, reason: str, now_ms: int) -> None:
    """Go on without an instance's word from now on; the reason is kept, a later one replaces it."""
    row = _get_or_add(session, store.InstanceRow, {"instance": instance})
    row.accepted, row.accepted_at = _storable(reason), now_ms


def _hello(session: Session, hello: messages.Hello) -> None:
    row = _instance(session, hello)
    if not row.reports:
        row.closed_through = max(row.closed_through, hello.closed_through)
    _join(session, hello.instance, hello.topic)


def _instance(session: Session, word: messages.Hello | messages.Report) -> store.InstanceRow:
    row = _get_or_add(session, store.InstanceRow, {"instance": word.instance})
    row.cluster, row.server, row.service = map(_storable, (word.cluster, word.server, word.service))
    row.heard_at = max(row.heard_at, word.time)
    return row


def _join(session: Session, instance: int, topic: str) -> None:
    _topic(session, topic)
    _get_or_add(session, store.InstanceTopicRow, {"topic": topic, "instance": instance})


def _topic(session: Session, topic: str) -> store.TopicRow:
    return _get_or_add(session, store.TopicRow, {"topic": topic})


def _report(session: Session, report: messages.Report) -> None:
    row = _instance(session, report)
    numbers = SequenceRanges(row.reports)
    newest = not numbers or report.number > numbers.last
    if numbers.add(report.number, report.number):
        return
    row.reports = numbers.pairs()
    for topic in {window.topic for window in report.windows}:
        _join(session, report.instance, topic)
        _report_windows(session, report, topic, row.closed_through)
    if newest:
        row.closed_through = report.closed_through
    row.done = row.closed_through == FOR_EVER and row.reports == [[0, numbers.last]]


def _report_windows(session: Session, report: messages.Report, topic: str, promised: int) -> None:
    """What a report says of one topic; `promised` is what its instance had closed before."""
    reported = {window.window: window for window in report.windows if window.topic == topic}
    windows = _windows(session, topic, reported)
    mine = store.ReportedRow.instance == report.instance
    rows = {row.window: row for row in _rows(session, store.ReportedRow, topic, reported, mine)}
    for start, news in reported.items():
        window = windows[start]
        late = promised >= start + WINDOW_MS  # it had said that nothing would follow
        if window.settled is not None or (late and window.revision == 0):
            window.revision += 1
        window.settled = None
        row = rows.get(start) or _added(
            session, store.ReportedRow(topic=topic, window=start, instance=report.instance)
        )
        row.acknowledged = merged((*row.acknowledged, *news.acknowledged)).pairs()
        row.failed = merged((*row.failed, *news.failed)).pairs()
        row.reported_at = max(row.reported_at, report.time)


def _heartbeat(session: Session, heartbeat: messages.Heartbeat) -> None:
    tier = _turn(session, heartbeat.tier, heartbeat.reader)
    # The newest word counts, not the largest: a clock that ran ahead is set right again.
    if tier is not None and heartbeat.time != NOTHING:
        tier.heartbeat = heartbeat.time
    if tier is not None and heartbeat.positions:
        _follow_positions(session, heartbeat)


def _follow_positions(session: Session, heartbeat: messages.Heartbeat) -> None:
    """Where a reader stands beyond what it was heard of, the counts between have expired unread."""
    rows = session.scalars(select(store.CoverageRow).where(store.CoverageRow.tier == heartbeat.tier))
    covered = {(row.topic_id, row.partition): row for row in rows}
    for position in heartbeat.positions:
        row = covered.get((position.topic_id, position.partition))
        if row is None:  # nothing of it is counted yet, or not since this database began
            key = _partition_key(heartbeat.tier, position)
            session.add(store.CoverageRow(**key, topic=position.topic, end=position.offset))
        elif row.end < position.offset:
            _uncounted(session, row, position.offset, heartbeat.time)
            row.end = position.offset


def _uncounted(session: Session, row: store.CoverageRow, end: int, noticed_at: int) -> None:
    since = _topic(session, row.topic).settled_through
    gap = store.UncountedRow(
        **_partition_key(row.tier, row),
        topic=row.topic,
        start=row.end,
        end=end,
        since=since,
        until=noticed_at,
    )
    session.add(gap)


def _partition_key(
    tier: str, of: store.CoverageRow | messages.OffsetRange | messages.ReaderPosition
) -> dict[str, Any]:
    return {"tier": tier, "topic_id": of.topic_id, "partition": of.partition}


def _turn(session: Session, tier: str, reader: int) -> store.TierRow | None:
    """The tier, if it is that reader's turn (an unknown one takes over); the rule of `turns.Turns`."""
    if session.get(store.EndedReaderRow, (tier, reader)) is not None:
        return None
    row = _get_or_add(session, store.TierRow, {"tier": tier})
    if row.reader is not None and row.reader != reader:
        session.add(store.EndedReaderRow(tier=tier, reader=row.reader))
    row.reader = reader
    return row


def _count(session: Session, count: messages.Count) -> None:
    if not _is_new(session, count):
        return
    topic = _topic(session, count.topic)
    if count.foreign:
        topic.foreign = {**topic.foreign, count.tier: topic.foreign.get(count.tier, 0) + count.foreign}
    starts = {key.window for counts in (count.counts, count.removed) for key in counts.tallies}
    for window in _windows(session, count.topic, starts).values():
        if window.settled == "complete":
            window.revision += 1
        window.settled = None
    here = store.CountedRow.tier == count.tier
    rows = {(r.window, r.instance): r for r in _rows(session, store.CountedRow, count.topic, starts, here)}
    for key, tally in count.counts.tallies.items():
        if (row := rows.get((key.window, key.instance))) is None:
            row = store.CountedRow(
                topic=count.topic,
                window=key.window,
                instance=key.instance,
                tier=count.tier,
                server=_storable(key.server),
                service=_storable(key.service),
            )
            rows[key.window, key.instance] = _added(session, row)
        row.ranges = SequenceTally((*row.ranges, *tally.ranges())).pairs()
    for key, tally in count.removed.tallies.items():
        if (row := rows.get((key.window, key.instance))) is not None:
            row.ranges = SequenceTally(row.ranges).without(tally).pairs()


def _is_new(session: Session, count: messages.Count) -> bool:
    """True if the source was not counted before; it is from now on."""
    source = count.source
    if isinstance(source, messages.LoadNumber):
        return _is_next_part(session, count.tier, count.topic, source)
    if _turn(session, count.tier, source.reader) is None:
        return False
    key = _partition_key(count.tier, source)
    row = _get_or_add(session, store.CoverageRow, key, topic=count.topic, end=source.start)
    if row.end != source.start:
        return False
    if count.expired:
        _uncounted(session, row, source.end, count.time)
    row.end = source.end
    return True


def _is_next_part(session: Session, tier: str, topic: str, source: messages.LoadNumber) -> bool:
    """True if it is the next thing to count of its load, which is counted once its last part is."""
    load: dict[str, Any] = {"tier": tier, "topic": topic, "load": source.load}
    edition = source.edition

    def is_counted(number: int) -> bool:
        if number == 1:
            return session.get(store.LoadRow, load) is not None
        return session.get(store.EditionRow, {**load, "edition": number}) is not None

    # An edition says nothing without the one before.
    if is_counted(edition) or (edition > 1 and not is_counted(edition - 1)):
        return False
    begun = session.get(store.LoadPartRow, {**load, "edition": edition}) if source.parts > 1 else None
    if source.part != (begun.counted if begun is not None else 0) + 1:
        return False
    if source.part == source.parts:
        session.add(store.LoadRow(**load) if edition == 1 else store.EditionRow(**load, edition=edition))
    if begun is not None:
        begun.counted = source.part
    elif source.parts > 1:
        session.add(store.LoadPartRow(**load, edition=edition, counted=source.part))
    return True


def _windows(session: Session, topic: str, starts: Iterable[int]) -> dict[int, store.WindowRow]:
    """The rows of the windows; a new one of a time that was final already begins at revision 1."""
    rows = {row.window: row for row in _rows(session, store.WindowRow, topic, starts)}
    settled_through = _topic(session, topic).settled_through
    for start in starts:
        if start not in rows:
            revision = int(start + WINDOW_MS <= settled_through)
            rows[start] = _added(session, store.WindowRow(topic=topic, window=start, revision=revision))
    return rows


def _rows(
    session: Session, table: type[W], topic: str, starts: Iterable[int], *also: ColumnElement[bool]
) -> Iterator[W]:
    """The rows of those windows; asking for each by itself would cost as much as everything else here."""
    for some in store.slices(sorted(starts)):
        yield from session.scalars(select(table).where(table.topic == topic, table.window.in_(some), *also))


def _storable(text: str) -> str:
    """What somebody called himself, without what PostgreSQL or UTF-8 cannot hold."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def _get_or_add(session: Session, table: type[R], key: Mapping[str, Any], **values: Any) -> R:
    """The row with that primary key; the first time a new one, with these values."""
    return session.get(table, key) or _added(session, table(**key, **values))


def _added(session: Session, row: R) -> R:
    session.add(row)
    return row
