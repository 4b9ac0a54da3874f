"""The slower decoder, message by message, for schemas with arrays, maps or records inside themselves.

A writer's and a table's schema are compiled into one reader for each field, which returns values as pyarrow
takes them. It is as strict as the vectorised decoder, and no message can make it crash or hang. It does not
use fastavro, which reads a negative index from the end, accepts numbers of any length and a boolean 7, and
ends the process on records nested 10,000 deep.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from millrace.records.row_cursor import Faults, Longs, PaddedBuffer
from millrace_avro import resolution
from millrace_avro import schema as avro
from millrace_avro.schema import NULL

Read: TypeAlias = Callable[[bytes, int], tuple[Any, int]]
"""Function that takes a whole body and a position, and returns the value and the position after it.

It raises IndexError or struct.error if the body ends too early, and ValueError for any other error.
"""
Row: TypeAlias = "list[Any]"
MAX_DEPTH = 100
"""Most levels of records inside themselves in one message; Python's stack does not take many more."""
MAX_VALUES = 10_000_000
"""Most values of one message: the items of arrays and maps with all their fields, 20 to 140 bytes each."""
_STRUCT_VALUES = 3
"""Number of values that a record, a union's member or a map's entry counts, besides its contents: a dict
takes 200 bytes.
"""
SLICE_VALUES = 1_000_000
"""Most values of whole messages held before they become columns, which take a tenth of the memory."""
_INT_LIMIT = 1 << 31
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
_NOT_FOR_ARROW = (pa.ArrowException, OverflowError, TypeError, ValueError)


class RowDecoder:
    """Decodes messages of one writer schema into the columns of a table, row by row."""

    def __init__(self, writer: avro.Record, table: avro.Record) -> None:
        self._compiler = _Compiler()
        self._read = self._compiler.record(writer, table, "")
        self._types = [field.type for field in avro.arrow_fields(table)]

    def decode(self, buffer: PaddedBuffer, start: Longs, end: Longs) -> tuple[list[pa.Array], Faults]:
        faults, held = Faults(len(start)), 0
        rows: dict[int, Row] = {}
        parts: list[list[pa.Array]] = []
        for row, (first, last) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
            body = bytes(buffer.data[first:last])
            try:
                rows[row] = self._row(body)
            except (IndexError, struct.error):
                faults.mark(np.array([row]), "the message ends inside a value")
            except (ValueError, ArithmeticError, RecursionError) as error:
                faults.mark(np.array([row]), f"{type(error).__name__}: {error}")
            held += self._compiler.values
            if held > SLICE_VALUES:
                parts.append(self._columns(rows, faults))
                rows, held = {}, 0
        if not parts:
            return self._columns(rows, faults), faults
        parts.append(self._columns(rows, faults))
        return [pa.concat_arrays(column) for column in zip(*parts, strict=True)], faults

    def _row(self, body: bytes) -> Row:
        self._compiler.values = 0
        row, position = self._read(body, 0)
        if position != len(body):
            raise ValueError("bytes are left after the last field")
        return row

    def _columns(self, rows: dict[int, Row], faults: Faults) -> list[pa.Array]:
        try:
            return self._arrays(rows.values())
        except _NOT_FOR_ARROW:
            kept: list[Row] = []
            for number, row in rows.items():
                try:
                    self._arrays([row])
                    kept.append(row)
                except _NOT_FOR_ARROW as error:
                    faults.mark(
                        np.array([number]), f"{type(error).__name__}: a value does not fit its column"
                    )
            return self._arrays(kept)

    def _arrays(self, rows: Collection[Row]) -> list[pa.Array]:
        return [pa.array([row[index] for row in rows], type_) for index, type_ in enumerate(self._types)]


class _Compiler:
    """Compiles readers for pairs of types. Keeps the enclosing records, to which a recursive type refers."""

    def __init__(self) -> None:
        self._records: dict[str, avro.Record] = {}
        self._again: dict[str, Read] = {}
        self._as_text = True
        self._depth = 0
        self.values = 0
        """Number of values in the message so far, reset for each message."""

    def record(
        self, writer: avro.Record, table: avro.Record, path: str
    ) -> Callable[[bytes, int], tuple[Row, int]]:
        """Return a function that reads a record into a list of the table's fields.

        Raise SchemaError if the writer's record does not fit the table's.
        """
        pairs, missing = resolution.field_pairs(writer, table, path)
        defaults: Row = [missing.get(number) for number in range(len(table.fields))]
        self._records[writer.name] = writer
        steps = [(self.value(field.type, wanted, path + field.name), to) for field, wanted, to in pairs]

        def read(data: bytes, position: int) -> tuple[Row, int]:
            values = defaults.copy()
            for step, to in steps:
                value, position = step(data, position)
                if to is not None:
                    values[to] = value
            return values, position

        return read

    def value(self, writer: avro.Node, table: avro.Node, path: str) -> Read:
        """Return a function that reads a value of the writer's type into the table's type.

        Raise SchemaError if the types do not fit.
        """
        if isinstance(writer, avro.Union):
            return self._from_union(writer, table, path)
        if isinstance(table, avro.Union):
            return self._into_union(writer, table, path)
        if isinstance(writer, avro.Record) and isinstance(table, avro.Record):
            return self._struct(writer, table, path)
        if isinstance(writer, avro.Array) and isinstance(table, avro.Array):
            item = self.value(writer.items, table.items, path + "[]")
            return _array(
                item, avro.min_bytes(writer.items), self._counting(_values(table.items), path), path
            )
        if isinstance(writer, avro.Map) and isinstance(table, avro.Map):
            value = self.value(writer.values, table.values, path + "{}")
            return _map(value, self._counting(_STRUCT_VALUES + _values(table.values), path), path)
        if isinstance(writer, avro.Enum) and isinstance(table, avro.Enum):
            return _enum(writer, table, path)
        if isinstance(writer, avro.Recursion) and isinstance(table, avro.Recursion):
            return self._recursion(writer.name, path)
        if resolution.promotes(writer, table):
            assert isinstance(writer, avro.Leaf)
            assert isinstance(table, avro.Leaf)
            return _promoted(writer, table)
        if isinstance(writer, avro.Plain) and isinstance(table, avro.Plain):
            return _leaf(resolution.resolved_leaf(writer, table, path))
        raise resolution.mismatch_error(writer, table, path)

    def _counting(self, values: int, path: str) -> Callable[[int], None]:
        """Return a function that counts items of `values` values each.

        The function raises ValueError for too many values, before they are read.
        """

        def count(items: int) -> None:
            self.values += items * values
            if self.values > MAX_VALUES:
                raise ValueError(
                    f"{path}: more than {MAX_VALUES:,} values in one message; send fewer items in each"
                )

        return count

    def _struct(self, writer: avro.Record, table: avro.Record, path: str) -> Read:
        names = [field.name for field in table.fields]
        fields = self.record(writer, table, path + ".")

        def read(data: bytes, position: int) -> tuple[Any, int]:
            values, position = fields(data, position)
            return dict(zip(names, values, strict=True)) or True, position

        return read

    def _from_union(self, writer: avro.Union, table: avro.Node, path: str) -> Read:
        branches = resolution.resolved_branches(writer, table, path, self.value)

        def read(data: bytes, position: int) -> tuple[Any, int]:
            index, position = _read_long(data, position)
            if not 0 <= index < len(branches):
                raise ValueError(f"{path}: no such branch of the union")
            branch = branches[index]
            if branch is None:
                raise ValueError(f"{path}: a branch of the union that the table's schema does not have")
            return branch(data, position)

        return read

    def _into_union(self, writer: avro.Node, table: avro.Union, path: str) -> Read:
        index, branch = resolution.pick_branch(writer, table, path, self.value)
        if table.is_optional or table.branches[index] == NULL:
            return branch
        name = f"member{table.member(index)}"

        def read(data: bytes, position: int) -> tuple[Any, int]:
            value, position = branch(data, position)
            return {name: value}, position

        return read

    def _recursion(self, name: str, path: str) -> Read:
        """Return a reader of a record inside itself, which returns JSON text."""
        if name not in self._again:
            self._again[name] = _leaf_reader(NULL)  # registered first: the record refers to itself
            as_text, self._as_text = self._as_text, False
            self._again[name] = self._struct(self._records[name], self._records[name], path)
            self._as_text = as_text
        count = self._counting(_values(self._records[name]), path)

        def read(data: bytes, position: int) -> tuple[Any, int]:
            count(1)
            if self._depth >= MAX_DEPTH:
                raise ValueError(f"{path}: records inside themselves more than {MAX_DEPTH} deep")
            self._depth += 1
            value, position = self._again[name](data, position)
            self._depth -= 1
            return value, position

        def read_text(data: bytes, position: int) -> tuple[Any, int]:
            self._depth = 0
            value, position = read(data, position)
            return resolution.json_text(value), position

        return read_text if self._as_text else read


def _read_long(data: bytes, position: int) -> tuple[int, int]:
    """Read a zigzag number of at most 10 bytes and 64 bits."""
    byte = data[position]
    position += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position
    value, shift = byte & 0x7F, 7
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 10 bytes")
    if value >> 64:
        raise ValueError("a number of more than 64 bits")
    return (value >> 1) ^ -(value & 1), position


def _read_bytes(data: bytes, position: int) -> tuple[bytes, int]:
    """Read a length and that number of bytes."""
    size, position = _read_long(data, position)
    end = position + size
    if not position <= end <= len(data):
        raise ValueError("a length is negative or reaches past the end of the message")
    return data[position:end], end


def _read_string(data: bytes, position: int) -> tuple[str, int]:
    """Read a length and that number of bytes of UTF-8."""
    value, position = _read_bytes(data, position)
    try:
        return value.decode(), position
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None  # Python's own message quotes a byte


def _read_int(data: bytes, position: int) -> tuple[int, int]:
    value, position = _read_long(data, position)
    if not -_INT_LIMIT <= value < _INT_LIMIT:
        raise ValueError("out of range for int")
    return value, position


def _read_boolean(data: bytes, position: int) -> tuple[bool, int]:
    if data[position] > 1:
        raise ValueError("a boolean that is neither 0 nor 1")
    return data[position] == 1, position + 1


def _read_float(data: bytes, position: int) -> tuple[float, int]:
    return _FLOAT.unpack_from(data, position)[0], position + 4


def _read_double(data: bytes, position: int) -> tuple[float, int]:
    return _DOUBLE.unpack_from(data, position)[0], position + 8


_READERS: dict[str, Read] = {
    "null": lambda data, position: (None, position),
    "boolean": _read_boolean,
    "int": _read_int,
    "long": _read_long,
    "float": _read_float,
    "double": _read_double,
    "bytes": _read_bytes,
    "string": _read_string,
}


def _leaf_reader(leaf: avro.Plain) -> Read:
    """Return the reader of a primitive type or of a fixed, without its logical type."""
    if isinstance(leaf, avro.Leaf):
        return _READERS[leaf.kind]
    size = leaf.size

    def read(data: bytes, position: int) -> tuple[bytes, int]:
        if position + size > len(data):
            raise IndexError
        return data[position : position + size], position + size

    return read


def _leaf(leaf: avro.Plain) -> Read:
    raw = _leaf_reader(leaf)
    if leaf.logical is None:
        return raw

    def read(data: bytes, position: int) -> tuple[Any, int]:
        value, position = raw(data, position)
        return resolution.leaf_value(leaf, value), position

    return read


def _to_float32(value: int) -> float:
    return float(np.int64(value).astype(np.float32))  # in one step: by way of a double it is rounded twice


_FROM_NUMBER: dict[str, Callable[[Any], Any]] = {"float": _to_float32, "double": float}


def _promoted(writer: avro.Leaf, table: avro.Leaf) -> Read:
    if writer.kind in ("bytes", "string"):
        return _leaf(table)
    raw = _leaf(replace(table, kind=writer.kind))
    convert = _FROM_NUMBER.get(table.kind)
    if convert is None or writer.kind == "float":
        return raw

    def read(data: bytes, position: int) -> tuple[Any, int]:
        value, position = raw(data, position)
        return convert(value), position

    return read


def _blocks(data: bytes, position: int, least: int, path: str) -> tuple[int, int]:
    """Read a block's number of items. Raise ValueError if the remaining bytes cannot hold that many."""
    count, position = _read_long(data, position)
    if count < 0:
        count = -count
        _, position = _read_long(data, position)  # its size in bytes, for readers that skip it
    if count * least > len(data) - position:
        raise ValueError(f"{path}: a block of items reaches past the end of the message")
    return count, position


def _values(node: avro.Node) -> int:
    """Count the values in a value of a type, without items of arrays and maps and recursive records."""
    if isinstance(node, avro.Record):
        return _STRUCT_VALUES + sum(_values(field.type) for field in node.fields)
    if isinstance(node, avro.Union):
        return max(map(_values, node.branches), default=0) + (0 if node.is_optional else _STRUCT_VALUES)
    return 1


def _array(item: Read, least: int, count_values: Callable[[int], None], path: str) -> Read:
    def read(data: bytes, position: int) -> tuple[Any, int]:
        items: list[Any] = []
        while True:
            count, position = _blocks(data, position, least, path)
            if not count:
                return items, position
            count_values(count)
            for _ in range(count):
                value, position = item(data, position)
                items.append(value)

    return read


def _map(value: Read, count_values: Callable[[int], None], path: str) -> Read:
    def read(data: bytes, position: int) -> tuple[Any, int]:
        entries: dict[str, Any] = {}
        while True:
            count, position = _blocks(data, position, 1, path)
            if not count:
                return list(entries.items()), position
            count_values(count)
            for _ in range(count):
                key, position = _read_string(data, position)
                entries[key], position = value(data, position)

    return read


def _enum(writer: avro.Enum, table: avro.Enum, path: str) -> Read:
    codes = resolution.enum_codes(writer, table)

    def read(data: bytes, position: int) -> tuple[Any, int]:
        index, position = _read_long(data, position)
        if not 0 <= index < len(codes):
            raise ValueError(f"{path}: no such symbol of the enum")
        if codes[index] < 0:
            raise ValueError(f"{path}: a symbol that the table's schema does not have")
        return table.symbols[codes[index]], position

    return read
