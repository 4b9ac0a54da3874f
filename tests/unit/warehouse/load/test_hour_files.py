"""Rows into hour files: every row in its hour, as compact as its column allows, whatever the order."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace_avro.schema import arrow_type, parse
from millrace_warehouse.encodings import encodings
from millrace_warehouse.load.hour_files import HourFiles

START = datetime(2015, 5, 17, 10, tzinfo=UTC)
SCHEMA = pa.schema([("_timestamp", pa.timestamp("us", "UTC")), ("n", pa.int64())])


def written(folder: Path, batches: list[pa.RecordBatch]) -> dict[str, list[Any]]:
    files = HourFiles(folder, "part", batches[0].schema)
    for batch in batches:
        files.add(batch)
    found: dict[str, list[Any]] = {}
    for file in files.close():
        rows = pq.read_table(folder / file.path).to_pylist()
        assert file.rows == len(rows)
        found.setdefault(file.path.rpartition("/")[0], []).extend(rows)
    return found


@pytest.mark.parametrize("order", ["rising", "any", "mostly one hour"])
def test_every_row_lies_in_its_hour_in_the_order_of_the_log(tmp_path: Path, order: str) -> None:
    dice, batches, expected = random.Random(order), [], Counter[str]()
    for number in range(20):
        minutes = {
            "rising": [number * 20 + index for index in range(50)],
            "any": [dice.randrange(400) for _ in range(50)],
            "mostly one hour": [dice.choice((0, 1, 2, 3, 3, 3, 200)) for _ in range(50)],
        }[order]
        times = [START + timedelta(minutes=each) for each in minutes]
        expected.update(f"date={each:%Y-%m-%d}/hour={each:%H}" for each in times)
        columns = [pa.array(times, SCHEMA.types[0]), pa.array(range(number * 50, number * 50 + 50))]
        batches.append(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
    found = written(tmp_path, [*batches, batches[0].slice(0, 0)])
    assert {folder: len(rows) for folder, rows in found.items()} == expected
    for folder, rows in found.items():
        assert all(f"date={row['_timestamp']:%Y-%m-%d}/hour={row['_timestamp']:%H}" == folder for row in rows)
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
        row = {"_timestamp": [time], "text": [chr(ord("a") + number % 26) * 300_000]}
        files.add(pa.RecordBatch.from_pydict(row, schema=schema))
        assert pa.total_allocated_bytes() - before < 24 << 20
    assert sum(file.rows for file in files.close()) == 240


def test_a_time_before_the_epoch_belongs_to_the_hour_it_falls_into(tmp_path: Path) -> None:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    times = [epoch - timedelta(microseconds=1), epoch, None]
    found = written(
        tmp_path, [pa.RecordBatch.from_pydict({"_timestamp": times, "n": [1, 2, 3]}, schema=SCHEMA)]
    )
    assert {folder: len(rows) for folder, rows in found.items()} == {
        "date=1969-12-31/hour=23": 1,
        "date=1970-01-01/hour=00": 2,
    }


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
            ]
        )
    ],
}


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_every_type_of_column_can_be_written(tmp_path: Path, rows: int) -> None:
    schema = pa.schema(list(arrow_type(parse(EVERY_TYPE))))
    table = pa.Table.from_pylist([{}] * rows, schema)
    pq.write_table(table, tmp_path / "t.parquet", **encodings(table))
    assert pq.read_table(tmp_path / "t.parquet").num_rows == rows
