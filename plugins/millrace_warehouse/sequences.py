"""Counts the sequence numbers in rows by producer, from the audit header's columns, for all rows at once.

The audit header is the record header's columns where a row has them, else the value's `header`.

Works on batches in memory, and on Parquet files. Of a file it reads only the header's columns and the
record's time, by which rows without a header are counted.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millrace.records.row_cursor import Longs
from millrace_audit.reports.counts import WINDOW_MS, SequenceCounts
from millrace_audit.reports.event import EventHeader
from millrace_warehouse.columns import INSTANCE, SEQUENCE, TIME

HEADER, TIMESTAMP = "header", "_timestamp"
RECORD_HEADER = (TIME.name, INSTANCE.name, SEQUENCE.name)
"""Columns with the content of a record header, in rows that have one."""
HEADER_COLUMNS = [*(f"{HEADER}.{name}" for name in EventHeader._fields), *RECORD_HEADER]
"""Columns of a Parquet file that are the audit header's fields, as far as the file has them."""
_FEW = 8
"""Average length of runs of consecutive numbers below which rows are sorted before counting."""


def count_sequences(batch: pa.RecordBatch | pa.Table, counts: SequenceCounts | None = None) -> SequenceCounts:
    """Count the rows of a batch by producer, window and sequence number. Add them to `counts` or to a new
    account.

    An audit header in the value is a struct column `header` with the fields of an EventHeader. Rows without a
    header, or with a null in one of its fields, are not counted.
    """
    counts = SequenceCounts() if counts is None else counts
    columns_of_header = _header_columns(batch)
    if columns_of_header is None or not len(columns_of_header[0]):
        return counts
    time, server, service, instance, sequence = columns_of_header
    times = time.cast(pa.timestamp("us", tz="UTC")).view(pa.int64()).to_numpy() // 1000
    servers, services = server.dictionary_encode(), service.dictionary_encode()
    server_names, service_names = servers.dictionary.to_pylist(), services.dictionary.to_pylist()
    # An instance has one server and service. Rows that claim another pair are counted separately.
    pairs = len(server_names) * len(service_names)
    which = servers.indices.to_numpy() * np.int64(len(service_names)) + services.indices.to_numpy()
    columns = which, instance.to_numpy(), times // WINDOW_MS, sequence.to_numpy()
    if pairs > 1:  # each producer's rows together, in their order; small numbers sort fast
        columns = _ordered(
            columns, np.argsort(which.astype(np.uint16) if pairs <= 1 << 16 else which, kind="stable")
        )
    runs = _runs(*columns)
    if len(runs[0]) > len(times) // _FEW:  # numbers are out of order: sorting makes fewer runs
        runs = _runs(*_ordered(columns, np.lexsort(columns[::-1])))
    for pair, number, window, first, last in zip(*(column.tolist() for column in runs), strict=True):
        at_server, at_service = divmod(pair, len(service_names))
        counts.add(
            server_names[at_server], service_names[at_service], number, window * WINDOW_MS, first, last
        )
    return counts


def count_unkeyed(batch: pa.RecordBatch | pa.Table, windows: Counter[int]) -> None:
    """Add the rows without an audit header to the windows (ms) of their records' times.

    Rows without that time, or in a table without its column, are in no window. Neither are rows whose audit
    header has a time that no producer sends: the auditor rejects the counts of such windows at every tier.
    """
    index = batch.schema.get_field_index(TIMESTAMP)
    header = _header_fields(batch)
    keyed = None if header is None else _whole(header[1:])
    if index < 0 or (header is not None and keyed is None):
        return
    times = batch.column(index) if keyed is None else batch.column(index).filter(pc.invert(keyed))
    micros = times.drop_null().cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_numpy()
    found, rows = np.unique(micros // (WINDOW_MS * 1000), return_counts=True)
    for window, count in zip(found.tolist(), rows.tolist(), strict=True):
        windows[window * WINDOW_MS] += count


@dataclass(slots=True)
class FileRows:
    """Counts of the rows of Parquet files."""

    counts: SequenceCounts = field(default_factory=SequenceCounts)
    unkeyed: Counter[int] = field(default_factory=Counter)
    """Window (ms) -> rows without an audit header."""
    rows: int = 0
    """Rows with and without a header."""

    def add(self, content: BinaryIO) -> None:
        """Count a Parquet file and close it.

        Raise ArrowException or OSError for a broken file, which may be partly counted.
        """
        with content, pq.ParquetFile(content) as file:
            names = {*file.schema_arrow.names}
            own = {TIMESTAMP, *RECORD_HEADER} & names
            columns = [*(HEADER_COLUMNS if HEADER in names else ()), *own]
            for batch in file.iter_batches(columns=columns) if columns else ():
                count_sequences(batch, self.counts)
                count_unkeyed(batch, self.unkeyed)
            self.rows += file.metadata.num_rows

    def merge(self, other: FileRows) -> None:
        self.counts.merge(other.counts)
        self.unkeyed.update(other.unkeyed)
        self.rows += other.rows


Columns: TypeAlias = "tuple[Longs, Longs, Longs, Longs]"


def _ordered(columns: Columns, order: Longs) -> Columns:
    return columns[0][order], columns[1][order], columns[2][order], columns[3][order]


def _runs(which: Longs, instances: Longs, windows: Longs, sequences: Longs) -> tuple[Longs, ...]:
    """Return runs of consecutive numbers: producer, instance and window, and the first and last number."""
    # The largest number of all and the smallest one after it form no run, though the sum wraps.
    breaks = (sequences[1:] != sequences[:-1] + 1) | (sequences[1:] < sequences[:-1])
    for key in (which, instances, windows):
        breaks |= key[1:] != key[:-1]
    starts = np.concatenate([[0], np.flatnonzero(breaks) + 1])
    lasts = np.append(starts[1:], len(sequences)) - 1
    return which[starts], instances[starts], windows[starts], sequences[starts], sequences[lasts]


def _header_columns(batch: pa.RecordBatch | pa.Table) -> list[pa.Array] | None:
    """Return the header's five columns for the rows that have all five; None without audit headers."""
    fields = _header_fields(batch)
    if fields is None or (whole := _whole(fields)) is None:
        return fields
    return [column.filter(whole) for column in fields]


def _header_fields(batch: pa.RecordBatch | pa.Table) -> list[pa.Array] | None:
    """Return the header's five columns of all rows, or None for rows without audit headers.

    The record header counts before a header in the value. It names no server and no service.
    """
    of_value = _value_header_fields(batch)
    if any(batch.schema.get_field_index(name) < 0 for name in RECORD_HEADER):
        return of_value
    time, instance, sequence = (_one_array(batch.column(name)) for name in RECORD_HEADER)
    if instance.null_count == len(instance):
        return of_value
    no_name = pa.repeat("", len(instance))
    of_record = [time, no_name, no_name, instance, sequence]
    if of_value is None or not instance.null_count:
        return of_record
    has_record_header = instance.is_valid()
    return [
        pc.if_else(has_record_header, ours, other.cast(ours.type))
        for ours, other in zip(of_record, of_value, strict=True)
    ]


def _one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _value_header_fields(batch: pa.RecordBatch | pa.Table) -> list[pa.Array] | None:
    """Return the five columns of the header in the value, or None for a table without such headers."""
    index = batch.schema.get_field_index(HEADER)
    type_ = batch.schema.types[index] if index >= 0 else None
    if type_ is None or not pa.types.is_struct(type_):
        return None
    if any(type_.get_field_index(name) < 0 for name in EventHeader._fields):
        return None
    header = _one_array(batch.column(index))
    columns = dict(zip(type_.names, header.flatten(), strict=True))
    return [columns[name] for name in EventHeader._fields]


def _whole(fields: Sequence[pa.Array]) -> pa.Array | None:
    """Return a mask of the rows that have all five columns, or None when every row does."""
    if not any(column.null_count for column in fields):
        return None
    return functools.reduce(pc.and_, [column.is_valid() for column in fields])
