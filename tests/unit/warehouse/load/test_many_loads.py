"""Requests of a run to storage do not grow with earlier loads; the hint behind that may be lost."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from millrace.errors import MillraceError
from millrace_warehouse.history.layout import HEAD, HEAD_EVERY, Topic, load_numbers, newest_load
from millrace_warehouse.load.load import load_topic
from millrace_warehouse.storage import Storage
from tests.unit.warehouse.memory_log import START, TOPIC, MemoryLog, load_run
from tests.unit.warehouse.storages import CountingStorage


class Listing(CountingStorage):
    """Counts the names that listings give, too: a page of them is a round trip on an object store."""

    listed = 0

    def names(self, folder: str, after: str = "") -> list[str]:
        found = super().names(folder, after)
        self.listed += len(found)
        return found


class Minutely:
    """A warehouse into which a load of one row is put every minute, and what that asks of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = MemoryLog(1)
        self.runs = itertools.count()

    def load(self) -> tuple[int, int]:
        """Questions, and names in their answers."""
        storage = Listing(self.folder)
        self.log.append_events(0, [START])
        load_topic(load_run(self.log, storage, f"run {next(self.runs)}"), TOPIC)
        return storage.asked, storage.listed


@pytest.fixture(scope="module")
def minutely(tmp_path_factory: pytest.TempPathFactory) -> Minutely:
    """A warehouse of one load more than the hint needs."""
    minutely = Minutely(tmp_path_factory.mktemp("minutely"))
    for _ in range(HEAD_EVERY + 1):
        minutely.load()
    return minutely


def head(minutely: Minutely) -> Path:
    return minutely.folder / TOPIC / "loads" / HEAD


def newest(minutely: Minutely) -> int:
    storage: Storage = Listing(minutely.folder)
    found = newest_load(Topic(storage, TOPIC))
    assert found is not None
    return found.load


def test_a_load_asks_no_more_of_storage_when_there_are_many(minutely: Minutely, tmp_path: Path) -> None:
    few = Minutely(tmp_path)
    for _ in range(3):
        early = few.load()
    late = minutely.load()
    assert late[0] <= early[0] + 2, "whether the load of the hint is there, before each of two listings"
    assert late[1] <= early[1]


@pytest.mark.parametrize("content", [b"", b"7", b"99999", b"-3", b"\xff", None])
def test_the_hint_may_be_lost_cut_old_or_wrong(minutely: Minutely, content: bytes | None) -> None:
    before = head(minutely).read_bytes()
    try:
        head(minutely).unlink()
        if content is not None:
            head(minutely).write_bytes(content)
        expected = len(load_numbers(Topic(Listing(minutely.folder), TOPIC)))
        assert newest(minutely) == expected
        minutely.load()
        assert newest(minutely) == expected + 1
    finally:
        head(minutely).write_bytes(before)


@pytest.mark.parametrize("further_down", [0, 1])
def test_a_load_that_is_gone_is_missed_behind_the_hint(minutely: Minutely, further_down: int) -> None:
    minutely.load()
    gone = newest(minutely) - further_down
    path = minutely.folder / TOPIC / f"loads/{gone:010d}.json"
    path.rename(minutely.folder / "elsewhere")
    try:
        with pytest.raises(MillraceError, match=rf"{gone:010d}\.json was published and is gone"):
            minutely.load()
    finally:
        (minutely.folder / "elsewhere").rename(path)


def test_loads_made_anew_after_a_warehouse_was_set_back_are_found_despite_a_hint_beyond_them(
    tmp_path: Path,
) -> None:
    minutely = Minutely(tmp_path)
    for _ in range(3):
        minutely.load()
    head(minutely).write_bytes(b"100")
    assert newest(minutely) == 3
