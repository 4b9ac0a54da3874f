"""Records of the warehouse's reader: loads, the published table, findings of `verify`, and the present state.

Only records of the newest turn count. `load_counts` applies the loads.
"""

from __future__ import annotations

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from millrace_audit.auditor.records.batch import Changes, Entry, Place, Producers, RejectedRecords, storable
from millrace_audit.auditor.records.gaps import note_counts_lost
from millrace_audit.auditor.records.load_counts import (
    LoadCounts,
    final_hours,
    judge_again,
    judge_hour_again,
    note_changed,
    state_of,
)
from millrace_audit.auditor.store import HistoryRow, TierRow, TopicRow, VerifiedRow
from millrace_audit.reports.counts import is_of_this_world
from millrace_audit.reports.messages import (
    FOR_EVER,
    NOTHING,
    TABLE,
    WAREHOUSE,
    Heartbeat,
    LoadCount,
    TableCount,
    Verified,
    WarehouseState,
)

TURN_IS_OVER = (
    "its turn is over: a newer one has counted here; if ZooKeeper was made anew, give the auditor an empty"
    " database"
)


class Warehouse:
    """Records of the warehouse's reader, applied in their order."""

    def __init__(
        self,
        session: Session,
        place: Place,
        changes: Changes,
        rejected_records: RejectedRecords,
        producers: Producers,
    ) -> None:
        self._session, self._place, self._changes = session, place, changes
        self._rejected_records = rejected_records
        self._producers, self.loads = producers, LoadCounts(session, changes, producers)

    def take(self, entry: Entry) -> None:
        record, turn = entry.record, entry.turn
        assert turn is not None
        assert isinstance(record, LoadCount | TableCount | Verified | WarehouseState | Heartbeat)
        tier = self._session.get(TierRow, WAREHOUSE)
        if tier is None:
            tier = TierRow(tier=WAREHOUSE)
            self._session.add(tier)
            self._session.flush()
        if turn < tier.turn:
            self._rejected_records.add(entry, type(record).__name__, TURN_IS_OVER)
            return
        tier.turn = turn
        serial = self._place.serial(entry.offset)
        if isinstance(record, LoadCount):
            if (cause := self.loads.take(record, serial)) is not None:
                self._rejected_records.add(entry, "LoadCount", cause)
            windows = [each.window for each in record.rejected]
            windows += [each.window for each in record.unkeyed or ()]
            if not all(map(is_of_this_world, windows)):
                cause = f"rows or rejected messages of topic {record.topic} have a time no producer sends"
                self._rejected_records.add(entry, "LoadCount", cause)
        elif isinstance(record, Heartbeat) and record.time == NOTHING:
            if tier.heartbeat_turn != turn:  # else it is a repeat
                tier.heartbeat_turn, tier.heartbeat_number, tier.numbered_turn = turn, 0, turn
        elif tier.heartbeat_turn != turn or record.number > tier.heartbeat_number:
            if turn == tier.numbered_turn and record.number > tier.heartbeat_number + 1:
                self._note_lost(entry.offset)
            tier.heartbeat_turn, tier.heartbeat_number = turn, record.number
            if isinstance(record, TableCount):
                self._table(record, serial)
            elif isinstance(record, Verified):
                self._verified(record)
            elif isinstance(record, WarehouseState):
                self._state(record)
            else:
                tier.heartbeat = record.time

    def _note_lost(self, offset: int) -> None:
        """Note that records of the turn are lost before the record at `offset`."""
        since = self._session.get_one(TierRow, self._place.tier).heartbeat
        note_counts_lost(self._session, self._place, WAREHOUSE, since, offset, offset)

    def _verified(self, verified: Verified) -> None:
        """Replace the findings of `verify`, and have the affected windows judged again."""
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
            if hour is None:
                judge_again(self._session, topic)
                note_changed(self._session, topic, final_hours(self._session, topic))
            else:
                judge_hour_again(self._session, topic, hour)
                note_changed(self._session, topic, [hour])

    def _table(self, table: TableCount, serial: int) -> None:
        unkeyed = None if table.unkeyed is None else {each.window: each.rows for each in table.unkeyed}
        for window in filter(is_of_this_world, table.replaces):
            change = self._changes.window(table.topic, window)
            change.replace_table()
            change.table_unkeyed = None if unkeyed is None else unkeyed.get(window, 0)
            change.positions["counted", TABLE] = serial
        keys = [key for key in table.counts.tallies if is_of_this_world(key.window)]
        for key, producer in self._producers.get_all("", keys).items():
            change = self._changes.window(table.topic, key.window)
            change.table.append((producer.producer, table.counts.tallies[key]))
            producer.extend_to(key.window)

    def _state(self, state: WarehouseState) -> None:
        """Store the present state. A counted load that is gone or differs proves nothing any more."""
        if state.load == 0 and self._session.get(TopicRow, state.topic) is None:
            return  # a topic that is not audited has no load, either
        row = state_of(self._session, state.topic)
        self._changes.topic(state.topic)
        row.newest_load, row.sha256 = state.load, state.sha256[:64]
        row.editions_sha256, row.table_trouble = state.editions[:64], storable(state.trouble)
        row.live_through = state.live_through
        if state.exists and not state.trouble:
            row.table_gone_since, row.is_table_doubted = FOR_EVER, False
        else:
            row.table_gone_since = min(row.table_gone_since, state.time)
        self.loads.compare(row)
