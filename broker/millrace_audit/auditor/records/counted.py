"""Counts and positions of one tier's readers. `warehouse` applies the records of the warehouse's reader.

Only records of the newest turn count. A range counts if it begins where the counted part of its
partition ends. If it begins later, the offsets between will never be counted, and are noted as a gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import insert, or_, select, update
from sqlalchemy.orm import Session

from millrace_audit.auditor import store
from millrace_audit.auditor.records import progress
from millrace_audit.auditor.records.batch import Changes, Entry, Place, Producers, RejectedRecords, storable
from millrace_audit.auditor.records.decisions import Decisions
from millrace_audit.auditor.records.warehouse import TURN_IS_OVER, Warehouse
from millrace_audit.auditor.store import CoverageRow, TierRow
from millrace_audit.reports.counts import CountKey, SequenceCounts, is_of_this_world
from millrace_audit.reports.messages import (
    FOR_EVER,
    NOTHING,
    OF_THE_WAREHOUSE,
    OFFLINE,
    WAREHOUSE,
    Count,
    Decision,
    Heartbeat,
    ReaderPosition,
)

_MOST_NAMED = 200
"""Most records and positions for which a query names the topics. With more, it reads all topics."""


class Counted:
    """Counts and heartbeats of one tier's readers; in the aggregate cluster's topic also those of loads."""

    def __init__(
        self, session: Session, place: Place, changes: Changes, rejected_records: RejectedRecords
    ) -> None:
        self._session, self._place, self._changes = session, place, changes
        self._rejected_records = rejected_records
        self._producers = Producers(session)
        self._warehouse = Warehouse(session, place, changes, rejected_records, self._producers)
        self._decisions = Decisions(session, changes, self._warehouse.loads)
        self._tier = session.get(TierRow, place.tier)
        self._changed_topics: set[str] = set()
        self._coverage: dict[tuple[str, int], CoverageRow] = {}
        self._named: dict[str, set[CountKey]] = {}
        if self._tier is None:
            self._tier = TierRow(tier=place.tier)
            session.add(self._tier)
        else:
            self._changed_topics = set(self._tier.changed_topics)

    def take_all(self, entries: Sequence[Entry]) -> None:
        """Apply counts, heartbeats and loads in their order."""
        self._read_coverage(entries)
        for entry in entries:
            self._take(entry)
        assert self._tier is not None
        self._tier.changed_topics = sorted(self._changed_topics)

    def _read_coverage(self, entries: Sequence[Entry]) -> None:
        """Read the coverage of all topics that the records change or that await a checkpoint."""
        assert self._tier is not None
        named: list[Count | ReaderPosition] = []
        is_of_all = False
        for entry in entries:
            if isinstance(entry.record, Count):
                named.append(entry.record)
            elif isinstance(entry.record, Heartbeat):
                named += entry.record.positions
                # The first heartbeat of a turn names all partitions that are not deleted.
                is_of_all |= entry.turn != self._tier.heartbeat_turn or bool(entry.record.truncated)
        rows = select(CoverageRow).where(CoverageRow.tier == self._place.tier)
        if not is_of_all and len(named) + len(self._changed_topics) <= _MOST_NAMED:
            topics = self._changed_topics.union(each.topic for each in named)
            ids = {each.topic_id for each in named}
            rows = rows.where(or_(CoverageRow.topic.in_(topics), CoverageRow.topic_id.in_(ids)))
        self._coverage = {(row.topic_id, row.partition): row for row in self._session.scalars(rows)}

    def _take(self, entry: Entry) -> None:
        record, tier = entry.record, self._tier
        assert tier is not None
        assert entry.turn is not None
        if isinstance(record, Decision):
            if (cause := self._decisions.take(record)) is not None:
                self._rejected_records.add(entry, "Decision", cause)
            return
        is_of_warehouse = isinstance(record, OF_THE_WAREHOUSE)
        if isinstance(record, Heartbeat):
            is_of_warehouse = (record.tier, self._place.tier) == (WAREHOUSE, OFFLINE)
        if is_of_warehouse:
            self._warehouse.take(entry)
            return
        assert isinstance(record, Count | Heartbeat)
        kind = type(record).__name__
        if record.tier != self._place.tier:
            self._rejected_records.add(entry, kind, f"it does not belong among those of {self._place.tier}")
        elif entry.turn < tier.turn:
            self._rejected_records.add(entry, kind, TURN_IS_OVER)
        else:
            tier.turn = entry.turn
            serial = self._place.serial(entry.offset)
            if isinstance(record, Count):
                self._count(record, serial, entry)
            elif record.time == NOTHING:
                self._follow_truncated(record, serial)
            else:
                is_first = tier.heartbeat_turn != entry.turn
                if is_first or record.number > tier.heartbeat_number:  # else the heartbeat is a repeat
                    self._heartbeat(record, serial, is_first=is_first)
                    tier.heartbeat_turn, tier.heartbeat_number = entry.turn, record.number

    def _count(self, count: Count, serial: int, entry: Entry) -> None:
        row = self._coverage.get((count.topic_id, count.partition))
        if row is None:
            row = self._cover(count, count.topic, count.start, serial)
        if count.start < row.end:
            return  # the count is a repeat
        if count.start > row.end:
            self._uncounted(row, row.end, count.start, serial, noted=count.time)
        for first, last in count.expired:
            self._uncounted(row, first, last + 1, serial, noted=count.time)
        row.end, row.counted, row.gone = count.end, True, False
        self._changed_topics.add(count.topic)
        self._changes.topic(count.topic)
        origin = self._place.tier
        if count.origin is not None:
            origin = count.origin.cluster
            place = f"{count.origin.topic_id}-{count.origin.partition}"
            end = count.origin.end if count.origin.end is not None else row.origin[2] if row.origin else None
            row.origin, row.unplaced = [origin, place, end], _unplaced(count, row.unplaced, serial)
            if self._place.tier != OFFLINE:
                return  # a mirror at an origin: its events are counted at their home
        outside = self._add(count.topic, origin, count.counts, serial)
        if origin == self._place.tier:
            outside += self._add(count.topic, origin, count.aborted, serial, are_aborted=True)
        for foreign in count.foreign:
            if is_of_this_world(foreign.window):
                change = self._changes.window(count.topic, foreign.window)
                change.unkeyed.append((origin, self._place.tier, foreign.messages, foreign.fingerprint))
                change.positions["counted", self._place.tier] = serial
                change.positions["origins", origin] = 1
            else:
                outside += 1
        if outside:
            self._rejected_records.add(
                entry, "Count", f"events of topic {count.topic} have a time no producer sends"
            )

    def _add(
        self, topic: str, origin: str, counts: SequenceCounts, serial: int, *, are_aborted: bool = False
    ) -> int:
        """Add counts of a tier to the windows; return the number of keys with an impossible time."""
        tier = self._place.tier
        keys = [key for key in counts.tallies if is_of_this_world(key.window)]
        for key, producer in self._producers.get_all(origin, keys).items():
            change = self._changes.window(topic, key.window)
            tally = counts.tallies[key]
            if are_aborted:
                change.aborted.append((producer.producer, tally.present))
            else:
                change.counts.append((tier, producer.producer, tally))
            producer.extend_to(key.window)
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
            counted_since=serial,
        )
        self._session.add(row)
        self._coverage[of.topic_id, of.partition] = row
        if end > 0:  # offsets before the first known count are not counted
            self._uncounted(row, 0, end, serial)
        return row

    def _uncounted(
        self,
        row: CoverageRow,
        start: int,
        end: int,
        serial: int,
        since: int | None = None,
        noted: int = NOTHING,
        recounted_after: int = FOR_EVER,
    ) -> None:
        """Note offsets that will never be counted; `since`: heartbeat before them, by default the newest.

        Messages there may be as new as `noted`: no earlier heartbeat ends the gap. Offsets of a log that was
        cut back were counted, and are counted again in the records after `recounted_after`.
        """
        assert self._tier is not None
        key: dict[str, Any] = {"tier": row.tier, "topic_id": row.topic_id, "partition": row.partition}
        key["start"] = start
        since = self._tier.heartbeat if since is None else since
        gap = self._session.get(store.UncountedRow, key)
        if gap is None:
            gap = store.UncountedRow(**key, end=end, topic=row.topic, since=since, serial=serial, noted=noted)
            gap.recounted_after = recounted_after
            self._session.add(gap)
        else:  # the log was truncated there twice
            gap.end, gap.since = max(gap.end, end), min(gap.since, since)
            gap.serial, gap.until, gap.noted = serial, FOR_EVER, max(gap.noted, noted)
            gap.recounted_after = min(gap.recounted_after, recounted_after)
        self._session.flush()

    def _heartbeat(self, heartbeat: Heartbeat, serial: int, *, is_first: bool) -> None:
        tier = self._tier
        assert tier is not None
        self._follow_positions(heartbeat, serial - 1, is_first=is_first)  # the checkpoint covers them
        self._follow_truncated(heartbeat, serial)
        gap = store.UncountedRow
        # A heartbeat from before the gap, by a clock that was set back, does not end the gap.
        tiers = (OFFLINE, WAREHOUSE) if tier.tier == OFFLINE else (tier.tier,)
        begun = (gap.since <= heartbeat.time, gap.noted <= heartbeat.time)
        here = (gap.tier.in_(tiers), gap.until == FOR_EVER, *begun)
        self._session.execute(update(gap).where(*here).values(until=heartbeat.time))
        self._note_unreadable(heartbeat, tier.heartbeat, serial)
        # The newest heartbeat counts, not the largest time: a clock that ran ahead may be corrected.
        tier.heartbeat = heartbeat.time
        if tier.kept == NOTHING or abs(heartbeat.time - tier.kept) >= progress.APART_MS:
            new = {"serial": serial, "time": heartbeat.time, "reported_through": heartbeat.reported_through}
            self._session.execute(insert(store.CheckpointRow), [{"tier": tier.tier, **new}])
            self._keep_ends(serial)
            if tier.kept != NOTHING and progress.bucket(heartbeat.time) != progress.bucket(tier.kept):
                progress.thin(self._session, tier.tier, tier.kept, heartbeat.time)
            tier.kept = heartbeat.time

    def _keep_ends(self, serial: int) -> None:
        """Store the positions of the topics that have new counts since the checkpoint before."""
        ends: dict[str, dict[str, list[Any]]] = {topic: {} for topic in self._changed_topics}
        for row in self._coverage.values():
            if row.counted and not row.gone and row.topic in ends:
                ends[row.topic][progress.name(row)] = [row.end, *(row.origin or ())]
        new_ends = [
            {"tier": self._place.tier, "topic": topic, "serial": serial, "ends": vector}
            for topic, vector in ends.items()
        ]
        if new_ends:
            self._session.execute(insert(store.EndsRow), new_ends)
        self._changed_topics.clear()

    def _follow_positions(self, heartbeat: Heartbeat, serial: int, *, is_first: bool) -> None:
        """Note gaps before positions in a heartbeat: counts between have expired before they were read."""
        named = {(position.topic_id, position.partition): position for position in heartbeat.positions}
        gone = {key for key, position in named.items() if position.offset is None}
        if is_first and named:  # the first heartbeat of a turn names all partitions
            gone |= self._coverage.keys() - named.keys()
        for key in gone:
            if key not in self._coverage:
                self._cover(named[key], named[key].topic, 0, serial)
            self._coverage[key].gone = True
        for key, position in named.items():
            if position.offset is None:
                continue
            row = self._coverage.get(key)
            if row is None:  # this database has no counts of the partition yet
                self._cover(position, position.topic, position.offset, serial)
                continue
            row.gone = False
            if row.end < position.offset:
                self._uncounted(row, row.end, position.offset, serial)
                row.end = position.offset

    def _follow_truncated(self, heartbeat: Heartbeat, serial: int) -> None:
        """Note counted offsets that are gone from a truncated log; their replacements will be counted."""
        for log in heartbeat.truncated:
            row = self._coverage.get((log.topic_id, log.partition))
            if row is not None and log.end < row.end == log.counted:
                since = progress.time_at(self._session, row, log.end)
                self._uncounted(row, log.end, row.end, serial, since, recounted_after=serial)
                row.end = log.end
                self._changed_topics.add(row.topic)
                self._changes.topic(row.topic)

    def _note_unreadable(self, heartbeat: Heartbeat, before: int, serial: int) -> None:
        table = store.UnreadableRow
        known = {
            (row.topic_id, row.partition): row
            for row in self._session.scalars(select(table).where(table.tier == self._place.tier))
        }
        for bad in heartbeat.unreadable:
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


def _unplaced(count: Count, before: int, serial: int) -> int:
    """Return the first count with copies after the origin's known end; `before` is the value so far."""
    known = count.origin is not None and count.origin.end is not None
    through = count.copied_through if known else NOTHING
    if through is None or through >= count.end:  # None: a reader of an earlier version
        return FOR_EVER
    if through >= count.start or (before == FOR_EVER and count.end > count.start):
        return serial
    return before
