"""The columns of the data source: types that Spark's JVM takes from Arrow, whatever the table has."""

from __future__ import annotations

import re
import struct
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from millrace.errors import ConfigError, MillraceError
from millrace.records import HEADER_BYTES, BatchHeader, Message, batch_crc, build_batch
from millrace_spark.source.options import parse_options
from millrace_spark.source.rows import CORRUPT_FIELDS, RowReader
from millrace_spark.source.schema import table_schema
from millrace_warehouse.log.ranges import Cut, Range, RangeStats
from millrace_warehouse.log.reading import FetchedBatches
from tests.unit.avro.fuzz_cases import BLOCKS, COLUMNS, INNER

UUID = {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}
EVERY = COLUMNS | {name: type_ for name, type_ in BLOCKS.items() if name not in COLUMNS}
EVERY |= {
    "perhaps": ["null", "Inner"],
    "parts": {"type": "array", "items": "Inner"},
    "kinds": {"type": "map", "values": "Kind"},
    "ids": {"type": "array", "items": {"type": "map", "values": UUID}},
    "inside": {"type": "record", "name": "Inside", "fields": [{"name": "id", "type": "U"}]},
    "nobody": {"type": "record", "name": "Nobody", "fields": []},
}


def record(**fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": n, "type": t} for n, t in fields.items()]}


def reader(table: dict[str, Any], **options: str) -> RowReader:
    needed = {"bootstrap": "localhost:9092", "subscribe": "T", "registry.url": "http://r"}
    return RowReader(parse_options(needed | options), table)


@pytest.mark.parametrize("mode", ["failfast", "permissive"])
def test_every_column_has_the_type_that_spark_asks_for(mode: str) -> None:
    assert EVERY["inner"] is INNER
    schema = reader(record(**EVERY), mode=mode).arrow_schema
    assert to_arrow_schema(from_arrow_schema(schema), timezone="UTC").equals(schema)
    assert schema.field("id").type == schema.field("span").type == pa.binary()
    assert "nothing" not in schema.names
    own = ["_topic_partition", "_offset", "_timestamp", "_key", "_schema_id", "_instance", "_sequence"]
    corrupt = ["_corrupt_record", "_corrupt_reason"] if mode == "permissive" else []
    assert schema.names[-len([*own, *corrupt]) :] == [*own, *corrupt]
    assert not {"_time", "_load", "_partition"} & {*schema.names}


@pytest.mark.parametrize(("value_format", "type_"), [("text", pa.string()), ("bytes", pa.binary())])
def test_messages_without_a_schema_have_columns_of_types_that_spark_asks_for(
    value_format: str, type_: pa.DataType
) -> None:
    options = {"bootstrap": "localhost:9092", "subscribe": "T", "value.format": value_format}
    parsed = parse_options(options)
    schema = RowReader(parsed, table_schema(parsed)).arrow_schema
    assert to_arrow_schema(from_arrow_schema(schema), timezone="UTC").equals(schema)
    assert schema.names[:2] == ["value", "headers"]
    assert schema.field("value").type == type_


def test_a_field_with_the_name_of_a_corrupt_column_is_refused_in_permissive_mode_only() -> None:
    table = record(**{CORRUPT_FIELDS[0].name: "bytes"})
    assert CORRUPT_FIELDS[0].name in reader(table).arrow_schema.names
    with pytest.raises(ConfigError, match="read it with mode=FAILFAST"):
        _ = reader(table, mode="permissive").arrow_schema


def read_broken_batch(reader: RowReader) -> list[dict[str, Any]]:
    """Read a batch whose first record states a wrong size, and whose CRC is right."""
    raw = bytearray(build_batch([Message(5, None, b"value")], base_offset=100))
    raw[HEADER_BYTES] += 2
    struct.pack_into(">I", raw, 17, batch_crc(raw))
    cut = Cut(Range("T", 0, 0, 1000), 0, 1000)
    fetched = iter([FetchedBatches([(BatchHeader.of(raw), memoryview(raw))])])
    batches = reader._batches(cut, fetched, RangeStats.for_cut(cut))
    return [row for batch in batches for row in batch.to_pylist()]


def test_the_advice_on_a_broken_batch_of_a_raw_query_works() -> None:
    raw = {"bootstrap": "localhost:9092", "subscribe": "T"}
    with pytest.raises(MillraceError, match="T-0 offset 100: the batch cannot be unpacked") as error:
        read_broken_batch(RowReader(parse_options(raw), None))
    advised = dict(re.findall(r"([\w.]+)=(\w+)", str(error.value)))
    assert advised == {"value.format": "bytes", "mode": "PERMISSIVE"}
    options = parse_options(raw | advised)
    (row,) = read_broken_batch(RowReader(options, table_schema(options)))
    assert (row["_offset"], row["value"]) == (100, None)
    assert row["_corrupt_reason"].startswith("the batch cannot be unpacked")
