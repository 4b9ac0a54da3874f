"""Avro schemas and values made by Hypothesis, and what a table must show for a value fastavro has read."""

from __future__ import annotations

import io
import math
import struct
import uuid
from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from millrace.records.row_cursor import PADDING, PaddedBuffer
from millrace_avro.schema import Array, Leaf, Map, Node, Record, Union, parse, without_nulls

Schema = Any


def _whole_ms(when: Any) -> Any:
    return when.replace(microsecond=when.microsecond // 1000 * 1000)


_LONG = st.integers(-(1 << 63), (1 << 63) - 1)
_INT = st.integers(-(1 << 31), (1 << 31) - 1)
_FLOAT = st.floats(width=32, allow_nan=False)
_TEXT = st.text(max_size=20) | st.text("abc", min_size=60, max_size=70)
_LEAVES: list[tuple[Schema, st.SearchStrategy[Any]]] = [
    ("null", st.none()),
    ("boolean", st.booleans()),
    ("int", _INT | st.integers(-70, 70)),
    ("long", _LONG | st.integers(-(1 << 50), 1 << 50)),
    ("float", _FLOAT),
    ("double", st.floats(allow_nan=False)),
    ("bytes", st.binary(max_size=70)),
    ("string", _TEXT),
    ({"type": "string", "logicalType": "uuid"}, st.uuids()),
    ({"type": "int", "logicalType": "date"}, st.dates()),
    ({"type": "int", "logicalType": "time-millis"}, st.times().map(_whole_ms)),
    ({"type": "long", "logicalType": "time-micros"}, st.times()),
    ({"type": "long", "logicalType": "timestamp-micros"}, st.datetimes(timezones=st.just(UTC))),
    ({"type": "long", "logicalType": "local-timestamp-micros"}, st.datetimes()),
    (
        {"type": "long", "logicalType": "timestamp-millis"},
        st.datetimes(timezones=st.just(UTC)).map(_whole_ms),
    ),
    ({"type": "long", "logicalType": "not-known"}, _LONG),
    ({"type": "long", "logicalType": "timestamp-nanos"}, _LONG),
    ({"type": "long", "logicalType": "local-timestamp-nanos"}, _LONG),
    ({"type": "bytes", "logicalType": "big-decimal"}, st.binary(max_size=20)),
    ({"type": "int", "logicalType": "timestamp-millis"}, _INT),
]


def _decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    whole = st.integers(-(10**precision) + 1, 10**precision - 1)
    return whole.map(lambda n: Decimal((n < 0, tuple(map(int, str(abs(n)))), -scale)))


class _Names:
    def __init__(self) -> None:
        self.count = 0

    def new(self) -> str:
        self.count += 1
        return f"N{self.count}"


@st.composite
def nodes(
    draw: st.DrawFn, names: _Names, *, depth: int, blocks: bool, union: bool = True
) -> tuple[Schema, st.SearchStrategy[Any]]:
    """A schema and a strategy for its values."""
    kinds = ["leaf"] * 6 + ["enum", "fixed", "decimal"]
    if depth:
        kinds += ["record", *(["optional", "optional", "union"] if union else [])]
        kinds += ["array", "map"] if blocks else []
    kind = draw(st.sampled_from(kinds))
    if kind == "leaf":
        leaf: tuple[Schema, st.SearchStrategy[Any]] = draw(st.sampled_from(_LEAVES))
        return leaf
    if kind == "enum":
        symbols = [f"S{index}" for index in range(draw(st.integers(1, 70)))]
        return {"type": "enum", "name": names.new(), "symbols": symbols}, st.sampled_from(symbols)
    if kind == "fixed":
        size = draw(st.integers(1, 20) | st.sampled_from([12, 16]))
        logical: dict[str, Any] = {}
        if draw(st.booleans()):
            logical = {"logicalType": draw(st.sampled_from(["duration", "uuid", "not-known"]))}
        fixed: Schema = {"type": "fixed", "name": names.new(), "size": size, **logical}
        return fixed, st.binary(min_size=size, max_size=size)
    if kind == "decimal":
        precision = draw(st.integers(1, 38))
        scale = draw(st.integers(0, precision))
        logical = {"logicalType": "decimal", "precision": precision, "scale": scale}
        base: dict[str, Any] = {"type": "bytes"}
        if draw(st.booleans()):
            least = next(n for n in range(1, 17) if 10**precision <= 1 << 8 * n - 1)
            base = {"type": "fixed", "name": names.new(), "size": draw(st.integers(least, 20))}
        return {**base, **logical}, _decimals(precision, scale)
    if kind == "record":
        return draw(records(names, depth=depth - 1, blocks=blocks))
    if kind == "array":
        items = nodes(names, depth=depth - 1, blocks=True).filter(lambda each: _takes_bytes(each[0]))
        schema, values = draw(items)
        return {"type": "array", "items": schema}, st.lists(values, max_size=4)
    if kind == "map":
        schema, values = draw(nodes(names, depth=depth - 1, blocks=True))
        return {"type": "map", "values": schema}, st.dictionaries(_TEXT, values, max_size=3)
    return draw(_unions(names, depth=depth - 1, blocks=blocks, general=kind == "union"))


def _takes_bytes(schema: Schema) -> bool:
    """Arrays of what takes no bytes are refused."""
    if isinstance(schema, dict) and schema["type"] == "record":
        return any(_takes_bytes(each["type"]) for each in schema["fields"])
    return bool(schema != "null")


@st.composite
def _unions(
    draw: st.DrawFn, names: _Names, *, depth: int, blocks: bool, general: bool
) -> tuple[Schema, st.SearchStrategy[Any]]:
    branches: dict[str, tuple[Schema, st.SearchStrategy[Any]]] = {}
    if general:
        # fastavro picks a branch by the value: kinds that it can tell apart.
        kinds = st.sampled_from(["long", "string", "bytes", "boolean", "record"])
        for name in draw(st.lists(kinds, min_size=1, max_size=4, unique=True)):
            branches[name] = (
                draw(records(names, depth=0, blocks=False, fields=st.integers(1, 3)))
                if name == "record"
                else next(leaf for leaf in _LEAVES if leaf[0] == name)
            )
        if draw(st.booleans()):
            branches["null"] = ("null", st.none())
    else:
        schema, values = draw(nodes(names, depth=depth, blocks=blocks, union=False))
        branches = {"null": ("null", st.none()), "value": (schema, values)}
        if schema == "null":
            del branches["value"]
    ordered = draw(st.permutations(list(branches.values())))
    return [schema for schema, _ in ordered], st.one_of([values for _, values in ordered])


@st.composite
def records(
    draw: st.DrawFn,
    names: _Names,
    *,
    depth: int,
    blocks: bool,
    fields: st.SearchStrategy[int] = st.integers(1, 6),  # noqa: B008  # a strategy is a value
) -> tuple[Schema, st.SearchStrategy[Any]]:
    """A record and a strategy for its values."""
    made = {f"f{index}": draw(nodes(names, depth=depth, blocks=blocks)) for index in range(draw(fields))}
    schema = {
        "type": "record",
        "name": names.new(),
        "fields": [{"name": name, "type": each} for name, (each, _) in made.items()],
    }
    return schema, st.fixed_dictionaries({name: values for name, (_, values) in made.items()})


@st.composite
def messages(draw: st.DrawFn, *, blocks: bool = False) -> tuple[Schema, list[Any]]:
    """A record schema and some values for it."""
    schema, values = draw(records(_Names(), depth=2, blocks=blocks))
    return schema, draw(st.lists(values, min_size=1, max_size=12))


def encode(schema: Schema, value: Any) -> bytes:
    """The Avro body of a value."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def record(schema: Schema) -> Record:
    """A writer's schema."""
    node = parse(schema)
    assert isinstance(node, Record)
    return node


def table_record(schema: Schema) -> Record:
    """A table's schema, which has no column that can only be null."""
    return without_nulls(record(schema))


def in_one_buffer(bodies: list[bytes]) -> tuple[PaddedBuffer, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Bodies one after the other, and where each starts and ends."""
    sizes = np.array([len(body) for body in bodies], np.int64)
    ends = PADDING + np.cumsum(sizes)
    return PaddedBuffer.of(bodies), ends - sizes, ends


def shown(node: Node, value: Any) -> Any:
    """Return the value that a table of the node's columns shows (`to_pylist`) for fastavro's value."""
    if isinstance(node, Union):
        return _shown_union(node, value)
    if isinstance(node, Record):
        return {field.name: shown(field.type, value[field.name]) for field in node.fields} or True
    if isinstance(node, Array):
        return [shown(node.items, item) for item in value]
    if isinstance(node, Map):
        return sorted((key, shown(node.values, item)) for key, item in value.items())
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, time):  # stays the number it is
        micros = ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
        return micros // 1000 if isinstance(node, Leaf) and node.kind == "int" else micros
    if isinstance(node, Leaf) and node.kind == "float":  # fastavro leaves a promoted integer as it is
        return float(np.array(value).astype(np.float32))
    if isinstance(node, Leaf) and node.kind == "double":
        return float(value)
    return value


def _shown_union(node: Union, value: Any) -> Any:
    if value is None:
        return None
    if node.is_optional:
        return shown(node.members[0], value)
    found = next(index for index, member in enumerate(node.members) if _is_of(member, value))
    return {
        f"member{index}": shown(member, value) if index == found else None
        for index, member in enumerate(node.members)
    }


def _is_of(node: Node, value: Any) -> bool:
    if isinstance(node, Record):
        return isinstance(value, Mapping)
    assert isinstance(node, Leaf)
    if node.kind in ("float", "double"):
        return type(value) in (int, float)
    wanted = {"long": int, "string": str, "bytes": bytes, "boolean": bool}[node.kind]
    return type(value) is wanted


def comparable(value: Any) -> Any:
    """A value without what is not its own: the kind of UTC, the order of a map, the bits of a zero."""
    if isinstance(value, Mapping):
        return {key: comparable(item) for key, item in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(item, tuple) for item in value):
            return sorted((key, repr(comparable(item))) for key, item in value)
        return [comparable(item) for item in value]
    if isinstance(value, datetime):
        return ("datetime", value.tzinfo is not None, value.replace(tzinfo=None))
    if isinstance(value, float):
        return "nan" if math.isnan(value) else struct.pack("d", value)
    if isinstance(value, date | time | Decimal | bool):
        return (type(value).__name__, value)
    return value


def rows_of(arrays: list[pa.Array], schema: Schema) -> list[Any]:
    """The rows as Python values."""
    columns = [array.to_pylist() for array in arrays]
    names = [field.name for field in table_record(schema).fields]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
