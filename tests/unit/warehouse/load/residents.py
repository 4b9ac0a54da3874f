"""A stand-in for the branch `live` of a table, which resident loaders share in a test.

It shows what the real branch shows: all loads, and behind them the open load of one loader, whose lease has
not ended. `rows` reads the files that it names.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from millrace_warehouse.history.layout import Topic, newest_load
from millrace_warehouse.load.load import load_topic
from millrace_warehouse.load.open_load import OpenLoad
from millrace_warehouse.load.resident import Answer, Branch, Resident
from millrace_warehouse.storage import Storage, open_storage
from tests.unit.warehouse.memory_log import HOUR, START, TOPIC, MemoryLog, load_run, rows_of

LEASE_S = 15.0


@dataclass
class Clock:
    """A time that a test moves."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class SharedBranch(Branch):
    """The branch, for any number of loaders."""

    folder: Path
    clock: Clock = field(default_factory=Clock)
    is_off: bool = False
    is_down: bool = False
    shown: list[Path] = field(default_factory=list)
    """Files of the open load that is shown."""
    number: int = 0
    """Number of the open load that is shown."""
    attempt: str = ""
    until: float = 0.0
    ends: dict[int, int] = field(default_factory=dict)
    asked: int = 0

    def show(self, load: OpenLoad | None) -> Answer:
        self.asked += 1
        if self.is_down:
            return Answer.UNKNOWN
        if self.is_off:
            return Answer.OFF
        newest = newest_load(Topic(open_storage(str(self.folder)), TOPIC))
        following = 1 if newest is None else newest.load + 1
        if self.number != following:
            self._forget()
        is_leased = self.number == following and self.until > self.clock()
        if is_leased and (load is None or load.attempt != self.attempt):
            return Answer.TAKEN
        if load is not None and load.number == following:
            self.number, self.attempt, self.until = following, load.attempt, self.clock() + LEASE_S
            self.shown = [Path(entry.file_path.removeprefix("file://")) for entry in load.entries]
            self.ends = dict(load.ends)
        return Answer.SHOWN

    def withdraw(self, load: OpenLoad) -> Answer:
        if self.is_down:
            return Answer.UNKNOWN
        if self.attempt == load.attempt:
            self._forget()
        return Answer.SHOWN

    def _forget(self) -> None:
        self.number, self.attempt, self.until, self.shown, self.ends = 0, "", 0.0, [], {}

    def tail(self) -> list[tuple[int, int]]:
        """Partition and offset of each row of the open load that is shown."""
        tables = [pq.read_table(io.BytesIO(path.read_bytes())) for path in self.shown]
        places = (table.select(["_topic_partition", "_offset"]).to_pylist() for table in tables)
        return [(row["_topic_partition"], row["_offset"]) for rows in places for row in rows]

    def rows(self) -> list[tuple[int, int]]:
        """Partition and offset of each row that a reader of the branch sees, in order."""
        loaded = [(row.partition, row.offset) for row in rows_of(self.folder)]
        newest = newest_load(Topic(open_storage(str(self.folder)), TOPIC))
        following = 1 if newest is None else newest.load + 1
        return sorted([*loaded, *(self.tail() if self.number == following else [])])


def resident(
    log: MemoryLog,
    branch: SharedBranch,
    storage: Path | Storage | None = None,
    run_id: str = "resident",
    **changes: Any,
) -> Resident:
    """A resident loader of the log, with small cuts."""
    run = load_run(log, storage or branch.folder, run_id, **changes)
    return Resident(run, TOPIC, branch, clock=branch.clock)


def begun(folder: Path, *, filled: bool = False) -> MemoryLog:
    """Return a log of which a first load has taken one event. Rows of later loads may be shown before.

    With `filled` it goes on with 180 events of three hours, and a control batch.
    """
    log = MemoryLog()
    log.append_events(0, [START])
    load_topic(load_run(log, folder, "first load"), TOPIC)
    if filled:
        log.append_events(0, [START + n * 97_003 for n in range(100)])
        log.append_control(0)
        log.append_events(0, [START + HOUR - n * 1_003 for n in range(50)])
        log.append_events(1, [START + 2 * HOUR + n for n in range(30)])
    return log
