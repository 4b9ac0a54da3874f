"""A folder of `.avsc` files as the source of a registry's schemas: check, plan, apply.

One file is one subject, named like the file and like the record in it. `plan` asks the registry what
registering would do and changes nothing; `apply` registers all files or, when one cannot be, none.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain, repeat
from pathlib import Path
from typing import Any

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


class State(StrEnum):
    """What registering a file would do."""

    NEW = "new"
    UNCHANGED = "unchanged"
    NEW_VERSION = "new version"
    INCOMPATIBLE = "incompatible"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class Change:
    """What registering one file would do, or did."""

    subject: str
    file: str
    state: State
    version: int | None = None
    """The version the subject has (unchanged) or would get; None when it cannot be registered."""
    schema_id: int | None = None
    """The id of the schema, once it is registered."""
    reasons: tuple[str, ...] = ()

    @property
    def possible(self) -> bool:
        return not self.reasons


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
    return [_planned(file, client) for file in check(directory)]


def apply(directory: Path, client: SchemaRegistryClient) -> list[Change]:
    """Register every file of a folder; nothing at all when one of them cannot be registered.

    Raises SchemaRefused naming every such file. A repetition changes nothing.
    """
    files = check(directory)
    changes = [_planned(file, client) for file in files]
    refused = [f"{change.file}: {', '.join(change.reasons)}" for change in changes if not change.possible]
    if refused:
        raise SchemaRefused(f"nothing was registered: {'; '.join(refused)}")
    return [_registered(file, change, client) for file, change in zip(files, changes, strict=True)]


def _registered(file: SchemaFile, change: Change, client: SchemaRegistryClient) -> Change:
    if change.state is State.UNCHANGED:
        return change
    client.register(file.subject, file.schema)
    registered = client.lookup(file.subject, file.schema)
    if registered is None:
        raise MillraceError(f"subject {file.subject} was deleted while it was registered: apply again")
    return replace(change, version=registered.version, schema_id=registered.schema_id)


def _planned(file: SchemaFile, client: SchemaRegistryClient) -> Change:
    subject, name = file.subject, str(file.path)
    if file.problem is not None:
        return Change(subject, name, State.INVALID, reasons=(file.problem,))
    registered = client.lookup(subject, file.schema)
    if registered is not None:
        return Change(subject, name, State.UNCHANGED, registered.version, registered.schema_id)
    versions = client.versions(subject)
    if not versions:
        return Change(subject, name, State.NEW, 1)
    if reasons := client.incompatibilities(subject, file.schema):
        return Change(subject, name, State.INCOMPATIBLE, reasons=tuple(reasons))
    return Change(subject, name, State.NEW_VERSION, max(versions) + 1)


def _read(path: Path) -> SchemaFile:
    subject = path.stem
    try:
        text = path.read_text()
        tree = parse(text).tree
    except (OSError, UnicodeDecodeError) as error:
        return SchemaFile(path, subject, None, f"cannot be read: {error}")
    except InvalidSchema as error:
        return SchemaFile(path, subject, None, str(error))
    return SchemaFile(path, subject, json.loads(text), _problem(tree, subject))


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
    fields = [(field["name"], field["type"]) for field in header["fields"]]
    for required, field in zip(_HEADER_FIELDS, chain(fields, repeat(("nothing", None))), strict=False):
        if field != required:
            return f"{HEADER_NAME} must have {required[0]}: {json.dumps(required[1])} where {field[0]} is"
    return None
