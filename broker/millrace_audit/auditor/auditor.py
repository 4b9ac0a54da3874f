"""The auditor's reading thread: applies the audit topics of the aggregate cluster to the database.

Each part of a fetch and the position after it are committed in one transaction, so a kill at any moment
loses and repeats nothing. The aggregate cluster, and never a record, tells which origin a partition mirrors:
`audit` and `audit-counts` have a partition for each origin, `audit-offline` is the aggregate cluster's own.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import NamedTuple

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from millrace.client.cluster_client import EARLIEST, LATEST, ClusterClient, FetchedPartition
from millrace.client.fetcher import log_was_cut
from millrace.client.transactions import batches_from
from millrace.config import OFFLINE_AUDIT_TOPIC
from millrace.errors import MillraceError
from millrace.records import BatchHeader
from millrace.records.mirror_position import MirrorPosition, Origin
from millrace.wire.fetch import Parting
from millrace.zookeeper.session import Session as ZooKeeperSession
from millrace_audit.auditor.expiry import expire
from millrace_audit.auditor.judging.judge import Judging
from millrace_audit.auditor.lease import RENEW_S, LeaseHeld
from millrace_audit.auditor.options import AuditOptions
from millrace_audit.auditor.records import ledger
from millrace_audit.auditor.records.deciding import MAY_COME, DecisionWriter, Undecided
from millrace_audit.auditor.records.decisions import due_decisions
from millrace_audit.auditor.records.ledger import Entry, Place
from millrace_audit.auditor.service.acceptance import accept_silent
from millrace_audit.auditor.service.metrics import AuditNumbers
from millrace_audit.auditor.store import AuditPosition, AuditStore, DecisionRow, TierRow
from millrace_audit.reports.batches import AuditMessage, messages_of
from millrace_audit.reports.messages import (
    AUDIT_TOPIC,
    AUDITOR,
    COUNTS_TOPIC,
    FOR_EVER,
    OF_THE_WAREHOUSE,
    OFFLINE,
    SIGNED,
    WAREHOUSE,
    AuditCodec,
    AuditRecord,
    Count,
    Decision,
    Heartbeat,
    Hello,
    Report,
)
from millrace_audit.reports.mirrors import Mirrors, cluster_name
from millrace_audit.reports.turns import TurnBook
from millrace_registry.client import SchemaRegistryClient

logger = logging.getLogger("millrace.audit.auditor")

FETCH_BYTES = 8 << 20
PART_BYTES = 256 << 10
"""Bytes of messages to decode and apply at a time; decoded, they may take 80 times the memory."""
MOST_SAID_BYTES = 512 << 10
"""Most bytes of a hello or report, which any client may write; producers stay below."""
_TAKES: Mapping[str, tuple[type[AuditRecord], ...]] = {
    AUDIT_TOPIC: (Hello, Report),
    COUNTS_TOPIC: (Count, Heartbeat),
    OFFLINE_AUDIT_TOPIC: (Count, Heartbeat, *OF_THE_WAREHOUSE, Decision),
}
_PAUSE_S = 0.2
_CHECK_S = 3.0
_RETRY_S = 1.0
_SETTLE_S = 5.0
_TURN_S = 2.0
"""Time for judging in a turn; the remaining windows wait for the next turn."""
_TIDY_S = 60.0
_FETCH_WAIT_MS = 100
DECIDE_S = 20.0
"""Longest time until a decision is written and applied."""


class _Part(NamedTuple):
    """Records that are applied in one transaction."""

    entries: list[Entry]
    lost: tuple[int, int] | None = None
    """Loss in the origin's log after the records: the offset at which the log goes on, and its time."""
    goes_on: bool = False
    """True if the next part may have records before the same offset of the origin's log."""


class _Waiting(NamedTuple):
    """A batch as fetched. It may come from any client, so it stays packed until it is applied."""

    header: BatchHeader
    batch: bytes
    first: int
    """First offset to apply; earlier messages of the batch are applied already."""


@dataclass(slots=True)
class _Reading:
    """Fetched batches of one partition that are not applied yet."""

    topic: str
    topic_id: str
    partition: int
    fetch_at: int
    origin: Origin | None
    """Origin partition that the partition mirrors; None if it is not a mirror."""
    held: list[_Waiting] = field(default_factory=list)
    """Batches that wait for the next position batch."""
    ready: list[tuple[_Waiting, int]] = field(default_factory=list)
    """Batches to apply, each with an offset of the origin's log after it."""
    lost: list[tuple[int, int, int]] = field(default_factory=list)
    """Losses in the origin's log: (ready batches before it, offset where the log goes on, time there)."""
    apply_to: int = 0
    """Offset up to which the partition is applied once `ready` is applied."""
    shift: int = 0
    epochs: dict[int, int] = field(default_factory=dict)
    """Offset -> leader epoch of the batch before it, for `fetch_at` and `apply_to` if it is known."""
    applied_through: int = 0
    """Offset of the origin's log: the mirror has all surviving records before it before `apply_to`."""
    applied: tuple[int, int] | None = None
    """Values of `apply_to` and `applied_through` when everything was last applied."""
    ask_at: float = 0.0
    """Monotonic time at which to ask the mirror for its position again."""

    @property
    def place(self) -> Place:
        takes, tier = _TAKES[self.topic], OFFLINE
        if self.origin is not None:
            tier = self.origin.cluster
            if self.origin.partition != 0:
                takes = ()  # publishers write to partition 0 only
        elif self.topic == COUNTS_TOPIC:
            takes = ()  # only the readers of origins write counts there
        return Place(self.topic, self.topic_id, self.partition, tier, takes, self.shift)

    def take(self, fetched: FetchedPartition) -> None:
        """Sort fetched batches into batches to apply and batches that wait for a position batch."""
        name = f"{self.topic}-{self.partition}"
        for header, batch, readable in batches_from(fetched, self.fetch_at, name):
            if readable:
                self.held.append(_Waiting(header, bytes(batch), self.fetch_at))
            elif (position := MirrorPosition.from_batch(header, batch)) is not None:
                if header.base_offset in (0, position.reset_at):  # the position has jumped: messages are lost
                    goes_on = position.cursor.next_offset if header.base_offset else position.start
                    self.lost.append((len(self.ready), goes_on, header.max_timestamp))
                self.release(position.cursor.next_offset, header.next_offset)
            self.fetch_at = header.next_offset
            self.epochs[self.fetch_at] = header.partition_leader_epoch
        # Counts are ordered by their offset in this log and need not wait. Reports need the origin's offset.
        if self.origin is None or self.topic != AUDIT_TOPIC:
            self.release(self.fetch_at, self.fetch_at)

    def release(self, at: int, apply_to: int) -> None:
        """Make held batches before offset `apply_to` ready: they lie before `at` in the origin's log."""
        count = sum(waiting.header.base_offset < apply_to for waiting in self.held)
        self.ready += [(waiting, at) for waiting in self.held[:count]]
        del self.held[:count]
        self.apply_to, self.applied_through = apply_to, at
        kept = {self.fetch_at, self.apply_to}
        self.epochs = {offset: epoch for offset, epoch in self.epochs.items() if offset in kept}


class Auditor:
    """Thread that applies the audit topics until it is stopped."""

    def __init__(
        self, store: AuditStore, options: AuditOptions, bootstrap: str, registry_url: str, zookeeper: str
    ) -> None:
        self._store = store
        self._options = options
        self._client = ClusterClient(bootstrap, client_id="millrace-auditor")
        self._registry = SchemaRegistryClient(registry_url)
        self._codec = AuditCodec(self._registry)
        self._zookeeper = zookeeper
        self._session: ZooKeeperSession | None = None
        self._book: TurnBook | None = None
        self._writer: DecisionWriter | None = None
        self._undecided: SimpleQueue[tuple[Decision, Future[None]]] = SimpleQueue()
        self._mirrors: Mirrors | None = None
        self._readings: dict[tuple[str, int], _Reading] = {}
        self._fetches = itertools.count()
        self._settle_due = self._tidy_due = self._renew_due = 0.0
        self.is_standby = False
        """True while another process writes to the database."""
        self._is_stale = True  # True if windows may need judging
        self.numbers = AuditNumbers(store, options)
        self._judging = Judging(store, options, self.numbers.note_final)
        self.trouble: str | None = "the audit topics are not read to their end yet"
        """Reason for which the database lags behind the audit topics; None while it does not."""
        self.applied_at: int | None = None
        """Time at which every record was last applied (ms, by the auditor's clock)."""

    def check(self) -> None:
        """Raise MillraceError in one line if no broker or no ZooKeeper answers soon."""
        with ClusterClient(self._client.bootstrap, timeout_s=_CHECK_S) as client:
            client.topics()
        self._session = ZooKeeperSession.connect(self._zookeeper)
        self._book = TurnBook(self._session, cluster_name(self._session, self._client))
        self._mirrors = Mirrors(self._session, self._client)
        self._writer = DecisionWriter(self._client, self._session, self._codec)

    def decide(self, decision: Decision) -> None:
        """Write a decision to the audit topic, and return when this auditor has read and applied it.

        For any thread, while `run` runs. Raise Undecided if it is not applied within DECIDE_S.
        """
        written: Future[None] = Future()
        self._undecided.put((decision, written))
        until = time.monotonic() + DECIDE_S
        try:
            written.result(DECIDE_S)
        except TimeoutError:
            if written.cancel():
                why = self.trouble or "the auditor is busy with the audit topics"
                raise Undecided(f"the decision is not written and has no effect: {why}. Try again") from None
            raise Undecided(f"the brokers have not acknowledged the decision: {MAY_COME}") from None
        while time.monotonic() < until:
            with self._store.reading() as session:
                if session.get(DecisionRow, decision.id) is not None:
                    return
            time.sleep(_PAUSE_S / 2)
        raise Undecided(f"the decision is written but was not applied within {DECIDE_S:.0f} s: {MAY_COME}")

    def _write_decisions(self) -> None:
        """Write all waiting decisions at once: one that blocks for each would outlast the lease."""
        waiting = []
        while not self._undecided.empty():
            decision, written = self._undecided.get()
            if written.set_running_or_notify_cancel():
                waiting.append((decision, written))
        if not waiting:
            return
        try:
            assert self._writer is not None
            self._writer.write([decision for decision, _ in waiting])
        except Undecided as error:
            for _, written in waiting:
                written.set_exception(error)
        else:
            for _, written in waiting:
                written.set_result(None)

    def _write_due_decisions(self) -> None:
        """Write decisions about silent instances, and decisions that have no record or one that expires."""
        with self._store.reading() as session:
            decisions = due_decisions(session, self._options.clock_ms())
            decisions += accept_silent(session, self._options)
        try:
            if decisions and self._writer is not None:
                self._writer.write(decisions)
        except Undecided as error:
            logger.warning(
                "could not write %d decisions to %s: %s", len(decisions), OFFLINE_AUDIT_TOPIC, error
            )

    def run(self, stop: threading.Event) -> None:
        """Apply records until `stop` is set; log errors and try again. Call `check` first."""
        while not stop.is_set():
            try:
                if time.monotonic() >= self._renew_due:
                    if self._store.renew():  # another process may have applied these records
                        self._readings.clear()
                        self._is_stale = True
                    self._renew_due = time.monotonic() + RENEW_S
                    if self.is_standby:
                        logger.info("this auditor writes to the database from now on")
                        self.is_standby = False
                self._write_decisions()
                began = self._options.clock_ms()
                news = self.apply_all()
                self.trouble, self.applied_at = None, began
                stop.wait(0 if news else _PAUSE_S)
            except LeaseHeld as held:
                self._stand_by(str(held))
                stop.wait(_RETRY_S)
            except (MillraceError, SQLAlchemyError) as error:
                self.trouble = " ".join(str(error).split())
                logger.warning("%s; trying again", self.trouble)
                self._readings.clear()  # batches that are not applied are fetched again
                stop.wait(_RETRY_S)

    def _stand_by(self, why: str) -> None:
        """Drop everything read from the database, since another process writes to it."""
        if not self.is_standby:
            logger.warning("%s", why)
        self.is_standby, self.trouble, self.applied_at = True, why, None
        self._readings.clear()
        self._is_stale, self._renew_due = True, 0.0

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._client.close()
        self._registry.close()
        if self._session is not None:
            self._session.close()

    def apply_all(self) -> bool:
        """Apply all records up to the high watermarks, then judge; return True if there were new records."""
        news = False
        topics = self._client.topics(_TAKES)
        unapplied = 0
        for name in _TAKES:
            if name in topics:
                new, left = self._apply_topic(name, topics[name].topic_id.hex)
                news |= new
                unapplied += left
        self.numbers.unapplied = unapplied
        # Judge only now: with half of the records applied, a window could look final and not be.
        now = time.monotonic()
        self._is_stale |= news
        if now >= self._settle_due and (self._is_stale or now >= self._settle_due + _SETTLE_S):
            self._judging.turn(_TURN_S)
            self._is_stale = self._judging.is_behind
            took = time.monotonic() - now
            self._settle_due = now + min(5 * took, _SETTLE_S)  # less than half of a core at the most
        if now >= self._tidy_due:
            with self._store.writing() as session:
                more = expire(session, self._options)
            self._tidy_due = now if more else now + _TIDY_S
            self._write_due_decisions()
        return news

    def _apply_topic(self, topic: str, topic_id: str) -> tuple[bool, int]:
        ends = self._client.list_offsets(topic, LATEST)
        readings = self._readings_of(topic, topic_id)
        shorter = {p: ends[p] for p, r in readings.items() if r.fetch_at > ends.get(p, r.fetch_at)}
        for partition in self._fetch(topic, shorter, readings):
            raise MillraceError(
                f"{topic}-{partition} ends at {ends[partition]}, but was applied up to"
                f" {readings[partition].fetch_at}: its log was lost"
            )
        news = False
        while behind := {p: r.fetch_at for p, r in readings.items() if r.fetch_at < ends.get(p, 0)}:
            for partition, part in self._fetch(topic, behind, readings).items():
                readings[partition].take(part)
            news |= self._apply(readings)
            if all(p not in readings or readings[p].fetch_at == at for p, at in behind.items()):
                break
        if topic == AUDIT_TOPIC:
            for reading in readings.values():
                self._hear_newest(reading)
            news |= self._apply(readings)
        return news, sum(max(ends.get(p, 0) - r.apply_to, 0) for p, r in readings.items())

    def _fetch(
        self, topic: str, offsets: Mapping[int, int], readings: dict[int, _Reading]
    ) -> dict[int, FetchedPartition]:
        """Fetch records from the given offsets; remove partitions whose log was cut back from `readings`."""
        if not offsets:
            return {}
        epochs = {p: readings[p].epochs.get(readings[p].fetch_at, -1) for p in offsets}
        limits = {"max_bytes": FETCH_BYTES, "max_wait_ms": _FETCH_WAIT_MS}
        fetched = self._client.fetch(topic, offsets, **limits, last_epochs=epochs)
        for partition, part in list(fetched.items()):
            if part.parting is not None:
                self._go_back(readings.pop(partition), epochs[partition], part.parting)
                del fetched[partition]
        return fetched

    def _go_back(self, reading: _Reading, epoch: int, parting: Parting) -> None:
        """Read on where a log was cut back. Repeated records count once; lost records stay unknown."""
        place, offset = reading.place, reading.fetch_at
        logger.error("%s", log_was_cut(f"{reading.topic}-{reading.partition}", offset, epoch, parting))
        with self._store.writing() as session:
            row = session.get_one(AuditPosition, (reading.topic_id, reading.partition))
            cut_by = max(row.next_offset - parting.end, 0)
            ledger.lose(session, place, row.next_offset - cut_by, row.next_offset)
            row.next_offset, row.shift, row.epoch = row.next_offset - cut_by, row.shift + cut_by, -1
        del self._readings[reading.topic_id, reading.partition]
        self._is_stale = True

    def _hear_newest(self, reading: _Reading) -> None:
        """Release held batches up to the mirror's position, as the partition's leader reports it.

        The log shows a position only after the next append. Without held batches, the leader is asked now and
        then: a position also moves without new messages.
        """
        now = time.monotonic()
        if reading.origin is None or self._mirrors is None or not (reading.held or now >= reading.ask_at):
            return
        reading.ask_at = now + _SETTLE_S
        where = (reading.topic, reading.topic_id, reading.partition)
        position, through = self._mirrors.position(*where, reading.origin, reading.fetch_at)
        if position is None or not reading.apply_to <= through <= reading.fetch_at:
            return  # the rest is not fetched yet
        if self._mirrors.in_kafka and reading.apply_to == 0 and position.start:
            reading.lost.append((0, position.start, FOR_EVER))  # Kafka has no position batch for the start
        if position.reset_at < through:  # else the loss at the reset is applied first
            reading.release(position.cursor.next_offset, through)

    def _readings_of(self, topic: str, topic_id: str) -> dict[int, _Reading]:
        """Return partition -> reading, from the position in the database or the earliest offset."""
        earliest = self._client.list_offsets(topic, EARLIEST)
        readings = {}
        for partition, start in earliest.items():
            reading = self._readings.get((topic_id, partition))
            if reading is None or reading.apply_to < start:
                origin = None
                if topic != OFFLINE_AUDIT_TOPIC and self._mirrors is not None:
                    origin = self._mirrors.origin(topic, topic_id, partition)
                with self._store.writing() as session:
                    row = session.get(AuditPosition, (topic_id, partition))
                    if row is None:
                        row = AuditPosition(topic_id=topic_id, partition=partition)
                        session.add(row)
                    if row.next_offset < start and self._is_all_applied(
                        session, topic, topic_id, partition, origin
                    ):
                        row.next_offset = start  # only a position batch has expired
                    if row.next_offset < start:
                        expired = (topic, partition, row.next_offset, start)
                        logger.error("%s-%d: offsets %d to %d expired before they were applied", *expired)
                        place = _Reading(topic, topic_id, partition, start, origin).place
                        ledger.lose(session, place, row.next_offset, start)
                        row.next_offset = start
                    at = row.next_offset
                    reading = _Reading(topic, topic_id, partition, at, origin, apply_to=at, shift=row.shift)
                    reading.epochs[at] = row.epoch
                self._readings[topic_id, partition] = reading
            readings[partition] = reading
        return readings

    def _is_all_applied(
        self, session: Session, topic: str, topic_id: str, partition: int, origin: Origin | None
    ) -> bool:
        """True if all that the mirror has copied from its origin is applied."""
        if topic != AUDIT_TOPIC or origin is None or self._mirrors is None:
            return False
        position, _ = self._mirrors.position(topic, topic_id, partition, origin, 0)
        tier = session.get(TierRow, origin.cluster)
        applied_through = 0 if tier is None else tier.applied_through
        return position is not None and position.cursor.next_offset <= applied_through

    def _apply(self, readings: Mapping[int, _Reading]) -> bool:
        """Apply ready records, one part per transaction; return True if there were any."""
        fetch = next(self._fetches)
        news = False
        for reading in readings.values():
            if reading.applied == (reading.apply_to, reading.applied_through):
                continue
            place = reading.place
            for part in self._parts(reading, fetch):  # services are asked outside of the transactions
                news |= bool(part.entries)
                with self._store.writing() as session:
                    ledger.apply(session, place, part.entries, self._options.clock_ms(), goes_on=part.goes_on)
                    row = session.get_one(AuditPosition, (reading.topic_id, reading.partition))
                    if part.lost is not None:
                        ledger.note_reports_lost(session, place, *part.lost)
                    if part.lost is None and not part.goes_on:
                        ledger.note_applied(session, place, reading.applied_through)
                        row.next_offset = reading.apply_to
                        row.epoch = reading.epochs.get(reading.apply_to, -1)
                    elif part.entries:
                        row.next_offset, row.epoch = part.entries[-1].offset + 1, -1
            reading.applied = (reading.apply_to, reading.applied_through)
            reading.ready.clear()
            reading.lost.clear()
        return news

    def _parts(self, reading: _Reading, fetch: int) -> Iterator[_Part]:
        """Yield ready records in parts of a bounded size; the last part neither goes on nor has a loss."""
        lost, place = deque(reading.lost), reading.place
        entries: list[Entry] = []
        size = 0
        for number, (waiting, at) in enumerate(reading.ready):
            while lost and lost[0][0] == number:
                yield _Part(entries, lost.popleft()[1:])
                entries, size = [], 0
            for message in messages_of(waiting.header, waiting.batch):
                if message.offset < waiting.first:
                    continue
                if size > PART_BYTES:
                    yield _Part(entries, goes_on=True)
                    entries, size = [], 0
                entries.append(self._entry(place, fetch, message, at))
                size += len(message.value)
        while lost:
            yield _Part(entries, lost.popleft()[1:])
            entries = []
        yield _Part(entries)

    def _entry(self, place: Place, fetch: int, message: AuditMessage, at: int) -> Entry:
        key, value, offset = message
        kind = self._codec.kind(value, fetch)
        turn = None
        tier = WAREHOUSE if kind in OF_THE_WAREHOUSE else AUDITOR if kind is Decision else place.tier
        if kind in SIGNED and self._book is not None:
            turn = self._book.signed(tier, key, value, fetch)
            if turn is None and kind is Heartbeat and tier == OFFLINE:
                tier = WAREHOUSE
                turn = self._book.signed(tier, key, value, fetch)
        # Decode only records that count: an attacker writes records more cheaply than the auditor reads them.
        may_count = turn is not None if kind in SIGNED else len(value) <= MOST_SAID_BYTES
        counts = kind in place.takes and may_count
        record = self._codec.decode(value) if counts else None
        if isinstance(record, Heartbeat) and WAREHOUSE in (tier, record.tier) and record.tier != tier:
            turn = None  # a signature for one of the two tiers does not hold for the other
        return Entry(record, offset, value, at, turn, kind)
