"""Avro's rules for reading a value of one schema as a value of another, for single types.

Both decoders use it. A difference that no value can bridge raises SchemaError when the schemas are compared.
A difference that only some values cannot bridge, such as an unknown symbol or a null, is left to the
decoders.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any, TypeVar

from millrace_avro import schema as avro
from millrace_avro.schema import MAX_PRECISION, NULL, SchemaError, arrow_type

_PROMOTIONS = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Scale:
    """The range of a logical type's numbers, and the factor from its unit to Arrow's."""

    smallest: int
    largest: int
    factor: int


_DAYS = (-719_162, 2_932_896)
"""0001-01-01 and 9999-12-31, the range of years in Python, Spark and folder names."""
_DAY_MS = 86_400_000
_MS = (_DAYS[0] * _DAY_MS, (_DAYS[1] + 1) * _DAY_MS - 1)
SCALES = {
    "date": Scale(*_DAYS, 1),
    "time-millis": Scale(0, _DAY_MS - 1, 1),
    "time-micros": Scale(0, _DAY_MS * 1000 - 1, 1),
    "timestamp-millis": Scale(*_MS, 1000),
    "timestamp-micros": Scale(_MS[0] * 1000, _MS[1] * 1000 + 999, 1),
}
SCALES |= {f"local-{name}": scale for name, scale in SCALES.items() if name.startswith("timestamp")}
_TIMESTAMPS = frozenset(name for name in SCALES if "timestamp" in name)
INT_RANGE = Scale(-(1 << 31), (1 << 31) - 1, 1)


def scale_of(leaf: avro.Plain) -> Scale | None:
    """Return the range and the factor of a type's numbers, or None for values that are used unchanged."""
    scale = SCALES.get(leaf.logical or "")
    if leaf.kind != "int":
        return scale
    if scale is None:
        return INT_RANGE
    return Scale(max(scale.smallest, INT_RANGE.smallest), min(scale.largest, INT_RANGE.largest), scale.factor)


def mismatch_error(writer: avro.Node, table: avro.Node, path: str) -> SchemaError:
    """Return the error for two types that do not fit each other."""
    return SchemaError(f"{path.rstrip('.') or 'message'}: {_describe(writer)} is no {_describe(table)}")


def _describe(node: avro.Node) -> str:
    if isinstance(node, avro.Leaf):
        return f"{node.kind} ({node.logical})" if node.logical else node.kind
    if isinstance(node, avro.Fixed | avro.Enum | avro.Record):
        return f"{type(node).__name__.lower()} {node.name}"
    return type(node).__name__.lower()


def field_pairs(
    writer: avro.Record, table: avro.Record, path: str
) -> tuple[list[tuple[avro.Field, avro.Node, int | None]], dict[int, Any]]:
    """Match a writer's fields to a table's. Raise SchemaError when a field of the table has no value.

    Return two parts. First, for each of the writer's fields: the type as which it is read, and its number in
    the table, or None if it is dropped. Second, number -> default for the table's fields that the writer
    lacks.
    """
    names = {field.name for field in writer.fields}
    taken = names & {field.name for field in table.fields}  # a field's own name precedes aliases
    numbers: dict[str, int] = {}
    defaults: dict[int, Any] = {}
    for number, field in enumerate(table.fields):
        aliased = [name for name in field.aliases if name in names - taken and name not in numbers]
        name = field.name if field.name in names else next(iter(aliased), None)
        if name is not None:
            numbers[name] = number
        elif field.default is avro.MISSING:
            raise SchemaError(f"{path}{field.name}: the writer has no such field and there is no default")
        else:
            defaults[number] = default_of(field, path)
    pairs: list[tuple[avro.Field, avro.Node, int | None]] = []
    for field in writer.fields:
        to = numbers.get(field.name)
        pairs.append((field, field.type if to is None else table.fields[to].type, to))
    return pairs, defaults


def resolved_branches(
    writer: avro.Union, table: avro.Node, path: str, resolve: Callable[[avro.Node, avro.Node, str], T]
) -> list[T | None]:
    """Resolve each branch, to None where it does not fit. Raise SchemaError when no branch fits."""
    resolved: list[T | None] = []
    for branch in writer.branches:
        try:
            resolved.append(resolve(branch, table, path))
        except SchemaError:
            resolved.append(None)
    if not any(resolved):
        raise mismatch_error(writer, table, path)
    return resolved


def resolved_leaf(writer: avro.Plain, table: avro.Plain, path: str) -> avro.Plain:
    """Return the type that reads the writer's bytes into the table's column: the writer's or the table's
    logical type.
    """
    same_kind = (
        isinstance(writer, avro.Leaf) and isinstance(table, avro.Leaf) and writer.kind == table.kind
    ) or (isinstance(writer, avro.Fixed) and isinstance(table, avro.Fixed) and writer.size == table.size)
    if not same_kind:
        raise mismatch_error(writer, table, path)
    alike = arrow_type(writer) == arrow_type(table)
    if writer.logical is None or table.logical is None:
        return writer if alike else table
    if writer.logical == table.logical:
        if writer.scale == table.scale:  # decimals; each value is checked against the precision
            return table
    elif alike and writer.logical in _TIMESTAMPS and table.logical in _TIMESTAMPS:
        return writer
    raise mismatch_error(writer, table, path)


def promotes(writer: avro.Node, table: avro.Node) -> bool:
    """Return True if values of the writer's type can be read as the table's type, which is a different one.

    They are read as plain numbers and bytes, or with the table's logical type if the writer has none.
    """
    return (
        isinstance(writer, avro.Leaf)
        and isinstance(table, avro.Leaf)
        and table.kind in _PROMOTIONS.get(writer.kind, ())
        and (writer.logical in (None, "uuid") or writer.kind in ("int", "long"))
        and (table.logical in (None, "uuid") or writer.logical is None)
    )


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _same_type(writer: avro.Node, table: avro.Node) -> bool:
    if isinstance(writer, avro.Leaf):
        return isinstance(table, avro.Leaf) and writer.kind == table.kind
    return type(writer) is type(table)


def _named_alike(writer: avro.Node, table: avro.Node, name: Callable[[str], str]) -> bool:
    """Return True if the table's type has the writer's name or an alias of it, or if both have none."""
    if isinstance(writer, avro.Named) and isinstance(table, avro.Named):
        return name(writer.name) in map(name, (table.name, *table.aliases))
    return True


def pick_branch(
    writer: avro.Node, table: avro.Union, path: str, resolve: Callable[[avro.Node, avro.Node, str], T]
) -> tuple[int, T]:
    """Return the branch of the table's union that takes values of the writer's type, and its resolution.

    The first branch that resolves is taken. Full names have priority over aliases, and aliases over names
    without namespaces. Raise SchemaError when no branch resolves.
    """
    same = (writer, avro.as_column(writer))
    full_name = writer.name if isinstance(writer, avro.Named) else None
    ways: tuple[Callable[[avro.Node], bool], ...] = (
        lambda branch: branch in same,
        lambda branch: isinstance(branch, avro.Named) and branch.name == full_name,
        lambda branch: _same_type(writer, branch) and _named_alike(writer, branch, str),
        lambda branch: _same_type(writer, branch) and _named_alike(writer, branch, _short),
        lambda branch: promotes(writer, branch),
        # With only one branch nothing can be confused: names do not matter, as outside of unions.
        lambda branch: table.is_optional and not isinstance(writer, avro.Leaf) and _same_type(writer, branch),
    )
    indexes = (index for fits in ways for index, branch in enumerate(table.branches) if fits(branch))
    errors: list[SchemaError] = []
    for index in dict.fromkeys(indexes):
        try:
            return index, resolve(writer, table.branches[index], path)
        except SchemaError as error:
            errors.append(error)
    raise errors[0] if errors else mismatch_error(writer, table, path)


def enum_codes(writer: avro.Enum, table: avro.Enum) -> list[int]:
    """Return the table's number for each of the writer's symbols, -1 for a symbol that the table lacks."""
    fallback = table.symbols.index(table.default) if table.default in table.symbols else -1
    numbers = {symbol: number for number, symbol in enumerate(table.symbols)}
    return [numbers.get(symbol, fallback) for symbol in writer.symbols]


_EXACT = Context(prec=MAX_PRECISION + 1)


def leaf_value(leaf: avro.Plain, raw: Any) -> Any:
    """Convert an Avro value to pyarrow's for its column. Raise ValueError when it is out of range."""
    if leaf.logical == "decimal":
        unscaled = int.from_bytes(raw, "big", signed=True)
        if abs(unscaled) >= 10**leaf.precision:
            raise ValueError(f"a decimal of more than {leaf.precision} digits")
        return Decimal(unscaled).scaleb(-leaf.scale, _EXACT)
    scale = scale_of(leaf)
    if scale is None:
        return raw
    if not scale.smallest <= raw <= scale.largest:
        raise ValueError(f"out of range for {leaf.logical or 'int'}")
    return raw * scale.factor


def json_text(value: Any) -> str:
    """Return a pyarrow value as a line of JSON: bytes as in Avro's own JSON, decimals as text."""
    return json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":"), default=_as_json)


def _as_json(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _finite(value: Any) -> Any:
    """Replace NaN and infinities, which JSON lacks, by text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


_NO_DEFAULT = (AttributeError, KeyError, OverflowError, TypeError, ValueError)


def default_of(field: avro.Field, path: str) -> Any:
    """Return a field's default as pyarrow takes it.

    Raise SchemaError when it does not fit the field's type.
    """
    try:
        return _default(field.type, field.default)
    except _NO_DEFAULT as error:
        raise SchemaError(f"{path}{field.name}: its default does not fit its type: {error}") from error


_JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    "null": type(None),
    "boolean": bool,
    "int": int,
    "long": int,
    "float": (int, float),
    "double": (int, float),
    "bytes": str,
    "string": str,
}
_LONG_RANGE = Scale(-(1 << 63), (1 << 63) - 1, 1)


def _default(node: avro.Node, value: Any) -> Any:
    if isinstance(node, avro.Union):
        return _union_default(node, value)
    if isinstance(node, avro.Record):
        if not isinstance(value, dict):
            raise TypeError(f"{value!r} is not a record")
        return {f.name: _default(f.type, value.get(f.name, f.default)) for f in node.fields} or True
    if isinstance(node, avro.Recursion):
        return json_text(value)
    if isinstance(node, avro.Array):
        if not isinstance(value, list):
            raise TypeError(f"{value!r} is not an array")
        return [_default(node.items, item) for item in value]
    if isinstance(node, avro.Map):
        return [(key, _default(node.values, item)) for key, item in value.items()]
    if isinstance(node, avro.Enum):
        if value not in node.symbols:
            raise ValueError(f"{value!r} is none of the symbols")
        return value
    return _leaf_default(node, value)


def _leaf_default(node: avro.Plain, value: Any) -> Any:
    kind = node.kind
    if not isinstance(value, _JSON_TYPES[kind]) or (isinstance(value, bool) and kind != "boolean"):
        raise TypeError(f"{value!r} is no {kind}")
    if kind in ("bytes", "string"):
        assert isinstance(value, str)
        if kind == "bytes":
            value = value.encode("latin-1")  # how Avro writes bytes in JSON
        else:
            value.encode()  # JSON can hold halves of characters
    if isinstance(node, avro.Fixed) and len(value) != node.size:
        raise ValueError(f"{len(value)} bytes instead of {node.size}")
    if kind in ("float", "double"):
        value = float(value)  # pyarrow refuses whole numbers that have more digits than the type holds
    if kind == "long" and not _LONG_RANGE.smallest <= value <= _LONG_RANGE.largest:
        raise ValueError(f"{value} is out of range for long")
    return leaf_value(node, value)


def _union_default(node: avro.Union, value: Any) -> Any:
    """Return the default for the first branch that it fits; before Avro 1.12, only the first branch."""
    for index, branch in enumerate(node.branches):
        try:
            default = _default(branch, value)
        except _NO_DEFAULT:
            continue
        return default if node.is_optional or branch == NULL else {f"member{node.member(index)}": default}
    raise ValueError(f"{value!r} is of none of the union's types")
