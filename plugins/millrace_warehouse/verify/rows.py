"""Proof of single rows: the offset, sequence number and hour of each, also of those only the table has.

Reads every data file. What only the table has any more is held against the ranges of its loads; that no row
of it is there twice is proven within each hour.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millrace.errors import MillraceError
from millrace_audit.reports.counts import SequenceCounts
from millrace_warehouse.columns import LOAD, TIME
from millrace_warehouse.history.hours import HOUR_US, hour_of, partition_of
from millrace_warehouse.history.manifest import DataFile, LoadManifest, PartitionRange
from millrace_warehouse.history.stored import sequences_of
from millrace_warehouse.load.sequences import count_sequences
from millrace_warehouse.publish.contents import path_in_topic
from millrace_warehouse.storage import open_file
from millrace_warehouse.verify.check import Check
from millrace_warehouse.verify.history import History
from millrace_warehouse.verify.table import Head

Offsets = np.ndarray[Any, np.dtype[np.int64]]
PARTITION, OFFSET = "_topic_partition", "_offset"
_COLUMNS = ("header", TIME.name, PARTITION, OFFSET, LOAD.name)


def check_rows(check: Check, history: History, whole: Mapping[str, DataFile]) -> None:
    """Read every data file of loads that is there: hours and offsets; of loads with all files, all of it."""
    for manifest in history.manifests.values():
        files = [file for file in manifest.files if file.path in whole]
        offsets: dict[int, list[Offsets]] = {}
        counts = SequenceCounts()
        for file in files:
            path = f"{check.topic}/{file.path}"
            check.progress(path)
            try:
                for batch in _batches(check, path):
                    count_sequences(batch, counts)
                    _collect(batch, offsets)
                    check.problem(*_in_other_places(path, file.hour, manifest.load, batch))
            except (pa.ArrowException, OSError) as error:
                check.problem(f"{path} cannot be read: {str(error).splitlines()[0]}")
        where = f"{check.topic}, load {manifest.load}, edition {manifest.edition}"
        check.problem(*_check_partitions(where, manifest, offsets, len(files) == len(manifest.files)))
        if len(files) == len(manifest.files):
            check.problem(*_check_sequences(check, where, manifest, counts))
        check.problem(*_check_rejected(check, where, manifest))


def _batches(check: Check, path: str) -> Iterator[pa.RecordBatch]:
    """The columns of a stored file that say where each row belongs; ArrowException or OSError if broken."""
    with open_file(check.storage, path) as content, pq.ParquetFile(content) as file:
        yield from _proving(file)


def _proving(file: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
    names = file.schema_arrow.names
    if missing := {TIME.name, PARTITION, OFFSET, LOAD.name} - set(names):
        raise pa.ArrowInvalid(f"it has no columns {', '.join(sorted(missing))}")
    yield from file.iter_batches(columns=[name for name in _COLUMNS if name in names])


def _collect(batch: pa.RecordBatch, offsets: dict[int, list[Offsets]]) -> None:
    partitions, values = _numbers(batch, PARTITION), _numbers(batch, OFFSET)
    for partition in np.unique(partitions).tolist():
        offsets.setdefault(partition, []).append(values[partitions == partition])


def _numbers(batch: pa.RecordBatch | pa.Table, name: str) -> Offsets:
    return np.asarray(batch.column(name).to_numpy(zero_copy_only=False), np.int64)


def _in_other_places(path: str, hour: str, load: int, batch: pa.RecordBatch) -> Iterator[str]:
    """Rows of another load than the file's, and such as are filed under another hour; a line for each."""
    if (others := set(pc.unique(batch.column(LOAD.name)).to_pylist()) - {load}) != set():
        yield f"{path} has rows of load {min(others, key=str)}: it is that of load {load}"
    yield from _in_other_hours(path, hour, batch)


def _in_other_hours(path: str, hour: str, batch: pa.RecordBatch) -> Iterator[str]:
    times = batch.column(TIME.name)
    hours = np.unique(times.drop_null().cast(pa.int64()).to_numpy(zero_copy_only=False) // HOUR_US)
    numbers = [*hours.tolist(), *([None] if times.null_count else [])]
    wrong = [hour_of(number) for number in numbers if number != partition_of(hour)]
    if wrong:
        yield f"{path} has rows of {wrong[0]}: it is filed under {hour}"


def _check_partitions(
    where: str, manifest: LoadManifest, offsets: Mapping[int, Sequence[Offsets]], whole: bool
) -> Iterator[str]:
    stated = {part.partition: part for part in manifest.partitions}
    for partition in sorted(offsets.keys() - stated.keys()):
        yield f"{where} has rows of partition {partition}, which its manifest does not list"
    for partition, part in stated.items():
        chunks = offsets.get(partition, ())
        found = np.concatenate(chunks) if chunks else np.empty(0, np.int64)
        if whole and len(found) != part.written:
            yield f"{where}: {len(found)} rows of partition {partition}, its manifest states {part.written}"
        yield from _check_offsets(f"{where}: {manifest.topic}-{partition}", part, found)


def _check_offsets(where: str, part: PartitionRange, offsets: Offsets) -> Iterator[str]:
    """Offsets that are there twice, outside of the range, or in a gap; a line for the first of each."""
    distinct, times = np.unique(offsets, return_counts=True)
    where = f"{where} offsets [{part.start}, {part.end})"
    if len(distinct) != len(offsets):
        yield f"{where}: offset {distinct[times > 1][0]} is there {times.max()} times"
    if len(distinct) and not (part.start <= distinct[0] and distinct[-1] < part.end):
        yield f"{where}: rows have offsets [{distinct[0]}, {distinct[-1] + 1})"
    for gap in part.gaps:
        inside = distinct[(distinct >= gap.start) & (distinct < gap.end)]
        if len(inside):
            yield f"{where}: offset {inside[0]} lies in the gap [{gap.start}, {gap.end})"


def _check_sequences(
    check: Check, where: str, manifest: LoadManifest, counted: SequenceCounts
) -> Iterator[str]:
    try:
        stated = sequences_of(check.storage, manifest)
    except MillraceError:
        return  # named with the files
    if stated == counted:
        return
    for key in sorted(stated.tallies.keys() | counted.tallies.keys()):
        a, b = stated.tallies.get(key), counted.tallies.get(key)
        if a != b:
            window = datetime.fromtimestamp(key.window // 1000, UTC).isoformat()
            yield (
                f"{where}: sequences of {key.server}, instance {key.instance} differ from its manifest"
                f" in window {window}: {b.total if b else 0} rows, stated {a.total if a else 0}"
            )
            return


def _check_rejected(check: Check, where: str, manifest: LoadManifest) -> Iterator[str]:
    """The rejected records against the manifest: how many of which partition."""
    rejected: dict[int, int] = {}
    for file in manifest.rejected_files:
        try:
            with open_file(check.storage, f"{check.topic}/{file.path}") as content:
                table = pq.read_table(content, columns=["partition", "records"], partitioning=None)
        except FileNotFoundError:
            return  # named with the files
        except (pa.ArrowException, OSError) as error:
            yield f"{check.topic}/{file.path} cannot be read: {str(error).splitlines()[0]}"
            return
        for partition, records in zip(*(table[name].to_pylist() for name in table.column_names), strict=True):
            rejected[partition] = rejected.get(partition, 0) + records
    stated = {part.partition: part.rejected for part in manifest.partitions if part.rejected}
    if rejected != stated:
        yield f"{where}: its rejected records are {rejected} by partition, its manifest states {stated}"


def check_others(check: Check, head: Head, history: History, whole: Mapping[str, DataFile]) -> None:
    """Read the table's files that no load wrote: hours, and the offsets of each load within each hour."""
    by_hour: dict[str, list[str]] = {}
    for file in head.files:
        if path_in_topic(file.file_path, check.topic) not in whole:
            by_hour.setdefault(hour_of(file.partition[0]), []).append(file.file_path)
    for hour, uris in sorted(by_hour.items()):
        found: dict[tuple[int, int], list[Offsets]] = {}
        for uri in uris:
            check.progress(uri)
            try:
                with head.table.io.new_input(uri).open() as content, pq.ParquetFile(content) as file:
                    for batch in _proving(file):
                        check.problem(*_in_other_hours(uri, hour, batch))
                        _collect_by_load(batch, found)
            except (pa.ArrowException, OSError):
                continue  # named where its rows are counted
        name = ".".join(head.table.name())
        for (load, partition), chunks in sorted(found.items()):
            manifest = history.newest_of(load) if load in history.editions else None
            parts = {part.partition: part for part in manifest.partitions} if manifest is not None else {}
            if partition in parts:
                where = f"{name} in {hour}: load {load}, {check.topic}-{partition}"
                check.problem(*_check_offsets(where, parts[partition], np.concatenate(chunks)))
            elif manifest is not None:
                check.problem(f"{name} in {hour}: load {load} has no partition {partition}, and rows of it")


def _collect_by_load(batch: pa.RecordBatch, found: dict[tuple[int, int], list[Offsets]]) -> None:
    """Add a batch's offsets by load and partition; rows without a load are named by the count of rows."""
    known = batch.filter(pc.is_valid(batch.column(LOAD.name)))
    loads = _numbers(known, LOAD.name)
    for load in np.unique(loads).tolist():
        offsets: dict[int, list[Offsets]] = {}
        _collect(known.filter(pa.array(loads == load)), offsets)
        for partition, chunks in offsets.items():
            found.setdefault((load, partition), []).extend(chunks)
