"""The agent's spool: events that it has taken and the brokers have not acknowledged, and the state of its
producer instances.

One SQLite database in a folder that one process at a time holds. All changes run in one thread. Changes that
wait at the same time are one transaction and one fsync (group commit), and each change happens completely or
not at all. The module uses neither HTTP nor Kafka.

    events     taken, and not known to be acknowledged
    chunks     events that are in the client library, or were about to be, and their sequences
    instances  producer instances that have not ended: number and key of the next report, bytes of the last
    hellos     topics that an instance has announced, or was about to, and its next report's number then
    untold     sequences with an outcome that is not reported
    files      followed files, and the position up to which each is taken
    topics, schemas   topics of the brokers and schemas of the registry, for a start while they are down
    spool      one row: the instance of the next process that announces a topic, and an offset on the audit
               topic: messages of an agent that uses a copy lie after it
"""

from __future__ import annotations

import fcntl
import json
import queue
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from millrace.errors import MillraceError
from millrace.service.database import open_database, reason_of
from millrace_audit.reports.counts import window_start
from millrace_audit.reports.fingerprints import added, joined, split
from millrace_audit.reports.messages import FOR_EVER, now_ms
from millrace_audit.reports.outcome import Outcome, Unreported
from millrace_audit.reports.ranges import SequenceRanges, from_deltas, to_deltas
from millrace_audit.reports.seals import new_key

T = TypeVar("T")
VERSION = 5
ROW_BYTES = 100
"""Bytes that an event takes besides its body, key and topic's name."""
MAX_GROUP = 1000
"""Most changes in one transaction."""
_NO_SCHEMA = 0

_metadata = sa.MetaData()
_bytes, _long = sa.LargeBinary, sa.BigInteger
EVENTS = sa.Table(
    "events",
    _metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("topic", sa.Text, nullable=False),
    sa.Column("schema_id", sa.Integer, nullable=False),
    sa.Column("time", _long, nullable=False),
    sa.Column("key", _bytes),
    sa.Column("body", _bytes, nullable=False),
    sa.Column("form", sa.Integer, nullable=False),
    sa.Index("events_of_topic", "topic", "id"),
    sqlite_autoincrement=True,  # ids are never reused: readers continue after the last id
)
CHUNKS = sa.Table(
    "chunks",
    _metadata,
    sa.Column("topic", sa.Text, primary_key=True),
    sa.Column("instance", _long, nullable=False),
    sa.Column("first_sequence", _long, nullable=False),
    sa.Column("ids", sa.Text, nullable=False),
)
INSTANCES = sa.Table(
    "instances",
    _metadata,
    sa.Column("instance", _long, primary_key=True, autoincrement=False),
    sa.Column("cluster", sa.Text, nullable=False),
    sa.Column("server", sa.Text, nullable=False),
    sa.Column("service", sa.Text, nullable=False),
    sa.Column("number", _long, nullable=False),
    sa.Column("key", _bytes, nullable=False),
    sa.Column("report", _bytes),
    sa.Column("ended", sa.Boolean, nullable=False),
)
HELLOS = sa.Table(
    "hellos",
    _metadata,
    sa.Column("instance", _long, primary_key=True, autoincrement=False),
    sa.Column("topic", sa.Text, primary_key=True),
    sa.Column("number", _long, nullable=False),
)
UNREPORTED = sa.Table(
    "untold",
    _metadata,
    sa.Column("instance", _long, primary_key=True, autoincrement=False),
    sa.Column("topic", sa.Text, primary_key=True),
    sa.Column("window", _long, primary_key=True, autoincrement=False),
    sa.Column("acknowledged", sa.Text, nullable=False),
    sa.Column("failed", sa.Text, nullable=False),
    sa.Column("fingerprint", _long, nullable=False),
    sa.Column("failed_fingerprint", _long, nullable=False),
    sa.Column("strong", _bytes),
    sa.Column("failed_strong", _bytes),
)
FILES = sa.Table(
    "files",
    _metadata,
    sa.Column("path", sa.Text, primary_key=True),
    sa.Column("inode", _long, nullable=False),
    sa.Column("offset", _long, nullable=False),
    sa.Column("tail", _bytes, nullable=False),
    sa.Column("written_ns", _long, nullable=False),
)
TOPICS = sa.Table("topics", _metadata, sa.Column("topic", sa.Text, primary_key=True))
SCHEMAS = sa.Table(
    "schemas",
    _metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("schema_id", sa.Integer, nullable=False),
    sa.Column("schema", sa.Text, nullable=False),
)
SPOOL = sa.Table(
    "spool",
    _metadata,
    sa.Column("next_instance", _long, nullable=False),
    sa.Column("created", _long, nullable=False),
    sa.Column("audit_offset", _long),
)


class SpoolFull(MillraceError):
    """No event was taken: the waiting events use all the allowed space."""


class SpoolFailed(MillraceError):
    """No event was taken: the disk fails."""


class Form(IntEnum):
    """Content of an event's body, and place of the audit header, which is added when the event is sent."""

    FIELDS = 0
    """The Avro body after the header: the header is in the value."""
    VALUE = 1
    """The whole value: the header is a record header."""
    TOMBSTONE = 2
    """Nothing, because the value is null: the header is a record header."""


class Event(NamedTuple):
    """A waiting event; only the form FIELDS needs the schema id."""

    topic: str
    schema_id: int
    time: int
    key: bytes | None
    body: bytes
    form: int = Form.FIELDS

    @classmethod
    def of_value(cls, topic: str, time: int, key: bytes | None, value: bytes | None) -> Event:
        """Return the event of a value that is sent as it is. None is a tombstone."""
        form = Form.TOMBSTONE if value is None else Form.VALUE
        return cls(topic, _NO_SCHEMA, time, key, value or b"", form)

    @property
    def size(self) -> int:
        return len(self.topic) + len(self.key or b"") + len(self.body) + ROW_BYTES


class FilePosition(NamedTuple):
    """Position up to which a followed file is taken; `tail` are the last bytes before `offset`."""

    path: str
    inode: int
    offset: int
    tail: bytes
    written_ns: int
    """Time of the file's newest write when its position was noted. Later files are newer."""


@dataclass(slots=True)
class SpooledInstance:
    """A producer instance in the spool."""

    instance: int
    cluster: str
    server: str
    service: str
    number: int = 0
    """Number of the next report."""
    key: bytes = field(default_factory=new_key)
    """Key of the next report."""
    report: bytes | None = None
    """The last report; until the next report is written, the brokers may not have it."""
    ended: bool = False
    """True if the last report stated that no event will follow."""
    hellos: dict[str, int] = field(default_factory=dict)
    """Number of the next report at the time when each topic was announced."""
    unreported: Unreported = field(default_factory=dict)


class Chunk(NamedTuple):
    """Events of a topic in the client library. The first event has the first sequence, and so on."""

    topic: str
    instance: int
    first_sequence: int
    ids: Sequence[int]


class Spool:
    """The spool of a folder. Thread-safe; the methods for instances are for one thread."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.folder = folder
        self._lock_file = _hold(folder)
        url = sa.URL.create("sqlite", database=str(folder.absolute() / "spool.db"))
        self._engine = open_database(url.render_as_string(), _prepare)
        self._lock = threading.Lock()
        self._windows: Counter[int] = Counter()  # of the events that wait or are being taken
        self._arrivals: dict[object, float] = {}  # when each request that is being read began
        self._news: set[str] = set()
        self.awake = threading.Event()
        """Set when events wait to be sent."""
        self.events = self.bytes = 0
        """Number and bytes of the waiting events. Changed only in the thread of the changes."""
        self.committed_groups = 0
        self._count()
        self._changes: queue.SimpleQueue[tuple[Callable[[sa.Connection], Any], Future[Any]] | None]
        self._changes = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._commit_groups, name="spool")
        self._thread.start()
        with self._engine.connect() as connection:
            row = connection.execute(sa.select(SPOOL)).one()
        self.next_instance: int = row.next_instance
        """Instance of the next process that announces a topic; a copy of the spool has the same instance."""
        self.created: int = row.created
        self.audit_offset: int | None = row.audit_offset
        """Offset of an instance's newest message on the audit topic; None before the first one."""

    def _count(self) -> None:
        size = (
            sa.func.length(EVENTS.c.topic)
            + sa.func.coalesce(sa.func.length(EVENTS.c.key), 0)
            + sa.func.length(EVENTS.c.body)
            + ROW_BYTES
        )
        with self._engine.connect() as connection:
            self.events, total = connection.execute(sa.select(sa.func.count(), sa.func.sum(size))).one()
            self.bytes = total or 0
            times = sa.select(EVENTS.c.time, sa.func.count()).group_by(EVENTS.c.time)
            for time_ms, count in connection.execute(times):
                self._windows[window_start(time_ms)] += count
            self._news.update(connection.scalars(sa.select(EVENTS.c.topic).distinct()))

    def close(self) -> None:
        """Apply the waiting changes and release the folder."""
        self._changes.put(None)
        self._thread.join()
        self._engine.dispose()
        self._lock_file.close()

    # Changes, all of them in one thread.

    def _change(self, change: Callable[[sa.Connection], T]) -> Future[T]:
        future: Future[T] = Future()
        self._changes.put((change, future))
        return future

    def _commit_groups(self) -> None:
        closing = False
        while not closing:
            group = [self._changes.get()]
            while len(group) < MAX_GROUP:
                try:
                    group.append(self._changes.get_nowait())
                except queue.Empty:
                    break
            closing = None in group
            # From here on no change can be cancelled.
            self._commit([one for one in group if one is not None and one[1].set_running_or_notify_cancel()])

    def _commit(self, group: Sequence[tuple[Callable[[sa.Connection], Any], Future[Any]]]) -> None:
        """Apply the changes of a group. Each has its own outcome, unless the disk fails for all of them."""
        before = self.events, self.bytes
        done: list[tuple[Future[Any], Any]] = []
        try:
            with self._engine.begin() as connection:
                for change, future in group:
                    events_and_bytes = self.events, self.bytes
                    try:
                        with connection.begin_nested():
                            done.append((future, change(connection)))
                    except SQLAlchemyError:
                        raise
                    except Exception as error:
                        self.events, self.bytes = events_and_bytes
                        future.set_exception(error)
        except SQLAlchemyError as error:
            self.events, self.bytes = before
            failed = SpoolFailed(f"the disk under {self.folder} cannot be written: {reason_of(error)}")
            for _, future in group:
                if not future.done():
                    future.set_exception(failed)
            return
        self.committed_groups += 1
        for future, result in done:
            future.set_result(result)

    # Taking events.

    @contextmanager
    def arriving(self) -> Iterator[None]:
        """Keep `arrived_by` from rising while a request is read, so that no window of its
        events is closed.
        """
        token = object()
        with self._lock:
            self._arrivals[token] = time.time()
        try:
            yield
        finally:
            with self._lock:
                del self._arrivals[token]

    def take(self, events: Sequence[Event], position: FilePosition | None = None) -> Future[None]:
        """Take all the events and their file's position, or nothing.

        The future is done when they are on the disk. It raises SpoolFull or SpoolFailed.
        """
        needed = sum(event.size for event in events)
        windows = Counter(window_start(event.time) for event in events)
        rows = [event._asdict() for event in events]

        def insert(connection: sa.Connection) -> None:
            if events and self.bytes + needed > self.limit_bytes:
                raise SpoolFull(
                    f"the spool holds {self.bytes} of {self.limit_bytes} bytes, these events need {needed}:"
                    " the brokers are unreachable or too slow; nothing was taken, send the events again later"
                )
            if rows:
                connection.execute(sa.insert(EVENTS), rows)
            if position is not None:
                connection.execute(sa.insert(FILES).prefix_with("OR REPLACE"), position._asdict())
            self.events, self.bytes = self.events + len(rows), self.bytes + needed

        with self._lock:
            self._windows.update(windows)
        future = self._change(insert)
        future.add_done_callback(lambda done: self._taken(done, windows, {event.topic for event in events}))
        return future

    def _taken(self, done: Future[None], windows: Mapping[int, int], topics: set[str]) -> None:
        if done.cancelled() or done.exception() is not None:
            self._forget(windows)
            return
        with self._lock:
            self._news |= topics
        self.awake.set()

    def _forget(self, windows: Mapping[int, int]) -> None:
        with self._lock:
            self._windows.subtract(windows)
            for window in windows:
                if not self._windows[window]:
                    del self._windows[window]

    @property
    def open_from(self) -> int:
        """Start (ms) of the earliest window with a waiting event; FOR_EVER when no event waits."""
        with self._lock:
            return min(self._windows, default=FOR_EVER)

    @property
    def arrived_by(self) -> float:
        """Seconds since the epoch: every event that arrived before this time is taken or was refused."""
        with self._lock:
            return min((time.time(), *self._arrivals.values()))

    # Sending events.

    def take_news(self) -> set[str]:
        """Return the topics with events that came since the last call.

        At the first call, all topics with events.
        """
        with self._lock:
            news, self._news = self._news, set()
        return news

    def waiting(
        self, topic: str, *, behind: int = 0, ids: Sequence[int] = (), most: int, most_bytes: int
    ) -> list[tuple[int, Event]]:
        """Return the topic's next events after the id `behind`, or the events with these ids.

        At least one event if there is any.
        """
        columns = EVENTS.c
        query = sa.select(*columns).where(columns.topic == topic).order_by(columns.id).limit(most)
        query = query.where(columns.id.in_(ids[:most]) if ids else columns.id > behind)
        found: list[tuple[int, Event]] = []
        size = 0
        with self._engine.connect() as connection:
            for number, *rest in connection.execute(query):
                event = Event(*rest)
                size += event.size
                if found and size > most_bytes:
                    break
                found.append((number, event))
        return found

    def announce(self, instance: SpooledInstance, topic: str) -> None:
        """Note that an instance is about to announce a topic. Its first topic uses up `next_instance`."""
        hello = {"instance": instance.instance, "topic": topic, "number": instance.number}
        columns = ("instance", "cluster", "server", "service", "number", "key", "report", "ended")
        row = {column: getattr(instance, column) for column in columns}
        is_first, next_instance = not instance.hellos, _new_instance()

        def change(connection: sa.Connection) -> None:
            if is_first:
                connection.execute(sa.insert(INSTANCES), row)
                connection.execute(sa.update(SPOOL).values(next_instance=next_instance))
            connection.execute(sa.insert(HELLOS), hello)

        self._change(change).result()
        instance.hellos[topic] = instance.number

    def hand_over(self, chunk: Chunk) -> None:
        """Note that a chunk's events are about to be given to the client library."""
        row = {**chunk._asdict(), "ids": _text((number, number) for number in chunk.ids)}
        self._change(lambda connection: connection.execute(sa.insert(CHUNKS), row)).result()

    def settle(
        self, instance: SpooledInstance, topic: str, acknowledged: Mapping[int, Event], news: Unreported
    ) -> None:
        """Note the outcome of the topic's chunk: acknowledged events are deleted, and the other
        events wait.
        """
        merged = _merged(instance.unreported, news)
        ids = [{"gone": number} for number in acknowledged]
        windows = Counter(window_start(event.time) for event in acknowledged.values())
        freed = sum(event.size for event in acknowledged.values())

        def change(connection: sa.Connection) -> None:
            if ids:
                connection.execute(sa.delete(EVENTS).where(EVENTS.c.id == sa.bindparam("gone")), ids)
            connection.execute(sa.delete(CHUNKS).where(CHUNKS.c.topic == topic))
            _write_unreported(connection, instance.instance, merged)
            self.events, self.bytes = self.events - len(ids), self.bytes - freed

        self._change(change).result()
        instance.unreported.update(merged)
        self._forget(windows)

    def report(
        self,
        instance: SpooledInstance,
        message: bytes,
        reported: Sequence[tuple[str, int]],
        next_key: bytes,
        *,
        rest: Unreported,
        ended: bool,
    ) -> None:
        """Note that an instance is about to publish its next report, on the topics and windows `reported`.

        `rest` are the outcomes of these windows that the report leaves to later reports.
        """
        rows = [{"of_topic": topic, "of_window": window} for topic, window in reported]
        values = {"number": instance.number + 1, "key": next_key, "report": message, "ended": ended}
        here = UNREPORTED.c.instance == instance.instance

        def change(connection: sa.Connection) -> None:
            one = INSTANCES.c.instance == instance.instance
            connection.execute(sa.update(INSTANCES).where(one).values(values))
            connection.execute(sa.update(SPOOL).values(audit_offset=self.audit_offset))
            if rows:
                which = (
                    UNREPORTED.c.topic == sa.bindparam("of_topic"),
                    UNREPORTED.c.window == sa.bindparam("of_window"),
                )
                connection.execute(sa.delete(UNREPORTED).where(here, *which), rows)
            _write_unreported(connection, instance.instance, rest)

        self._change(change).result()
        instance.number, instance.key = instance.number + 1, next_key
        instance.report, instance.ended = message, ended
        for key in reported:
            del instance.unreported[key]
        instance.unreported.update(rest)

    def end(self, instance: SpooledInstance) -> None:
        """Forget an instance, whose last report is acknowledged."""

        def change(connection: sa.Connection) -> None:
            for table in (UNREPORTED, HELLOS, INSTANCES):
                connection.execute(sa.delete(table).where(table.c.instance == instance.instance))

        self._change(change).result()

    def adopt(self) -> None:
        """Make a copy a separate spool: a new instance sends the waiting events.

        Old instances are not ended.
        """

        def change(connection: sa.Connection) -> None:
            for table in (CHUNKS, UNREPORTED, HELLOS, INSTANCES, SPOOL):
                connection.execute(sa.delete(table))
            _begin(connection)

        self._change(change).result()

    # After a start.

    def left_instances(self) -> list[SpooledInstance]:
        """Return the instances of earlier processes that have not ended."""
        with self._engine.connect() as connection:
            found = {
                row.instance: SpooledInstance(**row._mapping)
                for row in connection.execute(sa.select(INSTANCES))
            }
            for row in connection.execute(sa.select(HELLOS)):
                found[row.instance].hellos[row.topic] = row.number
            for row in connection.execute(sa.select(UNREPORTED)):
                found[row.instance].unreported[row.topic, row.window] = Outcome(
                    _ranges(row.acknowledged),
                    _ranges(row.failed),
                    joined(row.fingerprint, row.strong),
                    joined(row.failed_fingerprint, row.failed_strong),
                )
        return list(found.values())

    def left_chunks(self) -> list[Chunk]:
        """Return the chunks of earlier processes: their events are in the log, or not, or may
        still arrive.
        """
        with self._engine.connect() as connection:
            return [
                Chunk(row.topic, row.instance, row.first_sequence, [n for n, _ in _pairs(row.ids)])
                for row in connection.execute(sa.select(CHUNKS))
            ]

    # Files, topics and schemas that were seen before.

    def file_position(self, path: str) -> FilePosition | None:
        with self._engine.connect() as connection:
            row = connection.execute(sa.select(FILES).where(FILES.c.path == path)).first()
        return None if row is None else FilePosition(*row)

    def topics(self) -> set[str]:
        with self._engine.connect() as connection:
            return set(connection.scalars(sa.select(TOPICS.c.topic)))

    def note_topic(self, topic: str) -> None:
        insert = sa.insert(TOPICS).prefix_with("OR REPLACE")
        self._change(lambda connection: connection.execute(insert, {"topic": topic})).result()

    def schemas(self) -> dict[str, tuple[int, Any]]:
        """Return schema id and schema by the name that was given to `note_schema`."""
        with self._engine.connect() as connection:
            rows = connection.execute(sa.select(SCHEMAS)).all()
        return {row.name: (row.schema_id, json.loads(row.schema)) for row in rows}

    def note_schema(self, name: str, schema_id: int, schema: Any) -> None:
        insert = sa.insert(SCHEMAS).prefix_with("OR REPLACE")
        row = {"name": name, "schema_id": schema_id, "schema": json.dumps(schema)}
        self._change(lambda connection: connection.execute(insert, row)).result()


def _hold(folder: Path) -> Any:
    """Return a lock on the folder until the file is closed or the process ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)  # other users' events lie here
        held = open(folder / "lock", "w")  # noqa: SIM115  # for as long as the process lives
    except OSError as error:
        raise MillraceError(
            f"{folder} cannot be used ({error.strerror}): give a --spool that can be written"
        ) from None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        held.close()
        raise MillraceError(f"another agent uses {folder}: stop it, or give each its own --spool") from None
    return held


def _begin(connection: sa.Connection) -> None:
    connection.execute(sa.insert(SPOOL).values(next_instance=_new_instance(), created=now_ms()))


def _new_instance() -> int:
    return secrets.randbits(63)


def _prepare(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        version = connection.exec_driver_sql("PRAGMA user_version").scalar()
        if version not in range(VERSION + 1):
            raise MillraceError(
                f"the spool has version {version}, this agent reads {VERSION}: start the agent that wrote it"
                " until it has sent all events, then start this agent with another --spool"
            )
        _metadata.create_all(connection)
        if version in (1, 2):  # before strong fingerprints
            for column in ("strong", "failed_strong"):
                connection.exec_driver_sql(f"ALTER TABLE {UNREPORTED.name} ADD COLUMN {column} BLOB")
        if version in (1, 2, 3):  # before record headers
            added_column = f"form INTEGER NOT NULL DEFAULT {Form.FIELDS:d}"
            connection.exec_driver_sql(f"ALTER TABLE {EVENTS.name} ADD COLUMN {added_column}")
        if version in (1, 2, 3, 4):  # before files that were copied are known again
            connection.exec_driver_sql(f"ALTER TABLE {FILES.name} DROP COLUMN device")
            added_column = f"written_ns INTEGER NOT NULL DEFAULT {FOR_EVER}"
            connection.exec_driver_sql(f"ALTER TABLE {FILES.name} ADD COLUMN {added_column}")
        if connection.execute(sa.select(SPOOL)).first() is None:
            _begin(connection)
        connection.exec_driver_sql(f"PRAGMA user_version={VERSION}")


def _merged(unreported: Unreported, news: Unreported) -> Unreported:
    """Return the unreported outcomes that the news change, after the change."""
    merged: Unreported = {}
    for key, new in news.items():
        old = unreported.get(key, Outcome())
        merged[key] = Outcome(
            old.acknowledged | new.acknowledged,
            old.failed | new.failed,
            added(old.fingerprint, new.fingerprint),
            added(old.failed_fingerprint, new.failed_fingerprint),
        )
    return merged


def _write_unreported(connection: sa.Connection, instance: int, unreported: Unreported) -> None:
    rows = []
    for (topic, window), outcome in unreported.items():
        fast, strong = split(outcome.fingerprint)
        failed_fast, failed_strong = split(outcome.failed_fingerprint)
        row = {
            "instance": instance,
            "topic": topic,
            "window": window,
            "acknowledged": _text(outcome.acknowledged),
            "failed": _text(outcome.failed),
            "fingerprint": fast,
            "failed_fingerprint": failed_fast,
            "strong": strong,
            "failed_strong": failed_strong,
        }
        rows.append(row)
    if rows:
        connection.execute(sa.insert(UNREPORTED).prefix_with("OR REPLACE"), rows)


def _text(ranges: Iterable[Sequence[int]]) -> str:
    return json.dumps(to_deltas(ranges))


def _pairs(text: str) -> list[tuple[int, int]]:
    return from_deltas(json.loads(text))


def _ranges(text: str) -> SequenceRanges:
    return SequenceRanges(_pairs(text))
