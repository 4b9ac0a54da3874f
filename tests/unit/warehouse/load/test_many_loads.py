"""What a run costs does not grow with the loads before it, and what makes that so may be lost."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from pathlib import Path

import pytest
from millrace_warehouse.table.expire import ExpireRun, expire_topic
from millrace_warehouse.table.publish import HourlyRun, publish_hours, publish_late_hours

from millrace.errors import MillraceError
from millrace_warehouse.history.layout import load_numbers
from millrace_warehouse.load.load import load_topic
from millrace_warehouse.storage.filesystem import LocalFilesystem
from millrace_warehouse.verify import verify
from tests.unit.warehouse.memory_log import HOUR, START, TOPIC, MemoryLog, hourly_run, load_run, no_progress

TEN, ELEVEN = "2015-05-17T10", "2015-05-17T11"


class CountingFilesystem(LocalFilesystem):
    """Counts the questions that would each be a round trip on HDFS."""

    asked = 0

    def names(self, folder: str) -> list[str]:
        self.asked += 1
        return super().names(folder)

    def read(self, path: str) -> bytes:
        self.asked += 1
        return super().read(path)


class Minutely:
    """A warehouse into which a load of one row is put every minute, and the cost of what is done with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = MemoryLog()
        self.runs = itertools.count()
        self.fs = CountingFilesystem(str(folder))

    def run(self) -> HourlyRun:
        return dataclasses.replace(hourly_run(self.folder), fs=self.fs)

    def load(self, time_ms: int) -> int:
        self.log.append_events(1, [time_ms])
        before = self.fs.asked
        load_topic(load_run(self.log, self.folder, f"run {next(self.runs)}", fs=self.fs), TOPIC)
        return self.fs.asked - before

    def expire(self) -> int:
        run = ExpireRun(fs=self.fs, older_than_s=-1, reader_grace_s=-1, progress=no_progress)
        return expire_topic(run, TOPIC).loads

    def hour(self, *hours: str) -> int:
        before = self.fs.asked
        publish_hours(self.run(), TOPIC, hours)
        publish_late_hours(self.run(), TOPIC)
        return self.fs.asked - before


@pytest.fixture
def minutely(tmp_path: Path) -> Minutely:
    return Minutely(tmp_path)


def rows(minutely: Minutely, *hours: str) -> list[int]:
    return [each.rows for each in publish_hours(minutely.run(), TOPIC, hours)]


def test_a_load_and_an_hour_ask_no_more_of_storage_when_there_are_many_loads(minutely: Minutely) -> None:
    costs = []
    for loads in (3, 3, 30):
        for _ in range(loads):
            load = minutely.load(START)
        minutely.hour(TEN)
        minutely.load(START + HOUR)
        costs.append((load, minutely.hour(ELEVEN)))
    assert costs[1] == costs[2]
    assert rows(minutely, TEN, ELEVEN) == [36, 3]


def test_an_expiry_asks_no_more_of_storage_when_many_loads_have_expired(minutely: Minutely) -> None:
    asked = []
    for loads in (2, 2, 20, 2):
        for _ in range(loads):
            minutely.load(START)
        minutely.hour(TEN)
        before = minutely.fs.asked
        assert minutely.expire() == loads
        asked.append(minutely.fs.asked - before)
        for marker in minutely.folder.glob("*/_expired/.*"):
            os.utime(marker, (0, 0))
        minutely.expire()
    assert asked[1] == asked[3]


@pytest.mark.parametrize("content", [b"", b"{}\n", None])
def test_the_index_of_hours_may_be_lost_cut_or_edited(minutely: Minutely, content: bytes | None) -> None:
    for _ in range(3):
        minutely.load(START)
    minutely.hour(TEN)
    minutely.load(START + HOUR)
    (path,) = (minutely.folder / TOPIC / "_hours").iterdir()
    if content is None:
        content = json.dumps(json.loads(path.read_bytes()) | {"hours": {}}).encode()
    path.write_bytes(content)
    minutely.load(START)
    minutely.hour(TEN, ELEVEN)
    assert rows(minutely, TEN, ELEVEN) == [4, 1]
    assert len(list((minutely.folder / TOPIC / "_hours").iterdir())) == 1
    assert [p for r in verify(minutely.fs, TOPIC, None, no_progress) for p in r.problems] == []


def test_an_index_of_loads_that_were_made_anew_does_not_count(minutely: Minutely) -> None:
    minutely.load(START)
    minutely.load(START)
    minutely.hour(TEN)
    (minutely.folder / TOPIC / "load=0000000002").rename(minutely.folder / "elsewhere")
    (minutely.folder / TOPIC / "_ledger" / "load=0000000002.json").unlink()
    minutely.load(START + HOUR)
    minutely.hour(TEN, ELEVEN)
    assert rows(minutely, TEN, ELEVEN) == [2, 1]


def test_an_empty_folder_where_the_next_load_goes_is_nobodys_and_one_further_down_was_emptied(
    minutely: Minutely,
) -> None:
    for _ in range(2):
        minutely.load(START)
    (minutely.folder / TOPIC / "load=0000000003").mkdir()
    assert load_numbers(minutely.fs, TOPIC) == [1, 2]
    minutely.load(START)
    for path in (minutely.folder / TOPIC / "load=0000000002").rglob("*"):
        if path.is_file():
            path.unlink()
    with pytest.raises(MillraceError, match=r"load=0000000002/_manifest.json is missing"):
        minutely.hour(TEN)
