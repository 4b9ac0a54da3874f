"""Applying audit records to the database: who is known, what was reported, what was counted.

A batch holds records of one partition in its order, and runs inside the caller's transaction. What a batch
does depends on that partition alone, so any interleaving of partitions comes to the same. Records that come
again count once: a report by its number and seal, a range by where it begins, a load by its number and part.
What is said by somebody who cannot be who he says is listed among the strangers and has no effect. What
changes a window that was final before raises its revision. Passes no verdict on its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import func, insert, select, update
from sqlalchemy.orm import Session

from millrace_audit.answer import Verdict
from millrace_audit.auditor import beats, store
from millrace_audit.auditor.evidence import Evidence
from millrace_audit.auditor.store import CoverageRow, ProducerRow, TierRow, WindowRow
from millrace_audit.reports.counts import (
    FIRST_EVENT_MS,
    MOST_AHEAD_MS,
    WINDOW_MS,
    CountKey,
    SequenceCounts,
    SequenceTally,
)
from millrace_audit.reports.messages import (
    FOR_EVER,
    NOTHING,
    OFFLINE,
    WAREHOUSE,
    AuditRecord,
    Count,
    Heartbeat,
    Hello,
    LoadCount,
    Report,
    ReportedWindow,
)
from millrace_audit.reports.seals import seal_of

MOST_OPEN = 10_000
"""Instances of a topic and origin that may be open at once; further ones are strangers."""
MOST_MISSING = 1000
"""Reports that may be missing before the next one of an instance; one further on is a stranger."""
MOST_STRANGERS = 1000
"""Rows of strangers; beyond, they are only counted."""
_SERIAL_BITS = 44


class Heard(NamedTuple):
    """One record of an audit topic's partition."""

    record: AuditRecord | None
    """None when it could not be read as one."""
    offset: int
    value: bytes
    at: int
    """Behind it: an offset of the log that it was published to, where its producer's cluster keeps it."""
    turn: int | None = None
    """Whose turn signed it; None for nobody's."""


@dataclass(frozen=True, slots=True)
class Place:
    """A partition of an audit topic, and for whose word it stands."""

    topic: str
    topic_id: str
    partition: int
    tier: str
    """The cluster that it is a mirror of; `offline` where it is none."""
    takes: tuple[type[AuditRecord], ...]
    """The kinds of records that have an effect here."""

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition} ({self.tier})"

    def serial(self, offset: int) -> int:
        """Orders what a tier says, also when its topic was made again and has another partition here."""
        return (self.partition << _SERIAL_BITS) + offset


def apply(session: Session, place: Place, heard: Sequence[Heard], now_ms: int) -> None:
    """Take records of one partition in; nothing happens for those that were taken in before."""
    changes = _Changes(session, now_ms)
    strangers = _Strangers(place)
    batch = _Said(session, place, changes, strangers) if Hello in place.takes else None
    counted = _Counted(session, place, changes, strangers) if batch is None else None
    if batch is not None and heard:
        batch.prepare(heard)
        tier = session.get(TierRow, place.tier) or TierRow(tier=place.tier)
        session.add(tier)
        tier.heard_through = max(tier.heard_through, *(entry.at for entry in heard))
    for entry in heard:
        if entry.record is None or not isinstance(entry.record, place.takes):
            kind = "message" if entry.record is None else type(entry.record).__name__
            strangers.add(entry, kind, "no audit record that belongs here")
        elif batch is not None:
            batch.take(entry)
        elif counted is not None:
            counted.take(entry)
    if counted is not None:
        counted.end()
    changes.write()
    strangers.write(session)


def unheard(session: Session, position: store.AuditPosition, end: int) -> None:
    """Records of an audit topic's partition, up to `end`, expired before they were applied."""
    gap = store.UnheardRow(
        topic_id=position.topic_id,
        partition=position.partition,
        start=position.next_offset,
        end=end,
        since=position.last_time,
    )
    session.add(gap)


def heard_again(session: Session, position: store.AuditPosition, heard: Sequence[Heard]) -> None:
    """Close the gap before these records, if there is one, and note when the last one was written."""
    times = [h.record.time for h in heard if h.record is not None and h.record.time != NOTHING]
    if not times:
        return
    gap = store.UnheardRow
    here = (gap.topic_id == position.topic_id, gap.partition == position.partition, gap.until == FOR_EVER)
    session.execute(update(gap).where(*here).values(until=times[0]))
    position.last_time = times[-1]


def names_hash(server: str, service: str) -> str:
    return hashlib.blake2b(f"{server}\0{service}".encode("utf-8", "replace"), digest_size=16).hexdigest()


class _Producers:
    """The rows of producers that a batch names, made where there are none."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._rows: dict[tuple[str, int], dict[str, ProducerRow]] = {}

    def prepare(self, origin: str, instances: Iterable[int]) -> list[ProducerRow]:
        """Read all of them at once: asking for each by itself would cost as much as everything else here."""
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

    def get_all(self, origin: str, keys: Iterable[CountKey]) -> dict[CountKey, ProducerRow]:
        """The row of every key."""
        keys = list(keys)
        self.prepare(origin, (key.instance for key in keys))
        found, new = {}, False
        for key in keys:
            rows, names = self._rows[origin, key.instance], names_hash(key.server, key.service)
            if names not in rows:
                rows[names] = ProducerRow(
                    origin=origin,
                    instance=key.instance,
                    names=names,
                    server=_storable(key.server),
                    service=_storable(key.service),
                )
                self._session.add(rows[names])
                new = True
            found[key] = rows[names]
        if new:
            self._session.flush()  # the database numbers them
        return found


class _Strangers:
    """Records without effect, counted by who seems to have written them."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._seen: dict[tuple[str, str, str], list[int]] = {}

    def add(self, entry: Heard, kind: str, cause: str) -> None:
        record = entry.record
        who = "?"
        if isinstance(record, Hello | Report):
            who = f"instance {record.instance} ({record.service} on {record.server})"
        elif isinstance(record, Count | Heartbeat):
            who = f"tier {record.tier}"
        time = record.time if record is not None else NOTHING
        seen = self._seen.setdefault((kind, cause, _storable(who)[:200]), [0, time, time])
        seen[:] = seen[0] + 1, min(seen[1], time), max(seen[2], time)

    def write(self, session: Session) -> None:
        table = store.StrangerRow
        for (kind, cause, who), (count, first, last) in self._seen.items():
            key = {"place": self._place.name[:300], "kind": kind, "cause": cause, "who": who}
            row = session.get(table, key)
            if (
                row is None
                and (session.scalar(select(func.count()).select_from(table)) or 0) >= MOST_STRANGERS
            ):
                key = {"place": "", "kind": "", "cause": "more than are listed", "who": ""}
                row = session.get(table, key)
            if row is None:
                session.add(table(**key, count=count, first=first, last=last))
                session.flush()
            else:
                row.count += count
                row.first, row.last = min(row.first, first), max(row.last, last)


class _Change:
    """What a batch adds to one window."""

    __slots__ = ("counts", "foreign", "late", "positions", "removed", "reports")

    def __init__(self) -> None:
        self.reports: list[tuple[int, ReportedWindow]] = []
        self.counts: list[tuple[str, int, SequenceTally]] = []
        self.removed: list[tuple[str, int, SequenceTally]] = []
        self.foreign: list[tuple[str, str, int, int]] = []
        self.positions: dict[tuple[str, str], int] = {}
        self.late = False


class _Changes:
    """What a batch changes, by topic and window: every window is read and written once."""

    def __init__(self, session: Session, now_ms: int) -> None:
        self._session = session
        self._now_ms = now_ms
        self._topics: dict[str, dict[int, _Change]] = {}

    def topic(self, topic: str) -> dict[int, _Change]:
        return self._topics.setdefault(topic, {})

    def window(self, topic: str, window: int) -> _Change:
        windows = self.topic(topic)
        if window not in windows:
            windows[window] = _Change()
        return windows[window]

    def write(self) -> None:
        for name, windows in self._topics.items():
            topic = self._session.get(store.TopicRow, name) or store.TopicRow(topic=name)
            self._session.add(topic)
            for some in store.slices(sorted(windows)):
                self._write(topic, {start: windows[start] for start in some})

    def _write(self, topic: store.TopicRow, windows: Mapping[int, _Change]) -> None:
        table = WindowRow
        here = (table.topic == topic.topic, table.window.in_(windows))
        columns = (
            table.window,
            table.revision,
            table.verdict,
            table.settled,
            table.positions,
            table.evidence,
        )
        rows = {row.window: row for row in self._session.execute(select(*columns).where(*here))}
        new: list[dict[str, Any]] = []
        changed: list[dict[str, Any]] = []
        for start, change in windows.items():
            row = rows.get(start)
            if row is None and start < topic.kept_from:
                continue  # it has expired from the database
            values = {
                "topic": topic.topic,
                "window": start,
                "settled": False,
                "dirty": True,
                "touched": self._now_ms,
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


def _revision(row: Any, start: int, change: _Change, final_through: int) -> int:
    """The window's revision with a change: raised by what comes after a verdict that was final.

    That what was missing arrives is no revision: it was awaited.
    """
    if row is None:  # a time that was final already begins at revision 1
        return int(start + WINDOW_MS <= final_through or change.late)
    again = row.settled and (row.verdict != Verdict.INCOMPLETE or change.reports)
    again = again or (change.late and row.revision == 0)
    revision: int = row.revision + bool(again)
    return revision


def _added(packed: bytes, change: _Change) -> Evidence:
    evidence = Evidence.unpack(packed)
    for producer, news in change.reports:
        evidence.report(producer, news.acknowledged, news.fingerprint, news.failed, news.failed_fingerprint)
    for tier, producer, tally in change.counts:
        evidence.count(tier, producer, tally)
    for tier, producer, tally in change.removed:
        evidence.remove(tier, producer, tally)
    for foreign in change.foreign:
        evidence.count_foreign(*foreign)
    return evidence


def _moved(positions: Mapping[str, Mapping[str, int]], change: _Change) -> dict[str, dict[str, int]]:
    moved = {kind: {**positions.get(kind, {})} for kind in ("reported", "counted", "origins")}
    for (kind, name), at in change.positions.items():
        moved[kind][name] = max(moved[kind].get(name, NOTHING), at)
    return moved


class _Said:
    """Hellos and reports of one cluster's producers."""

    def __init__(self, session: Session, place: Place, changes: _Changes, strangers: _Strangers) -> None:
        self._session, self._place, self._changes, self._strangers = session, place, changes, strangers
        self._producers = _Producers(session)
        self._links: set[tuple[str, int]] = set()  # (topic, producer) of those that the batch names
        self._open: dict[str, int] = {}
        gap = store.UnheardRow
        here = (gap.topic_id == place.topic_id, gap.partition == place.partition)
        self._gap = session.scalar(select(func.count()).select_from(gap).where(*here)) or 0

    def prepare(self, heard: Sequence[Heard]) -> None:
        numbers = [h.record.instance for h in heard if isinstance(h.record, Hello | Report)]
        rows = self._producers.prepare(self._place.tier, numbers)
        link = store.ProducerTopicRow
        for some in store.slices([row.producer for row in rows if row.announced]):
            links = select(link.topic, link.producer).where(link.producer.in_(some))
            self._links.update((topic, producer) for topic, producer in self._session.execute(links))

    def take(self, entry: Heard) -> None:
        record = entry.record
        assert isinstance(record, Hello | Report)
        kind = type(record).__name__
        row = self._producers.announced(self._place.tier, record.instance)
        if record.cluster != self._place.tier:
            cause = (
                f"it says cluster {_storable(record.cluster)[:100]} and speaks in that of {self._place.tier}"
            )
        elif row is not None and row.names != names_hash(record.server, record.service):
            cause = "it contradicts the first hello of its instance"
        elif isinstance(record, Hello):
            cause = self._hello(row, record, entry.at)
        else:
            cause = self._report(row, record, entry)
        if cause:
            self._strangers.add(entry, kind, cause)

    def _hello(self, row: ProducerRow | None, hello: Hello, at: int) -> str:
        if row is not None and (row.done or row.seal != hello.seal):
            return "its instance has ended" if row.done else "it does not have the instance's seal"
        if not self._may_join(row, hello.topic):
            return f"more than {MOST_OPEN} instances are open"
        if row is None:
            row = self._announce(hello, at)
            row.closed_through = hello.closed_through
        row.heard_at = max(row.heard_at, hello.time)
        self._join(row, hello.topic)
        return ""

    def _announce(self, word: Hello | Report, at: int) -> ProducerRow:
        key = CountKey(word.server, word.service, word.instance, 0)
        row = self._producers.get_all(self._place.tier, [key])[key]
        row.announced, row.hello_at, row.seal = True, at, word.seal
        return row

    def _may_join(self, row: ProducerRow | None, topic: str) -> bool:
        if row is not None and (topic, row.producer) in self._links:
            return True
        if topic not in self._open:
            link = store.ProducerTopicRow
            known = (
                select(func.count())
                .select_from(link)
                .join(ProducerRow, ProducerRow.producer == link.producer)
                .where(link.topic == topic, ProducerRow.origin == self._place.tier, ~ProducerRow.done)
            )
            self._open[topic] = self._session.scalar(known) or 0
        return self._open[topic] < MOST_OPEN

    def _join(self, row: ProducerRow, topic: str) -> None:
        self._changes.topic(topic)
        if (topic, row.producer) not in self._links:
            self._links.add((topic, row.producer))
            self._open[topic] += 1
            self._session.execute(
                insert(store.ProducerTopicRow), [{"topic": topic, "producer": row.producer}]
            )

    def _report(self, row: ProducerRow | None, report: Report, entry: Heard) -> str:
        digest = hashlib.blake2b(entry.value, digest_size=16).digest()
        if row is None:
            if not self._gap:
                return "its instance has not said hello"
            row = self._announce(report, entry.at)  # its hello had expired: the gap doubts what lies before
            row.next_report = report.number
        elif report.number < row.next_report:
            repeated = report.number == row.next_report - 1 and digest == row.last_report
            return "" if repeated else "another report with its number has come before"
        elif row.done:
            return "its instance has ended"
        elif report.number == row.next_report:
            if seal_of(report.key) != row.seal:
                return "its key does not fit the seal of what was said before"
        elif report.number > row.next_report + MOST_MISSING:
            return f"it is more than {MOST_MISSING} reports ahead"
        else:
            row.missing = [*row.missing, [row.next_report, report.number - 1]]
        promised, row.closed_through = row.closed_through, report.closed_through
        row.next_report, row.seal, row.last_report = report.number + 1, report.seal, digest
        row.heard_at = max(row.heard_at, report.time)
        row.done = row.closed_through == FOR_EVER and not row.missing
        for news in report.windows:
            if not _is_of_this_world(news.window, report.time):
                self._strangers.add(entry, "Report", "a time that no producer may send")
            elif self._may_join(row, news.topic):
                self._join(row, news.topic)
                change = self._changes.window(news.topic, news.window)
                change.reports.append((row.producer, news))
                change.positions["reported", self._place.tier] = entry.at
                change.positions["origins", self._place.tier] = 1
                change.late |= promised >= news.window + WINDOW_MS  # it had said that nothing would follow
            else:
                self._strangers.add(entry, "Report", f"more than {MOST_OPEN} instances are open")
        return ""


class _Counted:
    """Counts and heartbeats of one tier's readers, and behind the aggregate cluster those of loads."""

    def __init__(self, session: Session, place: Place, changes: _Changes, strangers: _Strangers) -> None:
        self._session, self._place, self._changes, self._strangers = session, place, changes, strangers
        self._producers = _Producers(session)
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

    def take(self, entry: Heard) -> None:
        record, tier = entry.record, self._tier
        assert tier is not None
        if isinstance(record, LoadCount):
            self._load(record)
            return
        assert isinstance(record, Count | Heartbeat)
        kind = type(record).__name__
        if entry.turn is None:
            self._strangers.add(entry, kind, "no reader of the tier has signed it")
        elif record.tier != self._place.tier:
            self._strangers.add(entry, kind, f"it does not belong among those of {self._place.tier}")
        elif entry.turn >= tier.turn:  # what a reader left behind whose turn is over no longer counts
            tier.turn = entry.turn
            serial = self._place.serial(entry.offset)
            if isinstance(record, Count):
                self._count(record, serial, entry)
            elif record.time != NOTHING:
                self._beat(record, serial, is_first=tier.beaten_turn != entry.turn)
                tier.beaten_turn = entry.turn

    def _count(self, count: Count, serial: int, entry: Heard) -> None:
        row = self._coverage.get((count.topic_id, count.partition))
        if row is None:
            row = self._cover(count, count.topic, count.start)
        if count.start < row.end:
            return  # it has come before
        if count.start > row.end:
            self._uncounted(row, row.end, count.start)
        for first, last in count.expired:
            self._uncounted(row, first, last + 1)
        row.end, row.counted = count.end, True
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
        outside = self._add(count.topic, origin, count.counts, count.time, serial)
        for foreign in count.foreign:
            if _is_of_this_world(foreign.window, count.time):
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

    def _add(self, topic: str, origin: str, counts: SequenceCounts, now: int, serial: int) -> int:
        """Add counts of a tier to the windows; how many keys have an impossible time."""
        tier = self._place.tier
        keys = [key for key in counts.tallies if _is_of_this_world(key.window, now)]
        for key, producer in self._producers.get_all(origin, keys).items():
            change = self._changes.window(topic, key.window)
            change.counts.append((tier, producer.producer, counts.tallies[key]))
            change.positions["counted", tier] = serial
            change.positions["origins", origin] = 1
            if tier == origin and not producer.counted:
                producer.counted = True
        return len(counts.tallies) - len(keys)

    def _cover(self, of: Any, topic: str, end: int) -> CoverageRow:
        row = CoverageRow(
            tier=self._place.tier, topic_id=of.topic_id, partition=of.partition, topic=topic, end=end
        )
        self._session.add(row)
        self._coverage[of.topic_id, of.partition] = row
        return row

    def _uncounted(self, row: CoverageRow, start: int, end: int) -> None:
        assert self._tier is not None
        key: dict[str, Any] = {"tier": row.tier, "topic_id": row.topic_id, "partition": row.partition}
        key["start"] = start
        if self._session.get(store.UncountedRow, key) is None:
            gap = store.UncountedRow(**key, end=end, topic=row.topic, since=self._tier.heartbeat)
            self._session.add(gap)
            self._session.flush()

    def _beat(self, beat: Heartbeat, serial: int, *, is_first: bool) -> None:
        tier = self._tier
        assert tier is not None
        self._follow_positions(beat, is_first=is_first)
        gap = store.UncountedRow
        ends_here = update(gap).where(gap.tier == tier.tier, gap.until == FOR_EVER).values(until=beat.time)
        self._session.execute(ends_here)
        self._note_unreadable(beat, tier.heartbeat)
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

    def _follow_positions(self, beat: Heartbeat, *, is_first: bool) -> None:
        """Where a reader stands beyond what it was heard of, the counts between have expired unread."""
        named = {(position.topic_id, position.partition): position for position in beat.positions}
        gone = {key for key, position in named.items() if position.offset is None}
        if is_first and named:  # the first heartbeat of a turn names all that there are
            gone |= self._coverage.keys() - named.keys()
        for key in gone & self._coverage.keys():
            self._coverage[key].gone = True
        for key, position in named.items():
            if position.offset is None:
                continue
            row = self._coverage.get(key)
            if row is None:  # nothing of it is counted yet, or not since this database began
                self._cover(position, position.topic, position.offset)
            elif row.end < position.offset:
                self._uncounted(row, row.end, position.offset)
                row.end = position.offset

    def _note_unreadable(self, beat: Heartbeat, before: int) -> None:
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
                )
                self._session.add(row)
                self._changes.topic(bad.topic)
            row.offset, row.cause = bad.offset, _storable(bad.cause)
        for row in known.values():
            self._session.delete(row)

    def _load(self, load: LoadCount) -> None:
        if not self._is_next_part(load):
            return
        source = load.source
        for counts, removed in ((load.counts, False), (load.removed, True)):
            keys = [key for key in counts.tallies if _is_of_this_world(key.window, load.time)]
            for key, producer in self._producers.get_all("", keys).items():
                change = self._changes.window(load.topic, key.window)
                entry = (WAREHOUSE, producer.producer, counts.tallies[key])
                (change.removed if removed else change.counts).append(entry)
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

    def _is_next_part(self, load: LoadCount) -> bool:
        """True if it is the next thing to count of its load, which is counted once its last part is."""
        source, table = load.source, store.LoadRow
        key: dict[str, Any] = {"topic": load.topic, "load": source.load}
        if source.edition > 1:  # an edition says nothing without the one before
            before = self._session.get(table, {**key, "edition": source.edition - 1})
            if before is None or before.counted < before.parts:
                return False
        row = self._session.get(table, {**key, "edition": source.edition})
        if source.part != (row.counted if row else 0) + 1 or (row and row.counted == row.parts):
            return False
        if row is None:
            row = table(**key, edition=source.edition, counted=0, parts=source.parts)
            self._session.add(row)
        row.counted = source.part
        self._session.flush()
        return True

    def end(self) -> None:
        assert self._tier is not None
        self._tier.unmarked = sorted(self._unmarked)


def _is_of_this_world(window: int, now: int) -> bool:
    """True for a window that a producer may have sent events of, given the time it is now."""
    return FIRST_EVENT_MS <= window <= now + MOST_AHEAD_MS


def _storable(text: str) -> str:
    """What somebody called himself, without what PostgreSQL or UTF-8 cannot hold."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
