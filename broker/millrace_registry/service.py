"""What the registry promises: ids, versions, compatibility, deletion.

One id for each distinct schema, over all subjects, given once. A subject is a list of versions; a new one
must keep the subject's compatibility level. Knows neither HTTP nor SQL: `app.py` calls it, `store.py` keeps
its rows. Every change reads and writes in one transaction that no other writer overlaps.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from millrace_registry.avro_schema import AvroSchema
from millrace_registry.compatibility import Level, incompatibilities
from millrace_registry.errors import ErrorCode, RegistryError
from millrace_registry.references import SchemaParser
from millrace_registry.settings import LEVEL, MODE, Mode, forget
from millrace_registry.store import Reference, Store, StoredSchema, StoredVersion, Transaction

_log = logging.getLogger("millrace.registry")

LARGEST = 2**31 - 1
"""The largest id and version: both travel as 32-bit signed numbers."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schema that a client sends: to register, to look up or to check."""

    text: str
    references: tuple[Reference, ...] = ()
    schema_id: int | None = None
    """Only to import: the id it has elsewhere."""
    version: int | None = None
    """Only to import: the version it has elsewhere."""

    def fingerprint(self, schema: AvroSchema) -> str:
        return schema.fingerprint(sorted((r.name, r.subject, r.version) for r in self.references))


class Registry:
    """The rules, on one store. `deleted` is False for live versions, True for deleted ones, None for all."""

    def __init__(self, store: Store) -> None:
        self._store = store

    # Looking up

    def subjects(self, *, prefix: str = "", deleted: bool | None = False) -> list[str]:
        with self._store.read() as rows:
            return rows.subjects(prefix=prefix, deleted=deleted)

    def versions(self, subject: str, *, deleted: bool | None = False) -> list[int]:
        with self._store.read() as rows:
            versions = _versions(rows, subject, deleted=deleted is not False)
        return [version.version for version in versions if deleted in (None, version.deleted)]

    def version(self, subject: str, number: str, *, deleted: bool = False) -> StoredVersion:
        """One version of a subject: a number, or `latest` or -1 for the newest live one."""
        with self._store.read() as rows:
            return _find(rows, subject, number, deleted=deleted)

    def all_versions(self, *, prefix: str = "", deleted: bool | None = False) -> list[StoredVersion]:
        with self._store.read() as rows:
            return rows.versions(prefix=prefix, deleted=deleted)

    def schema(self, schema_id: int) -> StoredSchema:
        """The schema of an id; readable as long as a version holds it, deleted or not."""
        return self.uses(schema_id, deleted=True)[0].schema

    def uses(self, schema_id: int, *, deleted: bool = False) -> list[StoredVersion]:
        """The versions that hold the schema of an id."""
        with self._store.read() as rows:
            versions = rows.versions(schema_id=schema_id, deleted=None)
        if not versions:
            raise RegistryError(ErrorCode.SCHEMA_NOT_FOUND, f"Schema {schema_id} not found")
        return [version for version in versions if deleted or not version.deleted]

    def referenced_by(self, subject: str, number: str) -> list[int]:
        with self._store.read() as rows:
            version = _find(rows, subject, number, deleted=True)
            return rows.referenced_by(subject, version.version, deleted=False)

    def standing_alone(self, schema: StoredSchema) -> str:
        if not schema.references:
            return schema.text
        with self._store.read() as rows:
            return SchemaParser().stored(rows, schema).resolved_text

    def lookup(self, subject: str, candidate: Candidate, *, deleted: bool = False) -> StoredVersion:
        """The version under which the subject holds this schema."""
        with self._store.read() as rows:
            _versions(rows, subject, deleted=deleted)
            schema = SchemaParser().sent(rows, candidate.text, candidate.references)
            version = _lookup(rows, subject, candidate.fingerprint(schema), deleted=deleted)
        if version is None:
            raise RegistryError(ErrorCode.SCHEMA_NOT_FOUND, "Schema not found")
        return version

    # Registering

    def register(self, subject: str, candidate: Candidate) -> StoredVersion:
        """Register a schema; the version that holds it, the existing one if the subject has it already."""
        parser = SchemaParser()
        with self._store.read() as rows:  # the common case takes no lock: a client that starts again
            schema, existing = _examine(parser, rows, subject, candidate)
        if existing is not None:
            return existing
        with self._store.write() as rows:  # examined again, now for good; what takes long was parsed above
            schema, existing = _examine(parser, rows, subject, candidate)
            if existing is not None:
                return existing
            if candidate.schema_id is not None:
                return _import(rows, subject, candidate, schema, candidate.schema_id)
            version = rows.add_version(subject, _store(rows, candidate, schema))
        _log.info("subject %s version %d is schema %d", subject, version.version, version.schema.id)
        return version

    def check(self, subject: str, candidate: Candidate, number: str | None = None) -> list[str]:
        """Why the schema could not be registered, one line each; empty when it could.

        Against one version, or by the subject's level against the latest or all. A subject without versions
        takes every schema.
        """
        parser = SchemaParser()
        with self._store.read() as rows:
            schema = parser.sent(rows, candidate.text, candidate.references)
            versions = rows.versions(subject=subject)
            if number is not None and (versions or not _is_latest(number)):
                versions = [_choose(versions, number)]
            return _incompatibilities(parser, rows, schema, versions, LEVEL.of(rows, subject))

    # Deleting

    def delete_version(self, subject: str, number: str, *, permanent: bool = False) -> int:
        """Delete a version, its number; permanently only what was deleted before."""
        with self._store.write() as rows:
            _check_writable(rows, subject)
            version = _find(rows, subject, number, deleted=True)
            what = f"Subject '{subject}' Version {version.version}"
            codes = ErrorCode.VERSION_SOFT_DELETED, ErrorCode.VERSION_NOT_SOFT_DELETED
            _check_two_steps(what, version.deleted, permanent, *codes)
            _delete(rows, [version], permanent=permanent)
            return version.version

    def delete_subject(self, subject: str, *, permanent: bool = False) -> list[int]:
        """Delete every version of a subject, their numbers; permanently only what was deleted before."""
        with self._store.write() as rows:
            _check_writable(rows, subject)
            versions = _versions(rows, subject, deleted=True)
            live = [version for version in versions if not version.deleted]
            codes = ErrorCode.SUBJECT_SOFT_DELETED, ErrorCode.SUBJECT_NOT_SOFT_DELETED
            _check_two_steps(f"Subject '{subject}'", not live, permanent, *codes)
            chosen = versions if permanent else live
            _delete(rows, chosen, permanent=permanent)
            forget(rows, subject)
            if permanent:
                rows.remove_subject(subject)
            return [version.version for version in chosen]


def _versions(rows: Transaction, subject: str, *, deleted: bool) -> list[StoredVersion]:
    """The subject's live versions, with `deleted` all of them; SUBJECT_NOT_FOUND when it has none."""
    versions = rows.versions(subject=subject, deleted=None if deleted else False)
    if not versions:
        raise RegistryError(ErrorCode.SUBJECT_NOT_FOUND, f"Subject '{subject}' not found.")
    return versions


def _find(rows: Transaction, subject: str, number: str, *, deleted: bool = False) -> StoredVersion:
    if not _is_latest(number):
        _version_number(number)  # what is no number is refused as that, whatever the subject
    return _choose(_versions(rows, subject, deleted=deleted), number)


def _choose(versions: Sequence[StoredVersion], number: str) -> StoredVersion:
    if _is_latest(number):
        return next((version for version in reversed(versions) if not version.deleted), versions[-1])
    wanted = _version_number(number)
    for version in versions:
        if version.version == wanted:
            return version
    raise RegistryError(ErrorCode.VERSION_NOT_FOUND, f"Version {number} not found.")


def _is_latest(number: str) -> bool:
    return number in ("latest", "-1")


def number_in(text: str) -> int | None:
    """The number from 0 to LARGEST that a path's segment spells; None when it spells none."""
    if text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= LARGEST:
        return int(text)
    return None


def _version_number(text: str) -> int:
    if number := number_in(text):
        return number
    raise RegistryError(
        ErrorCode.INVALID_VERSION,
        f"The specified version '{text}' is not a valid version id: take 1 to {LARGEST}, -1 or latest",
    )


def _lookup(
    rows: Transaction, subject: str, fingerprint: str, *, deleted: bool = False
) -> StoredVersion | None:
    stored = rows.schema_of(fingerprint)
    if stored is None:
        return None
    versions = rows.versions(subject=subject, schema_id=stored.id, deleted=None if deleted else False)
    return versions[-1] if versions else None


def _examine(
    parser: SchemaParser, rows: Transaction, subject: str, candidate: Candidate
) -> tuple[AvroSchema, StoredVersion | None]:
    """The schema, and the version that holds it; when none does, it may be registered, or this raises."""
    schema = parser.sent(rows, candidate.text, candidate.references)
    existing = _lookup(rows, subject, candidate.fingerprint(schema))
    if existing is not None and candidate.schema_id in (None, existing.schema.id):
        return schema, existing
    _check_mode(rows, subject, candidate)
    if candidate.schema_id is None:
        level = LEVEL.of(rows, subject)
        reasons = _incompatibilities(parser, rows, schema, rows.versions(subject=subject), level)
        if reasons:
            raise RegistryError(
                ErrorCode.INCOMPATIBLE_SCHEMA,
                f"schema is incompatible with subject {subject!r} (level {level}): {'; '.join(reasons)}",
            )
    return schema, None


def _incompatibilities(
    parser: SchemaParser,
    rows: Transaction,
    schema: AvroSchema,
    versions: Sequence[StoredVersion],
    level: Level,
) -> list[str]:
    if level is Level.NONE:
        return []
    compared = versions if level.transitive else versions[-1:]
    old = {version.version: parser.stored(rows, version.schema) for version in reversed(compared)}
    return incompatibilities(schema, old, level)


def _check_writable(rows: Transaction, subject: str) -> None:
    if MODE.of(rows, subject) is Mode.READONLY:
        raise _not_permitted(f"Subject {subject} is in read-only mode")


def _check_mode(rows: Transaction, subject: str, candidate: Candidate) -> None:
    _check_writable(rows, subject)
    importing = MODE.of(rows, subject) is Mode.IMPORT
    if candidate.schema_id is not None and not importing:
        raise _not_permitted(f"Subject {subject} is not in import mode: send no id")
    if candidate.schema_id is None and importing:
        raise _not_permitted(f"Subject {subject} is in import mode: send the schema's id")


def _store(rows: Transaction, candidate: Candidate, schema: AvroSchema) -> StoredSchema:
    """The row of the schema, which is added when no subject ever held it."""
    fingerprint = candidate.fingerprint(schema)
    stored = rows.schema_of(fingerprint)
    return stored or rows.add_schema(fingerprint, schema.text, candidate.references, candidate.schema_id)


def _import(
    rows: Transaction, subject: str, candidate: Candidate, schema: AvroSchema, schema_id: int
) -> StoredVersion:
    """Register under the id, and version if given, that the schema has in another registry."""
    fingerprint = candidate.fingerprint(schema)
    stored = rows.schema_of(fingerprint)
    if stored is not None and stored.id != schema_id:
        message = f"the schema has id {stored.id} here, not {schema_id}"
        raise RegistryError(ErrorCode.ID_DOES_NOT_MATCH, message)
    if stored is None and rows.schema(schema_id) is not None:
        raise _not_permitted(f"Overwrite new schema with id {schema_id} is not permitted.")
    held = rows.version(subject, candidate.version) if candidate.version is not None else None
    if held is not None:
        if held.schema != stored or held.deleted:
            raise _not_permitted(f"version {held.version} of subject {subject} exists already")
        return held
    stored = _store(rows, candidate, schema)
    return _lookup(rows, subject, fingerprint) or rows.add_version(subject, stored, candidate.version)


def _check_two_steps(
    what: str, deleted: bool, permanent: bool, soft_deleted: ErrorCode, not_soft_deleted: ErrorCode
) -> None:
    """What is live is deleted first, and only what was deleted is deleted permanently."""
    if deleted and not permanent:
        message = f"{what} was soft deleted. Set permanent=true to delete permanently"
        raise RegistryError(soft_deleted, message)
    if permanent and not deleted:
        message = f"{what} was not deleted first before being permanently deleted"
        raise RegistryError(not_soft_deleted, message)


def _delete(rows: Transaction, versions: Sequence[StoredVersion], *, permanent: bool) -> None:
    for version in versions:
        # A deleted schema is still read by its id, so it needs its references until it is forgotten.
        if users := rows.referenced_by(version.subject, version.version, deleted=permanent):
            raise RegistryError(
                ErrorCode.REFERENCE_EXISTS,
                f"version {version.version} of subject {version.subject} is referenced by schema"
                f" {', '.join(map(str, users))}: delete that first",
            )
        if permanent:
            rows.remove_version(version)
        else:
            rows.mark_deleted(version)
        how = " permanently" if permanent else ""
        _log.info("subject %s version %d is deleted%s", version.subject, version.version, how)


def _not_permitted(message: str) -> RegistryError:
    return RegistryError(ErrorCode.OPERATION_NOT_PERMITTED, message)
