"""The slower decoder, one message after the other with fastavro, for schemas that have arrays or maps.

fastavro reads a schema made for it: without logical types, which it would turn into Python objects that can
overflow, and with every branch of a general union wrapped in a record of one field. Such a record has the
same bytes as its field, and the name of the field tells which branch it was. What it reads is then brought
into the table's shape by the same rules as the vectorised decoder's.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import fastavro
import numpy as np
import pyarrow as pa

from millrace_spark.avro_resolution import (
    default_of,
    enum_codes,
    field_pairs,
    leaf_value,
    no_way,
    pick_branch,
    promotes,
    resolved_leaf,
)
from millrace_spark.avro_schema import (
    NULL,
    Array,
    Enum,
    Fixed,
    Leaf,
    Map,
    Node,
    Record,
    SchemaError,
    Union,
    arrow_type,
)
from millrace_spark.row_cursor import Faults, Longs, PaddedBuffer

Convert: TypeAlias = Callable[[Any], Any]


class RowDecoder:
    """Decodes messages of one writer schema into the columns of a table, row by row."""

    def __init__(self, writer: Record, table: Record) -> None:
        self._convert = compile_conversion(writer, table, "")
        self._schema = fastavro.parse_schema(_plain(writer, itertools.count()), _write_hint=False)
        self._type = arrow_type(table)

    def decode(self, buffer: PaddedBuffer, start: Longs, end: Longs) -> tuple[list[pa.Array], Faults]:
        """The columns of the good rows, and the faults of the others."""
        faults, values = Faults(len(start)), []
        data = memoryview(buffer.bytes.data)
        for row, (first, last) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
            try:
                values.append(self._read(data[first:last]))
            except Exception as error:  # whatever a damaged message makes fastavro raise
                faults.mark(np.array([row]), f"{type(error).__name__}: {error}")
        return self._columns(values, faults), faults

    def _read(self, data: memoryview) -> Any:
        stream = io.BytesIO(data)
        value = fastavro.schemaless_reader(stream, self._schema, None)
        if stream.tell() != len(data):
            raise ValueError("bytes are left after the last field")
        return self._convert(value)

    def _columns(self, values: list[Any], faults: Faults) -> list[pa.Array]:
        try:
            table = pa.array(values, self._type)
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            rows = np.flatnonzero(~faults.bad).tolist()
            kept: list[Any] = []
            for row, value in zip(rows, values, strict=True):
                try:
                    pa.array([value], self._type)
                    kept.append(value)
                except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
                    faults.mark(np.array([row]), f"{type(error).__name__}: {error}")
            table = pa.array(kept, self._type)
        return list(table.flatten())


def _plain(node: Node, names: Iterator[int]) -> Any:
    """The schema that fastavro reads with."""
    if isinstance(node, Leaf):
        return node.kind
    if isinstance(node, Array):
        return {"type": "array", "items": _plain(node.items, names)}
    if isinstance(node, Map):
        return {"type": "map", "values": _plain(node.values, names)}
    if isinstance(node, Union):
        if node.is_optional:
            return [_plain(branch, names) for branch in node.branches]
        return list(_wrapped_branches(node, names))
    named = {"name": f"t{next(names)}"}
    if isinstance(node, Fixed):
        return {"type": "fixed", "size": node.size, **named}
    if isinstance(node, Enum):
        return {"type": "enum", "symbols": list(node.symbols), **named}
    fields = [{"name": field.name, "type": _plain(field.type, names)} for field in node.fields]
    return {"type": "record", "fields": fields, **named}


def _wrapped_branches(node: Union, names: Iterator[int]) -> Iterator[Any]:
    for index, branch in enumerate(node.branches):
        if branch == NULL:
            yield "null"
        else:
            field = {"name": f"b{index}", "type": _plain(branch, names)}
            yield {"type": "record", "name": f"t{next(names)}", "fields": [field]}


def compile_conversion(writer: Node, table: Node, path: str) -> Convert:
    """What turns a value that fastavro read into what pyarrow takes; SchemaError when types do not fit."""
    if isinstance(writer, Union):
        return _from_union(writer, table, path)
    if isinstance(table, Union):
        return _into_union(writer, table, path)
    if isinstance(writer, Record) and isinstance(table, Record):
        return _record(writer, table, path)
    if isinstance(writer, Array) and isinstance(table, Array):
        item = compile_conversion(writer.items, table.items, path + "[]")
        return lambda values: [item(value) for value in values]
    if isinstance(writer, Map) and isinstance(table, Map):
        entry = compile_conversion(writer.values, table.values, path + "{}")
        return lambda values: [(key, entry(value)) for key, value in values.items()]
    if isinstance(writer, Enum) and isinstance(table, Enum):
        return _enum(writer, table, path)
    if promotes(writer, table):
        assert isinstance(table, Leaf)
        return _PROMOTE.get(table.kind, lambda value: value)
    if isinstance(writer, Leaf | Fixed) and isinstance(table, Leaf | Fixed):
        leaf = resolved_leaf(writer, table, path)
        return lambda value: leaf_value(leaf, value)
    raise no_way(writer, table, path)


_PROMOTE: dict[str, Convert] = {"float": float, "double": float, "bytes": str.encode, "string": bytes.decode}


def _from_union(writer: Union, table: Node, path: str) -> Convert:
    branches: dict[str | None, Convert] = {}
    for index, branch in enumerate(writer.branches):
        try:
            convert = compile_conversion(branch, table, path)
        except SchemaError:
            continue
        branches[None if branch == NULL else f"b{index}"] = convert
    if not branches:
        raise no_way(writer, table, path)

    def convert_branch(value: Any) -> Any:
        name = None
        if value is not None:
            name, value = next(iter(value.items()))
        if name not in branches:
            raise ValueError(f"{path}: a branch of the union that the table's schema does not have")
        return branches[name](value)

    if not writer.is_optional:
        return convert_branch
    member = next((f"b{index}" for index, each in enumerate(writer.branches) if each != NULL), "")
    return lambda value: convert_branch(None if value is None else {member: value})


def _into_union(writer: Node, table: Union, path: str) -> Convert:
    index = pick_branch(writer, table, path)
    if table.branches[index] == NULL:
        return lambda value: None
    convert = compile_conversion(writer, table.branches[index], path)
    if table.is_optional:
        return convert
    name = f"member{table.place(index)}"
    return lambda value: {name: convert(value)}


def _record(writer: Record, table: Record, path: str) -> Convert:
    prefix = path + "." if path else ""
    pairs, missing = field_pairs(writer, table, prefix)
    defaults = {table.fields[i].name: default_of(table.fields[i], prefix) for i in missing}
    wanted: list[tuple[str, str, Convert]] = []
    for field, index in pairs:
        if index is not None:
            to = table.fields[index]
            convert = compile_conversion(field.type, to.type, prefix + field.name)
            wanted.append((field.name, to.name, convert))
    return lambda value: {**defaults, **{to: convert(value[name]) for name, to, convert in wanted}}


def _enum(writer: Enum, table: Enum, path: str) -> Convert:
    places = zip(writer.symbols, enum_codes(writer, table), strict=True)
    known = {symbol: table.symbols[place] for symbol, place in places if place >= 0}

    def convert(symbol: Any) -> str:
        if symbol not in known:
            raise ValueError(f"{path}: {symbol} is a symbol that the table's schema does not have")
        return known[symbol]

    return convert
