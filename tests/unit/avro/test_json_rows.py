"""JSON objects to columns: each type, the reasons of faults, unknown fields, the rows of the Avro path."""

from __future__ import annotations

import base64
import json
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from millrace_avro import json_rows
from millrace_avro.json_rows import JsonDecoder
from millrace_avro.rows import RowDecoder
from millrace_avro.schema import Array, Enum, Fixed, Leaf, Map, Node, Record, SchemaError, Union
from tests.unit.avro.avro_cases import (
    comparable,
    encode,
    in_one_buffer,
    messages,
    record,
    rows_of,
    table_record,
)

NOON = datetime(2026, 11, 27, 12, 0, 0, 5000, UTC)
LOCAL_NOON = NOON.replace(tzinfo=None)
NOON_MS = 1_795_780_800_005


def schema_of(type_: Any, **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": "a", "type": type_, **more}]}


def decoded(schema: Any, *values: bytes) -> tuple[list[Any], dict[int, str]]:
    """The good rows, and the reasons of the other rows."""
    arrays, faults = JsonDecoder(table_record(schema)).decode(*in_one_buffer(list(values)))
    for array in arrays:
        array.validate(full=True)
    return rows_of(arrays, schema), faults.reasons


def a(value: Any) -> bytes:
    return json.dumps({"a": value}).encode()


def logical(type_: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": type_, "logicalType": name, **more}


ISO = {"millrace.json": "iso"}
INNER = {"type": "record", "name": "I", "fields": [{"name": "b", "type": ["null", "int"]}]}
FIXED = {"type": "fixed", "name": "F", "size": 2}
MONEY = logical("bytes", "decimal", precision=4, scale=2)


@pytest.mark.parametrize(
    ("type_", "value", "column"),
    [
        ("boolean", True, True),
        ("string", "é", "é"),
        ({"type": "string", "millrace.json": "text"}, "x", "x"),
        ({"type": "string", "millrace.json": "text"}, {"x": [1, None]}, '{"x":[1,null]}'),
        (["null", {"type": "string", "millrace.json": "text"}], None, None),
        ("int", -(1 << 31), -(1 << 31)),
        ("long", (1 << 63) - 1, (1 << 63) - 1),
        ("float", 1, 1.0),
        ("double", 0.1, 0.1),
        ("double", 7, 7.0),
        (logical("long", "timestamp-millis"), NOON_MS, NOON),
        (logical("long", "timestamp-micros"), NOON_MS * 1000, NOON),
        (logical("long", "timestamp-millis", **ISO), "2026-11-27T13:00:00.005+01:00", NOON),
        (logical("long", "timestamp-micros", **ISO), "2026-11-27 12:00:00.005", NOON),
        (logical("long", "local-timestamp-micros", **ISO), "2026-11-27T12:00:00.005", LOCAL_NOON),
        (logical("int", "time-millis"), 5, 5),
        (logical("int", "date"), "2026-11-27", date(2026, 11, 27)),
        (MONEY, "1.10", Decimal("1.10")),
        (MONEY, -12, Decimal("-12.00")),
        (MONEY, "+.5e1", Decimal("5.00")),
        (["null", MONEY], None, None),
        ({"type": "array", "items": ["null", MONEY]}, [None, "1"], [None, Decimal("1.00")]),
        ("bytes", "aGk=", b"hi"),
        (FIXED, "aGk=", b"hi"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
        (INNER, {"b": 1}, {"b": 1}),
        (INNER, {}, {"b": None}),
        ({"type": "array", "items": INNER}, [{"b": 1}, {}], [{"b": 1}, {"b": None}]),
        ({"type": "map", "values": ["null", "int"]}, {"x": 1, "y": None}, [("x", 1), ("y", None)]),
        (["null", INNER], None, None),
        (["null", {"type": "array", "items": "int"}], None, None),
        (["null", {"type": "map", "values": "int"}], None, None),
        (["int", "null"], 3, 3),
    ],
)
def test_each_type_has_its_form_in_json(type_: Any, value: Any, column: Any) -> None:
    assert decoded(schema_of(type_), a(value)) == ([{"a": column}], {})


@pytest.mark.parametrize(
    ("type_", "value", "reason"),
    [
        ("boolean", 1, "a: Expected bool, got int"),
        ("string", 1, "a: Expected string, got int"),
        ("int", 1 << 31, "a: Expected int <= 2147483647"),
        ("long", 1 << 63, "a: Expected int <= 9223372036854775807"),
        ("long", 1.0, "a: Expected int, got float"),
        ("double", "1", "a: Expected float, got string"),
        ("float", 1e39, "a: Expected float <= 3.4028234663852886e+38"),
        (logical("long", "timestamp-millis"), "2026-11-27T13:00:00Z", "a: Expected int, got string"),
        (logical("long", "timestamp-millis"), 1 << 60, "a: Expected int <= 253402300799999"),
        (logical("long", "timestamp-millis", **ISO), 5, "a: Expected string, got int"),
        (logical("long", "timestamp-millis", **ISO), "secret", "a: Invalid RFC3339 encoded datetime"),
        (
            logical("long", "timestamp-millis", **ISO),
            "0001-01-01T00:00:00+02:00",
            "a: out of range for timestamp-millis",
        ),
        (
            logical("long", "local-timestamp-millis", **ISO),
            "2026-11-27T13:00:00Z",
            "a: Expected datetime with no timezone component",
        ),
        (logical("int", "date"), 1, "a: Expected date, got int"),
        (MONEY, "1.105", "a: a decimal of more than 2 decimal places"),
        (MONEY, 100, "a: a decimal of more than 4 digits"),
        (MONEY, "NaN", "a: not a number"),
        (MONEY, "1_0", "a: not a number"),
        (MONEY, " 1.5 ", "a: not a number"),
        (MONEY, "٣", "a: not a number"),
        (MONEY, "", "a: not a number"),
        (MONEY, "1e99999999999999999999", "a: not a number"),
        (MONEY, True, "a: not a number"),
        (MONEY, None, "a: not a number"),
        (["null", MONEY], [], "a: not a number"),
        (MONEY, "1e999999", "a: a decimal of more than 4 digits"),
        ("bytes", "secret!", "a: Invalid base64 encoded string"),
        (FIXED, "aGkh", "a: Expected bytes of length <= 2"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "secret", "a: none of the enum's symbols"),
        (INNER, {"b": "x"}, "a.b: Expected int | null, got string"),
        ({"type": "array", "items": INNER}, [{}, {"b": "x"}], "a[1].b: Expected int | null, got string"),
        ({"type": "array", "items": MONEY}, [1, 2.345], "a[...]: a decimal of more than 2 decimal places"),
        ({"type": "map", "values": "int"}, {"secret": "x"}, "a[...]: Expected int, got string"),
        ("int", None, "a: Expected int, got null"),
    ],
)
def test_a_value_of_another_type_is_rejected_with_its_path_and_is_not_quoted(
    type_: Any, value: Any, reason: str
) -> None:
    schema = schema_of(type_)
    rows, reasons = decoded(schema, a(value))
    assert (rows, reasons) == ([], {0: reason})


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("12345678901234.123456789", "12345678901234.123456789"),
        ("79228162514264337593543950335.5", "79228162514264337593543950335.5"),
        ('{"amount": [9007199254740993.0, 1E400]}', '{"amount":[9007199254740993.0,1E400]}'),
        ("1" * 5_000, "1" * 5_000),
        ('{"é": "\\u00e9"}', '{"é":"\\u00e9"}'),
        ('"\\u00e9 \\"x\\""', 'é "x"'),
        ('"null"', "null"),
        ("null", None),
        ("true", "true"),
    ],
)
def test_json_as_text_keeps_every_digit_of_its_numbers(written: str, text: str | None) -> None:
    as_text = {"type": "string", "millrace.json": "text"}
    value = f'{{"a": {written} }}'.encode()
    for type_ in (as_text, ["null", as_text]):
        assert decoded(schema_of(type_), value) == ([{"a": text}], {})
    items = {"type": "array", "items": ["null", as_text]}
    assert decoded(schema_of(items), b'{"a":[%s]}' % written.encode()) == ([{"a": [text]}], {})
    assert decoded(schema_of(as_text, default="x"), value, b"{}") == ([{"a": text}, {"a": "x"}], {})


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize(
    ("fraction", "micros"),
    [(".9999999", 999_999), (".1234567", 123_456), (".999999999999", 999_999), (".5", 500_000), ("", 0)],
)
def test_more_than_six_digits_of_a_second_are_cut_so_that_no_time_moves_into_the_next_hour(
    fraction: str, micros: int, local: bool
) -> None:
    type_ = logical("long", f"{'local-' * local}timestamp-micros", **ISO)
    for year in (1901, 2026):
        time = datetime(year, 11, 27, 13, 59, 59, micros, None if local else UTC)
        written = f"{year}-11-27T13:59:59{fraction}"
        values = [written] if local else [written, written + "Z", written + "+00:00", written + "-00:00"]
        rows, reasons = decoded(schema_of(["null", type_]), *map(a, values), a(None))
        assert (rows, reasons) == ([*[{"a": time}] * len(values), {"a": None}], {})


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "Input data was truncated"),
        (b"{", "Input data was truncated"),
        (b'{"a":1}{', "JSON is malformed: trailing characters (byte 8)"),
        (b"[1]", "Expected object, got array"),
        (b"null", "Expected object, got null"),
        (b"{}", "Object missing required field a"),
        (b'{"a":NaN}', "JSON is malformed: invalid character (byte 5)"),
        (b'{"a":1,"x":' + b"[" * 100_000, "objects or arrays inside each other too deeply"),
    ],
)
def test_what_is_no_object_of_the_schema_is_rejected(value: bytes, reason: str) -> None:
    rows, reasons = decoded(schema_of("int"), a(1), value, a(2))
    assert (rows, reasons) == ([{"a": 1}, {"a": 2}], {1: reason})


def test_faults_have_the_numbers_of_their_rows_among_many_messages() -> None:
    values = [a(number) for number in range(2500)]
    broken = (999, 1000, 2499)
    for row in broken:
        values[row] = b"{"
    rows, reasons = decoded(schema_of("int"), *values)
    assert reasons == dict.fromkeys(broken, "Input data was truncated")
    assert [row["a"] for row in rows] == [number for number in range(2500) if number not in broken]


def test_values_that_no_column_can_hold_have_the_numbers_of_their_rows_among_many_messages() -> None:
    values = [a("1.10")] * 2500
    broken = (0, 998, 999, 1000, 2499)
    for row in broken:
        values[row] = a("1.105")
    rows, reasons = decoded(schema_of(MONEY), *values)
    assert reasons == dict.fromkeys(broken, "a: a decimal of more than 2 decimal places")
    assert rows == [{"a": Decimal("1.10")}] * (2500 - len(broken))


@given(
    st.lists(
        st.from_regex(r"[+-]?([0-9]{0,5}(\.[0-9]{0,4})?|[0-9](\.[0-9])?e-?[0-9])", fullmatch=True), max_size=5
    ),
    st.sampled_from([(4, 2), (4, 4), (4, 0), (38, 3)]),
)
def test_a_decimal_is_read_if_and_only_if_its_column_holds_it(
    texts: list[str], sizes: tuple[int, int]
) -> None:
    precision, scale = sizes
    money = logical("bytes", "decimal", precision=precision, scale=scale)
    held: list[Decimal] = []
    for text in texts:
        try:
            number = Decimal(text)
        except InvalidOperation:
            continue
        exponent = number.as_tuple().exponent
        assert isinstance(exponent, int)
        if -exponent <= scale and abs(number) < Decimal(10) ** (precision - scale):
            held.append(number)
    rows, reasons = decoded(schema_of(money), *map(a, texts))
    assert [row["a"] for row in rows] == held
    assert len(reasons) == len(texts) - len(held)


def test_text_that_is_no_utf8_is_rejected() -> None:
    for type_ in ("string", {"type": "string", "millrace.json": "text"}):
        for value in (b'{"a":"\xff"}', b'{"a":["\xff"]}')[: 1 if type_ == "string" else 2]:
            assert decoded(schema_of(type_), value) == ([], {0: "not UTF-8"})


def test_absent_fields_have_their_default_and_the_last_of_two_values_wins() -> None:
    for type_, default, column in (
        ("int", 7, 7),
        ("bytes", "\xff", b"\xff"),
        (logical("long", "timestamp-millis"), NOON_MS, NOON),
        (INNER, {"b": 1}, {"b": 1}),
        ({"type": "map", "values": "int"}, {"x": 1}, [("x", 1)]),
        (["null", "int"], None, None),
    ):
        schema = schema_of(type_, default=default)
        rows, reasons = decoded(schema, b"{}", b"{}")
        assert (rows, reasons) == ([{"a": column}] * 2, {})
    assert decoded(schema_of("int", default=7), b'{"a":1}', b"{}", b'{"a":2,"a":3}')[0] == [
        {"a": 1},
        {"a": 7},
        {"a": 3},
    ]


def test_a_field_whose_name_is_no_avro_name_is_mapped() -> None:
    schema = schema_of("int", **{"millrace.name": "ship-to"})
    assert decoded(schema, b'{"ship-to":1}', b'{"ship-to":"x"}', b"{}") == (
        [{"a": 1}],
        {1: "ship-to: Expected int, got string", 2: "Object missing required field ship-to"},
    )


@pytest.mark.parametrize(
    ("type_", "why"),
    [
        (["int", "string"], "a: a union of several types has no form in JSON"),
        ({"type": "array", "items": ["null", "int", "string"]}, r"a\[...\]: a union of several types"),
        (["null", "R"], "a: a record inside itself has no form in JSON"),
    ],
)
def test_types_without_a_form_in_json_are_refused(type_: Any, why: str) -> None:
    with pytest.raises(SchemaError, match=why):
        JsonDecoder(table_record(schema_of(type_)))


def test_fields_that_no_column_takes_are_counted_in_one_message_of_a_hundred_and_in_rejected_ones() -> None:
    decoder = JsonDecoder(table_record(schema_of({"type": "array", "items": INNER})))
    values = [b'{"a":[{"b":1,"c":2},{"c":3}],"x":1}'] * 201
    values[50] = b'{"a":5,"y":1}'
    decoder.decode(*in_one_buffer(values))
    assert decoder.unknown == {"a.c": 3, "x": 3, "y": 1}
    decoder.decode(*in_one_buffer([json.dumps({"a": [], **{f"n{n}": 1 for n in range(50)}}).encode()]))
    assert len(decoder.unknown) == 20


def test_many_empty_objects_of_a_wide_record_are_decoded_in_parts_and_refused_above_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(json_rows, "SLICE_VALUES", 5)
    monkeypatch.setattr(json_rows, "MAX_VALUES", 10)
    schema = schema_of({"type": "array", "items": INNER})
    values = [a([{}] * size) for size in (1, 9, 3, 10, 0, 4)]
    rows, reasons = decoded(schema, *values, b"{")
    assert [len(row["a"]) for row in rows] == [1, 9, 3, 0, 4]
    assert reasons == {
        3: "more than 10 values in one message; send fewer objects in each",
        6: "Input data was truncated",
    }


def as_json(node: Node, value: Any) -> Any:
    """fastavro's value as a producer of JSON would write it."""
    if isinstance(node, Union):
        return None if value is None else as_json(node.members[0], value)
    if isinstance(node, Record):
        return {field.name: as_json(field.type, value[field.name]) for field in node.fields}
    if isinstance(node, Array):
        return [as_json(node.items, item) for item in value]
    if isinstance(node, Map):
        return {key: as_json(node.values, item) for key, item in value.items()}
    if isinstance(node, Enum):
        return value
    assert isinstance(node, Leaf | Fixed)
    return _plain_as_json(node, value)


def _plain_as_json(node: Leaf | Fixed, value: Any) -> Any:
    if isinstance(value, bytes):
        if isinstance(node, Fixed) and node.logical == "uuid":
            return value.hex()
        return base64.b64encode(value).decode()
    if isinstance(value, float):
        assume(math.isfinite(value))
    if isinstance(value, datetime) and node.logical is not None:
        whole = (value.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        return whole // 1000 if "millis" in node.logical else whole
    if hasattr(value, "hour"):
        micros_of_day = ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
        return micros_of_day // 1000 if node.kind == "int" else micros_of_day
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def _is_simple(node: Node) -> bool:
    """JSON has a form for the type."""
    if isinstance(node, Record):
        return all(_is_simple(field.type) for field in node.fields)
    if isinstance(node, Union):
        return node.is_optional and all(map(_is_simple, node.branches))
    if isinstance(node, Array | Map):
        return _is_simple(node.items if isinstance(node, Array) else node.values)
    return True


@given(st.lists(st.binary(max_size=30) | st.text('{}[]":,a1.eE-+\\u nulltrf', max_size=30).map(str.encode)))
def test_whatever_the_bytes_are_each_message_is_a_row_or_has_a_reason(values: list[bytes]) -> None:
    schema = schema_of(["null", {"type": "array", "items": ["null", "string"]}])
    rows, reasons = decoded(schema, *values)
    assert len(rows) + len(reasons) == len(values)


@given(messages(blocks=True))
def test_json_of_avro_values_gives_the_rows_of_the_avro_path(case: tuple[Any, list[Any]]) -> None:
    schema, values = case
    writer = record(schema)
    assume(_is_simple(writer))
    avro_arrays, faults = RowDecoder(writer, table_record(schema)).decode(
        *in_one_buffer([encode(schema, value) for value in values])
    )
    assert not faults
    written = [json.dumps(as_json(writer, value), ensure_ascii=False).encode() for value in values]
    json_arrays, faults = JsonDecoder(table_record(schema)).decode(*in_one_buffer(written))
    assert not faults, faults.reasons
    for mine, theirs in zip(json_arrays, avro_arrays, strict=True):
        mine.validate(full=True)
        assert mine.type == theirs.type
    assert comparable(rows_of(json_arrays, schema)) == comparable(rows_of(avro_arrays, schema))
