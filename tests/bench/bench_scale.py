"""What a publication costs in a table of years, and after thousands of publications.

    python -m tests.bench.bench_scale [--hours 26280] [--publications 5000] [--directory DIR]

First a table of so many hours, one file each, and what is done to it then. Then so many publications of one
late file each, the first hundred and the last; exit code 1 when the last take more than twice the CPU.

Prints medians: ms by the clock, and ms of the process's CPU. Loads are manifests and entries as a load writes
them. Their Parquet files are one byte: a publication looks for them and opens none.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from millrace_warehouse.history import layout, ledger
from millrace_warehouse.history.entries import write_entries
from millrace_warehouse.history.manifest import (
    DataFile,
    LoadManifest,
    PartitionRange,
    StoredFile,
    encode,
    now,
    sealed,
)
from millrace_warehouse.history.metrics import metrics_of
from millrace_warehouse.history.schemas import SchemaRecord
from millrace_warehouse.publish.publisher import PublishResult
from millrace_warehouse.publish.readers import describe_table
from tests.loaded import pin
from tests.published import TOPIC, Warehouse, warehouse

START = datetime(2015, 5, 17, tzinfo=UTC)
TURNS = 9
FEW = 100
GROWTH = 2.0
"""Most times that the last publications may take as long as the first."""


def hour(number: int) -> str:
    return (START + timedelta(hours=number)).isoformat()[: len("2015-05-17T10")]


class Loads:
    """Loads of one row an hour, whose files only their manifests know."""

    def __init__(self, scene: Warehouse) -> None:
        self._scene, self._record = scene, pin(scene.storage, TOPIC)
        self._newest: LoadManifest | None = None

    def load(self, hours: Sequence[int]) -> LoadManifest:
        """The next load, with a row of each hour."""
        before = self._newest
        number = 1 if before is None else before.load + 1
        start = 0 if before is None else before.ends[0]
        self._newest = self._write(number, 1, hours, start, before)
        return self._newest

    def read_again(self, load: LoadManifest, hours: Sequence[int]) -> None:
        """The load's second edition, with its rows in other hours."""
        self._write(load.load, 2, hours, load.partitions[0].start, load)

    def _write(
        self, number: int, edition: int, hours: Sequence[int], start: int, before: LoadManifest | None
    ) -> LoadManifest:
        storage, attempt = self._scene.storage, f"{edition:04d}-{uuid.uuid4().hex[:16]}"
        folder = f"rows/{number:010d}-{attempt}"
        metrics = metrics_of(_footer(self._record, number), self._record.iceberg)
        paths = {n: f"{folder}/{hour(n)}-0000-{n:08x}.parquet" for n in hours}
        files = [DataFile(path=path, bytes=1, sha256="", hour=hour(n), rows=1) for n, path in paths.items()]
        (self._scene.topic / folder).mkdir(parents=True)
        for path in paths.values():
            (self._scene.topic / path).write_bytes(b"-")
        content = write_entries([(file, metrics) for file in files], self._record.iceberg)
        storage.put(f"{TOPIC}/{folder}/entries.avro", io.BytesIO(content))
        sha256 = hashlib.sha256(content).hexdigest()
        part = PartitionRange(
            partition=0,
            start=start,
            end=start + len(files),
            read=len(files),
            written=len(files),
            data_batches=1,
        )
        manifest = sealed(
            LoadManifest(
                topic=TOPIC,
                topic_id="topic-id",
                cluster_id="cluster",
                load=number,
                edition=edition,
                attempt=attempt,
                run_id=f"run-{number}.{edition}",
                created=now(),
                schema=self._record.number,
                file_by_ms=4102444800000,
                partitions=[part],
                files=files,
                entries=StoredFile(path=f"{folder}/entries.avro", bytes=len(content), sha256=sha256),
                reason=None if edition == 1 else "a measurement",
                previous=None if before is None else before.sha256,
            )
        )
        path = layout.edition_path(TOPIC, number, edition)
        assert storage.create(path, encode(manifest))
        ledger.record(storage, path, manifest)
        return manifest


def _footer(record: SchemaRecord, load: int) -> pq.FileMetaData:
    row = {
        "url": "/",
        "_time": START,
        "_topic_partition": 0,
        "_offset": 1,
        "_timestamp": START,
        "_load": load,
    }
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([row], record.arrow_schema), buffer)
    return pq.read_metadata(buffer)


Times = tuple[float, float]
"""Milliseconds by the clock, and of the process's CPU."""


def timed(action: Callable[[], object]) -> Times:
    """How long it takes."""
    clock, cpu = time.perf_counter(), time.process_time()
    action()
    return (time.perf_counter() - clock) * 1000, (time.process_time() - cpu) * 1000


def show(what: str, times: Sequence[Times]) -> float:
    """Print the medians, and give that of the CPU."""
    clock = statistics.median(clock for clock, _ in times)
    cpu = statistics.median(cpu for _, cpu in times)
    print(f"{what:56} {clock:9.1f} ms {cpu:9.1f} ms CPU", flush=True)
    return cpu


def measure_years(folder: Path, hours: int) -> None:
    """What is done to a table of so many hours."""
    with warehouse(folder) as scene:
        loads = Loads(scene)
        loads.load(range(hours))
        show(f"the first publication, of {hours:,} hours", [timed(lambda: publish(scene, range(hours)))])
        late, moved, idle = [], [], []
        for turn in range(TURNS):
            load = loads.load([turn * 37])
            late.append(timed(lambda: publish(scene)))
            loads.read_again(load, [turn * 37 + 1])
            moved.append(timed(lambda: publish(scene)))
            idle.append(timed(lambda: publish(scene)))
        show("a late row", late)
        show("a load that was read again, its row in another hour", moved)
        show("nothing to publish", idle)
        table = scene.table
        day = "_time >= '2015-06-01T00:00:00+00:00' and _time < '2015-06-02T00:00:00+00:00'"
        show("millrace tables", [timed(lambda: describe_table(scene.storage, scene.catalog, TOPIC))])
        show("a reader loads the table", [timed(lambda: scene.table) for _ in range(TURNS)])
        plan = [timed(lambda: list(table.scan(row_filter=day).plan_files())) for _ in range(TURNS)]
        show("a reader plans a day", plan)
        show("a reader plans everything", [timed(lambda: list(table.scan().plan_files()))])


def publish(scene: Warehouse, hours: Sequence[int] = ()) -> PublishResult:
    return scene.publish(*map(hour, hours))


def measure_publications(folder: Path, publications: int) -> bool:
    """So many publications of a late file each; False when the last ones take longer."""
    with warehouse(folder) as scene:
        loads = Loads(scene)
        loads.load(range(24))
        publish(scene, range(24))
        times = []
        for number in range(publications):
            loads.load([number % 24])
            times.append(timed(lambda: publish(scene)))
        first = show(f"publications 1 to {FEW}", times[:FEW])
        last = show(f"publications {publications - FEW + 1:,} to {publications:,}", times[-FEW:])
        metadata = scene.table.metadata_location.removeprefix("file://")
        print(f"{'metadata.json':56} {Path(metadata).stat().st_size / 1000:9.1f} kB")
        return last <= GROWTH * first


def main() -> None:
    """Measure, print, and end with 1 when a time grows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=int, default=26_280, help="Hours of the table: three years.")
    parser.add_argument("--publications", type=int, default=5_000)
    parser.add_argument("--directory", type=Path, help="Where the warehouse is; default: a temporary folder.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-scale-", dir=options.directory) as folder:
        measure_years(Path(folder, "years"), options.hours)
        if not measure_publications(Path(folder, "publications"), options.publications):
            sys.exit(f"publications take more than {GROWTH:g} times as long as at the beginning")


if __name__ == "__main__":
    main()
