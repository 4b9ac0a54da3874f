"""A resident loader of one topic: the log is in memory, the branch a stand-in, files and loads are real."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from millrace.errors import MillraceError
from millrace.records import Message
from millrace_warehouse.history.erasures import Erasure, create_erasure
from millrace_warehouse.history.layout import Topic, load_numbers, read_load
from millrace_warehouse.history.ledger import read_entry
from millrace_warehouse.history.manifest import LoadManifest, now
from millrace_warehouse.history.same_log import RefusedLog
from millrace_warehouse.history.schemas import first_schema, pin, promote
from millrace_warehouse.history.stored import sequences_of
from millrace_warehouse.load import open_load
from millrace_warehouse.load import resident as resident_module
from millrace_warehouse.load.load import load_topic
from millrace_warehouse.load.merge import merge
from millrace_warehouse.load.open_load import TAIL
from millrace_warehouse.load.resident import SEAL_S, UNSHOWN_S, Resident
from millrace_warehouse.load.task import CutResult, CutTask
from millrace_warehouse.storage import open_storage
from tests.unit.warehouse.load.residents import LEASE_S, SharedBranch, resident
from tests.unit.warehouse.memory_log import (
    HOUR,
    START,
    TOPIC,
    MemoryLog,
    append_position,
    filled_log,
    load_run,
    local_run,
    mirrored_log,
    rows_of,
    with_field,
)
from tests.unit.warehouse.storages import UnansweredStorage, problems


def loads_of(warehouse: Path) -> list[LoadManifest]:
    topic = Topic(open_storage(str(warehouse)), TOPIC)
    return [read_load(topic, number) for number in load_numbers(topic)]


def places_in(log: MemoryLog) -> list[tuple[int, int]]:
    """Partition and offset of each record of the log."""
    return sorted(
        (partition, header.base_offset + n)
        for partition, one in log.partitions.items()
        for header in one.batches()
        if not header.is_control
        for n in range(header.records_count)
    )


def append_some(log: MemoryLog, turn: int) -> None:
    """Events of two hours in both partitions, some broken ones, a tombstone, and control batches."""
    log.append_events(0, [START + (n % 2) * HOUR + turn for n in range(7 + turn)], batch=3)
    log.append_events(1, [START + 2 * HOUR + n for n in range(turn % 3)])
    if turn % 2:
        log.append(1, [Message(START + turn, b"key", None), Message(START, None, b"broken")])
        log.append_control(0, bytes(40))


def counts_of(load: LoadManifest) -> dict[str, Any]:
    """Everything that a manifest says of a load's messages, without names of files and attempts."""
    partitions = [dataclasses.asdict(part) for part in load.partitions]
    return {
        "load": load.load,
        "schema": load.schema,
        "partitions": partitions,
        "hours": load.rows_by_hour(),
        "files": len(load.files),
        "rejected": [(file.rows, file.records) for file in load.rejected_files],
        "tombstones": [file.rows for file in load.tombstone_files],
        "aside": load.aside_by_hour,
        "unknown": load.unknown_fields,
        "erased": load.erased,
    }


def test_a_load_of_many_intervals_says_what_one_load_of_the_same_log_says(tmp_path: Path) -> None:
    log, branch = MemoryLog(), SharedBranch(tmp_path / "resident")
    loader = resident(log, branch)
    for seal in range(3):
        for turn in range(6):
            append_some(log, 6 * seal + turn)
            assert loader.turn() is None
            assert branch.tail() != []
        made = loader.stop()
        assert made is not None
        result = load_topic(load_run(log, tmp_path / "plain", f"run-{seal}", cut_bytes=1 << 20), TOPIC)
        assert made.rows == result.rows
        assert made.rejected_by_kind == result.rejected_by_kind
    ours, plain = loads_of(tmp_path / "resident"), loads_of(tmp_path / "plain")
    # The plain load has a file for each partition and hour, the resident one for each hour.
    assert all(load.files and len(load.files) == len(load.rows_by_hour()) for load in ours)
    assert [{**counts_of(load), "files": 0, "rejected": 0, "tombstones": 0} for load in ours] == [
        {**counts_of(load), "files": 0, "rejected": 0, "tombstones": 0} for load in plain
    ]
    assert rows_of(tmp_path / "resident") == rows_of(tmp_path / "plain")
    for one, other in zip(ours, plain, strict=True):
        sequences = [
            sequences_of(open_storage(str(tmp_path / name)), load).to_json()
            for name, load in (("resident", one), ("plain", other))
        ]
        assert sequences[0] == sequences[1]
        for kind in ("rejected_files", "tombstone_files"):
            rows = [sum(file.rows for file in getattr(load, kind)) for load in (one, other)]
            assert rows[0] == rows[1] > 0
        assert len(one.rejected_files) == len(one.tombstone_files) == 1
    assert problems(tmp_path / "resident", TOPIC) == []
    assert branch.rows() == sorted((row.partition, row.offset) for row in rows_of(tmp_path / "resident"))


def test_rows_are_shown_before_the_load_is_made_and_once_at_every_moment(tmp_path: Path) -> None:
    log, branch = MemoryLog(), SharedBranch(tmp_path)
    loader = resident(log, branch)
    for turn in range(12):
        log.append_events(turn % 2, [START + n * HOUR for n in range(4)])
        branch.clock.now += SEAL_S / 3
        made = loader.turn()
        while made is not None:  # a turn that makes a load reads nothing
            assert branch.rows() == sorted((row.partition, row.offset) for row in rows_of(tmp_path))
            made = loader.turn()
        assert branch.rows() == places_in(log)
        assert loader.tail_rows == len(branch.tail())
    assert 2 <= len(loads_of(tmp_path)) <= 4


def test_a_topic_without_the_branch_gets_a_load_a_minute(tmp_path: Path) -> None:
    log, branch = filled_log(), SharedBranch(tmp_path, is_off=True)
    loader = resident(log, branch)
    first = loader.turn()
    assert first is not None
    assert first.rows == 180
    log.append_events(0, [START])
    assert loader.turn() is None
    assert len(loads_of(tmp_path)) == 1
    branch.clock.now += UNSHOWN_S
    second = loader.turn()
    assert second is not None
    assert (second.load, second.rows) == (2, 1)
    assert loader.shown_through is None


def test_a_load_is_made_although_the_catalog_does_not_answer(tmp_path: Path) -> None:
    log, branch = filled_log(), SharedBranch(tmp_path, is_down=True)
    loader = resident(log, branch)
    assert loader.turn() is None
    assert not loader.shown_through
    branch.clock.now += SEAL_S
    made = loader.turn()
    assert made is not None
    assert made.rows == 180
    branch.is_down = False
    assert loader.turn() is None
    assert loader.shown_through
    assert branch.rows() == places_in(log)


def test_a_topic_with_nothing_new_gets_no_load(tmp_path: Path) -> None:
    log, branch = MemoryLog(), SharedBranch(tmp_path)
    loader = resident(log, branch)
    for _ in range(3):
        branch.clock.now += SEAL_S
        assert loader.turn() is None
    assert loader.stop() is None
    assert not (tmp_path / TOPIC / "schema").exists(), "the first message pins the schema"
    log.append_events(0, [START])
    loader.turn()
    assert loader.stop() is not None
    for _ in range(3):
        branch.clock.now += SEAL_S
        assert loader.turn() is None
    assert len(loads_of(tmp_path)) == 1


def test_a_first_load_begins_anew_when_another_run_has_pinned_another_schema(tmp_path: Path) -> None:
    log, branch = filled_log(), SharedBranch(tmp_path)
    log.schemas[8] = with_field("country", "string", "")
    topic = Topic(open_storage(str(tmp_path)), TOPIC)

    def run_tasks(function: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
        if not (tmp_path / TOPIC / "schema").exists():
            pin(topic, first_schema(topic, 7, log.schemas[7]))
        return local_run(function, tasks)

    loader = resident(log, branch, run_tasks=run_tasks)
    assert loader.turn() is None
    assert branch.rows() == [], "these rows have another schema"
    assert loader.turn() is None
    assert branch.rows() == places_in(log)
    assert loader.stop() is not None
    (load,) = loads_of(tmp_path)
    assert "country" not in pq.read_schema(tmp_path / TOPIC / load.files[0].path).names
    assert problems(tmp_path, TOPIC) == []


def test_a_large_backlog_is_read_in_turns_and_shown_when_its_end_is_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident_module, "TURN_BYTES", 3_000)
    monkeypatch.setattr(resident_module, "SEAL_BYTES", 8_000)
    log, branch = filled_log(), SharedBranch(tmp_path)
    waiting = sum(len(one.log) for one in log.partitions.values())
    loader = resident(log, branch)
    turns = 0
    while loader.turn() is not None or loader.is_behind:
        turns += 1
        assert branch.tail() == [], "the open load is behind"
        assert turns < 100
    assert turns >= waiting // 4_000 - 1
    assert len(loads_of(tmp_path)) >= waiting // 14_000
    assert branch.rows() == places_in(log)
    assert all(part.bytes < 14_000 for load in loads_of(tmp_path) for part in load.partitions)


def test_the_second_loader_stands_by_and_goes_on_where_the_first_one_died(tmp_path: Path) -> None:
    log, branch = MemoryLog(), SharedBranch(tmp_path)
    read: list[CutTask] = []

    def run_tasks(function: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
        read.extend(tasks)
        return local_run(function, tasks)

    first = resident(log, branch, run_id="first")
    second = resident(log, branch, run_id="second", run_tasks=run_tasks)
    log.append_events(0, [START + n for n in range(20)])
    assert first.turn() is None
    shown = branch.attempt
    for _ in range(3):
        assert second.turn() is None
    assert branch.attempt == shown
    assert read == [], "the one that stands by reads nothing"
    log.append_events(0, [START + n for n in range(5)])  # the first one has died
    branch.clock.now += LEASE_S + 1
    ends = dict(branch.ends)
    assert second.turn() is None
    assert branch.attempt != shown
    assert all(branch.ends[partition] >= end for partition, end in ends.items())
    assert branch.rows() == places_in(log)
    made = second.stop()
    assert made is not None
    assert made.rows == 25
    assert problems(tmp_path, TOPIC) == []


def test_a_loader_that_is_behind_does_not_show_less_than_the_one_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, branch = filled_log(), SharedBranch(tmp_path)
    resident(log, branch).turn()
    before = branch.rows()
    branch.clock.now += LEASE_S + 1
    monkeypatch.setattr(resident_module, "TURN_BYTES", 3_000)
    second = resident(log, branch, run_id="second")
    second.turn()
    assert second.is_behind
    assert branch.rows() == before
    while second.is_behind:
        second.turn()
        assert branch.rows() == before


def test_a_load_of_another_driver_takes_the_number_and_the_loader_goes_on_from_it(tmp_path: Path) -> None:
    log, branch = MemoryLog(), SharedBranch(tmp_path)
    loader = resident(log, branch)
    log.append_events(0, [START + n for n in range(20)])
    loader.turn()
    lost = {path.name for path in (tmp_path / TOPIC / "rows").iterdir()}
    log.append_events(0, [START + n for n in range(5)])
    assert load_topic(load_run(log, tmp_path, "other"), TOPIC).rows == 25
    log.append_events(1, [START])
    assert loader.turn() is None
    assert not lost & {path.name for path in (tmp_path / TOPIC / "rows").iterdir()}
    assert branch.rows() == places_in(log)
    made = loader.stop()
    assert made is not None
    assert (made.load, made.rows) == (2, 1)
    assert problems(tmp_path, TOPIC) == []


def test_the_loser_of_the_last_moment_makes_no_load(tmp_path: Path) -> None:
    log, branch = filled_log(), SharedBranch(tmp_path)

    def load_first(step: str) -> None:
        if step == "written":
            load_topic(load_run(log, tmp_path, "other"), TOPIC)

    loader = resident(log, branch, progress=load_first)
    loader.turn()
    assert loader.stop() is None
    (load,) = loads_of(tmp_path)
    assert load.run_id == "other"
    assert branch.rows() == places_in(log)
    assert len([*(tmp_path / TOPIC / "rows").iterdir()]) == 1


@pytest.mark.parametrize("arrives", [True, False])
def test_a_create_without_an_answer_is_found_out_later(tmp_path: Path, arrives: bool) -> None:
    log, branch = filled_log(), SharedBranch(tmp_path)
    silent, created = [True], set[bytes]()

    def happens(path: str) -> bool | None:
        return arrives if "/loads/" in path and "ledger" not in path and silent[0] else None

    class Recording(UnansweredStorage):
        def create(self, path: str, content: bytes) -> bool:
            if path.endswith("/loads/0000000001.json") and "ledger" not in path:
                created.add(content)
            return super().create(path, content)

    loader = resident(log, branch, Recording(tmp_path, happens))
    loader.turn()
    branch.clock.now += SEAL_S
    with pytest.raises(MillraceError, match="is not known"):
        loader.turn()
    silent[0] = False
    log.append_events(0, [START])
    made = loader.turn()
    assert made is not None
    assert made.rows == 180
    assert len(created) == 1, "a create that is still under way may not bring another manifest"
    assert loader.turn() is None
    made = loader.stop()
    assert made is not None
    assert made.rows == 1
    assert problems(tmp_path, TOPIC) == []


def test_a_load_is_told_though_its_ledger_entry_fails_and_the_next_turn_writes_the_entry(
    tmp_path: Path,
) -> None:
    log, branch, broken = filled_log(), SharedBranch(tmp_path), [True]
    storage = UnansweredStorage(tmp_path, lambda path: False if "ledger" in path and broken[0] else None)
    loader = resident(log, branch, storage)
    loader.turn()
    branch.clock.now += SEAL_S
    made = loader.turn()
    assert made is not None
    assert (made.load, made.rows) == (1, 180)
    broken[0] = False
    loader.turn()
    assert read_entry(storage, f"{TOPIC}/loads/0000000001.json") is not None
    assert problems(tmp_path, TOPIC) == []


def test_a_load_made_without_an_answer_is_kept_though_another_one_follows_it(tmp_path: Path) -> None:
    log, branch = filled_log(), SharedBranch(tmp_path)
    answers = [False]

    def happens(path: str) -> bool | None:
        if answers[0] or not path.endswith("/loads/0000000001.json") or "ledger" in path:
            return None
        return True

    class Deaf(UnansweredStorage):
        def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
            if path.endswith("/loads/0000000001.json") and not answers[0]:
                raise MillraceError(f"{path} was not answered in time")
            return super().read(path, start, length)

    loader = resident(log, branch, Deaf(tmp_path, happens))
    loader.turn()
    with pytest.raises(MillraceError, match="is not known"):
        loader.stop()
    answers[0] = True
    log.append_events(0, [START])
    load_topic(load_run(log, tmp_path, "other"), TOPIC)
    made = loader.turn()
    assert made is not None
    assert (made.load, made.rows) == (1, 180)
    assert problems(tmp_path, TOPIC) == []


def test_an_erasure_drops_the_tail_and_the_next_one_leaves_its_rows_out(tmp_path: Path) -> None:
    log, branch = MemoryLog(), SharedBranch(tmp_path)
    loader = resident(log, branch)
    log.append_events(0, [START + n for n in range(10)])
    load_topic(load_run(log, tmp_path, "other"), TOPIC)
    log.append_events(0, [START + n for n in range(10)])
    loader.turn()
    assert len(branch.tail()) == 10
    files = list(branch.shown)
    erasure = Erasure(topic=TOPIC, id="e1", reason="a test", by="test", created=now(), in_force_until=None)
    create_erasure(Topic(open_storage(str(tmp_path)), TOPIC), erasure, "header.sequence = 12")
    loader.turn()
    assert not any(path.exists() for path in files)
    assert len(branch.tail()) == 9
    made = loader.stop()
    assert made is not None
    assert made.rows == 9
    load = loads_of(tmp_path)[-1]
    assert list(load.erasures) == ["e1"]
    assert [each.rows for each in load.erased] == [1]
    assert 12 not in {row.sequence for row in rows_of(tmp_path)}


def test_a_promotion_seals_the_load_and_the_next_one_has_the_new_column(tmp_path: Path) -> None:
    log, branch = MemoryLog(), SharedBranch(tmp_path)
    loader = resident(log, branch)
    log.append_events(0, [START + n for n in range(10)])
    load_topic(load_run(log, tmp_path, "other"), TOPIC)
    log.append_events(0, [START + n for n in range(10)])
    assert loader.turn() is None
    log.schemas[8] = with_field("country", "string", "")
    promote(Topic(open_storage(str(tmp_path)), TOPIC), 8, "a test", log.schemas.get)
    made = loader.turn()
    assert made is not None
    assert made.rows == 10
    log.append_events(0, [START], schema=8, country="CH")
    loader.turn()
    made = loader.stop()
    assert made is not None
    _, second, third = loads_of(tmp_path)
    assert (second.schema, third.schema) == (1, 2)
    (file,) = third.files
    assert pq.read_table(tmp_path / TOPIC / file.path, partitioning=None)["country"].to_pylist() == ["CH"]


def test_too_many_rejected_records_make_no_load_and_are_shown_no_more(tmp_path: Path) -> None:
    log, branch = filled_log(), SharedBranch(tmp_path)
    loader = resident(log, branch)
    log.append(0, [Message(START, None, b"broken")] * 101)
    loader.turn()
    files = [*branch.shown]
    assert files
    branch.clock.now += SEAL_S
    with pytest.raises(RefusedLog, match=r"101 of 281 records have a foreign framing.*nothing was loaded"):
        loader.turn()
    assert loads_of(tmp_path) == []
    assert branch.rows() == []
    assert not any(path.exists() for path in files)


def test_a_log_that_was_cut_back_while_it_was_read_is_refused(tmp_path: Path) -> None:
    log, branch = MemoryLog(), SharedBranch(tmp_path)
    loader = resident(log, branch)
    log.append_events(0, [START + n for n in range(30)])
    loader.turn()
    log.put_back(0, 1)
    with pytest.raises(RefusedLog, match="its log has lost messages"):
        loader.turn()
    assert branch.rows() == []
    again = resident(log, branch, run_id="again")
    log.append_events(0, [START + n for n in range(30)])
    again.turn()
    log.put_back(0, 1)
    log.append_events(0, [START + n for n in range(60)])
    with pytest.raises(RefusedLog, match="nothing was loaded"):
        again.turn()
    assert branch.rows() == []
    assert again.stop() is None


def test_a_log_that_was_cut_back_between_two_tasks_of_a_turn_is_not_shown(tmp_path: Path) -> None:
    log, branch = MemoryLog(1), SharedBranch(tmp_path)
    log.sequence = 100  # batches of one size: no offset is missing where the next epoch begins
    log.append_events(0, [START] * 100)

    def run_tasks(function: Callable[[CutTask], CutResult], tasks: Sequence[CutTask]) -> list[CutResult]:
        first = local_run(function, tasks[:1])
        if log.epoch == 0:
            log.put_back(0, 1)
            log.append_events(0, [START] * 100)
        return first + local_run(function, tasks[1:])

    loader = resident(log, branch, run_tasks=run_tasks)
    with pytest.raises(MillraceError, match=r"in epoch 0, .*its log was cut back.*: run again"):
        loader.turn()
    assert branch.rows() == []
    loader.turn()
    assert loader.stop() is not None
    assert len(rows_of(tmp_path)) == 110, "what is in the log now"


@pytest.mark.parametrize("is_open", [True, False])
def test_a_folder_restored_from_an_older_copy_while_the_loader_runs_is_refused(
    tmp_path: Path, is_open: bool
) -> None:
    folder, copy = tmp_path / "w", tmp_path / "copy"
    log, branch = filled_log(), SharedBranch(folder)
    loader = resident(log, branch)
    loader.turn()
    assert loader.stop() is not None
    shutil.copytree(folder, copy)
    log.append_events(0, [START])
    loader.turn()
    assert loader.stop() is not None
    log.append_events(0, [START + 1])
    if is_open:
        loader.turn()
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    branch.clock.now += SEAL_S
    for _ in range(2):
        with pytest.raises(RefusedLog, match=r"loads/0000000002.json is gone or was replaced"):
            loader.turn()
    with pytest.raises(RefusedLog, match="older copy"):
        loader.stop()
    assert [load.load for load in loads_of(folder)] == [1]
    assert problems(folder, TOPIC) == []


def test_an_open_load_whose_files_are_gone_is_read_again(tmp_path: Path) -> None:
    log, branch = filled_log(), SharedBranch(tmp_path)
    loader = resident(log, branch)
    loader.turn()
    shutil.rmtree(tmp_path / TOPIC / "rows")  # a copy of the folder has no file of a load that is open
    branch.clock.now += SEAL_S
    assert loader.turn() is None
    loader.turn()
    made = loader.stop()
    assert made is not None
    assert (made.load, made.rows) == (1, 180)
    assert branch.rows() == places_in(log)
    assert problems(tmp_path, TOPIC) == []


def test_a_topic_that_was_recreated_is_refused(tmp_path: Path) -> None:
    log, branch = filled_log(), SharedBranch(tmp_path)
    loader = resident(log, branch)
    loader.turn()
    assert loader.stop() is not None
    other = MemoryLog()
    log.topic_id, log.partitions = other.topic_id, other.partitions
    with pytest.raises(RefusedLog, match="was deleted and recreated"):
        loader.turn()


def test_a_topic_that_was_recreated_while_it_was_read_is_refused(tmp_path: Path) -> None:
    log, branch = filled_log(), SharedBranch(tmp_path)
    load_topic(load_run(log, tmp_path), TOPIC)
    loader = resident(log, branch)
    log.append_events(0, [START])
    loader.turn()
    assert branch.tail() != []
    other = filled_log()
    other.append_events(0, [START + n for n in range(900)])
    log.topic_id, log.partitions = other.topic_id, other.partitions
    with pytest.raises(RefusedLog, match="was deleted and recreated"):
        loader.turn()
    assert branch.tail() == []
    again = resident(log, branch, run_id="again", accept_new_topic=True)
    again.turn()
    made = again.stop()
    assert made is not None
    assert made.rows == 1080


def test_an_interval_that_fails_is_read_again(tmp_path: Path) -> None:
    log, branch = MemoryLog(), SharedBranch(tmp_path)
    failures = [0]

    def run_tasks(function: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
        results = local_run(function, tasks)
        if failures[0]:
            failures[0] -= 1
            raise MillraceError("the broker does not answer")
        return results

    loader = resident(log, branch, run_tasks=run_tasks)
    for turn in range(6):
        append_some(log, turn)
        failures[0] = turn % 2
        for _ in range(failures[0]):
            with pytest.raises(MillraceError, match="does not answer"):
                loader.turn()
        loader.turn()
    made = loader.stop()
    assert made is not None
    assert made.rows == sum(7 + turn + turn % 3 for turn in range(6))
    assert problems(tmp_path, TOPIC) == []


def test_a_seal_whose_tasks_fail_is_tried_again_with_the_next_turn(tmp_path: Path) -> None:
    log, branch, fails = filled_log(), SharedBranch(tmp_path), [True]

    def run_tasks(function: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
        results = local_run(function, tasks)
        if function is merge and fails.pop():
            fails.append(False)
            raise MillraceError("no executor answers")
        return results

    loader = resident(log, branch, run_tasks=run_tasks)
    loader.turn()
    branch.clock.now += SEAL_S
    with pytest.raises(MillraceError, match="no executor answers"):
        loader.turn()
    made = loader.turn()
    assert made is not None
    assert (made.load, made.rows) == (1, 180)
    assert problems(tmp_path, TOPIC) == []


def test_the_files_of_a_large_hour_are_merged_by_several_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, branch, merged = MemoryLog(), SharedBranch(tmp_path), list[int]()

    def run_tasks(function: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
        merged.extend(len(task.files) for task in tasks if function is merge)
        return local_run(function, tasks)

    loader = resident(log, branch, run_tasks=run_tasks)
    for turn in range(5):
        log.append_events(0, [START + turn * 100 + n for n in range(20)])
        loader.turn()
    small = [path.stat().st_size for path in branch.shown]
    monkeypatch.setattr("millrace_warehouse.load.merge.MERGE_BYTES", 2 * max(small))
    made = loader.stop()
    assert made is not None
    assert (made.rows, merged) == (100, [2, 2, 1])
    assert [row.offset for row in rows_of(tmp_path)] == sorted(row.offset for row in rows_of(tmp_path))
    assert problems(tmp_path, TOPIC) == []


def test_a_turn_and_a_load_grow_with_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace_warehouse.load.resident.TURN_BYTES", 4_000)
    log, branch, cores = MemoryLog(), SharedBranch(tmp_path), [1]
    run = load_run(log, tmp_path, "resident")
    loader = Resident(run, TOPIC, branch, cores=lambda: cores[0], clock=branch.clock)
    for n in range(40):
        log.append_events(0, [START + 100 * n + each for each in range(10)])
    loader.turn()
    loader.turn()
    assert loader.turns_behind == 2
    cores[0] = 100
    loader.turn()
    assert loader.turns_behind == 0
    assert loader.tail_rows == 400


def test_a_load_that_could_not_be_read_for_days_has_the_hours_of_the_day_on_which_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, branch, fails = filled_log(), SharedBranch(tmp_path), [True]

    def run_tasks(function: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
        if fails and fails.pop():
            raise MillraceError("the broker does not answer")
        return local_run(function, tasks)

    fails.insert(0, False)
    loader = resident(log, branch, run_tasks=run_tasks)
    monkeypatch.setattr(open_load, "now", lambda: "2015-05-10T00:00:00.000+00:00")
    with pytest.raises(MillraceError, match="does not answer"):
        loader.turn()
    monkeypatch.setattr(open_load, "now", lambda: "2015-05-18T00:00:00.000+00:00")
    loader.turn()
    made = loader.stop()
    assert made is not None
    assert list(made.hours) == ["2015-05-17T10", "2015-05-17T11", "2015-05-17T12"]


def test_retention_that_overtakes_the_loader_is_a_gap(tmp_path: Path) -> None:
    log, branch = MemoryLog(1), SharedBranch(tmp_path)
    loader = resident(log, branch)
    log.append_events(0, [START + n for n in range(10)])
    loader.turn()
    first = log.partitions[0].high_watermark
    log.append_events(0, [START + n for n in range(20)])
    log.expire(0, 2)
    loader.turn()
    made = loader.stop()
    assert made is not None
    assert made.rows == 20
    (part,) = loads_of(tmp_path)[0].partitions
    (gap,) = part.gaps
    assert (gap.start, gap.end, gap.reason) == (first, log.partitions[0].start, "expired")


def test_a_mirrored_partition_keeps_its_origin(tmp_path: Path) -> None:
    log, branch = mirrored_log(), SharedBranch(tmp_path / "resident")
    loader = resident(log, branch)
    loader.turn()
    log.append_events(0, [START] * 5)
    append_position(log)
    loader.turn()
    assert loader.stop() is not None
    load_topic(load_run(log, tmp_path / "plain"), TOPIC)
    (ours,), (plain,) = loads_of(tmp_path / "resident"), loads_of(tmp_path / "plain")
    assert ours.partitions == plain.partitions
    assert ours.partitions[0].origin is not None


def test_the_files_of_the_tail_have_names_of_their_own(tmp_path: Path) -> None:
    log, branch = filled_log(), SharedBranch(tmp_path)
    loader = resident(log, branch)
    loader.turn()
    assert branch.shown
    assert all(path.name.startswith(TAIL) for path in branch.shown)
    loader.stop()
    assert not any(Path(file.path).name.startswith(TAIL) for file in loads_of(tmp_path)[0].files)
