"""Encoding of each column of a Parquet file, chosen by the column's first rows.

A column gets a dictionary when values repeat among its first rows. Whole numbers without a dictionary are
written as differences, which pyarrow, DuckDB and Spark from 3.3 on can read. Parquet's own default keeps a
dictionary for every column, even for offsets and times, which never repeat. That default costs a third of the
time and a third of the bytes of a file of PageViews.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

SAMPLE_ROWS = 10_000
ROW_GROUP_ROWS = 200_000
ROW_GROUP_BYTES = 128 << 20
"""Most bytes of rows in memory for one row group: large rows make row groups of fewer rows."""


def encodings(rows: pa.Table, sorted_by: Collection[str] = ()) -> dict[str, Any]:
    """Return the settings of a `ParquetWriter` for rows like these.

    Columns of text and bytes get no smallest and largest value, unless the rows are sorted by them. Computing
    them takes a tenth of the time, and in the order of a log these bounds exclude no file. Numbers and times
    have them.
    """
    dictionaries: list[str] = []
    differences: dict[str, str] = {}
    statistics: list[str] = []
    for path, column in _leaves(rows.slice(0, SAMPLE_ROWS)):
        if repeats(column):
            dictionaries.append(path)
        elif _is_whole_number(column.type):
            differences[path] = "DELTA_BINARY_PACKED"
        if not is_bytes(column.type) or path in sorted_by:
            statistics.append(path)
    return {
        "use_dictionary": dictionaries,
        "column_encoding": differences or None,
        "write_statistics": statistics,
    }


def rows_of_a_group(rows: pa.Table) -> int:
    """Return the number of rows like these that a row group has."""
    fitting = ROW_GROUP_BYTES * len(rows) // max(int(rows.nbytes), 1)
    return max(1, min(ROW_GROUP_ROWS, fitting))


def _leaves(table: pa.Table) -> Iterator[tuple[str, pa.ChunkedArray]]:
    """Yield every column that Parquet stores, with its path in the file."""
    pending = list(zip(table.column_names, table.columns, strict=True))
    while pending:
        path, column = pending.pop()
        if isinstance(column.type, pa.BaseExtensionType):
            chunks = [chunk.storage for chunk in column.chunks]
            column = pa.chunked_array(chunks, column.type.storage_type)
        type_ = column.type
        if pa.types.is_struct(type_):
            pending += [(f"{path}.{f.name}", pc.struct_field(column, i)) for i, f in enumerate(type_)]
        elif pa.types.is_map(type_):
            keys = [chunk.keys for chunk in column.chunks]
            values = [chunk.items for chunk in column.chunks]
            pending.append((f"{path}.key_value.key", pa.chunked_array(keys, type_.key_type)))
            pending.append((f"{path}.key_value.value", pa.chunked_array(values, type_.item_type)))
        elif pa.types.is_list(type_) or pa.types.is_large_list(type_):
            pending.append((f"{path}.list.element", pc.list_flatten(column)))
        else:
            yield path, column


def repeats(column: pa.Array | pa.ChunkedArray) -> bool:
    """Return True if each value, nulls apart, occurs twice on average."""
    values = column.drop_null()
    return not len(values) or 2 * len(pc.unique(values)) <= len(values)


def _is_whole_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_timestamp(type_) or pa.types.is_date32(type_))


def is_bytes(type_: pa.DataType) -> bool:
    """Return True for text and bytes, of any or of one length."""
    return bool(
        pa.types.is_string(type_)
        or pa.types.is_large_string(type_)
        or pa.types.is_binary(type_)
        or pa.types.is_large_binary(type_)
        or pa.types.is_fixed_size_binary(type_)
    )
