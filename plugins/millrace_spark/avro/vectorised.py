"""A writer's schema and a table's, compiled into steps that decode one field of many messages at a time.

Follows Avro's schema resolution: fields by name or alias, defaults for those a writer does not have,
promotions, unions on either side. Arrays and maps have no step here; `avro_rows` decodes schemas with them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from millrace_spark.avro.columns import (
    Column,
    Constant,
    FixedWidth,
    Merged,
    Slices,
    Struct,
    Symbols,
)
from millrace_spark.avro.resolution import (
    INT_RANGE,
    SCALES,
    default_of,
    enum_codes,
    field_pairs,
    no_way,
    pick_branch,
    promotes,
    resolved_leaf,
)
from millrace_spark.avro.schema import (
    NULL,
    Enum,
    Fixed,
    Leaf,
    Node,
    Record,
    SchemaError,
    Union,
    arrow_type,
)
from millrace_spark.avro.wide_values import (
    UUID_CHARACTERS,
    decimal_words,
    fits_precision,
    uuid_texts,
)
from millrace_spark.topic.row_cursor import PADDING, Longs, Mask, PaddedBuffer, RowCursor

Step: TypeAlias = Callable[[RowCursor], Column]
_NUMBER = {"float": np.float32, "double": np.float64}


def compile_record(writer: Record, table: Record, path: str = "") -> Callable[[RowCursor], list[Column]]:
    """The step that decodes a record into the table's columns; SchemaError when the two do not fit."""
    pairs, missing = field_pairs(writer, table, path)
    steps: list[tuple[Step, int | None]] = []
    for field, index in pairs:
        wanted = field.type if index is None else table.fields[index].type
        steps.append((compile_step(field.type, wanted, path + field.name), index))
    defaults: list[Column] = [Constant(pa.scalar(None))] * len(table.fields)
    for index in missing:
        field = table.fields[index]
        defaults[index] = Constant(pa.scalar(default_of(field, path), arrow_type(field.type)))

    def step(rows: RowCursor) -> list[Column]:
        columns = list(defaults)
        for read, index in steps:
            column = read(rows)
            if index is not None:
                columns[index] = column
        return columns

    return step


def compile_step(writer: Node, table: Node, path: str) -> Step:
    """The step that decodes one value per row; SchemaError when the types do not fit each other."""
    if isinstance(writer, Union):
        return _writer_union(writer, table, path)
    if isinstance(table, Union):
        return _into_union(writer, table, path)
    if isinstance(writer, Record) and isinstance(table, Record):
        return _record(writer, table, path)
    if isinstance(writer, Enum) and isinstance(table, Enum):
        return _enum(writer, table, path)
    if isinstance(writer, Leaf) and isinstance(table, Leaf) and promotes(writer, table):
        return _leaf(Leaf(writer.kind), table.kind, path)  # as a plain number, whatever it stood for
    if isinstance(writer, Leaf) and isinstance(table, Leaf):
        leaf = resolved_leaf(writer, table, path)
        assert isinstance(leaf, Leaf)
        return _leaf(leaf, leaf.kind, path)
    if isinstance(writer, Fixed) and isinstance(table, Fixed):
        fixed = resolved_leaf(writer, table, path)
        assert isinstance(fixed, Fixed)
        return _fixed(fixed, path)
    raise no_way(writer, table, path)


def _record(writer: Record, table: Record, path: str) -> Step:
    step, type_ = compile_record(writer, table, path + "."), arrow_type(table)
    return lambda rows: Struct(type_, step(rows), rows.at)


def _writer_union(writer: Union, table: Node, path: str) -> Step:
    """Each branch decodes the rows that have it; a branch without a place in the table faults its rows."""
    steps: list[Step | None] = []
    for branch in writer.branches:
        try:
            steps.append(compile_step(branch, table, path))
        except SchemaError:
            steps.append(None)
    if not any(steps):
        raise no_way(writer, table, path)
    nothing = Constant(pa.scalar(None, arrow_type(table)))
    # A null branch reads nothing and stays null: no step, where the table takes nulls.
    nulls = {index for index, each in enumerate(writer.branches) if each == NULL and steps[index]}

    def step(rows: RowCursor) -> Column:
        branch = rows.varint(path)
        unknown = branch.view(np.uint64) >= len(steps)
        if np.count_nonzero(unknown):
            rows.fault(unknown, f"{path}: no such branch of the union")
        columns: list[Column] = []
        for index, read in enumerate(steps):
            mine = branch == index
            if read is None:
                if np.count_nonzero(mine):
                    rows.fault(mine, f"{path}: a branch of the union that the table's schema does not have")
            elif index not in nulls:
                columns += _decode_where(rows, mine, read)
        if len(columns) > 1:
            return Merged(columns)
        return columns[0] if columns else nothing

    return step


def _decode_where(rows: RowCursor, mine: Mask, read: Step) -> list[Column]:
    """The column of the rows that are `mine`; none when no row is."""
    if mine.all():
        return [read(rows)]
    index = np.flatnonzero(mine)
    if not len(index):
        return []
    part = rows.subset(index)
    column = read(part)
    rows.rejoin(index, part)
    return [column]


def _into_union(writer: Node, table: Union, path: str) -> Step:
    index, type_ = pick_branch(writer, table, path), arrow_type(table)
    branch = table.branches[index]
    if branch == NULL:
        nothing = Constant(pa.scalar(None, type_))
        return lambda rows: nothing
    read = compile_step(writer, branch, path)
    if table.is_optional:
        return read
    place, count = table.place(index), len(table.members)

    def step(rows: RowCursor) -> Column:
        columns: list[Column | None] = [None] * count
        columns[place] = read(rows)
        return Struct(type_, columns, rows.at)

    return step


def _enum(writer: Enum, table: Enum, path: str) -> Step:
    places = np.array(enum_codes(writer, table), np.int32)
    symbols = pa.array(table.symbols, pa.string())

    def step(rows: RowCursor) -> Column:
        index = rows.varint(path)
        unknown = index.view(np.uint64) >= len(places)
        if np.count_nonzero(unknown):
            index[unknown] = 0
            rows.fault(unknown, f"{path}: no such symbol of the enum")
        codes = places[index]
        lost = codes < 0
        if np.count_nonzero(lost):
            codes[lost] = 0
            rows.fault(lost, f"{path}: a symbol that the table's schema does not have")
        return Symbols(symbols, codes, rows.at)

    return step


def _leaf(leaf: Leaf, kind: str, path: str) -> Step:
    """A primitive type, its values as `kind` in the table."""
    if leaf.kind in ("int", "long"):
        return _integer(leaf, kind, path)
    if leaf.kind in ("bytes", "string"):
        if leaf.logical == "decimal":
            return _decimal(leaf, lambda rows: rows.sized_bytes(path), path)
        text = pa.string() if kind == "string" else pa.binary()
        return lambda rows: Slices(text, rows.buffer, *rows.sized_bytes(path), rows.at, path)
    if leaf.kind in ("float", "double"):
        stored, wanted, type_ = _NUMBER[leaf.kind], _NUMBER[kind], arrow_type(Leaf(kind))

        def number(rows: RowCursor) -> Column:
            start = rows.fixed_bytes(np.dtype(stored).itemsize, path)
            return FixedWidth(type_, rows.buffer.numbers(start, stored).astype(wanted, copy=False), rows.at)

        return number
    if leaf.kind == "boolean":
        return _boolean(path)
    nothing = Constant(pa.scalar(None))
    return lambda rows: nothing


def _boolean(path: str) -> Step:
    def step(rows: RowCursor) -> Column:
        value = rows.buffer.bytes[rows.fixed_bytes(1, path)]
        if value.max(initial=0) > 1:
            rows.fault(value > 1, f"{path}: a boolean that is neither 0 nor 1")
        return FixedWidth(pa.bool_(), value == 1, rows.at)

    return step


def _integer(leaf: Leaf, kind: str, path: str) -> Step:
    scale = SCALES.get(leaf.logical or "", INT_RANGE if leaf.kind == "int" else None)
    type_ = arrow_type(leaf if leaf.kind == kind else Leaf(kind))
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
        return FixedWidth(type_, value.astype(dtype, copy=False), rows.at)

    return step


def _fixed(fixed: Fixed, path: str) -> Step:
    def slices(rows: RowCursor) -> tuple[Longs, Longs]:
        start = rows.fixed_bytes(fixed.size, path)
        return start, rows.pos.copy()

    if fixed.logical == "decimal":
        return _decimal(fixed, slices, path)
    if fixed.logical != "uuid":
        return lambda rows: Slices(pa.binary(), rows.buffer, *slices(rows), rows.at, path)

    def uuids(rows: RowCursor) -> Column:
        texts = PaddedBuffer.of([uuid_texts(rows.buffer, rows.fixed_bytes(fixed.size, path))])
        start = PADDING + np.arange(len(rows)) * UUID_CHARACTERS
        return Slices(pa.string(), texts, start, start + UUID_CHARACTERS, rows.at, path)

    return uuids


def _decimal(leaf: Leaf | Fixed, slices: Callable[[RowCursor], tuple[Longs, Longs]], path: str) -> Step:
    type_ = arrow_type(leaf)

    def step(rows: RowCursor) -> Column:
        words = decimal_words(rows.buffer, *slices(rows))
        bad = ~fits_precision(words, leaf.precision)
        if np.count_nonzero(bad):
            rows.fault(bad, f"{path}: a decimal of more than {leaf.precision} digits")
        return FixedWidth(type_, words, rows.at)

    return step
