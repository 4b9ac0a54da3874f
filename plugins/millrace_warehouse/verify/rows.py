"""Proof of single rows: the offset, sequence number and hour of each row, also of rows that only the table
has.

Reads every data file. Rows that only the table has are compared with the ranges of their loads. The check
that none of them is there twice is made within each hour.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import InputStream
from pyiceberg.io.pyarrow import pyarrow_to_schema

from millrace.errors import MillraceError
from millrace_audit.reports.counts import SequenceCounts
from millrace_warehouse.columns import INSTANCE, LOAD, SEQUENCE, TIME
from millrace_warehouse.history.condition import Condition
from millrace_warehouse.history.erasures import condition_of, read_done, recorded, taking_bytes
from millrace_warehouse.history.hours import HOUR_US, hour_of, partition_of
from millrace_warehouse.history.manifest import DataFile, LoadManifest, PartitionRange, StoredFile
from millrace_warehouse.history.stored import sequences_of
from millrace_warehouse.load.rejections import BYTES
from millrace_warehouse.publish.contents import hour_of_file, path_in_topic
from millrace_warehouse.sequences import count_sequences
from millrace_warehouse.storage import open_file
from millrace_warehouse.verify.check import Check
from millrace_warehouse.verify.history import History
from millrace_warehouse.verify.table import Head

Offsets = np.ndarray[Any, np.dtype[np.int64]]
Found = dict[tuple[int, int], list[Offsets]]
"""Load and partition -> the offsets of rows."""
PARTITION, OFFSET = "_topic_partition", "_offset"
_NEEDED = (TIME.name, PARTITION, OFFSET, LOAD.name)
_COLUMNS = ("header", INSTANCE.name, SEQUENCE.name, *_NEEDED)
_BROKEN = (pa.ArrowException, OSError)


def check_rows(check: Check, history: History, whole: Mapping[str, DataFile]) -> None:
    """Read every existing data file of loads and check hours and offsets. For loads whose files all exist,
    check the counts, too.
    """
    takers = taking_bytes(check.topic)
    count = check.count("files", len(whole), "read")
    for manifest in history.manifests.values():
        files = [file for file in manifest.files if file.path in whole]
        found: Found = {}
        counts = SequenceCounts()
        for file in files:
            path = f"{check.topic}/{file.path}"
            check.progress(path)
            try:
                for batch in _read(check, path, open_file(check.storage, path), file.hour, found):
                    count_sequences(batch, counts)
                    if others := set(pc.unique(batch.column(LOAD.name)).to_pylist()) - {manifest.load}:
                        load = min(others, key=str)
                        others_of = f"{path} has rows of load {load}: it is that of load {manifest.load}"
                        check.problem(others_of, hour=file.hour)
            except _BROKEN as error:
                check.problem(f"{path} cannot be read: {str(error).splitlines()[0]}", hour=file.hour)
            count.add(records=file.rows, size=file.bytes)
        where = f"{check.topic}, load {manifest.load}, edition {manifest.edition}"
        check.problem(*_check_partitions(where, manifest, found, len(files) == len(manifest.files)))
        if len(files) == len(manifest.files):
            check.problem(*_check_sequences(check, where, manifest, counts))
        taken_by = takers & {*manifest.erasures}
        rejected = {part.partition: part.rejected for part in manifest.partitions if part.rejected}
        tombstones = {part.partition: part.tombstones for part in manifest.partitions if part.tombstones}
        check.problem(
            *_check_aside(check, where, "rejected records", manifest.rejected_files, rejected, taken_by),
            *_check_aside(check, where, "tombstones", manifest.tombstone_files, tombstones, taken_by),
        )


def _read(
    check: Check, path: str, content: BinaryIO | InputStream, hour: str, found: Found
) -> Iterator[pa.RecordBatch]:
    """Read the columns of a file that locate each row. Check hours, and add offsets to `found`.

    Raise ArrowException or OSError if the file is broken. Rows without a load are reported where rows are
    counted.
    """
    with content, pq.ParquetFile(content) as file:
        names = file.schema_arrow.names
        if missing := {*_NEEDED} - set(names):
            raise pa.ArrowInvalid(f"it has no columns {', '.join(sorted(missing))}")
        for batch in file.iter_batches(columns=[name for name in _COLUMNS if name in names]):
            check.problem(*_in_other_hours(path, hour, batch), hour=hour)
            known = batch.filter(pc.is_valid(batch.column(LOAD.name)))
            loads, partitions, offsets = (_numbers(known, name) for name in (LOAD.name, PARTITION, OFFSET))
            for load in np.unique(loads).tolist():
                for partition in np.unique(partitions[loads == load]).tolist():
                    mine = offsets[(loads == load) & (partitions == partition)]
                    found.setdefault((load, partition), []).append(mine)
            yield batch


def _numbers(batch: pa.RecordBatch, name: str) -> Offsets:
    return np.asarray(batch.column(name).to_numpy(zero_copy_only=False), np.int64)


def _in_other_hours(path: str, hour: str, batch: pa.RecordBatch) -> Iterator[str]:
    times = batch.column(TIME.name)
    hours = np.unique(times.drop_null().cast(pa.int64()).to_numpy(zero_copy_only=False) // HOUR_US)
    numbers = [*hours.tolist(), *([None] if times.null_count else [])]
    wrong = [hour_of(number) for number in numbers if number != partition_of(hour)]
    if wrong:
        yield f"{path} has rows of {wrong[0]}: it is filed under {hour}"


def _check_partitions(where: str, manifest: LoadManifest, found: Found, whole: bool) -> Iterator[str]:
    stated = {part.partition: part for part in manifest.partitions}
    for partition in sorted({partition for _, partition in found} - stated.keys()):
        yield f"{where} has rows of partition {partition}, which its manifest does not list"
    for partition, part in stated.items():
        offsets = np.concatenate(found.get((manifest.load, partition), [np.empty(0, np.int64)]))
        if whole and len(offsets) != part.written:
            yield f"{where}: {len(offsets)} rows of partition {partition}, its manifest states {part.written}"
        yield from _check_offsets(f"{where}: {manifest.topic}-{partition}", part, offsets)


def _check_offsets(where: str, part: PartitionRange, offsets: Offsets) -> Iterator[str]:
    """Yield a line for the first offset that is repeated, outside the range, or in a gap."""
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
        return  # reported with the files
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


def _check_aside(
    check: Check,
    where: str,
    what: str,
    files: Sequence[StoredFile],
    stated: Mapping[int, int],
    takers: Collection[str],
) -> Iterator[str]:
    """Yield the differences of messages without rows: their number by partition, and bytes that an erasure
    takes.

    Bytes and keys are read only if an erasure takes them: unpacked they may be gigabytes.
    """
    counted: dict[int, int] = {}
    wanted = {"partition", "records", *(BYTES if takers else ())}
    for file in files:
        try:
            content = open_file(check.storage, f"{check.topic}/{file.path}")
            with content, pq.ParquetFile(content) as aside:
                table = aside.read([name for name in aside.schema_arrow.names if name in wanted])
        except FileNotFoundError:
            return  # reported with the files
        except _BROKEN as error:
            yield f"{check.topic}/{file.path} cannot be read: {str(error).splitlines()[0]}"
            return
        there = {*table.column_names}
        if takers and any(table[name].null_count < len(table) for name in BYTES & there):
            yield (
                f"{check.topic}/{file.path} has the bytes or keys of {what} that erasure {min(takers)} takes:"
                " erase again with the same --where, --rejected and another --id"
            )
        if "records" not in there:
            table = table.append_column("records", pa.repeat(1, len(table)))
        for row in table.group_by("partition").aggregate([("records", "sum")]).to_pylist():
            counted[row["partition"]] = counted.get(row["partition"], 0) + row["records_sum"]
    if counted != stated:
        yield f"{where}: its {what} are {counted} by partition, its manifest states {dict(stated)}"


def check_erased(check: Check, head: Head | None, history: History, whole: Mapping[str, DataFile]) -> None:
    """Search every present file for rows that a finished erasure matches, while its condition exists."""
    conditions = {
        erasure.id: Condition(where)
        for erasure in recorded(check.topic)
        if read_done(check.topic, erasure.id) is not None
        if (where := condition_of(check.topic, erasure.id)) is not None
    }
    if not conditions:
        return
    columns = list(dict.fromkeys(name for each in conditions.values() for name in (*each.columns, OFFSET)))
    newest = [manifest for manifest in map(history.newest_of, history.editions) if manifest is not None]
    files: dict[str, Callable[[], BinaryIO | InputStream]] = {
        file.path: partial(open_file, check.storage, f"{check.topic}/{file.path}")
        for manifest in newest
        for file in manifest.files
        if file.path in whole
    }
    for other in head.files if head is not None else ():
        path = path_in_topic(other.file_path, check.topic.name) or other.file_path
        assert head is not None
        files.setdefault(path, head.table.io.new_input(other.file_path).open)
    for path, opened in files.items():
        with suppress(*_BROKEN), opened() as content, pq.ParquetFile(content) as file:  # reported elsewhere
            names = [name for name in columns if name in file.schema_arrow.names]
            schema = pyarrow_to_schema(file.schema_arrow)
            for batch in file.iter_batches(columns=names):
                for id_, condition in conditions.items():
                    if rows := condition.mask(batch, schema).true_count:
                        check.problem(
                            f"{check.topic}/{path} has {rows} rows that erasure {id_} matches: erase again"
                            " with the same --where and another --id"
                        )


def check_others(check: Check, head: Head, history: History, whole: Mapping[str, DataFile]) -> None:
    """Check the hours and offsets in the table's files that no load wrote."""
    by_hour: dict[str, list[str]] = {}
    for file in head.files:
        if path_in_topic(file.file_path, check.topic.name) not in whole:
            by_hour.setdefault(hour_of_file(head.table, file), []).append(file.file_path)
    name = ".".join(head.table.name())
    for hour, uris in sorted(by_hour.items()):
        found: Found = {}
        for uri in uris:
            check.progress(uri)
            with suppress(*_BROKEN):  # reported where its rows are counted
                for _ in _read(check, uri, head.table.io.new_input(uri).open(), hour, found):
                    pass
        for (load, partition), chunks in sorted(found.items()):
            manifest = history.newest_of(load) if load in history.editions else None
            parts = {part.partition: part for part in manifest.partitions} if manifest is not None else {}
            if partition in parts:
                where = f"{name} in {hour}: load {load}, {check.topic}-{partition}"
                check.problem(*_check_offsets(where, parts[partition], np.concatenate(chunks)), hour=hour)
            elif manifest is not None:
                foreign = f"{name} in {hour}: rows of partition {partition} of load {load}, which lacks it"
                check.problem(foreign, hour=hour)
