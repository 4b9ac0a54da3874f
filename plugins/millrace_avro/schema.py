"""Avro schemas as a tree of frozen values, and the Arrow type of each.

Names are resolved: a tree holds no references, except where a record is inside itself. A leaf handles its own
logical type; logical types that are unknown or do not fit are ignored, as Avro requires. Refuses arrays whose
items take no bytes (a few bytes would stand for billions of items) and schemas of more than MAX_NODES types.

    Avro                              Arrow
    int, long, float, double, boolean the same
    bytes                             binary; so are big-decimal and decimal of over 38 digits
    fixed, duration                   binary of that size; so is a fixed of 16 with uuid
    string, enum                      string; so is a string with uuid
    timestamp-millis, -micros         timestamp[us, UTC]; local-timestamp-*: without a zone
    date                              date32
    time-millis, -micros              int, long: Spark 4.3 refuses its own type TIME
    [local-]timestamp-nanos           long: Spark's timestamps have microseconds
    decimal(p, s)                     decimal128(p, s)
    record / array / map              struct / list<element> / map<string, value>
    a record without fields           boolean, true: Parquet has no column for it
    a record inside itself            string: JSON, since no table is as deep as it may be
    ["null", T], [T]                  T
    any other union                   struct<member0, member1, ...>, one of them set; "null" counts for none
    null alone                        boolean, null, in an array or a map; a record's field is left out
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeAlias

import fastavro.schema
import pyarrow as pa

from millrace.errors import MillraceError

MISSING = object()
"""Marks a field without a default."""
MAX_PRECISION = 38
"""Most digits that fit into 128 bits."""
MAX_NODES = 10_000
"""Most types in a schema. A named type counts wherever it is used, so a few lines could stand for billions of
types.
"""
MAX_DEPTH = 100
"""Most levels of types inside types."""


class SchemaError(MillraceError):
    """An Avro schema cannot become a table, or two schemas do not fit each other."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A primitive type, perhaps with a logical type; `kind` is Avro's name for it."""

    kind: str
    logical: str | None = None
    precision: int = 0
    scale: int = 0
    json_form: str = field(default="", compare=False)
    """`iso` for a timestamp that JSON holds as text, `text` for a string that takes any JSON: the schema's
    `millrace.json`.
    """


@dataclass(frozen=True, slots=True)
class Fixed:
    """A fixed number of bytes, `size`."""

    kind: ClassVar[str] = "bytes"  # the type of its values in a column
    name: str
    size: int
    logical: str | None = None
    precision: int = 0
    scale: int = 0
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Enum:
    """An enum with its symbols. A reader replaces symbols that it does not know by `default`."""

    name: str
    symbols: tuple[str, ...]
    default: str | None = None
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Field:
    """A record's field; `default` is JSON, or MISSING."""

    name: str
    type: Node
    aliases: tuple[str, ...] = ()
    default: Any = MISSING
    json_name: str = field(default="", compare=False)
    """Name of the field in JSON, where that is no Avro name: the schema has it as `millrace.name`."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record with its fields in order."""

    name: str
    fields: tuple[Field, ...]
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Recursion:
    """A reference to an enclosing record, which contains itself."""

    name: str
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Array:
    """An array, stored in blocks of items."""

    items: Node


@dataclass(frozen=True, slots=True)
class Map:
    """A map, stored in blocks of strings and values."""

    values: Node


@dataclass(frozen=True, slots=True)
class Union:
    """A union of branches."""

    branches: tuple[Node, ...]

    @property
    def members(self) -> tuple[Node, ...]:
        return tuple(branch for branch in self.branches if branch != NULL)

    @property
    def is_optional(self) -> bool:
        """True if at most one branch is not null: a plain column, not a struct of members."""
        return len(self.members) <= 1

    @property
    def named_members(self) -> list[tuple[str, Node]]:
        """The members with their names in a struct."""
        return [(f"member{number}", member) for number, member in enumerate(self.members)]

    def member(self, branch: int) -> int:
        """Return the member's number for a branch's number; its struct field is `member<number>`."""
        return sum(other != NULL for other in self.branches[:branch])


Plain: TypeAlias = Leaf | Fixed
Named: TypeAlias = Fixed | Enum | Record | Recursion
Node: TypeAlias = "Leaf | Fixed | Enum | Record | Recursion | Array | Map | Union"
NULL = Leaf("null")

_PRIMITIVES = {
    "null": pa.bool_(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL = {
    "date": (("int",), pa.date32()),
    "time-millis": (("int",), pa.int32()),
    "time-micros": (("long",), pa.int64()),
    "timestamp-millis": (("long",), pa.timestamp("us", tz="UTC")),
    "timestamp-micros": (("long",), pa.timestamp("us", tz="UTC")),
    "local-timestamp-millis": (("long",), pa.timestamp("us")),
    "local-timestamp-micros": (("long",), pa.timestamp("us")),
    "timestamp-nanos": (("long",), pa.int64()),
    "local-timestamp-nanos": (("long",), pa.int64()),
    "uuid": (("string", "fixed of 16"), pa.string()),
    "duration": (("fixed of 12",), pa.binary(12)),
    "big-decimal": (("bytes",), pa.binary()),
    "wide-decimal": ((), pa.binary()),  # our own name for a decimal of more than MAX_PRECISION digits
}
"""Logical type -> the types that may have it, and its Arrow type."""


def parse(schema: Any) -> Node:
    """Parse an Avro schema, given as parsed JSON, into a tree.

    Raise SchemaError when it is wrong or fits no table.
    """
    try:
        # fastavro checks it and completes every name; it would change its argument.
        full = _without_wrong_decimals(copy.deepcopy(schema))
        return _Parser().node(fastavro.schema.parse_schema(full, _write_hint=False), ())
    except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType) as error:
        raise SchemaError(f"not a valid Avro schema: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise SchemaError(f"not a valid Avro schema: {type(error).__name__}: {error}") from error


def _without_wrong_decimals(schema: Any) -> Any:
    """Return the schema with impossible decimals as plain bytes: fastavro refuses such decimals."""
    if isinstance(schema, list):
        return [_without_wrong_decimals(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("logicalType") == "decimal" and _logical(schema, schema.get("type", ""))[0] is None:
        del schema["logicalType"]
    return {
        key: value if key == "default" else _without_wrong_decimals(value) for key, value in schema.items()
    }


class _Parser:
    def __init__(self) -> None:
        self.named: dict[str, Node] = {}
        self.aliases: dict[str, tuple[str, ...]] = {}
        self.nodes = 0
        self.nodes_of: dict[str, int] = {}

    def node(self, schema: Any, inside: tuple[str, ...], depth: int = 0) -> Node:
        defined = isinstance(schema, str) and schema in self.named
        self.nodes += self.nodes_of[schema] if defined else 1
        if self.nodes > MAX_NODES or depth > MAX_DEPTH:
            raise SchemaError(
                f"a schema of more than {MAX_NODES} types, or more than {MAX_DEPTH} inside another"
            )
        if isinstance(schema, list):
            return Union(tuple(self.node(branch, inside, depth + 1) for branch in schema))
        if isinstance(schema, str):
            if schema in inside:
                return Recursion(schema, self.aliases[schema])
            return self.named[schema] if defined else Leaf(schema)
        kind = schema["type"]
        if kind in _PRIMITIVES:
            return Leaf(kind, *_logical(schema, kind), json_form=str(schema.get("millrace.json", "")))
        if kind == "array":
            items = self.node(schema["items"], inside, depth + 1)
            if min_bytes(items) == 0:
                raise SchemaError("an array's items take no bytes: a message could claim any number of them")
            return Array(items)
        if kind == "map":
            return Map(self.node(schema["values"], inside, depth + 1))
        if kind in ("record", "error", "enum", "fixed"):
            return self._named(schema, inside, depth)
        return self.node(kind, inside, depth + 1)  # {"type": {"type": ...}} or {"type": [...]}

    def _named(self, schema: Mapping[str, Any], inside: tuple[str, ...], depth: int) -> Node:
        name, before = schema["name"], self.nodes
        space = name[: name.rfind(".") + 1]
        aliases = tuple(alias if "." in alias else space + alias for alias in schema.get("aliases", ()))
        self.aliases[name] = aliases
        node: Node
        if schema["type"] == "enum":
            node = Enum(name, tuple(schema["symbols"]), schema.get("default"), aliases)
        elif schema["type"] == "fixed":
            node = Fixed(name, schema["size"], *_logical(schema, "fixed"), aliases)
        else:
            fields = tuple(self._field(field, (*inside, name), depth) for field in schema["fields"])
            node = Record(name, fields, aliases)
        self.named[name], self.nodes_of[name] = node, self.nodes - before + 1
        return node

    def _field(self, field: Mapping[str, Any], inside: tuple[str, ...], depth: int) -> Field:
        return Field(
            field["name"],
            self.node(field["type"], inside, depth + 1),
            tuple(field.get("aliases", ())),
            field.get("default", MISSING),
            str(field.get("millrace.name", "")),
        )


def _logical(schema: Mapping[str, Any], kind: Any) -> tuple[str | None, int, int]:
    logical = schema.get("logicalType")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if type(precision) is type(scale) is int and 0 <= scale <= precision > 0:
            digits = int(math.log10(2) * (8 * schema["size"] - 1)) if kind == "fixed" else precision
            if precision <= digits:
                return logical if precision <= MAX_PRECISION else "wide-decimal", precision, scale
    elif isinstance(logical, str) and logical in _LOGICAL:
        stored = f"fixed of {schema['size']}" if kind == "fixed" else kind
        if stored in _LOGICAL[logical][0]:
            return logical, 0, 0
    return None, 0, 0  # Avro requires that an unknown or wrong logical type is ignored


def min_bytes(node: Node) -> int:
    """Return the fewest bytes that a value of this type takes."""
    if isinstance(node, Leaf):
        return {"null": 0, "float": 4, "double": 8}.get(node.kind, 1)
    if isinstance(node, Fixed):
        return node.size
    if isinstance(node, Record):
        return sum(min_bytes(field.type) for field in node.fields)
    return 1


def varies_in_shape(node: Node) -> bool:
    """Return True if the type contains an array, a map or a record inside itself."""
    if isinstance(node, Record):
        return any(varies_in_shape(field.type) for field in node.fields)
    if isinstance(node, Union):
        return any(varies_in_shape(branch) for branch in node.branches)
    return isinstance(node, Array | Map | Recursion)


def without_nulls(record: Record) -> Record:
    """Return the record as a table has it: without fields that can only be null, at any depth."""
    fields = (replace(field, type=as_column(field.type)) for field in record.fields)
    return replace(record, fields=tuple(field for field in fields if not _is_null(field.type)))


def as_column(node: Node) -> Node:
    """Return the type as a table has it: see `without_nulls`."""
    if isinstance(node, Record):
        return without_nulls(node)
    if isinstance(node, Array):
        return Array(as_column(node.items))
    if isinstance(node, Map):
        return Map(as_column(node.values))
    return Union(tuple(map(as_column, node.branches))) if isinstance(node, Union) else node


def _is_null(node: Node) -> bool:
    return node == NULL or (isinstance(node, Union) and not node.members)


def arrow_type(node: Node) -> pa.DataType:
    """Return the Arrow type of a column of this Avro type; everything in it is nullable except map keys."""
    if isinstance(node, Plain):
        return _plain_type(node)
    if isinstance(node, Enum | Recursion):
        return pa.string()
    if isinstance(node, Record):
        return pa.struct(arrow_fields(node)) if node.fields else pa.bool_()
    if isinstance(node, Array):
        return pa.list_(pa.field("element", arrow_type(node.items)))
    if isinstance(node, Map):
        key = pa.field("key", pa.string(), nullable=False)
        return pa.map_(key, pa.field("value", arrow_type(node.values)))
    if node.is_optional:
        return arrow_type(node.members[0] if node.members else NULL)
    return pa.struct([(name, arrow_type(member)) for name, member in node.named_members])


def _plain_type(node: Plain) -> pa.DataType:
    if node.logical == "decimal":
        return pa.decimal128(node.precision, node.scale)
    if isinstance(node, Fixed) and node.size and node.logical in (None, "uuid"):
        return pa.binary(node.size)
    return _PRIMITIVES[node.kind] if node.logical is None else _LOGICAL[node.logical][1]


def arrow_fields(record: Record) -> list[pa.Field]:
    return [pa.field(field.name, arrow_type(field.type)) for field in record.fields]
