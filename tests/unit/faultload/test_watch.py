"""The reader of the fault load: it accepts a sound warehouse, and sees what must never be seen."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace_warehouse.context import Context
from millrace_warehouse.history import layout
from millrace_warehouse.history.layout import CATALOG, load_path, read_load
from millrace_warehouse.history.manifest import encode, sealed
from millrace_warehouse.load.load import load_topic
from millrace_warehouse.publish.live import follow
from millrace_warehouse.storage import open_storage
from tests.published import warehouse
from tests.trials.faultload.produced import Ledger
from tests.trials.faultload.watch import Problem, Topic, files_of, published_rows, table_rows
from tests.unit.warehouse.memory_log import HOUR, START, TOPIC, MemoryLog, event, filled_log, load_run

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
    with warehouse(tmp_path) as scene:
        scene.publish(*HOURS)
    reader = reader_of(tmp_path, log)
    for _ in range(5):
        reader.look(random.Random(1))
    assert list(reader.loads) == [1, 2]
    assert reader.seen == {(INSTANCE, SERVER): set(range(200))} == published_rows(tmp_path / CATALOG, TOPIC)


def test_a_table_that_is_not_there_yet_is_no_problem(tmp_path: Path) -> None:
    assert published_rows(tmp_path / CATALOG, TOPIC) == {}
    (tmp_path / CATALOG).touch()
    assert published_rows(tmp_path / CATALOG, TOPIC) == {}


def test_a_row_that_is_in_the_table_twice_is_seen(tmp_path: Path) -> None:
    log = filled_log()
    load_topic(load_run(log, tmp_path), TOPIC)
    log.append(0, [event(7, START)])
    load_topic(load_run(log, tmp_path, "run-2"), TOPIC)
    with warehouse(tmp_path) as scene:
        scene.publish(*HOURS)
    with pytest.raises(Problem, match="table of PageView: sequence 7 of instance 1 on web1 is there twice"):
        published_rows(tmp_path / CATALOG, TOPIC)


def test_a_load_that_branch_live_does_not_show_whole_is_seen(tmp_path: Path) -> None:
    log = filled_log()
    load_topic(load_run(log, tmp_path), TOPIC)
    reader = reader_of(tmp_path, log)
    reader.look(random.Random(1))
    with warehouse(tmp_path) as scene:
        follow(Context(storage=scene.storage, catalog=scene.catalog), scene.stored, on=True)
    live = table_rows(tmp_path / CATALOG, TOPIC)["live"]
    assert live.sequences == {(INSTANCE, SERVER): set(range(180))}
    reader.compare(live)
    live.by_load[1] -= 1
    with pytest.raises(Problem, match="branch live of PageView shows 179 of 180 rows of load 1"):
        reader.compare(live)


def test_a_row_of_branch_live_that_nobody_has_produced_is_seen(tmp_path: Path) -> None:
    log = filled_log()
    load_topic(load_run(log, tmp_path), TOPIC)
    with warehouse(tmp_path) as scene:
        follow(Context(storage=scene.storage, catalog=scene.catalog), scene.stored, on=True)
    reader = Topic(tmp_path, TOPIC, ledger_of(log, missing=3))
    with pytest.raises(Problem, match="branch live of PageView: nobody has produced sequence 177"):
        reader.compare(table_rows(tmp_path / CATALOG, TOPIC)["live"])


def first_file(folder: Path) -> Path:
    return files_of(folder, read_load(layout.Topic(open_storage(str(folder)), TOPIC), 1))[0]


def cut(folder: Path) -> None:
    file = first_file(folder)
    file.write_bytes(file.read_bytes()[:-1])


def emptied(folder: Path) -> None:
    file = first_file(folder)
    size = file.stat().st_size
    pq.write_table(pa.table({"gone": pa.array([], pa.int64())}), file)
    with file.open("r+b") as content:
        footer = content.read()
        content.seek(0)
        content.write(b"PAR1" + bytes(size - len(footer)) + footer[4:])
    assert file.stat().st_size == size


def rewritten(folder: Path) -> None:
    manifest = read_load(layout.Topic(open_storage(str(folder)), TOPIC), 1)
    changed = sealed(dataclasses.replace(manifest, run_id="another"))
    (folder / load_path(TOPIC, 1)).write_bytes(encode(changed))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: first_file(folder).unlink(), "has changed since the load was made"),
        (cut, "has changed since the load was made"),
        (emptied, "rows and has 0 now"),
        (rewritten, "has changed since it was made"),
    ],
)
def test_a_load_that_does_not_stay_as_it_is_is_seen(
    tmp_path: Path, damage: Callable[[Path], None], said: str
) -> None:
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
