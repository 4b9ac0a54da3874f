"""Random histories of a table with branch `live`, whose commits meet faults: every offset is shown once."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pyiceberg.table.snapshots import ancestors_of

from millrace_warehouse.context import Context
from millrace_warehouse.history import layout
from millrace_warehouse.history.entries import data_file
from millrace_warehouse.history.schemas import pinned
from millrace_warehouse.load.attempt import new_attempt
from millrace_warehouse.publish.branch_commit import LIVE
from millrace_warehouse.publish.live import Live, Tail
from tests.loaded import Rows, write_files
from tests.published import TOPIC, Warehouse, warehouse
from tests.support import ROUNDS
from tests.unit.warehouse.publish.test_faults import FAULTS, faulty

HOURS = [f"2015-05-17T{hour:02d}" for hour in range(10, 16)]
STEPS = 40


class History:
    """A warehouse to which things happen, and the end of what the branch must show."""

    def __init__(self, w: Warehouse, seed: int) -> None:
        self.w, self.dice = w, random.Random(seed)
        self.loaded = 0
        self.tail: Tail | None = None
        """Tail of a loader that still runs."""
        self.left = 0
        """End of the tail that a loader has left behind, of which some may be shown."""

        self.faults: list[str | None] = []
        """Answers of the catalog to the next commits; None is a good one."""

    def live(self) -> Live:
        return Live(Context(storage=self.w.storage, catalog=self.w.catalog), self.w.stored)

    def answers(self) -> Iterator[str | None]:
        while True:
            yield self.faults.pop() if self.faults else None

    def some_rows(self) -> Rows:
        return {hour: self.dice.randint(1, 4) for hour in self.dice.sample(HOURS, 2)}

    def load(self) -> None:
        rows = self.some_rows()
        self.w.load(rows)
        self.loaded += sum(rows.values())
        self.tail, self.left = None, 0

    def extend_the_tail(self) -> None:
        """Show more rows of the load that is being made, as a resident loader does."""
        schema, newest, rows = pinned(self.w.stored), layout.newest_load(self.w.stored), self.some_rows()
        assert schema is not None
        assert newest is not None
        load = newest.load + 1
        tail = self.tail or Tail(
            load=load, attempt=new_attempt(1), ends={}, schema=schema.number, entries=(), lease_s=0.0
        )
        start = tail.ends.get(0, self.loaded)
        folder = f"rows/{load:010d}-{tail.attempt}"
        written = write_files(self.w.storage, schema, folder, load, start, rows)
        entries = [
            data_file(file, stated, self.w.storage.uri(f"{TOPIC}/{file.path}")) for file, stated in written
        ]
        ends = {0: start + sum(rows.values())}
        self.tail = replace(tail, ends=ends, entries=[*tail.entries, *entries])
        self.live().follow(self.tail)

    def seal(self) -> None:
        """Make a load of the tail's rows, in files of its own."""
        if self.tail is not None:
            self.w.load({self.dice.choice(HOURS): self.tail.ends[0] - self.loaded})
            self.loaded, self.tail, self.left = self.tail.ends[0], None, 0

    def read_again(self) -> None:
        newest = layout.newest_load(self.w.stored)
        assert newest is not None
        load = self.dice.randint(max(1, newest.load - 3), newest.load)
        edition = layout.newest_editions(self.w.stored).get(load, 1)
        counts = layout.read_edition(self.w.stored, load, edition).rows_by_hour().values()
        self.w.read_again(load, dict(zip(self.dice.sample(HOURS, len(counts)), counts, strict=True)))

    def publish(self) -> None:
        self.w.publish(*self.dice.sample(HOURS, self.dice.randint(0, 1)))

    def forget_as_others_do(self) -> None:
        maintenance = self.w.table.maintenance
        maintenance.expire_snapshots().older_than(dt.datetime(2100, 1, 1)).commit()

    def drop_the_branch(self) -> None:
        if LIVE in self.w.table.metadata.refs:
            self.w.table.manage_snapshots().remove_branch(LIVE).commit()
        self.leave()

    def leave(self) -> None:
        """Kill the resident loader."""
        if self.tail is not None:
            self.left, self.tail = self.tail.ends[0], None

    def set_the_branch_back(self) -> None:
        table = self.w.table
        head = table.metadata.snapshot_by_name(LIVE)
        if head is not None:
            back = self.dice.choice([*ancestors_of(head, table.metadata)]).snapshot_id
            table.manage_snapshots().remove_branch(LIVE).create_branch(back, LIVE).commit()
            self.leave()

    def acts(self) -> Sequence[Callable[[], object]]:
        often = [self.load] * 5 + [self.extend_the_tail] * 4 + [self.publish] * 3 + [self.seal] * 2
        mine: list[Callable[[], object]] = [self.read_again, self.w.compact, self.w.expire, self.leave]
        return [*often, *mine, self.forget_as_others_do, self.drop_the_branch, self.set_the_branch_back]

    def check(self, what: str) -> None:
        """Look at the branch as a reader does."""
        table = self.w.table
        rows = table.scan(selected_fields=("_offset",)).use_ref(LIVE).to_arrow()
        shown = sorted(rows["_offset"].to_pylist())
        assert shown == list(range(len(shown))), what
        if self.tail is not None:
            assert len(shown) == self.tail.ends[0], what
        else:
            assert self.loaded <= len(shown) <= max(self.loaded, self.left), what
        proven = table.scan(selected_fields=("_offset",)).to_arrow()["_offset"].to_pylist()
        assert {*proven} <= {*shown}, what
        head = table.metadata.snapshot_by_name(LIVE)
        assert head is not None
        assert head.summary is not None
        assert head.summary["total-records"] == str(len(shown)), what


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(ROUNDS * 2))
def test_every_offset_is_once_in_every_look(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with warehouse(tmp_path / "w") as w:
        history = History(w, seed)
        faulty(monkeypatch, w.catalog, history.answers())
        history.load()
        history.live().follow(on=True)
        done = list[str]()
        for _ in range(STEPS):
            act = history.dice.choice(history.acts())
            act()
            done.append(act.__name__)
            if history.dice.random() < 0.8:
                history.faults = history.dice.choices([None, *FAULTS], k=2)
                history.live().follow(history.tail)
                history.faults = []
                history.check(f"seed {seed}: {', '.join(done)}")
        w.publish()
        history.live().follow()
        history.check(f"seed {seed}: the end")
        assert w.problems(rows=True) == []
