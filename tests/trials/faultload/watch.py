"""A reader that looks at the warehouse all the time, as users do, and remembers what it saw.

What it holds against the loads: no (instance, sequence) twice, none that nobody produced; a load's files and
rows never change. Against the table: no row twice, none that is in no load. Against branch `live` of the
table: no row twice, none that nobody produced, and all rows of the loads that its summary names. Knows
manifests, files and the catalog's SQLite file, not what happens to the processes.
"""

from __future__ import annotations

import json
import random
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.table import StaticTable

from millrace_warehouse.history import layout
from millrace_warehouse.history.manifest import LoadManifest
from millrace_warehouse.storage import open_storage
from tests.trials.faultload.produced import Ledger

PAUSE_S = 0.3
Sequences = dict[tuple[int, str], set[int]]
"""(instance, server) -> sequences."""


class Problem(Exception):
    """Something a reader must never see."""


def files_of(warehouse: Path, manifest: LoadManifest) -> list[Path]:
    """The data files of a load."""
    return [warehouse / manifest.topic / file.path for file in manifest.files]


def rows_of(paths: Iterable[Path]) -> list[tuple[int, str, int]]:
    """(instance, server, sequence) of every row."""
    found: list[tuple[int, str, int]] = []
    for path in paths:
        header = pq.read_table(path, columns=["header"])["header"]
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
    """A reader's view of one topic's loads."""

    def __init__(self, warehouse: Path, topic: str, ledger: Ledger) -> None:
        self.seen: Sequences = {}
        self.loads: dict[int, str] = {}
        """Load -> its manifest's hash."""
        self.rows: dict[int, int] = {}
        """Load -> number of its rows."""
        self._warehouse, self._topic, self._ledger = warehouse, topic, ledger
        self._folder = layout.Topic(open_storage(str(warehouse)), topic)

    def look(self, chance: random.Random) -> None:
        """Take in new loads, look at one of the old ones again; Problem if something is wrong."""
        for number in layout.load_numbers(self._folder):
            if number not in self.loads:
                self._take_in(number)
        if self.loads:
            self._again(chance.choice(list(self.loads)))

    def compare(self, live: BranchRows) -> None:
        """Compare the branch, as it was before the last look at the loads; Problem if something is wrong."""
        for key, sequences in live.sequences.items():
            if foreign := self._ledger.foreign(self._topic, *key, sequences):
                raise Problem(
                    f"branch live of {self._topic}: nobody has produced sequence {min(foreign)} of {key}"
                )
        for number in range(1, live.shown + 1):
            if (there := live.by_load[number]) != self.rows[number]:
                raise Problem(
                    f"branch live of {self._topic} shows {there} of {self.rows[number]} rows of load {number}"
                )

    def _take_in(self, number: int) -> None:
        where = layout.load_path(self._topic, number)
        manifest = layout.read_load(self._folder, number)
        rows = rows_of(files_of(self._warehouse, manifest))
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
        self.loads[number], self.rows[number] = manifest.sha256, manifest.rows

    def _again(self, number: int) -> None:
        where = layout.load_path(self._topic, number)
        manifest = layout.read_load(self._folder, number)
        if manifest.sha256 != self.loads[number]:
            raise Problem(f"{where} has changed since it was made")
        for path, file in zip(files_of(self._warehouse, manifest), manifest.files, strict=True):
            if not path.is_file() or path.stat().st_size != file.bytes:
                raise Problem(f"{where}: {path} has changed since the load was made")
            if (rows := pq.read_metadata(path).num_rows) != file.rows:
                raise Problem(f"{where}: {path} had {file.rows} rows and has {rows} now")


@dataclass(frozen=True)
class BranchRows:
    """The rows of a branch."""

    sequences: Sequences
    by_load: Counter[int]
    """Load -> number of its rows."""
    shown: int
    """Newest load that the branch says to show; 0 for branch `main`."""


def table_rows(catalog: Path, topic: str) -> dict[str, BranchRows]:
    """Return the rows of each branch of a topic's table; raise Problem if a row is there twice.

    Asks a catalog's SQLite file, which may be missing, and reads without any of Millrace's code.
    """
    if (location := _location(catalog, topic)) is None:
        return {}
    while True:
        try:
            table = StaticTable.from_metadata(location)
            return {name: _rows_in(table, topic, name) for name in table.metadata.refs}
        except FileNotFoundError as error:  # a tail that was replaced, or metadata of long ago
            before, location = location, _location(catalog, topic)
            if location in (before, None):
                raise Problem(f"the table of {topic} names a file that is gone: {error}") from error


def published_rows(catalog: Path, topic: str) -> Sequences:
    """Return the rows of branch `main` of a topic's table; raise Problem if a row is there twice."""
    branches = table_rows(catalog, topic)
    return branches["main"].sequences if "main" in branches else {}


def _location(catalog: Path, topic: str) -> str | None:
    """Return the place of a table's metadata, or None without the table."""
    if not catalog.exists():
        return None
    query = "SELECT metadata_location FROM iceberg_tables WHERE table_name = ?"
    with closing(sqlite3.connect(f"{catalog.as_uri()}?mode=rw", uri=True, timeout=60)) as connection:
        try:
            found = connection.execute(query, [topic]).fetchone()
        except sqlite3.OperationalError as error:
            if "no such table" not in str(error):
                raise
            return None
    return None if found is None else str(found[0])


def _rows_in(table: StaticTable, topic: str, branch: str) -> BranchRows:
    head = table.metadata.snapshot_by_name(branch)
    shown = head.summary["millrace.live.shown"] if head is not None and head.summary is not None else None
    load = json.loads(shown)["load"] if shown else 0
    scan = table.scan(selected_fields=("header", "_load")).use_ref(branch)
    if not len(rows := scan.to_arrow()):
        return BranchRows({}, Counter(), load)  # the table is there before its first publication
    header = rows["header"]
    columns = [pc.struct_field(header, name).to_pylist() for name in ("instance", "server", "sequence")]
    found = grouped(zip(*columns, strict=True), f"branch {branch} of the table of {topic}")
    return BranchRows(found, Counter(rows["_load"].to_pylist()), load)


class Reader:
    """Looks at every topic in turn, in a thread, from `start` to `stop`."""

    def __init__(self, warehouse: Path, topics: list[str], ledger: Ledger, chance: random.Random) -> None:
        """`topics` may grow while it runs."""
        self._warehouse, self._topics, self._ledger, self._chance = warehouse, topics, ledger, chance
        self.topics: dict[str, Topic] = {}
        self.looks, self.live_looks = 0, 0
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
        branches = table_rows(self._warehouse / layout.CATALOG, name)  # first: its rows are loaded
        topic.look(self._chance)
        if (live := branches.get("live")) is not None:
            topic.compare(live)
            self.live_looks += 1
        published = branches["main"].sequences if "main" in branches else {}
        for key, sequences in published.items():
            if missing := sequences - topic.seen.get(key, set()):
                raise Problem(
                    f"the table of {name}: sequence {min(missing)} of instance {key[0]} is in no load"
                )
        self.looks += 1
