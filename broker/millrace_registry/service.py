"""What the registry promises: ids, versions, compatibility, deletion, and the settings that rule them.

One id for each distinct schema, over all subjects, given once. A subject is a list of versions; a new one
must keep the subject's compatibility level. Knows neither HTTP nor SQL: `app.py` calls it in a transaction
of `store.py`. A change reads and writes in one transaction that no other writer overlaps.
"""

from __future__ import annotations

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
from millrace_registry.store import Reference, Store, StoredSchema, StoredVersion, Transaction, fingerprint_of

_log = logging.getLogger("millrace.registry")

LATEST = -1
"""The number that stands for the newest live version, as in Confluent's paths."""
GLOBAL = ""
"""The subject under which settings for all subjects are kept."""

Value = TypeVar("Value", bound=StrEnum)


class Mode(StrEnum):
    """What may be registered; the modes of Confluent's cluster linking are left out."""

    READWRITE = "READWRITE"
    READONLY = "READONLY"
    IMPORT = "IMPORT"


@dataclass(frozen=True, slots=True)
class Setting(Generic[Value]):
    """A setting that applies to a subject: its own value, the global one, or the default."""

    name: str
    """The name under which the store keeps it."""
    in_words: str
    default: Value
    invalid: ErrorCode
    not_configured: ErrorCode

    def parse(self, text: object) -> Value:
        """The value of that name, in any case; RegistryError when there is none."""
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
        """The value that applies; RegistryError when the subject has none and no default is wanted."""
        if subject != GLOBAL and not default_to_global and self.own(rows, subject) is None:
            raise RegistryError(
                self.not_configured, f"Subject '{subject}' does not have subject-level {self.name} configured"
            )
        return self.of(rows, subject)

    def write(self, rows: Transaction, subject: str, value: Value, *, force: bool) -> None:
        """Change the value; to IMPORT only while nothing is registered there, unless forced."""
        self._check_writable(rows, subject)
        if value is Mode.IMPORT and not force and rows.versions(subject or None, deleted=None):
            raise _not_permitted(
                "Cannot import since schemas exist already: set force=true to do it nevertheless"
            )
        rows.set(subject, self.name, value)

    def reset(self, rows: Transaction, subject: str) -> Value:
        """Go back to the global value, and GLOBAL to the default; the value there was."""
        self._check_writable(rows, subject)
        value = self.own(rows, subject)
        if value is None and subject != GLOBAL:
            raise RegistryError(ErrorCode.SUBJECT_NOT_FOUND, f"Subject '{subject}' not found.")
        rows.set(subject, self.name, None)
        return value or self.default

    def _check_writable(self, rows: Transaction, subject: str) -> None:
        if self is not MODE:  # what ends read-only is always allowed
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
    """What clients choose a version by; None stands for any in a look-up."""
    schema_id: int | None = None
    """Only to import: the id it has elsewhere."""
    version: int | None = None
    """Only to import: the version it has elsewhere."""

    def parse(self, rows: Transaction, parser: SchemaParser) -> tuple[AvroSchema, str]:
        """The schema, and the fingerprint of its text and references."""
        schema = parser.parse(rows, self.text, self.references)
        return schema, schema.fingerprint(sorted((r.name, r.subject, r.version) for r in self.references))


def find_versions(rows: Transaction, subject: str, *, deleted: bool = False) -> list[StoredVersion]:
    """The subject's live versions, with `deleted` all of them; SUBJECT_NOT_FOUND when it has none."""
    versions = rows.versions(subject, deleted=None if deleted else False)
    if not versions:
        raise RegistryError(ErrorCode.SUBJECT_NOT_FOUND, f"Subject '{subject}' not found.")
    return versions


def find_version(rows: Transaction, subject: str, number: int, *, deleted: bool = False) -> StoredVersion:
    """A live version of a subject, with `deleted` any."""
    return _choose(find_versions(rows, subject, deleted=deleted), number)


def _choose(versions: Sequence[StoredVersion], number: int) -> StoredVersion:
    if number == LATEST:
        return next((version for version in reversed(versions) if not version.deleted), versions[-1])
    for version in versions:
        if version.version == number:
            return version
    raise RegistryError(ErrorCode.VERSION_NOT_FOUND, f"Version {number} not found.")


def find_uses(rows: Transaction, schema_id: int, *, deleted: bool = False) -> list[StoredVersion]:
    """The live versions that hold the schema of an id, with `deleted` all of them.

    SCHEMA_NOT_FOUND when not even a deleted version holds it.
    """
    versions = rows.versions(schema_id=schema_id, deleted=None)
    if not versions:
        raise RegistryError(ErrorCode.SCHEMA_NOT_FOUND, f"Schema {schema_id} not found")
    return [version for version in versions if deleted or not version.deleted]


def find_schema(rows: Transaction, schema_id: int) -> StoredSchema:
    return find_uses(rows, schema_id, deleted=True)[0].schema


def find_schema_of_guid(rows: Transaction, guid: UUID) -> StoredSchema:
    schema = rows.schema(guid=guid)
    if schema is None or not rows.versions(schema_id=schema.id, deleted=None):
        raise RegistryError(ErrorCode.SCHEMA_NOT_FOUND, f"Schema {guid} not found")
    return schema


def find_latest_with(
    rows: Transaction, subject: str, properties: Mapping[str, str], *, deleted: bool = False
) -> StoredVersion:
    """The newest version whose schema has all of these properties, and perhaps more."""
    for version in reversed(find_versions(rows, subject, deleted=deleted)):
        if properties.items() <= version.schema.properties.items():
            return version
    raise RegistryError(ErrorCode.SCHEMA_NOT_FOUND, "Schema not found")


def resolve(rows: Transaction, schema: StoredSchema) -> str:
    """The schema's text with every referenced type written out."""
    if not schema.references:
        return schema.text
    return SchemaParser().parse(rows, schema.text, schema.references).resolved_text


def look_up(rows: Transaction, subject: str, candidate: Candidate, *, deleted: bool = False) -> StoredVersion:
    """The version under which the subject holds this schema."""
    find_versions(rows, subject, deleted=deleted)
    _, content = candidate.parse(rows, SchemaParser())
    versions = rows.versions(
        subject, content=content, properties=candidate.properties, deleted=None if deleted else False
    )
    if not versions:
        raise RegistryError(ErrorCode.SCHEMA_NOT_FOUND, "Schema not found")
    return versions[-1]


def register(store: Store, subject: str, candidate: Candidate) -> StoredVersion:
    """Register a schema; the version that holds it, the existing one if the subject has it already."""
    parser = SchemaParser()
    with store.read() as rows:  # a client that starts again, the common case, takes no lock
        existing = _check_candidate(rows, parser, subject, candidate)
    if existing is not None:
        return existing
    with store.write() as rows:  # checked again, now for good; what takes long was done above
        existing = _check_candidate(rows, parser, subject, candidate)
        return existing or _add(rows, parser, subject, candidate)


def _check_candidate(
    rows: Transaction, parser: SchemaParser, subject: str, candidate: Candidate
) -> StoredVersion | None:
    """The version that holds the schema; None when none does and it may be registered, else this raises."""
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
    level = LEVEL.of(rows, subject)
    if reasons := _compare(rows, parser, schema, rows.versions(subject), level):
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
    """Refuse an id, or a version if given, that means something else here than in the other registry."""
    stored = rows.schema(fingerprint=fingerprint_of(content, candidate.properties))
    if stored is not None and stored.id != candidate.schema_id:
        message = f"the schema has id {stored.id} here, not {candidate.schema_id}"
        raise RegistryError(ErrorCode.ID_DOES_NOT_MATCH, message)
    if stored is None and rows.schema(candidate.schema_id) is not None:
        raise _not_permitted(f"Overwrite new schema with id {candidate.schema_id} is not permitted.")
    if candidate.version is not None and rows.versions(subject, candidate.version, deleted=None):
        raise _not_permitted(f"version {candidate.version} of subject {subject} exists already")


def _add(rows: Transaction, parser: SchemaParser, subject: str, candidate: Candidate) -> StoredVersion:
    schema, content = candidate.parse(rows, parser)
    properties = candidate.properties
    stored = rows.schema(fingerprint=fingerprint_of(content, properties))
    if stored is None:
        stored = rows.add_schema(content, schema.text, candidate.references, properties, candidate.schema_id)
    imported = candidate.version if candidate.schema_id is not None else None
    version = rows.add_version(subject, stored, imported)
    _log.info("subject %s version %d is schema %d", subject, version.version, stored.id)
    return version


def check(rows: Transaction, subject: str, candidate: Candidate, number: int | None = None) -> list[str]:
    """Why the schema could not be registered, one line each; empty when it could.

    Against one version, or by the subject's level against the latest or all. A subject without versions
    takes every schema.
    """
    parser = SchemaParser()
    schema, _ = candidate.parse(rows, parser)
    _check_no_flaw(schema)
    versions = rows.versions(subject)
    if number is not None and (versions or number != LATEST):
        versions = [_choose(versions, number)]
    return _compare(rows, parser, schema, versions, LEVEL.of(rows, subject))


def _compare(
    rows: Transaction,
    parser: SchemaParser,
    schema: AvroSchema,
    versions: Sequence[StoredVersion],
    level: Level,
) -> list[str]:
    compared = versions if level.endswith("_TRANSITIVE") else versions[-1:]
    reasons = []
    for version in reversed(compared if level is not Level.NONE else ()):
        old = parser.parse(rows, version.schema.text, version.schema.references)
        reasons += parser.compare(schema, old, version.version, level)
    return reasons


def delete(
    rows: Transaction, subject: str, number: int | None = None, *, permanent: bool = False
) -> list[int]:
    """Delete one version, or the subject; the numbers of what was deleted.

    What is live is deleted first, and only what was deleted is deleted permanently. A subject keeps its
    settings until then.
    """
    _check_writable(rows, subject)
    if number is None:
        versions, what = find_versions(rows, subject, deleted=True), f"Subject '{subject}'"
        codes = ErrorCode.SUBJECT_SOFT_DELETED, ErrorCode.SUBJECT_NOT_SOFT_DELETED
    else:
        versions = [find_version(rows, subject, number, deleted=True)]
        what = f"Subject '{subject}' Version {versions[0].version}"
        codes = ErrorCode.VERSION_SOFT_DELETED, ErrorCode.VERSION_NOT_SOFT_DELETED
    live = [version for version in versions if not version.deleted]
    if permanent and live:
        raise RegistryError(codes[1], f"{what} was not deleted first before being permanently deleted")
    if not permanent and not live:
        raise RegistryError(codes[0], f"{what} was soft deleted. Set permanent=true to delete permanently")
    chosen = versions if permanent else live
    for version in chosen:
        _delete_version(rows, version, permanent=permanent)
    if number is None and permanent:
        for setting in (LEVEL, MODE):
            rows.set(subject, setting.name, None)
        rows.remove_subject(subject)
    return [version.version for version in chosen]


def _delete_version(rows: Transaction, version: StoredVersion, *, permanent: bool) -> None:
    # A deleted schema is still read by its id, so it needs its references until it is forgotten.
    users = rows.referenced_by(version.subject, version.version, deleted=None if permanent else False)
    if users:
        raise RegistryError(
            ErrorCode.REFERENCE_EXISTS,
            f"version {version.version} of subject {version.subject} is referenced by schema"
            f" {', '.join(map(str, users))}: delete that first",
        )
    rows.delete_version(version, permanent=permanent)
    how = " permanently" if permanent else ""
    _log.info("subject %s version %d is deleted%s", version.subject, version.version, how)


def _check_writable(rows: Transaction, subject: str) -> None:
    if MODE.of(rows, subject) is Mode.READONLY:
        raise _not_permitted(f"Subject {subject} is in read-only mode")


def _not_permitted(message: str) -> RegistryError:
    return RegistryError(ErrorCode.OPERATION_NOT_PERMITTED, message)
