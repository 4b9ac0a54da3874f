"""Costs of branch `live` in a table of years, after a simulated week of commits.

    python -m tests.bench.bench_live [--hours 26280] [--commits 60480] [--directory DIR]

The first publication has so many hours, one file each. Then a resident loader of one topic is simulated, by
its own clock: a tail with one more file every ten seconds, a load every five minutes, a publication every
hour, and a sweep every hour. Prints medians: ms by the clock, and ms of the process's CPU, of the first and
the last hundred commits; then the size of the metadata, and the cost of a plan. Files of rows are one byte.
Exit code 1 when the last hundred commits took more than twice the CPU of the first hundred.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from millrace_warehouse.context import Context
from millrace_warehouse.history.entries import data_file
from millrace_warehouse.history.manifest import DataFile
from millrace_warehouse.history.metrics import metrics_of
from millrace_warehouse.history.schemas import pinned
from millrace_warehouse.load.attempt import new_attempt
from millrace_warehouse.publish.branch_commit import LIVE
from millrace_warehouse.publish.live import Live, Tail
from tests.bench.bench_scale import FEW, GROWTH, TURNS, Loads, footer, hour, publish, show, timed
from tests.published import TOPIC, Warehouse, warehouse

EVERY_S, SEAL, PUBLISH = 10, 30, 360
"""Seconds between commits; commits between loads, and between publications."""


class Loader:
    """A resident loader of one topic that reads no log: only its commits cost anything."""

    def __init__(self, scene: Warehouse, loads: Loads) -> None:
        self._scene, self._loads, self._now = scene, loads, 1_000_000_000.0
        context = Context(storage=scene.storage, catalog=scene.catalog, clock=lambda: self._now)
        self.live = Live(context, scene.stored)
        schema = pinned(scene.stored)
        assert schema is not None
        self._schema, self._metrics = schema, metrics_of(footer(schema, 1), schema.iceberg)
        self._tail = self._new_tail(2)

    def _new_tail(self, load: int) -> Tail:
        return Tail(
            load=load,
            attempt=new_attempt(1),
            ends={0: 0},
            schema=self._schema.number,
            entries=(),
            lease_s=3 * EVERY_S,
        )

    def show_more(self, number: int) -> None:
        """Show one more file of an hour, by one commit."""
        tail = self._tail
        path = f"rows/{tail.load:010d}-{tail.attempt}/tail-{hour(number)}-{len(tail.entries):08x}.parquet"
        file = DataFile(path=path, bytes=1, sha256="", hour=hour(number), rows=1)
        entry = data_file(file, self._metrics, self._scene.storage.uri(f"{TOPIC}/{path}"))
        self._tail = replace(tail, ends={0: len(tail.entries) + 1}, entries=[*tail.entries, entry])
        self._now += EVERY_S
        shown = self.live.follow(self._tail, on=True)
        assert shown is not None

    def seal(self, number: int) -> None:
        """Make a load of the tail: its rows of an hour in one file."""
        self._loads.load([number])
        self._tail = self._new_tail(self._tail.load + 1)


def measure(folder: Path, hours: int, commits: int) -> bool:
    """Simulate the commits and print their costs; False when they get slower."""
    with warehouse(folder) as scene:
        loads = Loads(scene)
        loads.load(range(hours))
        publish(scene, range(hours))
        loader = Loader(scene, loads)
        made = []
        for commit in range(1, commits + 1):
            number = hours + commit // PUBLISH
            made.append(timed(lambda: loader.show_more(number)))  # noqa: B023
            if not commit % SEAL:
                loader.seal(number)
            if not commit % PUBLISH:
                publish(scene, [number])
                loader.live.sweep(3600.0)
        first = show(f"a commit of the branch, 1 to {FEW}", made[:FEW])
        last = show(f"a commit of the branch, the last {FEW} of {commits:,}", made[-FEW:])
        slowest = sorted(cpu for _, cpu in made)
        print(f"{'99th percentile of all':56} {slowest[len(made) * 99 // 100]:22.1f} ms CPU")
        table = scene.table
        show("a reader loads the table", [timed(lambda: scene.table) for _ in range(TURNS)])
        for what, day in (("an old day", 2), ("the newest day", (hours + commits // PUBLISH) // 24 - 1)):
            since, until = (hour(24 * each) for each in (day, day + 1))
            where = f"_time >= '{since}:00:00+00:00' and _time < '{until}:00:00+00:00'"
            for branch in ("main", LIVE):
                scan = table.scan(row_filter=where).use_ref(branch)
                plan = [timed(lambda: list(scan.plan_files())) for _ in range(TURNS)]  # noqa: B023
                show(f"a reader plans {what} of {branch}", plan)
        metadata = Path(table.metadata_location.removeprefix("file://"))
        names = [path.name for path in metadata.parent.iterdir()]
        print(f"metadata.json: {metadata.stat().st_size / 1000:.1f} kB; files beside it: {len(names):,}")
        print(json.dumps({"snapshots": len(table.metadata.snapshots), "commits": commits, "hours": hours}))
        return last <= GROWTH * first


def main() -> None:
    """Measure, print, and end with 1 when a commit gets slower."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=int, default=26_280, help="Hours of the first publication.")
    parser.add_argument("--commits", type=int, default=7 * 8_640, help="Commits: a week, one every 10 s.")
    parser.add_argument("--directory", type=Path, help="Where the warehouse is; default: a temporary folder.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-live-", dir=options.directory) as folder:
        if not measure(Path(folder, "warehouse"), options.hours, options.commits):
            sys.exit(f"commits take more than {GROWTH:g} times as long as at the beginning")


if __name__ == "__main__":
    main()
