"""Deletion, and what is never deleted: a row missing from the table, a file that a reader may open."""

from __future__ import annotations

import io
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table

from millrace.errors import MillraceError
from millrace_warehouse.history.expired import expired_entries
from millrace_warehouse.history.hours import UNFILED
from millrace_warehouse.publish.committer import TableChange, commit, head_files
from millrace_warehouse.publish.hours_table import hours_identifier
from tests.crashing import cut_off
from tests.loaded import offsets, rows_by_load_and_hour
from tests.published import LATER, TOPIC, Warehouse, warehouse

NINE, TEN = "2015-05-17T09", "2015-05-17T10"
DAY = 24 * 3600.0


@pytest.fixture
def w(tmp_path: Path) -> Iterator[Warehouse]:
    with warehouse(tmp_path / "w") as made:
        yield made


def compacted(w: Warehouse) -> Warehouse:
    """Publish three loads, compact one of their hours, and leave no older snapshot."""
    for _ in range(3):
        w.load({NINE: 3, TEN: 2})
    w.publish(NINE, TEN)
    w.compact(small_files=2)
    w.forget_snapshots()
    return w


def test_files_whose_rows_the_table_has_in_others_are_deleted_and_the_proof_holds(w: Warehouse) -> None:
    compacted(w)
    rows = rows_by_load_and_hour(w.table)
    result = w.expire()
    assert (result.data_files, result.compacted_files, result.kept) == (6, 0, {})
    assert w.data_files() == []
    assert rows_by_load_and_hour(w.table) == rows
    report = w.verify(rows=True)
    assert (report.problems, report.expired, report.rows, report.published) == ([], 6, 15, 15)
    again = w.expire()
    assert (again.data_files, again.bytes, again.waiting) == (0, 0, 0)


def test_an_hour_that_is_not_compacted_keeps_its_files_while_others_of_the_same_load_go(w: Warehouse) -> None:
    for _ in range(3):
        w.load({NINE: 3})
    w.load({NINE: 1, TEN: 1})
    w.publish(NINE, TEN)
    w.compact()
    w.forget_snapshots()
    assert w.expire().data_files == 4
    assert [path.name[: len(TEN)] for path in w.data_files()] == [TEN]
    assert w.problems(rows=True) == []


def test_rows_that_wait_are_kept_however_old_and_it_is_said_why(w: Warehouse) -> None:
    w.load({NINE: 3, TEN: 2})
    w.load({NINE: 3})
    w.publish(NINE)
    w.load({NINE: 1})
    w.compact()
    w.forget_snapshots()
    result = w.expire()
    assert result.data_files == 2
    assert [path.name[: len(TEN)] for path in w.data_files()] == [TEN, NINE]
    assert TEN in result.kept[f"{TOPIC}/loads/0000000001.json"]
    assert "publish" in result.kept[f"{TOPIC}/loads/0000000003.json"]
    assert w.problems(rows=True) == []


def test_nothing_of_loads_goes_while_a_snapshot_a_branch_or_a_tag_names_it(w: Warehouse) -> None:
    for _ in range(3):
        w.load({NINE: 3})
    w.publish(NINE)
    first = w.table.current_snapshot()
    assert first is not None
    w.compact()
    assert w.expire(dry_run=True).data_files == w.expire().data_files == 0
    w.table.manage_snapshots().create_tag(first.snapshot_id, "audited").commit()
    assert w.expire(dry_run=True).data_files == w.expire().data_files == 0
    w.table.manage_snapshots().remove_tag("audited").commit()
    w.forget_snapshots()
    assert w.expire().data_files == 3


def test_a_file_that_another_program_names_in_its_own_way_is_not_taken_for_unnamed(w: Warehouse) -> None:
    """Spark writes `file:/` where we write `file:///`."""
    w.load({NINE: 3})
    w.load({NINE: 3})
    w.publish(NINE)
    files = head_files(w.table, [NINE])[NINE]
    renamed = head_files(w.table, [NINE])[NINE]
    for file in renamed:
        file[1] = file.file_path.replace("file:///", "file:/")
    commit(w.table, TableChange(added=renamed, removed=files))
    w.forget_snapshots()
    assert w.expire().data_files == 0
    assert w.problems(rows=True) == []


def test_readers_have_their_time_from_the_moment_it_was_written_down(w: Warehouse) -> None:
    compacted(w)
    begin = time.time() + LATER
    first = w.expire(reader_grace_s=3 * DAY, clock=lambda: begin)
    assert (first.data_files, first.waiting) == (0, 6)
    assert w.expire(reader_grace_s=3 * DAY, clock=lambda: begin + 2 * DAY).data_files == 0
    assert len(w.data_files()) == 6
    last = w.expire(reader_grace_s=3 * DAY, clock=lambda: begin + 3 * DAY + 1)
    assert (last.data_files, last.waiting) == (6, 0)
    (entry,) = expired_entries(w.stored)
    assert len(entry.files) == 6


def test_young_loads_are_left_alone(w: Warehouse) -> None:
    compacted(w)
    assert w.expire(older_than_s=30 * DAY).data_files == 0
    assert w.expire(older_than_s=5 * DAY).data_files == 6


def test_a_dry_run_deletes_nothing_and_says_what_would_be(w: Warehouse) -> None:
    compacted(w)
    would = w.expire(dry_run=True)
    assert len(w.data_files()) == 6
    assert not (w.topic / "expired").exists()
    assert w.expire() == would


def test_the_files_of_an_edition_go_when_the_table_has_the_next_one(w: Warehouse) -> None:
    w.load({NINE: 3, TEN: 2})
    w.publish(NINE)
    w.read_again(1, {NINE: 4, TEN: 1})
    result = w.expire()
    assert result.data_files == 0
    assert "edition 2" in result.kept[f"{TOPIC}/loads/0000000001.json"]
    w.publish()
    w.forget_snapshots()
    assert w.expire().data_files == 2
    assert [path.parent.name[11:15] for path in w.data_files()] == ["0002", "0002"]
    assert w.problems(rows=True) == []


def test_rows_that_the_table_lost_are_not_deleted_where_they_are_left(w: Warehouse) -> None:
    """Others took rows of one load out and put as many of another in: the table's size does not show it."""
    for _ in range(2):
        w.load({NINE: 3})
    w.publish(NINE)
    first, second = sorted(head_files(w.table, [NINE])[NINE], key=lambda file: file.file_path)
    copy = w.topic / "compacted" / "foreign" / "copy.parquet"
    copy.parent.mkdir(parents=True)
    shutil.copy(w.data_files(2)[0], copy)
    second[1] = f"file://{copy}"
    commit(w.table, TableChange(added=[second], removed=[first]))
    w.forget_snapshots()
    result = w.expire()
    assert result.data_files == 0
    assert "has 0 of its 3 rows" in result.kept[f"{TOPIC}/loads/0000000001.json"]
    assert len(w.problems()) == 2


def test_nothing_is_deleted_for_a_table_that_is_not_what_was_published(w: Warehouse) -> None:
    compacted(w)
    w.load({NINE: 1})
    w.publish()
    parent = w.table.current_snapshot().parent_snapshot_id  # type: ignore[union-attr]
    w.table.manage_snapshots().rollback_to_snapshot(parent).commit()  # type: ignore[arg-type]
    with pytest.raises(MillraceError, match="rolled it back"):
        w.expire()
    w.catalog.drop_table(("millrace", TOPIC))
    with pytest.raises(MillraceError, match="does not exist"):
        w.expire()
    assert len(w.data_files()) == 7


def test_attempts_that_lost_go_after_a_day_and_the_one_that_may_still_win_stays(w: Warehouse) -> None:
    w.load({NINE: 3})
    (file,) = w.data_files(1)
    lost = w.topic / "rows" / "0000000001-0001-aaaaaaaaaaaaaaaa"
    running = w.topic / "rows" / "0000000002-0001-bbbbbbbbbbbbbbbb"
    again = w.topic / "rows" / "0000000001-0002-cccccccccccccccc"
    for folder in (lost, running, again):
        folder.mkdir()
        (folder / f"{NINE}-0-00000000.parquet").write_bytes(b"x" * 10)
    zombie = file.with_name(f"{NINE}-0-ffffffff.parquet")
    zombie.write_bytes(b"of a task that was given up")
    assert w.expire(clock=time.time).strays == 0
    assert len(w.verify().notes) == 2
    result = w.expire()
    assert (result.strays, result.bytes) == (2, 37)
    assert running.exists()
    assert again.exists()
    assert not zombie.exists()
    assert not list(lost.glob("*"))
    assert w.problems(rows=True) == []


def test_records_of_publications_that_lost_and_old_plans_go(w: Warehouse) -> None:
    w.load({NINE: 3})
    result = w.publish(NINE)
    folder = w.topic / "publications"
    (folder / "0000000001-lost.json").write_text("{}")
    (folder / "0000000002-running.json").write_text("{}")
    plans = w.topic / "plans"
    plans.mkdir()
    for number in range(3):
        (plans / f"run-{number}.json").write_text("{}")
        os.utime(plans / f"run-{number}.json", (time.time() + number, time.time() + number))
    expired = w.expire()
    assert (expired.strays, expired.plans) == (1, 2)
    names = {path.name for path in folder.iterdir()}
    assert names == {Path(result.path).name, "0000000002-running.json"}
    assert [path.name for path in plans.iterdir()] == ["run-2.json"]


def files_of_tables(w: Warehouse) -> set[Path]:
    return {path for folder in ("table", "hours") for path in (w.topic / folder).rglob("*") if path.is_file()}


def test_metadata_that_no_snapshot_names_goes_after_three_days_and_the_table_can_be_read(
    w: Warehouse,
) -> None:
    for _ in range(25):
        w.load({NINE: 1})
        w.publish(NINE)
    w.forget_snapshots()
    hours = w.catalog.load_table(hours_identifier(TOPIC))
    hours.maintenance.expire_snapshots().by_ids([old.snapshot_id for old in hours.snapshots()[:-1]]).commit()
    changes = hours.scan().to_arrow().num_rows
    before = files_of_tables(w)
    assert w.expire(clock=lambda: time.time() + 2 * DAY).metadata_files == 0
    deleted = w.expire().metadata_files
    assert 0 < deleted < len(before)
    # The commit before it, of each table, has deleted the oldest metadata that its log had, as each one does.
    assert len(before - files_of_tables(w)) == deleted + 2
    assert hours.scan().to_arrow().num_rows == changes
    assert len(offsets(w.table)) == 25
    assert w.problems() == []


@pytest.mark.parametrize("folder", ["rows", "compacted"])
def test_a_file_that_lies_in_no_attempts_folder_holds_nothing_up(w: Warehouse, folder: str) -> None:
    w.load({NINE: 2})
    w.publish(NINE)
    w.storage.put(f"{TOPIC}/{folder}/theirs.parquet", io.BytesIO(b"theirs"))
    assert w.expire().data_files == 0
    assert w.table.scan().to_arrow().num_rows == 2


def test_a_topic_without_a_table_keeps_every_row(w: Warehouse) -> None:
    w.load({NINE: 3, UNFILED: 1})
    assert w.expire().data_files == 0
    assert len(w.data_files()) == 2
    assert w.problems(rows=True) == []


def test_compacted_files_that_were_replaced_go_and_no_commit_begun_before_can_name_them(w: Warehouse) -> None:
    compacted(w)
    for _ in range(2):
        w.load({NINE: 1})
        w.publish()
    w.compact()
    w.forget_snapshots()
    snapshots = len(w.table.snapshots())
    result = w.expire()
    assert (result.compacted_files, len(w.table.snapshots())) == (1, snapshots + 1)
    assert len(list(w.topic.glob("compacted/*/*.parquet"))) == 2
    assert w.problems(rows=True) == []


@pytest.mark.parametrize("step", ["written down", "deleted", "deleted:4"])
def test_a_run_that_ends_at_any_step_leaves_what_the_next_one_finishes(w: Warehouse, step: str) -> None:
    compacted(w)
    rows = offsets(w.table)
    cut_off(w.folder, step, "expire")
    assert w.problems(rows=True) == []
    assert w.verify(catalog=None).problems == []
    w.expire()
    assert w.data_files() == []
    assert offsets(w.table) == rows
    assert w.problems(rows=True) == []
    assert len(list(expired_entries(w.stored))) == 1


def test_of_two_runs_at_once_one_stops_or_both_delete_the_same(w: Warehouse) -> None:
    compacted(w)

    def rival(step: str) -> None:
        if step == "written down":
            assert w.expire().data_files == 6

    assert w.expire(progress=rival).data_files == 6
    assert w.problems(rows=True) == []


def test_a_publication_whose_run_died_before_the_ledger_stays_when_a_rebuild_follows_it(w: Warehouse) -> None:
    class Killed(BaseException):
        pass

    def die(step: str) -> None:
        if step == "committed":
            raise Killed

    w.load({NINE: 1})
    with pytest.raises(Killed):
        w.publish(NINE, progress=die)
    w.publish(rebuild=True)
    assert w.problems(rows=True) == []
    assert w.expire().strays == 0
    assert w.problems(rows=True) == []


@pytest.mark.parametrize("table", [TOPIC, f"{TOPIC}_hours"])
def test_a_publication_that_stood_still_for_days_names_no_metadata_that_has_gone(
    w: Warehouse, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    w.load({NINE: 1})
    w.publish(NINE)
    w.load({NINE: 1})
    real, days_later = w.catalog.commit_table, [w.expire]

    def commit_table(changed: Table, *change: Any) -> Any:
        if changed.name()[1] == table and days_later:
            days_later.pop()()
        return real(changed, *change)

    monkeypatch.setattr(w.catalog, "commit_table", commit_table)
    w.publish()
    assert days_later == []
    assert len(offsets(w.table)) == 2
    assert w.problems(rows=True) == []


def test_files_of_loads_that_a_rebuild_has_put_back_into_the_table_meanwhile_stay(w: Warehouse) -> None:
    compacted(w)

    def meanwhile(step: str) -> None:
        if step == "written down":
            shutil.rmtree(w.topic / "compacted")
            w.publish(rebuild=True)

    w.expire(progress=meanwhile)
    assert len(offsets(w.table)) == 15
    assert w.problems(rows=True) == []


@pytest.mark.parametrize("looks_between", [True, False])
def test_the_readers_time_begins_anew_for_files_that_a_rebuild_took_back(
    tmp_path: Path, looks_between: bool
) -> None:
    """A query of the rebuilt table reads the files of the loads, whatever was written down before."""
    with warehouse(tmp_path / "w") as w:
        for _ in range(3):
            w.load({NINE: 3, TEN: 2})
        w.publish(NINE, TEN)
        w.compact()
        w.forget_snapshots()
        begin, grace = time.time() + LATER, 3 * DAY
        assert w.expire(reader_grace_s=grace, clock=lambda: begin).waiting == 6
        for path in w.topic.joinpath("compacted").rglob("*.parquet"):
            path.unlink()  # a disk loses them, so that the loads' own files are taken again; their list stays
        assert w.publish(rebuild=True).published
        w.forget_snapshots()
        if looks_between:
            assert w.expire(reader_grace_s=grace, clock=lambda: begin + 5 * DAY).data_files == 0
        w.compact()
        w.forget_snapshots()
        again = begin + 5 * DAY + 60
        kept = w.expire(reader_grace_s=grace, clock=lambda: again)
        assert (kept.data_files, kept.waiting) == (0, 6 + 1), "the loads' files, and the list of lost files"
        assert w.expire(reader_grace_s=grace, clock=lambda: again + grace - 1).data_files == 0
        assert w.expire(reader_grace_s=grace, clock=lambda: again + grace).data_files == 6
        assert w.problems(rows=True) == []


def test_what_a_crash_left_under_the_name_of_a_draft_goes_after_a_day_from_every_folder(w: Warehouse) -> None:
    w.load({NINE: 3})
    w.publish(NINE)
    folders = ("loads", "editions", "publications", "ledger/loads", "schema", "plans", "erasures")
    drafts = [w.topic / folder / f".0000000001.json.{'a' * 32}" for folder in folders]
    for draft in drafts:
        draft.parent.mkdir(exist_ok=True)
        draft.write_bytes(b"half a file")
    w.expire(clock=time.time)
    assert all(draft.exists() for draft in drafts), "a write may still go on"
    w.expire(clock=lambda: time.time() + DAY + 60)
    assert not [draft for draft in drafts if draft.exists()]
    assert w.problems(rows=True) == []
