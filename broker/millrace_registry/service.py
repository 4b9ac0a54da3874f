"""Rules of the registry: ids, versions, compatibility, deletion, and the settings that control them.

Each distinct schema has one id in all subjects, which is never reused. A subject is a list of versions; a new
version must keep the subject's compatibility level. The rules use neither HTTP nor SQL: `app.py` calls them
in a transaction of `store.py`. A change reads and writes in one transaction that no other writer overlaps.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar
from uuid import UUID

from millrace_registry.avro_schema import AvroSchema
from millrace_registry.compatibility import Level
from millrace_registry.errors import ErrorCode, InvalidSchema, RegistryError
from millrace_registry.references import SchemaParser
from millrace_registry.store import (
    ONE,
    Origin,
    Reference,
    Store,
    StoredSchema,
    StoredVersion,
    Transaction,
    fingerprint_of,
)

logger = logging.getLogger("millrace.registry")

_AT_ONCE = 100
"""Number of versions that a search reads at once; the search may end with any of them."""
LATEST = -1
"""Number that means the newest live version, as in Confluent's paths."""
GLOBAL = ""
"""Name under which the settings for all subjects are stored."""

Value = TypeVar("Value", bound=StrEnum)


class Mode(StrEnum):
    """Mode of a subject, which limits registration. The modes of Confluent's cluster linking are left out."""

    READWRITE = "READWRITE"
    READONLY = "READONLY"
    IMPORT = "IMPORT"


@dataclass(frozen=True, slots=True)
class Setting(Generic[Value]):
    """A setting that applies to a subject: the subject's own value, the global value, or the default."""

    name: str
    """Name of the setting in the store."""
    in_words: str
    default: Value
    invalid: ErrorCode
    not_configured: ErrorCode

    def parse(self, text: object) -> Value:
        """Return the value of that name, in upper or lower case.

        Raise RegistryError when there is no such value.
        """
        values = type(self.default)
        if isinstance(text, str) and text.upper() in values.__members__:
            return values[text.upper()]
        raise RegistryError(
            self.invalid, f"Invalid {self.in_words}. Valid values are {', '.join(values)}, not {text!r}"
        )

    def own(self, rows: Transaction, subject: str) -> Value | None:
        text = rows.setting(subject, self.name)
        return None if text is None else type(self.default)(text)

    def of(self, rows: Transaction, subject: str) -> Value:
        return self.own(rows, subject) or self.own(rows, GLOBAL) or self.default

    def read(self, rows: Transaction, subject: str, *, default_to_global: bool) -> Value:
        """Return the value that applies.

        Raise RegistryError if the subject has none and `default_to_global` is False.
        """
        if subject != GLOBAL and not default_to_global and self.own(rows, subject) is None:
            raise RegistryError(
                self.not_configured, f"Subject '{subject}' does not have subject-level {self.name} configured"
            )
        return self.of(rows, subject)

    def write(self, rows: Transaction, subject: str, value: Value, *, force: bool) -> None:
        """Change the value. IMPORT is allowed only while nothing is registered under the subject, unless
        forced.
        """
        self._check_writable(rows, subject)
        if value is Mode.IMPORT and not force and rows.versions(subject or None, deleted=None, page=ONE):
            raise _not_permitted(
                "Cannot import since schemas exist already: set force=true to do it nevertheless"
            )
        rows.set(subject, self.name, value)

    def reset(self, rows: Transaction, subject: str) -> Value:
        """Reset a subject to the global value, or GLOBAL to the default; return the old value."""
        self._check_writable(rows, subject)
        value = self.own(rows, subject)
        if value is None and subject != GLOBAL:
            raise RegistryError(ErrorCode.SUBJECT_NOT_FOUND, f"Subject '{subject}' not found.")
        rows.set(subject, self.name, None)
        return value or self.default

    def _check_writable(self, rows: Transaction, subject: str) -> None:
        if self is not MODE:  # ending read-only mode is always allowed
            _check_writable(rows, subject)


_LEVEL_CODES = ErrorCode.INVALID_COMPATIBILITY_LEVEL, ErrorCode.COMPATIBILITY_NOT_CONFIGURED
LEVEL = Setting("compatibility", "compatibility level", Level.BACKWARD, *_LEVEL_CODES)
MODE = Setting("mode", "mode", Mode.READWRITE, ErrorCode.INVALID_MODE, ErrorCode.MODE_NOT_CONFIGURED)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schema that a client sends: to register, to look up or to check."""

    text: str
    references: tuple[Reference, ...] = ()
    properties: Mapping[str, str] | None = None
    """Metadata by which clients choose a version; None matches any in a look-up."""
    schema_id: int | None = None
    """For an import, the schema's id in the other registry; otherwise None."""
    version: int | None = None
    """For an import, the version's number in the other registry; otherwise the number that the version must
    get."""

    def parse(self, rows: Transaction, parser: SchemaParser) -> tuple[AvroSchema, str]:
        """Return the schema, and the fingerprint of its text and references."""
        schema = parser.parse(rows, self.text, self.references)
        return schema, parser.content(schema, self.references)


def check_known(rows: Transaction, subject: str, *, deleted: bool | None = False) -> None:
    """Raise SUBJECT_NOT_FOUND when the subject has no live version or, if `deleted` is None, no version at
    all.
    """
    if not rows.numbers(subject, deleted=deleted, page=ONE):
        raise RegistryError(ErrorCode.SUBJECT_NOT_FOUND, f"Subject '{subject}' not found.")


def find_version(rows: Transaction, subject: str, number: int, *, deleted: bool = False) -> StoredVersion:
    """Return a live version of a subject, or any version with `deleted`. LATEST prefers a live version."""
    state = None if deleted else False
    if number != LATEST:
        versions = rows.versions(subject, number, deleted=state)
    else:
        versions = _latest(rows, subject) or (_latest(rows, subject, deleted=True) if deleted else [])
    if not versions:
        check_known(rows, subject, deleted=state)
        raise _no_version(number)
    return versions[0]


def _latest(rows: Transaction, subject: str, *, deleted: bool = False) -> list[StoredVersion]:
    return rows.versions(subject, deleted=deleted, newest_first=True, page=ONE)


def _no_version(number: int) -> RegistryError:
    return RegistryError(ErrorCode.VERSION_NOT_FOUND, f"Version {number} not found.")


def find_schema(rows: Transaction, schema_id: int) -> StoredSchema:
    """Return the schema of an id. Raise SCHEMA_NOT_FOUND when neither a live nor a deleted
    version holds it.
    """
    versions = rows.versions(schema_id=schema_id, deleted=None, page=ONE)
    if not versions:
        raise RegistryError(ErrorCode.SCHEMA_NOT_FOUND, f"Schema {schema_id} not found")
    return versions[0].schema


def find_schema_of_guid(rows: Transaction, guid: UUID) -> StoredSchema:
    schema = rows.schema(guid=guid)
    if schema is None or not rows.versions(schema_id=schema.id, deleted=None, page=ONE):
        raise RegistryError(ErrorCode.SCHEMA_NOT_FOUND, f"Schema {guid} not found")
    return schema


def find_latest_with(
    rows: Transaction, subject: str, properties: Mapping[str, str], *, deleted: bool = False
) -> StoredVersion:
    """Return the newest version whose schema has at least these properties."""
    state = None if deleted else False
    check_known(rows, subject, deleted=state)
    for start in itertools.count(0, _AT_ONCE):
        page = slice(start, start + _AT_ONCE)
        versions = rows.versions(subject, deleted=state, newest_first=True, page=page)
        for version in versions:
            if properties.items() <= version.schema.properties.items():
                return version
        if len(versions) < _AT_ONCE:
            break
    raise RegistryError(ErrorCode.SCHEMA_NOT_FOUND, "Schema not found")


def resolve(rows: Transaction, schema: StoredSchema) -> str:
    """Return the schema's text with every referenced type written out."""
    if not schema.references:
        return schema.text
    return SchemaParser().parse(rows, schema.text, schema.references).resolved_text


def look_up(rows: Transaction, subject: str, candidate: Candidate, *, deleted: bool = False) -> StoredVersion:
    """Return the version under which the subject holds the candidate's schema."""
    check_known(rows, subject, deleted=None if deleted else False)
    _, content = candidate.parse(rows, SchemaParser())
    versions = rows.versions(
        subject, content=content, properties=candidate.properties, deleted=None if deleted else False
    )
    if not versions:
        raise RegistryError(ErrorCode.SCHEMA_NOT_FOUND, "Schema not found")
    return versions[-1]


def register(store: Store, subject: str, candidate: Candidate) -> StoredVersion:
    """Register a schema; return the version that holds it, which is the existing version if the subject has
    the schema.
    """
    parser = SchemaParser()
    with store.read() as rows:  # a restarted client, the common case, takes no lock
        existing = _check_candidate(rows, parser, subject, candidate)
    if existing is not None:
        return existing
    with store.write() as rows:  # checked again under the lock; the slow work was done above
        existing = _check_candidate(rows, parser, subject, candidate)
        return existing or _add(rows, parser, subject, candidate)


def apply(
    store: Store, candidates: Sequence[tuple[str, Candidate]], levels: Mapping[str, Level], origin: Origin
) -> list[StoredVersion]:
    """Set levels and register schemas in one transaction, all or none; return the versions, in order.

    Each schema is checked by its subject's new level. An existing version keeps its origin. Raises as
    `register` does for the first schema that is refused.
    """
    parser = SchemaParser()
    with store.read() as rows:  # the slow work, before the lock
        for subject, candidate in candidates:
            _check_candidate(rows, parser, subject, candidate, levels.get(subject))
    with store.write() as rows:
        for subject, level in levels.items():
            if LEVEL.own(rows, subject) is not level:
                LEVEL.write(rows, subject, level, force=False)
        applied = []
        for subject, candidate in candidates:
            version = _check_candidate(rows, parser, subject, candidate)
            if version is None:
                version = _add(rows, parser, subject, candidate)
                rows.note_origin(subject, version.version, origin)
            applied.append(version)
    return applied


def _check_candidate(
    rows: Transaction,
    parser: SchemaParser,
    subject: str,
    candidate: Candidate,
    new_level: Level | None = None,
) -> StoredVersion | None:
    """Return the version that holds the schema; None if it must be registered.

    Raise an error if that is not allowed.
    """
    schema, content = candidate.parse(rows, parser)
    existing = rows.versions(subject, content=content, properties=candidate.properties)
    if existing and candidate.schema_id in (None, existing[-1].schema.id):
        return existing[-1]
    _check_writable(rows, subject)
    importing = MODE.of(rows, subject) is Mode.IMPORT
    if candidate.schema_id is not None:
        if not importing:
            raise _not_permitted(f"Subject {subject} is not in import mode: send no id")
        _check_import(rows, subject, candidate, content)
        return None
    if importing:
        raise _not_permitted(f"Subject {subject} is in import mode: send the schema's id")
    _check_no_flaw(schema)
    level = new_level or LEVEL.of(rows, subject)
    numbers = _compared(rows, subject, level)
    if reasons := _compare(rows, parser, schema, numbers, level):
        raise RegistryError(
            ErrorCode.INCOMPATIBLE_SCHEMA,
            "Schema being registered is incompatible with an earlier schema for subject"
            f' "{subject}", details: {"; ".join(reasons)} (level {level})',
        )
    return None


def _check_no_flaw(schema: AvroSchema) -> None:
    if schema.flaw is not None:
        raise InvalidSchema(schema.flaw)


def _check_import(rows: Transaction, subject: str, candidate: Candidate, content: str) -> None:
    """Refuse an id, or a given version, that belongs to different schemas here and in the other registry."""
    stored = rows.schema(fingerprint=fingerprint_of(content, candidate.properties))
    if stored is not None and stored.id != candidate.schema_id:
        message = f"the schema has id {stored.id} here, not {candidate.schema_id}"
        raise RegistryError(ErrorCode.ID_DOES_NOT_MATCH, message)
    if stored is None and rows.schema(candidate.schema_id) is not None:
        raise _not_permitted(f"Overwrite new schema with id {candidate.schema_id} is not permitted.")
    if candidate.version is None:
        return
    if rows.versions(subject, candidate.version, deleted=None):
        raise _not_permitted(f"version {candidate.version} of subject {subject} exists already")
    if rows.is_named_as_another(subject, candidate.version, candidate.schema_id):
        raise _not_permitted(
            f"schemas refer to version {candidate.version} of subject {subject} as another schema, which was"
            " deleted: import this one under another version"
        )


def _add(rows: Transaction, parser: SchemaParser, subject: str, candidate: Candidate) -> StoredVersion:
    schema, content = candidate.parse(rows, parser)
    properties = candidate.properties
    stored = rows.schema(fingerprint=fingerprint_of(content, properties))
    if stored is None:
        stored = rows.add_schema(content, schema.text, candidate.references, properties, candidate.schema_id)
    imported = candidate.version if candidate.schema_id is not None else None
    version = rows.add_version(subject, stored, imported)
    if candidate.version not in (None, version.version):  # another client has registered a version in between
        raise InvalidSchema(f"it would be version {version.version}, not {candidate.version} as asked for")
    logger.info("subject %s version %d is schema %d", subject, version.version, stored.id)
    return version


def check(rows: Transaction, subject: str, candidate: Candidate, number: int | None = None) -> list[str]:
    """Return reasons why the schema could not be registered, one line each; empty if it could.

    The schema is compared with version `number` or, by the subject's level, with the latest or all versions.
    A subject without versions accepts every schema.
    """
    parser = SchemaParser()
    schema, _ = candidate.parse(rows, parser)
    _check_no_flaw(schema)
    level = LEVEL.of(rows, subject)
    if number is None:
        numbers = _compared(rows, subject, level)
    elif number == LATEST:
        numbers = _compared(rows, subject, Level.BACKWARD)
    elif versions := rows.versions(subject, number):
        numbers = {number: versions[0].schema.id}
    else:
        raise _no_version(number)
    return _compare(rows, parser, schema, numbers, level)


def _compared(rows: Transaction, subject: str, level: Level) -> dict[int, int]:
    """Return the numbers of the versions with which a level compares, each with its schema's id."""
    if level.endswith("_TRANSITIVE"):
        return rows.numbers(subject)
    return {version.version: version.schema.id for version in _latest(rows, subject)}


def _compare(
    rows: Transaction, parser: SchemaParser, schema: AvroSchema, numbers: Mapping[int, int], level: Level
) -> list[str]:
    """Return reasons why a schema breaks the level with the versions `numbers`, one line each,
    newest first.
    """
    reasons: list[str] = []
    for number, schema_id in sorted(numbers.items(), reverse=True) if level is not Level.NONE else ():
        reasons += parser.compare(rows, schema, schema_id, number, level)
    return reasons


def delete(
    rows: Transaction, subject: str, number: int | None = None, *, permanent: bool = False
) -> list[int]:
    """Delete one version, or the subject; return the numbers of the deleted versions.

    A version must be deleted before it can be deleted permanently. A subject keeps its settings until it is
    deleted permanently.
    """
    _check_writable(rows, subject)
    if number is None:
        check_known(rows, subject, deleted=None)
        live, what = list(rows.numbers(subject)), f"Subject '{subject}'"
        codes = ErrorCode.SUBJECT_SOFT_DELETED, ErrorCode.SUBJECT_NOT_SOFT_DELETED
    else:
        version = find_version(rows, subject, number, deleted=True)
        number = version.version
        live, what = [] if version.deleted else [number], f"Subject '{subject}' Version {number}"
        codes = ErrorCode.VERSION_SOFT_DELETED, ErrorCode.VERSION_NOT_SOFT_DELETED
    if permanent and live:
        raise RegistryError(codes[1], f"{what} was not deleted first before being permanently deleted")
    if not permanent and not live:
        raise RegistryError(codes[0], f"{what} was soft deleted. Set permanent=true to delete permanently")
    _check_unreferenced(rows, subject, number, what, permanent=permanent)
    deleted = [number] if number is not None else live or list(rows.numbers(subject, deleted=True))
    rows.delete_versions(subject, number, permanent=permanent)
    if number is None and permanent:
        for setting in (LEVEL, MODE):
            rows.set(subject, setting.name, None)
        rows.remove_subject(subject)
    logger.info("%s is deleted%s", what, " permanently" if permanent else "")
    return deleted


def _check_unreferenced(
    rows: Transaction, subject: str, number: int | None, what: str, *, permanent: bool
) -> None:
    # A deleted schema is still read by its id, so it needs its references until it is deleted permanently.
    users = rows.referenced_by(subject, number, deleted=None if permanent else False, page=slice(0, 10))
    if users:
        named = ", ".join(map(str, users))
        raise RegistryError(
            ErrorCode.REFERENCE_EXISTS, f"{what} is referenced by schema {named}: delete that first"
        )


def _check_writable(rows: Transaction, subject: str) -> None:
    if MODE.of(rows, subject) is Mode.READONLY:
        raise _not_permitted(f"Subject {subject} is in read-only mode")


def _not_permitted(message: str) -> RegistryError:
    return RegistryError(ErrorCode.OPERATION_NOT_PERMITTED, message)
