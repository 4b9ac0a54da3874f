"""A writer's schema read as the table's: fields added, dropped, moved and promoted, as fastavro does it."""

from __future__ import annotations

import copy
import io
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from millrace_avro.rows import RowDecoder
from millrace_avro.schema import SchemaError, arrow_fields, parse
from millrace_avro.vectorised import ColumnDecoder
from millrace_warehouse.log.messages import body_decoder
from tests.unit.avro.avro_cases import (
    comparable,
    encode,
    in_one_buffer,
    messages,
    record,
    rows_of,
    shown,
    table_record,
)

PROMOTED = {
    "int": ["long", "float", "double"],
    "long": ["float", "double"],
    "float": ["double"],
    "string": ["bytes"],
}
ADDED: list[tuple[Any, Any]] = [
    ("long", 7),
    ("string", "grün"),
    (["null", "string"], None),
    (["string", "null"], "x"),
    ("double", 1.5),
    ("boolean", True),
    ({"type": "enum", "name": "Added", "symbols": ["P", "Q"]}, "Q"),
    ({"type": "record", "name": "AddedRecord", "fields": [{"name": "a", "type": "int"}]}, {"a": 3}),
    ("int", -5),
    ("float", 2.5),
    ({"type": "array", "items": "long"}, [1, 2]),
    ({"type": "map", "values": ["null", "string"]}, {"k": "v"}),
]
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
DECIMAL_4 = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
LATE = datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)
PAIR = (ColumnDecoder, RowDecoder)


def table_of(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": list(fields)}


def field(name: str, schema: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": schema, **more}


def confuses_fastavro(schema: Any) -> bool:
    """fastavro reads the bytes of a union of strings and bytes as strings once a reader's schema is given."""
    if isinstance(schema, list):
        return {"string", "bytes"} <= {each for each in schema if isinstance(each, str)} or any(
            map(confuses_fastavro, schema)
        )
    if isinstance(schema, dict):
        return any(confuses_fastavro(each["type"]) for each in schema.get("fields", ()))
    return False


def _promoted_branch(draw: st.DrawFn, branch: Any) -> Any:
    return draw(st.sampled_from(PROMOTED[branch])) if branch in ("int", "long", "string") else branch


@st.composite
def evolutions(draw: st.DrawFn) -> tuple[Any, Any, list[Any]]:
    """A writer's schema, a table's that can read it, and values."""
    writer, values = draw(messages())
    assume(not confuses_fastavro(writer))
    fields = []
    for each in copy.deepcopy(writer["fields"]):
        choice = draw(st.sampled_from(["keep", "keep", "drop", "promote", "optional", "rename"]))
        if choice == "drop":
            continue
        if choice == "promote" and isinstance(each["type"], str) and each["type"] in PROMOTED:
            each["type"] = draw(st.sampled_from(PROMOTED[each["type"]]))
        if choice == "promote" and isinstance(each["type"], list) and len(each["type"]) == 2:
            each["type"] = [_promoted_branch(draw, branch) for branch in each["type"]]
        if choice == "rename":
            each |= {"name": f"{each['name']}_new", "aliases": [each["name"]]}
        if choice == "optional" and not isinstance(each["type"], list) and each["type"] != "null":
            each["type"] = ["null", each["type"]]
        fields.append(each)
    for number, (schema, default) in enumerate(
        draw(st.lists(st.sampled_from(ADDED), max_size=2, unique_by=repr))
    ):
        fields.append(field(f"added{number}", schema, default=default))
    return writer, {**writer, "fields": draw(st.permutations(fields))}, values


@given(evolutions())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_an_evolved_table_shows_what_fastavro_reads_with_its_schema(case: tuple[Any, Any, list[Any]]) -> None:
    writer, table, values = case
    bodies = [encode(writer, value) for value in values]
    schemas = fastavro.parse_schema(writer), fastavro.parse_schema(table)
    expected = [fastavro.schemaless_reader(io.BytesIO(body), *schemas) for body in bodies]
    rows = [shown(table_record(table), row) for row in expected]
    pair = record(writer), table_record(table)
    for decoder in (body_decoder(*pair), RowDecoder(*pair)):
        arrays, faults = decoder.decode(*in_one_buffer(bodies))
        assert faults.reasons == {}
        assert [array.type for array in arrays] == [each.type for each in arrow_fields(table_record(table))]
        if arrays:
            assert comparable(rows_of(arrays, table)) == comparable(rows)


@pytest.mark.parametrize("decoder", PAIR)
def test_values_that_the_table_cannot_hold_are_rejected_one_by_one(decoder: type[Any]) -> None:
    colours = {"type": "enum", "name": "Colour", "symbols": ["RED", "GREEN", "BLUE"]}
    writer = table_of(field("a", ["null", "long"]), field("b", colours), field("c", ["string", "long"]))
    table = table_of(
        field("a", "long"), field("b", {**colours, "symbols": ["BLUE", "RED"]}), field("c", ["null", "long"])
    )
    values = [
        {"a": 1, "b": "RED", "c": 3},
        {"a": None, "b": "RED", "c": 3},
        {"a": 1, "b": "GREEN", "c": 3},
        {"a": 1, "b": "BLUE", "c": "text"},
        {"a": 2, "b": "BLUE", "c": 4},
    ]
    arrays, faults = decoder(record(writer), table_record(table)).decode(
        *in_one_buffer([encode(writer, value) for value in values])
    )
    assert rows_of(arrays, table) == [{"a": 1, "b": "RED", "c": 3}, {"a": 2, "b": "BLUE", "c": 4}]
    assert sorted(faults.reasons) == [1, 2, 3]
    assert "a:" in faults.reasons[1]
    assert "b:" in faults.reasons[2]
    assert "c:" in faults.reasons[3]


@pytest.mark.parametrize("decoder", PAIR)
def test_an_unknown_symbol_becomes_the_default_of_the_tables_enum(decoder: type[Any]) -> None:
    colours = {"type": "enum", "name": "Colour", "symbols": ["RED", "GREEN"]}
    writer = table_of(field("a", colours))
    table = table_of(field("a", {**colours, "symbols": ["NONE", "RED"], "default": "NONE"}))
    bodies = [encode(writer, {"a": symbol}) for symbol in ("GREEN", "RED")]
    arrays, _ = decoder(record(writer), table_record(table)).decode(*in_one_buffer(bodies))
    assert arrays[0].to_pylist() == ["NONE", "RED"]


@pytest.mark.parametrize("decoder", PAIR)
def test_a_renamed_field_is_found_by_its_alias(decoder: type[Any]) -> None:
    writer, table = table_of(field("old", "long")), table_of(field("new", "long", aliases=["old"]))
    arrays, _ = decoder(record(writer), table_record(table)).decode(
        *in_one_buffer([encode(writer, {"old": 5})])
    )
    assert arrays[0].to_pylist() == [5]


@pytest.mark.parametrize("decoder", PAIR)
@pytest.mark.parametrize(
    ("written", "wanted", "value", "expected"),
    [
        (MILLIS, MICROS, 1500, LATE),
        ("long", MILLIS, 1500, LATE),
        (MILLIS, "long", 1500, 1500),
        (DECIMAL_4, {**DECIMAL_4, "precision": 9}, Decimal("12.34"), Decimal("12.34")),
        ("string", ["null", "bytes"], "x", b"x"),
        (["null", "int"], ["null", "long"], 4, 4),
        ("int", ["null", "string", "long"], 4, {"member0": None, "member1": 4}),
        (["int", "string"], ["string", "long"], 4, {"member0": None, "member1": 4}),
        (["int", "long"], "long", 4, 4),
        ("int", MILLIS, 1500, LATE),
        ("int", ["null", {"type": "long", "logicalType": "time-micros"}], 1500, 1500),
        ("int", {"type": "long", "logicalType": "timestamp-nanos"}, 1500, 1500),
        ("string", DECIMAL_4, "\1\0", Decimal("2.56")),
    ],
)
def test_logical_types_and_unions_resolve(
    decoder: type[Any], written: Any, wanted: Any, value: Any, expected: Any
) -> None:
    writer, table = table_of(field("a", written)), table_of(field("a", wanted))
    bodies = [encode(writer, {"a": value})] * 2
    arrays, faults = decoder(record(writer), table_record(table)).decode(*in_one_buffer(bodies))
    assert faults.reasons == {}
    assert comparable(arrays[0].to_pylist()) == comparable([expected] * 2)


PAID_1, PAID_2 = (
    {"type": "record", "name": f"{space}.Paid", "fields": [field("x", "int"), field(own, "int")]}
    for space, own in (("v1", "a"), ("v2", "b"))
)


def with_default(schema: dict[str, Any]) -> dict[str, Any]:
    return {**schema, "fields": [*schema["fields"], field("z", "int", default=7)]}


@pytest.mark.parametrize("decoder", PAIR)
@pytest.mark.parametrize(
    ("wanted", "members"),
    [
        ([PAID_1, with_default(PAID_2)], (0, 1)),
        ([with_default(PAID_2), with_default(PAID_1)], (1, 0)),
        ([PAID_1, {**PAID_2, "name": "v3.Other", "aliases": ["v2.Paid"]}], (0, 1)),
        ([PAID_1, {**PAID_2, "name": "v2.Other", "aliases": ["Paid"]}], (0, 1)),
        ([PAID_1, {**PAID_2, "name": "v3.Paid", "aliases": ["v2.Paid"]}, with_default(PAID_2)], (0, 2)),
        ([{**PAID_1, "name": "v8.Paid"}, {**PAID_2, "name": "v9.Paid"}], (0, 1)),
    ],
)
def test_a_record_of_a_union_goes_to_the_branch_of_its_full_name_and_else_to_the_first_that_reads_it(
    decoder: type[Any], wanted: Any, members: tuple[int, int]
) -> None:
    writer, table = table_of(field("e", [PAID_1, PAID_2])), table_of(field("e", wanted))
    bodies = [b"\0\2\4", b"\2\2\4"]
    arrays, faults = decoder(record(writer), table_record(table)).decode(*in_one_buffer(bodies))
    assert faults.reasons == {}
    for row, member, own in zip(arrays[0].to_pylist(), members, "ab", strict=True):
        assert [name for name, value in row.items() if value is not None] == [f"member{member}"]
        assert (row[f"member{member}"]["x"], row[f"member{member}"][own]) == (1, 2)


@pytest.mark.parametrize("decoder", PAIR)
def test_an_enum_of_a_union_keeps_its_symbols_when_the_table_swaps_the_branches(decoder: type[Any]) -> None:
    one = {"type": "enum", "name": "v1.Kind", "symbols": ["A", "B"]}
    two = {"type": "enum", "name": "v2.Kind", "symbols": ["B", "C"]}
    writer = table_of(field("e", [one, two]))
    table = table_of(field("e", [{**two, "default": "B"}, {**one, "default": "B"}]))
    arrays, faults = decoder(record(writer), table_record(table)).decode(*in_one_buffer([b"\0\0", b"\2\2"]))
    assert faults.reasons == {}
    assert arrays[0].to_pylist() == [{"member0": None, "member1": "A"}, {"member0": "C", "member1": None}]


@pytest.mark.parametrize("decoder", PAIR)
@pytest.mark.parametrize("logical", ["timestamp-millis", "time-micros", "timestamp-nanos"])
def test_an_int_that_is_read_as_another_long_stays_in_the_range_of_int(
    decoder: type[Any], logical: str
) -> None:
    writer, table = (
        table_of(field("a", "int")),
        table_of(field("a", {"type": "long", "logicalType": logical})),
    )
    bodies = [b"\xfe\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x10", b"\4"]
    arrays, faults = decoder(record(writer), table_record(table)).decode(*in_one_buffer(bodies))
    assert len(arrays[0]) == 2
    assert list(faults.reasons) == [1]


@pytest.mark.parametrize("decoder", PAIR)
@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ("long", "int"),
        ({"type": "int", "logicalType": "date"}, MILLIS),
        ("string", "long"),
        (MICROS, {"type": "long", "logicalType": "local-timestamp-micros"}),
        ({"type": "fixed", "name": "F", "size": 3}, {"type": "fixed", "name": "F", "size": 4}),
        ("long", ["null", "string"]),
        (["null", "string"], "long"),
        (DECIMAL_4, {**DECIMAL_4, "scale": 1}),
    ],
)
def test_types_that_do_not_fit_are_refused_by_name(decoder: type[Any], written: Any, wanted: Any) -> None:
    with pytest.raises(SchemaError, match=r"^a: "):
        decoder(record(table_of(field("a", written))), record(table_of(field("a", wanted))))


@pytest.mark.parametrize("decoder", PAIR)
@pytest.mark.parametrize(
    "wanted",
    [
        field("b", "long"),
        field("b", "long", default="x"),
        field("b", ["null", "long"], default="x"),
        field("b", "long", default=1 << 63),
        field("b", "int", default=1 << 31),
        field("b", "string", default="\ud800"),
        field("b", "long", default=True),
        field("b", "double", default=10**400),
        field("b", {"type": "array", "items": ["null", "float"]}, default=[10**400]),
        field("b", "bytes", default="\u0100"),
        field("b", {"type": "fixed", "name": "F", "size": 2}, default="x"),
        field("b", {"type": "enum", "name": "E", "symbols": ["A"]}, default="B"),
    ],
)
def test_a_new_field_needs_a_default_that_fits(decoder: type[Any], wanted: dict[str, Any]) -> None:
    with pytest.raises(SchemaError, match=r"b: |Default value <x>|int too large to convert to float"):
        decoder(record(table_of(field("a", "long"))), table_record(table_of(wanted)))


@pytest.mark.parametrize("decoder", PAIR)
def test_defaults_are_read_from_json_as_avro_says(decoder: type[Any]) -> None:
    defaults = {
        "raw": ("bytes", "\u00ff\u0000", b"\xff\0"),
        "price": (DECIMAL_4, "\u0001\u0000", Decimal("2.56")),
        "when": (MILLIS, 1500, LATE),
        "either": (["string", "long"], "x", {"member0": "x", "member1": None}),
        "wide": ("double", (1 << 53) + 1, float(1 << 53)),
        "narrow": (["float", "null"], (1 << 24) + 1, float(1 << 24)),
        "inner": (
            {**table_of(field("ratio", "float")), "name": "I"},
            {"ratio": (1 << 24) + 1},
            {"ratio": float(1 << 24)},
        ),
        "many": ({"type": "array", "items": "double"}, [1, (1 << 53) + 1], [1.0, float(1 << 53)]),
        "named": ({"type": "map", "values": "int"}, {"a": 1}, [("a", 1)]),
    }
    if decoder is ColumnDecoder:
        del defaults["many"], defaults["named"]
    table = table_of(*[field(name, schema, default=json) for name, (schema, json, _) in defaults.items()])
    arrays, faults = decoder(record(table_of()), table_record(table)).decode(*in_one_buffer([b"", b""]))
    assert not faults
    assert rows_of(arrays, table) == [{name: shown for name, (_, _, shown) in defaults.items()}] * 2


def deep(levels: int) -> Any:
    schema: Any = "int"
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return table_of(field("a", schema))


def laughs(levels: int) -> Any:
    """Every level twice the one before."""
    schema: Any = {"type": "record", "name": "L0", "fields": [field("a", "int")]}
    for level in range(1, levels):
        fields = [field("a", schema), field("b", f"L{level - 1}")]
        schema = {"type": "record", "name": f"L{level}", "fields": fields}
    return schema


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (
            table_of(field("a", {"type": "array", "items": {"type": "record", "name": "E", "fields": []}})),
            "take no",
        ),
        (deep(200), "inside another"),
        (deep(5000), "not a valid"),
        (laughs(40), "more than 10000 types"),
        (table_of(field("a", {"type": "array", "items": "null"})), "take no bytes"),
        (table_of(field("a", "nonsense")), "not a valid"),
        ({"type": "record"}, "not a valid"),
        (None, "not a valid"),
    ],
)
def test_a_schema_that_fits_no_table_is_refused_with_a_reason(schema: Any, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        parse(schema)
