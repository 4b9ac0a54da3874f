"""Foreign changes to the table: a publication names them, a rebuild undoes them as far as files are left."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.types import StringType

from millrace.errors import MillraceError
from millrace_warehouse.context import Context
from millrace_warehouse.history.hours import UNFILED
from millrace_warehouse.history.layout import Folder, Topic, read_load
from millrace_warehouse.publish.catalog import connect, table_identifier
from millrace_warehouse.publish.committer import TableChange, branch_files, commit
from millrace_warehouse.publish.compact import compact_topic
from millrace_warehouse.publish.hours_table import hours_identifier
from millrace_warehouse.publish.table import TableChanged
from millrace_warehouse.races import Conflict
from millrace_warehouse.requests import Compact
from millrace_warehouse.storage.interface import Storage
from millrace_warehouse.storage.local import LocalStorage
from millrace_warehouse.verify import VerifyRun, verify
from tests.loaded import compact_as_others_do, load, offsets, read_again, rows_by_load_and_hour
from tests.unit.warehouse.publish.publishing import (
    H10,
    H11,
    H12,
    TOPIC,
    Publish,
    hours_of,
    publish_in,
    table_of,
)


@pytest.fixture(autouse=True)
def published(storage: Storage, publish: Publish) -> None:
    """Three publications; their rows are ROWS, and H12 waits."""
    load(storage, TOPIC, {H10: 3, H11: 2, UNFILED: 1})
    publish(H10)
    publish(H11, UNFILED)
    load(storage, TOPIC, {H10: 2, H12: 4})
    publish()


ROWS = {(1, H10): 3, (2, H10): 2, (1, H11): 2, (1, UNFILED): 1}


def test_a_rollback_is_named_and_rebuilt(storage: Storage, catalog: Catalog, publish: Publish) -> None:
    table = table_of(catalog)
    parent = table.metadata.snapshots[-2].snapshot_id
    table.manage_snapshots().rollback_to_snapshot(parent).commit()
    with pytest.raises(
        TableChanged, match="has 6 rows, publication 3 left 8: another program has rolled it back"
    ):
        publish()
    assert publish(rebuild=True).published
    assert rows_by_load_and_hour(table_of(catalog)) == ROWS
    assert not publish().published


def test_a_rollback_behind_a_re_load_with_as_many_rows_is_named_and_rebuilt(
    storage: Storage, catalog: Catalog, publish: Publish
) -> None:
    before = table_of(catalog).metadata.current_snapshot_id
    assert before is not None
    read_again(storage, TOPIC, 2, {H10: 2, H12: 4})
    publish()
    files = {file.file_path for file in branch_files(table_of(catalog))}
    table_of(catalog).manage_snapshots().rollback_to_snapshot(before).commit()
    problems = problems_of(storage, catalog)
    assert any("was rolled back" in problem for problem in problems)
    assert any("rows of edition 1 of load 2, but published was edition 2" in problem for problem in problems)
    with pytest.raises(
        TableChanged, match="of publication 4 in its main branch: another program has rolled it back"
    ):
        publish()
    publish(rebuild=True)
    assert {file.file_path for file in branch_files(table_of(catalog))} == files
    assert problems_of(storage, catalog) == []


@pytest.mark.parametrize("undone_by", ["a rollback", "a backup of the catalog", "the loss of the table"])
@pytest.mark.parametrize("is_expired", [False, True])
@pytest.mark.parametrize("compacted_by", ["Millrace", "another program"])
def test_a_compacted_file_with_rows_that_were_read_again_does_not_stay_in_a_rebuilt_table(
    storage: Storage,
    catalog: Catalog,
    publish: Publish,
    tmp_path: Path,
    undone_by: str,
    is_expired: bool,
    compacted_by: str,
) -> None:
    if compacted_by == "Millrace":
        compacting = Compact(topics=[TOPIC], warehouse="", small_files=1, quiet_s=0)
        compact_topic(Context(storage=storage, catalog=catalog), compacting, TOPIC)
    else:
        compact_as_others_do(storage, table_of(catalog), TOPIC, H10)
    before = table_of(catalog).metadata.current_snapshot_id
    assert before is not None
    database = tmp_path / "w" / "catalog.db"
    backup = database.read_bytes()
    again = read_again(storage, TOPIC, 2, {H10: 2, H12: 4})
    publish()
    if undone_by == "a rollback":
        table_of(catalog).manage_snapshots().rollback_to_snapshot(before).commit()
    elif undone_by == "a backup of the catalog":
        catalog.close()
        database.write_bytes(backup)
    else:
        catalog.drop_table(table_of(catalog).name())
    if is_expired:  # the compacted file has the first load's rows, too; the re-load has copied them
        for file in read_load(Topic(storage, TOPIC), 1).files:
            if file.hour == H10:
                storage.delete(f"{TOPIC}/{file.path}")
    publish(rebuild=True)
    assert rows_by_load_and_hour(table_of(catalog)) == ROWS
    files = {file.file_path for file in branch_files(table_of(catalog))}
    assert {storage.uri(f"{TOPIC}/{file.path}") for file in again.files if file.hour == H10} <= files
    assert problems_of(storage, catalog) == []


def problems_of(storage: Storage, catalog: Catalog) -> list[str]:
    [report] = verify(VerifyRun(storage=storage, catalog=catalog, rows=True), TOPIC)
    return report.problems


def test_deleted_rows_are_named_and_rebuilt(storage: Storage, catalog: Catalog, publish: Publish) -> None:
    table_of(catalog).delete(AlwaysTrue())
    with pytest.raises(TableChanged, match="has 0 rows"):
        publish(H12)
    publish(H12, rebuild=True)
    assert rows_by_load_and_hour(table_of(catalog)) == {**ROWS, (2, H12): 4}
    assert sum(added - removed for _, _, added, removed in hours_of(catalog)) == 12


def test_inserted_rows_are_named_and_taken_out_by_a_rebuild(
    storage: Storage, catalog: Catalog, publish: Publish
) -> None:
    table = table_of(catalog)
    [theirs] = [file for file in branch_files(table) if file.record_count == 3]
    copy = f"{Folder.COMPACTED.path(TOPIC)}/theirs.parquet"
    storage.put(copy, table.io.new_input(theirs.file_path).open())  # type: ignore[arg-type]
    theirs[1] = storage.uri(copy)
    commit(table, TableChange(added=[theirs]))
    with pytest.raises(TableChanged, match="has 11 rows, publication 3 left 8"):
        publish()
    publish(rebuild=True)
    assert rows_by_load_and_hour(table_of(catalog)) == ROWS


def test_columns_of_others_are_named_and_taken_out_by_a_rebuild(
    storage: Storage, catalog: Catalog, publish: Publish
) -> None:
    before = table_of(catalog).schema()
    with table_of(catalog).update_schema() as update:
        update.add_column("theirs", StringType())
    with pytest.raises(TableChanged, match="changed the columns of the table of PageView: undo the change"):
        publish()
    publish(rebuild=True)
    assert table_of(catalog).schema().as_struct() == before.as_struct()
    assert rows_by_load_and_hour(table_of(catalog)) == ROWS


def test_partitions_of_others_are_named_and_the_table_is_made_again(
    storage: Storage, catalog: Catalog, publish: Publish
) -> None:
    with table_of(catalog).update_spec() as update:
        update.add_identity("_topic_partition")
    with pytest.raises(TableChanged, match="changed the partitions of the table of PageView"):
        publish()
    publish(rebuild=True)
    assert [field.name for field in table_of(catalog).spec().fields] == ["_time_hour"]
    assert rows_by_load_and_hour(table_of(catalog)) == ROWS
    assert not publish().published


@pytest.mark.parametrize("column", [None, "url", "_offset"])
@pytest.mark.parametrize("changed_back", [False, True])
def test_rows_of_others_outside_the_partitions_of_hours_are_named_and_rebuilt(
    storage: Storage, catalog: Catalog, publish: Publish, column: str | None, changed_back: bool
) -> None:
    rows = table_of(catalog).scan().to_arrow()
    with table_of(catalog).update_spec() as update:
        update.remove_field("_time_hour")
        if column is not None:
            update.add_identity(column)
    table_of(catalog).overwrite(rows)
    if changed_back:
        with table_of(catalog).update_spec() as update:
            if column is not None:
                update.remove_field(column)
            update.add_field("_time", "hour", "_time_hour")
    says = "^millrace.PageView has a file that is not of one hour, .*parquet: another program"
    (problem,) = problems_of(storage, catalog)
    assert re.match(says, problem)
    with pytest.raises(MillraceError, match=says if changed_back else "changed the partitions"):
        compact_topic(Context(storage=storage, catalog=catalog), Compact(topics=[TOPIC], warehouse=""), TOPIC)
    publish(rebuild=True)
    assert rows_by_load_and_hour(table_of(catalog)) == ROWS
    assert problems_of(storage, catalog) == []


def test_a_table_whose_drop_was_not_answered_is_made_again(
    storage: Storage, catalog: Catalog, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    with table_of(catalog).update_spec() as update:
        update.add_identity("url")
    real, answers = catalog.drop_table, [ConnectionError("reset by peer")]

    def drop_table(identifier: tuple[str, str]) -> None:
        real(identifier)
        if answers:
            raise answers.pop()

    monkeypatch.setattr(catalog, "drop_table", drop_table)
    publish(rebuild=True)
    assert rows_by_load_and_hour(table_of(catalog)) == ROWS


def test_a_compaction_by_others_is_no_change_and_a_rebuild_keeps_its_files(
    storage: Storage, catalog: Catalog, publish: Publish
) -> None:
    compact_as_others_do(storage, table_of(catalog), TOPIC, H10)
    files = {file.file_path for file in branch_files(table_of(catalog))}
    assert not publish().published
    publish(rebuild=True)
    assert {file.file_path for file in branch_files(table_of(catalog))} == files


def test_a_dropped_table_is_named_and_rebuilt(storage: Storage, catalog: Catalog, publish: Publish) -> None:
    catalog.drop_table(table_identifier(TOPIC))
    with pytest.raises(TableChanged, match="does not exist, and publication 3 was made: it was dropped"):
        publish()
    result = publish(rebuild=True)
    assert rows_by_load_and_hour(table_of(catalog)) == ROWS
    assert result.publication is not None
    assert result.publication.number == 4
    assert result.publication.previous is not None
    assert result.publication.previous.path.startswith(f"{Folder.PUBLICATIONS.path(TOPIC)}/0000000003-")
    assert [waiting.hour for waiting in result.waiting] == [H12]
    assert not publish().published


def test_a_lost_catalog_is_named_and_everything_is_rebuilt_with_the_table_of_hours(
    storage: Storage, catalog: Catalog, publish: Publish, tmp_path: Path
) -> None:
    before = hours_of(catalog)
    catalog.close()
    (tmp_path / "w" / "catalog.db").unlink()
    shutil.rmtree(tmp_path / "w" / Folder.TABLE.path(TOPIC))
    with connect(storage) as fresh:
        with pytest.raises(TableChanged, match="its catalog is older"):
            publish_in(storage, fresh)
        publish_in(storage, fresh, rebuild=True)
        assert rows_by_load_and_hour(table_of(fresh)) == ROWS
        assert hours_of(fresh) == before


def test_a_catalog_from_a_backup_is_older_than_the_warehouse(
    storage: Storage, catalog: Catalog, publish: Publish, tmp_path: Path
) -> None:
    database = tmp_path / "w" / "catalog.db"
    backup = database.read_bytes()
    publish(H12)
    catalog.close()
    database.write_bytes(backup)
    with pytest.raises(TableChanged, match="is at publication 3, and publication 4 was made"):
        publish()
    publish(rebuild=True)
    assert rows_by_load_and_hour(table_of(catalog)) == {**ROWS, (2, H12): 4}


def test_rows_of_expired_files_come_from_what_was_compacted(
    storage: Storage, catalog: Catalog, publish: Publish
) -> None:
    compact_as_others_do(storage, table_of(catalog), TOPIC, H10)
    for number in (1, 2):
        for file in read_load(Topic(storage, TOPIC), number).files:
            if file.hour == H10:
                storage.delete(f"{TOPIC}/{file.path}")
    catalog.drop_table(table_identifier(TOPIC))
    publish(rebuild=True)
    assert rows_by_load_and_hour(table_of(catalog)) == ROWS
    assert offsets(table_of(catalog)) == list(range(8))


def test_a_file_that_was_cut_off_while_it_was_written_holds_no_rebuild_up(
    storage: Storage, catalog: Catalog, publish: Publish, tmp_path: Path
) -> None:
    compact_as_others_do(storage, table_of(catalog), TOPIC, H10)
    for number in (1, 2):
        for file in read_load(Topic(storage, TOPIC), number).files:
            if file.hour == H10:
                storage.delete(f"{TOPIC}/{file.path}")
    [whole] = (tmp_path / "w" / Folder.COMPACTED.path(TOPIC)).rglob("*.parquet")
    for name, content in (("cut", whole.read_bytes()[:-20]), ("empty", b""), ("other", b"no Parquet")):
        (whole.parent / f"{name}.parquet").write_bytes(content)
    catalog.drop_table(table_identifier(TOPIC))
    publish(rebuild=True)
    assert rows_by_load_and_hour(table_of(catalog)) == ROWS


def test_a_rebuild_does_not_take_a_file_for_lost_because_the_storage_does_not_answer(
    storage: Storage, catalog: Catalog, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    compact_as_others_do(storage, table_of(catalog), TOPIC, H10)
    for number in (1, 2):
        for file in read_load(Topic(storage, TOPIC), number).files:
            storage.delete(f"{TOPIC}/{file.path}")
    real = LocalStorage.read

    def read(self: LocalStorage, path: str, start: int = 0, length: int | None = None) -> bytes:
        if "/compacted/" in path:
            raise MillraceError(f"cannot read {path}: it does not answer")
        return real(self, path, start, length)

    with monkeypatch.context() as patched:
        patched.setattr(LocalStorage, "read", read)
        with pytest.raises(MillraceError, match="does not answer"):
            publish(rebuild=True)
    assert {file.file_path.partition("/PageView/")[2][:9] for file in branch_files(table_of(catalog))} >= {
        "compacted"
    }


def test_rows_of_an_edition_that_was_replaced_do_not_come_back(
    storage: Storage, catalog: Catalog, publish: Publish
) -> None:
    compact_as_others_do(storage, table_of(catalog), TOPIC, H10)
    read_again(storage, TOPIC, 1, {H10: 1})
    publish()
    for file in read_load(Topic(storage, TOPIC), 2).files:
        storage.delete(f"{TOPIC}/{file.path}")  # load 2 is in the compacted file's remainder now
    catalog.drop_table(table_identifier(TOPIC))
    publish(rebuild=True)
    assert rows_by_load_and_hour(table_of(catalog)) == {(1, H10): 1, (2, H10): 2}


def test_what_was_compacted_before_its_loads_were_read_again_does_not_come_back(
    storage: Storage, catalog: Catalog, publish: Publish
) -> None:
    compacting = Compact(topics=[TOPIC], warehouse="", small_files=1, quiet_s=0)
    compacted = compact_topic(Context(storage=storage, catalog=catalog), compacting, TOPIC)
    assert [hour.hour for hour in compacted.hours] == [H10]
    for number in (1, 2):
        again = read_again(storage, TOPIC, number, read_load(Topic(storage, TOPIC), number).rows_by_hour())
        publish()
        for file in again.files:
            if file.hour == H10:
                storage.delete(f"{TOPIC}/{file.path}")
    catalog.drop_table(table_identifier(TOPIC))
    publish(rebuild=True)
    left = {key: rows for key, rows in ROWS.items() if key[1] != H10}
    assert rows_by_load_and_hour(table_of(catalog)) == left


def test_rows_of_which_no_file_is_left_are_named_and_the_hour_is_complete_no_more(
    storage: Storage, catalog: Catalog, publish: Publish
) -> None:
    publish(H10, H11, verdicts={H10: "complete", H11: "complete"})
    for file in read_load(Topic(storage, TOPIC), 1).files:
        if file.hour == H11:
            storage.delete(f"{TOPIC}/{file.path}")
    catalog.drop_table(table_identifier(TOPIC))
    result = publish(rebuild=True)
    assert rows_by_load_and_hour(table_of(catalog)) == {
        key: rows for key, rows in ROWS.items() if key != (1, H11)
    }
    assert result.publication is not None
    [change] = result.publication.changes
    assert (change.hour, change.kind, change.removed) == (H11, "rebuild", 2)
    assert list(change.verdict.reasons) == ["no file has these rows of the hour any more: 2 of load 1"]
    assert result.publication.complete_until == H11
    assert result.publication.rows == 6
    assert not publish().published
    read_again(storage, TOPIC, 1, {H10: 3, H11: 2, UNFILED: 1})
    publish()
    assert rows_by_load_and_hour(table_of(catalog)) == ROWS
    assert sum(added - removed for _, _, added, removed in hours_of(catalog)) == 8


def test_rows_that_were_lost_and_whose_file_is_back_are_found_by_the_next_rebuild(
    storage: Storage, catalog: Catalog, publish: Publish, tmp_path: Path
) -> None:
    load = read_load(Topic(storage, TOPIC), 1)
    [file] = [tmp_path / "w" / TOPIC / f.path for f in load.files if f.hour == H11]
    file.rename(tmp_path / "aside")
    publish(rebuild=True)
    assert rows_by_load_and_hour(table_of(catalog)).get((1, H11)) is None
    (tmp_path / "aside").rename(file)
    publish(rebuild=True)
    assert rows_by_load_and_hour(table_of(catalog)) == ROWS
    assert sum(added - removed for _, _, added, removed in hours_of(catalog)) == 8


def test_the_record_that_the_table_names_must_be_there_and_unchanged(
    storage: Storage, catalog: Catalog, publish: Publish, tmp_path: Path
) -> None:
    path = tmp_path / "w" / table_of(catalog).properties["millrace.publication.path"]
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"rows": 8', b'"rows": 9'))
    with pytest.raises(MillraceError, match="was edited"):
        publish()
    path.unlink()
    with pytest.raises(MillraceError, match="is missing: restore it from a copy"):
        publish()
    path.write_bytes(content)
    assert not publish().published


def test_a_table_of_hours_that_was_dropped_is_made_again(
    storage: Storage, catalog: Catalog, publish: Publish
) -> None:
    before = hours_of(catalog)
    catalog.drop_table(hours_identifier(TOPIC))
    publish()
    assert hours_of(catalog) == before


def test_a_table_of_hours_that_cannot_be_written_holds_no_publication_up(
    storage: Storage, catalog: Catalog, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = hours_of(catalog)

    def never(*_: object) -> None:
        raise Conflict("another commit was faster")

    with monkeypatch.context() as patch:
        patch.setattr("millrace_warehouse.races.TRIES", 1)
        patch.setattr("millrace_warehouse.publish.hours_table._append", never)
        for number in (3, 4):
            load(storage, TOPIC, {H10: 1})
            with pytest.raises(MillraceError, match="is published, and its table of hours is not"):
                publish()
            assert rows_by_load_and_hour(table_of(catalog))[number, H10] == 1
    assert hours_of(catalog) == before
    assert not publish().published
    assert hours_of(catalog) == [*before, (4, "late", 1, 0), (5, "late", 1, 0)]


def test_the_table_of_hours_stays_in_few_files(
    storage: Storage, catalog: Catalog, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace_warehouse.publish.hours_table.FILES", 5)
    for _ in range(8):
        load(storage, TOPIC, {H10: 1})
        publish()
    assert len(hours_of(catalog)) == 4 + 8
    assert len(list(branch_files(catalog.load_table(hours_identifier(TOPIC))))) <= 5
