"""Writing hours: the rows of an hour's files copied into few, each source checked against its manifest.

Also the place where small files are put together: an hour's files become one per `MERGE_BYTES`. A source that
is not the published one stops the hour: its rows would go on into every later revision, and the loads expire.
Knows Parquet and files. Does not know which loads make an hour, nor how it is published.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from millrace.errors import MillraceError
from millrace_spark.files.filesystem import Filesystem
from millrace_spark.files.task_storage import TaskStorage
from millrace_spark.parquet.hour_files import ROW_GROUP_BYTES, ROW_GROUP_ROWS, data_file, hour_folder
from millrace_spark.table.sources import HourSource
from millrace_spark.warehouse.manifest import DataFile, OffsetRange
from millrace_spark.warehouse.staging import tasks_folder

MERGE_BYTES = 256 << 20
"""Parquet bytes of sources that go into one file of an hour."""


@dataclass(frozen=True, slots=True)
class MergeInput:
    """A file whose rows are copied: where it is, its hash, and the offsets that are left out."""

    path: str
    sha256: str
    left_out: Sequence[OffsetRange]


@dataclass(frozen=True, slots=True)
class MergeTask:
    """Some files of one hour that become one file in `folder`; every path is absolute."""

    sources: Sequence[MergeInput]
    schema_file: str
    storage: TaskStorage
    folder: str
    hour: str
    index: int
    """Which of the hour's files it becomes."""


Run = Callable[[Sequence[MergeTask]], list[DataFile]]
"""Runs `merge_files` on every task, somewhere: a Spark job, or one after the other."""


class Merge(Protocol):
    """Writes the rows of some hours into a staging folder, each hour in its own `date=…/hour=…`."""

    def write(self, sources: Sequence[HourSource], staging: str) -> list[DataFile]:
        """What is in the folder afterwards, by path; an hour without rows has no file."""


def merge_files(task: MergeTask) -> DataFile:
    """Copy the rows of some Parquet files into one, with the columns of `schema_file`.

    May run twice for one task: each attempt has a file name of its own, because one that was given up may
    still write when the other's file is published.
    """
    path = f"{hour_folder(task.hour)}/part-{task.index:05d}-{uuid.uuid4().hex[:12]}.parquet"
    with _local(task.storage, task.schema_file) as newest, task.storage.writing(task.folder) as folder:
        schema = pq.read_schema(newest).remove_metadata()
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        rows = held_rows = held_bytes = 0
        with pq.ParquetWriter(target, schema, compression="zstd") as writer:
            held: list[pa.RecordBatch] = []
            for batch in _batches(task, newest, schema):
                held.append(batch)
                held_rows, held_bytes = held_rows + batch.num_rows, held_bytes + batch.nbytes
                if held_rows >= ROW_GROUP_ROWS or held_bytes >= ROW_GROUP_BYTES:
                    writer.write_table(pa.Table.from_batches(held, schema))
                    held.clear()
                    held_rows = held_bytes = 0
                rows += batch.num_rows
            writer.write_table(pa.Table.from_batches(held, schema))
        return data_file(folder, path, rows)


def _batches(task: MergeTask, newest: Path, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for source in task.sources:
        # What is here already is not fetched again: mostly one of the sources has the newest columns.
        here = nullcontext(newest) if source.path == task.schema_file else _local(task.storage, source.path)
        with here as file:
            _check(source, file)
            for fragment in ds.dataset(str(file), schema=schema, format="parquet").get_fragments():
                # One row group after the other: read as a whole, a file full of rows is decoded ahead.
                for row_group in fragment.split_by_row_group():
                    yield from row_group.to_batches(schema=schema, filter=_row_filter(source.left_out))


@contextmanager
def _local(storage: TaskStorage, path: str) -> Iterator[Path]:
    """A local file with the bytes of a source; MillraceError when it is not there."""
    with ExitStack() as stack:
        try:
            file = stack.enter_context(storage.local_copy(path))
        except FileNotFoundError:
            raise MillraceError(
                f"{path} is gone: publish again, another run may have been first and the load has expired;"
                " otherwise restore it from a copy"
            ) from None
        yield file


def _check(source: MergeInput, file: Path) -> None:
    with open(file, "rb") as content:
        if hashlib.file_digest(content, "sha256").hexdigest() != source.sha256:
            raise not_published(source.path)


def not_published(path: str) -> MillraceError:
    """The error for a source whose bytes are not those of its manifest."""
    return MillraceError(
        f"{path} was changed: its SHA-256 is not the published one; restore it from a copy, then go on"
    )


def _row_filter(left_out: Sequence[OffsetRange]) -> Any:
    """The rows that stay, as a filter; None when all do."""
    if not left_out:
        return None
    partition, offset = pc.field("_partition"), pc.field("_offset")
    gone = pc.scalar(False)
    for range_ in left_out:
        gone |= (partition == range_.partition) & (offset >= range_.start) & (offset < range_.end)
    return ~gone


class DirectMerge:
    """Tasks that copy Parquet files with pyarrow."""

    def __init__(self, fs: Filesystem, run: Run) -> None:
        self._fs = fs
        self._storage = fs.for_tasks()
        self._run = run

    def write(self, sources: Sequence[HourSource], staging: str) -> list[DataFile]:
        with tasks_folder(self._fs, staging) as work:
            folder = self._fs.uri(work)
            tasks = [task for source in sources for task in self._tasks(source, folder)]
            files = [file for file in self._run(tasks) if file.rows]
            self._fs.gather(work, staging, [file.path for file in files])
        return files

    def _tasks(self, source: HourSource, target: str) -> Iterator[MergeTask]:
        inputs: list[list[MergeInput]] = []
        size = MERGE_BYTES
        for group in source.groups:
            for file in group.files:
                if size >= MERGE_BYTES:
                    inputs.append([])
                    size = 0
                path = self._fs.uri(f"{group.folder}/{file.path}")
                inputs[-1].append(MergeInput(path, file.sha256, group.left_out))
                size += file.bytes
        schema_file = self._fs.uri(source.newest_columns.schema_file)
        for index, some in enumerate(inputs):
            yield MergeTask(some, schema_file, self._storage, target, source.hour, index)
