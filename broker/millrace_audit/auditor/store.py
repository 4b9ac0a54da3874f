"""The auditor's database: what was read from the audit topics, and how far, in one transaction.

Rows only; what they mean is decided in `ledger` and `verdict`. SQLite by default, or PostgreSQL. Times are ms
since the epoch; offsets are those of the log that is named.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Protocol, TypeVar

from sqlalchemy import JSON, BigInteger, Engine, Index, Integer, String, Text, insert, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, Session, mapped_column

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
ABANDONED_S = 60
"""Time after which PostgreSQL ends a transaction in which nothing happens."""


def slices(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """The values in portions that one query may name."""
    for index in range(0, len(values), _IN_ONE_QUERY):
        yield values[index : index + _IN_ONE_QUERY]


class Row(MappedAsDataclass, DeclarativeBase, kw_only=True, eq=False, repr=False):
    """Every table of the auditor."""

    type_annotation_map = {int: BigInteger, Ranges: JSON, Vector: JSON}  # noqa: RUF012  # SQLAlchemy's own way


class LeaseRow(Row):
    """The process that writes; one row. `Lease` decides which process that is."""

    __tablename__ = "lease"
    name: Mapped[str] = mapped_column(String(16), primary_key=True)
    token: Mapped[str] = mapped_column(String(32))
    """Drawn by the holder."""
    host: Mapped[TierName]
    process: Mapped[TierName]
    """Boot, number and start of the process: no later one on the host has the same."""
    renewals: Mapped[int] = mapped_column(default=0)


class AuditPosition(Row):
    """How far a partition of an audit topic is applied: exactly as far as all the other rows say."""

    __tablename__ = "audit_positions"
    topic_id: Mapped[TopicIdKey]
    partition: Mapped[NumberKey]
    next_offset: Mapped[int] = mapped_column(default=0)
    epoch: Mapped[int] = mapped_column(default=-1)
    """Leader epoch of the batch before `next_offset`; -1: not known."""
    shift: Mapped[int] = mapped_column(default=0)
    """Number added to offsets to keep their order: the log was cut back by so much after it was applied."""


class ProducerRow(Row):
    """Who sent messages of a cluster: as they name themselves, and what of it a hello has announced."""

    __tablename__ = "producers"
    __table_args__ = (Index("producer_names", "origin", "instance", "names", unique=True),)
    producer: Mapped[CountedKey] = mapped_column(init=False)
    origin: Mapped[TierName]
    """The cluster that it produces to; empty for what a load counts, which knows no cluster."""
    instance: Mapped[int]
    names: Mapped[str] = mapped_column(String(32))
    """A hash of server and service: an index takes no text of any length."""
    server: Mapped[LongText]
    service: Mapped[LongText]
    announced: Mapped[bool] = mapped_column(default=False, index=True)
    hello_at: Mapped[int] = mapped_column(default=NOTHING)
    """An offset of its cluster's audit topic behind its hello."""
    heard_at: Mapped[int] = mapped_column(default=NOTHING)
    """When its newest hello or report was written."""
    closed_through: Mapped[int] = mapped_column(default=NOTHING)
    first_report: Mapped[int] = mapped_column(default=0)
    """Number of its first one that had an effect."""
    next_report: Mapped[int] = mapped_column(default=0)
    seal: Mapped[bytes | None] = mapped_column(default=None)
    last_report: Mapped[bytes | None] = mapped_column(default=None)
    """Hash of its newest report: the same one again is a repeat."""
    missing: Mapped[Ranges] = mapped_column(default_factory=list)
    """[first, last] numbers of the reports that are missing before what may be its next one."""
    counted: Mapped[bool] = mapped_column(default=False)
    """An event of it was counted in its own cluster."""
    awaited_from: Mapped[int] = mapped_column(default=NOTHING)
    """Its cluster's heartbeat time when the hello was surely there."""
    held_open: Mapped[int] = mapped_column(default=0)
    """Number of windows that it holds open: of its rows in `held_open`."""
    done: Mapped[bool] = mapped_column(default=False)
    """It has closed for ever and no report is missing: nothing of it is awaited."""
    accepted: Mapped[LongText | None] = mapped_column(default=None)
    disowned: Mapped[bool] = mapped_column(default=False)
    """An operator has accepted it as nobody: what it says counts for nothing, and it is done."""
    first_window: Mapped[int] = mapped_column(default=FOR_EVER)
    last_window: Mapped[int] = mapped_column(default=NOTHING, index=True)
    """No window before the first one or behind the last one holds anything of it."""

    def be_in(self, window: int) -> None:
        """Note that there is something of it in that window."""
        self.first_window = min(self.first_window, window)
        self.last_window = max(self.last_window, window)


class ProducerTopicRow(Row):
    """An instance has announced events of a topic."""

    __tablename__ = "producer_topics"
    topic: Mapped[TopicKey]
    producer: Mapped[NumberKey]


class HeldOpenRow(Row):
    """A window that an instance has reported and not closed."""

    __tablename__ = "held_open"
    producer: Mapped[NumberKey]
    window: Mapped[NumberKey]
    topic: Mapped[TopicKey]


class UnheardRow(Row):
    """What producers of a cluster said between two offsets of its audit topic had no effect.

    Of every topic: it had expired before it was applied. Of one topic: more instances said hello than may be
    open, until an operator accepts some. What was sent in event times [since, until) is not known in full.
    """

    __tablename__ = "unheard"
    origin: Mapped[TierKey]
    topic: Mapped[TopicKey]
    """Empty for every topic."""
    at: Mapped[NumberKey]
    """All before it had its effect."""
    to: Mapped[int | None] = mapped_column(default=None)
    """All behind it has; None until something is heard again."""
    since: Mapped[int | None] = mapped_column(default=None)
    """Time of the cluster's newest heartbeat that was written before `at`; None until the next is known."""
    until: Mapped[int] = mapped_column(default=FOR_EVER)
    """That of the first one behind `to`; for ever until there is one."""


class TopicRow(Row):
    """A topic that a producer or a reader has spoken of."""

    __tablename__ = "topics"
    topic: Mapped[TopicKey]
    final_through: Mapped[int] = mapped_column(default=NOTHING)
    """Windows before this were final once, even those without a row."""
    kept_from: Mapped[int] = mapped_column(default=NOTHING)
    """Windows before this have expired from the database."""
    unkeyed_from: Mapped[int] = mapped_column(default=NOTHING)
    """Windows from here on are in loads that reported rows without a header, too."""


class WindowRow(Row):
    """A window with events: its evidence, the verdict, and how often that changed after it was final."""

    __tablename__ = "windows"
    __table_args__ = (
        Index("open_by_time", "settled", "topic", "window"),
        Index("verdicts", "verdict", "topic"),
        Index("hours", "topic", "window", "verdict", "dirty"),  # the console reads nothing else of a window
    )
    topic: Mapped[TopicKey]
    window: Mapped[NumberKey]
    revision: Mapped[int] = mapped_column(default=0)
    verdict: Mapped[str] = mapped_column(String(16), default="pending")
    settled: Mapped[bool] = mapped_column(default=False)
    """The verdict is final: nothing more is awaited."""
    last_settled: Mapped[str | None] = mapped_column(String(16), default=None)
    """The last verdict that was final."""
    dirty: Mapped[bool] = mapped_column(default=True)
    """The evidence has changed since the verdict."""
    signature: Mapped[str] = mapped_column(String(32), default="")
    """Of everything beside the evidence that the verdict rests on."""
    touched: Mapped[int] = mapped_column(default=NOTHING)
    """When the evidence was last changed, by the auditor's clock."""
    folded: Mapped[bool] = mapped_column(default=False)
    positions: Mapped[dict[str, dict[str, int]]] = mapped_column(JSON, default_factory=dict)
    """`reported`: origin -> an offset of its audit topic behind the last report on the window; `counted`:
    tier -> serial of the last count of it; `origins`: those that its events come from."""
    evidence: Mapped[bytes] = mapped_column(default=b"")
    """An `Evidence`, packed."""
    judged: Mapped[dict[str, Any] | None] = mapped_column(JSON, default=None)
    """The answer's JSON of the window."""


class TierRow(Row):
    """A tier that readers count."""

    __tablename__ = "tiers"
    tier: Mapped[TierKey]
    turn: Mapped[int] = mapped_column(default=-1)
    """Whose word counts; that of older turns no longer does."""
    beaten_turn: Mapped[int] = mapped_column(default=-1)
    """The turn of the newest heartbeat."""
    beaten_number: Mapped[int] = mapped_column(default=0)
    """Its number in that turn."""
    heartbeat: Mapped[int] = mapped_column(default=NOTHING)
    kept: Mapped[int] = mapped_column(default=NOTHING)
    """Time of the newest heartbeat that is kept as a beat."""
    unmarked: Mapped[list[str]] = mapped_column(JSON, default_factory=list)
    """Topics that were counted on since then."""
    heard_through: Mapped[int] = mapped_column(default=0)
    """An offset of the cluster's audit topic: what its producers said before it is applied."""


class BeatRow(Row):
    """A heartbeat that is kept: by then everything was counted that is in the log."""

    __tablename__ = "beats"
    tier: Mapped[TierKey]
    serial: Mapped[NumberKey]
    """Orders what a tier has said."""
    time: Mapped[int]
    reported_through: Mapped[int | None]


class MarkRow(Row):
    """How far a topic's partitions were counted at a beat, and at the beats behind it up to the next mark.

    Partition -> [end] or, where it is a mirror, [end, origin cluster, origin partition, origin end].
    """

    __tablename__ = "marks"
    tier: Mapped[TierKey]
    topic: Mapped[TopicKey]
    serial: Mapped[NumberKey]
    ends: Mapped[Vector]


class CoverageRow(Row):
    """Up to which offset a partition of a tier is counted; of tier `warehouse`: is loaded."""

    __tablename__ = "coverage"
    tier: Mapped[TierKey]
    topic_id: Mapped[TopicIdKey]
    partition: Mapped[NumberKey]
    topic: Mapped[TopicName]
    end: Mapped[int]
    began: Mapped[int] = mapped_column(default=NOTHING)
    """Serial before which nothing was said of it."""
    counted: Mapped[bool] = mapped_column(default=False)
    """There was something to count."""
    gone: Mapped[bool] = mapped_column(default=False)
    """It has been deleted: nothing more will come of it."""
    origin: Mapped[list[Any] | None] = mapped_column(JSON, default=None)
    """Of a mirrored partition: [cluster, topic id-partition, next offset]."""
    unplaced: Mapped[int] = mapped_column(default=FOR_EVER)
    """Serial of the first count with copies that may lie behind that next offset; FOR_EVER for none."""


class UncountedRow(Row):
    """Offsets [start, end) of a partition that nobody will ever count: they, or their counts, had expired.

    Without a topic the partition is that of the tier's own counts, and what they counted is not known.
    """

    __tablename__ = "uncounted"
    tier: Mapped[TierKey]
    topic_id: Mapped[TopicIdKey]
    partition: Mapped[NumberKey]
    start: Mapped[NumberKey]
    end: Mapped[int]
    topic: Mapped[TopicName] = mapped_column(index=True)
    since: Mapped[int]
    """The heartbeat before the gap."""
    serial: Mapped[int]
    """Of the record that told it."""
    until: Mapped[int] = mapped_column(default=FOR_EVER)
    """The heartbeat behind it; for ever until there is one."""


class UnreadableRow(Row):
    """A partition that a reader cannot read on, as its newest heartbeat says."""

    __tablename__ = "unreadable"
    tier: Mapped[TierKey]
    topic_id: Mapped[TopicIdKey]
    partition: Mapped[NumberKey]
    topic: Mapped[TopicName]
    offset: Mapped[int]
    cause: Mapped[LongText]
    since: Mapped[int]
    """The last heartbeat before."""
    serial: Mapped[int]
    """Of the heartbeat that told it first."""


class LoadRow(Row):
    """How many parts of a load's edition are counted."""

    __tablename__ = "loads"
    topic: Mapped[TopicKey]
    load: Mapped[NumberKey]
    edition: Mapped[NumberKey]
    counted: Mapped[int]
    parts: Mapped[int]
    sha256: Mapped[str] = mapped_column(String(64))
    """Of its manifest."""
    whole: Mapped[bool] = mapped_column(default=True)
    """True if all parts reported hours and rows without a header. The version before reported neither."""
    retold: Mapped[int] = mapped_column(default=0)
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
    told: Mapped[int]
    """Time at which the part was applied, by the auditor's clock."""
    serial: Mapped[int]
    record: Mapped[bytes]
    """The record, packed."""


class LoadHourRow(Row):
    """Rows of an edition of a load in one hour; those of the newest edition count."""

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
    """True if it is not known which of the windows it is."""
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


class AcceptanceRow(Row):
    """Decision of an operator to give up the messages that an edition of a load set aside."""

    __tablename__ = "acceptance"
    number: Mapped[CountedKey] = mapped_column(init=False)
    time: Mapped[int]
    topic: Mapped[TopicName] = mapped_column(index=True)
    load: Mapped[int]
    edition: Mapped[int]
    who: Mapped[LongText]
    reason: Mapped[LongText]


class ChangedRow(Row):
    """An hour in which the final verdict of a window has changed; changes are numbered in their order."""

    __tablename__ = "changed"
    topic: Mapped[TopicKey]
    hour: Mapped[NumberKey]
    number: Mapped[int] = mapped_column(index=True)


class DatabaseRow(Row):
    """Name of this database: cursors of another database mean nothing here."""

    __tablename__ = "database"
    name: Mapped[str] = mapped_column(String(32), primary_key=True)


class VerifiedRow(Row):
    """Something that the newest `millrace verify` of a topic has found."""

    __tablename__ = "verified"
    topic: Mapped[TopicKey]
    number: Mapped[NumberKey]
    hour: Mapped[int | None]
    """Start of the hour that it is about; None for the whole topic."""
    text: Mapped[LongText]


class StrangerRow(Row):
    """Records that have no effect, because who wrote them cannot be who they say."""

    __tablename__ = "strangers"
    place: Mapped[str] = mapped_column(String(300), primary_key=True)
    kind: Mapped[str] = mapped_column(String(32), primary_key=True)
    cause: Mapped[str] = mapped_column(String(200), primary_key=True)
    who: Mapped[str] = mapped_column(String(200), primary_key=True)
    count: Mapped[int]
    first: Mapped[int]
    last: Mapped[int]


class HistoryRow(Row):
    """What an operator said, or how a final verdict changed."""

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
        """Renew it within a transaction that writes. Raises MillraceError when it is no longer held."""

    def take(self, session: Session) -> bool:
        """Renew or take it within a transaction; True if it was taken, MillraceError when another has it."""

    def release(self, session: Session) -> None:
        """Give it up within a transaction."""


class AuditStore:
    """The database, with the tables of the newest revision. Safe between threads of one process."""

    def __init__(self, url: str, lease: Holding | None = None) -> None:
        """Raises MillraceError in one line when the URL or the database behind it will not do.

        With `lease`, which `renew` takes, a transaction that writes renews it first. Without one nobody else
        may use the database.
        """
        self._engine = open_database(url, _prepare)
        self._lease = lease
        self._write_lock = threading.Lock()

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A session on one consistent state; what it changes is thrown away."""
        with Session(self._engine) as session:
            yield session

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """A session whose changes are committed together at the end, or not at all on an error.

        Raise MillraceError when this process does not hold the lease.
        """
        with self._immediate() as session:
            if self._lease is not None:
                self._lease.renew(session)
                session.flush()  # PostgreSQL refuses it here if another process was faster
            yield session

    def renew(self) -> bool:
        """Renew the lease, or take it if it is free. Raise MillraceError when another process holds it.

        True if it was taken: whatever was read of the database before may be stale.
        """
        with self._immediate() as session:
            return self._lease is not None and self._lease.take(session)

    @contextmanager
    def _immediate(self) -> Iterator[Session]:
        # One writer at a time: SQLite refuses, and does not queue, a reader that turns writer too late.
        with self._write_lock, Session(self._engine) as session, session.begin():
            connection = session.connection(execution_options={BEGIN: "BEGIN IMMEDIATE"})
            if connection.dialect.name == "postgresql":  # a process that stands still keeps no row locked
                limit = f"SET LOCAL idle_in_transaction_session_timeout = '{ABANDONED_S}s'"
                connection.exec_driver_sql(limit)
            yield session

    def close(self) -> None:
        """Give up the lease, if it is held, and close all connections."""
        try:
            if self._lease is not None:
                with self._immediate() as session:
                    self._lease.release(session)
        except SQLAlchemyError as error:  # then another process waits for a while
            logger.warning("the lease of the database is not given up: %s", reason_of(error))
        finally:
            self._engine.dispose()


def _prepare(engine: Engine) -> None:
    """Bring the tables to the newest revision and give the database its name, one process at a time."""
    options = {BEGIN: "BEGIN IMMEDIATE"}
    if engine.dialect.name == "postgresql":  # to see what a process before has committed
        options["isolation_level"] = "READ COMMITTED"
    with engine.connect().execution_options(**options) as connection, connection.begin():
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(hashtext('millrace auditor'))")
        migrate(connection, Row.metadata)
        if connection.scalar(select(DatabaseRow.name)) is None:
            connection.execute(insert(DatabaseRow).values(name=secrets.token_hex(8)))
