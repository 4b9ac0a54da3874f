"""Every Avro type, decoded and written by a load, as the readers of the published table see it."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from millrace_warehouse.columns import OWN_FIELDS
from millrace_warehouse.load.load import load_topic
from tests.published import TOPIC, Warehouse
from tests.readers.engines import Engine, spark_engine
from tests.unit.avro.fuzz_cases import BLOCKS, COLUMNS
from tests.unit.warehouse.memory_log import SCHEMA, SCHEMA_ID, START, MemoryLog, load_run

TYPES = COLUMNS | {
    "perhaps": ["null", "Inner"],
    "tags": BLOCKS["tags"],
    "counts": BLOCKS["counts"],
    "parts": {"type": "array", "items": "Inner"},
    "local": {"type": "long", "logicalType": "local-timestamp-micros"},
    "nobody": {"type": "record", "name": "Nobody", "fields": []},
    "ids": {"type": "array", "items": "Id"},
}
NOON = datetime(2015, 5, 17, 12, 0, 0, 5000, UTC)
VALUE: dict[str, Any] = {
    "time": NOON,
    "text": "grün",
    "maybe": 1 << 40,
    "day": date(1969, 12, 31),
    "micros": time(1, 0, 0, 7),
    "price": Decimal("-12345678.90"),
    "big": Decimal(-(10**37)),
    "id": UUID(int=258).bytes,
    "flag": True,
    "kind": "C",
    "inner": {"n": 7, "s": "in"},
    "perhaps": {"n": 8, "s": None},
    "either": 5,
    "number": -(1 << 31),
    "ratio": 0.5,
    "small": -1.5,
    "raw": b"\0\xff",
    "nothing": None,
    "nanos": 1431864000000000001,
    "span": b"0123456789ab",
    "tags": ["a", "", "c"],
    "counts": {"k": None, "l": 3},
    "parts": [{"n": 1, "s": "one"}, {"n": 2, "s": None}],
    "local": NOON.replace(tzinfo=None),
    "nobody": {},
    "ids": [UUID(int=1).bytes],
}
COMMON = {
    "text": "grün",
    "maybe": 1 << 40,
    "cast(day as string)": "1969-12-31",
    "micros": 3_600_000_007,
    "cast(price as string)": "-12345678.90",
    "cast(big as string)": str(-(10**37)),
    "cast(id as string)": str(UUID(int=258)),
    "flag": True,
    "kind": "C",
    "`inner`.n": 7,
    "`inner`.s": "in",
    "perhaps.n": 8,
    "perhaps.s": None,
    "either.member0": None,
    "either.member1": 5,
    "either.member2": None,
    "number": -(1 << 31),
    "ratio": 0.5,
    "small": -1.5,
    "hex(raw)": "00FF",
    "nanos": 1431864000000000001,
    "hex(span)": "303132333435363738396162",
    "nobody": True,
    "_topic_partition": 0,
    "_load": 1,
    "_schema_id": SCHEMA_ID,
    "_key": None,
}
SPARK = COMMON | {
    "unix_millis(time)": 1431864000005,
    "cast(local as string)": "2015-05-17 12:00:00.005",
    "tags": ["a", "", "c"],
    "counts['l']": 3,
    "counts['k']": None,
    "size(counts)": 2,
    "parts[1].n": 2,
    "parts[1].s": None,
    "cast(ids[0] as string)": str(UUID(int=1)),
    "unix_millis(_time)": START,
}
DUCKDB = COMMON | {
    "epoch_ms(time)": 1431864000005,
    "cast(local as string)": "2015-05-17 12:00:00.005",
    "tags": ["a", "", "c"],
    "map_extract(counts, 'l')[1]": 3,
    "map_extract(counts, 'k')[1]": None,
    "cardinality(counts)": 2,
    "parts[2].n": 2,
    "parts[2].s": None,
    "cast(ids[1] as string)": str(UUID(int=1)),
    "epoch_ms(_time)": START,
}


@pytest.fixture
def published(scene: Warehouse) -> Warehouse:
    log = MemoryLog(1)
    fields = [{"name": name, "type": type_} for name, type_ in TYPES.items()]
    log.schemas = {SCHEMA_ID: {**SCHEMA, "fields": [*SCHEMA["fields"], *fields]}}
    log.append_events(0, [START], **VALUE)
    result = load_topic(load_run(log, scene.storage), TOPIC)
    assert (result.rows, result.rejected) == (1, 0)
    scene.publish("2015-05-17T10")
    return scene


def test_spark_with_icebergs_runtime_reads_every_type(published: Warehouse, home: Path) -> None:
    engine = spark_engine(home, published)
    try:
        (row,) = engine(f"select {', '.join(SPARK)} from millrace.millrace.{TOPIC}")
        (everything,) = engine(f"select * from millrace.millrace.{TOPIC}")
    finally:
        engine.close()
    assert dict(zip(SPARK, row, strict=True)) == SPARK
    columns = len(SCHEMA["fields"]) + len(TYPES) - 1  # null alone is no column
    assert len(everything) == columns + len(OWN_FIELDS)


def test_duckdb_reads_every_type(published: Warehouse, duckdb: Engine) -> None:
    columns = ", ".join(DUCKDB).replace("`", '"')
    (row,) = duckdb(f"select {columns} from iceberg_scan('{_literal(published)}')")
    assert dict(zip(DUCKDB, row, strict=True)) == DUCKDB


def _literal(warehouse: Warehouse) -> str:
    return warehouse.table.metadata_location.removeprefix("file://").replace("'", "''")
