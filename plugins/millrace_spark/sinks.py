"""Two ways to write a load's Parquet files into its staging folder; either accounts for every record.

`direct`: each task reads its cut, decodes it and writes Parquet with pyarrow; Spark only schedules. 2.5 to
3 times cheaper, for storage that every task sees as a folder. `spark`: the data source and Spark's own
writer, for every Hadoop file system. Nothing here is visible to readers: `warehouse.publish` does that.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.audit.counts import SequenceCounts
from millrace.errors import ConfigError, MillraceError
from millrace.manifest import REJECTED, DataFile
from millrace_spark.decode import Decoder, Rejected
from millrace_spark.filesystem import Filesystem, LocalFilesystem
from millrace_spark.hour_files import HourFiles, count_rows, data_file
from millrace_spark.ranges import Cut, RangeStats
from millrace_spark.reading import Client, read_cut

REJECTED_SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("records", pa.int64()),
        ("schema_id", pa.int32()),
        ("reason", pa.string()),
        ("raw", pa.binary()),
    ]
)
"""`_rejected/*.parquet`: a row is one record, or `records` of them where a batch cannot be unpacked."""


class TaskClient(Client, Protocol):
    """A client of a task's own, closed when the task ends."""

    def close(self) -> None:
        """Close its connections."""


@dataclass(frozen=True, slots=True)
class Source:
    """What a task reads with; travels to the tasks, so both callables must be picklable."""

    connect: Callable[[], TaskClient]
    lookup: Callable[[int], Mapping[str, Any] | None]
    table_schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CutTask:
    """One task of the direct sink: a cut and the staging folder its files go to."""

    source: Source
    cut: Cut
    index: int
    staging: str


@dataclass(frozen=True, slots=True)
class CutResult:
    """What one task did: its account, its files by path in the staging folder, its sequence numbers."""

    stats: RangeStats
    files: list[DataFile]
    sequences: list[dict[str, Any]]


Run = Callable[[Sequence[CutTask]], list[CutResult]]
"""Runs `write_cut` on every task, somewhere: a Spark job, or one after the other."""


class Sink(Protocol):
    """Writes the rows of some cuts into a staging folder."""

    name: str

    def write(self, source: Source, cuts: Sequence[Cut], staging: str) -> list[CutResult]:
        """Every cut's result; what is in the folder afterwards is what the results name, nothing else."""


class DirectSink:
    """Tasks that write their own Parquet files."""

    name = "direct"

    def __init__(self, fs: Filesystem, run: Run) -> None:
        if not isinstance(fs, LocalFilesystem):
            raise ConfigError(f"sink `direct` cannot write to {fs.root}: use --sink spark")
        self._fs = fs
        self._run = run

    def write(self, source: Source, cuts: Sequence[Cut], staging: str) -> list[CutResult]:
        """Every cut's result; what an attempt that does not count left in the folder is deleted."""
        self._fs.make_folder(staging)
        folder = self._fs.uri(staging)
        results = self._run([CutTask(source, cut, index, folder) for index, cut in enumerate(cuts)])
        kept = {file.path for result in results for file in result.files}
        for path, _ in self._fs.files(staging):
            if path not in kept:
                self._fs.delete(f"{staging}/{path}")
        return results


def check_files(fs: Filesystem, staging: str, files: Iterable[DataFile]) -> None:
    """MillraceError unless the folder holds exactly these files, with these bytes and hashes."""
    found = dict(fs.files(staging))
    for file in files:
        size = found.pop(file.path, None)
        if size != file.bytes or fs.sha256(f"{staging}/{file.path}") != file.sha256:
            raise MillraceError(
                f"{staging}/{file.path} is not what its task wrote ({size} bytes, written {file.bytes}):"
                " the storage does not keep what is written; run the load again"
            )
    if found:
        raise MillraceError(f"{staging} holds files no task answers for ({min(found)}); run the load again")


def write_cut(task: CutTask) -> CutResult:
    """Read, decode and write one cut. May run twice for one cut: every attempt has file names of its own."""
    staging, stats, counts = Path(task.staging), RangeStats.of(task.cut), SequenceCounts()
    decoder = Decoder(task.source.table_schema, task.source.lookup)
    # In the order of the cuts, so that a table reads in the order of the log; unique by the attempt.
    name = f"part-{task.index:05d}-{uuid.uuid4().hex[:12]}"
    files = HourFiles(staging, name, decoder.arrow_schema)
    rejected: list[Rejected] = []
    client = task.source.connect()
    try:
        for batch in decoder.decode(task.cut, read_cut(client, task.cut, stats), stats):
            files.add(batch.rows)
            count_rows(batch.rows, counts)
            rejected += batch.rejected
    finally:
        client.close()
    written = files.close()
    if rejected:
        written.append(write_rejected(staging, name, rejected))
    return CutResult(stats, written, counts.to_json())


def write_rejected(staging: Path, name: str, rejected: Iterable[Rejected]) -> DataFile:
    """Put the records that could not be decoded into `_rejected/`, with reason and raw bytes."""
    rows = [{field: getattr(each, field) for field in REJECTED_SCHEMA.names} for each in rejected]
    path = f"{REJECTED}/{name}.parquet"
    (staging / path).parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows, REJECTED_SCHEMA)
    pq.write_table(table, staging / path, compression="zstd")
    return data_file(staging, path, table.num_rows, sum(row["records"] for row in rows))
