"""Merges the small files of several tasks into the files that one task would have written.

A resident loader reads a load in many small tasks. Their rows become one file for each hour, and their
rejected records and tombstones one file each. All counts stay as the tasks reported them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from millrace_warehouse.history.manifest import RejectedFile, StoredFile, TombstoneFile
from millrace_warehouse.load.hour_files import HourFiles
from millrace_warehouse.load.rejections import REJECTED_SCHEMA, AsideFile
from millrace_warehouse.load.task import CutResult, CutTask, arranger_of, scratch, store_hours, store_local
from millrace_warehouse.log.messages import TOMBSTONES
from millrace_warehouse.storage import open_file


def merge_files(task: CutTask, results: Sequence[CutResult]) -> list[CutResult]:
    """Write the files of the results again, as files of `task`. Return the results with these files instead.

    Each hour keeps the order of the results. The first result names all new files.
    """
    rejected = [file for result in results for file in result.rejected]
    tombstones = [file for result in results for file in result.tombstones]
    with scratch() as folder:
        local = HourFiles(folder, f"{task.index:05d}", task.source.columns, arranger_of(task.source))
        data = (file for result in results for file, _ in result.files)
        for file in sorted(data, key=lambda file: file.hour):  # hour by hour, so that few files are open
            _copy_rows(task, file, local)
        files = store_hours(task, local.close())
        merged_rejected = [
            RejectedFile(**described, rows=rows, records=sum(file.records for file in rejected))
            for described, rows in _merged(task, folder, "rejected", REJECTED_SCHEMA, rejected)
        ]
        merged_tombstones = [
            TombstoneFile(**described, rows=rows)
            for described, rows in _merged(task, folder, "tombstones", TOMBSTONES, tombstones)
        ]
    first, *others = results
    return [
        replace(first, files=files, rejected=merged_rejected, tombstones=merged_tombstones),
        *(replace(result, files=(), rejected=(), tombstones=()) for result in others),
    ]


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
