"""Compatibility of two schemas: reading data of one with the other, as the seven levels demand.

The rules are Avro's schema resolution, with two more. A decimal of another scale, or milliseconds read as
microseconds, resolve in Avro but give wrong numbers, so such a change is refused as incompatible. Two fields
must not read the same field of the data. The work of one comparison is bounded, whatever the schemas.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TypeAlias

from millrace_registry.avro_schema import NAMED, PRIMITIVES, RECORDS, AvroSchema, Json
from millrace_registry.errors import InvalidSchema

_PROMOTIONS: Mapping[str, Sequence[str]] = {
    "long": ("int",),
    "float": ("int", "long"),
    "double": ("int", "long", "float"),
    "string": ("bytes",),
    "bytes": ("string",),
}
"""Type -> other types that it can read."""
_MAX_STEPS = 1_000_000
"""Most steps of a comparison, half a second: _STEPS for two types, 1 for a field, symbol or 64 characters."""
_STEPS = 5
_MAX_REASONS = 50
"""Most reasons given for one version."""

_Reasons: TypeAlias = dict[str, None]
"""A set that keeps its order; empty when the data can be read."""


class Level(StrEnum):
    """Required compatibility of a new version with the versions before it."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"


def incompatibilities(new: AvroSchema, old: AvroSchema, version: int, level: Level) -> list[str]:
    """Return reasons why `new` breaks the level with `old`, which is `version`, one line each.

    Empty: compatible.
    """
    reasons = []
    if level.startswith(("BACKWARD", "FULL")):
        prefix = f"the new schema cannot read version {version}"
        reasons += [f"{prefix}: {reason}" for reason in unreadable(new, old)]
    if level.startswith(("FORWARD", "FULL")):
        prefix = f"version {version} cannot read the new schema"
        reasons += [f"{prefix}: {reason}" for reason in unreadable(old, new)]
    return reasons


def unreadable(reader: AvroSchema, writer: AvroSchema) -> list[str]:
    """Return the reasons why `reader` cannot read all data of `writer`, one line each; empty if it can.

    Raise InvalidSchema when the comparison takes too much work.
    """
    try:
        return sorted(_Comparison(reader, writer).reasons(reader.tree, writer.tree, ""))
    except RecursionError:  # a chain of named types may be longer than any nesting in the text
        raise InvalidSchema("its types lead through too many others to be compared") from None


class _Comparison:
    """Comparison of one reader with one writer. Named types are compared once, and reported at first use.

    A type that depends on a type found unreadable later is compared again.
    """

    def __init__(self, reader: AvroSchema, writer: AvroSchema) -> None:
        self._reader, self._writer = reader.definitions, writer.definitions
        self._results: dict[tuple[int, int], _Reasons] = {}
        self._readable: list[tuple[int, int]] = []
        self._met_again: set[tuple[int, int]] = set()
        self._indexes: dict[int, dict[str, Json]] = {}
        self._aliases: dict[int, frozenset[str]] = {}
        self._steps = 0

    def reasons(self, reader: Json, writer: Json, path: str) -> _Reasons:
        """Return reasons why one type cannot read another, each with the path of fields to the place."""
        self._count(_STEPS)
        reader, writer = _definition(reader, self._reader), _definition(writer, self._writer)
        if isinstance(reader, str) or isinstance(writer, str):
            return self._resolve(reader, writer, path)
        pair = id(reader), id(writer)  # they live as long as the schemas
        if pair in self._results:
            self._met_again.add(pair)
            return self._results[pair]
        began = len(self._readable)
        self._results[pair] = {}  # a recursive type can be read if all its other parts can
        found = self._results[pair] = self._resolve(reader, writer, path)
        if not found:
            self._readable.append(pair)
        elif pair in self._met_again:  # types found readable since then may depend on it
            while len(self._readable) > began:
                del self._results[self._readable.pop()]
        return found

    def _resolve(self, reader: Json, writer: Json, path: str) -> _Reasons:
        if isinstance(writer, list):
            return _merged(self.reasons(reader, branch, path) for branch in writer)
        if isinstance(reader, list):
            return self._in_union(reader, writer, path)
        return _merged(
            (self._located(path, _logical_change(reader, writer)), self._same(reader, writer, path))
        )

    def _in_union(self, reader: list[Json], writer: Json, path: str) -> _Reasons:
        if id(reader) not in self._indexes:
            self._indexes[id(reader)] = {_label(branch): branch for branch in reader}
        namesake = self._indexes[id(reader)].get(_label(writer))
        if namesake is not None and not self.reasons(namesake, writer, path):
            return {}
        found: list[tuple[str, _Reasons]] = []
        for branch in reader:
            found.append((_kind(_definition(branch, self._reader)), self.reasons(branch, writer, path)))
            if not found[-1][1]:
                return {}
        others = [branch for branch in found if branch[0] != "null"]
        similar = [branch for branch in others if branch[0] == _kind(writer)] or others
        if len(similar) == 1:  # give this branch's reasons
            return similar[0][1]
        return self._located(path, f"the union cannot hold {_kind(writer)}")

    def _same(self, reader: Json, writer: Json, path: str) -> _Reasons:
        """Return reasons why a type cannot read another; neither is a union."""
        kind, written = _kind(reader), _kind(writer)
        if kind != written:
            fits = written in _PROMOTIONS.get(kind, ())
            return {} if fits else self._located(path, f"{kind} cannot read {written}")
        if kind in PRIMITIVES:
            return {}
        if kind == "array":
            return self.reasons(reader["items"], writer["items"], self._join(path, "items"))
        if kind == "map":
            return self.reasons(reader["values"], writer["values"], self._join(path, "values"))
        return _merged(
            (self._located(path, self._other_name(reader, writer)), self._content(reader, writer, path))
        )

    def _other_name(self, reader: Json, writer: Json) -> str | None:
        """Return the reason if two types' names do not match; namespaces are ignored, aliases count."""
        if reader["name"].rpartition(".")[2] == writer["name"].rpartition(".")[2]:
            return None
        if id(reader) not in self._aliases:
            self._aliases[id(reader)] = frozenset(reader.get("aliases", ()))
        if writer["name"] in self._aliases[id(reader)]:
            return None
        return f"{reader['name']} is not {writer['name']} and has no such alias"

    def _content(self, reader: Json, writer: Json, path: str) -> _Reasons:
        if reader["type"] == "fixed":
            old, new = writer["size"], reader["size"]
            return {} if old == new else self._located(path, f"fixed of size {new} cannot read size {old}")
        if reader["type"] == "enum":
            self._count(len(reader["symbols"]) + len(writer["symbols"]))
            missing = sorted(set(writer["symbols"]) - set(reader["symbols"]))
            if not missing or reader.get("default"):
                return {}
            named = ", ".join(map(repr, missing[:_MAX_REASONS]))
            return self._located(path, f"enum lacks the symbols {named} and has no default")
        return _merged(self._fields(reader["fields"], writer["fields"], path))

    def _fields(self, reader: Sequence[Json], writer: Sequence[Json], path: str) -> Iterator[_Reasons]:
        if id(writer) not in self._indexes:
            self._indexes[id(writer)] = {field["name"]: field["type"] for field in writer}
        written = self._indexes[id(writer)]
        taken = {field["name"] for field in reader}  # exact names have precedence over aliases
        for field in reader:
            aliases = field.get("aliases", ())
            self._count(1 + len(aliases))
            aliased = (name for name in aliases if name in written and name not in taken)
            name = field["name"] if field["name"] in written else next(aliased, None)
            if name is not None:
                taken.add(name)
                yield self.reasons(field["type"], written[name], self._join(path, field["name"]))
            elif "default" not in field:
                yield self._located(path, f"field {field['name']} has no default and is not in the data")

    def _located(self, path: str, reason: str | None) -> _Reasons:
        return {} if reason is None else {self._counted(f"{path}: {reason}" if path else reason): None}

    def _join(self, path: str, step: str) -> str:
        return self._counted(f"{path}.{step}" if path else step)

    def _counted(self, text: str) -> str:
        self._count(len(text) // 64)
        return text

    def _count(self, steps: int) -> None:
        self._steps += steps
        if self._steps > _MAX_STEPS:
            raise InvalidSchema(
                "it has too many types or too long names to be compared with another version: make it smaller"
            )


def _definition(tree: Json, definitions: Mapping[str, Json]) -> Json:
    """Return the definition of a named type, whether `tree` is its name or writes the type out.

    Return any other type unchanged.
    """
    if isinstance(tree, str):
        return definitions.get(tree, tree)
    return definitions[tree["name"]] if isinstance(tree, dict) and tree["type"] in NAMED else tree


def _kind(tree: Json) -> str:
    kind = tree if isinstance(tree, str) else "union" if isinstance(tree, list) else tree["type"]
    return "record" if kind in RECORDS else str(kind)


def _label(tree: Json) -> str:
    """Return the label that identifies a branch of a union: its full name, or its kind."""
    return str(tree["name"]) if isinstance(tree, dict) and tree["type"] in NAMED else _kind(tree)


def _logical_change(reader: Json, writer: Json) -> str | None:
    new, old = _logical_type(reader), _logical_type(writer)
    if new is None or old is None or new == old:
        return None
    return f"{new} would read {old}, whose numbers mean something else"


def _logical_type(tree: Json) -> str | None:
    name = tree.get("logicalType") if isinstance(tree, dict) else None
    if not isinstance(name, str):
        return None
    if name != "decimal":
        return name
    precision, scale = tree.get("precision"), tree.get("scale", 0)
    return f"decimal({precision}, {scale})" if type(precision) is type(scale) is int else None


def _merged(results: Iterator[_Reasons] | Sequence[_Reasons]) -> _Reasons:
    """Return all reasons, up to about _MAX_REASONS; every result is computed."""
    reasons: _Reasons = {}
    for result in results:
        if len(reasons) < _MAX_REASONS:
            reasons.update(result)
    return reasons
