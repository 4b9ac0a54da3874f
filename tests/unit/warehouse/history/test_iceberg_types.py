"""Avro as Iceberg's types: what the table is told is what the files hold, with the ids that catalogs give."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.schema import assign_fresh_schema_ids, index_by_id
from pyiceberg.types import MapType

from millrace_avro.schema import arrow_fields
from millrace_warehouse.columns import OWN_FIELDS, check_table_schema
from millrace_warehouse.history.iceberg_types import arrow_schema, evolved, iceberg_schema
from tests.unit.avro.avro_cases import messages, table_record

EMPTY = {"type": "record", "name": "Empty", "fields": []}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
INNER = {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "int"}]}


def record(**fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": n, "type": t} for n, t in fields.items()]}


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def fixed(size: int, **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": "F", "size": size, **more}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ("boolean", "boolean"),
        ("int", "int"),
        ("long", "long"),
        ("float", "float"),
        ("double", "double"),
        ("string", "string"),
        ("bytes", "binary"),
        (fixed(3), "fixed[3]"),
        (fixed(0), "binary"),
        (fixed(12, logicalType="duration"), "fixed[12]"),
        (fixed(16, logicalType="uuid"), "uuid"),
        (logical("string", "uuid"), "string"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "string"),
        (DECIMAL, "decimal(9, 2)"),
        (fixed(5, logicalType="decimal", precision=9, scale=2), "decimal(9, 2)"),
        (logical("bytes", "decimal", precision=39), "binary"),
        (fixed(20, logicalType="decimal", precision=39), "binary"),
        (logical("bytes", "big-decimal"), "binary"),
        (logical("int", "date"), "date"),
        (logical("long", "timestamp-millis"), "timestamptz"),
        (logical("long", "timestamp-micros"), "timestamptz"),
        (logical("long", "local-timestamp-millis"), "timestamp"),
        (logical("long", "local-timestamp-micros"), "timestamp"),
        (logical("int", "time-millis"), "int"),
        (logical("long", "time-micros"), "long"),
        (logical("long", "timestamp-nanos"), "long"),
        (logical("long", "local-timestamp-nanos"), "long"),
        (INNER, "struct<11: x: optional int>"),
        (EMPTY, "boolean"),
        ({"type": "array", "items": "long"}, "list<long>"),
        ({"type": "map", "values": DECIMAL}, "map<string, decimal(9, 2)>"),
        (["null", "long"], "long"),
        (["long"], "long"),
        (["null", "long", "string"], "struct<11: member0: optional long, 12: member1: optional string>"),
        (
            ["int", EMPTY, INNER],
            "struct<11: member0: optional int, 12: member1: optional boolean,"
            " 13: member2: optional struct<14: x: optional int>>",
        ),
    ],
    ids=str,
)
def test_every_avro_type_has_its_iceberg_type(schema: Any, expected: str) -> None:
    columns = iceberg_schema(check_table_schema(record(a=schema)))
    field = columns.find_field("a")
    assert (field.field_id, str(field.field_type)) == (1, expected)
    assert field.optional
    arrow = arrow_schema(columns).field("a")
    assert arrow.metadata == {b"PARQUET:field_id": b"1"}


@pytest.mark.parametrize("schema", ["null", ["null"], {"type": "array", "items": ["null"]}], ids=str)
def test_null_alone_is_no_column_and_in_an_array_a_boolean(schema: Any) -> None:
    columns = iceberg_schema(check_table_schema(record(a=schema, b="int")))
    names = [field.name for field in columns.fields if not field.name.startswith("_")]
    assert names == (["a", "b"] if isinstance(schema, dict) else ["b"])
    if "a" in names:
        assert str(columns.find_type("a")) == "list<boolean>"


def test_a_record_inside_itself_is_text() -> None:
    tree = {"type": "record", "name": "T", "fields": [{"name": "next", "type": ["null", "T"]}]}
    columns = iceberg_schema(check_table_schema(record(tree=tree)))
    assert str(columns.find_type("tree.next")) == "string"


@pytest.mark.parametrize(
    ("schema", "doc"),
    [
        (logical("int", "time-millis"), "milliseconds since midnight"),
        (["null", logical("long", "timestamp-nanos")], "nanoseconds since 1970-01-01 00:00:00 UTC"),
        ("long", None),
    ],
    ids=str,
)
def test_a_number_that_is_a_time_has_its_unit_in_the_doc(schema: Any, doc: str | None) -> None:
    columns = iceberg_schema(check_table_schema(record(a=schema, inner=record(b=schema) | {"name": "I"})))
    assert [columns.find_field(name).doc for name in ("a", "inner.b")] == [doc, doc]


def test_millraces_columns_come_last() -> None:
    columns = iceberg_schema(check_table_schema(record(url="string")))
    assert [(f.field_id, f.name, str(f.field_type)) for f in columns.fields] == [
        (1, "url", "string"),
        (2, "_time", "timestamptz"),
        (3, "_topic_partition", "int"),
        (4, "_offset", "long"),
        (5, "_timestamp", "timestamptz"),
        (6, "_key", "binary"),
        (7, "_schema_id", "int"),
        (8, "_instance", "long"),
        (9, "_sequence", "long"),
        (10, "_load", "long"),
    ]


@given(messages(blocks=True))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_files_columns_are_those_of_the_decoder_and_their_ids_those_of_a_catalog(
    case: tuple[Any, list[Any]],
) -> None:
    table = table_record(case[0])
    columns = iceberg_schema(table)
    decoded = pa.schema([*arrow_fields(table), *OWN_FIELDS])
    assert _bare(arrow_schema(columns)) == decoded
    assert assign_fresh_schema_ids(columns) == columns
    assert columns.highest_field_id == max(index_by_id(columns))
    assert evolved(columns, columns.highest_field_id, table) == columns
    columns.check_format_version_compatibility(2)


def _bare(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, _storage(field.type)) for field in schema])


def _storage(type_: pa.DataType) -> pa.DataType:
    """The type as the decoder has it: no ids, and a UUID is its 16 bytes."""
    if isinstance(type_, pa.UuidType):
        return pa.binary(16)
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(field.name, _storage(field.type)) for field in type_])
    if pa.types.is_list(type_):
        return pa.list_(pa.field("element", _storage(type_.value_type)))
    if pa.types.is_map(type_):
        key = pa.field("key", pa.string(), nullable=False)
        return pa.map_(key, pa.field("value", _storage(type_.item_type)))
    return type_


INSIDE = record(id=fixed(16, logicalType="uuid"), tags={"type": "array", "items": INNER}) | {"name": "Inside"}
EVERYTHING = record(
    flag="boolean",
    inner=["null", INSIDE],
    many={"type": "map", "values": {"type": "array", "items": ["null", "Inner"]}},
    either=["null", "long", EMPTY, {"type": "map", "values": "Empty"}],
    price=DECIMAL,
    span={"type": "fixed", "name": "Span", "size": 12, "logicalType": "duration"},
)


def test_a_catalog_gives_a_new_table_the_ids_of_the_record(tmp_path: Path) -> None:
    columns = iceberg_schema(check_table_schema(EVERYTHING))
    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=tmp_path.as_uri())
    try:
        catalog.create_namespace("m")
        assert catalog.create_table("m.t", columns).schema().as_struct() == columns.as_struct()
    finally:
        catalog.close()


def test_rows_of_every_type_are_read_through_the_table(tmp_path: Path) -> None:
    table = check_table_schema(EVERYTHING)
    columns, id_ = iceberg_schema(table), uuid.UUID(int=5)
    row: dict[str, Any] = {
        "flag": True,
        "inner": {"id": id_.bytes, "tags": [{"x": 1}, None]},
        "many": [("k", [{"x": 2}])],
        "either": {"member0": None, "member1": True, "member2": None},
        "span": b"s" * 12,
    }
    decoded = pa.schema([*arrow_fields(table), *OWN_FIELDS])
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist([row, {}], decoded).cast(arrow_schema(columns)), path)
    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=tmp_path.as_uri())
    try:
        catalog.create_namespace("m")
        made = catalog.create_table("m.t", columns)
        with made.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
            append.append_data_file(parquet_file_to_data_file(made.io, made.metadata, path.as_uri()))
        first, second = made.refresh().scan().to_arrow().to_pylist()
    finally:
        catalog.close()
    assert {name: first[name] for name in row} == row | {"inner": row["inner"] | {"id": id_}}
    assert set(second.values()) == {None}


def test_what_is_added_gets_new_ids_and_what_stays_keeps_its_own() -> None:
    old = record(a="int", inner=INNER, tags={"type": "map", "values": INNER | {"name": "In2"}})
    new = record(
        tags={"type": "map", "values": record(x="long", y="int") | {"name": "In2"}},
        more={"type": "array", "items": "string"},
        inner=record(y="string") | {"name": "Inner"},
    )
    first = iceberg_schema(check_table_schema(old))
    second = evolved(first, 40, check_table_schema(new))
    ids = {name: second.find_field(name).field_id for name in ("tags", "inner", "_load", "tags.value.x")}
    assert ids == {name: first.find_field(name).field_id for name in ids}
    tags, before = second.find_type("tags"), first.find_type("tags")
    assert isinstance(tags, MapType)
    assert isinstance(before, MapType)
    assert (tags.key_id, tags.value_id) == (before.key_id, before.value_id)
    added = [second.find_field(name).field_id for name in ("more", "tags.value.y", "more.element", "inner.y")]
    assert sorted(added) == [41, 42, 43, 44]
    assert second.highest_field_id == 44
