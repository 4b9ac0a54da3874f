"""The names that a table's columns may have."""

from __future__ import annotations

from typing import Any

import pytest

from millrace_avro.schema import MAX_NODES, SchemaError
from millrace_warehouse.columns import OWN_FIELDS, RESERVED_NAMES, check_table_schema


def record(*names: str, name: str = "R", type_: Any = "int") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": each, "type": type_} for each in names]}


def test_every_column_that_millrace_writes_is_among_the_reserved_names() -> None:
    assert {field.name for field in OWN_FIELDS} <= RESERVED_NAMES


@pytest.mark.parametrize("name", ["_offset", "_load", "_time", "_topic_partition", "_KEY"])
def test_a_name_of_millrace_is_refused_whatever_its_case(name: str) -> None:
    with pytest.raises(SchemaError, match=f"^its field {name} has the name of one of Millrace's columns$"):
        check_table_schema(record("url", name))


@pytest.mark.parametrize("name", ["_partition", "_deleted", "_File", "_pos", "_row_id"])
def test_a_name_of_iceberg_is_refused_whatever_its_case(name: str) -> None:
    with pytest.raises(SchemaError, match=f"^its field {name} has the name of one of Apache Iceberg's"):
        check_table_schema(record("url", name))


@pytest.mark.parametrize("name", ["date", "hour", "rev", "Date"])
def test_a_name_that_folders_once_had_is_free(name: str) -> None:
    check_table_schema(record("url", name))


def test_a_reserved_name_inside_a_record_and_one_that_only_looks_like_it_are_allowed() -> None:
    inner = record("_load", "_offset", name="Inner")
    schema = record("url", "_id", "dates")
    schema["fields"].append({"name": "inner", "type": inner})
    assert [field.name for field in check_table_schema(schema).fields] == ["url", "_id", "dates", "inner"]


@pytest.mark.parametrize("wrap", [None, "array", "map", "union"])
def test_fields_of_one_record_that_differ_in_case_only_are_refused_at_any_depth(wrap: str | None) -> None:
    clash: Any = record("url", "URL", name="Inner")
    if wrap is None:
        with pytest.raises(SchemaError, match=r"^its fields url and URL differ in case only$"):
            check_table_schema(clash)
        return
    types = {
        "array": {"type": "array", "items": clash},
        "map": {"type": "map", "values": clash},
        "union": ["null", clash],
    }
    with pytest.raises(SchemaError, match=r"its fields inner\..*url and inner\..*URL differ in case only$"):
        check_table_schema(record("inner", type_=types[wrap]))


def test_names_that_differ_in_case_in_different_records_are_allowed() -> None:
    schema = record("url")
    schema["fields"].append({"name": "inner", "type": record("URL", name="Inner")})
    check_table_schema(schema)


@pytest.mark.parametrize(("columns", "fits"), [(3_300, True), (3_400, False)])
def test_a_table_has_room_for_about_3300_optional_columns(columns: int, fits: bool) -> None:
    schema = record(*(f"c{index}" for index in range(columns)), type_=["null", "string"])
    if fits:
        check_table_schema(schema)
        return
    with pytest.raises(SchemaError, match=f"a schema of more than {MAX_NODES} types"):
        check_table_schema(schema)
