"""The registry's rows, in SQLite or PostgreSQL: schemas, versions of subjects, settings.

The rules of the registry are elsewhere. A schema's row is never changed and never deleted, so its id is never
reused, whatever versions are deleted. If a reference names a version, no other schema gets that version's
number, so a schema's references never change their meaning. One lock of the database admits one writer at a
time, also across processes, so rows that a writer has read stay valid until it commits. Ids are acknowledged
only after a commit that survives a power cut.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from millrace.errors import MillraceError
from millrace.service.database import BEGIN, LOCK_WAIT_S, open_database
from millrace_registry.errors import ErrorCode, RegistryError
from millrace_registry.handed_out import HandedOut

_POSTGRES_LOCK = 0x6D696C6C72616365
"""`millrace` in ASCII: one advisory lock for every writer of this registry."""

LARGEST = 2**31 - 1
"""Largest id and version: both are sent as signed 32-bit numbers."""
ALL = slice(0, None)
"""Page of all rows; other pages are `slice(start, stop)`."""
ONE = slice(0, 1)

_REGISTRY, _DELETIONS = "", "deletions"
"""Subject and name of the setting that holds the number of permanent deletions."""
MAX_RECENT_CHARACTERS = 32 << 20
"""Most characters of schemas that a store caches."""
_RECENT_S = 1.0
"""Longest time for which a store may return a schema that another process has deleted permanently."""

metadata = sa.MetaData()
_schemas = sa.Table(
    "schemas",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("fingerprint", sa.String(64), nullable=False, unique=True),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("reference_list", sa.Text, nullable=False),  # JSON [[name, subject, version], ...]
)
_properties = sa.Table(
    "schema_properties",
    metadata,
    sa.Column("schema_id", sa.Integer, sa.ForeignKey("schemas.id"), primary_key=True),
    sa.Column("content", sa.String(64), nullable=False, index=True),  # the fingerprint without the properties
    sa.Column("properties", sa.Text, nullable=False),  # a JSON object of strings
)
_subjects = sa.Table(
    "subjects",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("last_version", sa.Integer, nullable=False),  # survives the deletion of the version itself
)
_versions = sa.Table(
    "subject_versions",
    metadata,
    sa.Column("subject", sa.Text, primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("schema_id", sa.Integer, sa.ForeignKey("schemas.id"), nullable=False, index=True),
    sa.Column("deleted", sa.Boolean, nullable=False),
)
_NOT_DELETED = sa.text("NOT deleted")
sa.Index(
    "one_live_version_of_a_schema",
    _versions.c.subject,
    _versions.c.schema_id,
    unique=True,
    sqlite_where=_NOT_DELETED,
    postgresql_where=_NOT_DELETED,
)
_references = sa.Table(
    "schema_references",
    metadata,
    sa.Column("schema_id", sa.Integer, sa.ForeignKey("schemas.id"), primary_key=True),
    sa.Column("subject", sa.Text, primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True),
)
_forgotten = sa.Table(
    "forgotten_versions",  # deleted permanently, and named by a reference
    metadata,
    sa.Column("subject", sa.Text, primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True),
    sa.Column("schema_id", sa.Integer, sa.ForeignKey("schemas.id"), nullable=False),
)
_origins = sa.Table(
    "version_origins",
    metadata,
    sa.Column("subject", sa.Text, primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True),
    sa.Column("commit", sa.String(100), nullable=False),
    sa.Column("author", sa.String(200), nullable=False),
    sa.Column("time", sa.BigInteger, nullable=False),  # ms since 1970
)
_settings = sa.Table(
    "settings",
    metadata,
    sa.Column("subject", sa.Text, primary_key=True),  # the empty name holds the global settings
    sa.Column("name", sa.String(16), primary_key=True),
    sa.Column("value", sa.String(32), nullable=False),
)
_SCHEMA = (_schemas.c.fingerprint, _schemas.c.text, _schemas.c.reference_list, _properties.c.properties)
_with_properties = _schemas.outerjoin(_properties)
_SCHEMAS = sa.select(_schemas.c.id.label("schema_id"), *_SCHEMA).select_from(_with_properties)
_VERSIONS = sa.select(_versions, *_SCHEMA).select_from(_versions.join(_with_properties))


@dataclass(frozen=True, slots=True)
class Reference:
    """A type that a schema takes from a version of a subject."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """One schema, immutable."""

    id: int
    fingerprint: str
    text: str
    references: tuple[Reference, ...]
    properties: Mapping[str, str]
    """The schema's registered `metadata`, by which clients choose a version; part of the
    schema's identity."""

    @property
    def guid(self) -> str:
        """Identity of the schema in all registries: the same schema has the same GUID everywhere."""
        return str(UUID(self.fingerprint[:32]))


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """One version of a subject."""

    subject: str
    version: int
    deleted: bool
    schema: StoredSchema


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of a version that was registered by `/apply`."""

    commit: str
    """Git commit of the folder; empty if there was none."""
    author: str
    time: int
    """Time of the application, in ms since 1970."""


def fingerprint_of(content: str, properties: Mapping[str, str] | None) -> str:
    """Return the fingerprint of a schema from the fingerprint `content` of its text and references."""
    if not properties:
        return content
    return hashlib.sha256(json.dumps([content, properties], sort_keys=True).encode()).hexdigest()


class Transaction:
    """Reads and writes of one transaction.

    `deleted` is False for live versions, True for deleted ones and None for all versions.
    """

    def __init__(self, connection: sa.Connection, handed_out: HandedOut | None = None) -> None:
        self.connection = connection
        self.largest_added = 0
        """Largest id that the transaction has added; 0 if none."""
        self._handed_out = handed_out
        self._execute = connection.execute
        # By code points: databases disagree on the order of text.
        order = "C" if connection.dialect.name == "postgresql" else "BINARY"
        self._by_subject = sa.collate(_versions.c.subject, order)

    def schema(
        self, schema_id: int | None = None, *, fingerprint: str | None = None, guid: UUID | None = None
    ) -> StoredSchema | None:
        """Return the schema of an id, a fingerprint or a GUID, also if no version holds it."""
        query = _matching(_SCHEMAS, {_schemas.c.id: schema_id, _schemas.c.fingerprint: fingerprint})
        if guid is not None:  # a range of the unique index, in any collation of the database; no pattern
            query = query.where(_schemas.c.fingerprint.between(guid.hex + "0" * 32, guid.hex + "f" * 32))
        row = self._execute(query).first()
        return None if row is None else _schema(row)

    def largest_id(self) -> int:
        """Return the largest id of a schema; 0 when there is none."""
        return self._execute(sa.select(sa.func.max(_schemas.c.id))).scalar() or 0

    def add_schema(
        self,
        content: str,
        text: str,
        references: Sequence[Reference] = (),
        properties: Mapping[str, str] | None = None,
        schema_id: int | None = None,
    ) -> StoredSchema:
        """Store a schema under the next id, or under a given id that is free."""
        if schema_id is None:
            last = self.largest_id()
            if self._handed_out is not None:
                last = self._handed_out.last(last)
            advice = "import the subjects into a new registry, without the schema of this id"
            schema_id = _next(last, f"id {LARGEST} is taken, the largest: {advice}")
        if self._handed_out is not None:
            self._handed_out.draw(schema_id)
        self.largest_added = max(self.largest_added, schema_id)
        schema = StoredSchema(
            schema_id, fingerprint_of(content, properties), text, tuple(references), properties or {}
        )
        listed = json.dumps([[r.name, r.subject, r.version] for r in references])
        values = {"fingerprint": schema.fingerprint, "text": text, "reference_list": listed}
        self._execute(_schemas.insert(), {"id": schema_id, **values})
        if properties:
            values = {"content": content, "properties": json.dumps(properties)}
            self._execute(_properties.insert(), {"schema_id": schema_id, **values})
        for subject, version in {(r.subject, r.version) for r in references}:
            row = {"schema_id": schema_id, "subject": subject, "version": version}
            self._execute(_references.insert(), row)
        return schema

    def versions(
        self,
        subject: str | None = None,
        version: int | None = None,
        *,
        schema_id: int | None = None,
        content: str | None = None,
        properties: Mapping[str, str] | None = None,
        prefix: str = "",
        deleted: bool | None = False,
        latest_only: bool = False,
        newest_first: bool = False,
        page: slice = ALL,
    ) -> list[StoredVersion]:
        """Return the versions that match all arguments, sorted.

        Without `properties`, `content` matches any.
        """
        columns = {
            _versions.c.subject: subject,
            _versions.c.version: version,
            _versions.c.schema_id: schema_id,
        }
        query = _matching(_VERSIONS, {**columns, _versions.c.deleted: deleted}, prefix)
        if content is not None:
            same = sa.select(_schemas.c.id).where(
                _schemas.c.fingerprint == fingerprint_of(content, properties)
            )
            others = sa.select(_properties.c.schema_id).where(_properties.c.content == content)
            same_schemas = same.union(others) if properties is None else same
            query = query.where(_versions.c.schema_id.in_(same_schemas))
        if latest_only:
            newer = _versions.alias()
            newest = _matching(sa.select(sa.func.max(newer.c.version)), {newer.c.deleted: deleted})
            newest = newest.where(newer.c.subject == _versions.c.subject).correlate(_versions)
            query = query.where(_versions.c.version == newest.scalar_subquery())
        number = _versions.c.version
        query = query.order_by(self._by_subject, number.desc() if newest_first else number)
        return [
            StoredVersion(row.subject, row.version, row.deleted, _schema(row))
            for row in self._execute(_cut(query, page))
        ]

    def numbers(self, subject: str, *, deleted: bool | None = False, page: slice = ALL) -> dict[int, int]:
        """Return the numbers of a subject's versions in order, each with the id of its schema."""
        columns = {_versions.c.subject: subject, _versions.c.deleted: deleted}
        query = _matching(sa.select(_versions.c.version, _versions.c.schema_id), columns)
        return {
            row.version: row.schema_id
            for row in self._execute(_cut(query.order_by(_versions.c.version), page))
        }

    def subjects(
        self,
        *,
        prefix: str = "",
        schema_id: int | None = None,
        deleted: bool | None = False,
        page: slice = ALL,
    ) -> list[str]:
        """Return the names of the subjects with matching versions, sorted."""
        columns = {_versions.c.schema_id: schema_id, _versions.c.deleted: deleted}
        query = _matching(sa.select(_versions.c.subject), columns, prefix).group_by(_versions.c.subject)
        return list(self._execute(_cut(query.order_by(self._by_subject), page)).scalars())

    def counts(self) -> dict[str, int]:
        """Return the numbers of `schemas`, of live `versions`, and of `subjects` with live versions."""
        live = _versions.c.deleted.is_(False)
        queries = {
            "schemas": sa.select(sa.func.count()).select_from(_schemas),
            "versions": sa.select(sa.func.count()).where(live),
            "subjects": sa.select(sa.func.count(_versions.c.subject.distinct())).where(live),
        }
        return {name: self._execute(query).scalar_one() for name, query in queries.items()}

    def add_version(self, subject: str, schema: StoredSchema, version: int | None = None) -> StoredVersion:
        """Store a live version under the subject's next number, or under a given number that is free."""
        same = _subjects.c.name == subject
        last = self._execute(sa.select(_subjects.c.last_version).where(same)).scalar()
        if version is None:
            problem = f"subject {subject!r} has version {LARGEST}, the largest: register under another one"
            of_subject = _references.c.subject == subject
            named = self._execute(sa.select(sa.func.max(_references.c.version)).where(of_subject)).scalar()
            version = _next(max(last or 0, named or 0), problem)
        if last is None:
            self._execute(_subjects.insert(), {"name": subject, "last_version": version})
        elif version > last:
            self._execute(_subjects.update().where(same).values(last_version=version))
        row = {"subject": subject, "version": version, "schema_id": schema.id, "deleted": False}
        self._execute(_versions.insert(), row)
        return StoredVersion(subject, version, False, schema)

    def delete_versions(self, subject: str, version: int | None = None, *, permanent: bool) -> None:
        """Mark a version as deleted, or all versions of the subject if `version` is None; or remove them
        permanently.

        The schema keeps its id, and the number is not reused. A version that is only marked can still be read
        by its schema's id, and by requests for deleted versions.
        """
        if permanent:
            self._note_forgotten(subject, version)
        change = _versions.delete() if permanent else _versions.update().values(deleted=True)
        change = change.where(_versions.c.subject == subject)
        self._execute(change if version is None else change.where(_versions.c.version == version))
        if permanent:
            forget = _origins.delete().where(_origins.c.subject == subject)
            self._execute(forget if version is None else forget.where(_origins.c.version == version))
            self.set(_REGISTRY, _DELETIONS, str(self.deletions() + 1))

    def _note_forgotten(self, subject: str, version: int | None) -> None:
        columns = _versions.c.subject, _versions.c.version, _versions.c.schema_id
        same = {_versions.c.subject: subject, _versions.c.version: version}
        named, noted = (
            sa.select(table.c.version).where(table.c.subject == subject)
            for table in (_references, _forgotten)
        )
        query = _matching(sa.select(*columns), same).where(
            _versions.c.version.in_(named), _versions.c.version.not_in(noted)
        )
        self._execute(_forgotten.insert().from_select(["subject", "version", "schema_id"], query))

    def is_named_as_another(self, subject: str, version: int, schema_id: int | None) -> bool:
        """Return True when a reference names a permanently deleted version, unless that version held this
        schema.

        The schema of a version that an older release deleted is not known: then the result is True.
        """
        named, noted = (
            sa.select(table.c.schema_id).where(table.c.subject == subject, table.c.version == version)
            for table in (_references, _forgotten)
        )
        return self._execute(named).first() is not None and self._execute(noted).scalar() != schema_id

    def note_origin(self, subject: str, version: int, origin: Origin) -> None:
        row = {"commit": origin.commit, "author": origin.author, "time": origin.time}
        self._execute(_origins.insert(), {"subject": subject, "version": version, **row})

    def origins(self, subject: str) -> dict[int, Origin]:
        """Return the origins of a subject's versions that were registered by `/apply`, by number."""
        rows = self._execute(sa.select(_origins).where(_origins.c.subject == subject))
        return {row.version: Origin(row.commit, row.author, row.time) for row in rows}

    def deletions(self) -> int:
        """Return the number of permanent deletions. If it has grown, cached ids may no longer exist."""
        return int(self.setting(_REGISTRY, _DELETIONS) or 0)

    def remove_subject(self, subject: str) -> None:
        """Remove a subject without versions: its numbers start again after those that references name."""
        self._execute(_subjects.delete().where(_subjects.c.name == subject))

    def referenced_by(
        self, subject: str, version: int | None = None, *, deleted: bool | None = False, page: slice = ALL
    ) -> list[int]:
        """Return the ids of the schemas that refer to this version, or to any version of the subject, and
        that have matching versions.
        """
        columns = {
            _references.c.subject: subject,
            _references.c.version: version,
            _versions.c.deleted: deleted,
        }
        query = sa.select(_references.c.schema_id).join(
            _versions, _versions.c.schema_id == _references.c.schema_id
        )
        query = _matching(query, columns).distinct().order_by(_references.c.schema_id)
        return list(self._execute(_cut(query, page)).scalars())

    def setting(self, subject: str, name: str) -> str | None:
        return self._execute(sa.select(_settings.c.value).where(_setting(subject, name))).scalar()

    def set(self, subject: str, name: str, value: str | None) -> None:
        self._execute(_settings.delete().where(_setting(subject, name)))
        if value is not None:
            self._execute(_settings.insert(), {"subject": subject, "name": name, "value": value})


def _next(last: int, none_left: str) -> int:
    if last >= LARGEST:
        raise RegistryError(ErrorCode.OPERATION_NOT_PERMITTED, none_left)
    return last + 1


def _matching(query: sa.Select[Any], columns: Mapping[Any, Any], prefix: str = "") -> sa.Select[Any]:
    """Restrict a query to rows with the values that are not None, and to subjects with the prefix."""
    query = query.where(*(column == value for column, value in columns.items() if value is not None))
    if not prefix:
        return query
    # No LIKE: in SQLite it ignores case, so that `orders` would match the prefix `Order`.
    return query.where(sa.func.substr(_versions.c.subject, 1, len(prefix)) == prefix)


def _cut(query: sa.Select[Any], page: slice) -> sa.Select[Any]:
    if page == ALL:
        return query
    limit = None if page.stop is None else page.stop - page.start
    return query.limit(limit).offset(page.start)


def _setting(subject: str, name: str) -> sa.ColumnElement[bool]:
    return sa.and_(_settings.c.subject == subject, _settings.c.name == name)


def _schema(row: Any) -> StoredSchema:
    references = tuple(Reference(*reference) for reference in json.loads(row.reference_list))
    properties = json.loads(row.properties) if row.properties else {}
    return StoredSchema(row.schema_id, row.fingerprint, row.text, references, properties)


class RecentSchemas:
    """A cache of recently read schemas by id. A schema never changes, so only its deletion can make an entry
    stale.

    Entries are valid for _RECENT_S after the start of the last transaction that read the number of permanent
    deletions; a new number clears them. Methods may be called from any thread.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._schemas: dict[int, StoredSchema] = {}
        self._characters = 0
        self._deletions = 0
        self._valid_until = -math.inf
        self._changed_at = -math.inf
        self._lock = threading.Lock()

    def get(self, schema_id: int) -> StoredSchema | None:
        """Return the schema of an id; None when it must be read from the database."""
        with self._lock:
            return self._schemas.get(schema_id) if self.clock() < self._valid_until else None

    def add(self, schema: StoredSchema, deletions: int, began: float) -> None:
        """Cache a schema that was read by a transaction which began at `began` and saw `deletions`."""
        with self._lock:
            if began <= self._changed_at:
                return
            if deletions != self._deletions or self._characters > MAX_RECENT_CHARACTERS:
                self._schemas.clear()
                self._characters, self._deletions = 0, deletions
            if schema.id not in self._schemas:
                self._schemas[schema.id] = schema
                self._characters += len(schema.text)
            self._valid_until = began + _RECENT_S

    def forget(self) -> None:
        """Make all entries invalid after a write, until the number of deletions is read again."""
        with self._lock:
            self._changed_at, self._valid_until = self.clock(), -math.inf


class Store:
    """The registry's database; all processes that open the same database see the same schemas."""

    def __init__(self, engine: sa.Engine, handed_out: HandedOut | None = None) -> None:
        self._engine, self._handed_out = engine, handed_out
        self._postgres = engine.dialect.name == "postgresql"
        self.recent = RecentSchemas()

    @classmethod
    def open(cls, url: str, handed_out: HandedOut | None = None) -> Store:
        """Open the database and create missing tables. Raise MillraceError, in one line, when it cannot be
        used.

        With `handed_out`, ids that an older copy of the database lacks are not reused.
        """
        store = cls(open_database(url, cls._create_tables), handed_out)
        if handed_out is not None:
            handed_out.check(store._largest_id)
        return store

    def _largest_id(self) -> int:
        with self.read() as rows:
            return rows.largest_id()

    @classmethod
    def _create_tables(cls, engine: sa.Engine) -> None:
        if engine.dialect.name == "sqlite" and engine.url.database in (None, "", ":memory:"):
            raise MillraceError(
                "a registry in memory would reuse ids after a restart: name a file,"
                " for example sqlite:////var/lib/millrace/registry.db"
            )
        with cls(engine).write() as rows:
            metadata.create_all(rows.connection)

    @contextmanager
    def read(self) -> Iterator[Transaction]:
        with self._engine.begin() as connection:
            yield Transaction(connection)

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        """Yield a transaction that no other writer overlaps.

        It commits at the end, rolls back on an exception.
        """
        # PostgreSQL takes a snapshot before it waits for the lock: later statements need a newer snapshot.
        options = {"isolation_level": "READ COMMITTED"} if self._postgres else {BEGIN: "BEGIN IMMEDIATE"}
        with self._engine.connect().execution_options(**options) as connection, connection.begin():
            if self._postgres:
                connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_WAIT_S}s'")
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_POSTGRES_LOCK)))
            rows = Transaction(connection, self._handed_out)
            yield rows
        self.recent.forget()
        if self._handed_out is not None and rows.largest_added:
            self._handed_out.note(rows.largest_added)

    def close(self) -> None:
        self._engine.dispose()
