"""Decoded columns against fastavro, over schemas and values that Hypothesis makes up."""

from __future__ import annotations

import io
from decimal import Context
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

from millrace_avro.rows import RowDecoder
from millrace_avro.schema import Record, arrow_fields
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


def read_with_fastavro(schema: Any, body: bytes) -> Any:
    return fastavro.schemaless_reader(io.BytesIO(body), fastavro.parse_schema(schema), None)


def check(decoder: ColumnDecoder | RowDecoder, schema: Any, values: list[Any]) -> None:
    bodies = [encode(schema, value) for value in values]
    arrays, faults = decoder.decode(*in_one_buffer(bodies))
    assert faults.reasons == {}
    assert [array.type for array in arrays] == [field.type for field in arrow_fields(table_record(schema))]
    for array in arrays:
        array.validate(full=True)
    expected = [shown(table_record(schema), read_with_fastavro(schema, body)) for body in bodies]
    if arrays:
        assert comparable(rows_of(arrays, schema)) == comparable(expected)


@given(messages())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_columns_and_rows_show_what_fastavro_reads(case: tuple[Any, list[Any]]) -> None:
    schema, values = case
    decoder = body_decoder(record(schema), table_record(schema))
    assert isinstance(decoder, ColumnDecoder)
    check(decoder, schema, values)
    check(RowDecoder(record(schema), table_record(schema)), schema, values)


@given(messages(blocks=True))
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_rows_show_what_fastavro_reads(case: tuple[Any, list[Any]]) -> None:
    schema, values = case
    check(RowDecoder(record(schema), table_record(schema)), schema, values)


def test_no_messages_give_no_rows() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "string"]}]}
    for decoder in (
        ColumnDecoder(record(schema), record(schema)),
        RowDecoder(record(schema), table_record(schema)),
    ):
        arrays, faults = decoder.decode(*in_one_buffer([]))
        assert not faults
        assert arrays == [pa.array([], pa.string())]


def one_column(schema: Any) -> Record:
    return record({"type": "record", "name": "R", "fields": [{"name": "a", "type": schema}]})


def sized(raw: bytes) -> bytes:
    return encode({"type": "record", "name": "R", "fields": [{"name": "a", "type": "bytes"}]}, {"a": raw})


@pytest.mark.parametrize("decoder", [ColumnDecoder, RowDecoder])
@pytest.mark.parametrize("precision", [1, 2, 9, 18, 19, 20, 37, 38])
def test_decimals_fill_their_precision_and_no_more(decoder: type[Any], precision: int) -> None:
    column = one_column({"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": 1})
    most = 10**precision - 1
    numbers = [
        0,
        1,
        -1,
        9,
        -9,
        most,
        -most,
        most + 1,
        -most - 1,
        1 << 127,
        -(1 << 127),
        1 << 200,
        -(1 << 200),
    ]
    bodies = [sized(n.to_bytes(length, "big", signed=True)) for n in numbers for length in (27, 40)]
    bodies += [sized(n.to_bytes((n.bit_length() + 8) // 8, "big", signed=True)) for n in numbers]
    arrays, faults = decoder(column, column).decode(*in_one_buffer([sized(b""), *bodies]))
    fit = [n for n in numbers if abs(n) <= most]
    expected = [0, *[n for n in fit for _ in range(2)], *fit]
    assert [int(value.scaleb(1, Context(prec=60))) for value in arrays[0].to_pylist()] == expected
    assert len(faults.reasons) == len(bodies) + 1 - len(expected)
    assert all("digits" in reason for reason in faults.reasons.values())


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ("boolean", [b"\0", b"\1"], [b"\2", b"\xff", b""]),
        ("int", [b"\xff\xff\xff\xff\x0f", b"\xfe\xff\xff\xff\x0f"], [b"\x80\x80\x80\x80\x10"]),
        ("float", [b"1234"], [b"123", b"12345"]),
        ("null", [b""], [b"\0"]),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, [b"\0", b"\2"], [b"\4", b"\1", b"\x80"]),
        (["null", "long"], [b"\0", b"\2\2"], [b"\4", b"\1", b"\2", b"\0\0"]),
        ("string", [b"\4" + "é".encode(), b"\0"], [b"\2\xff", b"\6\xed\xa0\x80", b"\4\xc0\x80", b"\1"]),
        ({"type": "int", "logicalType": "date"}, [b"\0"], [b"\xfe\xff\xff\xff\x0f"]),
    ],
    ids=str,
)
def test_the_smallest_violations_are_found_in_their_own_row(
    schema: Any, good: list[bytes], bad: list[bytes]
) -> None:
    column = one_column(schema)
    for wrong in bad:
        arrays, faults = ColumnDecoder(column, column).decode(*in_one_buffer([*good, wrong, *good]))
        assert list(faults.reasons) == [len(good)], wrong
        assert arrays[0].to_pylist()[: len(good)] == arrays[0].to_pylist()[len(good) :]


def test_broken_text_in_several_columns_costs_only_its_rows() -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": name, "type": "string"} for name in ("a", "b")],
    }
    rows = [b"\2x\2y", b"\2\xff\2y", b"\2x\2\xff", b"\2\xff\2\xff", b"\2x", b"\2x\2z"]
    arrays, faults = ColumnDecoder(record(schema), record(schema)).decode(*in_one_buffer(rows))
    assert [array.to_pylist() for array in arrays] == [["x", "x"], ["y", "z"]]
    assert sorted(faults.reasons) == [1, 2, 3, 4]
    assert faults.reasons[3] == "a: not UTF-8"


DATE = {"type": "int", "logicalType": "date"}


@pytest.mark.parametrize("decoder", [ColumnDecoder, RowDecoder])
@pytest.mark.parametrize(
    ("writer", "table", "body", "value"),
    [
        ("int", "int", b"\x80\x80\x80\x80\x10", "2147483648"),
        (DATE, DATE, b"\xfe\xff\xff\xff\x0f", "2147483647"),
        (
            {"type": "enum", "name": "E", "symbols": ["A", "JANE"]},
            {"type": "enum", "name": "E", "symbols": ["A"]},
            b"\2",
            "JANE",
        ),
    ],
    ids=str,
)
def test_no_reason_quotes_a_value_for_it_stays_when_the_bytes_are_erased(
    decoder: type[Any], writer: Any, table: Any, body: bytes, value: str
) -> None:
    _, faults = decoder(one_column(writer), one_column(table)).decode(*in_one_buffer([body]))
    assert list(faults.reasons) == [0]
    assert value not in faults.reasons[0]


@pytest.mark.parametrize(
    "kind", [{"type": "array", "items": "long"}, {"type": "map", "values": "long"}], ids=str
)
def test_a_count_of_items_may_be_a_value_of_another_schema_and_is_not_quoted(kind: Any) -> None:
    member = 7_311_987_654_321_012_345
    body = encode({"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}, {"a": member})
    _, faults = RowDecoder(one_column(kind), one_column(kind)).decode(*in_one_buffer([body]))
    assert str(member) not in faults.reasons[0]
    assert "reaches past the end of the message" in faults.reasons[0]
