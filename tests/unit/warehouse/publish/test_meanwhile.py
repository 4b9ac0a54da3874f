"""A publication that comes between two looks of another run at the same table is no change by others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millrace.errors import MillraceError
from millrace_warehouse.history.layout import Topic, loads_after, newest_load
from millrace_warehouse.storage import Listed, Storage
from millrace_warehouse.storage.local import LocalStorage
from tests.loaded import offsets
from tests.published import TOPIC, Warehouse, warehouse

NINE, TEN = "2015-05-17T09", "2015-05-17T10"


class Overtaken(LocalStorage):
    """A storage that lets others run just before a folder is listed for the first time."""

    rivals: dict[str, Callable[[], object]] = {}  # noqa: RUF012  # of the one test that runs

    def names(self, folder: str, after: str = "") -> list[str]:
        self.rivals.pop(folder.partition("/")[2], int)()
        return super().names(folder, after)

    def files(self, folder: str) -> list[Listed]:
        self.rivals.pop(folder.partition("/")[2], int)()
        return super().files(folder)


@pytest.fixture
def w(tmp_path: Path) -> Iterator[Warehouse]:
    with warehouse(tmp_path / "w") as made:
        for _ in range(3):
            made.load({NINE: 2, TEN: 1})
        made.publish(NINE)
        yield made


@pytest.mark.parametrize("run", ["publish", "compact", "expire"])
def test_the_run_looks_again_and_goes_on(w: Warehouse, run: str) -> None:
    Overtaken.rivals["ledger/publications"] = lambda: w.publish(TEN)
    getattr(w, run)(storage=Overtaken(str(w.folder)))
    assert Overtaken.rivals == {}
    assert len(offsets(w.table)) == 9
    assert w.problems(rows=True) == []


def test_a_table_that_was_really_dropped_stays_one_clear_line(w: Warehouse) -> None:
    w.catalog.drop_table(w.table.name())
    with pytest.raises(MillraceError, match="it was dropped, or its catalog is older"):
        w.publish()


@pytest.mark.parametrize("at", ["ledger/publications", "ledger/loads", "rows", "expired", "schema"])
def test_a_verification_that_is_overtaken_checks_again(w: Warehouse, at: str) -> None:
    def others() -> None:
        w.load({NINE: 1})
        w.publish(TEN)
        w.read_again(1, {NINE: 3})
        w.publish()
        w.compact()
        w.forget_snapshots()
        assert w.expire().data_files == 8

    Overtaken.rivals[at] = others
    assert w.problems(storage=Overtaken(str(w.folder)), rows=True) == []
    assert Overtaken.rivals == {}


LOOKS: dict[str, Callable[[Storage], object]] = {
    "the newest": lambda storage: newest_load(Topic(storage, TOPIC)),
    "those after one": lambda storage: list(loads_after(Topic(storage, TOPIC), 1)),
}


@pytest.mark.parametrize("at", ["loads", "ledger/loads"])
@pytest.mark.parametrize("look", LOOKS)
def test_a_load_that_is_made_between_two_listings_is_not_taken_for_one_that_is_gone(
    w: Warehouse, look: str, at: str
) -> None:
    Overtaken.rivals[at] = lambda: w.load({NINE: 1})
    LOOKS[look](Overtaken(str(w.folder)))
    assert Overtaken.rivals == {}


def test_a_verification_that_is_overtaken_every_time_finds_no_foreign_rows_among_the_hours(
    w: Warehouse,
) -> None:
    def others(path: str) -> None:
        if path.endswith("loads/0000000001.json"):
            w.load({NINE: 1})
            w.publish()

    assert w.problems(progress=others) == []
