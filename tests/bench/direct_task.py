"""One task of the direct sink, whole and stage by stage: what each costs of the CPU of its process.

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
from typing import Any

from millrace.audit.counts import SequenceCounts
from millrace.compression import Codec
from millrace.wire.client import LATEST, ClusterClient
from millrace_spark.decode import Decoder, frames_of
from millrace_spark.hour_files import HourFiles, count_rows
from millrace_spark.ranges import Range, RangeStats, cut_ranges
from millrace_spark.reading import FetchedBatches, read_cut
from millrace_spark.sinks import CutTask, Source, write_cut
from tests.bench.bench_hot_path import broker
from tests.bench.page_views import PAGE_VIEW, SCHEMA_ID, batches_of, page_views
from tests.bench.replay import produce_request
from tests.support import wait_until

TOPIC = "PageView"
BATCH_RECORDS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What one step of a task costs."""

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
    before, stages = 0.0, []
    for name, run in _up_to(task):
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
    return sum(file.bytes for file in done.files) / done.stats.records


def _best(run: Callable[[], object], passes: int) -> float:
    fastest = float("inf")
    for _ in range(passes):
        start = time.process_time()
        run()
        fastest = min(fastest, time.process_time() - start)
    return fastest


def _up_to(task: CutTask) -> list[tuple[str, Callable[[], object]]]:
    """A stage's name and the task from its beginning up to there."""

    def read(stats: RangeStats) -> Iterator[FetchedBatches]:
        client = task.source.connect()
        try:
            yield from read_cut(client, task.cut, stats)
        finally:
            client.close()

    def each(
        step: Callable[[RangeStats], Iterator[Any]], then: Callable[[Any], object] = lambda item: None
    ) -> None:
        for item in step(RangeStats.of(task.cut)):
            then(item)

    def framed(stats: RangeStats) -> Iterator[Any]:
        return frames_of(task.cut, read(stats), stats)

    def decoded(stats: RangeStats) -> Iterator[Any]:
        decoder = Decoder(task.source.table_schema, task.source.lookup)
        return decoder.decode(task.cut, read(stats), stats)

    def counted() -> None:
        counts = SequenceCounts()
        each(decoded, lambda item: count_rows(item.rows, counts))

    def written() -> None:
        counts = SequenceCounts()
        schema = Decoder(task.source.table_schema, task.source.lookup).arrow_schema
        with tempfile.TemporaryDirectory(dir=task.folder) as folder:
            files = HourFiles(Path(folder), "part", schema)

            def write(item: Any) -> None:
                count_rows(item.rows, counts)
                files.add(item.rows)

            each(decoded, write)
            files.close()

    return [
        ("fetch and check", partial(each, read)),
        ("unzip and frame", partial(each, framed)),
        ("decode", partial(each, decoded)),
        ("count audit sequences", counted),
        ("hours, Parquet, SHA-256", written),
    ]


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
        source = Source(partial(ClusterClient, address), {SCHEMA_ID: PAGE_VIEW}.get, PAGE_VIEW)
        cut = cut_ranges([Range(TOPIC, 0, 0, end, 0)], 1 << 60)[0]
        target = Path(folder) / "staging"
        target.mkdir()
        yield CutTask(source, cut, 0, str(target))


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
