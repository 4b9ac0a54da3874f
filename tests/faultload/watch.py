"""A reader that looks at the warehouse all the time, as users do, and remembers what it saw.

What it holds against the loads: no (instance, sequence) twice, none that nobody produced; every file that a
plain reader finds belongs to a load's manifest; a load's files and rows never change. Against the hours: no
row twice, none that is in no load. Knows the files and `tables`, not what happens to the processes.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from millrace.errors import MillraceError
from millrace_spark import tables
from millrace_warehouse.history.layout import HOURLY, load_folder, load_numbers, read_load
from millrace_warehouse.storage.filesystem import LocalFilesystem
from tests.faultload.produced import Ledger

PAUSE_S = 0.3
Sequences = dict[tuple[int, str], set[int]]
"""(instance, server) -> sequences."""


class Problem(Exception):
    """Something a reader must never see."""


def plain_files(folder: Path) -> Iterator[Path]:
    """The Parquet files that Spark and others find below a folder: names with `_` or `.` are hidden."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.name.startswith(("_", ".")):
            continue
        if path.is_dir():
            yield from plain_files(path)
        elif path.suffix == ".parquet":
            yield path


def rows_of(paths: Iterable[Path]) -> list[tuple[int, str, int]]:
    """(instance, server, sequence) of every row."""
    found: list[tuple[int, str, int]] = []
    for path in paths:
        header = pq.read_table(path, partitioning=None, columns=["header"])["header"]
        columns = [pc.struct_field(header, name).to_pylist() for name in ("instance", "server", "sequence")]
        found += zip(*columns, strict=True)
    return found


def grouped(rows: Iterable[tuple[int, str, int]], what: str) -> Sequences:
    """The rows' sequences by instance; Problem when one is there twice."""
    found: Sequences = {}
    for instance, server, sequence in rows:
        sequences = found.setdefault((instance, server), set())
        if sequence in sequences:
            raise Problem(f"{what}: sequence {sequence} of instance {instance} on {server} is there twice")
        sequences.add(sequence)
    return found


class Topic:
    """What the reader has seen of one topic's loads."""

    def __init__(self, warehouse: Path, topic: str, ledger: Ledger) -> None:
        self.seen: Sequences = {}
        self.loads: dict[int, Mapping[str, int]] = {}
        """Load -> bytes of its files by path."""
        self._rows: dict[int, int] = {}
        self._fs, self._topic, self._ledger = LocalFilesystem(str(warehouse)), topic, ledger
        self._folder = warehouse / topic

    def look(self, chance: random.Random) -> None:
        """Take in new loads, look at one of the old ones again; Problem if something is wrong."""
        files = list(plain_files(self._folder))
        for number in load_numbers(self._fs, self._topic):
            if number not in self.loads:
                self._take_in(number)
        for path in files:
            number = int(path.relative_to(self._folder).parts[0].removeprefix("load="))
            if str(path.relative_to(self._folder / load_folder(number))) not in self.loads[number]:
                raise Problem(f"{path} is in no manifest and can be seen")
        if self.loads:
            self._again(chance.choice(list(self.loads)))

    def _take_in(self, number: int) -> None:
        where = f"{self._topic}/{load_folder(number)}"
        manifest = read_load(self._fs, self._topic, number)
        stated = {file.path: file.bytes for file in manifest.files if not file.path.startswith("_")}
        rows = rows_of(self._folder / load_folder(number) / path for path in stated)
        if len(rows) != manifest.rows:
            raise Problem(f"{where} has {len(rows)} rows, its manifest says {manifest.rows}")
        for key, sequences in grouped(rows, where).items():
            seen = self.seen.setdefault(key, set())
            if twice := seen & sequences:
                raise Problem(
                    f"{where}: sequence {min(twice)} of instance {key[0]} is in an earlier load too"
                )
            if foreign := self._ledger.foreign(self._topic, *key, sequences):
                raise Problem(f"{where}: nobody has produced sequence {min(foreign)} of instance {key[0]}")
            seen |= sequences
        self.loads[number], self._rows[number] = stated, len(rows)

    def _again(self, number: int) -> None:
        folder = self._folder / load_folder(number)
        found = {str(path.relative_to(folder)): path.stat().st_size for path in plain_files(folder)}
        if found != self.loads[number]:
            raise Problem(f"{folder}: its files have changed since it was published")
        if (rows := sum(pq.read_metadata(folder / path).num_rows for path in found)) != self._rows[number]:
            raise Problem(f"{folder} had {self._rows[number]} rows and has {rows} now")


def hourly_rows(warehouse: Path, topic: str) -> Sequences:
    """What the table of hours holds; Problem when a row is there twice, nothing before the first hour."""
    try:
        dataset = tables.dataset(str(warehouse), topic)
    except MillraceError:
        return {}
    columns: Mapping[str, Any] = {
        name: ds.field("header", name) for name in ("instance", "server", "sequence")
    }
    table: pa.Table = dataset.to_table(columns=columns)
    rows = zip(*(table[name].to_pylist() for name in columns), strict=True)
    return grouped(rows, f"{topic}{HOURLY}")


class Reader:
    """Looks at every topic in turn, in a thread, from `start` to `stop`."""

    def __init__(self, warehouse: Path, topics: list[str], ledger: Ledger, chance: random.Random) -> None:
        """`topics` may grow while it runs."""
        self._warehouse, self._topics, self._ledger, self._chance = warehouse, topics, ledger, chance
        self.topics: dict[str, Topic] = {}
        self.looks = 0
        self.problem: str | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)

    def start(self) -> Reader:
        """Begin."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Look at everything once more, and end."""
        self._stop.set()
        self._thread.join(300)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                for topic in list(self._topics):
                    self._look(topic)
                    self._stop.wait(PAUSE_S)
            for topic in list(self._topics):
                self._look(topic)
        except Problem as error:
            self.problem = str(error)
        except Exception as error:  # whatever a reader cannot read is a problem as well
            self.problem = f"a reader failed: {error!r}"

    def _look(self, name: str) -> None:
        topic = self.topics.setdefault(name, Topic(self._warehouse, name, self._ledger))
        hours = hourly_rows(self._warehouse, name)  # first: what is in an hour is in a load already
        topic.look(self._chance)
        for key, sequences in hours.items():
            if missing := sequences - topic.seen.get(key, set()):
                raise Problem(f"{name}{HOURLY}: sequence {min(missing)} of instance {key[0]} is in no load")
        self.looks += 1


def loads_in(warehouse: Path, topics: Iterable[str]) -> int:
    """How many loads there are."""
    fs = LocalFilesystem(str(warehouse))
    return sum(len(load_numbers(fs, topic)) for topic in topics)
