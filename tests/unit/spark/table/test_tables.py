"""Readers of the hourly table: what they are given, and what they see while revisions come and go."""

from __future__ import annotations

import importlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from millrace.errors import ConfigError, MillraceError
from millrace_spark import tables
from millrace_spark.table.expire import ExpireRun, expire_topic
from millrace_spark.table.publish import publish_hours, publish_late_hours
from tests.unit.spark.interleaved import HOURS, MortalFilesystem, Scenario
from tests.unit.spark.memory_log import HOUR, START, TOPIC, no_progress

FIRST, MORE = 5, 3
"""Rows of an hour in its first revision, and how many every later one has more."""
PUBLISHED = 8
GRACE_S = 2.0


@pytest.fixture
def scene(tmp_path: Path) -> Scenario:
    """Two hours of FIRST rows each, published."""
    scene = Scenario(tmp_path, random.Random(1))
    add(scene, FIRST)
    publish_hours(scene.hourly_run(fs_of(scene)), TOPIC, HOURS)
    return scene


def fs_of(scene: Scenario) -> MortalFilesystem:
    return MortalFilesystem(str(scene.folder))


def add(scene: Scenario, rows: int) -> None:
    """So many more rows for each of the first two hours, loaded."""
    scene.log.append_events(0, [START + n % 2 * HOUR for n in range(2 * rows)])
    scene._load(fs_of(scene))


def expire(scene: Scenario, grace_s: float) -> None:
    run = ExpireRun(fs=fs_of(scene), older_than_s=-1, reader_grace_s=grace_s, progress=no_progress)
    expire_topic(run, TOPIC)


@contextmanager
def publishing(scene: Scenario) -> Iterator[threading.Event]:
    """Late rows, their revisions and expiry, over and over; set when PUBLISHED revisions are there."""
    done, failed = threading.Event(), list[BaseException]()

    def publish() -> None:
        try:
            for _ in range(PUBLISHED):
                add(scene, MORE)
                publish_late_hours(scene.hourly_run(fs_of(scene)), TOPIC)
                expire(scene, grace_s=GRACE_S)
        except BaseException as error:
            failed.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield done
    finally:
        thread.join(120)
        assert not failed, failed


def look_in_time(look: Callable[[], int]) -> int | None:
    """What a reader saw; None when this machine was so slow that it lost its files after the grace."""
    began = time.monotonic()
    try:
        return look()
    except AssertionError:
        raise
    except Exception:
        if time.monotonic() - began <= GRACE_S:
            raise
        return None


def check_whole(rows: list[tuple[int, int, int]]) -> int:
    """Rows as (hour, rev, sequence): of each hour one revision, whole; the newest revision of the two."""
    revisions: dict[int, set[int]] = {}
    for hour, rev, _ in rows:
        revisions.setdefault(hour, set()).add(rev)
    assert sorted(revisions) == [10, 11]
    assert all(len(each) == 1 for each in revisions.values()), revisions
    for hour, (rev,) in revisions.items():
        sequences = [sequence for h, _, sequence in rows if h == hour]
        whole = FIRST + MORE * (rev - 1)
        assert Counter(sequences) == Counter(range(hour - 10, 2 * whole, 2)), (hour, rev)
    return max(rev for revs in revisions.values() for rev in revs)


def test_a_pyarrow_reader_sees_each_hour_as_one_revision_whole_while_others_come_and_go(
    scene: Scenario,
) -> None:
    def look() -> int:
        table = tables.dataset(str(scene.folder), TOPIC).to_table(columns=["hour", "rev", "header"])
        sequences = [row["sequence"] for row in table["header"].to_pylist()]
        hours, revs = table["hour"].to_pylist(), table["rev"].to_pylist()
        return check_whole(list(zip(hours, revs, sequences, strict=True)))

    seen = set[int]()
    with publishing(scene) as done:
        last_look = False
        while not last_look:
            last_look = done.is_set()
            if (revision := look_in_time(look)) is not None:
                seen.add(revision)
    assert look() == PUBLISHED + 1
    assert len(seen) > 2


def test_a_dataset_that_is_open_reads_what_it_named_until_the_readers_grace_is_over(scene: Scenario) -> None:
    opened = tables.dataset(str(scene.folder), TOPIC)
    add(scene, MORE)
    publish_late_hours(scene.hourly_run(fs_of(scene)), TOPIC)
    expire(scene, grace_s=3600)
    assert opened.count_rows() == 2 * FIRST
    assert tables.dataset(str(scene.folder), TOPIC).count_rows() == 2 * (FIRST + MORE)
    expire(scene, grace_s=-1)
    with pytest.raises(FileNotFoundError):
        opened.to_table()


def test_hours_may_be_narrowed_in_any_zone(scene: Scenario) -> None:
    ten = datetime(2015, 5, 17, 10, tzinfo=UTC)

    def rows(start: datetime, end: datetime) -> int:
        return int(tables.dataset(str(scene.folder), TOPIC, (start, end)).count_rows())

    assert rows(ten, ten + timedelta(hours=1)) == FIRST
    assert rows(ten, ten + timedelta(hours=2)) == 2 * FIRST
    assert rows(datetime(2015, 5, 17, 10), datetime(2015, 5, 17, 11)) == FIRST
    there = ten.astimezone(timezone(timedelta(hours=2)))
    assert rows(there + timedelta(minutes=1), there + timedelta(hours=2)) == FIRST
    with pytest.raises(MillraceError, match=r"no hour of PageView with rows .* from 2015-05-17 12:00"):
        rows(ten + timedelta(hours=2), ten + timedelta(hours=3))


def test_hours_that_are_no_times_are_one_clear_line(scene: Scenario) -> None:
    hours: Any = ("2015-05-17T10", "2015-05-17T12")
    with pytest.raises(ConfigError, match=r"^hours: '2015-05-17T10' is no datetime: give two, like \("):
        tables.dataset(str(scene.folder), TOPIC, hours)


def test_duckdb_counts_the_rows_of_each_hour(scene: Scenario) -> None:
    pytest.importorskip("duckdb")
    relation = tables.duckdb(str(scene.folder), TOPIC)
    found = (
        relation.aggregate("date, hour, rev, count(*) as rows", "date, hour, rev").order("hour").fetchall()
    )
    assert [row[1:] for row in found] == [(10, 1, FIRST), (11, 1, FIRST)]
    assert relation.filter("hour = 10 and header.sequence > 3").aggregate("count(*) as rows").fetchall() == [
        (3,)
    ]


def test_pandas_has_every_row_and_column(scene: Scenario) -> None:
    pytest.importorskip("pandas")
    frame = tables.pandas(str(scene.folder), TOPIC)
    assert len(frame) == 2 * FIRST
    assert {"header", "url", "_partition", "date", "hour", "rev"} <= set(frame.columns)


@pytest.mark.parametrize("name", ["duckdb", "pandas"])
def test_what_is_not_installed_is_one_line_that_says_how_to_get_it(
    scene: Scenario, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = importlib.import_module

    def without(module: str, *arguments: Any) -> Any:
        if module == name:
            raise ImportError(module)
        return installed(module, *arguments)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(ConfigError, match=f"{name} is not installed: pip install {name}"):
        getattr(tables, name)(str(scene.folder), TOPIC)
