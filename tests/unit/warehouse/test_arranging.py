"""Rows in a table's layout: Iceberg's values of partitions, and Iceberg's order of rows."""

from __future__ import annotations

import math
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile as IcebergDataFile
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from millrace.errors import ConfigError
from millrace_warehouse.arranged_copy import ArrangedCopy
from millrace_warehouse.arranging import Arranger
from millrace_warehouse.history.entries import read_entries, write_entries
from millrace_warehouse.history.iceberg_types import arrow_schema
from millrace_warehouse.history.manifest import DataFile
from millrace_warehouse.history.metrics import metrics_of
from millrace_warehouse.iceberg_layout import check_layout, partition_types
from millrace_warehouse.load.hour_files import HourFiles
from millrace_warehouse.table_layout import NO_LAYOUT, PartitionTerm, SortTerm, TableLayout

TIME = NestedField(100, "_time", TimestamptzType())
AT = datetime(2017, 11, 16, 22, 31, 8, tzinfo=UTC)


def schema_of(type_: IcebergType) -> Schema:
    return Schema(NestedField(1, "c", type_), TIME)


def rows_of(schema: Schema, values: list[Any]) -> pa.Table:
    arrow = arrow_schema(schema)
    if arrow.field(0).type == pa.uuid():
        values = [None if value is None else value.bytes for value in values]
        column: pa.Array = pa.ExtensionArray.from_storage(pa.uuid(), pa.array(values, pa.binary(16)))
    else:
        column = pa.array(values, arrow.field(0).type)
    return pa.Table.from_arrays([column, pa.array([AT] * len(values), arrow.field(1).type)], schema=arrow)


def partitions(type_: IcebergType, text: str, values: list[Any]) -> list[Any]:
    """Return the partition value of each row."""
    schema, layout = schema_of(type_), TableLayout.parse([text], [])
    check_layout(layout, schema)
    found: list[Any] = [None] * len(values)
    (result,) = partition_types(schema, layout)
    for part in Arranger(layout, schema).parts(rows_of(schema, values)):
        value = part.values[0]
        for index in part.indices.tolist():
            found[index] = None if value is None else from_bytes(result, bytes.fromhex(value))
    return found


WIDE = 999_999_937
"""A number of buckets that leaves most of a hash."""


@pytest.mark.parametrize(
    ("type_", "value", "hash_"),
    [  # of appendix B of Iceberg's specification
        (IntegerType(), 34, 2017239379),
        (LongType(), 34, 2017239379),
        (DecimalType(9, 2), Decimal("14.20"), -500754589),
        (DateType(), date(2017, 11, 16), -653330422),
        (TimestampType(), AT.replace(tzinfo=None), -2047944441),
        (TimestamptzType(), AT, -2047944441),
        (StringType(), "iceberg", 1210000089),
        (UUIDType(), UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7"), 1488055340),
        (FixedType(4), b"\0\1\2\3", -188683207),
        (BinaryType(), b"\0\1\2\3", -188683207),
    ],
)
def test_buckets_are_those_of_icebergs_specification(type_: IcebergType, value: Any, hash_: int) -> None:
    assert partitions(type_, f"bucket({WIDE}, c)", [value, None, value]) == [
        (hash_ & 0x7FFFFFFF) % WIDE,
        None,
        (hash_ & 0x7FFFFFFF) % WIDE,
    ]


@pytest.mark.parametrize(
    ("type_", "text", "values", "expected"),
    [
        (IntegerType(), "truncate(10, c)", [1, -1, None], [0, -10, None]),
        (LongType(), "truncate[10](c)", [19, -11], [10, -20]),
        (DecimalType(9, 2), "truncate(50, c)", [Decimal("10.65")], [Decimal("10.50")]),
        (StringType(), "truncate(3, c)", ["iceberg", "çaçáx", "", None], ["ice", "çaç", "", None]),
        (BinaryType(), "truncate(2, c)", [b"\0\1\2"], [b"\0\1"]),
        (DateType(), "years(c)", [date(1969, 1, 1), date(1970, 12, 31)], [-1, 0]),
        (DateType(), "month(c)", [date(1969, 12, 31), date(2017, 11, 16)], [-1, 574]),
        (TimestamptzType(), "days(c)", [AT, None, datetime(1969, 12, 31, 23, tzinfo=UTC)], [17486, None, -1]),
        (TimestampType(), "hours(c)", [AT.replace(tzinfo=None)], [419686]),
        (StringType(), "c", ["a", None, "", "a"], ["a", None, "", "a"]),
        (BooleanType(), "identity(c)", [True, None, False], [True, None, False]),
        (DecimalType(30, 3), "c", [Decimal("-1.250")], [Decimal("-1.250")]),
        (DateType(), "c", [date(1970, 1, 2)], [1]),
        (TimestamptzType(), "c", [AT], [int(AT.timestamp()) * 1_000_000]),
    ],
)
def test_partition_values_are_those_of_icebergs_transforms(
    type_: IcebergType, text: str, values: list[Any], expected: list[Any]
) -> None:
    assert partitions(type_, text, values) == expected


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        (BooleanType(), "c"),
        (IntegerType(), "c"),
        (LongType(), "c"),
        (DateType(), "c"),
        (DateType(), "days(c)"),
        (TimestamptzType(), "c"),
        (TimestampType(), "months(c)"),
        (StringType(), "truncate(2, c)"),
        (BinaryType(), "c"),
        (FixedType(3), "c"),
        (DecimalType(20, 2), "c"),
        (UUIDType(), "c"),
        (UUIDType(), "bucket(8, c)"),
    ],
)
def test_partition_values_travel_in_the_entries_of_a_load(
    tmp_path: Path, type_: IcebergType, text: str
) -> None:
    of_type: dict[type[IcebergType], list[Any]] = {
        BooleanType: [True],
        DateType: [date(1969, 3, 1)],
        TimestamptzType: [AT],
        TimestampType: [AT.replace(tzinfo=None)],
        StringType: ["çaç"],
        BinaryType: [b"\xff\0"],
        FixedType: [b"abc"],
        DecimalType: [Decimal("-12.34")],
        UUIDType: [UUID(int=77)],
    }
    values = of_type.get(type(type_), [-7])
    schema, layout = schema_of(type_), TableLayout.parse([text], ["c"])
    for value in (values[0], None):
        rows = rows_of(schema, [value])
        path = tmp_path / f"{value is None}.parquet"
        pq.write_table(rows, path)
        (part,) = Arranger(layout, schema).parts(rows)
        iceberg = schema.model_dump(mode="json")
        metrics = metrics_of(pq.read_metadata(path), iceberg, part.values)
        file = DataFile(path="f", bytes=1, sha256="", hour="2017-11-16T22", rows=1)
        entry: IcebergDataFile = read_entries(write_entries([(file, metrics)], iceberg, layout))[0]
        (expected,) = partitions(type_, text, [value])
        read = entry.partition[1]
        assert (read.bytes if isinstance(read, UUID) else read) == expected
        assert (entry.partition[0], entry.sort_order_id) == (419686, 1)


CELLS = st.one_of(st.none(), st.sampled_from(["", "a", "b", "é", "zz", "\U0001f600"]))
NUMBERS = st.one_of(st.none(), st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -1.5, 2.0]))
TWO = Schema(NestedField(1, "text", StringType()), NestedField(2, "number", DoubleType()), TIME)
TERMS = st.lists(
    st.builds(SortTerm, st.sampled_from(["text", "number"]), st.booleans(), st.booleans()),
    unique_by=lambda term: term.column,
)


def sort_key(term: SortTerm, value: Any) -> tuple[int, int, Any]:
    """Return a key by which Python sorts values as Iceberg does: NaN is greater than all numbers."""
    if value is None:
        return (-1 if term.nulls_first != term.descending else 1), 0, 0
    if isinstance(value, str):
        return 0, 0, value.encode()
    return 0, int(math.isnan(value)), 0 if math.isnan(value) else value


@given(
    st.lists(st.tuples(CELLS, NUMBERS), min_size=1, max_size=60),
    st.sets(st.sampled_from(["text", "truncate(1, text)", "bucket(3, text)"]), max_size=2),
    TERMS,
)
def test_every_row_is_in_the_part_of_its_values_once_and_sorted(
    cells: list[tuple[Any, Any]], partition: set[str], terms: list[SortTerm]
) -> None:
    layout = TableLayout.parse(sorted(partition), map(str, terms))
    assert layout.sort == tuple(terms)
    columns = [pa.array(column) for column in zip(*cells, strict=True)]
    columns = [columns[0].cast(pa.string()), columns[1].cast(pa.float64()), pa.array([AT] * len(cells))]
    rows = pa.table(columns, names=["text", "number", "_time"]).cast(arrow_schema(TWO))
    parts = Arranger(layout, TWO).parts(rows)
    assert sorted(np.concatenate([part.indices for part in parts]).tolist()) == list(range(len(cells)))
    assert len({part.values for part in parts}) == len(parts)
    transforms = [parse_transform(term.transform).transform(StringType()) for term in layout.partition]
    types = partition_types(TWO, layout)
    for part in parts:
        mine = [cells[index] for index in part.indices.tolist()]
        stated = [
            None if v is None else from_bytes(t, bytes.fromhex(v))
            for t, v in zip(types, part.values, strict=True)
        ]
        assert all([transform(text) for transform in transforms] == stated for text, _ in mine)
        expected = sorted(part.indices.tolist())
        for term in reversed(terms):
            at = 0 if term.column == "text" else 1
            expected.sort(key=lambda index: sort_key(term, cells[index][at]), reverse=term.descending)
        if not any(term.descending for term in terms):  # Python's reverse keeps equal rows in order, too
            assert part.indices.tolist() == expected
        keys = [[sort_key(term, row[0 if term.column == "text" else 1]) for term in terms] for row in mine]
        assert keys == [
            [sort_key(term, cells[index][0 if term.column == "text" else 1]) for term in terms]
            for index in expected
        ]


def test_many_values_are_a_file_each_and_one_file_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = Schema(NestedField(1, "c", LongType()), TIME)
    arrow, values = arrow_schema(schema), 500
    opened = Counter[str]()
    writer = pq.ParquetWriter

    class Watched(writer):  # type: ignore[misc, valid-type]
        def __init__(self, *words: Any, **options: Any) -> None:
            opened["now"] += 1
            opened["most"] = max(opened["most"], opened["now"])
            super().__init__(*words, **options)

        def close(self) -> None:
            opened["now"] -= self.is_open
            super().close()

    monkeypatch.setattr(pq, "ParquetWriter", Watched)
    files = HourFiles(tmp_path, "part", arrow, Arranger(TableLayout.parse(["c"], []), schema))
    for _ in range(3):
        files.add(pa.record_batch([pa.array(range(values)), pa.array([AT] * values)], schema=arrow))
    closed = files.close()
    assert (len(closed), opened["most"]) == (values, 1)
    for file in closed:
        assert set(pq.read_table(file.path)["c"].to_pylist()) == {
            int.from_bytes(bytes.fromhex(file.partition[0] or ""), "little")
        }
        assert file.rows == 3


def test_more_rows_than_a_task_may_hold_become_several_sorted_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace_warehouse.load.hour_files.HELD_BYTES", 10_000)
    schema = Schema(NestedField(1, "c", LongType()), TIME)
    arrow = arrow_schema(schema)
    files = HourFiles(tmp_path, "part", arrow, Arranger(TableLayout.parse([], ["c DESC"]), schema))
    for first in range(0, 5_000, 500):
        batch = [pa.array(range(first, first + 500)), pa.array([AT] * 500)]
        files.add(pa.record_batch(batch, schema=arrow))
    closed, found = files.close(), []
    for file in closed:
        rows = pq.read_table(file.path)["c"].to_pylist()
        assert rows == sorted(rows, reverse=True)
        found += rows
    assert len(closed) > 3
    assert sorted(found) == list(range(5_000))


@pytest.mark.parametrize("layout", [["bucket(5, c)"], []])
def test_a_copy_is_read_back_in_the_order_in_which_its_rows_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: list[str]
) -> None:
    monkeypatch.setattr("millrace_warehouse.encodings.ROW_GROUP_ROWS", 70)
    inner = StructType(NestedField(4, "x", UUIDType()))
    schema = Schema(NestedField(1, "c", LongType()), NestedField(3, "s", inner), TIME)
    arrow = arrow_schema(schema)
    values = [n * 7919 % 1000 for n in range(1000)]
    storage = pa.array([None if n % 3 == 0 else UUID(int=n).bytes for n in values], pa.binary(16))
    uuids = pa.ExtensionArray.from_storage(pa.uuid(), storage)
    structs = pa.StructArray.from_arrays([uuids], fields=list(arrow.field("s").type))
    rows = pa.Table.from_arrays(
        [pa.array(values), structs, pa.array([AT] * 1000, arrow[2].type)], schema=arrow
    )
    arranger = Arranger(TableLayout.parse(layout, ["c DESC"]), schema)
    with ArrangedCopy(tmp_path, arrow, arranger) as copy:
        for batch in rows.to_batches(max_chunksize=33):
            copy.add(batch)
        files = copy.write("rows")
        for file in files:
            written = pq.read_table(file.path)["c"].to_pylist()
            assert written == sorted(written, reverse=True)
            assert file.metadata.num_row_groups == -(-file.rows // 70)
        batches = (batch for file in files for batch in pq.ParquetFile(file.path).iter_batches(50))
        back = pa.Table.from_batches(copy.in_first_order(batches))
    assert back == rows
    assert {path.suffix for path in tmp_path.iterdir()} == {".parquet"}


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("bucket[16](a.b)", PartitionTerm("bucket[16]", "a.b")),
        (" Bucket ( 16 , a ) ", PartitionTerm("bucket[16]", "a")),
        ("truncate(4,a)", PartitionTerm("truncate[4]", "a")),
        ("day(a)", PartitionTerm("day", "a")),
        ("HOURS(a)", PartitionTerm("hour", "a")),
        ("identity(a)", PartitionTerm("identity", "a")),
        ("bucket", PartitionTerm("identity", "bucket")),
    ],
)
def test_partitions_are_read_in_the_notations_of_spark_and_of_iceberg(text: str, term: PartitionTerm) -> None:
    assert PartitionTerm.parse(text) == term
    assert PartitionTerm.parse(str(term)) == term


@pytest.mark.parametrize(
    "text",
    [
        "",
        "bucket(a)",
        "bucket(0, a)",
        "bucket(-1, a)",
        "bucket(a, 16)",
        "void(a)",
        "days(3, a)",
        "a b",
        "truncate(1.5, a)",
        "a.",
    ],
)
def test_other_partitions_are_refused_with_the_forms_there_are(text: str) -> None:
    with pytest.raises(ConfigError, match=r"write bucket\(16, COLUMN\), truncate"):
        PartitionTerm.parse(text)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("url", "url ASC NULLS FIRST"),
        ("url desc", "url DESC NULLS LAST"),
        ("a.b asc nulls last", "a.b ASC NULLS LAST"),
        ("url NULLS LAST", "url ASC NULLS LAST"),
        ("url  DESC  NULLS  FIRST", "url DESC NULLS FIRST"),
    ],
)
def test_sort_fields_are_read_in_sparks_notation(text: str, canonical: str) -> None:
    assert str(SortTerm.parse(text)) == canonical
    assert str(SortTerm.parse(canonical)) == canonical


def test_two_partitions_of_one_name_are_refused() -> None:
    inner = StructType(NestedField(3, "b", LongType()))
    schema = Schema(NestedField(1, "a", inner), NestedField(2, "A_b", LongType()), TIME)
    with pytest.raises(ConfigError, match="two partitions would have the name a_b_bucket_4"):
        check_layout(TableLayout.parse(["bucket(4, a.b)", "bucket(4, A_b)"], []), schema)
    with pytest.raises(ConfigError, match="would have the name of column A_b"):
        check_layout(TableLayout.parse(["a.b"], []), schema)


def test_no_layout_is_false() -> None:
    assert not NO_LAYOUT
    assert TableLayout.parse(["a"], [])
    assert TableLayout.parse([], ["a"])
