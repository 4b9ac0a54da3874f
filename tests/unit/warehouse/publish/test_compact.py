"""Small files put together: no row is lost or there twice, whoever else writes, wherever it is cut off."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

from millrace.errors import MillraceError
from millrace_warehouse.history.hours import UNFILED
from millrace_warehouse.load.load import load_topic
from millrace_warehouse.publish.committer import TableChange, commit
from millrace_warehouse.storage import Written
from millrace_warehouse.storage.local import LocalStorage
from tests.crashing import cut_off
from tests.loaded import AVRO, compact_as_others_do, offsets, pin, rows_by_load_and_hour
from tests.published import LATER, TOPIC, Warehouse, warehouse
from tests.unit.warehouse.memory_log import SCHEMA, START, MemoryLog, load_run

NINE, TEN = "2015-05-17T09", "2015-05-17T10"


@pytest.fixture
def w(tmp_path: Path) -> Iterator[Warehouse]:
    with warehouse(tmp_path / "w") as made:
        yield made


def crowded(w: Warehouse, loads: int = 3) -> Warehouse:
    """Publish some loads, each with a file in two hours and one without an hour."""
    for number in range(loads):
        w.load({NINE: 3 + number, TEN: 2, UNFILED: 1})
    w.publish(NINE, TEN, UNFILED)
    return w


def files(w: Warehouse) -> int:
    return len(list(w.table.scan().plan_files()))


def test_many_small_files_become_one_for_each_hour_with_the_same_rows(w: Warehouse) -> None:
    crowded(w)
    before, rows = rows_by_load_and_hour(w.table), offsets(w.table)
    result = w.compact()
    assert [(hour.hour, hour.files_before, hour.files_after, hour.rows) for hour in result.hours] == [
        (NINE, 3, 1, 12),
        (TEN, 3, 1, 6),
        (UNFILED, 3, 1, 3),
    ]
    assert result.kept == {}
    assert files(w) == 3
    assert (rows_by_load_and_hour(w.table), offsets(w.table)) == (before, rows)
    assert w.problems(rows=True) == []


def test_what_is_compact_already_is_left_alone(w: Warehouse) -> None:
    crowded(w)
    w.compact()
    metadata = w.table.metadata_location
    assert w.compact().hours == []
    assert w.table.metadata_location == metadata


def test_hours_with_few_files_or_large_ones_and_hours_that_changed_lately_are_left_alone(
    w: Warehouse,
) -> None:
    crowded(w)
    assert w.compact(small_files=3).hours == []
    assert w.compact(small_bytes=100).hours == []
    result = w.compact(quiet_s=3600.0)
    assert (result.hours, sorted(result.kept)) == ([], [NINE, TEN, UNFILED])
    later = w.compact(quiet_s=3600.0, clock=lambda: time.time() + 7200, dry_run=True)
    assert (len(later.hours), later.kept) == (3, {})


def test_only_the_hours_that_a_late_row_reached_count_as_changed_lately(
    w: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr("millrace_warehouse.publish.state.now", lambda: "2015-05-17T12:00:00Z")
        crowded(w)
    w.load({NINE: 1})
    w.publish()
    result = w.compact(quiet_s=3600.0)
    assert [hour.hour for hour in result.hours] == [TEN, UNFILED]
    assert list(result.kept) == [NINE]


def test_files_are_split_at_the_size_of_a_target(w: Warehouse) -> None:
    crowded(w, 5)
    size = max(path.stat().st_size for path in w.data_files())
    result = w.compact(target_bytes=size + 1)
    assert {hour.hour: hour.files_after for hour in result.hours} == {NINE: 2, TEN: 2, UNFILED: 2}
    assert files(w) == 9  # the fifth file of each hour stays alone
    assert w.problems(rows=True) == []


def test_rows_of_older_schemas_get_the_columns_of_the_newest_one(w: Warehouse) -> None:
    crowded(w, 2)
    wider = {**AVRO, "fields": [*AVRO["fields"], {"name": "country", "type": ["null", "string"]}]}
    pin(w.storage, TOPIC, wider)
    w.load({NINE: 2})
    w.publish()
    w.compact()
    (path,) = w.topic.glob(f"compacted/*/{NINE}*.parquet")
    table = pq.read_table(path)
    assert table["country"].null_count == len(table) == 9
    assert table["url"].null_count == 0
    assert w.problems(rows=True) == []


ARRAY = {"type": "array", "items": "string"}
FIXED = {"type": "fixed", "name": "Id", "size": 16, "logicalType": "uuid"}


@pytest.mark.parametrize(
    ("avro", "value"),
    [
        (ARRAY, ["a", "b"]),
        ({"type": "array", "items": ARRAY}, [["a"], []]),
        ({"type": "map", "values": ARRAY}, {"k": ["a"]}),
        ({"type": "array", "items": {"type": "map", "values": "int"}}, [{"k": 1}]),
        ({"type": "record", "name": "R", "fields": [{"name": "v", "type": ARRAY}]}, {"v": ["a"]}),
        (FIXED, bytes(range(16))),
        ({"type": "array", "items": FIXED}, [bytes(range(16))]),
    ],
)
def test_columns_of_every_shape_are_the_same_after_it(w: Warehouse, avro: Any, value: Any) -> None:
    log = MemoryLog(1)
    log.schemas = {7: {**SCHEMA, "fields": [*SCHEMA["fields"], {"name": "v", "type": avro}]}}
    for run in ("first", "second"):
        log.append_events(0, [START], schema=7, v=value)
        load_topic(load_run(log, w.folder, run), TOPIC)
    w.publish(TEN)
    before = w.table.scan().to_arrow()["v"].to_pylist()
    assert [hour.rows for hour in w.compact().hours] == [2]
    assert w.table.scan().to_arrow()["v"].to_pylist() == before
    assert w.problems(rows=True) == []


def test_a_dry_run_says_the_same_and_writes_nothing(w: Warehouse) -> None:
    crowded(w)
    metadata = w.table.metadata_location
    would = w.compact(dry_run=True)
    assert w.table.metadata_location == metadata
    assert not (w.topic / "compacted").exists()
    assert w.compact() == would


def test_a_damaged_file_keeps_its_hour_as_it_is_and_no_copy_of_it_is_made(w: Warehouse) -> None:
    crowded(w)
    path = next(path for path in w.data_files(2) if path.name.startswith(TEN))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    result = w.compact()
    assert [hour.hour for hour in result.hours] == [NINE, UNFILED]
    assert list(result.kept) == [TEN]
    assert "was changed" in result.kept[TEN]
    path.unlink()
    assert "is gone" in w.compact().kept[TEN]
    assert any(path.name in problem for problem in w.problems())


def test_a_damaged_compacted_file_is_neither_copied_nor_taken_for_sound(w: Warehouse) -> None:
    crowded(w)
    w.compact()
    (path, *_) = sorted(w.topic.glob(f"compacted/*/{NINE}*.parquet"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    w.load({NINE: 1})
    w.publish()
    assert "was changed" in w.compact().kept[NINE]
    assert any("SHA-256" in problem for problem in w.problems())


def test_a_re_load_copies_no_rows_of_a_damaged_compacted_file(w: Warehouse) -> None:
    crowded(w)
    w.compact()
    (path,) = w.topic.glob(f"compacted/*/{NINE}*.parquet")
    whole = path.read_bytes()
    w.read_again(2, {NINE: 1})
    path.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    with pytest.raises(MillraceError, match="was changed"):
        w.publish()
    path.write_bytes(whole)
    w.publish()
    assert w.problems(rows=True) == []


class Forgetful(LocalStorage):
    """A storage that keeps other rows than it was given."""

    def put(self, path: str, content: BinaryIO) -> Written:
        if "/compacted/" in path and path.endswith(".parquet"):
            other = next(iter(sorted(Path(self.folder).glob("*/rows/*/2015*.parquet"))))
            return super().put(path, io.BytesIO(other.read_bytes()))
        return super().put(path, content)


def test_rows_that_the_storage_does_not_give_back_are_not_committed(w: Warehouse) -> None:
    crowded(w)
    before = w.table.metadata_location
    result = w.compact(storage=Forgetful(str(w.folder)))
    assert sorted(result.kept) == [NINE, TEN, UNFILED]
    assert all("differs from the rows that it copies" in reason for reason in result.kept.values())
    assert w.table.metadata_location == before


def test_a_table_that_others_rolled_back_is_not_compacted(w: Warehouse) -> None:
    crowded(w)
    w.load({NINE: 1})
    w.publish()
    parent = w.table.current_snapshot().parent_snapshot_id  # type: ignore[union-attr]
    w.table.manage_snapshots().rollback_to_snapshot(parent).commit()  # type: ignore[arg-type]
    with pytest.raises(MillraceError, match="rolled it back"):
        w.compact()


def test_a_tag_on_a_publication_behind_expired_snapshots_is_no_rollback(w: Warehouse) -> None:
    """Between the tagged snapshot and the head of main an expiry has removed a snapshot."""
    w.load({NINE: 3}, 2)
    w.publish(NINE)
    head = w.table.current_snapshot()
    assert head is not None
    w.table.manage_snapshots().create_tag(head.snapshot_id, "audited").commit()
    w.compact()
    middle = w.table.current_snapshot()
    assert middle is not None
    assert middle != head
    commit(w.table, TableChange())
    w.table.maintenance.expire_snapshots().by_ids([middle.snapshot_id]).commit()
    assert w.problems(rows=True) == []
    w.load({TEN: 2})
    assert w.publish(TEN).published
    assert w.problems(rows=True) == []


def at(step: str, act: Callable[[], object]) -> Callable[[str], None]:
    """A progress that does something else at a step, once."""
    left = [act]

    def progress(name: str) -> None:
        if name == step and left:
            left.pop()()

    return progress


def test_a_publication_in_the_middle_is_kept_and_so_is_the_compaction(w: Warehouse) -> None:
    crowded(w)

    def publish() -> None:
        w.load({NINE: 4})
        w.publish()

    assert len(w.compact(progress=at("written", publish)).hours) == 3
    assert files(w) == 4
    assert len(offsets(w.table)) == 25
    assert len(set(offsets(w.table))) == 25
    assert w.problems(rows=True) == []


def test_who_comes_second_with_an_hour_leaves_it_as_the_first_one_made_it(w: Warehouse) -> None:
    crowded(w)

    def other() -> None:
        compact_as_others_do(w.storage, w.table, TOPIC, NINE)

    rows = offsets(w.table)
    result = w.compact(progress=at("written", other))
    assert result.hours == []
    assert sorted(result.kept) == [NINE, TEN, UNFILED]
    assert offsets(w.table) == rows
    assert len(w.compact().hours) == 2
    assert offsets(w.table) == rows
    assert w.problems(rows=True) == []


class Faulty(SqlCatalog):
    """A catalog whose first commits fail in one way."""

    fault = ""
    left = 0

    def commit_table(self, *arguments: Any) -> Any:
        if not self.left:
            return super().commit_table(*arguments)
        self.left -= 1
        if self.fault == "before":
            raise CommitStateUnknownException("504, not made")
        if self.fault == "rival":
            raise CommitFailedException("409")
        done = super().commit_table(*arguments)
        if self.fault == "after":
            raise CommitStateUnknownException("504, made")
        if self.fault == "after, as a conflict":
            raise CommitFailedException("409 for a commit that was made")
        assert done is not None
        raise ConnectionError("reset by peer")


@pytest.mark.parametrize("fault", ["before", "rival", "after", "after, as a conflict", "after, cut"])
def test_whatever_the_catalog_answers_the_rows_are_there_once(w: Warehouse, fault: str) -> None:
    crowded(w)
    rows = offsets(w.table)
    with closing(Faulty("millrace", uri=f"sqlite:///{w.folder}/catalog.db")) as catalog:
        catalog.fault, catalog.left = fault, 2
        assert len(w.compact(catalog=catalog).hours) == 3
    assert files(w) == 3
    assert offsets(w.table) == rows
    assert w.problems(rows=True) == []


def test_a_catalog_that_takes_no_commit_is_named_with_its_answer(
    w: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace_warehouse.races.TRIES", 3)
    crowded(w)
    with closing(Faulty("millrace", uri=f"sqlite:///{w.folder}/catalog.db")) as catalog:
        catalog.fault, catalog.left = "before", 1000
        with pytest.raises(MillraceError, match=r"accepted no commit: 3 tries failed, .*504"):
            w.compact(catalog=catalog)
    assert w.problems() == []


@pytest.mark.parametrize("step", ["stored", "written", "committed"])
def test_a_run_that_ends_at_any_step_loses_nothing_and_the_next_one_goes_on(w: Warehouse, step: str) -> None:
    crowded(w)
    rows = offsets(w.table)
    cut_off(w.folder, step, "compact")
    assert w.problems(rows=True) == []
    assert offsets(w.table) == rows
    w.compact()
    assert files(w) == 3
    assert offsets(w.table) == rows
    w.forget_snapshots()
    w.expire()
    left = {path.name for path in w.topic.glob("compacted/*/*.parquet")}
    assert len(left) == 3  # what the run that was cut off wrote for nothing is swept
    assert w.data_files() == []
    assert w.problems(rows=True) == []
    assert offsets(w.table) == rows


def test_a_run_that_stands_still_for_days_brings_back_no_file_that_was_swept(
    w: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands in the middle of its commit, which the table could still take: nobody else has made one."""
    crowded(w)
    real, stood = w.catalog.commit_table, [0.0]
    rows = offsets(w.table)

    def commit_table(*arguments: Any) -> Any:
        if not stood[0]:
            stood[0] = LATER
            with warehouse(w.folder) as other:
                assert other.expire().compacted_files == 4
        return real(*arguments)

    monkeypatch.setattr(w.catalog, "commit_table", commit_table)
    result = w.compact(clock=lambda: time.time() + stood[0])
    assert (result.hours, sorted(result.kept)) == ([], [NINE, TEN, UNFILED])
    assert offsets(w.table) == rows
    assert w.problems(rows=True) == []


def test_readers_see_every_row_once_while_it_is_compacted_and_published(w: Warehouse) -> None:
    crowded(w)
    seen: list[int] = []
    wrong: list[object] = []
    done = threading.Event()

    def read() -> None:
        with warehouse(w.folder) as mine:
            while not done.is_set():
                found = offsets(mine.table)
                seen.append(len(found))
                if len(set(found)) != len(found) or len(found) not in range(21, 40, 3):
                    wrong.append(found)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(5):
            w.load({NINE: 2, TEN: 1})
            w.publish()
            w.compact()
    finally:
        done.set()
        reader.join(30)
    assert wrong == []
    assert len(seen) > 5
    assert len(offsets(w.table)) == 36
