"""A load's entries: what they say of a file is what the file has; what they cannot know, they leave out."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.conversions import from_bytes
from pyiceberg.io.pyarrow import (
    _pyarrow_schema_ensure_small_types,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestamptzType,
)

from millrace_warehouse.history.entries import read_entries, write_entries
from millrace_warehouse.history.hours import UNFILED, hour_of, partition_of
from millrace_warehouse.history.manifest import DataFile
from millrace_warehouse.history.metrics import metrics_of

SCHEMA = Schema(
    NestedField(1, "url", StringType()),
    NestedField(2, "whole", LongType()),
    NestedField(3, "small", IntegerType()),
    NestedField(4, "yes", BooleanType()),
    NestedField(5, "day", DateType()),
    NestedField(6, "price", DecimalType(20, 2)),
    NestedField(7, "ratio", DoubleType()),
    NestedField(8, "nothing", LongType()),
    NestedField(9, "raw", BinaryType()),
    NestedField(
        10, "inner", StructType(NestedField(14, "a", LongType()), NestedField(15, "b.c", StringType()))
    ),
    NestedField(11, "many", ListType(16, LongType(), element_required=False)),
    NestedField(12, "by_name", MapType(17, StringType(), 18, LongType(), value_required=False)),
    NestedField(13, "_time", TimestamptzType()),
)
STATISTICS = ["whole", "small", "yes", "day", "price", "ratio", "nothing", "inner.a", "_time"]
ICEBERG = SCHEMA.model_dump(mode="json", by_alias=True)
ROW = {
    "url": "/",
    "whole": -(1 << 40),
    "small": -7,
    "yes": False,
    "day": dt.date(1969, 12, 31),
    "price": Decimal("-1.28"),
    "ratio": float("nan"),
    "nothing": None,
    "raw": b"\xff",
    "inner": {"a": 1, "b.c": "x"},
    "many": [1, None, 3],
    "by_name": [("k", 1)],
    "_time": dt.datetime(2015, 5, 17, 10, tzinfo=dt.UTC),
}
OTHER = ROW | {
    "whole": 5,
    "small": None,
    "yes": True,
    "day": dt.date(2015, 5, 17),
    "price": Decimal("655.36"),
}


def write(
    path: Path, rows: list[dict[str, Any]], row_group_size: int = 1, statistics: list[str] | None = None
) -> pq.FileMetaData:
    schema = _pyarrow_schema_ensure_small_types(schema_to_pyarrow(SCHEMA))
    table = pa.Table.from_pylist(rows, schema)
    # As loads do: none for text and bytes.
    statistics = STATISTICS if statistics is None else statistics
    pq.write_table(table, path, row_group_size=row_group_size, write_statistics=statistics)
    return pq.read_metadata(path)


def entry(footer: pq.FileMetaData, hour: str = "2015-05-17T10") -> Any:
    file = DataFile(path="rows/f.parquet", bytes=77, sha256="", hour=hour, rows=footer.num_rows)
    content = write_entries([(file, metrics_of(footer, ICEBERG))], ICEBERG)
    [data_file] = read_entries(content)
    return data_file


def test_an_entry_names_path_size_rows_and_hour(tmp_path: Path) -> None:
    data_file = entry(write(tmp_path / "f", [ROW, OTHER]))
    assert data_file.file_path == "rows/f.parquet"
    assert (data_file.file_size_in_bytes, data_file.record_count, data_file.spec_id) == (77, 2, 0)
    assert data_file.partition[0] == partition_of("2015-05-17T10") == 397738


def test_rows_without_an_hour_are_in_the_partition_null(tmp_path: Path) -> None:
    assert entry(write(tmp_path / "f", [ROW]), UNFILED).partition[0] is None
    assert partition_of(UNFILED) is None
    assert hour_of(None) == UNFILED


@pytest.mark.parametrize("hour", ["1970-01-01T00", "1969-12-31T23", "2015-05-17T10", "9999-12-31T23"])
def test_an_hour_and_its_partition_are_one_to_one(hour: str) -> None:
    value = partition_of(hour)
    assert hour_of(value) == hour


def test_bounds_are_those_of_all_row_groups(tmp_path: Path) -> None:
    data_file = entry(write(tmp_path / "f", [ROW, OTHER]))

    def bounds(name: str) -> tuple[Any, Any]:
        field = SCHEMA.find_field(name)
        low, high = data_file.lower_bounds[field.field_id], data_file.upper_bounds[field.field_id]
        assert isinstance(field.field_type, PrimitiveType)
        return from_bytes(field.field_type, low), from_bytes(field.field_type, high)

    assert bounds("whole") == (-(1 << 40), 5)
    assert bounds("small") == (-7, -7)
    assert bounds("yes") == (False, True)
    assert bounds("price") == (Decimal("-1.28"), Decimal("655.36"))
    assert bounds("day") == (-1, (dt.date(2015, 5, 17) - dt.date(1970, 1, 1)).days)
    micros = int(ROW["_time"].timestamp()) * 1_000_000  # type: ignore[attr-defined]
    assert bounds("_time") == (micros, micros)
    assert data_file.null_value_counts[3] == 1
    assert data_file.value_counts[8] == data_file.null_value_counts[8] == 2
    assert 8 not in data_file.lower_bounds


def test_text_bytes_floats_and_what_lies_inside_a_column_have_a_size_alone(tmp_path: Path) -> None:
    data_file = entry(write(tmp_path / "f", [ROW, OTHER]))
    without = {1, 7, 9, 14, 15, 16, 17, 18}
    assert without.isdisjoint(data_file.lower_bounds)
    assert without.isdisjoint(data_file.value_counts)
    assert without <= data_file.column_sizes.keys()


@pytest.mark.parametrize("row_group_size", [1, 2])
def test_what_an_entry_says_is_what_pyiceberg_reads_in_the_footer(
    tmp_path: Path, row_group_size: int
) -> None:
    footer = write(tmp_path / "f", [ROW, OTHER, ROW], row_group_size)
    ours = entry(footer)
    theirs = data_file_statistics_from_parquet_metadata(
        footer,
        compute_statistics_plan(SCHEMA, {"write.metadata.metrics.default": "full"}),
        parquet_path_to_id_mapping(SCHEMA),
    ).to_serialized_dict()
    assert ours.split_offsets == theirs["split_offsets"]
    assert ours.column_sizes == theirs["column_sizes"]
    for kind in ("lower_bounds", "upper_bounds", "value_counts", "null_value_counts"):
        stated = getattr(ours, kind)
        assert stated, kind
        assert stated == {id_: value for id_, value in theirs[kind].items() if id_ in stated}


def test_a_row_group_without_statistics_takes_the_bounds_of_its_column_away(tmp_path: Path) -> None:
    data_file = entry(write(tmp_path / "f", [ROW, OTHER], statistics=[]))
    assert data_file.lower_bounds == data_file.value_counts == {}


def test_two_thousand_entries_come_back_in_their_order(tmp_path: Path) -> None:
    metrics = metrics_of(write(tmp_path / "f", [ROW]), ICEBERG)
    files = [DataFile(path=f"rows/{n}", bytes=n, sha256="", hour=hour_of(n), rows=1) for n in range(2000)]
    read = read_entries(write_entries([(file, metrics) for file in files], ICEBERG))
    assert [(file.file_path, file.partition[0]) for file in read] == [(f"rows/{n}", n) for n in range(2000)]
