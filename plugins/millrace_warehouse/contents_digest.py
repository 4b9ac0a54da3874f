"""Digest of the contents of rows, for each column at each depth: compares copied rows with the original rows.

Values, nulls and the lengths of lists count, in the order of the rows. Neither the boundaries between batches
nor the width of an integer or a float count. A column that a batch lacks is null in
its rows. Reads Arrow alone; uses neither projection nor Parquet.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType


@dataclass(slots=True)
class _Column:
    """Digest of one column, or of a field inside a column."""

    name: str
    present: int = 0
    """Values that are not null."""
    nulls: Any = field(default_factory=hashlib.blake2b)
    at: int = 0
    """Position behind the last value that is not null; nulls after it are not digested yet."""
    elements: int = 0
    """Number of elements of all lists or maps, also of those in which the elements lack a field."""
    lengths: Any = field(default_factory=hashlib.blake2b)
    values: Any = field(default_factory=hashlib.blake2b)

    @property
    def digest(self) -> tuple[int, bytes, bytes, bytes]:
        return self.present, self.nulls.digest(), self.lengths.digest(), self.values.digest()

    def add_nulls(self, start: int, valid: np.ndarray[Any, Any]) -> None:
        """Add the mask of the values from position `start` on. All positions not added are null."""
        present = np.flatnonzero(valid)
        if len(present):
            end = int(present[-1]) + 1
            self.nulls.update(np.zeros(start - self.at, np.bool_))
            self.nulls.update(np.ascontiguousarray(valid[:end]))
            self.at = start + end


class ContentsDigest:
    """Accumulates the digests of batches of rows."""

    def __init__(self) -> None:
        self._columns: dict[int, _Column] = {}
        self._rows = 0

    def add(self, batch: pa.RecordBatch, schema: Schema) -> None:
        """Add rows with the columns of the schema."""
        for array, column in zip(batch.columns, schema.fields, strict=True):
            self._add(array, column.field_id, column.name, column.field_type, self._rows)
        self._rows += len(batch)

    def differences(self, copy: ContentsDigest) -> Iterator[str]:
        """Yield the columns in which a copy of these rows differs. Columns that the copy lacks are not
        compared.

        A column that only the copy has must be null in every row. If the numbers of rows differ, all columns
        do.
        """
        if self._rows != copy._rows:
            yield from (column.name for column in copy._columns.values())
            return
        for id_, column in copy._columns.items():
            mine = self._columns.get(id_)
            if column.present if mine is None else mine.digest != column.digest:
                yield column.name

    def _add(self, array: pa.Array, id_: int, name: str, type_: IcebergType, start: int) -> None:
        """Add a column's values, the first of them at position `start`."""
        column = self._columns.setdefault(id_, _Column(name))
        column.present += len(array) - array.null_count
        column.add_nulls(start, array.is_valid().to_numpy(zero_copy_only=False))
        elements = column.elements
        if isinstance(type_, StructType):
            self._add_fields(array.flatten(), type_.fields, name, start)
        elif isinstance(type_, ListType):
            column.lengths.update(_numbers(array.value_lengths().drop_null()))
            inner = array.flatten()
            column.elements += len(inner)
            self._add(inner, type_.element_id, f"{name}.element", type_.element_type, elements)
        elif isinstance(type_, MapType):
            present = array.drop_null()
            ends = present.offsets.to_numpy()
            column.lengths.update(np.ascontiguousarray(np.diff(ends), np.int64))
            first, count = int(ends[0]), int(ends[-1] - ends[0])
            column.elements += count
            keys, values = present.keys.slice(first, count), present.items.slice(first, count)
            self._add(keys, type_.key_id, f"{name}.key", type_.key_type, elements)
            self._add(values, type_.value_id, f"{name}.value", type_.value_type, elements)
        else:
            _hash_values(column, array.drop_null())

    def _add_fields(
        self, arrays: list[pa.Array], fields: tuple[NestedField, ...], name: str, start: int
    ) -> None:
        for array, each in zip(arrays, fields, strict=True):
            self._add(array, each.field_id, f"{name}.{each.name}", each.field_type, start)


def _hash_values(column: _Column, array: pa.Array) -> None:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind = array.type
    if pa.types.is_null(kind):
        return
    if pa.types.is_decimal(kind):
        wide = array.cast(pa.decimal128(38, kind.scale))
        at = wide.offset * 16
        column.values.update(wide.buffers()[1][at : at + len(wide) * 16] if len(wide) else b"")
    elif pa.types.is_floating(kind):
        column.values.update(np.ascontiguousarray(array.cast(pa.float64()).to_numpy(zero_copy_only=False)))
    elif pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        column.values.update(_numbers(array))
    elif pa.types.is_temporal(kind):
        if pa.types.is_timestamp(kind):
            array = array.cast(pa.timestamp("us", kind.tz))
        column.values.update(_numbers(array.view(f"int{kind.bit_width}")))
    else:
        binary = (array.cast(pa.binary()) if pa.types.is_fixed_size_binary(kind) else array).cast(
            pa.large_binary()
        )
        if len(binary):
            first, last = binary.offset, binary.offset + len(binary)
            ends = np.frombuffer(binary.buffers()[1], np.int64)[first : last + 1]
            column.lengths.update(np.ascontiguousarray(np.diff(ends)))
            data = binary.buffers()[2]
            column.values.update(data[int(ends[0]) : int(ends[-1])] if data is not None else b"")


def _numbers(array: pa.Array) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(array.cast(pa.int64()).to_numpy(zero_copy_only=False))
