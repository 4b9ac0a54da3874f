"""Rows into hour files: every row in its hour, as compact as its column allows, whatever the order."""

from __future__ import annotations

import random
import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.schema import Schema
from pyiceberg.types import StructType

from millrace_avro.schema import arrow_fields
from millrace_warehouse.columns import OWN_FIELDS, check_table_schema
from millrace_warehouse.encodings import encodings
from millrace_warehouse.history.hours import UNFILED
from millrace_warehouse.history.iceberg_types import arrow_schema, iceberg_schema
from millrace_warehouse.load.hour_files import HourFiles

START = datetime(2015, 5, 17, 10, tzinfo=UTC)
SCHEMA = pa.schema([("_time", pa.timestamp("us", "UTC")), ("n", pa.int64())])


def written(folder: Path, batches: list[pa.RecordBatch]) -> dict[str, list[Any]]:
    """Hour -> its rows, in the order of the files' names."""
    files = HourFiles(folder, "00003-0badcafe", batches[0].schema)
    for batch in batches:
        files.add(batch)
    closed, hours = files.close(), dict[str, list[Any]]()
    assert [file.path for file in closed] == sorted(folder.iterdir())
    for number, file in enumerate(closed):
        assert re.fullmatch(rf"{file.hour}-00003-0badcafe-\d{{4}}\.parquet", file.path.name), number
        rows = pq.read_table(file.path).to_pylist()
        assert file.rows == len(rows)
        assert file.metadata.equals(pq.read_metadata(file.path))
        hours.setdefault(file.hour, []).extend(rows)
    return hours


@pytest.mark.parametrize("order", ["rising", "any", "mostly one hour"])
@pytest.mark.parametrize("open_files", [200, 2])
def test_every_row_lies_in_its_hour_in_the_order_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str, open_files: int
) -> None:
    monkeypatch.setattr("millrace_warehouse.load.hour_files.OPEN_FILES", open_files)
    monkeypatch.setattr("millrace_warehouse.load.hour_files.ROW_GROUP_ROWS", 10_000 if open_files > 2 else 40)
    dice, batches, expected = random.Random(order), [], Counter[str]()
    for number in range(20):
        minutes = {
            "rising": [number * 20 + index for index in range(50)],
            "any": [dice.randrange(400) for _ in range(50)],
            "mostly one hour": [dice.choice((0, 1, 2, 3, 3, 3, 200)) for _ in range(50)],
        }[order]
        times = [START + timedelta(minutes=each) for each in minutes]
        expected.update(f"{each:%Y-%m-%dT%H}" for each in times)
        columns = [pa.array(times, SCHEMA.types[0]), pa.array(range(number * 50, number * 50 + 50))]
        batches.append(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
    hours = written(tmp_path, [*batches, batches[0].slice(0, 0)])
    assert {hour: len(rows) for hour, rows in hours.items()} == expected
    for hour, rows in hours.items():
        assert all(f"{row['_time']:%Y-%m-%dT%H}" == hour for row in rows)
        assert [row["n"] for row in rows] == sorted(row["n"] for row in rows)


def test_large_rows_are_written_before_they_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace_warehouse.load.hour_files.ROW_GROUP_BYTES", 1 << 20)
    monkeypatch.setattr("millrace_warehouse.load.hour_files.HELD_BYTES", 3 << 20)
    schema = pa.schema([SCHEMA.field(0), ("text", pa.string())])
    files, before = HourFiles(tmp_path, "part", schema), pa.total_allocated_bytes()
    for number in range(240):
        time = START + timedelta(hours=number % 12 if number < 120 else 0)
        row = {"_time": [time], "text": [chr(ord("a") + number % 26) * 300_000]}
        files.add(pa.RecordBatch.from_pydict(row, schema=schema))
        assert pa.total_allocated_bytes() - before < 24 << 20
    assert sum(file.rows for file in files.close()) == 240


def test_rows_without_a_time_lie_in_a_file_of_no_hour(tmp_path: Path) -> None:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    times = [None, epoch, None, epoch + timedelta(hours=1, microseconds=-1)]
    batch = pa.RecordBatch.from_pydict({"_time": times, "n": [1, 2, 3, 4]}, schema=SCHEMA)
    nothing = pa.RecordBatch.from_pydict({"_time": [None], "n": [5]}, schema=SCHEMA)
    hours = written(tmp_path, [batch, nothing])
    assert {hour: [row["n"] for row in rows] for hour, rows in hours.items()} == {
        UNFILED: [1, 3, 5],
        "1970-01-01T00": [2, 4],
    }


def test_the_ids_of_the_columns_are_in_the_files_at_any_depth(tmp_path: Path) -> None:
    table = check_table_schema(EVERY_TYPE)
    schema, uuid = iceberg_schema(table), UUID(bytes=b"u" * 16)
    files = HourFiles(tmp_path, "part", arrow_schema(schema))
    row = {"_time": START, "f17": uuid.bytes, "f18": [{"x": uuid.bytes}]}
    decoded = pa.schema([*arrow_fields(table), *OWN_FIELDS])
    files.add(pa.RecordBatch.from_pylist([row], schema=decoded))
    (file,) = files.close()
    assert pyarrow_to_schema(pq.read_schema(file.path)).as_struct() == _without_docs(schema)
    rows = pq.read_table(file.path).to_pylist()
    assert [(row["f17"], row["f18"]) for row in rows] == [(uuid, [{"x": uuid}])]


def _without_docs(schema: Schema) -> StructType:
    return StructType(*(field.model_copy(update={"doc": None}) for field in schema.fields))


def test_columns_that_repeat_have_a_dictionary_and_other_numbers_are_differences(tmp_path: Path) -> None:
    rows = 5000
    table = pa.table(
        {
            "name": ["a", "b"] * (rows // 2),
            "id": [f"{n:x}" for n in range(rows)],
            "offset": range(rows),
            "in": [{"status": n % 3, "time": START + timedelta(seconds=n)} for n in range(rows)],
            "tags": [[n, n + rows] for n in range(rows)],
        }
    )
    chosen = encodings(table)
    assert chosen["use_dictionary"] == ["in.status", "name"]
    assert set(chosen["column_encoding"]) == {"offset", "in.time", "tags.list.element"}
    assert "name" not in chosen["write_statistics"]
    pq.write_table(table, tmp_path / "t.parquet", compression="zstd", **chosen)
    group = pq.ParquetFile(tmp_path / "t.parquet").metadata.row_group(0)
    for index in range(group.num_columns):
        column = group.column(index)
        assert ("RLE_DICTIONARY" in column.encodings) == (column.path_in_schema in chosen["use_dictionary"])
        assert ("DELTA_BINARY_PACKED" in column.encodings) == (
            column.path_in_schema in chosen["column_encoding"]
        )
    assert pq.read_table(tmp_path / "t.parquet") == table


UUIDS = {"type": "record", "name": "Uuids", "fields": [{"name": "x", "type": "U"}]}
EVERY_TYPE = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": f"f{number}", "type": each}
        for number, each in enumerate(
            [
                "null",
                "boolean",
                "int",
                "long",
                "float",
                "double",
                "bytes",
                "string",
                {"type": "int", "logicalType": "date"},
                {"type": "long", "logicalType": "timestamp-millis"},
                {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
                {"type": "fixed", "name": "F", "size": 3},
                {"type": "enum", "name": "E", "symbols": ["A"]},
                {"type": "array", "items": {"type": "map", "values": "long"}},
                ["null", "long", "string"],
                {"type": "map", "values": ["null", {"type": "array", "items": "string"}]},
                {"type": "map", "values": {"type": "record", "name": "Empty", "fields": []}},
                {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"},
                {
                    "type": "array",
                    "items": {"type": "record", "name": "I", "fields": [{"name": "x", "type": "U"}]},
                },
            ]
        )
    ],
}


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_every_type_of_column_can_be_written(tmp_path: Path, rows: int) -> None:
    schema = pa.schema(arrow_fields(check_table_schema(EVERY_TYPE)))
    table = pa.Table.from_pylist([{}] * rows, schema)
    pq.write_table(table, tmp_path / "t.parquet", **encodings(table))
    assert pq.read_table(tmp_path / "t.parquet").num_rows == rows
