"""One task of a load, whole and stage by stage: what each costs of the CPU of its process.

    with topic_of_page_views(records, Codec.NONE) as task:
        for stage in direct_task(task):
            print(stage.name, stage.rate)

The task runs in this process, as it is: `write_cut` on a cut of a real broker's log. A stage is the
difference between a run that ends behind it and one that ends before it; the best of several passes counts,
because on a shared machine others only ever add.
"""

from __future__ import annotations

import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from millrace.client.cluster_client import LATEST, ClusterClient
from millrace.records.compression import Codec
from millrace_audit.reports.counts import SequenceCounts
from millrace_warehouse.history.layout import Topic
from millrace_warehouse.history.schemas import first_schema
from millrace_warehouse.load.hour_files import HourFiles
from millrace_warehouse.load.range_writer import Pinned
from millrace_warehouse.load.task import CutTask, write_cut
from millrace_warehouse.log.messages import DecodedBatch, Decoder, Filing, frames_of
from millrace_warehouse.log.ranges import Range, RangeStats, cut_ranges
from millrace_warehouse.log.reading import FetchedBatches, read_cut
from millrace_warehouse.sequences import count_sequences
from millrace_warehouse.storage import open_storage
from tests.bench.bench_hot_path import broker
from tests.bench.page_views import PAGE_VIEW, SCHEMA_ID, batches_of, page_views
from tests.bench.replay import produce_request
from tests.support import wait_until

TOPIC = "PageView"
BATCH_RECORDS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Costs of one step of a task."""

    name: str
    records: int
    cpu_s: float

    @property
    def rate(self) -> float:
        """Millions of records per CPU-second; 0 where the step cannot be told from nothing."""
        return self.records / self.cpu_s / 1e6 if self.cpu_s > 0 else 0.0


def direct_task(task: CutTask, passes: int = 5) -> list[Stage]:
    """Every stage of a task on this cut in order, and last the whole task."""
    records = write_cut(task).stats.records
    before, stages, steps = 0.0, [], _Steps(task)
    for name, run in (
        ("fetch and check", steps.read),
        ("unzip and frame", steps.frame),
        ("decode", steps.decode),
        ("count audit sequences", steps.count),
        ("hours, Parquet", steps.write),
    ):
        cpu_s = _best(run, passes)
        stages.append(Stage(name=name, records=records, cpu_s=cpu_s - before))
        before = cpu_s
    stages.append(
        Stage(name="the whole task", records=records, cpu_s=_best(partial(write_cut, task), passes))
    )
    return stages


def written_bytes(task: CutTask) -> float:
    """Bytes of Parquet per record."""
    done = write_cut(task)
    return sum(file.bytes for file, _ in done.files) / done.stats.records


def _best(run: Callable[[], object], passes: int) -> float:
    fastest = float("inf")
    for _ in range(passes):
        start = time.process_time()
        run()
        fastest = min(fastest, time.process_time() - start)
    return fastest


class _Steps:
    """A task from its beginning up to each of its steps."""

    def __init__(self, task: CutTask) -> None:
        self._task = task

    def read(self) -> None:
        for _ in self._fetched(self._stats()):
            pass

    def frame(self) -> None:
        stats = self._stats()
        for _ in frames_of(self._task.cut, self._fetched(stats), stats):
            pass

    def decode(self) -> None:
        for _ in self._decoded():
            pass

    def count(self) -> None:
        counts = SequenceCounts()
        for decoded in self._decoded():
            count_sequences(decoded.rows, counts)

    def write(self) -> None:
        counts = SequenceCounts()
        with tempfile.TemporaryDirectory() as folder:
            files = HourFiles(Path(folder), "part", self._task.source.columns)
            for decoded in self._decoded():
                count_sequences(decoded.rows, counts)
                files.add(decoded.rows)
            files.close()

    def _stats(self) -> RangeStats:
        return RangeStats.for_cut(self._task.cut)

    def _decoder(self) -> Decoder:
        return Decoder(self._task.source.table_schema, self._task.source.lookup, self._task.filing)

    def _fetched(self, stats: RangeStats) -> Iterator[FetchedBatches]:
        with self._task.source.connect() as client:
            yield from read_cut(client, self._task.cut, stats)

    def _decoded(self) -> Iterator[DecodedBatch]:
        stats = self._stats()
        return self._decoder().decode(self._task.cut, self._fetched(stats), stats)


@contextmanager
def topic_of_page_views(records: int, codec: Codec) -> Iterator[CutTask]:
    """A task for the one partition of a topic with that many PageViews, on a broker of its own."""
    with tempfile.TemporaryDirectory() as folder, broker(Path(folder)) as (address, _):
        with ClusterClient(address) as client:
            client.create_topic(TOPIC, 1, {"retention.ms": "-1"})
            last = _produce(
                address, [raw for _, raw in batches_of(list(page_views(records)), codec, BATCH_RECORDS)]
            )
            wait_until("all is readable", lambda: client.list_offsets(TOPIC, LATEST)[0] > last)
            end = client.list_offsets(TOPIC, LATEST)[0]
        target = Path(folder) / "warehouse"
        target.mkdir()
        storage = open_storage(str(target))
        record = first_schema(Topic(storage, TOPIC), SCHEMA_ID, PAGE_VIEW)
        source = Pinned.from_schema(
            record, partial(ClusterClient, address), {SCHEMA_ID: PAGE_VIEW}.get
        ).source
        cut = cut_ranges([Range(TOPIC, 0, 0, end, 0)], 1 << 60)[0]
        filing = Filing(load=1, file_by_ms=int(time.time() * 1000))
        yield CutTask(
            source=source, cut=cut, index=0, storage=storage, folder=f"{TOPIC}/rows/bench", filing=filing
        )


def _produce(address: str, batches: Sequence[bytes]) -> int:
    """Produce batches one after the other; the base offset of the last."""
    host, _, port = address.rpartition(":")
    base = -1
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        answers = connection.makefile("rb")
        for batch in batches:
            connection.sendall(produce_request(TOPIC, {0: batch}, 1))
            (size,) = struct.unpack(">i", answers.read(4))
            _, error, base = struct.unpack_from(">ihq", answers.read(size), 4 + 4 + 2 + len(TOPIC) + 4)
            if error:
                raise ConnectionError(f"the broker answers with error {error}")
    return int(base)
