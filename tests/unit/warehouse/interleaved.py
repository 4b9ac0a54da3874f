"""Loads, publications, re-loads, compaction and expiry in any order, cut off at any moment.

What the table must show after each step is worked out from the files of the loads themselves, as they were
when they were first seen, and from what the newest publication says it has followed.
"""

from __future__ import annotations

import copy
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog

from millrace.errors import MillraceError
from millrace_warehouse.context import Context
from millrace_warehouse.history.hours import hours_in, partition_of
from millrace_warehouse.history.layout import Topic, editions_of, load_numbers, read_edition, require_load
from millrace_warehouse.history.manifest import Publication
from millrace_warehouse.load.reload import reload_topic
from millrace_warehouse.publish.catalog import connect
from millrace_warehouse.publish.compact import compact_topic
from millrace_warehouse.publish.expire import expire_topic
from millrace_warehouse.publish.gate import NoAuditor
from millrace_warehouse.publish.publisher import publish_topic
from millrace_warehouse.publish.table import find_table, publication_of
from millrace_warehouse.requests import Compact, Expire, Publish
from millrace_warehouse.storage import Storage
from millrace_warehouse.verify import VerifyRun, verify
from tests.unit.warehouse.memory_log import HOUR, START, TOPIC, event
from tests.unit.warehouse.mended import Mended, later_event, moved_event
from tests.unit.warehouse.storages import CutOff, MortalStorage

HOURS = [f"2015-05-17T{hour}" for hour in range(10, 14)]
Rows = Counter[tuple[int, str, int]]
"""(load, hour, sequence) -> how often."""


@dataclass
class Scenario(Mended):
    """One warehouse, one log, and what was done to them."""

    random: random.Random = field(default_factory=random.Random)
    done: list[str] = field(default_factory=list)
    editions: dict[tuple[int, int], Rows] = field(default_factory=dict)
    """The rows of every edition that was ever there."""

    def mortal(self, changes: int | None = None) -> Storage:
        """The warehouse, for a process that ends at so many changes to it."""
        return MortalStorage(self.folder, changes)

    def copied(self, folder: Path) -> Scenario:
        """The same scenario, before anything was published, in a folder of its own."""
        shutil.copytree(self.folder, folder)
        twin = copy.deepcopy(self)
        twin.folder = folder
        return twin

    def step(self) -> None:
        """Do one thing, perhaps cut off in the middle; then look at everything."""
        actions: dict[Callable[[Storage], object], int] = {
            self.produce: 3,
            self.hours: 3,
            self.follow: 2,
            self.reload: 3,
            self.compact: 1,
            self.expire: 2,
            self.fix: int(not self.fixed),
        }
        (action,) = self.random.choices(list(actions), list(actions.values()))
        most = 15 if action in (self.produce, self.reload) else 4
        cut = self.random.choice([None, None, self.random.randint(1, most)])
        self.done.append(f"{action.__name__} {cut or ''}")
        try:
            action(self.mortal(cut))
        except CutOff:
            self.done[-1] += " cut off"
        except MillraceError as error:
            if "no load of" not in str(error) and "has no table yet" not in str(error):
                raise AssertionError(f"{error} after {self.done}") from error
        self.look()

    def produce(self, storage: Storage) -> None:
        """Some plain events, some that the fix moves to another hour, some that it reads first; load them."""
        for _ in range(self.random.randint(1, 2)):
            times = [START + self.random.randrange(4 * HOUR) for _ in range(self.random.randint(2, 9))]
            messages = []
            for time_ms in times:
                kind = self.random.randrange(4)
                if kind == 0:
                    other = START + self.random.randrange(4 * HOUR)
                    messages.append(moved_event(self.log.sequence, time_ms, other))
                elif kind == 1:
                    messages.append(later_event(self.log.sequence, time_ms))
                else:
                    messages.append(event(self.log.sequence, time_ms))
                self.log.sequence += 1
            self.log.append(self.random.randrange(2), messages)
        self.load(storage)

    @contextmanager
    def catalog(self) -> Iterator[Catalog]:
        self.folder.mkdir(exist_ok=True)
        with connect(self.storage()) as catalog:
            yield catalog

    def publish(self, storage: Storage, *hours: str) -> None:
        """Publish these hours, and what is new of those that are published."""
        request = Publish(topics=[TOPIC], warehouse=storage.root, hours=hours)
        with self.catalog() as catalog:
            context = Context(storage=storage, catalog=catalog)
            publish_topic(context, request, TOPIC, NoAuditor())

    def hours(self, storage: Storage) -> None:
        self.publish(storage, *self.random.sample(HOURS, self.random.choice([1, 2, 4, 4])))

    def follow(self, storage: Storage) -> None:
        self.publish(storage)

    def reload(self, storage: Storage) -> None:
        if loads := load_numbers(Topic(storage, TOPIC)):
            self.runs += 1
            some = sorted(self.random.sample(loads, min(2, len(loads))))
            reload_topic(self.reload_run(storage, f"run {self.runs}"), TOPIC, some)

    def compact(self, storage: Storage) -> None:
        require_load(Topic(storage, TOPIC))
        request = Compact(topics=[TOPIC], warehouse=storage.root, quiet_s=-1, small_files=1)
        with self.catalog() as catalog:
            compact_topic(Context(storage=storage, catalog=catalog), request, TOPIC)

    def expire(self, storage: Storage) -> None:
        request = Expire(topic=TOPIC, warehouse=storage.root, older_than_s=-1, reader_grace_s=-1)
        with self.catalog() as catalog:
            expire_topic(Context(storage=storage, catalog=catalog), request)

    def fix(self, _: Storage) -> None:
        self.fixed = True

    def look(self) -> None:
        """Every published hour shows exactly the rows of the editions that the publication has followed."""
        self._remember_editions()
        found, publication = self.visible()
        expected: Rows = Counter()
        if publication is not None:
            published = hours_in(publication.published)
            for load in range(1, publication.loads.load + 1):
                edition = publication.loads.editions.get(str(load), 1)
                rows = self.editions[load, edition]
                expected.update({key: n for key, n in rows.items() if partition_of(key[1]) in published})
        assert found == expected, self.done
        assert max(Counter(sequence for _, _, sequence in found.elements()).values(), default=1) == 1

    def _remember_editions(self) -> None:
        storage = self.storage()
        later = editions_of(Topic(storage, TOPIC))
        for load in load_numbers(Topic(storage, TOPIC)):
            for edition in (1, *later.get(load, ())):
                if (load, edition) in self.editions:
                    continue
                rows: Rows = Counter()
                for file in read_edition(Topic(storage, TOPIC), load, edition).files:
                    table = pq.read_table(self.folder / TOPIC / file.path, columns=["header", "_load"])
                    for row in table.to_pylist():
                        rows[row["_load"], file.hour, row["header"]["sequence"]] += 1
                self.editions[load, edition] = rows

    def visible(self) -> tuple[Rows, Publication | None]:
        """Return the rows that a reader of the table sees, and the publication that the table names."""
        with self.catalog() as catalog:
            table = find_table(catalog, TOPIC)
            if table is None:
                return Counter(), None
            publication = publication_of(Topic(self.storage(), TOPIC), table)
            rows = table.scan().to_arrow()
        found = zip(
            rows["_load"].to_pylist(), rows["_time"].to_pylist(), rows["header"].to_pylist(), strict=True
        )
        return Counter(
            (load, f"{time:%Y-%m-%dT%H}", header["sequence"]) for load, time, header in found
        ), publication

    def problems(self) -> list[str]:
        """Return the problems that `verify` finds, with every row."""
        with self.catalog() as catalog:
            reports = verify(VerifyRun(storage=self.storage(), catalog=catalog, rows=True), TOPIC)
        return [problem for report in reports for problem in report.problems]

    def settle(self) -> None:
        """Let every run end; then the table shows all that was ever loaded, as its newest edition has it."""
        storage = self.storage()
        self.produce(storage)
        self.publish(storage, *HOURS)
        self.look()
        self.expire(storage)
        self.look()
        newest = {load: self.editions[load, edition] for load, edition in sorted(self.editions)}
        everything: Rows = Counter()
        for rows in newest.values():
            everything.update(rows)
        assert self.visible()[0] == everything, self.done
        assert self.problems() == [], self.done
        self._reload_everything(storage)

    def _reload_everything(self, storage: Storage) -> None:
        """After the fix and one re-load of all, nothing is rejected and every event is there once."""
        self.fixed = True
        self.runs += 1
        reload_topic(self.reload_run(storage, f"run {self.runs}"), TOPIC, load_numbers(Topic(storage, TOPIC)))
        self.publish(storage)
        self.look()
        sequences = Counter(sequence for _, _, sequence in self.visible()[0].elements())
        assert sequences == Counter(range(self.log.sequence)), self.done
        assert self.problems() == [], self.done
