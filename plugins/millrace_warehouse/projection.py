"""Converts a file's rows to a table's present columns: by field id, at every depth, with nulls unchanged.

Columns may have been added (null in older files), dropped or widened. pyiceberg's private function for this
turns null lists and maps into empty ones. Handles Arrow and Iceberg's types, and no files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from millrace.errors import MillraceError


def project(batch: pa.RecordBatch, held: Schema, wanted: Schema, arrow: pa.Schema) -> pa.RecordBatch:
    """Convert a batch with the columns `held` to the columns `wanted`, with the types of `arrow`.

    Raise MillraceError when a column is required and the batch does not have it.
    """
    arrays = _fields(batch.columns, held.fields, wanted.fields, arrow, len(batch))
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)


def _fields(
    arrays: Sequence[pa.Array],
    held: Sequence[NestedField],
    wanted: Sequence[NestedField],
    types: Iterable[pa.Field],
    length: int,
) -> list[pa.Array]:
    found = {field.field_id: (array, field) for array, field in zip(arrays, held, strict=True)}
    projected = []
    for field, target in zip(wanted, types, strict=True):
        if field.field_id in found:
            array, old = found[field.field_id]
            projected.append(_array(array, old.field_type, field.field_type, target.type))
        elif field.required:
            raise MillraceError(f"column {field.name} is required, and a file of the table does not have it")
        else:
            projected.append(pa.nulls(length, target.type))
    return projected


def _array(array: pa.Array, held: IcebergType, wanted: IcebergType, target: pa.DataType) -> pa.Array:
    if isinstance(wanted, StructType) and isinstance(held, StructType):
        arrays = _fields(array.flatten(), held.fields, wanted.fields, target, len(array))
        return pa.StructArray.from_arrays(arrays, fields=list(target), mask=array.is_null())
    if isinstance(wanted, ListType) and isinstance(held, ListType):
        array = _from_the_start(array)
        values = _array(array.values, held.element_type, wanted.element_type, target.value_type)
        is_large = pa.types.is_large_list(target)
        offsets = array.offsets.cast(pa.int64() if is_large else pa.int32())
        kind = pa.LargeListArray if is_large else pa.ListArray
        return kind.from_arrays(offsets, values, type=target, mask=array.is_null())
    if isinstance(wanted, MapType) and isinstance(held, MapType):
        array = _from_the_start(array)
        keys = _array(array.keys, held.key_type, wanted.key_type, target.key_type)
        items = _array(array.items, held.value_type, wanted.value_type, target.item_type)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=target, mask=array.is_null())
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if isinstance(target, pa.BaseExtensionType):
        return target.wrap_array(array.cast(target.storage_type))
    return array.cast(target)


def _from_the_start(array: pa.Array) -> pa.Array:
    """Copy a slice into an array of its own: Arrow takes no mask with the offsets of a slice."""
    return array.take(pa.array(np.arange(len(array)))) if array.offset else array
