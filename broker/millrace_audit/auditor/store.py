"""The auditor's database: what was read from the audit topics, and how far, in one transaction.

Rows only; what they mean is decided in `ledger` and `verdict`. SQLite by default, or PostgreSQL.
Sets of sequences are JSON lists of [first, last]. Times are ms since the epoch.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

from sqlalchemy import JSON, BigInteger, String, Text, event
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, Session, mapped_column

from millrace.service.database import open_database
from millrace_audit.reports.messages import FOR_EVER, NOTHING

Ranges = list[list[int]]
TopicName = Annotated[str, mapped_column(String(249))]
TopicKey = Annotated[str, mapped_column(String(249), primary_key=True)]
TopicIdKey = Annotated[str, mapped_column(String(32), primary_key=True)]
TierKey = Annotated[str, mapped_column(String(255), primary_key=True)]
NumberKey = Annotated[int, mapped_column(primary_key=True, autoincrement=False)]
LongText = Annotated[str, mapped_column(Text)]
_IN_ONE_QUERY = 500


def slices(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    """The numbers in portions that one query may name."""
    for index in range(0, len(numbers), _IN_ONE_QUERY):
        yield numbers[index : index + _IN_ONE_QUERY]


class Row(MappedAsDataclass, DeclarativeBase, kw_only=True, eq=False, repr=False):
    """Every table of the auditor."""

    type_annotation_map = {int: BigInteger, Ranges: JSON}  # noqa: RUF012  # SQLAlchemy's own convention


class AuditPosition(Row):
    """How far a partition of an audit topic is applied: exactly as far as all the other rows say."""

    __tablename__ = "audit_positions"
    topic_id: Mapped[TopicIdKey]
    partition: Mapped[NumberKey]
    next_offset: Mapped[int] = mapped_column(default=0)


class UnheardRow(Row):
    """Records of an audit topic's partition that expired before they were applied: offsets [start, end).

    Who sent what in event times [since, until) is not known in full; nothing then may be called complete.
    """

    __tablename__ = "unheard"
    topic_id: Mapped[TopicIdKey]
    partition: Mapped[NumberKey]
    start: Mapped[NumberKey]
    end: Mapped[int]
    since: Mapped[int] = mapped_column(default=NOTHING)
    until: Mapped[int] = mapped_column(default=FOR_EVER)
    """The first heartbeat behind the gap; for ever until there is one."""


class InstanceRow(Row):
    """One producer instance, or one that an operator has accepted without ever having heard of it."""

    __tablename__ = "instances"
    instance: Mapped[NumberKey]
    cluster: Mapped[LongText | None] = mapped_column(default=None)
    server: Mapped[LongText] = mapped_column(default="?")
    service: Mapped[LongText] = mapped_column(default="?")
    heard_at: Mapped[int] = mapped_column(default=NOTHING)
    closed_through: Mapped[int] = mapped_column(default=NOTHING)
    reports: Mapped[Ranges] = mapped_column(default_factory=list)
    """Numbers of the reports that were applied."""
    done: Mapped[bool] = mapped_column(default=False, index=True)
    """It has closed for ever and no report is missing: nothing of it is awaited."""
    accepted: Mapped[LongText | None] = mapped_column(default=None)
    accepted_at: Mapped[int | None] = mapped_column(default=None)


class InstanceTopicRow(Row):
    """An instance sends events of a topic."""

    __tablename__ = "instance_topics"
    topic: Mapped[TopicKey]
    instance: Mapped[NumberKey]


class TopicRow(Row):
    """A topic that a producer or a reader has spoken of."""

    __tablename__ = "topics"
    topic: Mapped[TopicKey]
    settled_through: Mapped[int] = mapped_column(default=NOTHING)
    """Windows before this were final once, even those without a row."""
    foreign: Mapped[dict[str, int]] = mapped_column(JSON, default_factory=dict)
    """Tier -> messages without an audit header."""


class WindowRow(Row):
    """A window with events, and how often it changed after a final verdict."""

    __tablename__ = "windows"
    topic: Mapped[TopicKey]
    window: Mapped[NumberKey]
    revision: Mapped[int] = mapped_column(default=0)
    settled: Mapped[str | None] = mapped_column(String(16), default=None)
    """The verdict when the window was last seen final; None when it was not, or has changed since."""


class ReportedRow(Row):
    """What an instance reported of a window."""

    __tablename__ = "reported"
    topic: Mapped[TopicKey]
    window: Mapped[NumberKey]
    instance: Mapped[NumberKey]
    acknowledged: Mapped[Ranges] = mapped_column(default_factory=list)
    failed: Mapped[Ranges] = mapped_column(default_factory=list)
    reported_at: Mapped[int] = mapped_column(default=NOTHING)


class CountedRow(Row):
    """What a tier holds of an instance in a window; ranges that overlap are there more than once."""

    __tablename__ = "counted"
    topic: Mapped[TopicKey]
    window: Mapped[NumberKey]
    instance: Mapped[NumberKey]
    tier: Mapped[TierKey]
    server: Mapped[LongText]
    service: Mapped[LongText]
    ranges: Mapped[Ranges] = mapped_column(default_factory=list)


class TierRow(Row):
    """A tier that readers count: whose turn it is and up to when everything is counted."""

    __tablename__ = "tiers"
    tier: Mapped[TierKey]
    heartbeat: Mapped[int] = mapped_column(default=NOTHING)
    reader: Mapped[int | None] = mapped_column(default=None)


class EndedReaderRow(Row):
    """A reader whose turn is over: it is not listened to again."""

    __tablename__ = "ended_readers"
    tier: Mapped[TierKey]
    reader: Mapped[NumberKey]


class CoverageRow(Row):
    """Up to which offset a partition of a tier is counted."""

    __tablename__ = "coverage"
    tier: Mapped[TierKey]
    topic_id: Mapped[TopicIdKey]
    partition: Mapped[NumberKey]
    topic: Mapped[TopicName]
    end: Mapped[int]


class UncountedRow(Row):
    """Offsets [start, end) of a partition that nobody will ever count: they, or their counts, had expired."""

    __tablename__ = "uncounted"
    tier: Mapped[TierKey]
    topic_id: Mapped[TopicIdKey]
    partition: Mapped[NumberKey]
    start: Mapped[NumberKey]
    end: Mapped[int]
    topic: Mapped[TopicName] = mapped_column(index=True)
    since: Mapped[int]
    """Start (ms) of the event times in doubt: what was final before stays as it is."""
    until: Mapped[int]
    """When the gap was noticed: later events cannot be in it."""


class LoadRow(Row):
    """A load whose rows are counted."""

    __tablename__ = "loads"
    tier: Mapped[TierKey]
    topic: Mapped[TopicKey]
    load: Mapped[NumberKey]


class EditionRow(Row):
    """A later edition of a load that is counted: what it has more and less than the one before."""

    __tablename__ = "editions"
    tier: Mapped[TierKey]
    topic: Mapped[TopicKey]
    load: Mapped[NumberKey]
    edition: Mapped[NumberKey]


class LoadPartRow(Row):
    """How much is counted of a load, or of a later edition, that takes several messages to tell."""

    __tablename__ = "load_parts"
    tier: Mapped[TierKey]
    topic: Mapped[TopicKey]
    load: Mapped[NumberKey]
    edition: Mapped[NumberKey]
    counted: Mapped[int]
    """Parts that are counted, from the first one on."""


class AuditStore:
    """The database; its tables are made at the first start. Safe between threads of one process."""

    def __init__(self, url: str) -> None:
        """Raises MillraceError in one line when the URL or the database behind it will not do."""
        self._engine = open_database(url, Row.metadata.create_all)
        self._write_lock = threading.Lock()

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A session on one consistent state; what it changes is thrown away."""
        with Session(self._engine) as session:
            yield session

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """A session whose changes are committed together at the end, or not at all on an error."""
        # One writer at a time: SQLite refuses, and does not queue, a reader that turns writer too late.
        with self._write_lock, Session(self._engine) as session, session.begin():
            _remember(session)
            yield session

    def close(self) -> None:
        self._engine.dispose()


def _remember(session: Session) -> None:
    """Keep every row once read or added until the session ends: the next record asks for most of them again.

    A session by itself holds its rows weakly and would read the same ones for each record anew.
    """
    held: list[object] = []
    for moment in ("loaded_as_persistent", "pending_to_persistent"):
        event.listen(session, moment, lambda _, row: held.append(row))
