"""Resident loaders and a publisher that are killed at any moment, and a reader of branch `live`; for a test.

`python -m tests.unit.warehouse.commands.racing_residents FOLDER SEED KILLS`: two loaders follow the same log,
which grows, and seal every half second; a third process publishes and compacts. One of the three is killed
(SIGKILL) after the other. The reader ends with 1 when it sees an offset twice, or a row in `main` that the
branch lacks. The log is the same in all of them: made before they are forked.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from pyiceberg.table import Table

from millrace.client.cluster_client import LATEST
from millrace.errors import MillraceError
from millrace_warehouse.commands.following import LiveBranch
from millrace_warehouse.load import resident as resident_module
from millrace_warehouse.load.resident import Resident
from millrace_warehouse.publish.branch_commit import LIVE
from millrace_warehouse.publish.table import PATH, find_table
from millrace_warehouse.without_pandas import keep_pandas_out
from tests.published import Warehouse, warehouse
from tests.unit.warehouse.memory_log import START, TOPIC, MemoryLog, load_run

HOURS = [f"2015-05-17T{hour}" for hour in range(10, 13)]
LEASE_S = 0.5
BATCHES_PER_S = 20
BATCHES = 2_000
Role = Callable[[Warehouse, random.Random], None]


class GrowingLog(MemoryLog):
    """A log whose batches become visible with time."""

    def __init__(self) -> None:
        super().__init__(2)
        self.topic_id = uuid.UUID(int=1)
        for partition in self.partitions:
            times = [START + n * 1_700 for n in range(3 * BATCHES)]
            self.append_events(partition, times, batch=3)
        self._ends = {p: [batch.next_offset for batch in one.batches()] for p, one in self.partitions.items()}
        self._began = time.time()

    def list_offsets(
        self, topic: str, timestamp: int, partitions: Iterable[int] | None = None
    ) -> dict[int, int]:
        if timestamp != LATEST:
            return super().list_offsets(topic, timestamp, partitions)
        visible = min(BATCHES, 1 + int(BATCHES_PER_S * (time.time() - self._began)))
        wanted = self.partitions if partitions is None else partitions
        return {partition: self._ends[partition][visible - 1] for partition in wanted}


def loader_of(log: MemoryLog) -> Role:
    def load(w: Warehouse, chance: random.Random) -> None:
        run = load_run(log, w.storage, uuid.uuid4().hex, cut_bytes=1 << 20)
        loader = Resident(run, TOPIC, LiveBranch(w.stored, lambda: w.catalog, LEASE_S))
        while True:
            with suppress(MillraceError):
                loader.turn()
            time.sleep(chance.uniform(0, 0.1))

    return load


def keep_up(w: Warehouse, chance: random.Random) -> None:
    """Publish and compact for ever."""
    while True:
        time.sleep(chance.uniform(0.1, 0.5))
        with suppress(MillraceError):
            table = find_table(w.catalog, TOPIC)
            if table is not None and PATH in table.properties and chance.random() < 0.3:
                w.compact()
            else:
                w.publish(chance.choice(HOURS))


def places(table: Table, branch: str) -> list[tuple[int, int]]:
    """Partition and offset of each row of a branch."""
    rows = table.scan(selected_fields=("_topic_partition", "_offset")).use_ref(branch).to_arrow()
    return list(zip(rows["_topic_partition"].to_pylist(), rows["_offset"].to_pylist(), strict=True))


def watch(w: Warehouse, _: random.Random) -> None:
    """Read the branch for ever. Raise AssertionError when it is wrong."""
    looks = 0
    while True:
        try:
            table = find_table(w.catalog, TOPIC)
            if table is None or LIVE not in table.metadata.refs:
                continue
            live, main = places(table, LIVE), places(table, "main")
        except FileNotFoundError:
            continue  # the table was loaded just before a newer snapshot, and its files are gone
        assert len(live) == len({*live}), "an offset is shown twice"
        looks += 1
        (w.folder / "looks").write_text(str(looks))
        assert {*main} <= {*live}, "main has a row that the branch lacks"


def start(folder: Path, seed: int, role: Role) -> int:
    """The pid of a process that does its part until it is killed."""
    if (pid := os.fork()) == 0:
        try:
            with warehouse(folder) as w:
                role(w, random.Random(seed))
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
        os._exit(1)
    return pid


def race(folder: Path, seed: int, kills: int) -> None:
    """Kill and restart processes, then prove the warehouse. AssertionError when a process ended by itself."""
    resident_module.SEAL_S = LEASE_S
    log, chance, seeds = GrowingLog(), random.Random(seed), iter(range(1_000_000))
    roles: list[Role] = [loader_of(log), loader_of(log), keep_up]
    watcher = start(folder, 0, watch)
    running = {start(folder, next(seeds), role): role for role in roles}
    try:
        for _ in range(kills):
            time.sleep(chance.uniform(0.3, 1.2))
            assert os.waitpid(-1, os.WNOHANG)[0] == 0, "a process ended by itself"
            victim = chance.choice(sorted(running))
            os.kill(victim, signal.SIGKILL)
            os.waitpid(victim, 0)
            role = running.pop(victim)
            running[start(folder, next(seeds), role)] = role
        time.sleep(1)
        assert os.waitpid(-1, os.WNOHANG)[0] == 0, "a process ended by itself"
    finally:
        for pid in (watcher, *running):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
    settle(folder, log)


def settle(folder: Path, log: MemoryLog) -> None:
    """Load what is visible, publish everything, and prove it."""
    time.sleep(LEASE_S)
    with warehouse(folder) as w:
        run = load_run(log, w.storage, "last", cut_bytes=1 << 20)
        loader = Resident(run, TOPIC, LiveBranch(w.stored, lambda: w.catalog, LEASE_S))
        loader.turn()
        loader.stop()
        w.publish(*HOURS)
        live, main = places(w.table, LIVE), places(w.table, "main")
        assert sorted(live) == sorted({*main})
        assert len(main) > BATCHES_PER_S
        assert w.problems(rows=True) == []
        print((folder / "looks").read_text(), "looks,", len(main), "rows")


if __name__ == "__main__":
    keep_pandas_out()  # or every process that is forked imports it
    race(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
