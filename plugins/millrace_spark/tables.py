"""`read(spark, warehouse, topic)`: a published table as a Spark DataFrame, without Iceberg's Spark runtime.

pyiceberg plans: the snapshot's files, narrowed by hour. Spark reads those Parquet files, named once, with the
table's columns. So a reader sees one whole publication, whatever is published meanwhile. The snapshot and its
files stay for a day, and until `expire` or another program's maintenance deletes them.

Spark's Parquet reader finds columns by name, and by Iceberg's field id only if the session is set so
(`spark.sql.parquet.fieldId.read.enabled`; as an option of the reader it has no effect, tested on 4.1 and
4.3). The two differ once a column was renamed, or dropped and added again: such a table is refused without
the setting. A table with rows that an engine deleted in place is refused too: only Iceberg's own readers
leave them out.

With `live=True` a reader sees branch `live`, whose rows are not proven.

Not supported: other branches, and planning by other columns than the hour. Sessions of Spark 4.0 and 4.1 with
the runtime support both: `millrace tables TOPIC` prints the command.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime

from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.parser import parse
from pyiceberg.schema import Schema, SchemaVisitor, visit
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)
from pyspark.sql import DataFrame, SparkSession, types
from pyspark.sql.types import DataType

from millrace.errors import ConfigError, MillraceError
from millrace_warehouse.publish.branch_commit import LIVE
from millrace_warehouse.publish.catalog import connect
from millrace_warehouse.publish.readers import open_live, open_table
from millrace_warehouse.storage import open_storage

Hours = tuple[datetime, datetime]
"""Interval [from, to) of `_time` that the rows must have. A time without a zone is UTC."""

FIELD_IDS = "spark.sql.parquet.fieldId.read.enabled"
"""Setting of the session with which Spark finds a Parquet file's columns by their field ids."""


def read(
    spark: SparkSession,
    warehouse: str,
    topic: str,
    hours: Hours | None = None,
    *,
    catalog: str = "",
    live: bool = False,
) -> DataFrame:
    """Return the published table of a topic as it is now, or with `live` its branch `live`.

    Rows of branch `live` are not proven, except the rows that the published table has, too; the branch may
    lose rows that it has shown. Raise MillraceError when nothing was published yet, or without the branch.
    """
    with connect(open_storage(warehouse), catalog, create=False) as connected:
        if live:
            return read_table(spark, open_live(connected, topic), hours, branch=LIVE)
        return read_table(spark, open_table(connected, topic), hours)


def read_table(
    spark: SparkSession, table: Table, hours: Hours | None = None, *, branch: str = MAIN_BRANCH
) -> DataFrame:
    """Return the rows of the head of an Iceberg table's branch.

    Raise MillraceError if Spark would read the table wrong.
    """
    name = ".".join(table.name())
    between = None if hours is None else (_utc(hours[0]), _utc(hours[1]))
    scan = table.scan(row_filter=_filter(between))
    planned = list((scan if branch == MAIN_BRANCH else scan.use_ref(branch)).plan_files())
    if any(task.delete_files for task in planned):
        raise MillraceError(
            f"rows of {name} were deleted in place, and only Iceberg's own readers leave them out: compact it"
            " with the engine that deleted them, or read it with a reader that `millrace tables` prints"
        )
    if spark.conf.get(FIELD_IDS) != "true" and (column := _ambiguous(table)):
        raise MillraceError(
            f"column {column} of {name} was renamed, or dropped and added again: set {FIELD_IDS} to true in"
            " this session"
        )
    schema = _spark_schema(table.schema())
    if not planned:
        return spark.createDataFrame([], schema)
    # Spark must take no columns from folders of the named files: other engines' compactions make such
    # folders.
    frame = spark.read.schema(schema).parquet(*(_literal(task.file.file_path) for task in planned))
    if between is None:
        return frame
    return frame.where((frame["_time"] >= between[0]) & (frame["_time"] < between[1]))


def _utc(time: datetime) -> datetime:
    if not isinstance(time, datetime):  # called by hand, in notebooks
        raise ConfigError(
            f"hours: {time!r} is not a datetime: give two, like"
            " (datetime(2015, 5, 17, 10), datetime(2015, 5, 17, 12))"
        )
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def _filter(between: Hours | None) -> BooleanExpression:
    if between is None:
        return AlwaysTrue()
    return parse("_time >= '{}' and _time < '{}'".format(*(time.isoformat() for time in between)))


def _literal(uri: str) -> str:
    """Return a file's address escaped for Spark, which takes brackets and stars in a name for a pattern."""
    return re.sub(r"([][{}*?\\])", r"\\\1", uri)


def _ambiguous(table: Table) -> str | None:
    """Return a column that some files have under another name, or whose name another column had.

    Compares names regardless of case, like Spark.
    """
    now = {field_id: path for path, field_id in _paths(table.schema())}
    names = {path.casefold(): field_id for field_id, path in now.items()}
    for schema in table.schemas().values():
        for path, field_id in _paths(schema):
            if now.get(field_id, path) != path or names.get(path.casefold(), field_id) != field_id:
                return now.get(field_id, path)
    return None


def _paths(schema: Schema) -> Iterator[tuple[str, int]]:
    return ((schema.find_column_name(field_id) or "", field_id) for field_id in schema.field_ids)


def _spark_schema(schema: Schema) -> types.StructType:
    struct = visit(schema, _SparkTypes())
    assert isinstance(struct, types.StructType)
    return struct


class _SparkTypes(SchemaVisitor[DataType]):
    """Iceberg's types with field ids, as Iceberg's Spark runtime maps them, except that a uuid becomes its 16
    bytes.
    """

    def schema(self, schema: Schema, struct_result: DataType) -> DataType:
        return struct_result

    def struct(self, struct: StructType, field_results: list[DataType]) -> DataType:
        return types.StructType(
            [
                types.StructField(field.name, result, True, {"parquet.field.id": field.field_id})
                for field, result in zip(struct.fields, field_results, strict=True)
            ]
        )

    def field(self, field: NestedField, field_result: DataType) -> DataType:
        return field_result

    def list(self, list_type: ListType, element_result: DataType) -> DataType:
        return types.ArrayType(element_result)

    def map(self, map_type: MapType, key_result: DataType, value_result: DataType) -> DataType:
        return types.MapType(key_result, value_result)

    def primitive(self, primitive: PrimitiveType) -> DataType:
        simple: dict[type[IcebergType], DataType] = {
            BooleanType: types.BooleanType(),
            IntegerType: types.IntegerType(),
            LongType: types.LongType(),
            FloatType: types.FloatType(),
            DoubleType: types.DoubleType(),
            StringType: types.StringType(),
            BinaryType: types.BinaryType(),
            FixedType: types.BinaryType(),
            UUIDType: types.BinaryType(),
            DateType: types.DateType(),
            TimestampType: types.TimestampNTZType(),
            TimestamptzType: types.TimestampType(),
        }
        if isinstance(primitive, DecimalType):
            return types.DecimalType(primitive.precision, primitive.scale)
        if type(primitive) not in simple:
            raise MillraceError(f"Spark has no type for Iceberg's {primitive}: read it with another engine")
        return simple[type(primitive)]
