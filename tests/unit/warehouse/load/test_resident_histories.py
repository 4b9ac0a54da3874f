"""Two resident loaders of one topic through random steps: turns, deaths, other loads, erasures, promotions.

A reader of the branch sees each offset at most once in every look, and the loads say in the end what one load
of the same log says.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millrace.errors import MillraceError
from millrace.records import Message
from millrace_audit.reports.counts import SequenceCounts
from millrace_warehouse.context import Context
from millrace_warehouse.erase.erasing import erase_topic
from millrace_warehouse.history.layout import Topic, load_numbers, newest_editions, read_edition, read_load
from millrace_warehouse.history.manifest import HourVerdict, LoadManifest, check_follows
from millrace_warehouse.history.schemas import promote
from millrace_warehouse.history.stored import erased_sequences_of, sequences_of
from millrace_warehouse.load.load import load_topic
from millrace_warehouse.load.resident import Resident
from millrace_warehouse.log.bounds import Bounds
from millrace_warehouse.publish.catalog import connect
from millrace_warehouse.requests import Erase
from millrace_warehouse.storage import Storage, open_storage
from millrace_warehouse.verify import VerifyRun, verify
from tests.counted import Counted
from tests.support import ROUNDS
from tests.unit.warehouse.load.residents import SharedBranch, resident
from tests.unit.warehouse.memory_log import HOUR, START, TOPIC, MemoryLog, Row, load_run, rows_of, with_field
from tests.unit.warehouse.storages import CutOff, MortalStorage, UnansweredStorage

STEPS = 40


class History:
    """One topic, its warehouse, and the loaders that run now."""

    def __init__(self, branch: SharedBranch, chance: random.Random) -> None:
        self.branch, self.warehouse, self.chance = branch, branch.folder, chance
        self.log = MemoryLog(3)
        self.stored = Topic(open_storage(str(self.warehouse)), TOPIC)
        self.runs = 0
        self.erased: set[int] = set()
        """Sequence numbers of erased rows."""
        self.done: list[str] = []
        self.loaders = [self.loader(), self.loader()]

    def steps(self) -> list[Callable[[], None]]:
        often = [self.produce, self.turn, self.turn, self.turn, self.wait]
        seldom = [self.die, self.stop, self.load, self.erase, self.promote, self.control, self.catalog]
        return [*often, *often, *seldom]

    def step(self) -> None:
        what = self.chance.choice(self.steps())
        self.done.append(what.__name__)
        what()
        self.look()

    def produce(self) -> None:
        times = [START + self.chance.randrange(3 * HOUR) for _ in range(self.chance.randrange(1, 25))]
        schema = self.chance.choice(list(self.log.schemas))
        fields = {each["name"]: 1 for each in self.log.schemas[schema]["fields"][2:]}
        more: dict[str, Any] = {"batch": self.chance.randrange(1, 9), "schema": schema, **fields}
        partition = self.chance.randrange(3)
        self.log.append_events(partition, times, **more)
        if self.chance.random() < 0.3:
            self.log.append(partition, [Message(START, None, b"broken")] * 2 + [Message(START, b"key", None)])

    def control(self) -> None:
        self.log.append_control(self.chance.randrange(3), bytes(self.chance.randrange(300)))

    def wait(self) -> None:
        self.branch.clock.now += self.chance.choice([5, 20, 150])

    def catalog(self) -> None:
        self.branch.is_down = not self.branch.is_down

    def loader(self) -> Resident:
        """A loader whose process may end at any change, or whose creates may have no answer."""
        ends = self.chance.randrange(1, 60) if self.chance.random() < 0.5 else None
        answers = self.chance.choice([1.0, 0.8])

        def happens(_: str) -> bool | None:
            return None if self.chance.random() < answers else self.chance.random() < 0.5

        storage: Storage = UnansweredStorage(MortalStorage(self.warehouse, ends), happens)
        self.runs += 1
        return resident(self.log, self.branch, storage, f"resident-{self.runs}", cut_bytes=900)

    def turn(self) -> None:
        self._run("turn")

    def stop(self) -> None:
        self._run("stop", ends=True)

    def die(self) -> None:
        self.loaders[self.chance.randrange(2)] = self.loader()

    def _run(self, what: str, ends: bool = False) -> None:
        which = self.chance.randrange(2)
        try:
            getattr(self.loaders[which], what)()
        except CutOff:
            self.done[-1] += " cut off"
            ends = True
        except MillraceError as error:
            if "not answered" not in str(error):
                raise
            self.done[-1] += " unanswered"
        if ends:
            self.loaders[which] = self.loader()

    def load(self) -> None:
        self.runs += 1
        bounds = Bounds(max_bytes=self.chance.choice([None, 500, 3_000]))
        load_topic(load_run(self.log, self.warehouse, f"run-{self.runs}", bounds=bounds), TOPIC)

    def promote(self) -> None:
        newest = max(self.log.schemas)
        schema = with_field(f"field{newest}", ["int", "null"], 0, self.log.schemas[newest])
        self.log.schemas[newest + 1] = schema
        if load_numbers(self.stored):
            promote(self.stored, newest + 1, "a test", self.log.schemas.get)

    def erase(self) -> None:
        """Erase one event, in the middle of what is read and loaded."""
        if not load_numbers(self.stored) or not self.log.sequence:
            return
        sequence = self.chance.randrange(self.log.sequence)
        self.runs += 1
        request = Erase(
            topic=TOPIC,
            warehouse=str(self.warehouse),
            where=f"header.sequence = {sequence}",
            reason="a test",
            id=f"erasure-{self.runs}",
            all_rows=True,
        )
        auditor = Counted(self.stored.storage, lambda *_: HourVerdict(verdict="complete"))
        with closing(connect(self.stored.storage)) as catalog:
            context = Context(storage=self.stored.storage, catalog=catalog)
            erase_topic(context, request, auditor, lambda: None)
        self.erased.add(sequence)

    def loads(self) -> list[LoadManifest]:
        newest = newest_editions(self.stored)
        return [read_edition(self.stored, n, newest.get(n, 1)) for n in load_numbers(self.stored)]

    def look(self) -> None:
        before: LoadManifest | None = None
        for number in load_numbers(self.stored):
            load = read_load(self.stored, number)
            assert check_follows(load, before) == [], self.done
            before = load
        if not self.branch.is_down:
            counted = Counter(self.branch.rows())
            assert set(counted.values()) <= {1}, self.done

    def settle(self) -> None:
        """Let a last loader read everything. Then the loads are proven, and say what one load says."""
        self.branch.is_down = False
        self.branch.clock.now += 1_000
        last = resident(self.log, self.branch, run_id="last")
        last.turn()
        while last.is_behind or last.turn() is not None:
            last.turn()
        last.stop()
        self.look()
        self.compare()
        with closing(connect(self.stored.storage)) as catalog:
            run = VerifyRun(storage=self.stored.storage, catalog=catalog, client=self.log, rows=True)
            (report,) = verify(run, TOPIC)
        assert report.problems == [], self.done

    def expected(self) -> list[Row]:
        """Return the rows of one load of the whole log, without the erased ones."""
        plain = self.warehouse.parent / "plain"
        load_topic(load_run(self.log, plain, "plain"), TOPIC)
        return [replace(row, load=0) for row in rows_of(plain) if row.sequence not in self.erased]

    def compare(self) -> None:
        assert [replace(row, load=0) for row in rows_of(self.warehouse)] == self.expected(), self.done
        self.compare_counts()

    def compare_counts(self) -> None:
        """Compare the accounts and the sequence numbers of all loads with those of one load."""
        plain = Topic(open_storage(str(self.warehouse.parent / "plain")), TOPIC)
        whole = read_load(plain, 1)
        assert self.accounts(self.loads()) == self.accounts([whole]), self.done
        counts = SequenceCounts()
        for load in self.loads():
            counts.merge(sequences_of(self.stored.storage, load))
            counts.merge(erased_sequences_of(self.stored.storage, load))
        assert counts.to_json() == sequences_of(plain.storage, whole).to_json(), self.done

    @staticmethod
    def accounts(loads: list[LoadManifest]) -> Mapping[tuple[int, str], int]:
        totals = Counter[tuple[int, str]]()
        for load in loads:
            for part in load.partitions:
                totals[part.partition, "rows"] += part.written + part.filtered
                for name in ("read", "tombstones", "rejected", "data_batches"):
                    totals[part.partition, name] += getattr(part, name)
                totals[part.partition, "end"] = part.end
        return +totals


def run(seed: int, folder: Path) -> None:
    (folder / "warehouse").mkdir()
    history = History(SharedBranch(folder / "warehouse"), random.Random(seed))
    history.produce()
    for _ in range(STEPS):
        history.step()
    history.settle()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_resident_loaders_load_what_one_load_does_whatever_happens(seed: int, tmp_path: Path) -> None:
    run(seed, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3_000, 3_000 + 20 * ROUNDS))
def test_resident_loaders_load_what_one_load_does_for_longer(seed: int, tmp_path: Path) -> None:
    run(seed, tmp_path)
