"""Rows into Parquet files, one per hour of event time (UTC), each with its SHA-256.

Takes rows in any order: a task holds the rows of each hour until they make a row group, and a bounded
number in all. Knows Arrow and Parquet on a local (or shared) file system; no topics, no brokers, no Spark.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millrace_warehouse.history.manifest import DataFile
from millrace_warehouse.load.encodings import encodings
from millrace_warehouse.log.messages import event_times

ROW_GROUP_ROWS = 200_000
ROW_GROUP_BYTES = 128 << 20
"""Most bytes of rows in memory that become one row group, which then has fewer rows than ROW_GROUP_ROWS."""
HELD_BYTES = 256 << 20
"""Most bytes of rows that a task holds in memory; beyond, it writes those of the fullest hour."""
OPEN_FILES = 200
"""Most Parquet files that a task keeps open; with more hours than that, some hours get a second file."""
HOUR_MS = 3_600_000
# A clock may be broken by any amount and loses no row: what lies outside the calendar is filed under the
# calendar's first or last hour.
FIRST_HOUR = int(datetime(1, 1, 1, tzinfo=UTC).timestamp()) // 3600
LAST_HOUR = int(datetime(9999, 12, 31, 23, tzinfo=UTC).timestamp()) // 3600

Times = np.ndarray[Any, np.dtype[np.int64]]


def hour_of(time_ms: int) -> str:
    """`2015-05-17T10`: the hour a time falls into, UTC."""
    # Not strftime: it writes the year 1 as "1".
    return datetime.fromtimestamp(time_ms // 1000, UTC).isoformat()[: len("2015-05-17T10")]


def hour_folder(hour: str) -> str:
    """`date=2015-05-17/hour=10` for `2015-05-17T10`."""
    date, _, clock = hour.partition("T")
    return f"date={date}/hour={clock}"


def event_times_ms(rows: pa.RecordBatch) -> Times:
    """Event time of every row in ms; 0 for a row that has none (only without audit headers)."""
    times = event_times(rows)
    if times.type.unit != "us":
        times = times.cast(pa.timestamp("us", times.type.tz))
    micros = times.view(pa.int64())
    return np.asarray((micros.fill_null(0) if micros.null_count else micros).to_numpy()) // 1000


def _hours(rows: pa.RecordBatch) -> Times:
    """The hour every row belongs to, counted from 1970."""
    return np.clip(event_times_ms(rows) // HOUR_MS, FIRST_HOUR, LAST_HOUR)


def dates_and_hours(rows: pa.RecordBatch) -> tuple[pa.Array, pa.Array]:
    """The date and the hour of the day every row belongs to, `2015-05-17` and `10`."""
    distinct, which = np.unique(_hours(rows), return_inverse=True)
    names = [hour_of(hour * HOUR_MS).partition("T") for hour in distinct.tolist()]
    index = pa.array(which)
    dates, clocks = pa.array([name[0] for name in names]), pa.array([name[2] for name in names])
    return dates.take(index), clocks.take(index)


def data_file(folder: Path, path: str, rows: int, records: int | None = None) -> DataFile:
    """What a manifest says of a finished Parquet file, its bytes read back from the file itself."""
    with open(folder / path, "rb") as file:
        digest, size = hashlib.file_digest(file, "sha256").hexdigest(), file.tell()
    records = rows if records is None else records
    return DataFile(path=path, rows=rows, records=records, bytes=size, sha256=digest)


class HourFiles:
    """One task's open Parquet files, one per hour it has seen."""

    def __init__(self, folder: Path, name: str, schema: pa.Schema) -> None:
        self._folder = folder
        self._name = name
        self._schema = schema
        self._held: dict[str, list[pa.RecordBatch]] = defaultdict(list)
        self._held_rows: dict[str, int] = defaultdict(int)
        self._held_bytes: dict[str, int] = defaultdict(int)
        self._open: dict[str, tuple[str, pq.ParquetWriter]] = {}
        self._rows: dict[str, int] = defaultdict(int)
        self._closed: list[DataFile] = []

    def add(self, rows: pa.RecordBatch) -> None:
        """Put every row into the file of its hour."""
        if not rows.num_rows:
            return
        hours = _hours(rows)
        if hours.min() == hours.max():  # nearly always: a task reads some seconds or minutes of a log
            self._hold(hour_of(int(hours[0]) * HOUR_MS), rows)
            return
        order = np.argsort(hours, kind="stable")
        for indices in np.split(order, np.flatnonzero(np.diff(hours[order])) + 1):
            first, last = int(indices[0]), int(indices[-1])
            # A slice copies nothing, but all rows stay in memory as long as it is held.
            sliced = last - first + 1 == len(indices) >= rows.num_rows // 2
            part = rows.slice(first, len(indices)) if sliced else rows.take(pa.array(indices))
            self._hold(hour_of(int(hours[first]) * HOUR_MS), part)

    def _hold(self, hour: str, rows: pa.RecordBatch) -> None:
        self._held[hour].append(rows)
        self._held_rows[hour] += rows.num_rows
        self._held_bytes[hour] += rows.nbytes
        if self._held_rows[hour] >= ROW_GROUP_ROWS or self._held_bytes[hour] >= ROW_GROUP_BYTES:
            self._write(hour)
        while sum(self._held_bytes.values()) > HELD_BYTES:
            self._write(max(self._held_bytes, key=self._held_bytes.__getitem__))

    def _write(self, hour: str) -> None:
        table = pa.Table.from_batches(self._held.pop(hour), self._schema)
        if hour not in self._open:
            if len(self._open) >= OPEN_FILES:
                self._close(next(iter(self._open)))
            path = f"{hour_folder(hour)}/{self._name}-{len(self._open) + len(self._closed):04d}.parquet"
            (self._folder / path).parent.mkdir(parents=True, exist_ok=True)
            writer = pq.ParquetWriter(
                self._folder / path, self._schema, compression="zstd", **encodings(table)
            )
            self._open[hour] = path, writer
        self._open[hour][1].write_table(table, row_group_size=ROW_GROUP_ROWS)
        self._rows[hour] += self._held_rows.pop(hour)
        del self._held_bytes[hour]

    def _close(self, hour: str) -> None:
        path, writer = self._open.pop(hour)
        writer.close()
        self._closed.append(data_file(self._folder, path, self._rows.pop(hour)))

    def close(self) -> list[DataFile]:
        """Write what is held, close every file and say what each one is."""
        for hour in list(self._held):
            self._write(hour)
        for hour in list(self._open):
            self._close(hour)
        return sorted(self._closed, key=lambda file: file.path)
