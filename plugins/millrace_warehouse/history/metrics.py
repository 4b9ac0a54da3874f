"""Metrics of a data file's columns for its entry in the table, from the footer that its writer still has.

A task computes them and sends them to the driver, which writes them into `entries.avro`. This module does not
import pyiceberg: the import would cost every new worker 0.3 s.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow.parquet as pq

# Bytes of a bound, by Iceberg's type. Text and bytes have no bounds here; bounds of floats would hide a NaN.
_INTEGERS = {"int": 4, "date": 4, "long": 8, "time": 8, "timestamp": 8, "timestamptz": 8}


def metrics_of(footer: pq.FileMetaData, iceberg: Mapping[str, Any]) -> bytes:
    """Return the metrics of a file's columns as JSON. Some 100 bytes for each column fit into a task's
    result.

    `iceberg` is the file's schema as `TableSchema` has it. Every column has its size. Whole numbers, times,
    booleans and decimals that are not inside another column also have counts and bounds.
    """
    ids = dict(_leaves(iceberg["fields"], ""))
    tops = {field["name"]: field["type"] for field in iceberg["fields"] if isinstance(field["type"], str)}
    columns: dict[int, list[Any]] = {}
    splits = []
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        first = group.column(0)
        splits.append(min(filter(None, (first.dictionary_page_offset, first.data_page_offset))))
        for position in range(footer.num_columns):
            column = group.column(position)
            values = columns.setdefault(ids[column.path_in_schema], [0, 0, 0, None, None, True])
            values[0] += column.total_compressed_size
            _count(values, column, tops.get(column.path_in_schema, ""))
    by_id = {
        str(id_): [size] if not counted else [size, rows, nulls, low, high]
        for id_, (size, rows, nulls, low, high, counted) in columns.items()
    }
    types = {str(ids[name]): type_ for name, type_ in tops.items()}
    for id_, values in by_id.items():
        if len(values) == 5:
            values[3:] = [_bound(types[id_], bound) for bound in values[3:]]
    return json.dumps({"columns": by_id, "splits": sorted(splits)}, separators=(",", ":")).encode()


def _count(values: list[Any], column: pq.ColumnChunkMetaData, type_: str) -> None:
    """Add a row group's counts and bounds to its column's. A column without statistics counts as uncounted
    from then on.
    """
    statistics = column.statistics if column.is_stats_set else None
    if statistics is None or not statistics.has_null_count or not _is_bounded(type_):
        values[5] = False
        return
    values[1] += column.num_values
    values[2] += statistics.null_count
    if statistics.has_min_max:
        low, high = _ordered(statistics.min_raw), _ordered(statistics.max_raw)
        values[3] = low if values[3] is None else min(values[3], low)
        values[4] = high if values[4] is None else max(values[4], high)
    elif statistics.num_values:
        values[5] = False


def _is_bounded(type_: str) -> bool:
    return type_ in _INTEGERS or type_ == "boolean" or type_.startswith("decimal")


def _ordered(raw: int | bool | bytes) -> int:
    """Return a bound as a number. Parquet keeps decimals as bytes, the highest first."""
    return int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else int(raw)


def _bound(type_: str, value: int | None) -> str | None:
    """Return the bound in Iceberg's single-value serialization, as hex."""
    if value is None:
        return None
    if type_ == "boolean":
        return bytes([value]).hex()
    if length := _INTEGERS.get(type_):
        return value.to_bytes(length, "little", signed=True).hex()
    return value.to_bytes((value if value >= 0 else ~value).bit_length() // 8 + 1, "big", signed=True).hex()


def _leaves(fields: Iterable[Mapping[str, Any]], prefix: str) -> Iterator[tuple[str, int]]:
    """Yield the path in Parquet and field id of every column that a file stores."""
    for field in fields:
        yield from _leaf(f"{prefix}{field['name']}", field["id"], field["type"])


def _leaf(path: str, id_: int, type_: Any) -> Iterator[tuple[str, int]]:
    if isinstance(type_, str):
        yield path, id_
    elif type_["type"] == "struct":
        yield from _leaves(type_["fields"], f"{path}.")
    elif type_["type"] == "list":
        yield from _leaf(f"{path}.list.element", type_["element-id"], type_["element"])
    else:
        yield from _leaf(f"{path}.key_value.key", type_["key-id"], type_["key"])
        yield from _leaf(f"{path}.key_value.value", type_["value-id"], type_["value"])
