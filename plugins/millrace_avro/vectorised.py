"""Compiles a writer's schema and a table's into steps that decode one field of many messages at a time.

Follows Avro's schema resolution: fields by name or alias, defaults for fields that a writer lacks,
promotions, unions on either side. Arrays and maps have no step here; `rows.py` decodes schemas with them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from millrace.records.row_cursor import Faults, Longs, Mask, PaddedBuffer, RowCursor
from millrace_avro import columns, resolution, wide_values
from millrace_avro import schema as avro
from millrace_avro.columns import Column
from millrace_avro.schema import NULL, arrow_type

Step: TypeAlias = Callable[[RowCursor], Column]
_NUMBER = {"float": np.float32, "double": np.float64}


class ColumnDecoder:
    """Decodes messages of one writer schema into the columns of a table, field by field."""

    def __init__(self, writer: avro.Record, table: avro.Record) -> None:
        self._step = _compile_record(writer, table, "")

    def decode(self, buffer: PaddedBuffer, start: Longs, end: Longs) -> tuple[list[pa.Array], Faults]:
        """Return the table's columns for the good rows, and the faults of the other rows by their numbers.

        Each Avro body lies from a start to an end, without the schema id before it.
        """
        faults = Faults(len(start))
        while True:
            # A row's fault may appear at any step, when columns already hold its garbage: so the rows
            # without a fault are decoded again. A second pass happens only after an error.
            good = np.flatnonzero(~faults.bad)
            new_faults = Faults(len(good))
            rows = RowCursor(buffer, start[good], end[good], new_faults)
            decoded = self._step(rows)
            rows.finish()
            if not new_faults:
                arrays = [column.array(len(good), new_faults) for column in decoded]
                if not new_faults:
                    return arrays, faults
            for row, reason in new_faults.reasons.items():
                faults.mark(good[[row]], reason)


def _compile_record(
    writer: avro.Record, table: avro.Record, path: str
) -> Callable[[RowCursor], list[Column]]:
    """Return the step that decodes a record into the table's columns.

    Raise SchemaError if they do not fit.
    """
    pairs, missing = resolution.field_pairs(writer, table, path)
    steps = [(_compile(field.type, wanted, path + field.name), to) for field, wanted, to in pairs]
    defaults: list[Column] = [columns.Constant(pa.scalar(None))] * len(table.fields)
    for number, value in missing.items():
        defaults[number] = columns.Constant(pa.scalar(value, arrow_type(table.fields[number].type)))

    def step(rows: RowCursor) -> list[Column]:
        decoded = list(defaults)
        for read, number in steps:
            column = read(rows)
            if number is not None:
                decoded[number] = column
        return decoded

    return step


def _compile(writer: avro.Node, table: avro.Node, path: str) -> Step:
    """Return the function that decodes one value of each row. Raise SchemaError for incompatible types."""
    if isinstance(writer, avro.Union):
        return _writer_union(writer, table, path)
    if isinstance(table, avro.Union):
        return _into_union(writer, table, path)
    if isinstance(writer, avro.Record) and isinstance(table, avro.Record):
        return _record(writer, table, path)
    if isinstance(writer, avro.Enum) and isinstance(table, avro.Enum):
        return _enum(writer, table, path)
    if isinstance(writer, avro.Leaf) and isinstance(table, avro.Leaf):
        if resolution.promotes(writer, table):
            return _leaf(replace(table, kind=writer.kind), table.kind, path)
        leaf = resolution.resolved_leaf(writer, table, path)
        assert isinstance(leaf, avro.Leaf)
        return _leaf(leaf, leaf.kind, path)
    if isinstance(writer, avro.Fixed) and isinstance(table, avro.Fixed):
        fixed = resolution.resolved_leaf(writer, table, path)
        assert isinstance(fixed, avro.Fixed)
        return _fixed(fixed, path)
    raise resolution.mismatch_error(writer, table, path)


def _record(writer: avro.Record, table: avro.Record, path: str) -> Step:
    step, type_ = _compile_record(writer, table, path + "."), arrow_type(table)
    if table.fields:
        return lambda rows: columns.Struct(type_, step(rows), rows.at)

    def presence(rows: RowCursor) -> Column:
        step(rows)
        return columns.FixedWidth(type_, np.ones(len(rows), np.bool_), rows.at)

    return presence


def _writer_union(writer: avro.Union, table: avro.Node, path: str) -> Step:
    """Decode the rows of each branch. Mark the rows of a branch that the table lacks as faulty."""
    steps = resolution.resolved_branches(writer, table, path, _compile)
    nothing = columns.Constant(pa.scalar(None, arrow_type(table)))
    # A null branch reads nothing and stays null: it needs no step if the table takes nulls.
    nulls = {index for index, type_ in enumerate(writer.branches) if type_ == NULL and steps[index]}

    def step(rows: RowCursor) -> Column:
        branch = rows.varint(path)
        unknown = branch.view(np.uint64) >= len(steps)
        if np.count_nonzero(unknown):
            rows.fault(unknown, f"{path}: no such branch of the union")
        decoded: list[Column] = []
        for index, read in enumerate(steps):
            mine = branch == index
            if read is None:
                if np.count_nonzero(mine):
                    rows.fault(mine, f"{path}: a branch of the union that the table's schema does not have")
            elif index not in nulls:
                decoded += _decode_where(rows, mine, read)
        if len(decoded) > 1:
            return columns.Merged(decoded)
        return decoded[0] if decoded else nothing

    return step


def _decode_where(rows: RowCursor, mine: Mask, read: Step) -> list[Column]:
    """Decode the rows that are `mine` and return their column, or an empty list when there are none."""
    if mine.all():
        return [read(rows)]
    index = np.flatnonzero(mine)
    if not len(index):
        return []
    part = rows.subset(index)
    column = read(part)
    rows.rejoin(index, part)
    return [column]


def _into_union(writer: avro.Node, table: avro.Union, path: str) -> Step:
    index, read = resolution.pick_branch(writer, table, path, _compile)
    type_ = arrow_type(table)
    if table.branches[index] == NULL:
        nothing = columns.Constant(pa.scalar(None, type_))
        return lambda rows: nothing
    if table.is_optional:
        return read
    member, count = table.member(index), len(table.members)

    def step(rows: RowCursor) -> Column:
        members: list[Column | None] = [None] * count
        members[member] = read(rows)
        return columns.Struct(type_, members, rows.at)

    return step


def _enum(writer: avro.Enum, table: avro.Enum, path: str) -> Step:
    codes_of = np.array(resolution.enum_codes(writer, table), np.int32)
    symbols = pa.array(table.symbols, pa.string())

    def step(rows: RowCursor) -> Column:
        index = rows.varint(path)
        unknown = index.view(np.uint64) >= len(codes_of)
        if np.count_nonzero(unknown):
            index[unknown] = 0
            rows.fault(unknown, f"{path}: no such symbol of the enum")
        codes = codes_of[index]
        lost = codes < 0
        if np.count_nonzero(lost):
            codes[lost] = 0
            rows.fault(lost, f"{path}: a symbol that the table's schema does not have")
        return columns.Symbols(symbols, codes, rows.at)

    return step


def _leaf(leaf: avro.Leaf, kind: str, path: str) -> Step:
    """Return the step for a primitive type whose values are `kind` in the table."""
    if leaf.kind in ("int", "long"):
        return _integer(leaf, kind, path)
    if leaf.kind in ("bytes", "string"):
        if leaf.logical == "decimal":
            return _decimal(leaf, lambda rows: rows.sized_bytes(path), path)
        text = pa.string() if kind == "string" else pa.binary()
        return lambda rows: columns.Slices(text, rows.buffer, *rows.sized_bytes(path), rows.at, path)
    if leaf.kind in ("float", "double"):
        stored, wanted, type_ = _NUMBER[leaf.kind], _NUMBER[kind], arrow_type(avro.Leaf(kind))

        def number(rows: RowCursor) -> Column:
            start = rows.fixed_bytes(np.dtype(stored).itemsize, path)
            return columns.FixedWidth(
                type_, rows.buffer.numbers(start, stored).astype(wanted, copy=False), rows.at
            )

        return number
    if leaf.kind == "boolean":
        return _boolean(path)
    nothing = columns.Constant(pa.scalar(None, arrow_type(leaf)))
    return lambda rows: nothing


def _boolean(path: str) -> Step:
    def step(rows: RowCursor) -> Column:
        value = rows.buffer.bytes[rows.fixed_bytes(1, path)]
        if value.max(initial=0) > 1:
            rows.fault(value > 1, f"{path}: a boolean that is neither 0 nor 1")
        return columns.FixedWidth(pa.bool_(), value == 1, rows.at)

    return step


def _integer(leaf: avro.Leaf, kind: str, path: str) -> Step:
    scale = resolution.scale_of(leaf)
    type_ = arrow_type(replace(leaf, kind=kind))
    dtype = np.dtype(_NUMBER.get(kind, np.int32 if type_.bit_width == 32 else np.int64))
    what = f"{path}: out of range for {leaf.logical or 'int'}"

    def step(rows: RowCursor) -> Column:
        value = rows.varint(path)
        if scale is not None:
            if value.min(initial=0) < scale.smallest or value.max(initial=0) > scale.largest:
                bad = (value < scale.smallest) | (value > scale.largest)
                value[bad] = 0
                rows.fault(bad, what)
            if scale.factor != 1:
                value *= scale.factor
        return columns.FixedWidth(type_, value.astype(dtype, copy=False), rows.at)

    return step


def _fixed(fixed: avro.Fixed, path: str) -> Step:
    type_ = arrow_type(fixed)

    def slices(rows: RowCursor) -> tuple[Longs, Longs]:
        start = rows.fixed_bytes(fixed.size, path)
        return start, rows.pos.copy()

    def values(rows: RowCursor) -> Column:
        start = rows.fixed_bytes(fixed.size, path)
        return columns.FixedWidth(type_, rows.buffer.rows(start, fixed.size), rows.at)

    if fixed.logical == "decimal":
        return _decimal(fixed, slices, path)
    if pa.types.is_fixed_size_binary(type_):
        return values
    return lambda rows: columns.Slices(type_, rows.buffer, *slices(rows), rows.at, path)


def _decimal(leaf: avro.Plain, slices: Callable[[RowCursor], tuple[Longs, Longs]], path: str) -> Step:
    type_ = arrow_type(leaf)

    def step(rows: RowCursor) -> Column:
        words = wide_values.decimal_words(rows.buffer, *slices(rows))
        bad = ~wide_values.fits_precision(words, leaf.precision)
        if np.count_nonzero(bad):
            rows.fault(bad, f"{path}: a decimal of more than {leaf.precision} digits")
        return columns.FixedWidth(type_, words, rows.at)

    return step
