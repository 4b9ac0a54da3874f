"""Changes by a batch of audit records: windows, producers, rejected records, each row read and written once.

Only rows and sums are here; `reported` and `counted` interpret the records. A change of a window that was
final raises its revision.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import func, insert, select, update
from sqlalchemy.orm import Session

from millrace_audit.answer import Verdict
from millrace_audit.auditor import store
from millrace_audit.auditor.store import ProducerRow, WindowRow
from millrace_audit.auditor.verdict.evidence import Evidence
from millrace_audit.reports.counts import WINDOW_MS, CountKey, SequenceTally
from millrace_audit.reports.messages import (
    NOTHING,
    TABLE,
    WAREHOUSE,
    AuditRecord,
    Count,
    Heartbeat,
    Hello,
    Kind,
    Report,
    ReportedWindow,
)
from millrace_audit.reports.ranges import SequenceRanges

MOST_REJECTED_RECORDS = 1000
"""Most rows of rejected records; further records share one row."""
_SERIAL_BITS = 44


class Entry(NamedTuple):
    """One record of an audit topic's partition."""

    record: AuditRecord | None
    """None if the message is not decoded: it has no effect, or cannot be decoded."""
    offset: int
    value: bytes
    at: int
    """Offset after the record in the log of its producer's cluster; only hellos and reports use it."""
    turn: int | None = None
    """Turn of the reader that signed the record; None if no reader did."""
    kind: Kind | None = None
    """Kind that the message names; it is decoded only if the partition takes that kind, signed if needed."""


@dataclass(frozen=True, slots=True)
class Place:
    """A partition of an audit topic, and the tier whose records it holds."""

    topic: str
    topic_id: str
    partition: int
    tier: str
    """Origin that the partition mirrors; `offline` if it is not a mirror."""
    takes: tuple[type[AuditRecord], ...]
    """The kinds of records that have an effect here."""
    shift: int = 0
    """Number added to offsets, see `AuditPosition.shift`."""

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition} ({self.tier})"

    def serial(self, offset: int) -> int:
        """Return the log position of a record, which orders a tier's records.

        The order holds even if the topic was recreated with another partition, or its log was cut back.
        """
        return (self.partition << _SERIAL_BITS) + offset + self.shift


def names_hash(server: str, service: str) -> str:
    return hashlib.blake2b(f"{server}\0{service}".encode("utf-8", "replace"), digest_size=16).hexdigest()


NO_NAMES = names_hash("", "")
"""Hash of the names of events whose audit header is a record header: it has no names."""


class Producers:
    """Rows of the producers that a batch names; missing rows are created."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._rows: dict[tuple[str, int], dict[str, ProducerRow]] = {}

    def prepare(self, origin: str, instances: Iterable[int]) -> list[ProducerRow]:
        """Read the rows of all instances at once; single queries would double the time of a batch."""
        numbers = sorted({n for n in instances if (origin, n) not in self._rows})
        read = []
        for some in store.slices(numbers):
            for number in some:
                self._rows[origin, number] = {}
            here = (ProducerRow.origin == origin, ProducerRow.instance.in_(some))
            for row in self._session.scalars(select(ProducerRow).where(*here)):
                self._rows[origin, row.instance][row.names] = row
                read.append(row)
        return read

    def announced(self, origin: str, instance: int) -> ProducerRow | None:
        self.prepare(origin, [instance])
        rows = self._rows[origin, instance].values()
        return next((row for row in rows if row.announced), None)

    def unnamed(self, origin: str, instance: int) -> ProducerRow | None:
        """Return the row of the instance's events that were counted without names before its hello."""
        self.prepare(origin, [instance])
        return self._rows[origin, instance].get(NO_NAMES)

    def get_all(self, origin: str, keys: Iterable[CountKey]) -> dict[CountKey, ProducerRow]:
        """Return the row of each key. A key without names is that of the instance's own names, once its
        hello has fixed them.
        """
        keys = list(keys)
        self.prepare(origin, (key.instance for key in keys))
        found, new = {}, False
        for key in keys:
            rows, names = self._rows[origin, key.instance], names_hash(key.server, key.service)
            if names == NO_NAMES and (announced := self.announced(origin, key.instance)) is not None:
                found[key] = announced
                continue
            if names not in rows:
                rows[names] = ProducerRow(
                    origin=origin,
                    instance=key.instance,
                    names=names,
                    server=storable(key.server),
                    service=storable(key.service),
                )
                self._session.add(rows[names])
                new = True
            found[key] = rows[names]
        if new:
            self._session.flush()  # the database numbers the new rows
        return found


class RejectedRecords:
    """Rejected records, counted by kind, cause and apparent writer."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._seen: dict[tuple[str, str, str], list[int]] = {}

    def add(self, entry: Entry, kind: str, cause: str) -> None:
        record = entry.record
        who = "?"
        if isinstance(record, Hello | Report):
            who = f"instance {record.instance} ({record.service} on {record.server})"
        elif isinstance(record, Count | Heartbeat):
            who = f"tier {record.tier}"
        time = record.time if record is not None else NOTHING
        seen = self._seen.setdefault((kind, cause[:200], storable(who)[:200]), [0, time, time])
        seen[:] = seen[0] + 1, min(seen[1], time), max(seen[2], time)

    def write(self, session: Session) -> None:
        table = store.RejectedRecordRow
        for (kind, cause, who), (count, first, last) in self._seen.items():
            key = {"place": self._place.name[:300], "kind": kind, "cause": cause, "who": who}
            row = session.get(table, key)
            if (
                row is None
                and (session.scalar(select(func.count()).select_from(table)) or 0) >= MOST_REJECTED_RECORDS
            ):
                key = {"place": "", "kind": "", "cause": "more than are listed", "who": ""}
                row = session.get(table, key)
            if row is None:
                session.add(table(**key, count=count, first=first, last=last))
                session.flush()
            else:
                row.count += count
                row.first, row.last = min(row.first, first), max(row.last, last)


class Change:
    """Changes of one window by a batch."""

    __slots__ = (
        "aborted",
        "counts",
        "is_table_new",
        "is_touched",
        "late",
        "positions",
        "removed",
        "reports",
        "table",
        "table_unkeyed",
        "unkeyed",
        "unkeyed_rows",
    )

    def __init__(self) -> None:
        self.reports: list[tuple[int, ReportedWindow, bool]] = []
        """Producers' reports; False if a report has no fingerprints."""
        self.counts: list[tuple[str, int, SequenceTally]] = []
        self.aborted: list[tuple[int, SequenceRanges]] = []
        self.removed: list[tuple[str, int, SequenceTally]] = []
        self.unkeyed: list[tuple[str, str, int, int]] = []
        self.table: list[tuple[int, SequenceTally]] = []
        self.is_table_new = False
        """True if `table` replaces the counts that the window had of the published table."""
        self.table_unkeyed: int | None = None
        """Rows of the table without a whole audit header; None if not reported."""
        self.unkeyed_rows: list[tuple[int, int]] = []
        """Rows of loads without a whole audit header: (all, of these in an hour's partition)."""
        self.is_touched = False
        """True if a fact outside the evidence has changed for this window alone."""
        self.positions: dict[tuple[str, str], int] = {}
        self.late = False

    def replace_table(self) -> None:
        self.table.clear()
        self.table_unkeyed = None
        self.is_table_new = True

    @property
    def is_of_table(self) -> bool:
        """True if only the counts of the published table change."""
        counted = self.counts or self.aborted or self.removed or self.unkeyed or self.unkeyed_rows
        others = self.reports or counted
        return bool(self.is_table_new or self.table) and not (others or self.late or self.is_touched)


class Changes:
    """Changes by a batch, by topic and window; every window is read and written once."""

    def __init__(self, session: Session, now_ms: int) -> None:
        self._session = session
        self.now_ms = now_ms
        self._topics: dict[str, dict[int, Change]] = {}
        self.unkeyed_from: dict[str, int] = {}
        """Topic -> time of the newest load that did not report its rows without a header."""

    def topic(self, topic: str) -> dict[int, Change]:
        return self._topics.setdefault(topic, {})

    def window(self, topic: str, window: int) -> Change:
        windows = self.topic(topic)
        if window not in windows:
            windows[window] = Change()
        return windows[window]

    def write(self) -> None:
        for name, windows in self._topics.items():
            topic = self._session.get(store.TopicRow, name) or store.TopicRow(topic=name)
            self._session.add(topic)
            topic.unkeyed_from = max(topic.unkeyed_from, self.unkeyed_from.get(name, NOTHING))
            for some in store.slices(sorted(windows)):
                self._write(topic, {start: windows[start] for start in some})

    def _write(self, topic: store.TopicRow, windows: Mapping[int, Change]) -> None:
        table = WindowRow
        here = (table.topic == topic.topic, table.window.in_(windows))
        columns = (
            table.window,
            table.revision,
            table.verdict,
            table.is_final,
            table.positions,
            table.evidence,
        )
        rows = {row.window: row for row in self._session.execute(select(*columns).where(*here))}
        new: list[dict[str, Any]] = []
        changed: list[dict[str, Any]] = []
        for start, change in windows.items():
            row = rows.get(start)
            if row is None and start < topic.kept_from:
                continue  # the window has expired
            if row is None and change.is_of_table and not (change.table or change.table_unkeyed):
                continue  # neither the window nor the table has events
            values = {
                "topic": topic.topic,
                "window": start,
                "is_final": False,
                "is_changed": True,
                "changed_at": self.now_ms,
                "folded": False,
                "revision": _revision(row, start, change, topic.final_through),
                "positions": _moved(row.positions if row else {}, change),
                "evidence": _added(row.evidence if row else b"", change).pack(),
            }
            (changed if row else new).append(values)
        if new:
            self._session.execute(insert(table), new)
        if changed:
            self._session.execute(update(table), changed)


def _revision(row: Any, start: int, change: Change, final_through: int) -> int:
    """Return the window's revision after a change: one more if the verdict was final before.

    Missing events that arrive in an incomplete window were expected, and do not raise the revision.
    """
    if row is not None and change.is_of_table:
        return int(row.revision)  # its events are the same
    if row is None:  # a window that was final without a row begins at revision 1
        return int(start + WINDOW_MS <= final_through or change.late)
    again = row.is_final and (row.verdict != Verdict.INCOMPLETE or change.reports)
    again = again or (change.late and row.revision == 0)
    revision: int = row.revision + bool(again)
    return revision


def _added(packed: bytes, change: Change) -> Evidence:
    evidence = Evidence.unpack(packed)
    for producer, news, fingerprinted in change.reports:
        sums = news.fingerprint, news.failed_fingerprint
        evidence.report(
            producer, news.acknowledged, sums[0], news.failed, sums[1], fingerprinted=fingerprinted
        )
    for tier, producer, tally in change.counts:
        evidence.count(tier, producer, tally)
    for producer, ranges in change.aborted:
        evidence.abort(producer, ranges)
    for tier, producer, tally in change.removed:
        evidence.remove(tier, producer, tally)
    for rows in change.unkeyed_rows:
        evidence.count_unkeyed_rows(WAREHOUSE, *rows)
    if change.is_table_new:
        evidence.observed[TABLE] = {}
        evidence.unkeyed_rows.pop(TABLE, None)
        if change.table_unkeyed is not None:
            evidence.count_unkeyed_rows(TABLE, change.table_unkeyed)
    for producer, tally in change.table:
        evidence.count(TABLE, producer, tally)
    for messages in change.unkeyed:
        evidence.count_unkeyed(*messages)
    return evidence.bound()


def _moved(positions: Mapping[str, Mapping[str, int]], change: Change) -> dict[str, dict[str, int]]:
    moved = {kind: {**positions.get(kind, {})} for kind in ("reported", "counted", "origins")}
    for (kind, name), at in change.positions.items():
        moved[kind][name] = max(moved[kind].get(name, NOTHING), at)
    return moved


def storable(text: str) -> str:
    """Return a text without characters that PostgreSQL or UTF-8 cannot store."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
