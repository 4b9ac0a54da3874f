"""A folder of `.avsc` files as the source of a registry's schemas: check, plan, apply.

One file is one subject, named like the file and like the record in it. `plan` asks the registry what
registering would do and changes nothing; `apply` registers all files or, when one cannot be, none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from millrace.errors import MillraceError
from millrace_registry.avro_schema import parse
from millrace_registry.client import SchemaRefused, SchemaRegistryClient
from millrace_registry.errors import InvalidSchema

AUDIT_NAMESPACE = "millrace.audit"
HEADER_NAME = "millrace.events.AuditHeader"
_HEADER_FIELDS = (
    ("time", {"type": "long", "logicalType": "timestamp-millis"}),
    ("server", "string"),
    ("service", "string"),
    ("instance", "long"),
    ("sequence", "long"),
)


@dataclass(frozen=True, slots=True)
class SchemaFile:
    """One `.avsc` file and what is wrong with it."""

    path: Path
    subject: str
    schema: Any
    """Parsed JSON; None when the file cannot be read."""
    problem: str | None


@dataclass(frozen=True, slots=True)
class Change:
    """What registering one file would do, or did."""

    subject: str
    file: str
    state: Literal["new", "unchanged", "new version", "incompatible", "invalid"]
    version: int | None = None
    """The version the subject has (unchanged) or would get; None when it cannot be registered."""
    id: int | None = None
    """The id of the schema, once it is registered."""
    reasons: tuple[str, ...] = ()
    """Why it cannot be registered; empty when it can."""


def check(directory: Path) -> list[SchemaFile]:
    """Every `.avsc` file of a folder, sorted, each with what is wrong with it, without asking a registry.

    Raises MillraceError when the folder is not there or holds no schema.
    """
    if not directory.is_dir():
        raise MillraceError(f"no folder {directory}: give the one that holds the .avsc files")
    files = sorted(directory.glob("*.avsc"))
    if not files:
        raise MillraceError(f"no .avsc file in {directory}: give the folder that holds them")
    return [_read(path) for path in files]


def plan(directory: Path, client: SchemaRegistryClient) -> list[Change]:
    """What registering each file of a folder would do; the registry is asked, nothing is changed."""
    return [_plan_file(file, client) for file in check(directory)]


def apply(directory: Path, client: SchemaRegistryClient) -> list[Change]:
    """Register every file of a folder; nothing at all when one of them cannot be registered.

    Raises SchemaRefused naming every such file. A repetition changes nothing.
    """
    files = check(directory)
    changes = [_plan_file(file, client) for file in files]
    refused = [f"{change.file}: {', '.join(change.reasons)}" for change in changes if change.reasons]
    if refused:
        raise SchemaRefused(f"nothing was registered: {'; '.join(refused)}")
    return [_register(file, change, client) for file, change in zip(files, changes, strict=True)]


def _register(file: SchemaFile, change: Change, client: SchemaRegistryClient) -> Change:
    if change.state == "unchanged":
        return change
    client.register(file.subject, file.schema)
    registered = client.lookup(file.subject, file.schema)
    if registered is None:
        raise MillraceError(f"subject {file.subject} was deleted while it was registered: apply again")
    return replace(change, version=registered.version, id=registered.schema_id)


def _plan_file(file: SchemaFile, client: SchemaRegistryClient) -> Change:
    subject, name = file.subject, str(file.path)
    if file.problem is not None:
        return Change(subject, name, "invalid", reasons=(file.problem,))
    registered = client.lookup(subject, file.schema)
    if registered is not None:
        return Change(subject, name, "unchanged", registered.version, registered.schema_id)
    versions = client.versions(subject)
    if not versions:
        return Change(subject, name, "new", 1)
    if reasons := client.incompatibilities(subject, file.schema):
        return Change(subject, name, "incompatible", reasons=tuple(reasons))
    return Change(subject, name, "new version", max(versions) + 1)


def _read(path: Path) -> SchemaFile:
    try:
        text = path.read_text()
        problem = _problem(parse(text).tree, path.stem)
        return SchemaFile(path, path.stem, json.loads(text), problem)
    except InvalidSchema as error:
        return SchemaFile(path, path.stem, None, str(error))
    except (OSError, UnicodeDecodeError) as error:
        return SchemaFile(path, path.stem, None, f"cannot be read: {error}")


def problem_of(schema: Mapping[str, Any], subject: str) -> str | None:
    """What `check` says of a schema in a file named like the subject; None when it finds nothing."""
    try:
        return _problem(parse(json.dumps(schema)).tree, subject)
    except InvalidSchema as error:
        return str(error)


def _problem(tree: Any, subject: str) -> str | None:
    if not isinstance(tree, dict) or tree["type"] != "record":
        return "is not a record"
    namespace, _, name = tree["name"].rpartition(".")
    if name != subject:
        return f"the record is named {name}: name file and record alike"
    if not namespace:
        return f"the record has no namespace: events have millrace.events, audit records {AUDIT_NAMESPACE}"
    return None if namespace == AUDIT_NAMESPACE else _header_problem(tree["fields"])


def _header_problem(fields: Sequence[Any]) -> str | None:
    """What keeps the audit from reading an event's header; it reads just these bytes of every message."""
    if not fields or fields[0]["name"] != "header":
        return f"the first field is not `header` of type {HEADER_NAME}: the audit could not count it"
    header = fields[0]["type"]
    if not isinstance(header, dict) or header.get("name") != HEADER_NAME or "fields" not in header:
        return f"the type of `header` is not the record {HEADER_NAME}"
    fields = [(field["name"], field["type"]) for field in header["fields"][: len(_HEADER_FIELDS)]]
    for required, field in zip_longest(_HEADER_FIELDS, fields, fillvalue=("nothing", None)):
        if field != required:
            return f"{HEADER_NAME} must have {required[0]}: {json.dumps(required[1])} where {field[0]} is"
    return None
