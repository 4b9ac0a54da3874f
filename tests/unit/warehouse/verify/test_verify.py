"""Whatever is taken away, cut, edited, put in or rolled back is named; what is whole has no problem."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.table.update.schema import UpdateSchema

from millrace.errors import MillraceError
from millrace_warehouse.history.entries import data_file
from millrace_warehouse.history.hours import UNFILED
from millrace_warehouse.history.layout import ledger_path
from millrace_warehouse.history.manifest import DataFile, LoadManifest, Publication, decode, encode, sealed
from millrace_warehouse.history.metrics import metrics_of
from millrace_warehouse.load.open_load import TAIL
from millrace_warehouse.publish.committer import TableChange, commit, head_files
from millrace_warehouse.storage import measure, open_storage
from millrace_warehouse.verify import VerifyRun, verify
from tests import loaded
from tests.loaded import compact_as_others_do
from tests.published import TOPIC, Warehouse, warehouse

NINE, TEN, ELEVEN = (f"2015-05-17T{hour:02d}" for hour in (9, 10, 11))
HOURS = ("millrace", f"{TOPIC}_hours")
Damage = Callable[[Warehouse], object]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four loads, the second one read again, and four publications.

    09 is compacted but for a late file, 10 was read again, 11 waits, and some rows have no hour.
    """
    folder = tmp_path_factory.mktemp("verify") / "w"
    with warehouse(folder) as w:
        w.load({NINE: 3, TEN: 2, UNFILED: 1})
        w.load({NINE: 2, TEN: 3})
        w.publish(NINE, TEN)
        w.compact(small_files=1)
        w.load({NINE: 1, TEN: 1, ELEVEN: 4})
        w.publish(UNFILED, verdict="unknown")
        w.read_again(2, {NINE: 1, TEN: 4})
        w.publish()
        w.load({ELEVEN: 2})
    return folder


def each(*acts: Callable[[], object]) -> None:
    for act in acts:
        act()


def load_path(w: Warehouse, load: int) -> Path:
    return w.topic / "loads" / f"{load:010d}.json"


def ledger_of(w: Warehouse, path: Path) -> Path:
    return w.folder / ledger_path(path.relative_to(w.folder).as_posix())


def publication_files(w: Warehouse) -> list[Path]:
    return sorted((w.topic / "publications").iterdir())


def file_of(w: Warehouse, load: int, hour: str) -> Path:
    return next(path for path in w.data_files(load) if path.name.startswith(hour))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def edit(path: Path, cls: type[Any], change: Callable[[Any], Any]) -> None:
    """Edit a manifest or a record and seal it anew, as somebody with the source code would."""
    path.write_bytes(encode(sealed(change(decode(cls, path.read_bytes(), "here")))))


def test_what_was_loaded_and_published_has_neither_problems_nor_notes(w: Warehouse) -> None:
    report = w.verify(rows=True)
    assert (report.problems, report.notes) == ([], [])
    assert (report.loads, report.publications, report.files, report.expired) == (5, 3, 11, 0)
    assert (report.rows, report.published) == (19, 13)
    alone = w.verify(catalog=None)
    assert (alone.problems, alone.notes, alone.published) == ([], [], None)


def test_the_proof_holds_when_everything_that_may_go_has_gone(w: Warehouse) -> None:
    compact_as_others_do(w.storage, w.table, TOPIC, NINE)
    compact_as_others_do(w.storage, w.table, TOPIC, TEN)
    w.forget_snapshots()
    assert w.expire().data_files == 8
    report = w.verify(rows=True)
    assert (report.problems, report.expired, report.published) == ([], 8, 13)
    alone = w.verify(catalog=None)
    assert alone.problems == []
    assert "only its table" in alone.notes[0]


def test_what_others_expire_by_deleting_files_is_no_problem_while_the_rows_are_there(w: Warehouse) -> None:
    compact_as_others_do(w.storage, w.table, TOPIC, TEN)
    w.forget_snapshots()
    for load in (1, 2, 3):
        for path in w.data_files(load):
            if path.name.startswith(TEN):
                path.unlink()
    report = w.verify(rows=True)
    assert (report.problems, report.expired) == ([], 4)


# Each row: what somebody does, and what must be said of it.
FAULTS: dict[str, tuple[Damage, str]] = {
    "a load is gone": (lambda w: load_path(w, 2).unlink(), r"loads/0000000002\.json is missing with 5 rows"),
    "the newest load is gone": (
        lambda w: load_path(w, 4).unlink(),
        r"loads/0000000004\.json is missing with 2 rows: offsets PageView-0 \[17, 19\)",
    ),
    "a load is gone with its ledger entry": (
        lambda w: each(ledger_of(w, load_path(w, 3)).unlink, load_path(w, 3).unlink),
        r"loads/0000000003\.json is missing: offsets PageView-0 \[11, 17\)",
    ),
    "an edition is gone": (
        lambda w: next((w.topic / "editions").iterdir()).unlink(),
        r"editions/0000000002\.0002\.json is missing",
    ),
    "a manifest is cut": (
        lambda w: load_path(w, 3).write_bytes(load_path(w, 3).read_bytes()[:99]),
        r"loads/0000000003\.json is not JSON",
    ),
    "a manifest is edited": (
        lambda w: load_path(w, 1).write_text(load_path(w, 1).read_text().replace('"run-1.1"', '"run"')),
        r"loads/0000000001\.json: the manifest was edited",
    ),
    "a manifest is edited and sealed anew": (
        lambda w: edit(load_path(w, 1), LoadManifest, lambda m: dataclasses.replace(m, run_id="run")),
        r"loads/0000000001\.json: its sha256 is",
    ),
    "a manifest is edited, and the ledger is gone": (
        lambda w: each(
            lambda: edit(load_path(w, 1), LoadManifest, lambda m: dataclasses.replace(m, run_id="run")),
            lambda: shutil.rmtree(w.topic / "ledger"),
        ),
        r"loads/0000000002\.json: it follows a load with sha256",
    ),
    "a manifest breaks the law": (
        lambda w: edit(
            load_path(w, 4),
            LoadManifest,
            lambda m: dataclasses.replace(m, partitions=[dataclasses.replace(m.partitions[0], read=9)]),
        ),
        r"9 records read, but 2 written",
    ),
    "an entry of the ledger is gone": (
        lambda w: ledger_of(w, load_path(w, 1)).unlink(),
        r"loads/0000000001\.json is not in the ledger: the ledger was edited",
    ),
    "a file that waits is gone": (
        lambda w: file_of(w, 3, ELEVEN).unlink(),
        r"rows/0000000003-\S+ is missing: 4 rows are gone",
    ),
    "a file of the table is gone": (
        lambda w: file_of(w, 3, NINE).unlink(),
        r"rows/0000000003-\S+ is missing: 1 rows are gone",
    ),
    "a file is cut": (
        lambda w: file_of(w, 4, ELEVEN).write_bytes(file_of(w, 4, ELEVEN).read_bytes()[:-1]),
        r"rows/0000000004-\S+ has \d+ bytes, not the \d+ written",
    ),
    "a file is changed by one bit": (
        lambda w: flip(file_of(w, 4, ELEVEN)),
        r"rows/0000000004-\S+ was changed: its SHA-256",
    ),
    "the entries for the table are gone": (
        lambda w: next((w.topic / "rows").glob("0000000004-*/entries.avro")).unlink(),
        r"rows/0000000004-\S+/entries\.avro is missing",
    ),
    "something strange lies among the rows": (
        lambda w: (w.topic / "rows" / "copy.parquet").write_bytes(b""),
        r"rows/copy\.parquet is not a file of Millrace",
    ),
    "something strange lies among the loads": (
        lambda w: (w.topic / "loads" / "1.json").write_bytes(b""),
        r"PageView/loads/1\.json is not a file of Millrace",
    ),
    "something strange lies beside the loads": (
        lambda w: (w.topic / "data").mkdir(),
        r"PageView/data is not a file of Millrace",
    ),
    "a schema record is gone": (
        lambda w: (w.topic / "schema" / "0001.json").unlink(),
        r"schema/0001\.json is missing",
    ),
    "the newest record is gone": (
        lambda w: publication_files(w)[-1].unlink(),
        r"publications/\S+ is missing",
    ),
    "an older record is gone": (lambda w: publication_files(w)[0].unlink(), r"publications/\S+ is missing"),
    "a record is edited": (
        lambda w: publication_files(w)[1].write_text(
            publication_files(w)[1].read_text().replace('"unknown"', '"complete"')
        ),
        r"publications/0000000002-\S+: the manifest was edited",
    ),
    "a record of another state is sealed anew": (
        lambda w: edit(
            publication_files(w)[2], Publication, lambda r: dataclasses.replace(r, rows=r.rows + 1)
        ),
        r"publications/0000000003-\S+: it states 14 rows in the table, the loads give 13",
    ),
    "a verdict is edited and sealed anew": (
        lambda w: edit(publication_files(w)[0], Publication, judged_incomplete),
        r"publications/0000000001-\S+: its incomplete hours are not those",
    ),
    "a compacted file is gone": (lambda w: compacted(w).unlink(), r"compacted/\S+ cannot be read"),
    "a compacted file is changed": (lambda w: flip(compacted(w)), r"compacted/\S+ cannot be read: it was"),
    "the table is rolled back": (
        lambda w: w.table.manage_snapshots().rollback_to_snapshot(parent(w)).commit(),
        r"was rolled back: main is at snapshot \d+, publication 3 made snapshot",
    ),
    "the table is rolled back and forgets": (
        lambda w: each(w.table.manage_snapshots().rollback_to_snapshot(parent(w)).commit, w.forget_snapshots),
        r"rows of load 2 in 2015-05-17T10 instead of the 4 published",
    ),
    "the table is dropped": (
        lambda w: w.catalog.drop_table(("millrace", TOPIC)),
        r"has no table of PageView, and 3 publications were made",
    ),
    "the catalog is gone": (lambda w: forget_catalog(w), r"has no table of PageView"),
    "rows are deleted": (
        lambda w: commit(w.table, TableChange(removed=head_files(w.table, [TEN])[TEN][:1])),
        r"0 rows of load \d in 2015-05-17T10 instead of the \d published: rows are gone",
    ),
    "rows are put in": (
        lambda w: put_in(w, 99),
        r"2 rows of load 99 in 2015-05-17T11 instead of the 0 published",
    ),
    "rows of no load are put in": (lambda w: put_in(w, None), r"2 rows of no load in 2015-05-17T11"),
    "a column is dropped": (
        lambda w: change_columns(w, lambda update: update.delete_column("url")),
        r"another program has changed the columns of the table of PageView",
    ),
    "a column is renamed": (
        lambda w: change_columns(w, lambda update: update.rename_column("url", "address")),
        r"another program has changed the columns of the table of PageView",
    ),
    "the table is partitioned otherwise": (
        lambda w: partition_otherwise(w),
        r"another program has changed the partitions of the table of PageView",
    ),
    "rows that wait are put in": (
        lambda w: put_in(w, 4),
        r"2 rows of load 4 in 2015-05-17T11 instead of the",
    ),
    "a property is set": (
        lambda w: set_property(w, "millrace.complete-until", "2015-05-18T00"),
        r"has '2015-05-18T00' as its property millrace\.complete-until, its publication states '2015-05-17T",
    ),
    "a verdict is put into the table of hours": (
        lambda w: w.catalog.load_table(HOURS).append(
            w.catalog.load_table(HOURS).scan(row_filter="publication = 1").to_arrow().slice(0, 1)
        ),
        r"PageView_hours has 1 rows that no publication made, the first: publication 1",
    ),
    "a verdict is deleted from the table of hours": (
        lambda w: w.catalog.load_table(HOURS).delete("publication = 2"),
        r"PageView_hours has \d rows missing, the first: publication 2",
    ),
    "a file of the table of hours is gone": (
        lambda w: each(*(path.unlink for path in (w.topic / "hours" / "data").iterdir())),
        r"PageView_hours cannot be read",
    ),
    "metadata of the table of hours is gone": (
        lambda w: each(*(path.unlink for path in (w.topic / "hours" / "metadata").iterdir())),
        r"PageView_hours cannot be read",
    ),
    "the first edition of rows that wait is cut": (
        lambda w: each(
            lambda: w.read_again(4, {ELEVEN: 2}),
            lambda: w.load({TEN: 1}),
            w.publish,
            lambda: load_path(w, 4).write_bytes(load_path(w, 4).read_bytes()[:99]),
        ),
        r"loads/0000000004\.json is not JSON",
    ),
    "metadata is gone": (
        lambda w: each(*(path.unlink for path in (w.topic / "table" / "metadata").glob("*-m0.avro"))),
        r"metadata of PageView's table cannot be read",
    ),
}


def set_property(w: Warehouse, key: str, value: str) -> None:
    with w.table.transaction() as transaction:
        transaction.set_properties({key: value})


def change_columns(w: Warehouse, change: Callable[[UpdateSchema], object]) -> None:
    with w.table.update_schema(allow_incompatible_changes=True) as update:
        change(update)


def partition_otherwise(w: Warehouse) -> None:
    with w.table.update_spec() as update:
        update.add_identity("_topic_partition")


def judged_incomplete(record: Publication) -> Publication:
    first, *rest = record.changes
    verdict = dataclasses.replace(first.verdict, verdict="incomplete")
    return dataclasses.replace(record, changes=[dataclasses.replace(first, verdict=verdict), *rest])


def compacted(w: Warehouse) -> Path:
    uris = [file.file_path for file in head_files(w.table, [NINE])[NINE] if "/compacted/" in file.file_path]
    return Path(uris[0].removeprefix("file://"))


def parent(w: Warehouse) -> int:
    head = w.table.current_snapshot()
    assert head is not None
    assert head.parent_snapshot_id is not None
    return head.parent_snapshot_id


def forget_catalog(w: Warehouse) -> None:
    w.catalog.drop_table(("millrace", TOPIC))
    w.catalog.drop_table(("millrace", f"{TOPIC}_hours"))


def put_in(w: Warehouse, load: int | None) -> None:
    """Append the rows of load 4, under another load's number, as a program that knows nothing of loads."""
    rows = pq.read_table(file_of(w, 4, ELEVEN))
    at = rows.schema.get_field_index("_load")
    rows = rows.set_column(at, rows.schema.field(at), pa.array([load] * len(rows), pa.int64()))
    path = w.topic / "compacted" / "foreign.parquet"
    pq.write_table(rows, path)
    file = DataFile(path="", bytes=path.stat().st_size, sha256="", hour=ELEVEN, rows=len(rows))
    metrics = metrics_of(pq.read_metadata(path), w.table.schema().model_dump(mode="json"))
    commit(w.table, TableChange(added=[data_file(file, metrics, f"file://{path}")]))


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named(w: Warehouse, fault: str) -> None:
    damage, said = FAULTS[fault]
    damage(w)
    problems = w.problems()
    assert [problem for problem in problems if pc.match_substring_regex(pa.scalar(problem), said).as_py()], (
        problems
    )


def test_a_copy_of_a_warehouse_whose_table_names_files_elsewhere_is_right_only_while_they_are_there(
    w: Warehouse,
) -> None:
    copy = w.folder.with_name("copy")
    shutil.copytree(w.folder, copy)
    with warehouse(copy) as copied:
        assert copied.problems(rows=True) == []
        file_of(w, 3, NINE).unlink()
        assert any(
            "rows/0000000003-" in problem and "cannot be read" in problem for problem in copied.problems()
        )


def without_eleven(previous: str, record: Publication) -> Publication:
    """The record as if nothing of 11 waited, behind a record with that hash."""
    before = dataclasses.replace(record.previous, sha256=previous) if record.previous else None
    hours = {hour: loads for hour, loads in record.unpublished.items() if hour != ELEVEN}
    return dataclasses.replace(record, previous=before, unpublished=hours)


def test_an_edited_state_without_the_rest_breaks_the_replay_not_only_the_hash(w: Warehouse) -> None:
    """Whoever seals the whole chain and the ledger anew still has to invent loads."""
    sha256 = ""
    for path in publication_files(w):
        edit(path, Publication, partial(without_eleven, sha256))
        sha256 = decode(Publication, path.read_bytes(), "here").sha256
        entry = json.loads(ledger_of(w, path).read_text())
        ledger_of(w, path).write_text(json.dumps({**entry, "sha256": sha256}))
    with w.table.transaction() as transaction:
        transaction.set_properties({"millrace.publication.sha256": sha256})
    assert any("states 0 rows that wait, the loads give 4" in problem for problem in w.problems())


def rewrite(w: Warehouse, path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Replace a Parquet file and make its manifest agree with size and hash: only its rows are wrong."""
    schema = pq.read_schema(path)
    pq.write_table(change(pq.read_table(path)).cast(schema), path)
    written = measure(w.storage, path.relative_to(w.folder).as_posix())
    inside = path.relative_to(w.topic).as_posix()

    def accept(manifest: LoadManifest) -> LoadManifest:
        files = [
            dataclasses.replace(file, bytes=written.bytes, sha256=written.sha256)
            if file.path == inside
            else file
            for file in manifest.files
        ]
        return dataclasses.replace(manifest, files=files)

    edit(load_path(w, int(path.parent.name[:10])), LoadManifest, accept)


ROWS: dict[str, tuple[Callable[[pa.Table], pa.Table], str]] = {
    "a row less": (lambda t: t.slice(1), "1 rows of partition 0, its manifest states 2"),
    "a row twice": (lambda t: pa.concat_tables([t.slice(0, 1), t.slice(0, 1)]), "is there 2 times"),
    "an offset outside": (lambda t: changed(t, "_offset", 1000), r"rows have offsets [17, 1001)"),
    "another hour": (lambda t: changed(t, "_time", 0), "has rows of 1970-01-01T00"),
    "no hour": (lambda t: changed(t, "_time", None), "has rows of none"),
    "another load": (lambda t: changed(t, "_load", 3), "has rows of load 3: it is that of load 4"),
    "another partition": (lambda t: changed(t, "_topic_partition", 7), "has rows of partition 7"),
}


def changed(table: pa.Table, name: str, value: object) -> pa.Table:
    """The table with another value in the last row of a column."""
    at = table.schema.get_field_index(name)
    type_ = table.schema.field(at).type
    kept = table.column(at).slice(0, len(table) - 1).combine_chunks()
    last = pa.array([value]).cast(type_) if value is not None else pa.nulls(1, type_)
    return table.set_column(at, table.schema.field(at), pa.concat_arrays([kept, last]))


@pytest.mark.parametrize("fault", ROWS)
def test_each_row_that_is_not_what_the_manifest_says_is_named(w: Warehouse, fault: str) -> None:
    change, said = ROWS[fault]
    rewrite(w, file_of(w, 4, ELEVEN), change)
    problems = w.problems(rows=True)
    assert any(said in problem for problem in problems), problems


@pytest.mark.parametrize("fault", ["a row twice", "an offset outside", "another hour", "another partition"])
def test_rows_that_only_the_table_has_are_read_as_well(w: Warehouse, fault: str) -> None:
    """Other programs' files have no hash: as many rows of each load, and one of them another one."""
    change, said = {
        **ROWS,
        "an offset outside": (ROWS["an offset outside"][0], "1001)"),
        "another partition": (ROWS["another partition"][0], "of partition 7 of load 3, which lacks it"),
    }[fault]
    compact_as_others_do(w.storage, w.table, TOPIC, TEN)
    uri = head_files(w.table, [TEN])[TEN][0].file_path
    path = Path(uri.removeprefix("file://"))
    schema, rows = pq.read_schema(path), pq.read_table(path)
    if fault == "a row twice":
        one = pc.equal(rows["_load"], 2)
        change = lambda t: pa.concat_tables([t.filter(pc.invert(one)), *[t.filter(one).slice(0, 1)] * 4])  # noqa: E731
    pq.write_table(change(rows).cast(schema), path)
    problems = w.problems(rows=True)
    assert any(said in problem or "is there 4 times" in problem for problem in problems), problems
    assert [problem for problem in w.problems() if "published: " in problem] == []


def test_the_newest_load_and_record_without_a_ledger_entry_are_notes(w: Warehouse) -> None:
    ledger_of(w, load_path(w, 4)).unlink()
    ledger_of(w, publication_files(w)[-1]).unlink()
    report = w.verify()
    assert report.problems == []
    assert len([note for note in report.notes if "is not in the ledger yet" in note]) == 2


def test_a_table_of_hours_that_is_behind_or_gone_is_a_note(w: Warehouse) -> None:
    w.catalog.drop_table(HOURS)
    report = w.verify()
    assert report.problems == []
    assert any("PageView_hours ends at publication 0" in note for note in report.notes)


def test_hours_that_wait_for_more_than_a_day_are_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with warehouse(tmp_path / "w") as w:
        with monkeypatch.context() as earlier:
            earlier.setattr("tests.loaded.now", lambda: "2015-05-17T12:00:00Z")
            w.load({NINE: 3, TEN: 2})
        w.publish(NINE)
        (note,) = w.verify().notes
        assert "2 rows of 1 hours wait for more than a day: 2015-05-17T10" in note


def test_differences_beyond_a_number_are_counted_not_listed(tmp_path: Path) -> None:
    hours = [f"2015-05-{day:02d}T{hour:02d}" for day in (1, 2) for hour in range(20)]
    with warehouse(tmp_path / "w") as w:
        w.load(dict.fromkeys(hours, 1))
        w.publish(*hours)
        files = [file for files in head_files(w.table, hours).values() for file in files]
        commit(w.table, TableChange(removed=files))
        problems = w.problems()
        assert len(problems) == 21
        assert "20 more hours of loads differ" in problems[-1]


def test_a_topic_with_loads_of_format_2_is_refused_by_name(w: Warehouse) -> None:
    (w.folder / "Old" / "load=0000000001").mkdir(parents=True)
    with pytest.raises(MillraceError, match=r"Old holds loads of the warehouse format 2"):
        verify(VerifyRun(storage=w.storage, catalog=w.catalog))


def test_the_files_of_a_tail_are_noted_only_when_expire_has_not_deleted_them(w: Warehouse) -> None:
    (folder,) = w.topic.glob("rows/0000000001-*")
    tail, other = folder / f"{TAIL}2015-05-17T09-00000-0123abcd.parquet", folder / "other.parquet"
    tail.touch()
    assert w.verify().notes == []
    other.touch()
    (note,) = w.verify().notes
    assert "has 1 files that no manifest names: `millrace expire` deletes them" in note
    other.unlink()
    two_days_ago = time.time() - 2 * 24 * 3600
    os.utime(tail, (two_days_ago, two_days_ago))
    assert w.verify().notes == [note]
    assert w.expire().strays == 1
    assert w.verify().notes == []


def test_every_topic_of_a_warehouse_is_verified_and_what_is_no_topic_is_noted(w: Warehouse) -> None:
    loaded.load(w.storage, "_hidden.events", {NINE: 1})
    (w.folder / "foo").mkdir()
    (w.folder / ".snapshot").mkdir()
    reports = verify(VerifyRun(storage=w.storage, catalog=w.catalog))
    assert [(report.topic, report.problems) for report in reports] == [
        (TOPIC, []),
        ("_hidden.events", []),
        ("foo", []),
    ]
    assert "is not a topic" in reports[-1].notes[0]
    with pytest.raises(MillraceError, match="nothing of Other"):
        verify(VerifyRun(storage=w.storage, catalog=None), "Other")


@pytest.mark.parametrize(
    ("inside", "said"), [(TOPIC, "is one topic of a warehouse"), ("broker", "is a broker's log directory")]
)
def test_what_is_no_warehouse_is_one_clear_line(w: Warehouse, inside: str, said: str) -> None:
    (w.folder / "broker").mkdir(exist_ok=True)
    (w.folder / "broker" / "owner.json").touch()
    with pytest.raises(MillraceError, match=said):
        verify(VerifyRun(storage=open_storage(str(w.folder / inside)), catalog=None))
