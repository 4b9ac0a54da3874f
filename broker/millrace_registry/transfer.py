"""Export of a registry's contents into a folder, and import from a folder or a registry into a registry.

Subjects, versions, ids, deleted versions and subjects' levels are kept, so data with those ids stays
readable. It works between any registries with Confluent's interface. Existing versions stay as they are, so
an import that ended halfway can be repeated. Modes and schemas of other types than Avro are left out. For a
registry of Millrace, which does not support data rules and tags, schemas with these are left out, too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from millrace.errors import MillraceError
from millrace_registry.avro_schema import AvroSchema, parse
from millrace_registry.client import SchemaRefused, SchemaRegistryClient, UnknownSchema, quoted
from millrace_registry.errors import InvalidSchema

_PAGE = 1000
_WHOLE = "_registry.json"
"""File that an export writes last: a folder without it is incomplete."""
_LONGEST_NAME = 150


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version of a subject, with the fields of registries' answers."""

    subject: str
    version: int
    id: int
    schema: str
    schema_type: str = "AVRO"
    references: list[dict[str, Any]] = field(default_factory=list)
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = None
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of a registry."""

    versions: list[Version]
    levels: Mapping[str, str]
    """Subject -> its own level."""
    level: str
    """Level of the subjects without a level of their own."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """Result of one version's import."""

    subject: str
    version: int
    id: int
    state: Literal["imported", "unchanged", "left out"]
    reason: str = ""


def read_registry(client: SchemaRegistryClient) -> Contents:
    """Read all contents of a registry, deleted versions too; nothing should be registered meanwhile."""
    everything = {(v["subject"], v["version"]): v for v in _pages(client)}
    live = {
        subject: set(client.versions(subject))
        for subject in dict.fromkeys(subject for subject, _ in everything)
    }
    versions = [
        Version(
            subject=subject,
            version=number,
            id=found["id"],
            schema=found["schema"],
            schema_type=found.get("schemaType") or "AVRO",
            references=found.get("references") or [],
            metadata=found.get("metadata"),
            rule_set=found.get("ruleSet"),
            deleted=number not in live[subject],
        )
        for (subject, number), found in sorted(everything.items())
    ]
    levels = {subject: level for subject in live if (level := _level(client, subject))}
    return Contents(versions, levels, _level(client, None) or "")


def _pages(client: SchemaRegistryClient) -> Iterator[dict[str, Any]]:
    """Yield every version, page by page; some registries return all at once and ignore offset and limit."""
    first, offset = None, 0
    while page := client.ask(f"/schemas?deleted=true&offset={offset}&limit={_PAGE}"):
        if page[0] == first:
            return
        first = first or page[0]
        yield from page
        offset += len(page)


def _level(client: SchemaRegistryClient, subject: str | None) -> str | None:
    path = "/config" if subject is None else f"/config/{quoted(subject)}"
    try:
        return str(client.ask(path, expected=("compatibilityLevel",))["compatibilityLevel"])
    except UnknownSchema:
        return None


def write_folder(contents: Contents, directory: Path) -> None:
    """Write a file for each subject into a new folder. Raise MillraceError when it cannot be written."""
    subjects: dict[str, list[Version]] = {}
    for version in contents.versions:
        subjects.setdefault(version.subject, []).append(version)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise MillraceError(f"{directory} is not empty: give a new folder")
        for subject, versions in subjects.items():
            rows = [{k: v for k, v in asdict(version).items() if k != "subject"} for version in versions]
            level = contents.levels.get(subject)
            _write(directory / _file_name(subject), {"subject": subject, "level": level, "versions": rows})
        _write(directory / _WHOLE, {"subjects": len(subjects), "level": contents.level})
    except OSError as error:
        raise MillraceError(f"cannot write {directory}: {error}") from error


def read_folder(directory: Path) -> Contents:
    """Read an export's folder. Raise MillraceError when it is incomplete."""
    try:
        files = [path for path in sorted(directory.glob("*.json")) if path.name != _WHOLE]
        whole = json.loads((directory / _WHOLE).read_text())
        subjects = [json.loads(path.read_text()) for path in files]
        versions = [Version(subject=s["subject"], **version) for s in subjects for version in s["versions"]]
        levels = {s["subject"]: s["level"] for s in subjects if s["level"]}
        if whole["subjects"] != len(subjects):
            raise ValueError(f"it has {len(subjects)} of {whole['subjects']} subjects")
        return Contents(versions, levels, whole["level"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MillraceError(
            f"{directory} is not a complete export: {error}; export the registry again"
        ) from error


def write_registry(contents: Contents, client: SchemaRegistryClient) -> list[Transfer]:
    """Import all contents into a registry; return one result for each version.

    Raise SchemaRefused, before any change, when an id or a version belongs to another schema in that
    registry.
    """
    there = read_registry(client)
    to_millrace = client.is_millrace()
    left_out = _left_out(contents.versions, to_millrace)
    wanted = [version for version in contents.versions if (version.subject, version.version) not in left_out]
    _check_no_conflict(wanted, there.versions, to_millrace)
    known = {(version.subject, version.version): version for version in there.versions}
    with _importing(client, {version.subject for version in wanted}):
        for version in _referenced_first(wanted):
            found = known.get((version.subject, version.version))
            if found is None:
                _register(client, version)
            if version.deleted and (found is None or not found.deleted):
                path = f"/subjects/{quoted(version.subject)}/versions/{version.version}"
                client.ask(path, method="DELETE")
    for subject, level in contents.levels.items():
        if there.levels.get(subject) != level:
            client.ask(f"/config/{quoted(subject)}", {"compatibility": level}, method="PUT")
    return [_transfer(version, known, left_out) for version in contents.versions]


def _transfer(
    version: Version, known: Mapping[tuple[str, int], Version], left_out: Mapping[tuple[str, int], str]
) -> Transfer:
    of = version.subject, version.version, version.id
    if (reason := left_out.get(of[:2])) is not None:
        return Transfer(*of, "left out", reason)
    return Transfer(*of, "unchanged" if of[:2] in known else "imported")


def _left_out(versions: Iterable[Version], to_millrace: bool) -> dict[tuple[str, int], str]:
    """Return the reason to leave a version out, by (subject, version).

    Versions that refer to it are left out, too.
    """
    reasons: dict[tuple[str, int], str] = {}
    known: dict[tuple[str, int], AvroSchema] = {}
    for version in _referenced_first(versions):
        more = {f"metadata.{key}": value for key, value in (version.metadata or {}).items()}
        more |= {f"ruleSet.{key}": value for key, value in (version.rule_set or {}).items()}
        lost = sorted(key for key, value in more.items() if value and key != "metadata.properties")
        used = [(reference["subject"], reference["version"]) for reference in version.references]
        if version.schema_type != "AVRO":
            reason = f"it is of type {version.schema_type}; only Avro is carried"
        elif to_millrace and lost:
            reason = f"its {', '.join(lost)} would have no effect there"
        elif missing := next((each for each in used if each in reasons), None):
            reason = f"it refers to subject {missing[0]} version {missing[1]}, which is left out"
        elif to_millrace and known.keys() >= set(used):
            referenced = {name: tree for each in used for name, tree in known[each].definitions.items()}
            try:
                schema = parse(version.schema, referenced, flawed_too=True)
            except InvalidSchema as error:
                reason = f"Millrace's registry does not take it: {error}"
            else:
                known[version.subject, version.version] = schema
                continue
        else:
            continue
        reasons[version.subject, version.version] = reason
    return reasons


@contextmanager
def _importing(client: SchemaRegistryClient, subjects: Iterable[str]) -> Iterator[None]:
    """Put subjects into mode IMPORT, which accepts ids; restore their modes afterwards.

    A run that ended halfway may have left a subject in this mode: afterwards that subject has no mode of its
    own.
    """
    modes: dict[str, str | None] = {}
    try:
        for subject in sorted(subjects):
            path = f"/mode/{quoted(subject)}"
            try:
                modes[path] = client.ask(path, expected=("mode",))["mode"]
            except UnknownSchema:
                modes[path] = None
            client.ask(f"{path}?force=true", {"mode": "IMPORT"}, method="PUT")
        yield
    finally:
        for path, mode in modes.items():
            if mode in (None, "IMPORT"):
                client.ask(path, method="DELETE")
            else:
                client.ask(f"{path}?force=true", {"mode": mode}, method="PUT")


def _register(client: SchemaRegistryClient, version: Version) -> None:
    body = {"schema": version.schema, "id": version.id, "version": version.version}
    if version.references:
        body["references"] = version.references
    if version.metadata:
        body["metadata"] = version.metadata
    if version.rule_set:
        body["ruleSet"] = version.rule_set
    client.ask(f"/subjects/{quoted(version.subject)}/versions", body, expected=("id",))


def _check_no_conflict(wanted: Iterable[Version], there: Iterable[Version], to_millrace: bool) -> None:
    ids = {version.id: version for version in there}
    numbers = {(version.subject, version.version): version for version in there}
    # A registry of Millrace gives one id to all texts with the same meaning.
    ids_of = {_meaning(version): version.id for version in there} if to_millrace else {}
    conflicts = []
    for version in wanted:
        what = f"subject {version.subject} version {version.version}"
        same_number = numbers.get((version.subject, version.version))
        same_id = ids.get(version.id)
        other_id = ids_of.setdefault(_meaning(version), version.id) if to_millrace else version.id
        if same_number is not None and same_number.id != version.id:
            conflicts.append(f"{what} has id {same_number.id} there, {version.id} here")
        elif other_id != version.id:
            conflicts.append(f"the schema of {what} has id {other_id} there, {version.id} here")
        elif same_id is not None and not _same_schema(same_id, version):
            conflicts.append(f"id {version.id} is another schema there than in subject {version.subject}")
    if conflicts:
        more = f" and {len(conflicts) - 5} more" if len(conflicts) > 5 else ""
        raise SchemaRefused(f"nothing was imported: {'; '.join(conflicts[:5])}{more}")


def _meaning(version: Version) -> str:
    """Return the identity of a schema in a registry of Millrace.

    A text with references is taken literally.
    """
    used = sorted((each["name"], each["subject"], each["version"]) for each in version.references)
    properties = (version.metadata or {}).get("properties") or None
    return json.dumps([_tree(version), used, properties], sort_keys=True)


def _same_schema(one: Version, other: Version) -> bool:
    """Return True if two schemas are the same in Avro: registries write the same schema in several ways."""
    if one.references or other.references:
        return one.references == other.references
    return bool(_tree(one) == _tree(other))


def _tree(version: Version) -> Any:
    """Return the canonical schema as JSON; a text with references, or unreadable to Millrace, unchanged."""
    try:
        return json.loads(
            version.schema if version.references else parse(version.schema, flawed_too=True).text
        )
    except (InvalidSchema, ValueError):
        return version.schema


def _referenced_first(versions: Iterable[Version]) -> list[Version]:
    """Return the versions by id and number, but each after the versions that it refers to."""
    left = {(v.subject, v.version): v for v in sorted(versions, key=lambda v: (v.id, v.version))}
    ordered = []

    def place(version: Version) -> None:
        if left.pop((version.subject, version.version), None) is None:
            return
        for reference in version.references:
            referenced = left.get((reference["subject"], reference["version"]))
            if referenced is not None:
                place(referenced)
        ordered.append(version)

    for version in list(left.values()):
        place(version)
    return ordered


def _file_name(subject: str) -> str:
    name = quoted(subject)
    if len(name) > _LONGEST_NAME:  # file names have a lower limit than subjects
        name = f"{name[:_LONGEST_NAME]}~{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    return f"{name}.json"


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True) + "\n")
