"""Metrics of a data file's columns for its entry in the table, from the footer that its writer still has.

A task computes them and sends them to the driver, which writes them into `entries.avro`. This module does not
import pyiceberg: the import would cost every new worker 0.3 s.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow.parquet as pq

# Bytes of a bound, by Iceberg's type. Bounds of floats would hide a NaN.
_INTEGERS = {"int": 4, "date": 4, "long": 8, "time": 8, "timestamp": 8, "timestamptz": 8}

_TEXT_CHARACTERS = 16
"""Most characters of a bound of text, as Iceberg's default has it."""


def metrics_of(
    footer: pq.FileMetaData, iceberg: Mapping[str, Any], partition: Sequence[str | None] = ()
) -> bytes:
    """Return the metrics of a file's columns as JSON. Some 100 bytes for each column fit into a task's
    result.

    `iceberg` is the file's schema as `TableSchema` has it. Every column has its size. Whole numbers, times,
    booleans and decimals that are not inside another column also have counts and bounds. So has text by which
    the file is sorted. `partition` are its partition values besides the hour, as `arranging` has them.
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
            type_ = types[id_]
            values[3:] = _bound(type_, values[3]), _bound(type_, values[4], upper=True)
    stated = {"columns": by_id, "splits": sorted(splits), "partition": partition}
    return json.dumps(stated, separators=(",", ":")).encode()


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
        low, high = _ordered(statistics.min_raw, type_), _ordered(statistics.max_raw, type_)
        values[3] = low if values[3] is None else min(values[3], low)
        values[4] = high if values[4] is None else max(values[4], high)
    elif statistics.num_values:
        values[5] = False


def _is_bounded(type_: str) -> bool:
    return type_ in _INTEGERS or type_ in ("boolean", "string") or type_.startswith("decimal")


def _ordered(raw: int | bool | bytes, type_: str) -> int | bytes:
    """Return a bound as a number, or text as bytes. Parquet keeps decimals as bytes, the highest first."""
    if type_ == "string":
        assert isinstance(raw, bytes)
        return raw
    return int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else int(raw)


def _bound(type_: str, value: int | bytes | None, upper: bool = False) -> str | None:
    """Return the bound in Iceberg's single-value serialization, as hex; None if there is none."""
    if value is None:
        return None
    if isinstance(value, bytes):
        return _text_bound(value.decode(), upper)
    if type_ == "boolean":
        return bytes([value]).hex()
    if length := _INTEGERS.get(type_):
        return value.to_bytes(length, "little", signed=True).hex()
    return value.to_bytes((value if value >= 0 else ~value).bit_length() // 8 + 1, "big", signed=True).hex()


def _text_bound(text: str, upper: bool) -> str | None:
    """Return a bound of at most _TEXT_CHARACTERS. A shortened upper bound is greater than every such text."""
    short = text[:_TEXT_CHARACTERS]
    if upper and short != text:
        kept = short.rstrip("\ud7ff\U0010ffff")  # no character follows these in UTF-8's order
        if not kept:
            return None
        short = kept[:-1] + chr(ord(kept[-1]) + 1)
    return short.encode().hex()


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
