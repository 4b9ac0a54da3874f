"""How a value written with one schema becomes one of another: Avro's rules, for single types.

Shared by the two decoders. A difference that no value can bridge raises SchemaError when the schemas are
compared; one that only some values cannot bridge (an unknown symbol, a null) is left to the decoders.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

from millrace_spark.avro_schema import (
    MAX_PRECISION,
    MISSING,
    NULL,
    Array,
    Enum,
    Field,
    Fixed,
    Leaf,
    Map,
    Node,
    Record,
    SchemaError,
    Union,
    arrow_type,
)

PROMOTIONS = frozenset(
    {
        ("int", "long"), ("int", "float"), ("int", "double"), ("long", "float"), ("long", "double"),
        ("float", "double"), ("string", "bytes"), ("bytes", "string"),
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scale:
    """Numbers a logical type takes, and what one of its units is in Arrow's."""

    smallest: int
    largest: int
    factor: int


_DAYS = (-719_162, 2_932_896)
"""0001-01-01 and 9999-12-31, the years that Python, Spark and folder names have."""
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
INT_RANGE = Scale(-(1 << 31), (1 << 31) - 1, 1)


def no_way(writer: Node, table: Node, path: str) -> SchemaError:
    """The error for two types that do not fit each other."""
    return SchemaError(f"{path.rstrip('.') or 'message'}: {_describe(writer)} is no {_describe(table)}")


def _describe(node: Node) -> str:
    if isinstance(node, Leaf):
        return f"{node.kind} ({node.logical})" if node.logical else node.kind
    if isinstance(node, Fixed | Enum | Record):
        return f"{type(node).__name__.lower()} {node.name}"
    return type(node).__name__.lower()


def field_pairs(writer: Record, table: Record, path: str) -> tuple[list[tuple[Field, int | None]], list[int]]:
    """The writer's fields with the places they have in the table (None: dropped), and the places left over.

    Raises SchemaError when a place left over has no default.
    """
    names = {field.name for field in writer.fields}
    places: dict[str, int] = {}
    missing: list[int] = []
    for index, field in enumerate(table.fields):
        known = [name for name in (field.name, *field.aliases) if name in names]
        if known:
            places[known[0]] = index
        elif field.default is MISSING:
            raise SchemaError(f"{path}{field.name}: the writer has no such field and there is no default")
        else:
            missing.append(index)
    return [(field, places.get(field.name)) for field in writer.fields], missing


def resolved_leaf(writer: Leaf | Fixed, table: Leaf | Fixed, path: str) -> Leaf | Fixed:
    """How to read the writer's bytes into the table's column: which of the two logical types holds."""
    same_kind = (isinstance(writer, Leaf) and isinstance(table, Leaf) and writer.kind == table.kind) or (
        isinstance(writer, Fixed) and isinstance(table, Fixed) and writer.size == table.size
    )
    if not same_kind:
        raise no_way(writer, table, path)
    if arrow_type(writer) == arrow_type(table):
        return writer
    both_decimal = writer.logical == table.logical == "decimal" and writer.scale == table.scale
    if writer.logical is None or table.logical is None or both_decimal:
        return table
    raise no_way(writer, table, path)


def promotes(writer: Node, table: Node) -> bool:
    """True if every value of the writer's type is one of the table's, which is another."""
    return (
        isinstance(writer, Leaf)
        and isinstance(table, Leaf)
        and (writer.kind, table.kind) in PROMOTIONS
        and writer.logical in (None, "uuid")
        and table.logical in (None, "uuid")
    )


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _same_type(writer: Node, table: Node) -> bool:
    if isinstance(writer, Leaf):
        return isinstance(table, Leaf) and writer.kind == table.kind
    if isinstance(writer, Array | Map):
        return type(writer) is type(table)
    if isinstance(writer, Fixed | Enum | Record) and type(writer) is type(table):
        assert isinstance(table, Fixed | Enum | Record)
        return _short(writer.name) == _short(table.name)
    return False


def pick_branch(writer: Node, table: Union, path: str) -> int:
    """The branch of the table's union that takes values of the writer's type; SchemaError when none does."""
    for fits in (
        lambda branch: branch == writer,
        lambda b: _same_type(writer, b),
        lambda b: promotes(writer, b),
    ):
        for index, branch in enumerate(table.branches):
            if fits(branch):
                return index
    raise no_way(writer, table, path)


def enum_codes(writer: Enum, table: Enum) -> list[int]:
    """For each of the writer's symbols its place in the table's, -1 when it is unknown there."""
    fallback = table.symbols.index(table.default) if table.default in table.symbols else -1
    places = {symbol: index for index, symbol in enumerate(table.symbols)}
    return [places.get(symbol, fallback) for symbol in writer.symbols]


_EXACT = Context(prec=MAX_PRECISION + 1)


def leaf_value(leaf: Leaf | Fixed, raw: Any) -> Any:
    """A value as Avro holds it, as what pyarrow takes for its column; ValueError when it is out of range."""
    if leaf.logical == "decimal":
        unscaled = int.from_bytes(raw, "big", signed=True)
        if abs(unscaled) >= 10**leaf.precision:
            raise ValueError(f"a decimal of more than {leaf.precision} digits")
        return Decimal(unscaled).scaleb(-leaf.scale, _EXACT)
    if leaf.logical == "uuid" and isinstance(leaf, Fixed):
        return str(uuid.UUID(bytes=raw))
    scale = SCALES.get(leaf.logical or "")
    if scale is None and isinstance(leaf, Leaf) and leaf.kind == "int":
        scale = INT_RANGE
    if scale is None:
        return raw
    if not scale.smallest <= raw <= scale.largest:
        raise ValueError(f"{raw} is out of range for {leaf.logical or 'int'}")
    return raw * scale.factor


def default_of(field: Field, path: str) -> Any:
    """A field's default as what pyarrow takes; SchemaError when it does not fit the field's type."""
    try:
        return _default(field.type, field.default)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise SchemaError(f"{path}{field.name}: its default does not fit its type: {error}") from error


def _default(node: Node, value: Any) -> Any:
    if isinstance(node, Union):
        return _union_default(node, value)
    if isinstance(node, Record):
        return {
            field.name: _default(field.type, value.get(field.name, field.default)) for field in node.fields
        }
    if isinstance(node, Array):
        return [_default(node.items, item) for item in value]
    if isinstance(node, Map):
        return [(key, _default(node.values, item)) for key, item in value.items()]
    if isinstance(node, Enum):
        if value not in node.symbols:
            raise ValueError(f"{value!r} is none of the symbols")
        return value
    if isinstance(node, Fixed) or node.kind == "bytes":
        value = value.encode("latin-1")  # how Avro writes bytes in JSON
    return leaf_value(node, value)


def _union_default(node: Union, value: Any) -> Any:
    """By the first branch, as Avro says."""
    if node.branches[0] == NULL:
        if value is not None:
            raise ValueError("the default of a union is one of its first branch, which is null")
        return None
    first = _default(node.branches[0], value)
    return first if node.is_optional else {"member0": first}
