"""Whether data written with one schema can be read with another, and what the seven levels demand of that.

The rules are those of Apache's `avro` library (Avro's schema resolution). Done here because the library
does not: names of fields in the messages, paths through unions, aliases without a namespace, `error`
records, and logical types. A decimal of another scale, or milliseconds read as microseconds, resolve in
Avro and come out as wrong numbers: such a change is refused as incompatible.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import avro.compatibility
import avro.name
import avro.schema
from avro.compatibility import SchemaCompatibilityResult, SchemaCompatibilityType, SchemaIncompatibilityType

from millrace_registry.avro_schema import NAMED, PRIMITIVES, RECORDS, AvroSchema, Json, with_parts

_LOGICAL = "millrace.logicalType"
"""Where the tree for the library keeps logical types: it would warn about those it does not know."""
_TYPE_KEYS = ("symbols", "size", "fields", "items", "values")
_FIELD_KEYS = ("name", "type", "default", "aliases")
_NO_NAMESPACE = "__none__."
"""Stands before a name without namespace, so that the library lets it inherit none."""


class Level(StrEnum):
    """What a new version must be able to do with the versions before it."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"


def incompatibilities(new: AvroSchema, old: AvroSchema, version: int, level: Level) -> list[str]:
    """What breaks the level between `new` and `old`, a `version`, one line each; empty: compatible."""
    reasons = []
    if level.startswith(("BACKWARD", "FULL")):
        prefix = f"the new schema cannot read version {version}"
        reasons += [f"{prefix}: {reason}" for reason in unreadable(new, old)]
    if level.startswith(("FORWARD", "FULL")):
        prefix = f"version {version} cannot read the new schema"
        reasons += [f"{prefix}: {reason}" for reason in unreadable(old, new)]
    return reasons


def unreadable(reader: AvroSchema, writer: AvroSchema) -> list[str]:
    """Why `reader` cannot read all that `writer` may write, one line each; empty: it can."""
    new, old = (avro.schema.make_avsc_object(_bare(s.tree), avro.name.Names()) for s in (reader, writer))
    result = _Checker().get_compatibility(new, old)
    return [] if result.compatibility is SchemaCompatibilityType.compatible else sorted(result.messages)


def _bare(tree: Json) -> Json:
    """The tree with only what resolution looks at; every name has a namespace, so none is inherited."""
    if isinstance(tree, str):
        return tree if tree in PRIMITIVES else _dotted(tree)
    if isinstance(tree, list):
        return [_bare(branch) for branch in tree]
    kind = tree["type"]
    parts = with_parts(tree, _bare)
    bare: dict[str, Json] = {key: parts[key] for key in _TYPE_KEYS if key in parts}
    bare["type"] = "record" if kind == "error" else kind
    if kind in NAMED:
        bare["name"] = _dotted(tree["name"])
        bare["aliases"] = [_dotted(alias) for alias in tree.get("aliases", ())]
    if kind == "enum" and "default" in tree:
        bare["default"] = tree["default"]
    if kind in RECORDS:
        bare["fields"] = [
            {key: field[key] for key in _FIELD_KEYS if key in field} for field in bare["fields"]
        ]
    if logical := _logical_type(tree):
        bare[_LOGICAL] = logical
    return bare


def _dotted(name: str) -> str:
    return name if "." in name else f"{_NO_NAMESPACE}{name}"


def _logical_type(tree: Mapping[str, Json]) -> str | None:
    name = tree.get("logicalType")
    if not isinstance(name, str):
        return None
    return f"decimal({tree.get('precision')}, {tree.get('scale', 0)})" if name == "decimal" else name


class _Checker(avro.compatibility.ReaderWriterCompatibilityChecker):
    """The library's checker, with paths of field names and one line per reason in `messages`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._path: list[list[str]] = []

    def get_compatibility(
        self, reader: Any, writer: Any, reference_token: str = "/", location: list[str] | None = None
    ) -> SchemaCompatibilityResult:
        # A branch of a union keeps the union's path.
        if location is None and self._path:
            *location, reference_token = self._path[-1]
        return super().get_compatibility(reader, writer, reference_token, location)

    def calculate_compatibility(
        self, reader: Any, writer: Any, location: list[str]
    ) -> SchemaCompatibilityResult:
        self._path.append(location)
        result = self._resolve(reader, writer, location)
        self._path.pop()
        new, old = reader.props.get(_LOGICAL), writer.props.get(_LOGICAL)
        if new and old and new != old:
            differing = _incompatible(f"{new} would read {old}, whose numbers mean something else")
            result = avro.compatibility.merge(differing, result)
        if result.messages:
            result.messages = {_locate(message, reader, location) for message in result.messages}
        return result

    def _resolve(self, reader: Any, writer: Any, location: list[str]) -> SchemaCompatibilityResult:
        if reader.type != "union":
            return super().calculate_compatibility(reader, writer, location)
        if writer.type == "union":
            results = [self.get_compatibility(reader, branch) for branch in writer.schemas]
            compatible = SchemaCompatibilityResult(SchemaCompatibilityType.compatible)
            return functools.reduce(avro.compatibility.merge, results, compatible)
        result = super().calculate_compatibility(reader, writer, location)
        if result.compatibility is SchemaCompatibilityType.incompatible:
            branches = [branch for branch in reader.schemas if branch.type != "null"]
            similar = [branch for branch in branches if branch.type == writer.type] or branches
            if len(similar) == 1:  # say why this one does not fit
                return self.get_compatibility(similar[0], writer)
        return result

    def check_reader_writer_record_fields(
        self, reader: Any, writer: Any, location: list[str]
    ) -> SchemaCompatibilityResult:
        result = SchemaCompatibilityResult(SchemaCompatibilityType.compatible)
        for field in reader.fields:
            written = avro.compatibility.lookup_writer_field(writer_schema=writer, reader_field=field)
            if written is not None:
                of_field = self.get_compatibility(field.type, written.type, field.name, location)
            elif field.has_default:
                continue
            else:
                of_field = _incompatible(f"field {field.name} has no default and is not in the data")
            result = avro.compatibility.merge(result, of_field)
        return result


class _Located(str):
    """A message that says where already."""

    __slots__ = ()


def _locate(message: str, reader: Any, location: Sequence[str]) -> _Located:
    """The library's message in words, with the path of field names in front."""
    if isinstance(message, _Located):
        return message
    text = message
    if message.startswith("expected: "):
        expected, _, size = message.removeprefix("expected: ").partition(", found: ")
        text = f"{reader.fullname} is not {expected} and has no such alias"
        if size:
            text = f"fixed of size {size} cannot read size {expected}"
    elif message.startswith("{"):
        text = f"enum lacks the symbols {message.strip('{}')} and has no default"
    elif message.startswith("reader union lacking"):
        text = f"the union cannot hold {message.rsplit(' ', 1)[-1].lower()}"
    elif message.startswith("reader type"):
        text = f"{reader.type} cannot read {message.rsplit(' ', 1)[-1]}"
    path = ".".join(step for step in location if step != "/")
    return _Located((f"{path}: {text}" if path else text).replace(_NO_NAMESPACE, ""))


def _incompatible(message: str) -> SchemaCompatibilityResult:
    return SchemaCompatibilityResult(
        SchemaCompatibilityType.incompatible, [SchemaIncompatibilityType.type_mismatch], {message}
    )
