"""Loads made without a broker and without Spark: files, manifests and ledger as a load writes them."""

from __future__ import annotations

import datetime as dt
import hashlib
import io
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import Table

from millrace_avro.schema import parse
from millrace_warehouse.encodings import encodings
from millrace_warehouse.history import iceberg_types, layout, ledger, schemas
from millrace_warehouse.history.entries import data_file, write_entries
from millrace_warehouse.history.hours import UNFILED
from millrace_warehouse.history.manifest import (
    DataFile,
    LoadManifest,
    PartitionRange,
    StoredFile,
    encode,
    now,
    sealed,
)
from millrace_warehouse.history.metrics import metrics_of
from millrace_warehouse.history.schemas import TableSchema, pinned
from millrace_warehouse.publish.committer import head_files
from millrace_warehouse.storage.interface import Storage

AVRO = {"type": "record", "name": "PageView", "fields": [{"name": "url", "type": "string"}]}
Rows = Mapping[str, int]
"""Hour -> how many rows."""


def pin(storage: Storage, topic: str, avro: Mapping[str, Any] = AVRO) -> TableSchema:
    """The next schema record of a topic."""
    before = pinned(layout.Topic(storage, topic))
    table = parse(avro)
    if before is None:
        columns, last = iceberg_types.iceberg_schema(table), 0  # type: ignore[arg-type]
    else:
        last = before.last_column_id
        columns = iceberg_types.evolved(before.schema, last, table)  # type: ignore[arg-type]
    number = before.number + 1 if before is not None else 1
    table_schema = TableSchema(
        topic=topic,
        number=number,
        schema_id=number,
        iceberg=columns.model_dump(mode="json"),
        last_column_id=max(last, columns.highest_field_id),
        created=now(),
        by="test",
        reason="test",
        previous_schema_id=None if before is None else before.schema_id,
    )
    assert storage.create(layout.schema_path(topic, number), encode(table_schema))
    return table_schema


def pin_first(topic: layout.Topic, schema_id: int, schema: Mapping[str, Any]) -> TableSchema:
    """The first schema of a topic, pinned as its first load does."""
    first = schemas.first_schema(topic, schema_id, schema)
    assert schemas.pin(topic, first)
    return first


def load(storage: Storage, topic: str, rows: Rows, files_per_hour: int = 1) -> LoadManifest:
    """One more load with so many rows of each hour."""
    folder = layout.Topic(storage, topic)
    table_schema = pinned(folder) or pin(storage, topic)
    before = layout.newest_load(folder)
    number = before.load + 1 if before is not None else 1
    start = before.ends[0] if before is not None else 0
    return _write(storage, table_schema, number, 1, start, rows, before, files_per_hour)


def read_again(storage: Storage, topic: str, number: int, rows: Rows) -> LoadManifest:
    """One more edition of a load, with so many rows of each hour; it has the offsets of the first."""
    folder = layout.Topic(storage, topic)
    table_schema = pinned(folder)
    assert table_schema is not None
    editions = layout.editions_of(folder).get(number, [1])
    before = layout.read_edition(folder, number, editions[-1])
    start = before.partitions[0].start
    return _write(storage, table_schema, number, editions[-1] + 1, start, rows, before)


def _write(
    storage: Storage,
    table_schema: TableSchema,
    number: int,
    edition: int,
    start: int,
    rows: Rows,
    before: LoadManifest | None,
    files_per_hour: int = 1,
) -> LoadManifest:
    topic, attempt = table_schema.topic, f"{edition:04d}-{uuid.uuid4().hex[:16]}"
    folder = f"rows/{number:010d}-{attempt}"
    written = write_files(storage, table_schema, folder, number, start, rows, files_per_hour)
    offset = start + sum(file.rows for file, _ in written)
    entries = None
    if written:
        content = write_entries(written, table_schema.iceberg)
        storage.put(f"{topic}/{folder}/entries.avro", io.BytesIO(content))
        sha256 = hashlib.sha256(content).hexdigest()
        entries = StoredFile(path=f"{folder}/entries.avro", bytes=len(content), sha256=sha256)
    total = offset - start
    end = offset if edition == 1 else before.partitions[0].end if before is not None else offset
    manifest = sealed(
        LoadManifest(
            topic=topic,
            topic_id="topic-id",
            cluster_id="cluster",
            load=number,
            edition=edition,
            attempt=attempt,
            run_id=f"run-{number}.{edition}",
            created=now(),
            schema=table_schema.number,
            file_by_ms=4102444800000,
            partitions=[
                PartitionRange(partition=0, start=start, end=end, read=total, written=total, data_batches=1)
            ],
            files=[file for file, _ in written],
            entries=entries,
            reason=None if edition == 1 else "a test",
            previous=None if before is None else before.sha256,
        )
    )
    path = layout.edition_path(topic, number, edition)
    assert storage.create(path, encode(manifest))
    ledger.add_to_ledger(storage, path, manifest)
    return manifest


def write_files(
    storage: Storage,
    table_schema: TableSchema,
    folder: str,
    number: int,
    start: int,
    rows: Rows,
    files_per_hour: int = 1,
) -> list[tuple[DataFile, bytes]]:
    """Files of a load's rows from an offset on, with their metrics, in a folder of the topic."""
    topic, written, offset = table_schema.topic, [], start
    for hour, count in rows.items():
        for part in range(files_per_hour):
            batch = _rows(table_schema, hour, count, offset, number)
            offset += count
            path = f"{folder}/{hour}-{part:04d}-{uuid.uuid4().hex[:8]}.parquet"
            buffer = io.BytesIO()
            pq.write_table(batch, buffer, compression="zstd", **encodings(batch))
            footer = pq.read_metadata(io.BytesIO(buffer.getvalue()))
            stored = storage.put(f"{topic}/{path}", io.BytesIO(buffer.getvalue()))
            file = DataFile(path=path, bytes=stored.bytes, sha256=stored.sha256, hour=hour, rows=count)
            written.append((file, metrics_of(footer, table_schema.iceberg)))
    return written


def _rows(table_schema: TableSchema, hour: str, count: int, offset: int, load: int) -> pa.Table:
    time = None if hour == UNFILED else dt.datetime.fromisoformat(f"{hour}:00:00+00:00")
    values: dict[str, Callable[[int], object]] = {
        "url": lambda n: f"/{n}",
        "_time": lambda n: time,
        "_topic_partition": lambda n: 0,
        "_offset": lambda n: n,
        "_timestamp": lambda n: time,
        "_schema_id": lambda n: table_schema.schema_id,
        "_load": lambda n: load,
    }
    schema = table_schema.arrow_schema
    rows = [
        {name: values[name](n) for name in schema.names if name in values}
        for n in range(offset, offset + count)
    ]
    return pa.Table.from_pylist(rows, schema)


def rows_by_load_and_hour(table: Table) -> dict[tuple[int, str], int]:
    """(load, hour) -> rows, as a reader counts them."""
    counted: dict[tuple[int, str], int] = {}
    scanned = table.scan(selected_fields=("_load", "_time")).to_arrow()
    for row in scanned.to_pylist():
        hour = UNFILED if row["_time"] is None else row["_time"].strftime("%Y-%m-%dT%H")
        counted[row["_load"], hour] = counted.get((row["_load"], hour), 0) + 1
    return counted


def offsets(table: Table) -> Sequence[int]:
    """Every row's offset, sorted: each once when nothing was published twice."""
    return sorted(table.scan(selected_fields=("_offset",)).to_arrow()["_offset"].to_pylist())


def compact_as_others_do(
    storage: Storage,
    table: Table,
    topic: str,
    hour: str,
    change: Callable[[pa.Table], pa.Table] = lambda rows: rows,
) -> None:
    """Make one file of an hour's files, in a commit that knows nothing of Millrace; its rows `change`d."""
    files = head_files(table, [hour])[hour]
    fresh = pa.concat_tables(
        [pq.read_table(io.BytesIO(table.io.new_input(file.file_path).open().read())) for file in files],
        promote_options="permissive",
    )
    columns = table.schema()
    fresh = change(fresh)
    fresh = fresh.select([field.name for field in columns.fields if field.name in fresh.column_names])
    buffer = io.BytesIO()
    pq.write_table(fresh, buffer, compression="zstd", **encodings(fresh))
    path = f"compacted/foreign/{uuid.uuid4().hex}.parquet"
    stored = storage.put(f"{topic}/{path}", io.BytesIO(buffer.getvalue()))
    file = DataFile(path=path, bytes=stored.bytes, sha256=stored.sha256, hour=hour, rows=fresh.num_rows)
    metrics = metrics_of(pq.read_metadata(io.BytesIO(buffer.getvalue())), columns.model_dump(mode="json"))
    with table.transaction() as transaction:
        update = transaction.update_snapshot().overwrite()
        for old in files:
            update.delete_data_file(old)
        update.append_data_file(data_file(file, metrics, storage.uri(f"{topic}/{path}")))
        update.commit()
