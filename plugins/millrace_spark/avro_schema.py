"""Avro schemas as a tree of frozen values, and the Arrow type each stands for.

Names are resolved, so a tree holds no references; logical types are the leaf's own business. Refuses what no
table can hold: schemas that contain themselves, and arrays or maps whose items take no bytes (a few bytes
would stand for billions of them).

    Avro                              Arrow
    int, long, float, double, boolean the same
    bytes, fixed, decimal over p. 38  binary
    string, uuid, enum                string
    timestamp-millis, -micros         timestamp[us, UTC]; local-timestamp-*: without a zone
    date                              date32
    time-millis, -micros              int, long: Spark 4.3 refuses its own type TIME
    decimal(p, s)                     decimal128(p, s)
    record / array / map              struct / list<element> / map<string, value>
    ["null", T], [T]                  T
    any other union                   struct<member0, member1, ...>, one of them set; "null" counts for none
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import fastavro.schema
import pyarrow as pa

from millrace.errors import MillraceError

MISSING = object()
"""A field without a default."""
MAX_PRECISION = 38
"""Digits that fit into 128 bits."""


class SchemaError(MillraceError):
    """An Avro schema that cannot become a table, or a pair of them that do not fit each other."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A primitive type, perhaps with a logical one; `kind` is Avro's name for it."""

    kind: str
    logical: str | None = None
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True, slots=True)
class Fixed:
    """`size` bytes."""

    name: str
    size: int
    logical: str | None = None
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True, slots=True)
class Enum:
    """One of the symbols; `default` stands for symbols that a reader does not know."""

    name: str
    symbols: tuple[str, ...]
    default: str | None = None


@dataclass(frozen=True, slots=True)
class Field:
    """A record's field; `default` is JSON, or MISSING."""

    name: str
    type: Node
    aliases: tuple[str, ...] = ()
    default: Any = MISSING


@dataclass(frozen=True, slots=True)
class Record:
    """Fields in order."""

    name: str
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Array:
    """Blocks of items."""

    items: Node


@dataclass(frozen=True, slots=True)
class Map:
    """Blocks of strings and values."""

    values: Node


@dataclass(frozen=True, slots=True)
class Union:
    """One of the branches."""

    branches: tuple[Node, ...]

    @property
    def members(self) -> tuple[Node, ...]:
        """The branches other than null."""
        return tuple(branch for branch in self.branches if branch != NULL)

    @property
    def is_optional(self) -> bool:
        """True if at most one branch is not null: a plain column, not a struct of members."""
        return len(self.members) <= 1

    def place(self, branch: int) -> int:
        """Which member a branch is, by the branch's number; its struct field is `member<place>`."""
        return sum(each != NULL for each in self.branches[:branch])


Node: TypeAlias = "Leaf | Fixed | Enum | Record | Array | Map | Union"
NULL = Leaf("null")

_PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_LOGICAL = {
    "date": "int",
    "time-millis": "int",
    "time-micros": "long",
    "timestamp-millis": "long",
    "timestamp-micros": "long",
    "local-timestamp-millis": "long",
    "local-timestamp-micros": "long",
}


def parse(schema: Any) -> Node:
    """The tree of an Avro schema given as parsed JSON; SchemaError when it is wrong or fits no table."""
    try:
        # fastavro checks it and spells out every name; it would write into what it is given.
        full = fastavro.schema.parse_schema(copy.deepcopy(schema), _write_hint=False)
    except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType) as error:
        raise SchemaError(f"not a valid Avro schema: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise SchemaError(f"not a valid Avro schema: {type(error).__name__}: {error}") from error
    return _Parser().node(full, ())


class _Parser:
    def __init__(self) -> None:
        self.named: dict[str, Node] = {}

    def node(self, schema: Any, inside: tuple[str, ...]) -> Node:
        if isinstance(schema, list):
            return Union(tuple(self.node(branch, inside) for branch in schema))
        if isinstance(schema, str):
            if schema in inside:
                raise SchemaError(f"record {schema} contains itself: no table can hold it")
            return self.named[schema] if schema in self.named else Leaf(schema)
        kind = schema["type"]
        if kind in _PRIMITIVES:
            return Leaf(kind, *_logical(schema, kind))
        if kind == "array":
            return Array(_checked_items(self.node(schema["items"], inside)))
        if kind == "map":
            return Map(self.node(schema["values"], inside))
        if kind in ("record", "error"):
            name = schema["name"]
            fields = tuple(self._field(field, (*inside, name)) for field in schema["fields"])
            return self._name(Record(name, fields))
        if kind == "enum":
            return self._name(Enum(schema["name"], tuple(schema["symbols"]), schema.get("default")))
        if kind == "fixed":
            logical = _logical(schema, "fixed")
            return self._name(Fixed(schema["name"], schema["size"], *logical))
        return self.node(kind, inside)  # {"type": {"type": ...}} or {"type": [...]}

    def _field(self, field: Mapping[str, Any], inside: tuple[str, ...]) -> Field:
        return Field(
            field["name"],
            self.node(field["type"], inside),
            tuple(field.get("aliases", ())),
            field.get("default", MISSING),
        )

    def _name(self, node: Record | Enum | Fixed) -> Node:
        self.named[node.name] = node
        return node


def _checked_items(items: Node) -> Node:
    if min_bytes(items) == 0:
        raise SchemaError("an array's items take no bytes: a message could claim any number of them")
    return items


def _logical(schema: Mapping[str, Any], kind: str) -> tuple[str | None, int, int]:
    logical = schema.get("logicalType")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = schema.get("precision", 0), schema.get("scale", 0)
        if 0 < precision <= MAX_PRECISION and 0 <= scale <= precision:
            return logical, precision, scale
    elif (logical == "uuid" and (kind == "string" or schema.get("size") == 16)) or (
        logical is not None and _LOGICAL.get(logical) == kind
    ):
        return logical, 0, 0
    return None, 0, 0  # one that is unknown or does not fit is to be ignored, says Avro


def min_bytes(node: Node) -> int:
    """The fewest bytes a value of this type takes."""
    if isinstance(node, Leaf):
        return {"null": 0, "float": 4, "double": 8}.get(node.kind, 1)
    if isinstance(node, Fixed):
        return node.size
    if isinstance(node, Record):
        return sum(min_bytes(field.type) for field in node.fields)
    return 1


def has_blocks(node: Node) -> bool:
    """True if an array or a map is anywhere in it."""
    if isinstance(node, Record):
        return any(has_blocks(field.type) for field in node.fields)
    if isinstance(node, Union):
        return any(has_blocks(branch) for branch in node.branches)
    return isinstance(node, Array | Map)


_LEAF_TYPES = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL_TYPES = {
    "date": pa.date32(),
    "time-millis": pa.int32(),
    "time-micros": pa.int64(),
    "timestamp-millis": pa.timestamp("us", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
    "uuid": pa.string(),
}


def _leaf_type(logical: str | None, precision: int, scale: int, plain: str) -> pa.DataType:
    if logical == "decimal":
        return pa.decimal128(precision, scale)
    return _LOGICAL_TYPES[logical] if logical is not None else _LEAF_TYPES[plain]


def arrow_type(node: Node) -> pa.DataType:
    """The Arrow type of a column of this Avro type; everything in it is nullable except map keys."""
    if isinstance(node, Leaf):
        return _leaf_type(node.logical, node.precision, node.scale, node.kind)
    if isinstance(node, Fixed):
        return _leaf_type(node.logical, node.precision, node.scale, "bytes")
    if isinstance(node, Enum):
        return pa.string()
    if isinstance(node, Record):
        return pa.struct([(field.name, arrow_type(field.type)) for field in node.fields])
    if isinstance(node, Array):
        return pa.list_(pa.field("element", arrow_type(node.items)))
    if isinstance(node, Map):
        key = pa.field("key", pa.string(), nullable=False)
        return pa.map_(key, pa.field("value", arrow_type(node.values)))
    members = node.members
    if not members:
        return pa.null()
    if len(members) == 1:
        return arrow_type(members[0])
    return pa.struct([(f"member{index}", arrow_type(member)) for index, member in enumerate(members)])


def arrow_fields(node: Node) -> list[pa.Field]:
    """The columns of a table schema, which must be a record."""
    if not isinstance(node, Record):
        raise SchemaError("a table's schema must be an Avro record")
    return [pa.field(field.name, arrow_type(field.type)) for field in node.fields]
