"""Writes rows into Parquet files, one for each hour of `_time`, the event time that decides a row's hour
(UTC).

Takes rows in any order. A task holds the rows of each hour until they fill a row group, and a bounded number
of bytes in all. With a table's layout it holds an hour's rows as long as it may, then writes them at once:
sorted, into one file for each combination of partition values, of which one is open at a time. Handles Arrow
and Parquet in a local folder; depends on neither topics, brokers nor storage.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millrace_warehouse.columns import TIME
from millrace_warehouse.encodings import ROW_GROUP_BYTES, ROW_GROUP_ROWS, encodings, rows_of_a_group
from millrace_warehouse.history.hours import HOUR_US, hour_of

if TYPE_CHECKING:
    from millrace_warehouse.arranging import Arranger, PartitionValues

HELD_BYTES = 256 << 20
"""Most bytes of rows that a task holds in memory. Above them it writes the rows of the fullest hour."""
OPEN_FILES = 200
"""Most Parquet files that a task keeps open. With more hours than that, some hours get a second file."""

Hours = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class HourFile:
    """One finished Parquet file."""

    path: Path
    hour: str
    """The hour in UTC, such as `2015-05-17T10`, or UNFILED."""
    metadata: pq.FileMetaData
    """The file's footer: its number of rows, and the columns' statistics for Iceberg."""
    partition: PartitionValues = ()
    """Its partition values besides the hour."""

    @property
    def rows(self) -> int:
        return int(self.metadata.num_rows)


def hours_of(times: pa.Array) -> Hours:
    """Return the number of each time's hour since 1970, or -1 for null."""
    micros = times.view(pa.int64())
    return np.asarray((micros.fill_null(-1) if micros.null_count else micros).to_numpy()) // HOUR_US


class HourFiles:
    """A task's open Parquet files, one for each hour of its rows: `<folder>/<hour>-<name>-<4
    digits>.parquet`.

    The schema is that of the files, with the ids of the columns (`TableSchema.arrow_schema`). An arranger
    splits and sorts an hour's rows by the table's layout.
    """

    def __init__(self, folder: Path, name: str, schema: pa.Schema, arranger: Arranger | None = None) -> None:
        self._folder = folder
        self._name = name
        self._schema = schema
        self._arranger = arranger
        self._held: dict[str, list[pa.RecordBatch]] = defaultdict(list)
        self._held_rows: dict[str, int] = defaultdict(int)
        self._held_bytes: dict[str, int] = defaultdict(int)
        self._open: dict[str, tuple[Path, pq.ParquetWriter]] = {}
        self._footers: list[pq.FileMetaData] = []
        self._closed: list[HourFile] = []

    def add(self, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        hours = hours_of(rows.column(TIME.name))
        if hours.min() == hours.max():  # nearly always: a task reads some seconds or minutes of a log
            self._hold(int(hours[0]), rows)
            return
        order = np.argsort(hours, kind="stable")
        for indices in np.split(order, np.flatnonzero(np.diff(hours[order])) + 1):
            first, last = int(indices[0]), int(indices[-1])
            # A slice copies nothing, but all rows stay in memory as long as it is held.
            sliced = last - first + 1 == len(indices) >= rows.num_rows // 2
            part = rows.slice(first, len(indices)) if sliced else rows.take(pa.array(indices))
            self._hold(int(hours[first]), part)

    def _hold(self, number: int, rows: pa.RecordBatch) -> None:
        hour = hour_of(number if number >= 0 else None)
        self._held[hour].append(rows)
        self._held_rows[hour] += rows.num_rows
        self._held_bytes[hour] += rows.nbytes
        fills_a_group = self._held_rows[hour] >= ROW_GROUP_ROWS or self._held_bytes[hour] >= ROW_GROUP_BYTES
        if fills_a_group and self._arranger is None:
            self._write(hour)
        while sum(self._held_bytes.values()) > HELD_BYTES:
            self._write(max(self._held_bytes, key=self._held_bytes.__getitem__))

    def _write(self, hour: str) -> None:
        table = pa.Table.from_batches(self._held.pop(hour))
        del self._held_rows[hour], self._held_bytes[hour]
        if self._arranger is not None:
            table = table.combine_chunks()  # under the same name, so that the batches are free
            self._write_arranged(self._arranger, hour, table)
            return
        if hour not in self._open:
            if len(self._open) >= OPEN_FILES:
                self._close(next(iter(self._open)))
            self._open[hour] = self._new_file(hour, **encodings(table))
        self._write_rows(self._open[hour][1], table)

    def _write_arranged(self, arranger: Arranger, hour: str, table: pa.Table) -> None:
        """Write the rows of each combination of partition values into a file of their own."""
        size = rows_of_a_group(table)
        for part in arranger.parts(table):
            for first in range(0, len(part.indices), size):
                rows = table.take(part.indices[first : first + size])
                if hour not in self._open:
                    self._open[hour] = self._new_file(hour, **encodings(rows, arranger.sorted_by))
                self._write_rows(self._open[hour][1], rows)
            self._close(hour, part.values)

    def _new_file(self, hour: str, **settings: Any) -> tuple[Path, pq.ParquetWriter]:
        number = len(self._open) + len(self._closed)
        path = self._folder / f"{hour}-{self._name}-{number:04d}.parquet"
        settings |= {"compression": "zstd", "metadata_collector": self._footers}
        return path, pq.ParquetWriter(path, self._schema, **settings)

    def _write_rows(self, writer: pq.ParquetWriter, table: pa.Table) -> None:
        if table.schema != self._schema:  # a UUID is 16 bytes to the decoder
            table = table.cast(self._schema)
        writer.write_table(table, row_group_size=ROW_GROUP_ROWS)

    def _close(self, hour: str, partition: PartitionValues = ()) -> None:
        path, writer = self._open.pop(hour)
        writer.close()
        self._closed.append(HourFile(path, hour, self._footers.pop(), partition))

    def close(self) -> list[HourFile]:
        """Write the remaining rows and close every file. Return the files, sorted by name."""
        for hour in list(self._held):
            self._write(hour)
        for hour in list(self._open):
            self._close(hour)
        return sorted(self._closed, key=lambda file: file.path)
