"""Merges the small files of several tasks into the files that one task would have written.

A resident loader reads a load in many small tasks. Their rows become one file for each hour, or several for
a large hour. Their rejected records and tombstones become one file each. All counts stay as they were.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from millrace_warehouse.history.manifest import DataFile, RejectedFile, StoredFile, TombstoneFile
from millrace_warehouse.load.hour_files import HourFiles
from millrace_warehouse.load.rejections import REJECTED_SCHEMA, AsideFile
from millrace_warehouse.load.task import (
    CutResult,
    CutTask,
    RunTasks,
    arranger_of,
    scratch,
    store_hours,
    store_local,
)
from millrace_warehouse.log.messages import TOMBSTONES
from millrace_warehouse.storage import open_file

MERGE_BYTES = 128 << 20
"""Most bytes of small files that one task merges. A larger hour becomes several files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeTask:
    """Small files that one task writes again."""

    into: CutTask
    """Folder, index and columns of the new files; its cut is not read."""
    files: Sequence[DataFile] = ()
    rejected: Sequence[RejectedFile] = ()
    tombstones: Sequence[TombstoneFile] = ()


@dataclass(frozen=True, slots=True)
class Merged:
    """The new files of one task."""

    files: Sequence[tuple[DataFile, bytes]]
    rejected: Sequence[RejectedFile]
    tombstones: Sequence[TombstoneFile]


def merge_files(run_tasks: RunTasks, into: CutTask, results: Sequence[CutResult]) -> list[CutResult]:
    """Write the files of the results again, in tasks. Return the results with these files instead.

    Each hour keeps the order of the results. The first result names all new files.
    """
    rejected = [file for result in results for file in result.rejected]
    tombstones = [file for result in results for file in result.tombstones]
    tasks = [MergeTask(into=into, files=files) for files in _groups(results)]
    if rejected or tombstones:
        tasks.append(MergeTask(into=into, rejected=rejected, tombstones=tombstones))
    numbered = [replace(task, into=replace(into, index=index)) for index, task in enumerate(tasks)]
    merged = run_tasks(merge, numbered)
    first, *others = results
    return [
        replace(
            first,
            files=[file for each in merged for file in each.files],
            rejected=[file for each in merged for file in each.rejected],
            tombstones=[file for each in merged for file in each.tombstones],
        ),
        *(replace(result, files=(), rejected=(), tombstones=()) for result in others),
    ]


def _groups(results: Sequence[CutResult]) -> Iterator[list[DataFile]]:
    """Yield the files of rows, hour by hour, in groups of about MERGE_BYTES."""
    data = sorted((file for result in results for file, _ in result.files), key=lambda file: file.hour)
    for _, files in itertools.groupby(data, key=lambda file: file.hour):
        group = list[DataFile]()
        for file in files:
            if group and sum(each.bytes for each in group) + file.bytes > MERGE_BYTES:
                yield group
                group = []
            group.append(file)
        yield group


def merge(task: MergeTask) -> Merged:
    """Write the files of a task again. It may run twice: every run has its own file names."""
    into = task.into
    with scratch() as folder:
        local = HourFiles(folder, f"{into.index:05d}", into.source.columns, arranger_of(into.source))
        for file in task.files:
            _copy_rows(into, file, local)
        return Merged(
            store_hours(into, local.close()),
            [
                RejectedFile(**described, rows=rows, records=sum(file.records for file in task.rejected))
                for described, rows in _merged(into, folder, "rejected", REJECTED_SCHEMA, task.rejected)
            ],
            [
                TombstoneFile(**described, rows=rows)
                for described, rows in _merged(into, folder, "tombstones", TOMBSTONES, task.tombstones)
            ],
        )


def _copy_rows(task: CutTask, file: StoredFile, local: HourFiles) -> None:
    with open_file(task.storage, _path(task, file)) as content, pq.ParquetFile(content) as parquet:
        for batch in parquet.iter_batches():
            local.add(batch)


def _merged(
    task: CutTask, folder: Path, kind: str, schema: pa.Schema, files: Iterable[StoredFile]
) -> list[tuple[dict[str, Any], int]]:
    """Return the description and rows of the file that has all rows of these files; empty without rows."""
    local = AsideFile(folder / f"{kind}.parquet", schema)
    for file in files:
        with open_file(task.storage, _path(task, file)) as content:
            local.add(pq.read_table(content, partitioning=None).cast(schema))
    return [(store_local(task, local.path, kind), local.rows)] if local.close() else []


def _path(task: CutTask, file: StoredFile) -> str:
    return f"{task.cut.range.topic}/{file.path}"
