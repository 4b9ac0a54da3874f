"""Avro types as Apache Iceberg's (format version 2), and Iceberg's as the Arrow types of our files.

    Avro                                   Iceberg
    boolean, int, long, float, double      the same
    string, enum, string with uuid         string
    bytes, big-decimal, decimal of more    binary
      than 38 digits
    fixed(n), duration                     fixed[n]: Spark shows binary
    fixed(16) with uuid                    uuid: Spark shows text
    decimal(p, s) on bytes or fixed        decimal(p, s)
    date                                   date
    timestamp-millis, -micros              timestamptz; local-timestamp-*: timestamp
    time-millis, -micros                   int, long: "Spark does not support time fields"
    [local-]timestamp-nanos                long: timestamp_ns comes with version 3
    record / array / map                   struct / list / map<string, …>
    a record without fields                boolean, true: neither Parquet nor pyiceberg writes an empty struct
    a record inside itself                 string: JSON
    ["null", T], [T]                       T
    any other union                        struct<member0, member1, …>
    null alone                             no column; in an array, a map or a union a boolean that is null

Every column is optional, at any depth. Where a plain number stands for a time, its `doc` has the unit.

A catalog numbers the fields of a new table itself, all fields of a struct before the fields inside them. So
does `iceberg_schema`, and the ids in our files are the table's. A column keeps its id as long as it exists.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import pyarrow as pa
from pyiceberg import types as iceberg
from pyiceberg.schema import Schema

from millrace_avro import schema as avro
from millrace_warehouse.columns import OWN_FIELDS

_PRIMITIVES: dict[pa.DataType, iceberg.PrimitiveType] = {
    pa.bool_(): iceberg.BooleanType(),
    pa.int32(): iceberg.IntegerType(),
    pa.int64(): iceberg.LongType(),
    pa.float32(): iceberg.FloatType(),
    pa.float64(): iceberg.DoubleType(),
    pa.string(): iceberg.StringType(),
    pa.binary(): iceberg.BinaryType(),
    pa.date32(): iceberg.DateType(),
    pa.timestamp("us", tz="UTC"): iceberg.TimestamptzType(),
    pa.timestamp("us"): iceberg.TimestampType(),
}
_ARROW = {type_: arrow for arrow, type_ in _PRIMITIVES.items()} | {iceberg.UUIDType(): pa.uuid()}
_DOCS = {
    "time-millis": "milliseconds since midnight",
    "time-micros": "microseconds since midnight",
    "timestamp-nanos": "nanoseconds since 1970-01-01 00:00:00 UTC",
    "local-timestamp-nanos": "nanoseconds since 1970-01-01 00:00:00 of no time zone",
}


def iceberg_schema(table: avro.Record) -> Schema:
    """Return the schema of a new table: the record's fields, then Millrace's own, numbered as catalogs do."""
    return _numbered(_unnumbered(table), {}, 0)


def evolved(old: Schema, last_column_id: int, table: avro.Record) -> Schema:
    """Return a table's new schema. Columns that `old` has keep their ids; new columns get the next ids.

    No id is ever used twice: `last_column_id` is the highest id that any schema of the table has had.
    """
    return _numbered(_unnumbered(table), ids_by_name(old), last_column_id)


def ids_by_name(type_: Schema | iceberg.IcebergType, path: str = "") -> dict[str, int]:
    """Return the id of each column, at any depth, by its whole name, such as `prices.value.currency`.

    pyiceberg's own index also has names without `.value` and `.element`, which may be the names of other
    columns.
    """
    match type_:
        case Schema() | iceberg.StructType():
            parts = type_.fields
        case iceberg.ListType():
            parts = (type_.element_field,)
        case iceberg.MapType():
            parts = (type_.key_field, type_.value_field)
        case _:
            parts = ()
    ids = {path + part.name: part.field_id for part in parts}
    for part in parts:
        ids |= ids_by_name(part.field_type, f"{path}{part.name}.")
    return ids


def _unnumbered(table: avro.Record) -> Iterable[iceberg.NestedField]:
    own = [iceberg.NestedField(0, field.name, _PRIMITIVES[field.type]) for field in OWN_FIELDS]
    return [*map(_field, table.fields), *own]


def _field(field: avro.Field) -> iceberg.NestedField:
    return iceberg.NestedField(0, field.name, _type(field.type), doc=_doc(field.type))


def _doc(node: avro.Node) -> str | None:
    if isinstance(node, avro.Union) and node.is_optional:
        return _doc(node.members[0]) if node.members else None
    return _DOCS.get(node.logical or "") if isinstance(node, avro.Leaf) else None


def _type(node: avro.Node) -> iceberg.IcebergType:
    if isinstance(node, avro.Record) and node.fields:
        return iceberg.StructType(*map(_field, node.fields))
    if isinstance(node, avro.Array):
        return iceberg.ListType(0, _type(node.items), element_required=False)
    if isinstance(node, avro.Map):
        return iceberg.MapType(0, iceberg.StringType(), 0, _type(node.values), value_required=False)
    if isinstance(node, avro.Union) and node.is_optional and node.members:
        return _type(node.members[0])
    if isinstance(node, avro.Union) and node.members:
        members = [avro.Field(name, member) for name, member in node.named_members]
        return iceberg.StructType(*map(_field, members))
    if isinstance(node, avro.Fixed) and node.logical == "uuid":
        return iceberg.UUIDType()
    arrow = avro.arrow_type(node)
    if pa.types.is_decimal(arrow):
        return iceberg.DecimalType(arrow.precision, arrow.scale)
    if pa.types.is_fixed_size_binary(arrow):
        return iceberg.FixedType(arrow.byte_width)
    return _PRIMITIVES[arrow]


def _numbered(fields: Iterable[iceberg.NestedField], ids: dict[str, int], last: int) -> Schema:
    fresh = itertools.count(last + 1)
    struct = _with_ids(
        iceberg.StructType(*fields), "", lambda path: ids[path] if path in ids else next(fresh)
    )
    assert isinstance(struct, iceberg.StructType)
    return Schema(*struct.fields)


def _with_ids(type_: iceberg.IcebergType, path: str, id_of: Callable[[str], int]) -> iceberg.IcebergType:
    """Return the type with the ids of its parts, requested in a catalog's order: outer fields first."""
    if isinstance(type_, iceberg.StructType):
        ids = [id_of(path + field.name) for field in type_.fields]
        return iceberg.StructType(
            *(
                iceberg.NestedField(
                    number, f.name, _with_ids(f.field_type, f"{path}{f.name}.", id_of), doc=f.doc
                )
                for number, f in zip(ids, type_.fields, strict=True)
            )
        )
    if isinstance(type_, iceberg.ListType):
        element = id_of(path + "element")
        inner = _with_ids(type_.element_type, path + "element.", id_of)
        return iceberg.ListType(element, inner, element_required=False)
    if isinstance(type_, iceberg.MapType):
        key, value = id_of(path + "key"), id_of(path + "value")
        inner = _with_ids(type_.value_type, path + "value.", id_of)
        return iceberg.MapType(key, type_.key_type, value, inner, value_required=False)
    return type_


def arrow_schema(schema: Schema) -> pa.Schema:
    """Return the schema of a Parquet file of the table, with the ids of its columns at any depth."""
    return pa.schema([_arrow_field(field) for field in schema.fields])


def _arrow_field(field: iceberg.NestedField) -> pa.Field:
    metadata = {"PARQUET:field_id": str(field.field_id)}
    return pa.field(field.name, _arrow_type(field.field_type), field.optional, metadata)


def _arrow_type(type_: iceberg.IcebergType) -> pa.DataType:
    if isinstance(type_, iceberg.StructType):
        return pa.struct(map(_arrow_field, type_.fields))
    if isinstance(type_, iceberg.ListType):
        return pa.list_(_arrow_field(type_.element_field))
    if isinstance(type_, iceberg.MapType):
        return pa.map_(_arrow_field(type_.key_field), _arrow_field(type_.value_field))
    if isinstance(type_, iceberg.FixedType):
        return pa.binary(len(type_))
    if isinstance(type_, iceberg.DecimalType):
        return pa.decimal128(type_.precision, type_.scale)
    assert isinstance(type_, iceberg.PrimitiveType)
    return _ARROW[type_]
