"""A folder of `.avsc` files, sub-folders included, as the source of a registry's schemas: check, plan, apply.

One file is one topic's schema. Its name is the topic's name and, if that is a valid name in Avro, also its
record's name. With `plain`, a file may hold any schema under any name. `subjects` gives the topic's subject;
audit records keep their own names. A file may use the types of other files: in the registered schema they are
written out. `plan` asks the registry for the result of registering and changes nothing; `apply` registers all
files, or none if one is refused. `compare` asks no registry, but compares with a revision of git.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import socket
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from millrace.errors import ConfigError, MillraceError
from millrace.topic_names import table_name
from millrace_registry.avro_schema import AvroSchema, parse
from millrace_registry.client import SchemaRefused, SchemaRegistryClient, quoted
from millrace_registry.compatibility import Level, incompatibilities, unreadable
from millrace_registry.errors import InvalidSchema, UnknownType
from millrace_registry.fields import changed_fields
from millrace_registry.limits import MAX_APPLIED, MAX_BODY_BYTES
from millrace_registry.subjects import LIKE_TOPICS, Subjects, full_name

LEVELS = "levels.json"
"""File in the folder that holds the levels of subjects with their own level."""
AUDIT_NAMESPACE = "millrace.audit"
_AVRO_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
HEADER_NAME = "millrace.events.AuditHeader"
_HEADER_FIELDS = (
    ("time", {"type": "long", "logicalType": "timestamp-millis"}),
    ("server", "string"),
    ("service", "string"),
    ("instance", "long"),
    ("sequence", "long"),
)
AUDIT_HEADER: Mapping[str, Any] = {
    "type": "record",
    "name": "AuditHeader",
    "namespace": HEADER_NAME.rpartition(".")[0],
    "fields": [{"name": name, "type": kind} for name, kind in _HEADER_FIELDS],
}
"""Type of the field `header`, the first field of every audited event."""
RECORD_HEADER_NOTE = "the first field is not `header`: audited by the record header, or not at all"
_WRITE = f"Write as the first field: {json.dumps({'name': 'header', 'type': AUDIT_HEADER})}"
NO_HEADER = f"the first field is not `header` of type {HEADER_NAME}. {_WRITE}"


@dataclass(frozen=True, slots=True)
class SchemaFile:
    """One `.avsc` file, and its problem if there is one."""

    path: Path
    subject: str
    """The topic's subject; until `check` has found it, the stem of the file's name."""
    schema: AvroSchema | None
    """The parsed schema; None when the file cannot be read."""
    json: Any
    """The JSON to register, with the types of other files written out."""
    problem: str | None
    topic: str = ""
    """The topic's name, which is the stem of the file's name."""
    level: Level | None = None
    """The subject's level in the folder; None to keep the registry's."""

    @property
    def lacks_header(self) -> bool:
        """True for an event's schema whose values have no audit header."""
        if self.problem is not None or self.schema is None or not isinstance(self.schema.tree, dict):
            return False
        is_record = (full_name(self.schema.tree) or "").startswith(f"{AUDIT_NAMESPACE}.")
        return not is_record and not _has_header(self.schema.tree.get("fields", ()))


@dataclass(frozen=True, slots=True)
class Change:
    """The result, or the expected result, of registering one file."""

    subject: str
    file: str
    state: Literal["new", "unchanged", "new version", "incompatible", "invalid", "removed", "ungated"]
    version: int | None = None
    """The subject's version, existing (unchanged) or new; None if the schema cannot be registered."""
    id: int | None = None
    """The id of the schema, once it is registered."""
    reasons: tuple[str, ...] = ()
    """Reasons why the file cannot be registered; empty if it can."""
    fields: tuple[str, ...] = ()
    """Fields that differ from the version before."""
    level: str | None = None
    """The subject's new level; None if it stays."""
    notes: tuple[str, ...] = ()
    """Warnings to read before the file is applied."""
    topic: str = ""
    schema: AvroSchema | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the change for scripts, without schema and topic."""
        return {name: getattr(self, name) for name in self.__slots__ if name not in ("schema", "topic")}


def check(directory: Path, *, plain: bool = False, subjects: Subjects = LIKE_TOPICS) -> list[SchemaFile]:
    """Return every `.avsc` file of a folder, sorted, each with its problem. No registry is asked.

    Raise ConfigError when the folder does not exist or holds no schema.
    """
    if not directory.is_dir():
        raise ConfigError(f"no folder {directory}: name the folder that holds the .avsc files")
    paths = sorted(directory.rglob("*.avsc"))
    if not paths:
        raise ConfigError(f"no .avsc file in {directory}: give the folder that holds them")
    files = _read({path: path.read_bytes for path in paths}, plain=plain)
    if not plain:
        files = _each_with_its_table(files)
    levels = _levels(directory, {file.subject for file in files})
    return _alike([_named(file, subjects, levels.get(file.subject)) for file in files])


def _alike(files: Sequence[SchemaFile]) -> list[SchemaFile]:
    """Report a problem for each file that contradicts an earlier file of the same subject."""
    first: dict[str, SchemaFile] = {}
    problems: dict[Path, str] = {}
    for file in files:
        other = first.setdefault(file.subject, file) if file.problem is None else file
        if _contradict(file, other):
            problems[file.path] = (
                f"it and {other.path.name} are of one subject, {file.subject}, and their schemas or levels"
                " differ: make them alike, or give the topics subjects of their own"
            )
    return [replace(file, problem=file.problem or problems.get(file.path)) for file in files]


def _contradict(one: SchemaFile, other: SchemaFile) -> bool:
    if one is other or one.schema is None or other.schema is None:
        return False
    levels = {one.level, other.level} - {None}
    return one.schema.resolved_text != other.schema.resolved_text or len(levels) > 1


def _each_with_its_table(files: Sequence[SchemaFile]) -> list[SchemaFile]:
    """Report a problem for each topic that would share its table with another topic."""
    topics: dict[str, set[str]] = {}
    for file in files:
        topics.setdefault(table_name(file.subject), set()).add(file.subject)
    problems = {
        table: f"topics {' and '.join(sorted(names))} would share the table millrace.{table}: rename one"
        for table, names in topics.items()
        if len(names) > 1
    }
    return [replace(file, problem=file.problem or problems.get(table_name(file.subject))) for file in files]


def _levels(directory: Path, stems: Set[str]) -> dict[str, Level]:
    """Return the levels in the folder's `levels.json`: {NAME: LEVEL} for files NAME.avsc.

    Raise MillraceError if they are wrong.
    """
    path = directory / LEVELS
    if not path.exists():
        return {}
    try:
        levels = {name: Level(level) for name, level in json.loads(path.read_text()).items()}
    except (OSError, ValueError, AttributeError) as error:
        raise MillraceError(
            f'{path} is not understood ({error}): write {{"NAME": "LEVEL"}} for NAME.avsc, with one of'
            f" {', '.join(Level)}"
        ) from None
    if unknown := sorted(levels.keys() - stems):
        raise MillraceError(f"{path} names {', '.join(unknown)} without an .avsc file: correct the names")
    return levels


def _named(file: SchemaFile, subjects: Subjects, level: Level | None) -> SchemaFile:
    file = replace(file, topic=file.subject, level=level)
    name = None if file.schema is None else full_name(file.schema.tree)
    if file.problem is not None or (name or "").startswith(f"{AUDIT_NAMESPACE}."):
        return file
    return replace(file, subject=subjects.of(file.topic, name or file.topic))


def compare(directory: Path, revision: str, *, plain: bool = False) -> list[Change]:
    """Return the differences from a revision of git. A schema that could not read its old data is
    incompatible.

    Raise MillraceError when git does not know the revision.
    """
    listed = _git(directory, "ls-tree", "-r", "-z", "--name-only", revision, "--", ".").decode().split("\0")
    paths = [directory / name for name in listed if name.endswith(".avsc")]
    old = _read({path: partial(_committed, directory, revision, path) for path in paths}, plain=True)
    before = {file.subject: file for file in old}
    changes = [_compare_file(file, before.pop(file.subject, None)) for file in check(directory, plain=plain)]
    return changes + [Change(file.subject, str(file.path), "removed") for file in before.values()]


def _compare_file(file: SchemaFile, before: SchemaFile | None) -> Change:
    subject, name = file.subject, str(file.path)
    if file.problem is not None or file.schema is None:
        return Change(subject, name, "invalid", reasons=(file.problem or "",))
    if before is None or before.schema is None:
        return Change(subject, name, "new")
    if file.schema.resolved_text == before.schema.resolved_text:
        return Change(subject, name, "unchanged")
    fields = tuple(changed_fields(before.schema, file.schema))
    try:
        reasons = tuple(unreadable(file.schema, before.schema))
    except InvalidSchema as error:
        reasons = (str(error),)
    return Change(subject, name, "incompatible" if reasons else "new version", reasons=reasons, fields=fields)


def _committed(directory: Path, revision: str, path: Path) -> bytes:
    return _git(directory, "show", f"{revision}:./{path.relative_to(directory)}")


def _git(directory: Path, *arguments: str) -> bytes:
    try:
        done = subprocess.run(["git", "-C", str(directory), *arguments], capture_output=True, check=False)
    except FileNotFoundError:
        raise MillraceError("git is not installed, so nothing can be compared with a revision") from None
    if done.returncode:
        raise MillraceError(f"git {arguments[0]}: {' '.join(done.stderr.decode(errors='replace').split())}")
    return done.stdout


def plan(
    directory: Path, client: SchemaRegistryClient, *, plain: bool = False, subjects: Subjects = LIKE_TOPICS
) -> list[Change]:
    """Ask the registry for the result of registering each file of a folder; nothing is changed."""
    return [_plan_file(file, client) for file in check(directory, plain=plain, subjects=subjects)]


def apply(
    directory: Path, client: SchemaRegistryClient, *, plain: bool = False, subjects: Subjects = LIKE_TOPICS
) -> list[Change]:
    """Register every file of a folder, with its level; none if one of them cannot be registered.

    A registry of Millrace does so in one transaction, and keeps commit and author. It takes 2,000 schemas and
    levels of 3 MiB at once: more are several transactions. Other registries get file after file. All files
    are checked first, but a failure in between leaves some files registered: then repeat the call. Raise
    SchemaRefused, with every refused file, when any file is refused. A repetition changes nothing.
    """
    files = check(directory, plain=plain, subjects=subjects)
    changes = [_plan_file(file, client) for file in files]
    refused = [f"{change.file}: {', '.join(change.reasons)}" for change in changes if change.reasons]
    if refused:
        raise SchemaRefused(f"nothing was registered: {'; '.join(refused)}")
    if client.is_millrace():
        return _apply_at_once(directory, files, changes, client)
    for change in changes:
        if change.level is not None:
            client.ask(f"/config/{quoted(change.subject)}", {"compatibility": change.level}, method="PUT")
    return [_register(file, change, client) for file, change in zip(files, changes, strict=True)]


def _apply_at_once(
    directory: Path, files: Sequence[SchemaFile], changes: Sequence[Change], client: SchemaRegistryClient
) -> list[Change]:
    applied: dict[str, Any] = {}
    for body in _applications(directory, files, changes):
        subjects = [one["subject"] for one in body["schemas"]]
        applied |= zip(subjects, client.ask("/apply", body), strict=True)
    return [
        replace(change, version=applied[change.subject]["version"], id=applied[change.subject]["id"])
        if change.subject in applied
        else change
        for change in changes
    ]


def _applications(
    directory: Path, files: Sequence[SchemaFile], changes: Sequence[Change]
) -> list[dict[str, Any]]:
    """Return the bodies of `/apply` for a registry of Millrace: none without a change, and several only for
    more than the registry takes at once.
    """
    commit, author = commit_and_author(directory)
    changed = {change.subject for change in changes if change.state != "unchanged"}
    # Topics may share a subject.
    texts = {file.subject: json.dumps(file.json) for file in files if file.subject in changed}
    levels = {change.subject: change.level for change in changes if change.level is not None}
    bodies: list[dict[str, Any]] = []
    size = count = 0
    for subject in dict.fromkeys([*texts, *levels]):
        schemas = [{"subject": subject, "schema": texts[subject]}] if subject in texts else []
        level = {subject: levels[subject]} if subject in levels else {}
        own_size, own_count = len(json.dumps([schemas, level])), len(schemas) + len(level)
        if not bodies or size + own_size > MAX_BODY_BYTES or count + own_count > MAX_APPLIED:
            bodies.append({"schemas": [], "levels": {}, "commit": commit, "author": author})
            size, count = len(json.dumps(bodies[-1])), 0
        bodies[-1]["schemas"] += schemas
        bodies[-1]["levels"] |= level
        size, count = size + own_size, count + own_count
    return bodies


def commit_and_author(directory: Path) -> tuple[str, str]:
    """Return the folder's commit, with `-dirty` if files differ, and its author.

    Outside of git, return "" and the present user.
    """
    try:
        commit = _git(directory, "rev-parse", "HEAD").decode().strip()
        author = _git(directory, "log", "-1", "--format=%an <%ae>").decode(errors="replace").strip()
        dirty = "-dirty" if _git(directory, "status", "--porcelain", "--", ".") else ""
    except MillraceError:  # no repository, or no git: the folder was copied to this machine
        try:
            user = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:  # a container's user may have no name
            user = str(os.getuid())
        return "", f"{user}@{socket.gethostname()}"[:200]
    return commit + dirty, author[:200]


def _register(file: SchemaFile, change: Change, client: SchemaRegistryClient) -> Change:
    if change.state == "unchanged":
        return change
    client.register(file.subject, file.json)
    registered = client.lookup(file.subject, file.json)
    if registered is None:
        raise MillraceError(f"subject {file.subject} was deleted while it was registered: apply again")
    return replace(change, version=registered.version, id=registered.schema_id)


def _plan_file(file: SchemaFile, client: SchemaRegistryClient) -> Change:
    subject, name = file.subject, str(file.path)
    if file.problem is not None or file.schema is None:
        return Change(subject, name, "invalid", reasons=(file.problem or "",))
    level, is_own = client.level(subject) if file.level is not None else ("", True)
    new_level = None if file.level is None or (is_own and level == file.level) else str(file.level)
    change = Change(subject, name, "new", 1, level=new_level, topic=file.topic, schema=file.schema)
    registered = client.lookup(subject, file.json)
    versions = client.versions(subject)
    if registered is not None:
        change = replace(change, state="unchanged", version=registered.version, id=registered.schema_id)
        if registered.version == max(versions, default=registered.version):
            return change
        note = (
            f"the file is an older version; version {max(versions)} stays the latest, which agents and loads"
            " use: to undo it, delete it in the registry"
        )
        return replace(change, notes=(note,))
    if not versions:
        return change
    try:
        latest = parse(json.dumps(client.latest(subject).schema), flawed_too=True)
        fields = tuple(changed_fields(latest, file.schema))
    except InvalidSchema:  # another registry may hold schemas that are invalid here
        fields = ()
    if file.level is not None and level != file.level:  # the registry would check by the old level
        reasons = _incompatible_by(file.level, file.schema, subject, versions, client)
    else:
        reasons = client.incompatibilities(subject, file.json)
    if reasons:
        return replace(change, state="incompatible", version=None, reasons=tuple(reasons), fields=fields)
    return replace(change, state="new version", version=max(versions) + 1, fields=fields)


def _incompatible_by(
    level: Level, schema: AvroSchema, subject: str, versions: Sequence[int], client: SchemaRegistryClient
) -> list[str]:
    """Return reasons why the schema breaks the subject's future level, one line each."""
    compared = sorted(versions, reverse=True) if level.endswith("_TRANSITIVE") else [max(versions)]
    reasons: list[str] = []
    for number in compared:
        path = f"/subjects/{quoted(subject)}/versions/{number}?format=resolved"
        try:
            old = parse(client.ask(path, expected=("schema",))["schema"], flawed_too=True)
            reasons += incompatibilities(schema, old, number, level)
        except InvalidSchema as error:
            reasons.append(f"version {number} cannot be compared: {error}")
    return reasons


def _read(contents: Mapping[Path, Callable[[], bytes]], *, plain: bool) -> list[SchemaFile]:
    """Read the files, sorted; each may use types of other files, which may use types of further files."""
    files: dict[Path, SchemaFile] = {}
    types: dict[str, Mapping[str, Any]] = {}
    for _ in contents:  # no chain of files is longer
        known = len(types)
        for path, content in contents.items():
            if path not in files or files[path].schema is None:
                files[path] = _read_file(path, content, types, plain=plain)
            schema = files[path].schema
            if schema is not None and isinstance(schema.tree, dict) and "name" in schema.tree:
                types.setdefault(schema.tree["name"], schema.definitions)
        if len(types) == known:
            break
    stems = Counter(path.stem for path in contents)
    return [
        files[path]
        if stems[path.stem] == 1
        else replace(files[path], problem="another file has the same name: a name is one subject")
        for path in sorted(contents)
    ]


def _read_file(
    path: Path, content: Callable[[], bytes], types: Mapping[str, Mapping[str, Any]], *, plain: bool
) -> SchemaFile:
    try:
        text = content().decode()
        schema, alone = _parse(text, types)
        registered = json.loads(text if alone else schema.resolved_text)
        problem = None if plain else _problem(schema.tree, path.stem)
        return SchemaFile(path, path.stem, schema, registered, problem)
    except InvalidSchema as error:
        return SchemaFile(path, path.stem, None, None, str(error))
    except (OSError, UnicodeDecodeError) as error:
        return SchemaFile(path, path.stem, None, None, f"cannot be read: {error}")


def _parse(text: str, types: Mapping[str, Mapping[str, Any]]) -> tuple[AvroSchema, bool]:
    """Return the schema in a text, and True if it needs no other file.

    Missing types are taken from other files.
    """
    taken: dict[str, Any] = {}
    while True:
        try:
            return parse(text, taken), not taken
        except UnknownType as error:
            name = next((name for name in error.names if name in types and name not in taken), None)
            if name is None:
                raise
            taken.update(types[name])


def problem_of(schema: Mapping[str, Any], subject: str) -> str | None:
    """Return the problem that `check` finds in a schema of a file named like the subject.

    Return None if there is none.
    """
    try:
        return _problem(parse(json.dumps(schema)).tree, subject)
    except InvalidSchema as error:
        return str(error)


def _problem(tree: Any, subject: str) -> str | None:
    if not isinstance(tree, dict) or tree["type"] != "record":
        return "is not a record"
    namespace, _, name = tree["name"].rpartition(".")
    if name != subject and re.fullmatch(_AVRO_NAME, subject):
        return f"the record is named {name}: name file and record alike"
    if not namespace:
        return f"the record has no namespace: events have millrace.events, audit records {AUDIT_NAMESPACE}"
    return None if namespace == AUDIT_NAMESPACE else _header_problem(tree["fields"])


def _has_header(fields: Sequence[Any]) -> bool:
    return bool(fields) and fields[0]["name"] == "header"


def _header_problem(fields: Sequence[Any]) -> str | None:
    """Return the problem if the first field is named `header` and the audit cannot read it.

    The audit reads only the header's bytes.
    """
    if not _has_header(fields):
        return None
    header = fields[0]["type"]
    if not isinstance(header, dict) or header.get("name") != HEADER_NAME or "fields" not in header:
        return f"the type of `header` is not the record {HEADER_NAME}. {_WRITE}"
    fields = [(field["name"], field["type"]) for field in header["fields"][: len(_HEADER_FIELDS)]]
    for required, field in zip_longest(_HEADER_FIELDS, fields, fillvalue=("nothing", None)):
        if field != required:
            return f"{HEADER_NAME} must have {required[0]}: {json.dumps(required[1])} where {field[0]} is"
    return None
