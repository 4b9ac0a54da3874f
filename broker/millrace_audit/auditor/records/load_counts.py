"""Counts of loads: added to their windows part by part, and taken out again when loads are lost.

Each part is kept, so that the counts of a lost load, or of a part that is read back with other rows, can be
taken out. While a topic has lost loads, the counts of their replacements wait until an operator confirms the
replacement.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, func, insert, select, update
from sqlalchemy.orm import Session

from millrace_audit.auditor.records.batch import Changes, Producers, storable
from millrace_audit.auditor.store import (
    ChangedRow,
    CoverageRow,
    LoadHourRow,
    LoadPartRow,
    LoadRow,
    RejectedRow,
    TopicRow,
    WarehouseStateRow,
    WindowRow,
    slices,
)
from millrace_audit.reports.counts import HOUR_MS, WINDOW_MS, SequenceCounts, is_of_this_world, window_start
from millrace_audit.reports.messages import (
    FOR_EVER,
    NOTHING,
    WAREHOUSE,
    LoadCount,
    LoadEnd,
    editions_hash,
    packed,
    unpacked,
)

_MOST_NAMED = 100
"""Largest number of loads with other editions to name; it matters only whether there are any."""
_MARKED_AT_ONCE = 10_000
"""Number of windows that one statement marks."""
_MOST_HOURS = 10_000
"""Most hours to note as changed at once, the newest ones."""


def state_of(session: Session, topic: str) -> WarehouseStateRow:
    row = session.get(WarehouseStateRow, topic)
    if row is None:
        row = WarehouseStateRow(topic=topic)
        session.add(row)
        session.flush()
    return row


def judge_again(
    session: Session, topic: str, first: int = NOTHING, last: int = FOR_EVER, *, final_only: bool = False
) -> None:
    """Have the topic's windows from `first` to `last` judged again; until then none of them is proven.

    `final_only` is for a change of facts that the digest holds: open windows are compared with it anyway.
    """
    of_topic, window = WindowRow.topic == topic, WindowRow.window
    which = WindowRow.is_final if final_only else WindowRow.is_final | ~WindowRow.is_changed
    judged = of_topic & window.between(first, last) & which
    newest = select(window).where(judged).order_by(window.desc())
    # A part at a time: SQLite holds a number in memory for each row that a statement updates.
    while windows := session.scalars(newest.limit(_MARKED_AT_ONCE)).all():
        part = judged & window.between(windows[-1], windows[0])
        session.execute(update(WindowRow).where(part).values(is_final=False, is_changed=True))


def judge_hour_again(session: Session, topic: str, hour: int) -> None:
    """Have the windows of the hour that begins at `hour` judged again; NOTHING stands for all hours."""
    judge_again(session, topic, hour, FOR_EVER if hour == NOTHING else hour + HOUR_MS - WINDOW_MS)


def note_changed(session: Session, topic: str, hours: Iterable[int]) -> None:
    """Number the hours after all earlier changes: a client asks for the changes after its newest one."""
    number = (session.scalar(select(func.max(ChangedRow.number))) or 0) + 1
    rows = [{"topic": topic, "hour": hour, "number": at} for at, hour in enumerate(sorted(hours), number)]
    for some in slices(rows):
        of_hours = ChangedRow.hour.in_([row["hour"] for row in some])
        session.execute(delete(ChangedRow).where(ChangedRow.topic == topic, of_hours))
        session.execute(insert(ChangedRow), some)


def final_hours(session: Session, topic: str, first: int = NOTHING, last: int = FOR_EVER) -> Sequence[int]:
    """Return the hours with windows from `first` to `last` that were final, with or without rows.

    Judging notes the hours of rows. What makes windows without rows unknown or incomplete must note theirs.
    """
    of_topic = TopicRow.topic == topic
    through = session.scalar(select(TopicRow.final_through).where(of_topic))
    begin = session.scalar(select(func.min(WindowRow.window)).where(WindowRow.topic == topic))
    if through is None or begin is None:
        return ()
    begin, end = max(window_start(max(first, 0)), begin), min(last + 1, window_start(max(through, 0)))
    return range(begin - begin % HOUR_MS, end, HOUR_MS)[-_MOST_HOURS:] if begin < end else ()


class LoadCounts:
    """Writer of the counts of loads."""

    def __init__(self, session: Session, changes: Changes, producers: Producers) -> None:
        self._session, self._changes, self._producers = session, changes, producers

    def take(self, load: LoadCount, serial: int) -> str | None:
        """Count a part of a load once, after the part before; return why it differs from what was counted."""
        source, topic = load.source, load.topic
        row = self._session.get(LoadRow, (topic, source.load, source.edition))
        is_other = row is not None and row.sha256 != source.sha256[:64]
        cause = f"load {source.load} of topic {topic} was counted from another manifest" if is_other else None
        if is_other and source.edition == 1:
            state = state_of(self._session, topic)
            self.lose_from(state, min(state.lost_from, source.load))
        if (row is None or is_other) and self._is_lost(topic, source.load):
            self._keep_waiting(load, serial)
            return cause
        if is_other:
            self._note_other_edition(topic, source.load)
            return cause
        if row is not None and not row.whole and load.unkeyed is not None:
            if row.counted == row.parts:
                self._complete(load, row, serial)
                return None
            load = replace(load, unkeyed=None, hours=None, rejected=[])  # all parts are reported again
        if row is not None and row.counted < row.parts:
            self._take_out_other(load, row)
        if self._is_next_part(load, row):
            self._note_part(load, row)
            self._count(load, serial)
            self._keep(load, serial, waits=False)
            if source.part == source.parts:
                self._finish(load)
        return None

    def _is_lost(self, topic: str, load: int) -> bool:
        state = self._session.get(WarehouseStateRow, topic)
        return state is not None and load >= state.lost_from

    def _is_next_part(self, load: LoadCount, row: LoadRow | None) -> bool:
        """True if this part follows what is counted of its load, given the row of its edition."""
        source = load.source
        if source.edition > 1:  # an edition counts only after the edition before
            before = self._session.get(LoadRow, (load.topic, source.load, source.edition - 1))
            if before is None or before.counted < before.parts:
                return False
        if row is None:
            return source.part == 1
        return row.counted < row.parts == source.parts and source.part == row.counted + 1

    def _take_out_other(self, load: LoadCount, row: LoadRow) -> None:
        """Take the counted parts out from this part on, if this part was counted with other rows.

        The reader was killed between two parts, and a file of the load was lost or restored before its next
        start. A repeat has the same rows. Parts of a complete edition are repeats, whatever they have.
        """
        source, parts = load.source, LoadPartRow
        kept = self._session.get(parts, (load.topic, source.load, source.edition, row.sha256, source.part))
        if kept is None or kept.waits:
            return
        counted = unpacked(kept.record)
        if unpacked(packed(replace(load, time=counted.time))) == counted:
            return
        edition = (parts.topic == load.topic, parts.load == source.load, parts.edition == source.edition)
        self._take_out_parts(*edition, parts.part >= source.part)
        row.counted, row.parts = source.part - 1, source.parts

    def _note_part(self, load: LoadCount, row: LoadRow | None) -> None:
        source = load.source
        if row is None:
            row = LoadRow(
                topic=load.topic,
                load=source.load,
                edition=source.edition,
                counted=0,
                parts=source.parts,
                sha256=source.sha256[:64],
            )
            self._session.add(row)
        row.counted = source.part
        if load.unkeyed is None:
            row.whole = False
            before_this = self._changes.unkeyed_from.get(load.topic, NOTHING)
            self._changes.unkeyed_from[load.topic] = max(before_this, load.time)
        self._session.flush()

    def _complete(self, load: LoadCount, row: LoadRow, serial: int) -> None:
        """Add the rows without a header, which an earlier version did not report, to a load."""
        source = load.source
        if source.part != row.recounted_parts + 1:
            return
        row.recounted_parts = source.part
        self._count(replace(load, counts=SequenceCounts(), removed=SequenceCounts()), serial)
        self._keep(load, serial, waits=False)
        if source.part == source.parts:
            row.whole, row.counted, row.parts = True, source.parts, source.parts
            self._finish(load)
            table = LoadRow
            others = select(table.load).where(table.topic == load.topic, ~table.whole).limit(1)
            topic = self._session.get(TopicRow, load.topic)
            if topic is not None and self._session.scalar(others) is None:
                topic.unkeyed_from = NOTHING

    def _count(self, load: LoadCount, serial: int, *, take_out: bool = False) -> None:
        """Add the counts of a part to the windows, or take them out again."""
        topic = load.topic
        self._changes.topic(topic)
        for counts, is_less in ((load.counts, take_out), (load.removed, not take_out)):
            keys = [key for key in counts.tallies if is_of_this_world(key.window)]
            for key, producer in self._producers.get_all("", keys).items():
                change = self._changes.window(topic, key.window)
                held = (WAREHOUSE, producer.producer, counts.tallies[key])
                (change.removed if is_less else change.counts).append(held)
                producer.extend_to(key.window)
                change.positions["counted", WAREHOUSE] = serial
        sign = -1 if take_out else 1
        for each in load.unkeyed or ():
            if is_of_this_world(each.window):
                change = self._changes.window(topic, each.window)
                filed = each.rows - each.unfiled
                change.unkeyed_rows.append((sign * each.rows, sign * filed))
                if filed:  # rows in no hour's partition change nothing of the hour's table
                    change.positions["counted", WAREHOUSE] = serial
        for hour in load.hours or ():
            at: dict[str, Any] = {"topic": topic, "hour": hour.hour, "load": load.source.load}
            at["edition"] = load.source.edition
            if not take_out:
                row = LoadHourRow(**at, rows=hour.rows, erased=hour.erased, uncounted=hour.uncounted)
                self._session.merge(row)
            elif (there := self._session.get(LoadHourRow, at)) is not None:
                self._session.delete(there)
            if hour.uncounted:
                judge_hour_again(self._session, topic, hour.hour)

    def _finish(self, load: LoadCount) -> None:
        """Replace the edition before by a fully counted edition."""
        source = load.source
        self._forget(load.topic, source.load, before=source.edition)
        for each in load.rejected:
            self._session.merge(
                RejectedRow(
                    topic=load.topic,
                    load=source.load,
                    edition=source.edition,
                    window=each.window,
                    last=each.last,
                    is_span=each.window != each.last,
                    messages=each.messages,
                    keyed=each.keyed,
                    reason=storable(each.reason),
                )
            )
            self._touch(load.topic, each.window, each.last)
            if each.window == each.last and is_of_this_world(each.window):
                hour = each.window - each.window % HOUR_MS
                at = (load.topic, hour, source.load, source.edition)
                row = self._session.get(LoadHourRow, at)
                if row is not None:
                    row.rejected += each.messages
        self._session.flush()
        self._set_ends(load.topic, load.ends)

    def _set_ends(self, topic: str, ends: Sequence[LoadEnd]) -> None:
        for end in ends:
            at: dict[str, Any] = {"tier": WAREHOUSE, "topic_id": end.topic_id, "partition": end.partition}
            row = self._session.get(CoverageRow, at)
            if row is None:
                self._session.add(CoverageRow(**at, topic=topic, end=end.end, counted=True))
                self._session.flush()
            else:
                row.end = max(row.end, end.end)

    def _forget(self, topic: str, load: int, *, before: int) -> None:
        """Delete the hours and rejected messages of a load's editions before edition `before`."""
        table = RejectedRow
        old = (table.topic == topic, table.load == load, table.edition < before)
        for row in self._session.scalars(select(table).where(*old)):
            self._touch(topic, row.window, row.last)
        self._session.execute(delete(table).where(*old))
        hours = LoadHourRow
        here = (hours.load == load, hours.edition < before)
        self._judge_hours_of(topic, and_(*here, hours.uncounted > 0))
        self._session.execute(delete(hours).where(hours.topic == topic, *here))

    def _touch(self, topic: str, first: int, last: int) -> None:
        if first != last:
            judge_again(self._session, topic, first, last)
            note_changed(self._session, topic, final_hours(self._session, topic, first, last))
        elif is_of_this_world(first):
            self._changes.window(topic, first).is_touched = True

    def _note_other_edition(self, topic: str, load: int) -> None:
        state = state_of(self._session, topic)
        if load not in state.other_editions and len(state.other_editions) < _MOST_NAMED:
            state.other_editions = [*state.other_editions, load]
            self._judge_hours_of(topic, LoadHourRow.load == load)

    def _keep(self, load: LoadCount, serial: int, *, waits: bool) -> None:
        source = load.source
        self._session.merge(
            LoadPartRow(
                topic=load.topic,
                load=source.load,
                edition=source.edition,
                sha256=source.sha256[:64],
                part=source.part,
                waits=waits,
                applied_at=self._changes.now_ms,
                serial=serial,
                record=packed(load),
            )
        )

    def _keep_waiting(self, load: LoadCount, serial: int) -> None:
        """Keep a part until the lost loads are replaced. If a load is remade twice, keep the last one."""
        table, source = LoadPartRow, load.source
        if source.edition == 1:
            others = (table.topic == load.topic, table.waits, table.load >= source.load)
            known = select(table.load).where(*others, table.load == source.load)
            if self._session.scalar(known.where(table.sha256 != source.sha256[:64]).limit(1)) is not None:
                self._session.execute(delete(table).where(*others))
        self._keep(load, serial, waits=True)

    def lose_from(self, state: WarehouseStateRow, load: int) -> None:
        """Note the first counted load that is gone or different; FOR_EVER for none."""
        if state.lost_from == load:
            return
        changed = min(state.lost_from, load)
        state.lost_from = load
        self._judge_hours_of(state.topic, LoadHourRow.load >= changed)
        told_no_hours = (LoadRow.topic == state.topic, LoadRow.load >= changed, ~LoadRow.whole)
        if self._session.scalar(select(LoadRow.load).where(*told_no_hours).limit(1)) is not None:
            judge_again(self._session, state.topic)
            note_changed(self._session, state.topic, final_hours(self._session, state.topic))

    def _judge_hours_of(self, topic: str, which: Any) -> None:
        hours = select(LoadHourRow.hour).distinct().where(LoadHourRow.topic == topic, which)
        for hour in self._session.scalars(hours).all():
            judge_hour_again(self._session, topic, hour)

    def compare(self, state: WarehouseStateRow) -> None:
        """Compare the loads in the folder with the counted loads."""
        newest = newest_load(self._session, state.topic)
        if newest is None:
            return
        there = self._session.get(LoadRow, (state.topic, state.newest_load, 1))
        is_same = there is not None and there.sha256 == state.sha256
        if is_same and newest.load > state.newest_load:
            self.lose_from(state, state.newest_load + 1)
        elif is_same:  # manifests are chained: all loads are the counted ones
            self.lose_from(state, FOR_EVER)
            parts = LoadPartRow
            self._session.execute(delete(parts).where(parts.topic == state.topic, parts.waits))
        elif there is not None:
            self.lose_from(state, min(state.lost_from, state.newest_load))
        elif newest.load > state.newest_load:
            self.lose_from(state, min(state.lost_from, state.newest_load + 1))
        if state.editions_sha256 and state.lost_from == FOR_EVER:
            self._compare_editions(state, newest.load)

    def _compare_editions(self, state: WarehouseStateRow, newest: int) -> None:
        """Note the loads whose editions in the folder, by their hash, differ from the counted ones."""
        table = LoadRow
        rows = select(table.load, func.max(table.edition)).where(
            table.topic == state.topic, table.edition > 1
        )
        counted = rows.where(table.counted == table.parts).group_by(table.load).order_by(table.load)
        editions = {row[0]: row[1] for row in self._session.execute(counted)}
        others = [] if editions_hash(editions) == state.editions_sha256 else [*editions][:_MOST_NAMED]
        if others != state.other_editions and newest == state.newest_load:
            for load in {*others, *state.other_editions}:
                self._judge_hours_of(state.topic, LoadHourRow.load == load)
            state.other_editions = others

    def take_out(self, topic: str, first: int) -> list[int]:
        """Take the counts of the loads from `first` on out of the windows; return the loads' numbers."""
        self._take_out_parts(LoadPartRow.topic == topic, LoadPartRow.load >= first)
        here = select(LoadRow.load).distinct().where(LoadRow.topic == topic, LoadRow.load >= first)
        loads = [*self._session.scalars(here.order_by(LoadRow.load))]
        for load in loads:
            self._forget(topic, load, before=FOR_EVER)
        self._session.execute(delete(LoadRow).where(LoadRow.topic == topic, LoadRow.load >= first))
        self._session.flush()
        self._go_back(topic)
        return loads

    def _take_out_parts(self, *which: ColumnElement[bool]) -> None:
        counted = (*which, ~LoadPartRow.waits)
        for row in self._session.scalars(select(LoadPartRow).where(*counted)).all():
            self._count(unpacked(row.record), row.serial, take_out=True)
        self._session.execute(delete(LoadPartRow).where(*counted))

    def _go_back(self, topic: str) -> None:
        """Set the topic's loaded positions to the ends of the newest remaining load."""
        rows = (CoverageRow.tier == WAREHOUSE, CoverageRow.topic == topic)
        self._session.execute(update(CoverageRow).where(*rows).values(end=0))
        self._session.expire_all()
        newest = newest_load(self._session, topic)
        parts = LoadPartRow
        if newest is not None:
            here = (parts.topic == topic, parts.load == newest.load, parts.edition == 1, ~parts.waits)
            last = self._session.scalar(select(parts).where(*here).order_by(parts.part.desc()).limit(1))
            self._set_ends(topic, unpacked(last.record).ends if last is not None else ())

    def waiting(self, topic: str) -> Iterator[tuple[LoadCount, int]]:
        """Yield the waiting parts in the order of their arrival, and delete them."""
        parts = LoadPartRow
        rows = select(parts).where(parts.topic == topic, parts.waits).order_by(parts.serial)
        for row in self._session.scalars(rows).all():
            self._session.delete(row)
            self._session.flush()
            yield unpacked(row.record), row.serial


def first_counted(session: Session, topic: str, load: int) -> LoadRow | None:
    """Return the first edition of the first counted load of a topic from number `load` on."""
    table = LoadRow
    counted = (table.topic == topic, table.load >= load, table.edition == 1)
    return session.scalar(select(table).where(*counted).order_by(table.load).limit(1))


def newest_load(session: Session, topic: str) -> LoadRow | None:
    """Return the newest fully counted load of a topic."""
    table = LoadRow
    counted = (table.topic == topic, table.edition == 1, table.counted == table.parts)
    return session.scalar(select(table).where(*counted).order_by(table.load.desc()).limit(1))
