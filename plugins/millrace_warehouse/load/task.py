"""One task of a load: reads a cut of the log, decodes it, writes Parquet and stores the files.

Spark only schedules. pyarrow writes into a local folder. Finished files are hashed and stored under their
final names in the folder of the attempt. A task may run twice. Each run has its own file names, and the
load's manifest names the files of the run whose result reached the driver.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import tempfile
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from millrace.client.cluster_client import ClusterClient
from millrace.errors import MillraceError
from millrace.records.row_cursor import Longs
from millrace_audit.reports.counts import FIRST_EVENT_MS, SequenceCounts
from millrace_warehouse.history.erasures import Erasing
from millrace_warehouse.history.hours import HOUR_US, UNFILED, hour_of
from millrace_warehouse.history.manifest import DataFile, RejectedFile, TombstoneFile
from millrace_warehouse.history.metrics import metrics_of
from millrace_warehouse.history.stored import store
from millrace_warehouse.load.hour_files import HourFile, HourFiles
from millrace_warehouse.load.rejections import REJECTED_SCHEMA, AsideFile, Reasons, rejected_rows
from millrace_warehouse.log.formats import AVRO_MESSAGES, MessageFormat
from millrace_warehouse.log.kinds import FIRST_BYTES, TOMBSTONE, Kind, Look, name_format
from millrace_warehouse.log.messages import TOMBSTONES, DecodedBatch, Decoder, Filing
from millrace_warehouse.log.ranges import Cut, RangeStats
from millrace_warehouse.log.reading import read_cut
from millrace_warehouse.sequences import count_sequences
from millrace_warehouse.storage.interface import Storage
from millrace_warehouse.table_layout import NO_LAYOUT, TableLayout

if TYPE_CHECKING:
    from millrace_warehouse.arranging import Arranger
    from millrace_warehouse.load.erased import Eraser

T = TypeVar("T")
R = TypeVar("R")

_NO_HOUR = -1


@dataclass(frozen=True, slots=True)
class Source:
    """Settings for reading. Tasks receive them, so both functions must be picklable."""

    connect: Callable[[], AbstractContextManager[ClusterClient]]
    """Function that opens a client, which is closed after the task."""
    lookup: Callable[[int], Mapping[str, Any] | None]
    table_schema: Mapping[str, Any]
    """The Avro schema to which messages are resolved."""
    columns: pa.Schema
    """Columns of the Parquet files, with field ids."""
    iceberg: Mapping[str, Any]
    """The same columns as an Iceberg schema."""
    messages: MessageFormat = AVRO_MESSAGES
    layout: TableLayout = NO_LAYOUT


@dataclass(frozen=True, slots=True, kw_only=True)
class CutTask:
    """A cut, and the folder for its files."""

    source: Source
    cut: Cut
    index: int
    storage: Storage
    folder: str
    """Folder of the attempt."""
    filing: Filing
    erasing: Sequence[Erasing] = ()
    """Erasures whose rows are left out and counted."""
    prefix: str = ""
    """Beginning of the names of its files."""


@dataclass(frozen=True, slots=True)
class CutResult:
    """Result of one task; small, because the driver holds the result of every task."""

    stats: RangeStats
    files: Sequence[tuple[DataFile, bytes]]
    """Each file of rows with its metrics, as `history.metrics` packs them."""
    rejected: Sequence[RejectedFile]
    tombstones: Sequence[TombstoneFile]
    packed_sequences: bytes
    reasons: Mapping[Kind, Mapping[str, int]]
    """Kind -> reason -> rejected records."""
    aside_by_hour: Mapping[tuple[str, str], int]
    """Hour and kind -> messages that did not become rows."""
    foreign: bytes
    """First bytes of a message with a foreign framing; empty without such a message."""
    looks: Mapping[Kind, Look]
    """Kind -> what the first of its rejected records looks like."""
    erased: Mapping[tuple[str, int, str], int] = field(default_factory=dict)
    """Erasure, partition and hour -> rows that were left out."""
    packed_erased: bytes = b""
    """Packed sequence numbers of the rows that were left out; empty when nothing was erased."""

    @property
    def figures(self) -> tuple[int, int]:
        """Records and bytes that were read, for the progress of the load."""
        return self.stats.records, self.stats.bytes

    @property
    def sequences(self) -> SequenceCounts:
        return _unpacked(self.packed_sequences)

    @property
    def erased_sequences(self) -> SequenceCounts:
        return _unpacked(self.packed_erased) if self.packed_erased else SequenceCounts()


class RunTasks(Protocol):
    """Runs a function on every task: in a Spark job, or one after the other. Returns the results in order."""

    def __call__(self, function: Callable[[T], R], tasks: Sequence[T], /) -> list[R]: ...


def write_cut(task: CutTask) -> CutResult:
    """Read, decode and store one cut. It may run twice for a cut: every run has its own file names."""
    stats, counts, source = RangeStats.for_cut(task.cut), SequenceCounts(), task.source
    decoder = Decoder(source.table_schema, source.lookup, task.filing, source.messages)
    erased = _Erased(task)
    with scratch() as folder, source.connect() as client:
        files = HourFiles(folder, f"{task.index:05d}", source.columns, arranger_of(source))
        aside = _Aside(task, folder)
        for batch in decoder.decode(task.cut, read_cut(client, task.cut, stats), stats):
            rows = erased.kept(batch.rows)
            files.add(rows)
            count_sequences(rows, counts)
            aside.add(batch)
        stored = store_hours(task, files.close())
        rejected, tombstones = aside.stored(stats.rejected)
    return CutResult(
        stats,
        stored,
        rejected,
        tombstones,
        pack_sequences(counts),
        {kind: reasons.counts for kind, reasons in aside.reasons.items()},
        aside.by_hour,
        aside.foreign,
        aside.looks,
        *erased.result(),
    )


def store_hours(task: CutTask, files: Sequence[HourFile]) -> list[tuple[DataFile, bytes]]:
    """Store a task's finished files of rows. Return each with its metrics."""
    return [
        (
            DataFile(**store_local(task, file.path, file.hour), hour=file.hour, rows=file.rows),
            metrics_of(file.metadata, task.source.iceberg, file.partition),
        )
        for file in files
    ]


def arranger_of(source: Source) -> Arranger | None:
    """Return what splits and sorts rows by the table's layout, or None for hours alone."""
    if not source.layout:
        return None
    # Imported only here: pyiceberg's import would cost every new worker 0.3 s.
    from pyiceberg.schema import Schema

    from millrace_warehouse.arranging import Arranger

    return Arranger(source.layout, Schema.model_validate(source.iceberg))


class _Aside:
    """A task's messages that did not become rows: written into separate files, and counted."""

    def __init__(self, task: CutTask, folder: Path) -> None:
        self._task = task
        with_bytes = not any(each.rejected for each in task.erasing)
        self._rejected = AsideFile(folder / "rejected.parquet", REJECTED_SCHEMA, with_bytes=with_bytes)
        self._tombstones = AsideFile(folder / "tombstones.parquet", TOMBSTONES, with_bytes=with_bytes)
        self.reasons = {kind: Reasons() for kind in Kind}
        self.by_hour = Counter[tuple[str, str]]()
        self.foreign = b""
        self.looks = dict[Kind, Look]()

    def add(self, batch: DecodedBatch) -> None:
        if batch.tombstones is not None:
            self._tombstones.add(pa.Table.from_batches([batch.tombstones]))
            numbers = self._hours(batch.tombstones["timestamp"].to_numpy())
            for number, count in zip(*np.unique(numbers, return_counts=True), strict=True):
                self.by_hour[_filed(number), TOMBSTONE] += int(count)
        if not batch.rejected:
            return
        self._rejected.add(rejected_rows(batch.rejected))
        hours = self._hours(np.array([record.timestamp for record in batch.rejected], np.int64))
        for record, number in zip(batch.rejected, hours, strict=True):
            self.by_hour[_filed(number), record.kind.value] += record.records
            self.reasons[record.kind].add([(record.reason, record.records)])
            if record.kind not in self.looks and not record.is_batch:
                self.looks[record.kind] = name_format(record.raw)
            if record.kind == Kind.FOREIGN_FRAMING:
                self.foreign = self.foreign or record.raw[:FIRST_BYTES]

    def _hours(self, times_ms: Longs) -> Longs:
        """Return the hour number of each message, or _NO_HOUR where a row with that time would be UNFILED."""
        sound = (times_ms >= FIRST_EVENT_MS) & (times_ms < self._task.filing.file_by_ms)
        return np.where(sound, times_ms // (HOUR_US // 1000), _NO_HOUR)

    def stored(self, records: int) -> tuple[list[RejectedFile], list[TombstoneFile]]:
        """Store the files that have rows. The rows of the rejected file stand for `records` records."""
        task, rejected, tombstones = self._task, list[RejectedFile](), list[TombstoneFile]()
        if self._rejected.close():
            described = store_local(task, self._rejected.path, "rejected")
            rejected.append(RejectedFile(**described, rows=self._rejected.rows, records=records))
        if self._tombstones.close():
            described = store_local(task, self._tombstones.path, "tombstones")
            tombstones.append(TombstoneFile(**described, rows=self._tombstones.rows))
        return rejected, tombstones


def _filed(number: int) -> str:
    """Return the hour for a number that `_Aside._hours` returned."""
    return UNFILED if number == _NO_HOUR else hour_of(int(number))


class _Erased:
    """Removes erased rows from a task's batches. Usually no erasure is in force."""

    def __init__(self, task: CutTask) -> None:
        self._eraser: Eraser | None = None
        if task.erasing:
            # Imported only here: pyiceberg's import would cost every new worker 0.3 s.
            from pyiceberg.schema import Schema

            from millrace_warehouse.load.erased import Eraser

            self._eraser, self._schema = Eraser(task.erasing), Schema.model_validate(task.source.iceberg)

    def kept(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows if self._eraser is None else self._eraser.kept(rows, self._schema)

    def result(self) -> tuple[Mapping[tuple[str, int, str], int], bytes]:
        if self._eraser is None or not self._eraser.taken:
            return {}, b""
        return self._eraser.taken, pack_sequences(self._eraser.sequences)


def _unpacked(packed: bytes) -> SequenceCounts:
    return SequenceCounts.from_json(json.loads(zlib.decompress(packed)))


def pack_sequences(counts: SequenceCounts) -> bytes:
    """Pack the counts into bytes for `CutResult.sequences`."""
    return zlib.compress(json.dumps(counts.to_json()).encode(), 1)


def store_local(task: CutTask, local: Path, what: str) -> dict[str, Any]:
    """Store a finished file under a unique name; return the values of its StoredFile."""
    # The cut's index in the name sorts a load's files in the order of the log.
    path = f"{task.folder}/{task.prefix}{what}-{task.index:05d}-{uuid.uuid4().hex[:8]}.parquet"
    with open(local, "rb") as file:
        stored = store(task.storage, path, file)
    local.unlink()
    return asdict(stored)


@contextmanager
def scratch() -> Iterator[Path]:
    """Return a temporary folder in Spark's local directory, which Spark deletes after a killed task."""
    spark = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    parent = spark if spark and Path(spark).is_dir() else None
    try:
        with tempfile.TemporaryDirectory(prefix="millrace-", dir=parent) as name:
            yield Path(name)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise MillraceError(
            f"no room for a task's files in {parent or tempfile.gettempdir()} of {socket.gethostname()}: make"
            " room, or name another folder with TMPDIR, on Spark with --conf spark.local.dir=FOLDER, then run"
            " again"
        ) from None
