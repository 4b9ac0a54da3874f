"""A load: what it reads, what it says, and what makes it refuse. The log is in memory, all else is real."""

from __future__ import annotations

import dataclasses
import errno
import re
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow.parquet as pq
import pytest

from millrace.errors import MillraceError
from millrace.records import Message
from millrace.records.compression import Codec
from millrace_audit.reports.counts import SequenceCounts
from millrace_warehouse.history.entries import read_entries
from millrace_warehouse.history.hours import UNFILED
from millrace_warehouse.history.layout import Topic, editions_of, load_numbers, read_load
from millrace_warehouse.history.ledger import read_entry
from millrace_warehouse.history.manifest import LoadManifest
from millrace_warehouse.load.load import LoadRun, load_topic
from millrace_warehouse.load.reload import ReloadRun, reload_topic
from millrace_warehouse.load.task import CutResult, CutTask, write_cut
from millrace_warehouse.storage import Written, open_storage
from tests.unit.warehouse.memory_log import (
    HOUR,
    START,
    TOPIC,
    MemoryLog,
    event,
    filled_log,
    load_run,
    local_run,
    rows_of,
)
from tests.unit.warehouse.storages import UnansweredStorage, Wrapped, problems


def manifest_of(warehouse: Path, number: int) -> LoadManifest:
    return read_load(Topic(open_storage(str(warehouse)), TOPIC), number)


def loads(warehouse: Path) -> list[int]:
    return load_numbers(Topic(open_storage(str(warehouse)), TOPIC))


def attempts(warehouse: Path) -> list[str]:
    """The folders that attempts have left, whether they count or not."""
    return open_storage(str(warehouse)).names(f"{TOPIC}/rows")


def test_every_record_is_a_row_in_a_file_of_its_hour_with_its_load(tmp_path: Path) -> None:
    log = filled_log()
    result = load_topic(load_run(log, tmp_path), TOPIC)
    assert (result.load, result.published, result.rows, result.rejected) == (1, True, 180, 0)
    assert result.hours == {"2015-05-17T10": 87, "2015-05-17T11": 38, "2015-05-17T12": 55}
    rows = rows_of(tmp_path)
    assert [row.sequence for row in rows] == list(range(180))
    assert all((row.hour, row.load) == (f"{row.time:%Y-%m-%dT%H}", 1) for row in rows)
    manifest = manifest_of(tmp_path, 1)
    folder = f"rows/0000000001-{manifest.attempt}/"
    for file in manifest.files:
        assert re.fullmatch(rf"{folder}{file.hour}-\d{{5}}-[0-9a-f]{{8}}\.parquet", file.path)
    assert problems(tmp_path, TOPIC) == []


def test_a_log_that_was_cut_back_and_has_grown_again_is_not_loaded_on_or_read_again(tmp_path: Path) -> None:
    log = filled_log()
    load_topic(load_run(log, tmp_path), TOPIC)
    load_topic(load_run(log, tmp_path, "nothing new"), TOPIC)
    log.append_events(1, [START] * 10)
    load_topic(load_run(log, tmp_path, "run-2"), TOPIC)
    assert [part.end_epoch for part in manifest_of(tmp_path, 2).partitions] == [0, 0]
    loaded = manifest_of(tmp_path, 2).partitions[0].end
    log.put_back(0, 3)
    log.append_events(0, [START] * 200)
    assert log.partitions[0].high_watermark > loaded, "it has grown past its old end"
    cut = rf"{TOPIC}-0 was read up to offset {loaded} in epoch 0, and epoch 0 ends at offset \d+ there"
    for accept_new_topic in (False, True):
        run = dataclasses.replace(load_run(log, tmp_path, "run-3"), accept_new_topic=accept_new_topic)
        with pytest.raises(MillraceError, match=f"{cut}.*restore a newer copy of the log"):
            load_topic(run, TOPIC)
    reload_run = ReloadRun(context=load_run(log, tmp_path, "again").context, reason="a test")
    with pytest.raises(MillraceError, match=cut):
        reload_topic(reload_run, TOPIC, [1])
    assert loads(tmp_path) == [1, 2]


def cut_back_after(log: MemoryLog, tasks_before: int) -> Callable[..., list[Any]]:
    """Run tasks, and put an older copy of the log back after the first of them, which then grows again."""

    def run_tasks(function: Callable[[CutTask], CutResult], tasks: Sequence[CutTask]) -> list[CutResult]:
        results = local_run(function, tasks[:tasks_before])
        batches = len([*log.partitions[0].batches()])
        log.put_back(0, 3)
        log.append_events(0, [START] * 10 * batches)
        return results + local_run(function, tasks[tasks_before:])

    return run_tasks


def log_of_equal_batches() -> MemoryLog:
    """One partition whose batches have the same size: no offset is missing where another epoch begins."""
    log = MemoryLog(1)
    log.sequence = 100
    log.append_events(0, [START] * 100)
    return log


@pytest.mark.parametrize("tasks_before", [1, 2, 3])
def test_a_log_that_is_cut_back_between_two_tasks_is_not_loaded(tmp_path: Path, tasks_before: int) -> None:
    log = log_of_equal_batches()
    run = load_run(log, tmp_path, run_tasks=cut_back_after(log, tasks_before), cut_bytes=1_500)
    with pytest.raises(MillraceError, match=rf"{TOPIC}-0 .* in epoch 0.* cut back.*: run again"):
        load_topic(run, TOPIC)
    assert loads(tmp_path) == []
    load_topic(load_run(log, tmp_path, "run-2"), TOPIC)
    assert len(rows_of(tmp_path)) == 130, "what is in the log now"


def test_a_log_that_is_shorter_once_it_was_read_is_not_loaded(tmp_path: Path) -> None:
    log = log_of_equal_batches()

    def run_tasks(function: Callable[[CutTask], CutResult], tasks: Sequence[CutTask]) -> list[CutResult]:
        results = local_run(function, tasks)
        log.put_back(0, 3)
        return results

    with pytest.raises(MillraceError, match=rf"{TOPIC}-0 ends at offset \d+, but was read .*: run again"):
        load_topic(load_run(log, tmp_path, run_tasks=run_tasks), TOPIC)
    assert loads(tmp_path) == []


def test_a_log_that_loses_messages_of_a_load_before_the_next_load_reads_is_not_loaded_on(
    tmp_path: Path,
) -> None:
    log = log_of_equal_batches()
    load_topic(load_run(log, tmp_path), TOPIC)
    log.append_events(0, [START] * 100)
    with pytest.raises(MillraceError, match=r"in epoch 0, and epoch 0 ends at .*restore a newer copy"):
        load_topic(load_run(log, tmp_path, "run-2", run_tasks=cut_back_after(log, 0)), TOPIC)
    assert loads(tmp_path) == [1]


def test_a_log_that_loses_messages_of_a_load_before_they_are_read_again_gives_no_edition(
    tmp_path: Path,
) -> None:
    log = log_of_equal_batches()
    load_topic(load_run(log, tmp_path), TOPIC)
    again = load_run(log, tmp_path, "again", run_tasks=cut_back_after(log, 0))
    with pytest.raises(MillraceError, match=r"load 1: .* in epoch 0, and epoch 0 ends at"):
        reload_topic(ReloadRun(context=again.context, reason="a test"), TOPIC, [1])
    assert editions_of(Topic(open_storage(str(tmp_path)), TOPIC)) == {}


def test_a_load_describes_its_files_as_the_table_will(tmp_path: Path) -> None:
    load_topic(load_run(filled_log(), tmp_path), TOPIC)
    manifest = manifest_of(tmp_path, 1)
    assert manifest.entries is not None
    content = (tmp_path / TOPIC / manifest.entries.path).read_bytes()
    entries = {file.file_path: file for file in read_entries(content)}
    assert {path: (f.record_count, f.file_size_in_bytes) for path, f in entries.items()} == {
        file.path: (file.rows, file.bytes) for file in manifest.files
    }


def test_the_manifest_accounts_for_every_record_and_offset(tmp_path: Path) -> None:
    log = filled_log()
    load_topic(load_run(log, tmp_path), TOPIC)
    manifest = manifest_of(tmp_path, 1)
    first, second = manifest.partitions
    assert (first.start, first.end) == (0, log.partitions[0].high_watermark)
    assert (first.read, first.written, first.rejected, first.filtered) == (150, 150, 0, 0)
    assert (first.data_batches, first.control_batches, first.gaps) == (15, 1, ())
    assert (second.read, second.min_time_ms, second.max_time_ms) == (
        30,
        START + 2 * HOUR,
        START + 2 * HOUR + 29,
    )
    assert manifest.previous is None
    counts = SequenceCounts.from_json(dataclasses.asdict(entry) for entry in manifest.sequences)
    assert counts.total == 180
    assert manifest.ends == {0: first.end, 1: second.end}


def test_the_next_load_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    log = filled_log()
    load_topic(load_run(log, tmp_path), TOPIC)
    log.append_control(0)
    log.append_events(0, [START, START + HOUR])
    result = load_topic(load_run(log, tmp_path, "run-2"), TOPIC)
    assert (result.load, result.rows) == (2, 2)
    before, after = manifest_of(tmp_path, 1), manifest_of(tmp_path, 2)
    assert after.previous == before.sha256
    assert [part.start for part in after.partitions] == [part.end for part in before.partitions]
    assert not any(part.gaps for part in after.partitions)
    assert [row.sequence for row in rows_of(tmp_path)] == list(range(182))


@pytest.mark.parametrize("fails", ["broker", "ledger"])
def test_a_load_is_told_with_its_counts_though_something_fails_once_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    log = filled_log()
    log.append(0, [Message(START, None, b"broken")])

    def silent(*_: Any) -> dict[int, int]:
        raise MillraceError("memory:9092 does not answer")

    def progress(step: str) -> None:
        if fails == "broker" and step == "recorded":
            monkeypatch.setattr(log, "list_offsets", silent)

    broken = [fails == "ledger"]
    storage = UnansweredStorage(tmp_path, lambda path: False if "ledger" in path and broken[0] else None)
    made = load_topic(load_run(log, storage, progress=progress), TOPIC)
    assert (made.load, made.published, made.rows, made.rejected) == (1, True, 180, 1)
    assert f"{TOPIC}: load 1 is made, but afterwards this failed: " in " ".join(made.notes)
    assert made.left_bytes == (None if fails == "broker" else 0)
    monkeypatch.undo()
    broken[0] = False
    assert load_topic(load_run(log, storage, "run-2"), TOPIC).load == 1
    assert problems(tmp_path, TOPIC) == []
    assert read_entry(storage, f"{TOPIC}/loads/0000000001.json") is not None


def test_a_retried_run_finds_its_plan_and_names_the_load_that_did_it(tmp_path: Path) -> None:
    log = filled_log()
    load_topic(load_run(log, tmp_path), TOPIC)
    log.append_events(0, [START])
    load_topic(load_run(log, tmp_path, "run-2"), TOPIC)
    again = load_topic(load_run(log, tmp_path), TOPIC)
    assert (again.load, again.published, again.rows) == (1, False, 180)
    assert again.message == "load 1 has its messages already"
    assert len(rows_of(tmp_path)) == 181


def test_the_end_is_frozen_when_the_run_first_starts(tmp_path: Path) -> None:
    log = filled_log()

    def stop(step: str) -> None:
        if step == "planned":
            raise InterruptedError

    with pytest.raises(InterruptedError):
        load_topic(load_run(log, tmp_path, progress=stop), TOPIC)
    log.append_events(0, [START])
    assert load_topic(load_run(log, tmp_path), TOPIC).rows == 180
    assert load_topic(load_run(log, tmp_path, "run-2"), TOPIC).rows == 1


def test_nothing_new_is_a_success_that_says_so_and_makes_no_load(tmp_path: Path) -> None:
    log = filled_log()
    load_topic(load_run(log, tmp_path), TOPIC)
    result = load_topic(load_run(log, tmp_path, "run-2"), TOPIC)
    assert (result.load, result.published, result.message) == (1, False, "nothing new since load 1")
    assert loads(tmp_path) == [1]


def test_an_empty_topic_is_a_success_without_a_load(tmp_path: Path) -> None:
    result = load_topic(load_run(MemoryLog(), tmp_path), TOPIC)
    assert (result.load, result.published) == (None, False)
    assert "empty" in result.message


def test_an_unknown_topic_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(MillraceError, match="topic 'Nope' does not exist on memory:9092") as caught:
        load_topic(load_run(filled_log(), tmp_path), "Nope")
    assert "\n" not in str(caught.value)


def test_what_cannot_be_decoded_lies_in_a_file_beside_the_rows_with_reason_and_bytes(tmp_path: Path) -> None:
    log = MemoryLog(1)
    unknown = Message(START, None, b"\0\0\0\0\x63body")
    broken = Message(START, None, event(0, START).value[:-1])  # type: ignore[index]
    bare = Message(START, None, b"no schema id")
    log.append(0, [event(0, START), unknown, event(1, START), broken, bare, event(2, START)])
    result = load_topic(load_run(log, tmp_path), TOPIC)
    assert (result.rows, result.rejected) == (3, 3)
    (part,) = manifest_of(tmp_path, 1).partitions
    assert (part.read, part.written, part.rejected) == (6, 3, 3)
    (file,) = manifest_of(tmp_path, 1).rejected_files
    assert (file.rows, file.records) == (3, 3)
    found = {row["raw"]: row["reason"] for row in pq.read_table(tmp_path / TOPIC / file.path).to_pylist()}
    assert found.keys() == {unknown.value, broken.value, bare.value}
    assert all(found.values())


def test_a_load_of_rejected_records_only_still_moves_on(tmp_path: Path) -> None:
    log = MemoryLog(1)
    log.append(0, [Message(START, None, b"x")])
    assert load_topic(load_run(log, tmp_path), TOPIC).rejected == 1
    assert load_topic(load_run(log, tmp_path, "run-2"), TOPIC).published is False


@pytest.mark.parametrize("codec", list(Codec))
def test_every_codec_loads(tmp_path: Path, codec: Codec) -> None:
    log = MemoryLog(1)
    log.append(0, [event(n, START) for n in range(100)], codec)
    assert load_topic(load_run(log, tmp_path), TOPIC).rows == 100


def test_expired_offsets_become_a_gap_never_a_silent_skip(tmp_path: Path) -> None:
    log = filled_log()
    load_topic(load_run(log, tmp_path), TOPIC)
    end = manifest_of(tmp_path, 1).ends[0]
    log.append_events(0, [START + n for n in range(60)])
    log.expire(0, 18)
    result = load_topic(load_run(log, tmp_path, "run-2"), TOPIC)
    (gap,) = manifest_of(tmp_path, 2).partitions[0].gaps
    assert (gap.start, gap.end, gap.reason) == (end, log.partitions[0].start, "expired")
    assert result.gaps == [f"{TOPIC}-0 offsets [{gap.start}, {gap.end}) are expired"]
    assert result.rows == 40


@pytest.mark.parametrize("cut_bytes", [1 << 20, 300])
def test_a_hole_in_the_middle_of_the_log_is_refused_until_it_is_accepted(
    tmp_path: Path, cut_bytes: int
) -> None:
    log = filled_log()
    start, end = log.lose(0, 7)
    with pytest.raises(MillraceError, match=rf"PageView-0: offsets \[{start}, {end}\) are missing"):
        load_topic(load_run(log, tmp_path, cut_bytes=cut_bytes), TOPIC)
    assert (loads(tmp_path), attempts(tmp_path)) == ([], [])
    result = load_topic(load_run(log, tmp_path, cut_bytes=cut_bytes, accept_gaps=True), TOPIC)
    assert result.rows == 170
    assert result.gaps == [f"{TOPIC}-0 offsets [{start}, {end}) are absent"]


@pytest.mark.parametrize(("policy", "accepted"), [("delete", False), ("compact,delete", True)])
def test_on_apache_kafka_only_compaction_may_leave_holes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, accepted: bool
) -> None:
    log = filled_log()
    log.cluster_id = "4L6g3nShT-eMCtK--X86sw"
    log.lose(0, 7)
    # The setting is the one thing a log in memory cannot answer.
    monkeypatch.setattr("millrace_warehouse.load.range_writer.topic_setting", lambda *_: policy)
    if accepted:
        assert load_topic(load_run(log, tmp_path), TOPIC).rows == 170
    else:
        with pytest.raises(MillraceError, match="are missing in the middle of the log"):
            load_topic(load_run(log, tmp_path), TOPIC)


def test_a_log_that_begins_where_the_last_load_ended_has_no_gap(tmp_path: Path) -> None:
    log = filled_log()
    load_topic(load_run(log, tmp_path), TOPIC)
    log.append_events(0, [START + n for n in range(20)])
    log.expire(0, 16)
    result = load_topic(load_run(log, tmp_path, "run-2"), TOPIC)
    assert (result.rows, result.gaps) == (20, [])


def test_everything_expired_is_a_load_of_one_gap(tmp_path: Path) -> None:
    log = MemoryLog(1)
    log.append_events(0, [START])
    log.expire(0, 1)
    result = load_topic(load_run(log, tmp_path), TOPIC)
    assert (result.published, result.rows) == (True, 0)
    assert "expired" in result.gaps[0]


def test_a_topic_created_anew_is_refused_until_it_is_accepted(tmp_path: Path) -> None:
    log = filled_log()
    load_topic(load_run(log, tmp_path), TOPIC)
    anew = MemoryLog()
    anew.append_events(0, [START])
    with pytest.raises(MillraceError, match="--accept-new-topic"):
        load_topic(load_run(anew, tmp_path, "run-2"), TOPIC)
    result = load_topic(load_run(anew, tmp_path, "run-2", accept_new_topic=True), TOPIC)
    assert (result.load, result.rows) == (2, 1)
    with pytest.raises(MillraceError, match="use a new run id"):
        load_topic(load_run(anew, tmp_path), TOPIC)


def test_another_cluster_is_refused_by_name_and_leaves_nothing_behind(tmp_path: Path) -> None:
    log = filled_log()
    load_topic(load_run(log, tmp_path), TOPIC)
    log.bootstrap, log.cluster_id = "dc1:9092", "millrace-another"
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(MillraceError, match=re.escape("dc1:9092 is another cluster (millrace-another) than")):
        load_topic(load_run(log, tmp_path, "run-2"), TOPIC)
    assert sorted(tmp_path.rglob("*")) == before
    log.append_events(0, [START])
    result = load_topic(load_run(log, tmp_path, "run-2", accept_new_topic=True), TOPIC)
    assert (result.load, result.rows) == (2, 1), "the topic has its own id there: only what is new"


def test_a_run_that_was_planned_on_another_cluster_is_not_taken_for_one_of_a_topic_created_anew(
    tmp_path: Path,
) -> None:
    def stop(step: str) -> None:
        if step == "planned":
            raise InterruptedError

    with pytest.raises(InterruptedError):
        load_topic(load_run(filled_log(), tmp_path, progress=stop), TOPIC)
    other = filled_log()
    other.cluster_id = "millrace-another"
    with pytest.raises(
        MillraceError, match=r"planned .* on cluster millrace-in-memory, this is millrace-another"
    ):
        load_topic(load_run(other, tmp_path), TOPIC)


def test_a_log_shorter_than_what_was_loaded_is_refused(tmp_path: Path) -> None:
    log = filled_log()
    load_topic(load_run(log, tmp_path), TOPIC)
    log.partitions[0].high_watermark = 10
    for _ in range(2):  # nor does a second try take the first one's plan for done
        with pytest.raises(MillraceError, match="its log has lost messages"):
            load_topic(load_run(log, tmp_path, "run-2"), TOPIC)


def test_a_new_partition_is_read_from_its_beginning(tmp_path: Path) -> None:
    log = filled_log()
    load_topic(load_run(log, tmp_path), TOPIC)
    log.partitions[2] = type(log.partitions[0])()
    log.append_events(2, [START])
    assert load_topic(load_run(log, tmp_path, "run-2"), TOPIC).rows == 1
    assert manifest_of(tmp_path, 2).ends[2] == log.partitions[2].high_watermark


def test_the_loser_of_a_race_starts_over_and_loads_nothing_twice(tmp_path: Path) -> None:
    log = filled_log()
    raced: list[int | None] = []

    def overtaken(step: str) -> None:
        if step == "prepared" and not raced:
            raced.append(None)
            log.append_events(1, [START])
            raced[0] = load_topic(load_run(log, tmp_path, "other"), TOPIC).load

    result = load_topic(load_run(log, tmp_path, progress=overtaken), TOPIC)
    assert raced == [1]
    assert (result.load, result.published) == (1, False)
    assert [row.sequence for row in rows_of(tmp_path)] == list(range(181))
    assert len(attempts(tmp_path)) == 1, "the loser's folder is gone"


def test_the_loser_of_a_race_still_loads_what_only_it_had_planned(tmp_path: Path) -> None:
    log = filled_log()
    early = load_run(log, tmp_path, "early")

    def stop(step: str) -> None:
        if step == "planned":
            raise InterruptedError

    with pytest.raises(InterruptedError):
        load_topic(load_run(log, tmp_path, "early", progress=stop), TOPIC)
    log.append_events(1, [START] * 5)
    done: list[bool] = []

    def overtaken(step: str) -> None:
        if step == "prepared" and not done:
            done.append(True)
            load_topic(early, TOPIC)

    result = load_topic(load_run(log, tmp_path, "late", progress=overtaken), TOPIC)
    assert (result.load, result.published, result.rows) == (2, True, 5)
    assert [row.sequence for row in rows_of(tmp_path)] == list(range(185))


def test_what_the_winner_of_a_race_left_undone_when_it_died_is_done_by_the_loser(tmp_path: Path) -> None:
    log = filled_log()

    def killed_at(wanted: str, step: str) -> None:
        if step == wanted:
            raise InterruptedError

    def winner_at(step: str) -> LoadRun:
        return load_run(log, tmp_path, "winner", progress=partial(killed_at, step))

    with pytest.raises(InterruptedError):
        load_topic(winner_at("planned"), TOPIC)
    log.append_events(1, [START] * 5)
    done: list[bool] = []

    def overtaken(step: str) -> None:
        if step == "prepared" and not done:
            done.append(True)
            with pytest.raises(InterruptedError):
                load_topic(winner_at("committed"), TOPIC)

    result = load_topic(load_run(log, tmp_path, "loser", progress=overtaken), TOPIC)
    assert (result.load, result.rows) == (2, 5)
    ledger = (tmp_path / TOPIC / "ledger" / "loads").iterdir()
    assert sorted(path.name for path in ledger) == ["0000000001.json", "0000000002.json"]


def test_a_warehouse_of_version_0_1_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    old = tmp_path / TOPIC / "load=0000000001" / "_manifest.json"
    old.parent.mkdir(parents=True)
    old.write_text("{}")
    with pytest.raises(
        MillraceError, match=r"holds loads of the warehouse format 2.*load into a new warehouse"
    ):
        load_topic(load_run(filled_log(), tmp_path), TOPIC)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [old]


@pytest.mark.parametrize(("topic", "names"), [("catalog.db-wal", "catalog.db"), (".events", "a dot")])
def test_a_topic_named_like_the_warehouses_own_files_is_refused(
    tmp_path: Path, topic: str, names: str
) -> None:
    with pytest.raises(MillraceError, match=f"keeps its own files under names that begin with {names};"):
        load_topic(load_run(MemoryLog(topic=topic), tmp_path), topic)


@pytest.mark.parametrize("happens", [[True], [False], [True, False], [False, False], [False, True]])
def test_a_load_whose_create_is_not_answered_finds_out_and_is_made_once(
    tmp_path: Path, happens: list[bool]
) -> None:
    left = list(happens)

    def of(path: str) -> bool | None:
        return left.pop(0) if left and path == f"{TOPIC}/loads/0000000001.json" else None

    storage = UnansweredStorage(tmp_path, of)
    result = load_topic(load_run(filled_log(), storage), TOPIC)
    assert (left, result.load, result.published) == ([], 1, True)
    assert len(attempts(tmp_path)) == 1
    assert [row.sequence for row in rows_of(tmp_path)] == list(range(180))
    assert problems(tmp_path, TOPIC) == []


@pytest.mark.parametrize("created", [True, False])
def test_a_load_that_never_gets_an_answer_keeps_its_files_and_the_next_run_finds_out(
    tmp_path: Path, created: bool
) -> None:
    log = filled_log()
    storage = UnansweredStorage(tmp_path, lambda path: created if "/loads/" in path else None)
    with pytest.raises(MillraceError, match=r"loads/0000000001\.json was created is not known: run again"):
        load_topic(load_run(log, storage), TOPIC)
    assert len(attempts(tmp_path)) == 1, "its manifest may be there"
    result = load_topic(load_run(log, tmp_path), TOPIC)
    assert (result.load, result.rows, result.published) == (1, 180, not created)
    assert [row.sequence for row in rows_of(tmp_path)] == list(range(180))
    assert problems(tmp_path, TOPIC) == []


def test_a_create_that_arrives_after_another_load_has_its_number_changes_nothing(tmp_path: Path) -> None:
    """The request of an attempt that was given up is still on its way, and finds the name taken."""
    log, late = filled_log(), list[tuple[str, bytes]]()

    class Slow(UnansweredStorage):
        def create(self, path: str, content: bytes) -> bool:
            if "/loads/" in path:
                late.append((path, content))
            return super().create(path, content)

    with pytest.raises(MillraceError, match="is not known"):
        load_topic(load_run(log, Slow(tmp_path, lambda path: False if "/loads/" in path else None)), TOPIC)
    assert load_topic(load_run(log, tmp_path, "run-2"), TOPIC).published
    storage = open_storage(str(tmp_path))
    assert [storage.create(path, content) for path, content in late] == [False] * len(late)
    assert [row.sequence for row in rows_of(tmp_path)] == list(range(180))
    assert problems(tmp_path, TOPIC) == []


def test_files_of_tasks_that_ran_twice_do_not_count(tmp_path: Path) -> None:
    log = filled_log()

    def twice(function: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
        local_run(function, tasks)  # speculative tasks whose results nobody collects
        return local_run(function, tasks)

    load_topic(load_run(log, tmp_path, run_tasks=twice), TOPIC)
    assert [row.sequence for row in rows_of(tmp_path)] == list(range(180))
    assert problems(tmp_path, TOPIC) == []


@pytest.mark.parametrize("what", ["2015-05-17T11-", "entries.avro", "loads/0000000001.json"])
def test_a_storage_without_room_fails_the_load_in_its_own_words_and_nothing_counts(
    tmp_path: Path, what: str
) -> None:
    class Full(Wrapped):
        def put(self, path: str, content: BinaryIO) -> Written:
            self._refuse(path)
            return super().put(path, content)

        def create(self, path: str, content: bytes) -> bool:
            self._refuse(path)
            return super().create(path, content)

        def _refuse(self, path: str) -> None:
            if what in path:
                raise MillraceError("no room: make room, then run again")

    log = filled_log()
    with pytest.raises(MillraceError, match=r"^no room: make room, then run again") as caught:
        load_topic(load_run(log, Full(tmp_path)), TOPIC)
    assert "\n" not in str(caught.value)
    assert loads(tmp_path) == []
    assert attempts(tmp_path) == [] or what.startswith("loads/"), "only what may count stays"
    assert load_topic(load_run(log, tmp_path), TOPIC).rows == 180
    assert problems(tmp_path, TOPIC) == []


def test_a_task_without_room_for_its_files_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    with pytest.raises(
        MillraceError, match=rf"no room for a task's files in {tmp_path} of .*spark.local.dir"
    ):
        load_topic(load_run(filled_log(), tmp_path), TOPIC)
    assert (loads(tmp_path), list(tmp_path.glob("millrace-*"))) == ([], [])


def test_a_file_that_is_not_there_as_its_task_stored_it_fails_the_load(tmp_path: Path) -> None:
    log = filled_log()

    def damaged(task: CutTask) -> CutResult:
        result = write_cut(task)
        path = tmp_path / TOPIC / result.files[0][0].path
        path.write_bytes(path.read_bytes()[:-1])
        return result

    run = load_run(log, tmp_path, run_tasks=lambda _, tasks: [damaged(task) for task in tasks])
    with pytest.raises(MillraceError, match="the storage does not keep what is written"):
        load_topic(run, TOPIC)
    assert (loads(tmp_path), attempts(tmp_path)) == ([], [])


def test_a_task_that_reports_too_little_fails_the_load(tmp_path: Path) -> None:
    log = filled_log()

    def forgetful(function: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
        results = local_run(function, tasks)
        results[0].stats.records -= 1
        return results

    with pytest.raises(MillraceError, match="the counts do not agree"):
        load_topic(load_run(log, tmp_path, run_tasks=forgetful), TOPIC)


def test_a_task_that_is_missing_fails_the_load(tmp_path: Path) -> None:
    log = filled_log()
    with pytest.raises(MillraceError, match="the tasks"):
        load_topic(
            load_run(log, tmp_path, run_tasks=lambda function, tasks: local_run(function, tasks[:-1])), TOPIC
        )


def test_a_load_that_is_gone_stops_the_next_one(tmp_path: Path) -> None:
    log = filled_log()
    load_topic(load_run(log, tmp_path), TOPIC)
    (tmp_path / TOPIC / "loads/0000000001.json").rename(tmp_path / "elsewhere")
    with pytest.raises(MillraceError, match=r"loads/0000000001\.json was published and is gone"):
        load_topic(load_run(log, tmp_path, "run-2"), TOPIC)


def test_a_load_that_was_edited_stops_the_next_one(tmp_path: Path) -> None:
    log = filled_log()
    load_topic(load_run(log, tmp_path), TOPIC)
    path = tmp_path / TOPIC / "loads/0000000001.json"
    path.write_text(path.read_text().replace("run-1", "run-9"))
    with pytest.raises(MillraceError, match=r"loads/0000000001\.json: the manifest was edited"):
        load_topic(load_run(log, tmp_path, "run-2"), TOPIC)


def test_a_schema_record_that_a_load_has_used_and_that_is_gone_stops_the_next_one(tmp_path: Path) -> None:
    log = filled_log()
    load_topic(load_run(log, tmp_path), TOPIC)
    (tmp_path / TOPIC / "schema/0001.json").unlink()
    log.append_events(0, [START])
    with pytest.raises(MillraceError, match=r"schema/0001\.json is missing"):
        load_topic(load_run(log, tmp_path, "run-2"), TOPIC)


def test_a_run_id_may_hold_any_character_and_any_length(tmp_path: Path) -> None:
    log = filled_log()
    for run_id in ("scheduled__2015-05-17T10:00:00+00:00", "a/b/../c", "x" * 500, "x" * 499 + "y"):
        log.append_events(0, [START])
        load_topic(load_run(log, tmp_path, run_id), TOPIC)
    assert len(list((tmp_path / TOPIC / "plans").iterdir())) == 4


def test_rows_whose_time_no_sound_clock_shows_are_kept_apart(tmp_path: Path) -> None:
    log = MemoryLog(1)
    first, last = -62_135_596_800_000, 253_402_300_799_999
    times = [-(1 << 60), 1 << 60, -1, START, first, last, 0, 1_782_000_000, 946_684_799_999]
    log.append(0, [event(n, time) for n, time in enumerate(times)])
    result = load_topic(load_run(log, tmp_path), TOPIC)
    assert result.rows + result.rejected == 9
    assert result.hours == {"2015-05-17T10": 1, UNFILED: result.rows - 1}
    assert result.hours[UNFILED] >= 6
    assert problems(tmp_path, TOPIC) == []


def test_rows_are_filed_by_the_time_of_the_plan_however_late_it_is_carried_out(tmp_path: Path) -> None:
    def stop(step: str) -> None:
        if step == "planned":
            raise InterruptedError

    log = filled_log()
    with pytest.raises(InterruptedError):
        load_topic(load_run(log, tmp_path, progress=stop), TOPIC)
    (plan,) = (tmp_path / TOPIC / "plans").iterdir()
    text = plan.read_text()
    created = re.search(r'"created": "([^"]+)"', text)
    assert created is not None
    # A day before the plan is the bound: everything from 11 o'clock on has a broken clock.
    plan.write_text(text.replace(created[1], "2015-05-16T11:00:00.000Z"))
    result = load_topic(load_run(log, tmp_path), TOPIC)
    assert result.hours == {"2015-05-17T10": 87, UNFILED: 93}
    assert manifest_of(tmp_path, 1).file_by_ms == START + HOUR


def test_many_hours_in_one_task_do_not_need_as_many_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace_warehouse.load.hour_files.OPEN_FILES", 2)
    monkeypatch.setattr("millrace_warehouse.load.hour_files.HELD_BYTES", 500)
    log = MemoryLog(1)
    log.append_events(0, [START + HOUR * (n % 7) for n in range(200)])
    result = load_topic(load_run(log, tmp_path, cut_bytes=1 << 20), TOPIC)
    assert len(result.hours) == 7
    assert [row.sequence for row in rows_of(tmp_path)] == list(range(200))


def test_a_topic_replaced_while_it_is_read_is_not_loaded(tmp_path: Path) -> None:
    log = filled_log()

    def replaced(step: str) -> None:
        if step == "planned":
            log.topic_id = uuid.uuid4()

    with pytest.raises(MillraceError, match="recreated"):
        load_topic(load_run(log, tmp_path, progress=replaced), TOPIC)
