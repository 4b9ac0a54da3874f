"""A sink writes a load's Parquet files into its staging folder and accounts for every record.

`direct`: each task reads its cut, decodes it and writes Parquet with pyarrow; Spark only schedules. It takes
a quarter of the CPU of `spark` (`spark_sink`), and needs a storage that tasks see as a folder or reach
through WebHDFS. Tasks write into a folder beside the staging folder, and the driver moves over the files that
count: an attempt that was given up, or woke up later, cannot put anything into a published folder, because it
never knew that one. Publishes nothing: `warehouse.staging.publish` does.
"""

from __future__ import annotations

import json
import uuid
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

from millrace.client.cluster_client import ClusterClient
from millrace_audit.reports.counts import SequenceCounts
from millrace_warehouse.history.manifest import DataFile
from millrace_warehouse.history.staging import tasks_folder
from millrace_warehouse.load.hour_files import HourFiles
from millrace_warehouse.load.rejections import Reasons, RejectedFile
from millrace_warehouse.load.sequences import count_sequences
from millrace_warehouse.log.messages import Decoder
from millrace_warehouse.log.ranges import Cut, RangeStats
from millrace_warehouse.log.reading import read_cut
from millrace_warehouse.storage.filesystem import Filesystem
from millrace_warehouse.storage.task_storage import TaskStorage


@dataclass(frozen=True, slots=True)
class Source:
    """What a task reads with; travels to the tasks, so both callables must be picklable."""

    connect: Callable[[], ClusterClient]
    lookup: Callable[[int], Mapping[str, Any] | None]
    table_schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CutTask:
    """One task of the direct sink: a cut and the folder its files go to."""

    source: Source
    cut: Cut
    index: int
    storage: TaskStorage
    folder: str


@dataclass(frozen=True, slots=True)
class CutResult:
    """What one task did: its account, its files by path in the staging folder, its packed sequences."""

    stats: RangeStats
    files: list[DataFile]
    packed_sequences: bytes
    """Small, because the driver holds the result of every task."""
    reasons: Mapping[str, int]
    """Why records were rejected, and how many."""

    @classmethod
    def of(
        cls, stats: RangeStats, files: list[DataFile], counts: SequenceCounts, reasons: Reasons
    ) -> CutResult:
        packed = zlib.compress(json.dumps(counts.to_json()).encode(), 1)
        return cls(stats, files, packed, reasons.counts)

    @property
    def sequences(self) -> SequenceCounts:
        return SequenceCounts.from_json(json.loads(zlib.decompress(self.packed_sequences)))


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
        self._fs = fs
        self._storage = fs.for_tasks()
        self._run = run

    def write(self, source: Source, cuts: Sequence[Cut], staging: str) -> list[CutResult]:
        with tasks_folder(self._fs, staging) as work:
            folder = self._fs.uri(work)
            tasks = [CutTask(source, cut, index, self._storage, folder) for index, cut in enumerate(cuts)]
            results = self._run(tasks)
            self._fs.gather(work, staging, [file.path for result in results for file in result.files])
        return results


def write_cut(task: CutTask) -> CutResult:
    """Read, decode and write one cut. May run twice for one cut: every attempt has file names of its own."""
    stats, counts, reasons = RangeStats.of(task.cut), SequenceCounts(), Reasons()
    decoder = Decoder(task.source.table_schema, task.source.lookup)
    # In the order of the cuts, so that a table reads in the order of the log; unique by the attempt.
    name = f"part-{task.index:05d}-{uuid.uuid4().hex[:12]}"
    with task.storage.writing(task.folder) as folder, closing(task.source.connect()) as client:
        files, rejected = HourFiles(folder, name, decoder.arrow_schema), RejectedFile(folder, name)
        for batch in decoder.decode(task.cut, read_cut(client, task.cut, stats), stats):
            files.add(batch.rows)
            count_sequences(batch.rows, counts)
            rejected.add(batch.rejected)
            reasons.add(batch.rejected)
        written = files.close() + rejected.close()
    return CutResult.of(stats, written, counts, reasons)
