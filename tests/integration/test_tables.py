"""`tables.read`: Spark without Iceberg's runtime on tables as pyiceberg and other engines leave them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import parquet_file_to_data_file, schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import HourTransform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from millrace.errors import ConfigError, MillraceError
from millrace_spark import tables
from millrace_warehouse.context import Context
from millrace_warehouse.publish.live import Live
from tests.loaded import AVRO, pin
from tests.published import TOPIC, warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEN = datetime(2015, 5, 17, 10, tzinfo=UTC)
SCHEMA = Schema(
    NestedField(1, "url", StringType()),
    NestedField(2, "count", IntegerType()),
    NestedField(3, "_time", TimestamptzType()),
)
BY_HOUR = PartitionSpec(PartitionField(3, 1000, HourTransform(), "_time_hour"))

MakeTable = Callable[..., Table]


@pytest.fixture
def make_table(tmp_path: Path) -> MakeTable:
    folder = tmp_path / "a [warehouse] {of} *stars*"
    folder.mkdir()
    catalog = SqlCatalog("test", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{folder}")
    catalog.create_namespace("millrace")

    def make(schema: Schema = SCHEMA, spec: PartitionSpec = BY_HOUR) -> Table:
        return catalog.create_table("millrace.PageView", schema, partition_spec=spec)

    return make


def append(table: Table, *rows: tuple[Any, ...], folder: str = "") -> None:
    """One file, by reference, in a folder outside the table's: as `publish` appends."""
    schema = schema_to_pyarrow(table.schema())
    path = Path(table.location().removeprefix("file://")).parent / "rows" / folder / f"{uuid.uuid4()}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema), path
    )
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as snapshot:
        snapshot.append_data_file(parquet_file_to_data_file(table.io, table.metadata, f"file://{path}"))


def test_the_hours_asked_for_are_read_and_no_file_of_another(
    make_table: MakeTable, spark: SparkSession
) -> None:
    table = make_table()
    for hour in range(3):
        append(table, (f"/{hour}", hour, TEN + timedelta(hours=hour, minutes=30)))
    noon = datetime(2015, 5, 17, 12)  # without a zone it is UTC
    frame = tables.read_table(spark, table, (TEN + timedelta(hours=1), noon))
    assert [row["url"] for row in frame.collect()] == ["/1"]
    assert len(frame.inputFiles()) == 1
    assert tables.read_table(spark, table).count() == 3
    none = tables.read_table(spark, table, (noon + timedelta(days=1), noon + timedelta(days=2)))
    assert none.collect() == []
    assert none.schema == frame.schema
    with pytest.raises(ConfigError, match="is not a datetime: give two"):
        tables.read_table(spark, table, ("2015-05-17T10", "2015-05-17T12"))  # type: ignore[arg-type]


def test_a_frame_is_one_snapshot_whatever_is_published_before_it_is_read(
    make_table: MakeTable, spark: SparkSession
) -> None:
    table = make_table()
    append(table, ("/first", 1, TEN))
    frame = tables.read_table(spark, table)
    append(table, ("/late", 1, TEN))
    assert [row["url"] for row in frame.collect()] == ["/first"]
    assert tables.read_table(spark, table).count() == 2


def test_every_type_of_a_table_is_read(make_table: MakeTable, spark: SparkSession) -> None:
    number = uuid.UUID("12345678123456781234567812345678")
    inner = StructType(NestedField(30, "a", LongType()), NestedField(31, "b", StringType()))
    values = {
        "i": (IntegerType(), 1),
        "f": (FloatType(), 1.5),
        "d": (DecimalType(9, 2), Decimal("1.25")),
        "day": (DateType(), date(2015, 5, 17)),
        "local": (TimestampType(), datetime(2015, 5, 17, 10)),
        "fixed": (FixedType(4), b"abcd"),
        "bytes": (BinaryType(), b"xyz"),
        "uuid": (UUIDType(), number.bytes),
        "inner": (inner, {"a": 1, "b": "x"}),
        "list": (ListType(32, inner), [{"a": 2, "b": None}]),
        "map": (MapType(33, StringType(), 34, LongType()), {"k": 3}),
    }
    fields = [NestedField(at, name, type_) for at, (name, (type_, _)) in enumerate(values.items(), 1)]
    table = make_table(Schema(*fields), PartitionSpec())
    append(table, tuple(number if name == "uuid" else value for name, (_, value) in values.items()))
    (row,) = tables.read_table(spark, table).collect()
    assert row.asDict(recursive=True) == {name: value for name, (_, value) in values.items()}


def test_a_type_that_spark_has_not_is_named(make_table: MakeTable, spark: SparkSession) -> None:
    table = make_table(Schema(NestedField(1, "at", TimeType())), PartitionSpec())
    with pytest.raises(MillraceError, match="Spark has no type for Iceberg's time"):
        tables.read_table(spark, table)


def test_columns_that_came_later_are_null_before_and_wider_ones_are_widened(
    make_table: MakeTable, spark: SparkSession
) -> None:
    table = make_table()
    append(table, ("/old", 1, TEN))
    with table.update_schema() as update:
        update.add_column("country", StringType()).update_column("count", LongType())
    append(table, ("/new", 1 << 40, TEN, "NO"))
    rows = {tuple(row)[:2] + tuple(row)[3:] for row in tables.read_table(spark, table).collect()}
    assert rows == {("/old", 1, None), ("/new", 1 << 40, "NO")}


def test_a_column_that_was_renamed_or_made_anew_is_read_by_its_id_or_refused(
    make_table: MakeTable, spark: SparkSession
) -> None:
    table = make_table()
    append(table, ("/old", 1, TEN))
    with table.update_schema() as update:
        update.rename_column("url", "address")
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("count")
    with table.update_schema() as update:
        update.add_column("count", IntegerType())
    with pytest.raises(
        MillraceError, match=r"was renamed, or dropped and added again: set spark\.sql\.parquet"
    ):
        tables.read_table(spark, table)
    spark.conf.set(tables.FIELD_IDS, "true")
    try:
        assert [tuple(row) for row in tables.read_table(spark, table).collect()] == [
            ("/old", datetime(2015, 5, 17, 10), None)
        ]
    finally:
        spark.conf.unset(tables.FIELD_IDS)


def test_a_column_that_took_the_place_of_one_in_another_case_is_read_by_its_id_or_refused(
    make_table: MakeTable, spark: SparkSession
) -> None:
    """Spark's names have no case: by name it would find the values of the column that is gone."""
    table = make_table()
    append(table, ("/old", 1, TEN))
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("count")
    with table.update_schema() as update:
        update.add_column("Count", IntegerType())
    with pytest.raises(MillraceError, match=r"column count of .* was renamed, or dropped and added again"):
        tables.read_table(spark, table)
    spark.conf.set(tables.FIELD_IDS, "true")
    try:
        assert [row["Count"] for row in tables.read_table(spark, table).collect()] == [None]
    finally:
        spark.conf.unset(tables.FIELD_IDS)


def test_folders_that_another_engine_names_after_the_partition_become_no_columns(
    make_table: MakeTable, spark: SparkSession
) -> None:
    table = make_table()
    append(table, ("/plain", 1, TEN))
    append(table, ("/folder", 1, TEN), folder="_time_hour=2015-05-17-10")
    frame = tables.read_table(spark, table)
    assert frame.columns == ["url", "count", "_time"]
    assert {row["url"] for row in frame.collect()} == {"/plain", "/folder"}


def test_branch_live_is_read_with_the_columns_and_hours_of_the_table(
    tmp_path: Path, spark: SparkSession
) -> None:
    with warehouse(tmp_path / "w") as scene:
        folder = str(scene.folder)
        scene.load({"2015-05-17T10": 3, "2015-05-17T11": 2})
        scene.publish("2015-05-17T10")
        with pytest.raises(MillraceError, match="has no branch live of PageView: set live = true"):
            tables.read(spark, folder, TOPIC, live=True)
        fields = [*AVRO["fields"], {"name": "x", "type": ["null", "long"], "default": None}]
        pin(scene.storage, TOPIC, {**AVRO, "fields": fields})
        scene.load({"2015-05-17T11": 1})
        Live(Context(storage=scene.storage, catalog=scene.catalog), scene.stored).follow(on=True)
        frame = tables.read(spark, folder, TOPIC, live=True)
        assert "x" in frame.columns
        assert sorted(row["_offset"] for row in frame.collect()) == list(range(6))
        eleven = TEN + timedelta(hours=1)
        hour = tables.read(spark, folder, TOPIC, (eleven, eleven + timedelta(hours=1)), live=True)
        assert sorted(row["_offset"] for row in hour.collect()) == [3, 4, 5]
        assert len(hour.inputFiles()) == 2
        assert tables.read(spark, folder, TOPIC).count() == 3
