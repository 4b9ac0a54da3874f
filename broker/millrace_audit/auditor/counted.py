"""What readers count at one tier, how far they have come, and what loads have brought to the warehouse.

Only the word of the newest turn counts. A range counts if it begins where its partition is counted to; where
it begins behind that, what is between will never be counted, and that is noted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import delete, insert, select, update
from sqlalchemy.orm import Session

from millrace_audit.auditor import beats, store
from millrace_audit.auditor.batch import Changes, Heard, Place, Producers, Strangers, storable
from millrace_audit.auditor.store import CoverageRow, HistoryRow, TierRow, VerifiedRow, WindowRow
from millrace_audit.reports.counts import HOUR_MS, WINDOW_MS, CountKey, SequenceCounts, is_of_this_world
from millrace_audit.reports.messages import (
    FOR_EVER,
    NOTHING,
    OFFLINE,
    TABLE,
    WAREHOUSE,
    Count,
    Heartbeat,
    LoadCount,
    TableCount,
    Verified,
)

_TURN_IS_OVER = (
    "its turn is over: a newer one has counted here; if ZooKeeper was made anew, give the auditor an empty"
    " database"
)


class Counted:
    """Counts and heartbeats of one tier's readers, and behind the aggregate cluster those of loads."""

    def __init__(self, session: Session, place: Place, changes: Changes, strangers: Strangers) -> None:
        self._session, self._place, self._changes, self._strangers = session, place, changes, strangers
        self._producers = Producers(session)
        self._tier = session.get(TierRow, place.tier)
        self._unmarked: set[str] = set()
        self._coverage: dict[tuple[str, int], CoverageRow] = {}
        self._named: dict[str, set[CountKey]] = {}
        if self._tier is None:
            self._tier = TierRow(tier=place.tier)
            session.add(self._tier)
        else:
            self._unmarked = set(self._tier.unmarked)
            rows = session.scalars(select(CoverageRow).where(CoverageRow.tier == place.tier))
            self._coverage = {(row.topic_id, row.partition): row for row in rows}

    def take_all(self, heard: Sequence[Heard]) -> None:
        """Apply counts, heartbeats and loads in their order."""
        for entry in heard:
            self._take(entry)
        assert self._tier is not None
        self._tier.unmarked = sorted(self._unmarked)

    def _take(self, entry: Heard) -> None:
        record, tier = entry.record, self._tier
        assert tier is not None
        assert entry.turn is not None
        if isinstance(record, LoadCount | TableCount | Verified):
            self._warehouse(record, entry)
            return
        assert isinstance(record, Count | Heartbeat)
        if isinstance(record, Heartbeat) and (record.tier, self._place.tier) == (WAREHOUSE, OFFLINE):
            self._warehouse(record, entry)
            return
        kind = type(record).__name__
        if record.tier != self._place.tier:
            self._strangers.add(entry, kind, f"it does not belong among those of {self._place.tier}")
        elif entry.turn < tier.turn:
            self._strangers.add(entry, kind, _TURN_IS_OVER)
        else:
            tier.turn = entry.turn
            serial = self._place.serial(entry.offset)
            if isinstance(record, Count):
                self._count(record, serial, entry)
            elif record.time != NOTHING:
                is_first = tier.beaten_turn != entry.turn
                if is_first or record.number > tier.beaten_number:  # else somebody sends it again
                    self._beat(record, serial, is_first=is_first)
                    tier.beaten_turn, tier.beaten_number = entry.turn, record.number

    def _count(self, count: Count, serial: int, entry: Heard) -> None:
        row = self._coverage.get((count.topic_id, count.partition))
        if row is None:
            row = self._cover(count, count.topic, count.start, serial)
        if count.start < row.end:
            return  # it has come before
        if count.start > row.end:
            self._uncounted(row, row.end, count.start, serial)
        for first, last in count.expired:
            self._uncounted(row, first, last + 1, serial)
        row.end, row.counted, row.gone = count.end, True, False
        self._unmarked.add(count.topic)
        self._changes.topic(count.topic)
        origin = self._place.tier
        if count.origin is not None:
            origin = count.origin.cluster
            place = f"{count.origin.topic_id}-{count.origin.partition}"
            end = count.origin.end if count.origin.end is not None else row.origin[2] if row.origin else None
            row.origin = [origin, place, end]
            if self._place.tier != OFFLINE:
                return  # a mirror within a cluster that is produced to: it is counted where it comes from
        outside = self._add(count.topic, origin, count.counts, serial)
        for foreign in count.foreign:
            if is_of_this_world(foreign.window):
                change = self._changes.window(count.topic, foreign.window)
                change.foreign.append((origin, self._place.tier, foreign.messages, foreign.fingerprint))
                change.positions["counted", self._place.tier] = serial
                change.positions["origins", origin] = 1
            else:
                outside += 1
        if outside:
            self._strangers.add(
                entry, "Count", f"events of topic {count.topic} have a time no producer sends"
            )

    def _add(self, topic: str, origin: str, counts: SequenceCounts, serial: int) -> int:
        """Add counts of a tier to the windows; how many keys have an impossible time."""
        tier = self._place.tier
        keys = [key for key in counts.tallies if is_of_this_world(key.window)]
        for key, producer in self._producers.get_all(origin, keys).items():
            change = self._changes.window(topic, key.window)
            change.counts.append((tier, producer.producer, counts.tallies[key]))
            producer.be_in(key.window)
            change.positions["counted", tier] = serial
            change.positions["origins", origin] = 1
            if tier == origin and not producer.counted:
                producer.counted = True
        return len(counts.tallies) - len(keys)

    def _cover(self, of: Any, topic: str, end: int, serial: int) -> CoverageRow:
        row = CoverageRow(
            tier=self._place.tier,
            topic_id=of.topic_id,
            partition=of.partition,
            topic=topic,
            end=end,
            began=serial,
        )
        self._session.add(row)
        self._coverage[of.topic_id, of.partition] = row
        if end > 0:  # its reader began there, or what was counted before is not known in this database
            self._uncounted(row, 0, end, serial)
        return row

    def _uncounted(
        self, row: CoverageRow, start: int, end: int, serial: int, since: int | None = None
    ) -> None:
        """Offsets that nobody will ever count; `since` is the heartbeat before they were, the newest one."""
        assert self._tier is not None
        key: dict[str, Any] = {"tier": row.tier, "topic_id": row.topic_id, "partition": row.partition}
        key["start"] = start
        since = self._tier.heartbeat if since is None else since
        gap = self._session.get(store.UncountedRow, key)
        if gap is None:
            gap = store.UncountedRow(**key, end=end, topic=row.topic, since=since, serial=serial)
            self._session.add(gap)
        else:  # a log that was truncated there twice
            gap.end, gap.since = max(gap.end, end), min(gap.since, since)
            gap.serial, gap.until = serial, FOR_EVER
        self._session.flush()

    def _beat(self, beat: Heartbeat, serial: int, *, is_first: bool) -> None:
        tier = self._tier
        assert tier is not None
        self._follow_positions(beat, serial - 1, is_first=is_first)  # the beat stands for them, too
        self._follow_truncated(beat, serial)
        gap = store.UncountedRow
        # A clock set back closes nothing: what is missing lies between, whatever it says now.
        tiers = (OFFLINE, WAREHOUSE) if tier.tier == OFFLINE else (tier.tier,)
        here = (gap.tier.in_(tiers), gap.until == FOR_EVER, gap.since <= beat.time)
        self._session.execute(update(gap).where(*here).values(until=beat.time))
        self._note_unreadable(beat, tier.heartbeat, serial)
        # The newest word counts, not the largest: a clock that ran ahead is set right again.
        tier.heartbeat = beat.time
        if tier.kept == NOTHING or abs(beat.time - tier.kept) >= beats.APART_MS:
            new = {"serial": serial, "time": beat.time, "reported_through": beat.reported_through}
            self._session.execute(insert(store.BeatRow), [{"tier": tier.tier, **new}])
            self._mark(serial)
            if tier.kept != NOTHING and beats.bucket(beat.time) != beats.bucket(tier.kept):
                beats.thin(self._session, tier.tier, tier.kept, beat.time)
            tier.kept = beat.time

    def _mark(self, serial: int) -> None:
        """Note how far the topics are counted that were counted on since the beat before."""
        ends: dict[str, dict[str, list[Any]]] = {topic: {} for topic in self._unmarked}
        for row in self._coverage.values():
            if row.counted and not row.gone and row.topic in ends:
                ends[row.topic][beats.name(row)] = [row.end, *(row.origin or ())]
        marks = [
            {"tier": self._place.tier, "topic": topic, "serial": serial, "ends": vector}
            for topic, vector in ends.items()
        ]
        if marks:
            self._session.execute(insert(store.MarkRow), marks)
        self._unmarked.clear()

    def _follow_positions(self, beat: Heartbeat, serial: int, *, is_first: bool) -> None:
        """Where a reader stands beyond what it was heard of, the counts between have expired unread."""
        named = {(position.topic_id, position.partition): position for position in beat.positions}
        gone = {key for key, position in named.items() if position.offset is None}
        if is_first and named:  # the first heartbeat of a turn names all that there are
            gone |= self._coverage.keys() - named.keys()
        for key in gone:
            if key not in self._coverage:
                self._cover(named[key], named[key].topic, 0, serial)
            self._coverage[key].gone = True
        for key, position in named.items():
            if position.offset is None:
                continue
            row = self._coverage.get(key)
            if row is None:  # nothing of it is counted yet, or not since this database began
                self._cover(position, position.topic, position.offset, serial)
                continue
            row.gone = False
            if row.end < position.offset:
                self._uncounted(row, row.end, position.offset, serial)
                row.end = position.offset

    def _follow_truncated(self, beat: Heartbeat, serial: int) -> None:
        """What had been counted of a log is gone from it, and what is in its place will be counted."""
        for log in beat.truncated:
            row = self._coverage.get((log.topic_id, log.partition))
            if row is not None and log.end < row.end == log.counted:
                since = beats.time_at(self._session, row, log.end)
                self._uncounted(row, log.end, row.end, serial, since)
                row.end = log.end
                self._unmarked.add(row.topic)
                self._changes.topic(row.topic)

    def _note_unreadable(self, beat: Heartbeat, before: int, serial: int) -> None:
        table = store.UnreadableRow
        known = {
            (row.topic_id, row.partition): row
            for row in self._session.scalars(select(table).where(table.tier == self._place.tier))
        }
        for bad in beat.unreadable:
            row = known.pop((bad.topic_id, bad.partition), None)
            if row is None:
                row = table(
                    tier=self._place.tier,
                    topic_id=bad.topic_id,
                    partition=bad.partition,
                    topic=bad.topic,
                    offset=0,
                    cause="",
                    since=before,
                    serial=serial,
                )
                self._session.add(row)
                self._changes.topic(bad.topic)
            row.offset, row.cause = bad.offset, storable(bad.cause)
        for row in known.values():
            self._session.delete(row)

    def _warehouse(self, record: LoadCount | TableCount | Verified | Heartbeat, entry: Heard) -> None:
        assert entry.turn is not None
        warehouse = self._session.get(TierRow, WAREHOUSE)
        if warehouse is None:
            warehouse = TierRow(tier=WAREHOUSE)
            self._session.add(warehouse)
            self._session.flush()
        if entry.turn < warehouse.turn:
            self._strangers.add(entry, type(record).__name__, _TURN_IS_OVER)
            return
        warehouse.turn = entry.turn
        if isinstance(record, LoadCount):
            self._load(record, entry)
        elif warehouse.beaten_turn != entry.turn or record.number > warehouse.beaten_number:
            warehouse.beaten_turn, warehouse.beaten_number = entry.turn, record.number
            if isinstance(record, TableCount):
                self._table(record, self._place.serial(entry.offset))
            elif isinstance(record, Verified):
                self._verified(record)
            else:
                warehouse.heartbeat = record.time

    def _verified(self, verified: Verified) -> None:
        """Take what was found in place of what was found before; the windows it is about are judged again."""
        table, topic = VerifiedRow, verified.topic
        rows = self._session.scalars(select(table).where(table.topic == topic).order_by(table.number))
        before = [(row.hour, row.text) for row in rows]
        found = [(problem.hour, storable(problem.text)) for problem in verified.problems]
        if found == before:
            return
        self._changes.topic(topic)
        self._session.execute(delete(table).where(table.topic == topic))
        for number, (hour, text) in enumerate(found):
            self._session.add(table(topic=topic, number=number, hour=hour, text=text))
        news = [(hour, f"found: {text}") for hour, text in found if (hour, text) not in before]
        news += [(hour, f"found right again: {text}") for hour, text in before if (hour, text) not in found]
        for hour, what in news:
            row = HistoryRow(time=verified.time, topic=topic, window=hour, who="millrace verify", what=what)
            self._session.add(row)
        for hour in {hour for hour, _ in news}:
            here = [WindowRow.topic == topic]
            if hour is not None:
                here.append(WindowRow.window.between(hour, hour + HOUR_MS - WINDOW_MS))
            self._session.execute(update(WindowRow).where(*here).values(settled=False, dirty=True))

    def _table(self, table: TableCount, serial: int) -> None:
        for window in filter(is_of_this_world, table.replaces):
            change = self._changes.window(table.topic, window)
            change.replace_table()
            change.positions["counted", TABLE] = serial
        keys = [key for key in table.counts.tallies if is_of_this_world(key.window)]
        for key, producer in self._producers.get_all("", keys).items():
            change = self._changes.window(table.topic, key.window)
            change.table.append((producer.producer, table.counts.tallies[key]))
            producer.be_in(key.window)

    def _load(self, load: LoadCount, entry: Heard) -> None:
        if not self._is_next_part(load, entry):
            return
        source = load.source
        for counts, removed in ((load.counts, False), (load.removed, True)):
            keys = [key for key in counts.tallies if is_of_this_world(key.window)]
            for key, producer in self._producers.get_all("", keys).items():
                change = self._changes.window(load.topic, key.window)
                held = (WAREHOUSE, producer.producer, counts.tallies[key])
                (change.removed if removed else change.counts).append(held)
                producer.be_in(key.window)
                change.positions["counted", WAREHOUSE] = self._place.serial(entry.offset)
        self._changes.topic(load.topic)
        if source.part == source.parts:
            for end in load.ends:
                at: dict[str, Any] = {"tier": WAREHOUSE, "topic_id": end.topic_id, "partition": end.partition}
                row = self._session.get(CoverageRow, at)
                if row is None:
                    self._session.add(CoverageRow(**at, topic=load.topic, end=end.end, counted=True))
                    self._session.flush()
                else:
                    row.end = max(row.end, end.end)

    def _is_next_part(self, load: LoadCount, entry: Heard) -> bool:
        """True if it is the next thing to count of its load, which is counted once its last part is."""
        source, table = load.source, store.LoadRow
        key: dict[str, Any] = {"topic": load.topic, "load": source.load}
        if source.edition > 1:  # an edition says nothing without the one before
            before = self._session.get(table, {**key, "edition": source.edition - 1})
            if before is None or before.counted < before.parts:
                return False
        row = self._session.get(table, {**key, "edition": source.edition})
        if row is not None and row.sha256 != source.sha256[:64]:
            cause = f"load {source.load} of topic {load.topic} was counted from another manifest"
            self._strangers.add(entry, "LoadCount", cause)
            return False
        if source.part != (row.counted if row else 0) + 1 or (row and row.counted == row.parts):
            return False
        if row is None:
            row = table(
                **key, edition=source.edition, counted=0, parts=source.parts, sha256=source.sha256[:64]
            )
            self._session.add(row)
        row.counted = source.part
        self._session.flush()
        return True
