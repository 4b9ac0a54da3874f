"""Random steps of resident loaders, publications, compactions, expiries and erasures on one table.

A reader of branch `live` sees each row at most once in every look, and all rows of `main`. In the end it sees
all rows.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyiceberg.table import Table

from millrace_warehouse.commands.following import LiveBranch
from millrace_warehouse.load.open_load import OpenLoad
from millrace_warehouse.load.resident import Answer
from millrace_warehouse.publish.branch_commit import LIVE
from millrace_warehouse.publish.table import PATH, find_table
from tests.published import Warehouse, warehouse
from tests.support import ROUNDS
from tests.unit.warehouse.load.residents import LEASE_S, SharedBranch
from tests.unit.warehouse.load.test_resident_histories import STEPS, History
from tests.unit.warehouse.memory_log import TOPIC

HOURS = [f"2015-05-17T{hour}" for hour in range(10, 13)]
Places = list[tuple[int, int]]


@dataclass
class RealBranch(SharedBranch):
    """The branch of a real table."""

    warehouse: Warehouse | None = None

    def __post_init__(self) -> None:
        assert self.warehouse is not None
        catalog = self.warehouse.catalog
        self._live = LiveBranch(self.warehouse.stored, lambda: catalog, LEASE_S, self.clock)

    def show(self, load: OpenLoad | None) -> Answer:
        answer = Answer.UNKNOWN if self.is_down else self._live.show(load)
        assert self._live.trouble is None
        return answer

    def withdraw(self, load: OpenLoad) -> Answer:
        return Answer.UNKNOWN if self.is_down else self._live.withdraw(load)

    @property
    def table(self) -> Table | None:
        assert self.warehouse is not None
        return find_table(self.warehouse.catalog, TOPIC)

    def rows(self) -> Places:
        table = self.table
        return [] if table is None or LIVE not in table.metadata.refs else _places(table, LIVE)


def _places(table: Table, branch: str) -> Places:
    rows = table.scan(selected_fields=("_topic_partition", "_offset")).use_ref(branch).to_arrow()
    return sorted(zip(rows["_topic_partition"].to_pylist(), rows["_offset"].to_pylist(), strict=True))


class LiveHistory(History):
    """The history of a topic with a table."""

    branch: RealBranch

    def __init__(self, w: Warehouse, chance: random.Random) -> None:
        super().__init__(RealBranch(w.folder, warehouse=w), chance)
        self.w = w

    def steps(self) -> list[Callable[[], None]]:
        return [*super().steps(), self.publish, self.publish, self.compact, self.expire]

    def publish(self) -> None:
        if self.loads():
            self.w.publish(*self.chance.sample(HOURS, self.chance.randrange(1, 3)))

    def compact(self) -> None:
        if self._is_published():
            self.w.compact()

    def expire(self) -> None:
        if self._is_published():
            self.w.expire()

    def _is_published(self) -> bool:
        table = self.branch.table
        return table is not None and PATH in table.properties

    def look(self) -> None:
        super().look()
        table = self.branch.table
        if table is not None and LIVE in table.metadata.refs:
            shown = _places(table, LIVE)
            assert len(shown) == len({*shown}), self.done
            assert self.branch.is_down or {*_places(table, "main")} <= {*shown}, self.done

    def compare(self) -> None:
        expected = sorted((row.partition, row.offset) for row in self.expected())
        assert self.branch.rows() == expected, self.done
        self.compare_counts()
        self.w.publish(*HOURS)
        table = self.branch.table
        assert table is not None
        assert _places(table, LIVE) == _places(table, "main") == expected, self.done


def run(seed: int, folder: Path) -> None:
    with warehouse(folder / "warehouse") as w:
        history = LiveHistory(w, random.Random(seed))
        history.produce()
        for _ in range(STEPS):
            history.step()
        history.settle()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_branch_shows_each_row_once_whatever_happens(seed: int, tmp_path: Path) -> None:
    run(seed, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5_000, 5_000 + 20 * ROUNDS))
def test_the_branch_shows_each_row_once_for_longer(seed: int, tmp_path: Path) -> None:
    run(seed, tmp_path)
