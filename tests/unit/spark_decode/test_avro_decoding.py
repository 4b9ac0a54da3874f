"""Decoded columns against fastavro, over schemas and values that Hypothesis makes up."""

from __future__ import annotations

import io
from typing import Any

import fastavro
import pyarrow as pa
from hypothesis import HealthCheck, given, settings

from millrace_spark.avro_decoder import ColumnDecoder, body_decoder
from millrace_spark.avro_rows import RowDecoder
from millrace_spark.avro_schema import Record, arrow_type, parse
from tests.unit.spark_decode.avro_cases import comparable, encode, in_one_buffer, messages, rows_of, shown


def record(schema: Any) -> Record:
    node = parse(schema)
    assert isinstance(node, Record)
    return node


def read_with_fastavro(schema: Any, body: bytes) -> Any:
    return fastavro.schemaless_reader(io.BytesIO(body), fastavro.parse_schema(schema), None)


def check(decoder: ColumnDecoder | RowDecoder, schema: Any, values: list[Any]) -> None:
    bodies = [encode(schema, value) for value in values]
    arrays, faults = decoder.decode(*in_one_buffer(bodies))
    assert faults.reasons == {}
    assert [array.type for array in arrays] == [field.type for field in arrow_type(record(schema))]
    for array in arrays:
        array.validate(full=True)
    expected = [shown(record(schema), read_with_fastavro(schema, body)) for body in bodies]
    assert comparable(rows_of(arrays, schema)) == comparable(expected)


@given(messages())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_columns_show_what_fastavro_reads(case: tuple[Any, list[Any]]) -> None:
    schema, values = case
    decoder = body_decoder(record(schema), record(schema))
    assert isinstance(decoder, ColumnDecoder)
    check(decoder, schema, values)


@given(messages(blocks=True))
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_rows_show_what_fastavro_reads(case: tuple[Any, list[Any]]) -> None:
    schema, values = case
    check(RowDecoder(record(schema), record(schema)), schema, values)


def test_no_messages_give_no_rows() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "string"]}]}
    for decoder in (
        ColumnDecoder(record(schema), record(schema)),
        RowDecoder(record(schema), record(schema)),
    ):
        arrays, faults = decoder.decode(*in_one_buffer([]))
        assert not faults
        assert arrays == [pa.array([], pa.string())]
