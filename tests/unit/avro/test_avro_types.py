"""Corners of Avro 1.12: odd logical types, aliases, records inside themselves, limits, strictness."""

from __future__ import annotations

import json
import random
import tracemalloc
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from millrace_avro.rows import MAX_DEPTH, RowDecoder
from millrace_avro.schema import SchemaError, arrow_fields, arrow_type, parse
from millrace_avro.vectorised import ColumnDecoder
from millrace_warehouse.log.messages import body_decoder
from tests.unit.avro.avro_cases import encode, in_one_buffer, record, rows_of, table_record
from tests.unit.avro.fuzz_cases import INNER, SCHEMAS, TREE, Case

PAIR = (ColumnDecoder, RowDecoder)
INNER_1 = {"n": 1, "s": None}
DECIMAL = {"type": "bytes", "logicalType": "decimal"}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
EMPTY = {"type": "record", "name": "Empty", "fields": []}
FIXED_2 = {"type": "fixed", "name": "F", "size": 2}
FIXED_12 = {"type": "fixed", "name": "F", "size": 12}
LONG_NANOS = {"type": "long", "logicalType": "timestamp-nanos"}
LONG_MICROS = {"type": "long", "logicalType": "timestamp-micros"}


def column(schema: Any, name: str = "a", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": schema, **more}]}


def decoded(
    decoder: type[Any], writer: Any, table: Any, bodies: list[bytes]
) -> tuple[list[Any], dict[int, str]]:
    arrays, faults = decoder(record(writer), table_record(table)).decode(*in_one_buffer(bodies))
    return rows_of(arrays, table), faults.reasons


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (LONG_NANOS, pa.int64()),
        ({"type": "long", "logicalType": "local-timestamp-nanos"}, pa.int64()),
        ({"type": "bytes", "logicalType": "big-decimal"}, pa.binary()),
        ({**FIXED_12, "logicalType": "duration"}, pa.binary(12)),
        ({**DECIMAL, "precision": 38, "scale": 38}, pa.decimal128(38, 38)),
        ({**DECIMAL, "precision": 39}, pa.binary()),
        # What does not fit its type is ignored.
        ({**DECIMAL}, pa.binary()),
        ({**DECIMAL, "precision": 0}, pa.binary()),
        ({**DECIMAL, "precision": 2, "scale": 3}, pa.binary()),
        ({**DECIMAL, "precision": 2, "scale": -1}, pa.binary()),
        ({**DECIMAL, "precision": "2"}, pa.binary()),
        ({**FIXED_2, "logicalType": "decimal", "precision": 5}, pa.binary(2)),
        ({**FIXED_2, "logicalType": "decimal", "precision": 4}, pa.decimal128(4, 0)),
        ({"type": "string", "logicalType": "decimal", "precision": 4}, pa.string()),
        ({"type": "fixed", "name": "F", "size": 15, "logicalType": "uuid"}, pa.binary(15)),
        ({"type": "fixed", "name": "F", "size": 16, "logicalType": "uuid"}, pa.binary(16)),
        ({"type": "bytes", "logicalType": "uuid"}, pa.binary()),
        ({"type": "int", "logicalType": "timestamp-millis"}, pa.int32()),
        ({"type": "long", "logicalType": "time-millis"}, pa.int64()),
        ({"type": "fixed", "name": "F", "size": 11, "logicalType": "duration"}, pa.binary(11)),
        ({"type": "fixed", "name": "F", "size": 0}, pa.binary()),
        ({"type": "fixed", "name": "F", "size": 20, "logicalType": "decimal", "precision": 40}, pa.binary()),
        ({"type": "long", "logicalType": ["no", "text"]}, pa.int64()),
        (["string"], pa.string()),
    ],
    ids=str,
)
def test_every_logical_type_has_a_column_and_those_that_do_not_fit_are_ignored(
    schema: Any, expected: pa.DataType
) -> None:
    assert [field.type for field in arrow_fields(record(column(schema)))] == [expected]


@pytest.mark.parametrize("decoder", PAIR)
@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        (LONG_NANOS, LONG_MICROS),
        (LONG_MICROS, LONG_NANOS),
        ({"type": "long", "logicalType": "time-micros"}, LONG_NANOS),
        ({"type": "bytes", "logicalType": "big-decimal"}, {**DECIMAL, "precision": 9}),
        ({**DECIMAL, "precision": 40, "scale": 5}, {**DECIMAL, "precision": 38, "scale": 2}),
        ({**DECIMAL, "precision": 40, "scale": 5}, {**DECIMAL, "precision": 40, "scale": 2}),
        ({**FIXED_12, "logicalType": "duration"}, {**FIXED_12, "logicalType": "decimal", "precision": 9}),
        ({**DECIMAL, "precision": 9}, "string"),
        (MILLIS, {"type": "long", "logicalType": "local-timestamp-millis"}),
    ],
    ids=str,
)
def test_numbers_that_mean_something_else_are_refused(decoder: type[Any], written: Any, wanted: Any) -> None:
    with pytest.raises(SchemaError, match="a: "):
        decoder(record(column(written)), table_record(column(wanted)))


@pytest.mark.parametrize("decoder", PAIR)
@pytest.mark.parametrize(
    ("written", "wanted", "body", "expected"),
    [
        (LONG_NANOS, "long", b"\x02", 1),
        ("long", LONG_NANOS, b"\x02", 1),
        ({"type": "int", "logicalType": "date"}, "long", b"\x02", 1),
        ({"type": "long", "logicalType": "timestamp-millis"}, "double", b"\x02", 1.0),
        ({**DECIMAL, "precision": 40}, {**DECIMAL, "precision": 50}, b"\4\0\1", b"\0\1"),
        ({**DECIMAL, "precision": 9}, {**DECIMAL, "precision": 4}, b"\2\1", Decimal(1)),
        (["null", {**INNER, "name": "Old"}], ["null", {**INNER, "name": "New"}], b"\2\2\2", INNER_1),
        ("long", "float", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\1", 9.223372036854775807e18),
    ],
    ids=str,
)
def test_what_means_the_same_is_read(
    decoder: type[Any], written: Any, wanted: Any, body: bytes, expected: Any
) -> None:
    assert decoded(decoder, column(written), column(wanted), [body]) == ([{"a": expected}], {})


@pytest.mark.parametrize("decoder", PAIR)
def test_the_alias_of_a_record_finds_its_branch(decoder: type[Any]) -> None:
    old, new, other = (column("long") | {"name": name} for name in ("Old", "New", "Other"))
    table = column(["null", other, {**new, "aliases": ["Old"]}])
    rows, faults = decoded(decoder, column(["null", old]), table, [b"\2\2", b"\0"])
    assert rows == [{"a": {"member0": None, "member1": {"a": 1}}}, {"a": None}]
    assert not faults


@pytest.mark.parametrize("decoder", PAIR)
def test_a_field_with_the_name_goes_before_one_with_the_alias(decoder: type[Any]) -> None:
    writer = column("long")
    table = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "b", "type": "long", "aliases": ["a"], "default": 7},
            {"name": "a", "type": "long"},
            {"name": "c", "type": "long", "aliases": ["a"], "default": 8},
        ],
    }
    assert decoded(decoder, writer, table, [b"\2"]) == ([{"b": 7, "a": 1, "c": 8}], {})


@pytest.mark.parametrize("decoder", PAIR)
@pytest.mark.parametrize(
    ("schema", "default", "expected"),
    [
        (["null", "long"], 4, 4),
        (["null", "long", "string"], "x", {"member0": None, "member1": "x"}),
        (["long", "null"], None, None),
        ({"type": "fixed", "name": "F", "size": 2}, "\u00ff\u0000", b"\xff\0"),
        ("double", 1, 1.0),
    ],
)
def test_a_default_is_of_the_first_type_of_a_union_that_it_fits(
    decoder: type[Any], schema: Any, default: Any, expected: Any
) -> None:
    table = column(schema, default=default)
    assert decoded(decoder, column("int", "other"), table, [b"\2"]) == ([{"a": expected}], {})


def test_a_record_inside_itself_is_a_column_of_json() -> None:
    assert arrow_type(parse(TREE)).field("next").type == pa.string()
    value = {"n": 1, "kids": [{"n": 2, "kids": [], "next": None}], "next": {"n": 3, "kids": [], "next": None}}
    deeper = {"n": 0, "kids": [value], "next": value}
    decoder = body_decoder(record(TREE), record(TREE))
    arrays, faults = decoder.decode(*in_one_buffer([encode(TREE, each) for each in (value, deeper)]))
    assert not faults
    rows = rows_of(arrays, TREE)
    for row, expected in zip(rows, (value, deeper), strict=True):
        assert row["n"] == expected["n"]
        assert [json.loads(each) for each in row["kids"]] == expected["kids"]
        assert json.loads(row["next"]) == expected["next"]


def test_json_holds_every_type() -> None:
    fields = {
        "raw": "bytes",
        "number": "double",
        "price": {**DECIMAL, "precision": 4, "scale": 2},
        "names": {"type": "map", "values": "string"},
        "either": ["null", "long", "string"],
        "inside": ["null", "R"],
    }
    schema = {"type": "record", "name": "R", "fields": [{"name": n, "type": t} for n, t in fields.items()]}
    inside = {
        "raw": b"\0\xff",
        "number": float("nan"),
        "price": Decimal("1.25"),
        "names": {"k": "ü"},
        "either": "x",
        "inside": None,
    }
    body = encode(schema, {**inside, "inside": inside})
    rows, faults = decoded(RowDecoder, schema, schema, [body])
    assert not faults
    assert json.loads(rows[0]["inside"]) == {
        "raw": "\0\xff",
        "number": "nan",
        "price": "1.25",
        "names": [["k", "ü"]],
        "either": {"member1": "x"},
        "inside": None,
    }


@pytest.mark.parametrize("aliases", [(), ("v1.A", "v1.B")])
def test_records_inside_themselves_are_told_apart_in_a_union(aliases: tuple[str, ...]) -> None:
    def nested(outer: str, inner: str, up: list[str], *aliases: str) -> dict[str, Any]:
        fields = [{"name": "up", "type": ["null", *up]}]
        b = {"type": "record", "name": inner, "fields": fields, "aliases": aliases[1:]}
        return {"type": "record", "name": outer, "fields": [{"name": "b", "type": b}], "aliases": aliases[:1]}

    names = ("v2.Outer", "v2.Inner") if aliases else ("v2.A", "v2.B")
    writer, table = nested("v1.A", "v1.B", ["v1.A", "v1.B"]), nested(*names, [*reversed(names)], *aliases)
    rows, faults = decoded(RowDecoder, writer, table, [b"\2\0", b"\4\0"])
    assert faults == {}
    assert [row["b"]["up"] for row in rows] == [
        {"member0": None, "member1": '{"b":{"up":null}}'},
        {"member0": '{"up":null}', "member1": None},
    ]


def test_a_record_inside_itself_that_the_table_does_not_have_is_passed_over() -> None:
    writer = {**TREE, "fields": [*TREE["fields"], {"name": "last", "type": "int"}]}
    table = {"type": "record", "name": "Tree", "fields": [{"name": "last", "type": "int"}]}
    body = b"\2" + b"\2\2\0\0\0" + b"\0" + b"\0" + b"\x0a"
    assert decoded(RowDecoder, writer, table, [body]) == ([{"last": 5}], {})


@pytest.mark.parametrize("levels", [MAX_DEPTH - 1, MAX_DEPTH, 1000, 300_000])
def test_records_too_deep_inside_themselves_are_rejected_and_nothing_else(levels: int) -> None:
    schema = {"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}
    rows, faults = decoded(RowDecoder, schema, schema, [b"\0", b"\2" * levels + b"\0", b"\0"])
    assert rows[0] == rows[-1] == {"next": None}
    assert (1 in faults) == (levels > MAX_DEPTH)
    assert set(faults) <= {1}


@pytest.mark.parametrize("decoder", PAIR)
@pytest.mark.parametrize(
    ("schema", "body"),
    [
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, b"\1"),
        (["null", "long"], b"\1\2"),
        ("boolean", b"\7"),
        ("long", b"\xff" * 9 + b"\2"),
        ("long", b"\x80" * 10 + b"\0"),
        ("long", b"\x80" * 300),
        ("int", b"\x80\x80\x80\x80\x10"),
        ("bytes", b"\1"),
        ("bytes", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\1a"),
        ("string", b"\4\xed\xa0"),
        ("null", b"\0"),
        ("double", b"1234567"),
        (FIXED_12, b"x" * 11),
    ],
    ids=str,
)
def test_both_decoders_are_equally_strict(decoder: type[Any], schema: Any, body: bytes) -> None:
    _, faults = decoded(decoder, column(schema), column(schema), [body])
    assert list(faults) == [0]


@pytest.mark.parametrize("decoder", PAIR)
@pytest.mark.parametrize(
    "case", [case for case in SCHEMAS if case.name in ("PageView", "every type")], ids=lambda case: case.name
)
def test_a_message_cut_off_anywhere_is_rejected_and_its_neighbours_are_not(
    decoder: type[Any], case: Case
) -> None:
    whole = encode(case.writer, case.value(random.Random(3)))
    bodies = [part for cut in range(len(whole)) for part in (whole[:cut], whole)]
    rows, faults = decoded(decoder, case.writer, case.table, bodies)
    assert sorted(faults) == list(range(0, 2 * len(whole), 2))
    assert len(rows) == len(whole)


@pytest.mark.parametrize(
    "body",
    [
        b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\1",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\1\0",
        b"\x02",
        b"\x80\x80\x80\x80\x20\2",
        b"\x04\x02\x02",
        b"\x01\x02",
    ],
    ids=str,
)
def test_blocks_of_more_items_than_there_are_bytes_are_rejected_at_once(body: bytes) -> None:
    for items in ("long", {"type": "map", "values": "long"}, ["null", "long"]):
        schema = column({"type": "array", "items": items})
        _, faults = decoded(RowDecoder, schema, schema, [body])
        assert list(faults) == [0]


POINT = {"type": "record", "name": "Point", "fields": [{"name": "x", "type": "int"}]}
POINT_OF_TWO = {**POINT, "fields": [*POINT["fields"], {"name": "y", "type": "int", "default": 0}]}


@pytest.mark.parametrize(
    ("written", "wanted", "item", "most"),
    [
        ({"type": "array", "items": "int"}, {"type": "array", "items": "int"}, 1, 1000),
        ({"type": "array", "items": POINT}, {"type": "array", "items": POINT_OF_TWO}, {"x": 1}, 200),
        ({"type": "map", "values": "int"}, {"type": "map", "values": "int"}, 1, 250),
        ({"type": "array", "items": TREE}, {"type": "array", "items": TREE}, {"n": 1, "kids": []}, 166),
    ],
    ids=str,
)
def test_a_message_of_too_many_values_is_rejected_and_its_neighbours_are_not(
    monkeypatch: pytest.MonkeyPatch, written: Any, wanted: Any, item: Any, most: int
) -> None:
    monkeypatch.setattr("millrace_avro.rows.MAX_VALUES", 1000)
    if written["type"] == "map":
        values: list[Any] = [{f"k{number}": item for number in range(count)} for count in (most, most + 1)]
    else:
        values = [[item] * count for count in (most, most + 1)]
    bodies = [encode(column(written), {"a": value}) for value in (*values, values[0])]
    rows, faults = decoded(RowDecoder, column(written), column(wanted), bodies)
    assert [len(row["a"]) for row in rows] == [most, most]
    assert list(faults) == [1]
    assert "a: more than 1,000 values in one message; send fewer items in each" in faults[1].replace("[]", "")


def test_records_inside_themselves_count_as_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace_avro.rows.MAX_VALUES", 1000)
    kid = {"n": 1, "kids": []}
    bodies = [encode(TREE, {"n": 0, "kids": [kid] * count}) for count in (142, 143)]
    rows, faults = decoded(RowDecoder, TREE, TREE, bodies)
    assert len(rows) == 1
    assert list(faults) == [1]


def test_the_values_of_many_messages_are_not_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = column({"type": "array", "items": POINT})
    values = [{"a": [{"x": row}] * 500} for row in range(100)]
    bodies = [b"broken", *[encode(schema, value) for value in values], b""]
    decoder, buffer = RowDecoder(record(schema), table_record(schema)), in_one_buffer(bodies)

    def decode(values_at_once: int) -> tuple[list[pa.Array], list[int], int]:
        monkeypatch.setattr("millrace_avro.rows.SLICE_VALUES", values_at_once)
        tracemalloc.start()
        arrays, faults = decoder.decode(*buffer)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return arrays, list(faults.reasons), peak

    arrays, faults, most = decode(1 << 30)
    again, same, less = decode(10_000)
    assert arrays == again
    assert rows_of(arrays, schema) == values
    assert faults == same == [0, 101]
    assert less < most / 3


def test_a_block_with_its_size_in_bytes_is_read() -> None:
    schema = column({"type": "array", "items": "long"})
    assert decoded(RowDecoder, schema, schema, [b"\3\4\2\4\2\6\0"]) == ([{"a": [1, 2, 3]}], {})


@pytest.mark.parametrize("decoder", PAIR)
def test_a_record_without_fields_says_whether_it_is_there(decoder: type[Any]) -> None:
    fields = [
        {"name": "e", "type": EMPTY},
        {"name": "maybe", "type": ["null", "Empty"]},
        {"name": "either", "type": ["null", "long", "Empty"]},
        {"name": "inside", "type": column("null") | {"name": "Inside"}},
        {"name": "new", "type": "Empty", "default": {}},
    ]
    table = {"type": "record", "name": "R", "fields": fields}
    writer = {**table, "fields": fields[:-1]}
    there = {"e": True, "inside": True, "new": True}
    rows = [
        {**there, "maybe": True, "either": {"member0": None, "member1": True}},
        {**there, "maybe": None, "either": {"member0": 3, "member1": None}},
        {**there, "maybe": None, "either": None},
    ]
    assert decoded(decoder, writer, table, [b"\2\4", b"\0\2\6", b"\0\0"]) == (rows, {})
    assert decoded(decoder, writer, column("int", default=4), [b"\2\4"]) == ([{"a": 4}], {})
    assert decoded(decoder, column("long", "e"), column("long", "e"), [b"\2"]) == ([{"e": 1}], {})


@pytest.mark.parametrize("decoder", PAIR)
def test_a_record_with_fields_is_read_as_one_without_any(decoder: type[Any]) -> None:
    full = {"type": "record", "name": "Empty", "fields": [{"name": "x", "type": "string"}]}
    assert decoded(decoder, column(full), column(EMPTY), [b"\2x"]) == ([{"a": True}], {})
    _, faults = decoded(decoder, column(full), column(EMPTY), [b"\4x"])
    assert list(faults) == [0]


@pytest.mark.parametrize("decoder", PAIR)
def test_what_can_only_be_null_is_no_column_at_any_depth(decoder: type[Any]) -> None:
    kinds = {"x": "null", "y": "int", "z": ["null"]}
    fields = [{"name": name, "type": kind} for name, kind in kinds.items()]
    inner = {"type": "record", "name": "Inner", "fields": fields}
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "a", "type": "null"},
            {"name": "b", "type": inner},
            {"name": "c", "type": ["null"]},
            {"name": "d", "type": ["null", "string", "Inner"]},
        ],
    }
    row = {"b": {"y": 1}, "d": {"member0": None, "member1": {"y": 2}}}
    assert decoded(decoder, schema, schema, [b"\2\0\0\4\4\0"]) == ([row], {})
    later = {**schema, "fields": [{"name": "c", "type": ["null", "string"]}]}
    assert decoded(decoder, schema, later, [b"\2\0\0\4\4\0"]) == ([{"c": None}], {})


def test_nulls_in_arrays_and_maps_are_booleans() -> None:
    fields = [
        {"name": "a", "type": {"type": "array", "items": ["null"]}},
        {"name": "m", "type": {"type": "map", "values": "null"}},
        {"name": "e", "type": {"type": "map", "values": EMPTY}},
    ]
    schema = {"type": "record", "name": "R", "fields": fields}
    types = [str(field.type) for field in arrow_fields(table_record(schema))]
    assert types == ["list<element: bool>", "map<string, bool>", "map<string, bool>"]
    rows, faults = decoded(RowDecoder, schema, schema, [b"\4\0\0\0" + b"\2\2k\0" + b"\2\2k\0"])
    assert (rows, faults) == ([{"a": [None, None], "m": [("k", None)], "e": [("k", True)]}], {})


@pytest.mark.parametrize("decoder", PAIR)
@pytest.mark.parametrize("size", [0, 1, 16, 20, 100])
def test_bytes_of_one_size_are_a_column_of_that_size(decoder: type[Any], size: int) -> None:
    schema = column(["null", {"type": "fixed", "name": "F", "size": size}])
    values = [bytes([number]) * size for number in range(3)]
    bodies = [b"\2" + values[0], b"\0", b"\2" + values[1], b"\2" + values[2]]
    rows, faults = decoded(decoder, schema, schema, bodies)
    assert (rows, faults) == ([{"a": value} for value in (values[0], None, *values[1:])], {})
    if size:
        cut = b"\2" + values[0][:-1]
        for order in ([cut], [*bodies, cut], [cut, *bodies]):
            rows, faults = decoded(decoder, schema, schema, order)
            assert (len(rows), list(faults)) == (len(order) - 1, [order.index(cut)])


@pytest.mark.parametrize("decoder", PAIR)
def test_branches_of_the_same_short_name_are_told_apart_without_their_nulls(decoder: type[Any]) -> None:
    one, two = (
        {**column(kind), "name": "X", "namespace": space} for kind, space in (("int", "a"), ("string", "b"))
    )
    for branch in (one, two):
        branch["fields"] = [*branch["fields"], {"name": "nothing", "type": "null"}]
    schema = column(["null", one, two])
    rows, faults = decoded(decoder, schema, schema, [b"\4\2x"])
    assert (rows, faults) == ([{"a": {"member0": None, "member1": {"a": "x"}}}], {})
