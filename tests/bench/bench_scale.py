"""Costs of a publication and of a reader in a table of years, made by thousands of publications.

    python -m tests.bench.bench_scale [--hours 26280] [--publications 5000] [--directory DIR]

The first publication has so many hours, one file each. Each later one has the next hour, and a late row of
the two days before it. Then everything that is done to such a table is measured. Exit code 1 when the last
hundred publications took more than twice the CPU of the first hundred.

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
from millrace_warehouse.history.schemas import TableSchema
from millrace_warehouse.publish import committer, publisher
from millrace_warehouse.publish.hours_table import bring_up_to_date
from millrace_warehouse.publish.publisher import PublishResult
from millrace_warehouse.publish.readers import describe_table
from tests.loaded import pin
from tests.published import TOPIC, Warehouse, warehouse

START = datetime(2015, 5, 17, tzinfo=UTC)
TURNS = 9
FEW = 100
MANY = 2_000
KEPT = committer.SNAPSHOTS
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
        metrics = metrics_of(footer(self._record, number), self._record.iceberg)
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
        ledger.add_to_ledger(storage, path, manifest)
        return manifest


def footer(record: TableSchema, load: int) -> pq.FileMetaData:
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
    """Measure how long the action takes, in ms."""
    clock, cpu = time.perf_counter(), time.process_time()
    action()
    return (time.perf_counter() - clock) * 1000, (time.process_time() - cpu) * 1000


def show(what: str, times: Sequence[Times]) -> float:
    """Print the medians, and give that of the CPU."""
    clock = statistics.median(clock for clock, _ in times)
    cpu = statistics.median(cpu for _, cpu in times)
    print(f"{what:56} {clock:9.1f} ms {cpu:9.1f} ms CPU", flush=True)
    return cpu


def measure(folder: Path, hours: int, publications: int) -> bool:
    """Everything that is done to a table of so many hours and publications; False when these get slower."""
    with warehouse(folder) as scene:
        loads = Loads(scene)
        loads.load(range(hours))
        show(f"the first publication, of {hours:,} hours", [timed(lambda: publish(scene, range(hours)))])
        made = []
        for number in range(hours, hours + publications):
            loads.load([number - 1 - number % 48, number])
            # Those between the measured ones take half the time: they are only to be there.
            measured = number < hours + FEW or number >= hours + publications - FEW - KEPT
            committer.SNAPSHOTS = KEPT if measured else 2
            publisher.bring_up_to_date = bring_up_to_date if measured else lambda *_: None  # type: ignore[attr-defined]
            made.append(timed(lambda: publish(scene, [number])))  # noqa: B023
        first = show(f"an hour and a late row, publications 1 to {FEW}", made[:FEW])
        last = show(f"an hour and a late row, the last {FEW} of {publications:,} publications", made[-FEW:])
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
        show("millrace tables", [timed(lambda: describe_table(scene.storage, scene.catalog, TOPIC))])
        show("a reader loads the table", [timed(lambda: scene.table) for _ in range(TURNS)])
        for what, start in (("an old day", 2), ("yesterday", (hours + publications) // 24 - 2)):
            since, until = (hour(24 * day) for day in (start, start + 1))
            day = f"_time >= '{since}:00:00+00:00' and _time < '{until}:00:00+00:00'"
            plan = [timed(lambda: list(table.scan(row_filter=day).plan_files())) for _ in range(TURNS)]  # noqa: B023
            show(f"a reader plans {what}", plan)
        show("a reader plans everything", [timed(lambda: list(table.scan().plan_files()))])
        many = range(hours + publications, hours + publications + MANY)
        loads.load(many)
        show(f"a publication of {MANY:,} hours", [timed(lambda: publish(scene, many))])
        metadata = table.metadata_location.removeprefix("file://")
        print(f"{'metadata.json':56} {Path(metadata).stat().st_size / 1000:9.1f} kB")
        return last <= GROWTH * first


def publish(scene: Warehouse, hours: Sequence[int] = ()) -> PublishResult:
    return scene.publish(*map(hour, hours))


def main() -> None:
    """Measure, print, and end with 1 when a time grows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--hours", type=int, default=26_280, help="Hours of the first publication: three years."
    )
    parser.add_argument("--publications", type=int, default=5_000)
    parser.add_argument("--directory", type=Path, help="Where the warehouse is; default: a temporary folder.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-scale-", dir=options.directory) as folder:
        if not measure(Path(folder, "warehouse"), options.hours, options.publications):
            sys.exit(f"publications take more than {GROWTH:g} times as long as at the beginning")


if __name__ == "__main__":
    main()
