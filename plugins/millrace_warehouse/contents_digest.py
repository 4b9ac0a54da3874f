"""Digest of the contents of rows, for each column at each depth: compares copied rows with the original rows.

Values, nulls and the lengths of lists count, in the order of the rows. Neither the boundaries between batches
nor the width of an integer or a float count. Reads Arrow alone; uses neither projection nor Parquet.
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
    lengths: Any = field(default_factory=hashlib.blake2b)
    values: Any = field(default_factory=hashlib.blake2b)

    @property
    def digest(self) -> tuple[int, bytes, bytes, bytes]:
        return self.present, self.nulls.digest(), self.lengths.digest(), self.values.digest()


class ContentsDigest:
    """Accumulates the digests of batches of rows."""

    def __init__(self) -> None:
        self._columns: dict[int, _Column] = {}

    def add(self, batch: pa.RecordBatch, schema: Schema) -> None:
        """Add rows with the columns of the schema."""
        for array, column in zip(batch.columns, schema.fields, strict=True):
            self._add(array, column.field_id, column.name, column.field_type)

    def differences(self, copy: ContentsDigest) -> Iterator[str]:
        """Yield the columns in which a copy of these rows differs. Columns that the copy lacks are not
        compared.

        A column that only the copy has must be null in every row.
        """
        for id_, column in copy._columns.items():
            mine = self._columns.get(id_)
            if column.present if mine is None else mine.digest != column.digest:
                yield column.name

    def _add(self, array: pa.Array, id_: int, name: str, type_: IcebergType) -> None:
        column = self._columns.setdefault(id_, _Column(name))
        column.present += len(array) - array.null_count
        column.nulls.update(np.ascontiguousarray(array.is_valid().to_numpy(zero_copy_only=False)))
        if isinstance(type_, StructType):
            self._add_fields(array.flatten(), type_.fields, name)
        elif isinstance(type_, ListType):
            column.lengths.update(_numbers(array.value_lengths().drop_null()))
            self._add(array.flatten(), type_.element_id, f"{name}.element", type_.element_type)
        elif isinstance(type_, MapType):
            present = array.drop_null()
            ends = present.offsets.to_numpy()
            column.lengths.update(np.ascontiguousarray(np.diff(ends), np.int64))
            first, count = int(ends[0]), int(ends[-1] - ends[0])
            self._add(present.keys.slice(first, count), type_.key_id, f"{name}.key", type_.key_type)
            self._add(present.items.slice(first, count), type_.value_id, f"{name}.value", type_.value_type)
        else:
            _hash_values(column, array.drop_null())

    def _add_fields(self, arrays: list[pa.Array], fields: tuple[NestedField, ...], name: str) -> None:
        for array, each in zip(arrays, fields, strict=True):
            self._add(array, each.field_id, f"{name}.{each.name}", each.field_type)


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
