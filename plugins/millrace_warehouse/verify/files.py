"""Files and rows of one published folder against its manifest. Every finding is one line naming the file.

Knows Parquet and manifests; no history, no ledger, no broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.errors import MillraceError
from millrace_audit.reports.counts import SequenceCounts
from millrace_warehouse.history.layout import sequences_of
from millrace_warehouse.history.manifest import (
    MANIFEST,
    REJECTED,
    DataFile,
    LoadManifest,
    PartitionRange,
    SpilledFile,
)
from millrace_warehouse.load.hour_files import FIRST_HOUR, HOUR_MS, LAST_HOUR, event_times_ms, hour_of
from millrace_warehouse.load.sequences import count_sequences
from millrace_warehouse.storage.filesystem import Filesystem

Offsets = np.ndarray[Any, np.dtype[np.int64]]
_COLUMNS = ("header", "_partition", "_offset", "_timestamp")


def check_files(
    fs: Filesystem,
    folder: str,
    files: Iterable[DataFile],
    spilled: SpilledFile | None = None,
    expired: Iterable[DataFile] = (),
) -> list[str]:
    """What of a folder's files is missing, changed, or nobody's; `expired` ones may be there or not."""
    problems = []
    sizes = dict(fs.files(folder))
    if sizes.pop(MANIFEST, None) is None:
        problems.append(f"{folder}/{MANIFEST} is missing")
    if spilled is not None:
        sizes.pop(spilled.path, None)  # `sequences_of` says what is wrong with it
    for file in expired:
        sizes.pop(file.path, None)
    for file in files:
        path, size = f"{folder}/{file.path}", sizes.pop(file.path, None)
        if size is None:
            problems.append(f"{path} is missing: {file.rows} rows are gone")
        elif size != file.bytes:
            problems.append(f"{path} has {size} bytes, published were {file.bytes}: it was cut or changed")
        elif fs.sha256(path) != file.sha256:
            problems.append(f"{path} was changed: its SHA-256 is not the published one")
    problems += [f"{folder}/{path} is not in the manifest: nobody published it" for path in sorted(sizes)]
    return problems


def _batches(fs: Filesystem, path: str) -> Iterator[pa.RecordBatch]:
    """The columns of a Parquet file that say where each row belongs; ArrowInvalid or OSError if broken."""
    with fs.local_copy(path) as copy, pq.ParquetFile(copy) as file:
        columns = [name for name in _COLUMNS if name in file.schema_arrow.names]
        if not {"_partition", "_offset"} <= set(columns):
            raise pa.ArrowInvalid("it has no columns _partition and _offset")
        yield from file.iter_batches(columns=columns)


def check_load_rows(fs: Filesystem, folder: str, manifest: LoadManifest) -> list[str]:
    """Rows against the manifest: how many, of which offsets, in which hour, of which producers."""
    problems: list[str] = []
    offsets: dict[int, list[Offsets]] = {}
    counts = SequenceCounts()
    for file in manifest.files:
        if file.hour is None:
            continue
        rows = 0
        try:
            for batch in _batches(fs, f"{folder}/{file.path}"):
                rows += batch.num_rows
                count_sequences(batch, counts)
                _collect(batch, offsets)
                problems += _in_other_hours(f"{folder}/{file.path}", file, batch)
        except (pa.ArrowException, OSError) as error:
            problems.append(f"{folder}/{file.path} cannot be read: {_one_line(error)}")
            continue
        if rows != file.rows:
            problems.append(f"{folder}/{file.path} has {rows} rows, the manifest states {file.rows}")
    for part in manifest.partitions:
        problems += _check_offsets(folder, manifest.topic, part, offsets.pop(part.partition, []))
    problems += [f"{folder} has rows of partition {p}, which the manifest does not list" for p in offsets]
    problems += _check_sequences(fs, folder, manifest, counts)
    return problems + check_rejected(fs, folder, manifest)


def _collect(batch: pa.RecordBatch, offsets: dict[int, list[Offsets]]) -> None:
    partitions = batch.column("_partition").to_numpy(zero_copy_only=False)
    values = batch.column("_offset").to_numpy(zero_copy_only=False)
    for partition in np.unique(partitions).tolist():
        offsets.setdefault(partition, []).append(values[partitions == partition])


def _in_other_hours(path: str, file: DataFile, batch: pa.RecordBatch) -> list[str]:
    numbers = np.unique(np.clip(event_times_ms(batch) // HOUR_MS, FIRST_HOUR, LAST_HOUR)).tolist()
    wrong = [hour for hour in (hour_of(number * HOUR_MS) for number in numbers) if hour != file.hour]
    return [f"{path} has rows of {wrong[0]}: it lies in the wrong hour"] if wrong else []


def _check_offsets(folder: str, topic: str, part: PartitionRange, chunks: Sequence[Offsets]) -> list[str]:
    offsets = np.concatenate(chunks) if chunks else np.empty(0, np.int64)
    where = f"{folder}: {topic}-{part.partition} offsets [{part.start}, {part.end})"
    problems = []
    if len(offsets) != part.written:
        problems.append(f"{where}: {len(offsets)} rows, the manifest states {part.written}")
    distinct, times = np.unique(offsets, return_counts=True)
    if len(distinct) != len(offsets):
        problems.append(f"{where}: offset {distinct[times > 1][0]} is there {times.max()} times")
    if len(distinct) and not (part.start <= distinct[0] and distinct[-1] < part.end):
        problems.append(f"{where}: rows have offsets [{distinct[0]}, {distinct[-1] + 1})")
    for gap in part.gaps:
        inside = distinct[(distinct >= gap.start) & (distinct < gap.end)]
        if len(inside):
            problems.append(f"{where}: offset {inside[0]} lies in the gap [{gap.start}, {gap.end})")
    return problems


def _check_sequences(
    fs: Filesystem, folder: str, manifest: LoadManifest, counted: SequenceCounts
) -> list[str]:
    try:
        stated = sequences_of(fs, folder, manifest)
    except MillraceError as error:
        return [str(error)]
    if stated == counted:
        return []
    for key in sorted(stated.tallies.keys() | counted.tallies.keys()):
        a, b = stated.tallies.get(key), counted.tallies.get(key)
        if a != b:
            window = datetime.fromtimestamp(key.window // 1000, UTC).isoformat()
            return [
                f"{folder}: sequences of {key.server}, instance {key.instance} differ from its manifest"
                f" in window {window}: {b.total if b else 0} rows, stated {a.total if a else 0}"
            ]
    return []


def check_rejected(fs: Filesystem, folder: str, manifest: LoadManifest) -> list[str]:
    """The rejected records against the manifest: how many of which partition."""
    rejected: dict[int, int] = {}
    for file in manifest.files:
        if file.hour is not None:
            continue
        try:
            with fs.local_copy(f"{folder}/{file.path}") as copy:
                table = pq.read_table(copy, columns=["partition", "records"], partitioning=None)
        except (pa.ArrowException, OSError) as error:
            return [f"{folder}/{file.path} cannot be read: {_one_line(error)}"]
        for partition, records in zip(*(table[name].to_pylist() for name in table.column_names), strict=True):
            rejected[partition] = rejected.get(partition, 0) + records
    stated = {part.partition: part.rejected for part in manifest.partitions if part.rejected}
    if rejected == stated:
        return []
    return [f"{folder}/{REJECTED} stands for {rejected} records by partition, the manifest states {stated}"]


def offsets_by_partition(fs: Filesystem, paths: Iterable[str]) -> Mapping[int, Offsets]:
    """The offsets of all rows of some files, sorted, by partition."""
    offsets: dict[int, list[Offsets]] = {}
    for path in paths:
        for batch in _batches(fs, path):
            _collect(batch, offsets)
    return {partition: np.sort(np.concatenate(chunks)) for partition, chunks in offsets.items()}


def _one_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
