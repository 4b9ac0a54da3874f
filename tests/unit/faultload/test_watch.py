"""The reader of the fault load: it accepts a sound warehouse, and sees what must never be seen."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from millrace_warehouse.table.publish import publish_hours

from millrace_warehouse.load.load import load_topic
from tests.faultload.produced import Ledger
from tests.faultload.watch import Problem, Topic, grouped, hourly_rows, plain_files, rows_of
from tests.unit.warehouse.memory_log import (
    HOUR,
    START,
    TOPIC,
    MemoryLog,
    event,
    filled_log,
    hourly_run,
    load_run,
)

HOURS = [f"2015-05-17T{hour}" for hour in (10, 11, 12, 13)]
INSTANCE, SERVER = 1, "web1"


def ledger_of(log: MemoryLog, missing: int = 0) -> Ledger:
    """Everything in the log was handed over, but for the last ones."""
    ledger = Ledger()
    for _ in range(log.sequence - missing):
        ledger.hand_over(TOPIC, INSTANCE, SERVER)
    return ledger


def reader_of(warehouse: Path, log: MemoryLog) -> Topic:
    return Topic(warehouse, TOPIC, ledger_of(log))


def test_a_sound_warehouse_is_taken_in_load_by_load(tmp_path: Path) -> None:
    log = filled_log()
    load_topic(load_run(log, tmp_path), TOPIC)
    log.append_events(1, [START + n for n in range(20)])
    load_topic(load_run(log, tmp_path, "run-2"), TOPIC)
    publish_hours(hourly_run(tmp_path), TOPIC, HOURS)
    (tmp_path / TOPIC / "_staging" / "dead").mkdir(parents=True)
    (tmp_path / TOPIC / "_staging" / "dead" / "part.parquet").touch()
    reader = reader_of(tmp_path, log)
    for _ in range(5):
        reader.look(random.Random(1))
    assert list(reader.loads) == [1, 2]
    assert reader.seen == {(INSTANCE, SERVER): set(range(200))} == hourly_rows(tmp_path, TOPIC)


def test_an_hour_that_is_not_there_yet_is_no_problem(tmp_path: Path) -> None:
    assert hourly_rows(tmp_path, TOPIC) == {}


def first_file(warehouse: Path) -> Path:
    return next(plain_files(warehouse / TOPIC))


def orphan(warehouse: Path) -> None:
    path = first_file(warehouse)
    shutil.copy(path, path.with_name("part-from-a-dead-task.parquet"))


def stray(warehouse: Path) -> None:
    target = warehouse / TOPIC / "load=0000000001" / "hour=10"
    target.mkdir()
    shutil.copy(first_file(warehouse), target)


def shrunk(warehouse: Path) -> None:
    first_file(warehouse).unlink()


@pytest.mark.parametrize(
    ("damage", "said"), [(orphan, "no manifest"), (stray, "no manifest"), (shrunk, "have changed")]
)
def test_files_that_come_and_go_are_seen(tmp_path: Path, damage: Callable[[Path], None], said: str) -> None:
    log = filled_log()
    load_topic(load_run(log, tmp_path), TOPIC)
    reader = reader_of(tmp_path, log)
    reader.look(random.Random(1))
    damage(tmp_path)
    with pytest.raises(Problem, match=said):
        reader.look(random.Random(1))


def test_a_sequence_in_two_loads_is_seen(tmp_path: Path) -> None:
    log = filled_log()
    load_topic(load_run(log, tmp_path), TOPIC)
    log.append(0, [event(7, START + HOUR)])
    load_topic(load_run(log, tmp_path, "run-2"), TOPIC)
    with pytest.raises(Problem, match="sequence 7 of instance 1 is in an earlier load too"):
        reader_of(tmp_path, log).look(random.Random(1))


def test_a_sequence_twice_in_one_load_is_seen(tmp_path: Path) -> None:
    log = filled_log()
    log.append(0, [event(7, START)])
    load_topic(load_run(log, tmp_path), TOPIC)
    with pytest.raises(Problem, match="sequence 7 of instance 1 on web1 is there twice"):
        reader_of(tmp_path, log).look(random.Random(1))
    with pytest.raises(Problem, match="is there twice"):
        grouped(rows_of(plain_files(tmp_path / TOPIC)), TOPIC)


def test_a_row_that_nobody_has_produced_is_seen(tmp_path: Path) -> None:
    log = filled_log()
    load_topic(load_run(log, tmp_path), TOPIC)
    reader = Topic(tmp_path, TOPIC, ledger_of(log, missing=1))
    with pytest.raises(Problem, match="nobody has produced sequence 179"):
        reader.look(random.Random(1))


def test_a_hello_that_was_refused_uses_its_number_again() -> None:
    ledger = Ledger()
    ledger.hand_over(TOPIC, INSTANCE, SERVER)
    ledger.take_back(TOPIC, INSTANCE)
    assert ledger.foreign(TOPIC, INSTANCE, SERVER, {0}) == {0}
    assert ledger.foreign(TOPIC, INSTANCE, "another", {0}) == {0}
    assert ledger.totals() == (0, 0)
