"""The auditor's database: applied records and positions of the audit topics, committed together.

Rows only; `ledger` writes them, and `rules` judges. SQLite by default, or PostgreSQL. Times are ms since the
epoch; offsets are those of the named log.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Protocol, TypeVar

from sqlalchemy import (
    JSON,
    BigInteger,
    Connection,
    Engine,
    Index,
    Integer,
    String,
    Text,
    insert,
    inspect,
    select,
)
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, Session, mapped_column

from millrace.errors import MillraceError
from millrace.service.database import BEGIN, open_database, reason_of
from millrace_audit.auditor.migrations import migrate
from millrace_audit.reports.messages import FOR_EVER, NOTHING

logger = logging.getLogger("millrace.audit.auditor")

Ranges = list[list[int]]
Vector = dict[str, list[Any]]
TopicName = Annotated[str, mapped_column(String(249))]
TopicKey = Annotated[str, mapped_column(String(249), primary_key=True)]
TopicIdKey = Annotated[str, mapped_column(String(32), primary_key=True)]
TierName = Annotated[str, mapped_column(String(255))]
TierKey = Annotated[str, mapped_column(String(255), primary_key=True)]
NumberKey = Annotated[int, mapped_column(primary_key=True, autoincrement=False)]
CountedKey = Annotated[
    int, mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True)
]
LongText = Annotated[str, mapped_column(Text)]
T = TypeVar("T")
_IN_ONE_QUERY = 500
_TAKE_OVER_S = 35.0
"""Longest wait for the lease of a database whose tables must change. An abandoned lease expires earlier."""
ABANDONED_S = 60
"""Time after which PostgreSQL ends a transaction in which nothing happens."""


def slices(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield the values in portions that fit into one query."""
    for index in range(0, len(values), _IN_ONE_QUERY):
        yield values[index : index + _IN_ONE_QUERY]


class Row(MappedAsDataclass, DeclarativeBase, kw_only=True, eq=False, repr=False):
    """Base of the auditor's tables."""

    type_annotation_map = {int: BigInteger, Ranges: JSON, Vector: JSON}  # noqa: RUF012  # SQLAlchemy's own way


class LeaseRow(Row):
    """The process that may write; one row, managed by `Lease`."""

    __tablename__ = "lease"
    name: Mapped[str] = mapped_column(String(16), primary_key=True)
    token: Mapped[str] = mapped_column(String(32))
    """Random token of the holder."""
    host: Mapped[TierName]
    process: Mapped[TierName]
    """Boot, number and start of the process, which no later process on the host shares."""
    renewals: Mapped[int] = mapped_column(default=0)


class AuditPosition(Row):
    """Position up to which a partition of an audit topic is applied; committed with the other rows."""

    __tablename__ = "audit_positions"
    topic_id: Mapped[TopicIdKey]
    partition: Mapped[NumberKey]
    next_offset: Mapped[int] = mapped_column(default=0)
    epoch: Mapped[int] = mapped_column(default=-1)
    """Leader epoch of the batch before `next_offset`; -1 if not known."""
    shift: Mapped[int] = mapped_column(default=0)
    """Number added to offsets to keep their order: length by which the log was cut back after applying."""


class ProducerRow(Row):
    """A producer instance at one origin, by the names that it gives, with the state of its reports."""

    __tablename__ = "producers"
    __table_args__ = (Index("producer_names", "origin", "instance", "names", unique=True),)
    producer: Mapped[CountedKey] = mapped_column(init=False)
    origin: Mapped[TierName]
    """Cluster that the producer sends to; empty for rows in loads, which know no cluster."""
    instance: Mapped[int]
    names: Mapped[str] = mapped_column(String(32))
    """Hash of server and service, because an index limits the length of texts."""
    server: Mapped[LongText]
    service: Mapped[LongText]
    announced: Mapped[bool] = mapped_column(default=False, index=True)
    hello_at: Mapped[int] = mapped_column(default=NOTHING)
    """Offset in its cluster's audit topic after its hello."""
    first_at: Mapped[int] = mapped_column(default=NOTHING)
    """Time of its first hello or report."""
    heard_at: Mapped[int] = mapped_column(default=NOTHING)
    """Time of its newest hello or report."""
    closed_through: Mapped[int] = mapped_column(default=NOTHING)
    first_report: Mapped[int] = mapped_column(default=0)
    """Number of its first report that had an effect."""
    next_report: Mapped[int] = mapped_column(default=0)
    seal: Mapped[bytes | None] = mapped_column(default=None)
    last_report: Mapped[bytes | None] = mapped_column(default=None)
    """Hash of its newest report, to recognize a repeat."""
    missing: Mapped[Ranges] = mapped_column(default_factory=list)
    """[first, last] numbers of missing reports before a report that may be genuine."""
    counted: Mapped[bool] = mapped_column(default=False)
    """True if an event of the producer was counted in its own cluster."""
    awaited_from: Mapped[int] = mapped_column(default=NOTHING)
    """Time of its cluster's first checkpoint after its hello."""
    held_open: Mapped[int] = mapped_column(default=0)
    """Number of windows that it holds open, which are its rows in `held_open`."""
    done: Mapped[bool] = mapped_column(default=False)
    """True if it has ended and no report is missing."""
    first_window: Mapped[int] = mapped_column(default=FOR_EVER)
    last_window: Mapped[int] = mapped_column(default=NOTHING, index=True)
    """Only windows from `first_window` to `last_window` can have its events or reports."""

    def extend_to(self, window: int) -> None:
        """Extend the producer's windows to `window`."""
        self.first_window = min(self.first_window, window)
        self.last_window = max(self.last_window, window)


class ProducerTopicRow(Row):
    """A topic of which an instance has announced events."""

    __tablename__ = "producer_topics"
    topic: Mapped[TopicKey]
    producer: Mapped[NumberKey]


class HeldOpenRow(Row):
    """A window that an instance has reported and not closed."""

    __tablename__ = "held_open"
    producer: Mapped[NumberKey]
    window: Mapped[NumberKey]
    topic: Mapped[TopicKey]


class LostReportsRow(Row):
    """Lost reports of a cluster's producers, between two offsets of its audit topic.

    For every topic: the reports expired before they were applied. For one topic: too many instances were
    open, until an operator accepts some. Events of the times [since, until) are not known in full.
    """

    __tablename__ = "lost_reports"
    origin: Mapped[TierKey]
    topic: Mapped[TopicKey]
    """Empty for every topic."""
    at: Mapped[NumberKey]
    """Offset after the last report before the gap."""
    to: Mapped[int | None] = mapped_column(default=None)
    """Offset after which reports are applied again; None until the first."""
    since: Mapped[int | None] = mapped_column(default=None)
    """Time of the cluster's newest checkpoint before `at`; None until a later checkpoint is known."""
    until: Mapped[int] = mapped_column(default=FOR_EVER)
    """Time of the first checkpoint after `to`; FOR_EVER until there is one."""


class TopicRow(Row):
    """A topic that a producer or a reader has named."""

    __tablename__ = "topics"
    topic: Mapped[TopicKey]
    final_through: Mapped[int] = mapped_column(default=NOTHING)
    """Time before which all windows were final once, even windows without a row."""
    kept_from: Mapped[int] = mapped_column(default=NOTHING)
    """Time before which windows have expired from the database."""
    unkeyed_from: Mapped[int] = mapped_column(default=NOTHING)
    """Time from which on loads have reported all rows without a header."""


class WindowRow(Row):
    """A window with events: its evidence, its verdict, and its revision."""

    __tablename__ = "windows"
    __table_args__ = (
        Index("open_by_time", "is_final", "topic", "window"),
        # The console's map reads nothing else of a window.
        Index("verdicts", "verdict", "topic", "window"),
        Index("hours", "topic", "window", "verdict", "is_changed", "events"),
    )
    topic: Mapped[TopicKey]
    window: Mapped[NumberKey]
    revision: Mapped[int] = mapped_column(default=0)
    verdict: Mapped[str] = mapped_column(String(16), default="pending")
    events: Mapped[int] = mapped_column(default=0)
    """Number of events when it was judged: acknowledged ones, and those that no producer reported."""
    is_final: Mapped[bool] = mapped_column(default=False)
    """True if the verdict is final: nothing more is awaited."""
    last_final: Mapped[str | None] = mapped_column(String(16), default=None)
    """The last verdict that was final."""
    is_changed: Mapped[bool] = mapped_column(default=True)
    """True if the evidence or another fact has changed since the verdict, which is then not final."""
    facts_digest: Mapped[str] = mapped_column(String(32), default="")
    """Digest of the facts, beside the evidence, from which the verdict follows."""
    changed_at: Mapped[int] = mapped_column(default=NOTHING)
    """Time of the last change of the evidence, by the auditor's clock."""
    folded: Mapped[bool] = mapped_column(default=False)
    positions: Mapped[dict[str, dict[str, int]]] = mapped_column(JSON, default_factory=dict)
    """`reported`: origin -> offset in its audit topic after the last report on the window; `counted`: tier ->
    log position of the last count of the window; `origins`: origins of its events."""
    evidence: Mapped[bytes] = mapped_column(default=b"")
    """An `Evidence`, packed."""
    judged: Mapped[dict[str, Any] | None] = mapped_column(JSON, default=None)
    """JSON of the window in answers."""


class TierRow(Row):
    """A tier that readers count."""

    __tablename__ = "tiers"
    tier: Mapped[TierKey]
    turn: Mapped[int] = mapped_column(default=-1)
    """Newest turn; records of older turns are rejected."""
    heartbeat_turn: Mapped[int] = mapped_column(default=-1)
    """The turn of the newest heartbeat."""
    heartbeat_number: Mapped[int] = mapped_column(default=0)
    """Number of the newest heartbeat in its turn."""
    numbered_turn: Mapped[int] = mapped_column(default=-1)
    """Newest turn of the warehouse's reader whose numbers have no holes; the version before left holes."""
    heartbeat: Mapped[int] = mapped_column(default=NOTHING)
    kept: Mapped[int] = mapped_column(default=NOTHING)
    """Time of the newest heartbeat that is kept as a checkpoint."""
    changed_topics: Mapped[list[str]] = mapped_column(JSON, default_factory=list)
    """Topics with new counts since that checkpoint."""
    applied_through: Mapped[int] = mapped_column(default=0)
    """Offset in the cluster's audit topic before which all reports are applied."""


class CheckpointRow(Row):
    """Checkpoint: a heartbeat that is kept. All events visible at its time were counted before it."""

    __tablename__ = "checkpoints"
    tier: Mapped[TierKey]
    serial: Mapped[NumberKey]
    """Log position of the heartbeat, which orders a tier's records."""
    time: Mapped[int]
    reported_through: Mapped[int | None]


class EndsRow(Row):
    """Positions of a topic's partitions at a checkpoint, valid until the topic's next row.

    Partition -> [end] or, where it is a mirror, [end, origin cluster, origin partition, origin end].
    """

    __tablename__ = "partition_ends"
    tier: Mapped[TierKey]
    topic: Mapped[TopicKey]
    serial: Mapped[NumberKey]
    ends: Mapped[Vector]


class CoverageRow(Row):
    """Position up to which a partition is counted at a tier, or loaded for tier `warehouse`."""

    __tablename__ = "coverage"
    tier: Mapped[TierKey]
    topic_id: Mapped[TopicIdKey]
    partition: Mapped[NumberKey]
    topic: Mapped[TopicName]
    end: Mapped[int]
    counted_since: Mapped[int] = mapped_column(default=NOTHING)
    """Log position of the record that named the partition first."""
    counted: Mapped[bool] = mapped_column(default=False)
    """True if the partition had something to count."""
    gone: Mapped[bool] = mapped_column(default=False)
    """True if the partition is deleted."""
    origin: Mapped[list[Any] | None] = mapped_column(JSON(none_as_null=True), default=None)
    """Origin of a mirrored partition: [cluster, topic id-partition, next offset]."""
    unplaced: Mapped[int] = mapped_column(default=FOR_EVER)
    """Log position of the first count with copies that may be after that next offset, or FOR_EVER."""


class UncountedRow(Row):
    """Offsets [start, end) of a partition that will never be counted.

    Without a topic, the partition is that of the tier's counts: counts themselves were lost.
    """

    __tablename__ = "uncounted"
    tier: Mapped[TierKey]
    topic_id: Mapped[TopicIdKey]
    partition: Mapped[NumberKey]
    start: Mapped[NumberKey]
    end: Mapped[int]
    topic: Mapped[TopicName] = mapped_column(index=True)
    since: Mapped[int]
    """Time of the last heartbeat before the gap."""
    serial: Mapped[int]
    """Log position of the record that named the gap."""
    until: Mapped[int] = mapped_column(default=FOR_EVER)
    """Time of the first heartbeat after the gap; FOR_EVER until there is one."""
    noted: Mapped[int] = mapped_column(default=NOTHING)
    """Time of the count that named the gap. Heartbeats follow it with an earlier time if a reader is slow."""
    recounted_after: Mapped[int] = mapped_column(default=FOR_EVER)
    """Log position after which the offsets of a cut log are counted again; FOR_EVER if never."""


class UnreadableRow(Row):
    """A partition that a reader cannot read any further, according to its newest heartbeat."""

    __tablename__ = "unreadable"
    tier: Mapped[TierKey]
    topic_id: Mapped[TopicIdKey]
    partition: Mapped[NumberKey]
    topic: Mapped[TopicName]
    offset: Mapped[int]
    cause: Mapped[LongText]
    since: Mapped[int]
    """Time of the last heartbeat before the failure."""
    serial: Mapped[int]
    """Log position of the heartbeat that named the failure first."""


class LoadRow(Row):
    """An edition of a load, and the number of its parts that are counted."""

    __tablename__ = "loads"
    topic: Mapped[TopicKey]
    load: Mapped[NumberKey]
    edition: Mapped[NumberKey]
    counted: Mapped[int]
    parts: Mapped[int]
    sha256: Mapped[str] = mapped_column(String(64))
    """Hash of the load's manifest."""
    whole: Mapped[bool] = mapped_column(default=True)
    """True if all parts reported hours and rows without a header. The version before reported neither."""
    recounted_parts: Mapped[int] = mapped_column(default=0)
    """Number of parts of an edition that is not whole which were reported again with them."""


class LoadPartRow(Row):
    """A part of a load as it was reported: to take it out again, or to count it later."""

    __tablename__ = "load_part"
    topic: Mapped[TopicKey]
    load: Mapped[NumberKey]
    edition: Mapped[NumberKey]
    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    part: Mapped[NumberKey]
    waits: Mapped[bool]
    """True while the part is not counted: the topic has lost loads, and it may be in the place of one."""
    applied_at: Mapped[int]
    """Time at which the part was applied, by the auditor's clock."""
    serial: Mapped[int]
    record: Mapped[bytes]
    """The record, packed."""


class LoadHourRow(Row):
    """Number of rows of a load's edition in one hour; the newest edition counts."""

    __tablename__ = "load_hour"
    __table_args__ = (Index("hours_of_load", "topic", "load"),)
    topic: Mapped[TopicKey]
    hour: Mapped[NumberKey]
    """NOTHING for rows in no hour."""
    load: Mapped[NumberKey]
    edition: Mapped[NumberKey]
    rows: Mapped[int]
    rejected: Mapped[int] = mapped_column(default=0)
    erased: Mapped[int] = mapped_column(default=0)
    """Rows without a header that were erased."""
    uncounted: Mapped[int] = mapped_column(default=0)
    """Rows without a header whose files were deleted before they were counted."""


class RejectedRow(Row):
    """Messages that a load's newest edition set aside, in a window or somewhere up to the window `last`."""

    __tablename__ = "rejected"
    __table_args__ = (
        Index("rejected_of_window", "topic", "window"),
        Index("rejected_spans", "is_span", "topic"),
    )
    topic: Mapped[TopicKey]
    load: Mapped[NumberKey]
    edition: Mapped[NumberKey]
    window: Mapped[NumberKey]
    last: Mapped[NumberKey]
    is_span: Mapped[bool]
    """True if the messages may be in any window from `window` to `last`."""
    messages: Mapped[int]
    keyed: Mapped[int]
    """Messages among them that have an audit header."""
    reason: Mapped[LongText]


class WarehouseStateRow(Row):
    """State of a topic as the warehouse's reader saw it last."""

    __tablename__ = "warehouse_state"
    topic: Mapped[TopicKey]
    newest_load: Mapped[int] = mapped_column(default=0)
    sha256: Mapped[str] = mapped_column(String(64), default="")
    editions_sha256: Mapped[str] = mapped_column(String(64), default="")
    """Empty when that is not known."""
    table_trouble: Mapped[LongText] = mapped_column(default="")
    table_gone_since: Mapped[int] = mapped_column(default=FOR_EVER)
    """Time at which the table was first missing or unreadable; FOR_EVER while it can be read."""
    is_table_doubted: Mapped[bool] = mapped_column(default=False)
    """True once the table was gone for so long that published hours were judged again without it."""
    lost_from: Mapped[int] = mapped_column(default=FOR_EVER)
    """The first counted load that is gone from the warehouse or differs there; FOR_EVER for none."""
    other_editions: Mapped[list[int]] = mapped_column(JSON, default_factory=list)
    """The first loads whose counted edition differs from the warehouse's."""
    live_through: Mapped[int | None] = mapped_column(default=None)
    """As in the record `WarehouseState`."""


class DecisionRow(Row):
    """An operator's decision, as in the record `Decision`."""

    __tablename__ = "decision"
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16))
    time: Mapped[int]
    written: Mapped[int]
    """Time at which its newest record was written; NOTHING if none was."""
    applied: Mapped[int]
    """Time at which it was applied, by the auditor's clock."""
    who: Mapped[LongText]
    reason: Mapped[LongText]
    instance: Mapped[int | None] = mapped_column(index=True)
    service: Mapped[LongText | None] = mapped_column(index=True)
    server: Mapped[LongText | None]
    before: Mapped[int]
    topic: Mapped[TopicName | None] = mapped_column(index=True)
    load: Mapped[int]
    edition: Mapped[int]
    sha256: Mapped[str] = mapped_column(String(64))


class ChangedRow(Row):
    """An hour in which the final verdict of a window may have changed, numbered in the order of changes."""

    __tablename__ = "changed"
    topic: Mapped[TopicKey]
    hour: Mapped[NumberKey]
    number: Mapped[int] = mapped_column(index=True)


class DatabaseRow(Row):
    """Name of this database: cursors of another database mean nothing here."""

    __tablename__ = "database"
    name: Mapped[str] = mapped_column(String(32), primary_key=True)


class IncidentRow(Row):
    """Cause that windows share, from the first window with the cause until no window has it any more."""

    __tablename__ = "incidents"
    number: Mapped[CountedKey] = mapped_column(init=False)
    key: Mapped[LongText] = mapped_column(unique=True)
    """Rule and key of the cause; see `incidents.key_of`."""
    rule: Mapped[str] = mapped_column(String(64))
    verdict: Mapped[str] = mapped_column(String(16))
    first_seen: Mapped[int]
    """Time of the first verdict with the cause since the incident was last resolved."""
    first_hour: Mapped[int]
    last_hour: Mapped[int]
    resolved: Mapped[int | None] = mapped_column(default=None)
    topics: Mapped[list[str]] = mapped_column(JSON, default_factory=list)
    services: Mapped[list[str]] = mapped_column(JSON, default_factory=list)
    servers: Mapped[list[str]] = mapped_column(JSON, default_factory=list)
    title: Mapped[LongText] = mapped_column(default="")
    """Reason of the newest window with the cause."""
    command: Mapped[LongText] = mapped_column(default="")
    acknowledged_by: Mapped[LongText] = mapped_column(default="")
    note: Mapped[LongText] = mapped_column(default="")


class IncidentWindowRow(Row):
    """A window that has the cause of an incident, with the cause's texts and number of events."""

    __tablename__ = "incident_windows"
    __table_args__ = (Index("windows_of_incident", "incident", "window"),)
    topic: Mapped[TopicKey]
    window: Mapped[NumberKey]
    incident: Mapped[NumberKey]
    title: Mapped[LongText]
    command: Mapped[LongText]
    events: Mapped[int] = mapped_column(default=0)
    """Number of events that are wrong by the cause; 0 if the cause names no events."""


class VerifiedRow(Row):
    """A finding of the newest `millrace verify` of a topic."""

    __tablename__ = "verified"
    topic: Mapped[TopicKey]
    number: Mapped[NumberKey]
    hour: Mapped[int | None]
    """Start of the hour that the finding concerns; None for the whole topic."""
    text: Mapped[LongText]


class RejectedRecordRow(Row):
    """Rejected records with one cause and one apparent writer."""

    __tablename__ = "rejected_records"
    place: Mapped[str] = mapped_column(String(300), primary_key=True)
    kind: Mapped[str] = mapped_column(String(32), primary_key=True)
    cause: Mapped[str] = mapped_column(String(200), primary_key=True)
    who: Mapped[str] = mapped_column(String(200), primary_key=True)
    count: Mapped[int]
    first: Mapped[int]
    last: Mapped[int]


class HistoryRow(Row):
    """A decision of an operator, a finding of `millrace verify`, or a change of a final verdict."""

    __tablename__ = "history"
    number: Mapped[CountedKey] = mapped_column(init=False)
    time: Mapped[int]
    topic: Mapped[TopicName | None] = mapped_column(index=True)
    window: Mapped[int | None]
    who: Mapped[LongText]
    what: Mapped[LongText]


class Holding(Protocol):
    """The right to write, of one process at a time."""

    def renew(self, session: Session) -> None:
        """Renew the right within a transaction that writes. Raise MillraceError if it is no longer held."""

    def take(self, session: Session) -> bool:
        """Renew or take the right; return True if taken. Raise MillraceError if another process has it."""

    def release(self, session: Session) -> None:
        """Release the right within a transaction."""


class DatabaseInUse(MillraceError):
    """The database of an older Millrace is in use, so its tables cannot be changed."""


class AuditStore:
    """The database, with the tables of the newest revision. Safe between threads of one process."""

    def __init__(self, url: str, lease: Holding | None = None) -> None:
        """Open the database. Raise MillraceError in one line if the URL or the database is unusable.

        With `lease`, which `renew` takes, every transaction that writes renews it first. Without a lease, no
        other process may use the database.
        """
        self._lease = lease
        self._commits = 0
        self._engine = open_database(url, self._prepare)
        self._write_lock = threading.Lock()

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """Open a session on one consistent state; its changes are discarded."""
        with Session(self._engine) as session:
            yield session

    def version(self, session: Session) -> tuple[Any, ...]:
        """Return a value that is another one after each transaction that writes, here or in the process that
        holds the lease.

        Call it before other reads of the session, whose state is then at least as new as the version.
        """
        commits = self._commits
        lease = session.execute(select(LeaseRow.token, LeaseRow.renewals)).first()
        return commits, *(lease or ())

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """Open a session; commit all its changes at the end, or none on an error.

        Raise MillraceError when this process does not hold the lease.
        """
        with self._immediate() as session:
            if self._lease is not None:
                self._lease.renew(session)
                session.flush()  # PostgreSQL fails here if another process was faster
            yield session

    def renew(self) -> bool:
        """Renew the lease, or take it if it is free. Raise MillraceError when another process holds it.

        Return True if it was taken: everything read from the database before may be stale.
        """
        with self._immediate() as session:
            return self._lease is not None and self._lease.take(session)

    @contextmanager
    def _immediate(self) -> Iterator[Session]:
        # One writer at a time: SQLite does not queue a reader that becomes a writer, but fails.
        with self._write_lock, Session(self._engine) as session, session.begin():
            connection = session.connection(execution_options={BEGIN: "BEGIN IMMEDIATE"})
            if connection.dialect.name == "postgresql":  # a stopped process must not keep rows locked
                limit = f"SET LOCAL idle_in_transaction_session_timeout = '{ABANDONED_S}s'"
                connection.exec_driver_sql(limit)
            yield session
        self._commits += 1

    def _prepare(self, engine: Engine) -> None:
        """Bring the tables to the newest revision and give the database its name, one process at a time."""
        options = {BEGIN: "BEGIN IMMEDIATE"}
        if engine.dialect.name == "postgresql":  # to see what the previous process committed
            options["isolation_level"] = "READ COMMITTED"
        give_up_at = time.monotonic() + _TAKE_OVER_S
        while True:
            try:
                with engine.connect().execution_options(**options) as connection, connection.begin():
                    if engine.dialect.name == "postgresql":
                        connection.exec_driver_sql(
                            "SELECT pg_advisory_xact_lock(hashtext('millrace auditor'))"
                        )
                    migrate(connection, Row.metadata, self._take_to_migrate)
                    if connection.scalar(select(DatabaseRow.name)) is None:
                        connection.execute(insert(DatabaseRow).values(name=secrets.token_hex(8)))
                return
            except DatabaseInUse as error:
                if time.monotonic() >= give_up_at:
                    raise MillraceError(str(error)) from None
                time.sleep(1)  # the lease of a process on another machine expires

    def _take_to_migrate(self, connection: Connection) -> None:
        """Take the lease of an older database in the transaction that changes its tables.

        Raise DatabaseInUse when another process has it.
        """
        if self._lease is None or LeaseRow.__tablename__ not in inspect(connection).get_table_names():
            return
        try:
            with Session(connection) as session, session.begin():
                self._lease.take(session)
        except MillraceError as error:
            raise DatabaseInUse(
                f"{error}. The tables are of an older Millrace and must change: stop the other process, then"
                " start this one"
            ) from error

    def close(self) -> None:
        """Release the lease if it is held, and close all connections."""
        try:
            if self._lease is not None:
                with self._immediate() as session:
                    self._lease.release(session)
        except SQLAlchemyError as error:  # another process then waits until it expires
            logger.warning("the lease of the database is not given up: %s", reason_of(error))
        finally:
            self._engine.dispose()
