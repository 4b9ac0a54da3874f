"""Verification: everything that can be taken away, cut or edited is named."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from millrace_warehouse.table.publish import publish_hours

from millrace.errors import MillraceError
from millrace_warehouse.history.manifest import LoadManifest, decode, encode, sealed
from millrace_warehouse.load.load import load_topic
from millrace_warehouse.storage.filesystem import LocalFilesystem
from millrace_warehouse.verify import verify
from tests.unit.warehouse.memory_log import (
    START,
    TOPIC,
    MemoryLog,
    event,
    filled_log,
    hourly_run,
    load_run,
    no_progress,
)

HOURS = ["2015-05-17T10", "2015-05-17T11", "2015-05-17T12"]


@pytest.fixture(scope="module")
def log() -> MemoryLog:
    return filled_log()


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory, log: MemoryLog) -> Path:
    """Three loads, the last one with a rejected record, and their hours, one of them in two revisions."""
    folder = tmp_path_factory.mktemp("published")
    load_topic(load_run(log, folder), TOPIC)
    publish_hours(hourly_run(folder), TOPIC, HOURS)
    log.append_events(1, [START + n for n in range(25)])
    load_topic(load_run(log, folder, "run-2"), TOPIC)
    log.append(0, [event(log.sequence, START), dataclasses.replace(event(0, START), value=b"?")])
    load_topic(load_run(log, folder, "run-3"), TOPIC)
    publish_hours(hourly_run(folder), TOPIC, HOURS)
    return folder


@pytest.fixture
def warehouse(tmp_path: Path, published: Path) -> Path:
    return Path(shutil.copytree(published, tmp_path / "warehouse"))


def problems(warehouse: Path, log: MemoryLog | None = None) -> list[str]:
    client: Any = log
    reports = verify(LocalFilesystem(str(warehouse)), None, client, no_progress)
    return [problem for report in reports for problem in report.problems]


def load_of(warehouse: Path, number: int) -> Path:
    return warehouse / TOPIC / f"load={number:010d}"


def data_file(warehouse: Path, number: int = 1) -> Path:
    return min(load_of(warehouse, number).glob("date=*/hour=*/*.parquet"))


def rewrite(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Replace a Parquet file and make the manifest agree with its size and hash: only its rows are wrong."""
    pq.write_table(change(pq.read_table(path, partitioning=None)), path)
    fs = LocalFilesystem(str(path.parents[3]))
    folder = path.parents[2]
    inside = path.relative_to(folder).as_posix()

    def accept(manifest: LoadManifest) -> LoadManifest:
        files = [
            dataclasses.replace(
                file, bytes=path.stat().st_size, sha256=fs.sha256(str(path.relative_to(fs.root)))
            )
            if file.path == inside
            else file
            for file in manifest.files
        ]
        return dataclasses.replace(manifest, files=files)

    edit(folder, accept)


def edit(folder: Path, change: Callable[[LoadManifest], LoadManifest]) -> None:
    """Edit a load's manifest and seal it anew, as somebody with the source code would."""
    path = folder / "_manifest.json"
    path.write_bytes(encode(sealed(change(decode(LoadManifest, path.read_bytes(), "here")))))


def test_what_was_published_verifies(warehouse: Path, log: MemoryLog) -> None:
    reports = verify(LocalFilesystem(str(warehouse)), None, log, no_progress)
    assert [(report.table, report.problems, report.notes) for report in reports] == [
        (TOPIC, [], []),
        (f"{TOPIC}.hourly", [], []),
    ]
    assert [report.rows for report in reports] == [206, 206]
    assert [report.folders for report in reports] == [3, 4]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_load_that_is_removed_is_named_with_its_offsets(warehouse: Path, number: int) -> None:
    manifest = decode(LoadManifest, (load_of(warehouse, number) / "_manifest.json").read_bytes(), "here")
    shutil.rmtree(load_of(warehouse, number))
    shutil.rmtree(warehouse / f"{TOPIC}.hourly")
    (found, *_) = problems(warehouse)
    assert found.startswith(f"{TOPIC}/load={number:010d} is missing")
    for part in manifest.partitions:
        if part.end > part.start:
            assert f"{TOPIC}-{part.partition} [{part.start}, {part.end})" in found


@pytest.mark.parametrize("number", [1, 2])
def test_a_load_that_is_removed_with_its_ledger_entry_is_named_by_its_neighbours(
    warehouse: Path, number: int
) -> None:
    shutil.rmtree(load_of(warehouse, number))
    (warehouse / TOPIC / "_ledger" / f"load={number:010d}.json").unlink()
    (found, *_) = problems(warehouse)
    assert found.startswith(f"{TOPIC}/load={number:010d} is missing")
    assert f"{TOPIC}-1 [" in found


def test_the_last_load_removed_with_its_ledger_entry_is_missed_by_the_hours(warehouse: Path) -> None:
    shutil.rmtree(load_of(warehouse, 3))
    (warehouse / TOPIC / "_ledger" / "load=0000000003.json").unlink()
    assert any("was made from another PageView/load=0000000003" in problem for problem in problems(warehouse))


@pytest.mark.parametrize("cut", [0, 4, -1])
def test_a_file_that_was_cut_is_named(warehouse: Path, cut: int) -> None:
    path = data_file(warehouse)
    path.write_bytes(path.read_bytes()[:cut])
    (found, *_) = problems(warehouse)
    assert str(path.relative_to(warehouse)) in found
    assert "bytes" in found


def test_a_single_changed_bit_is_named(warehouse: Path) -> None:
    path = data_file(warehouse)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert problems(warehouse)[0].startswith(str(path.relative_to(warehouse)))


def test_a_file_that_is_missing_or_nobody_s_is_named(warehouse: Path) -> None:
    path = data_file(warehouse)
    stray = path.with_name("stray.parquet")
    path.rename(stray)
    found = problems(warehouse)
    assert any(str(path.relative_to(warehouse)) in each and "missing" in each for each in found)
    assert any(str(stray.relative_to(warehouse)) in each and "not in the manifest" in each for each in found)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_an_edited_manifest_is_named(warehouse: Path, number: int) -> None:
    path = load_of(warehouse, number) / "_manifest.json"
    values = json.loads(path.read_text())
    values["created"] = "2001-01-01T00:00:00Z"
    path.write_text(json.dumps(values))
    assert any(f"load={number:010d}" in each and "was edited" in each for each in problems(warehouse))


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_manifest_edited_and_sealed_anew_is_named(warehouse: Path, number: int) -> None:
    edit(load_of(warehouse, number), lambda m: dataclasses.replace(m, created="2001-01-01T00:00:00Z"))
    assert any(f"load={number:010d}: published was a manifest" in each for each in problems(warehouse))
    if number < 3:
        shutil.rmtree(warehouse / TOPIC / "_ledger")  # even then its successor knows it by its hash
        assert any(f"load={number + 1:010d}: it follows a load" in each for each in problems(warehouse))


def test_a_manifest_that_is_no_json_is_named(warehouse: Path) -> None:
    path = load_of(warehouse, 2) / "_manifest.json"
    path.write_bytes(path.read_bytes()[:100])
    assert any("load=0000000002/_manifest.json is not JSON" in each for each in problems(warehouse))


def test_a_ledger_without_an_entry_is_a_note_for_the_newest_load_only(warehouse: Path) -> None:
    ledger = warehouse / TOPIC / "_ledger"
    (ledger / "load=0000000003.json").unlink()
    loads, _ = verify(LocalFilesystem(str(warehouse)), None, None, no_progress)
    assert loads.problems == []
    assert "not in the ledger yet" in loads.notes[0]
    (ledger / "load=0000000001.json").unlink()
    assert problems(warehouse) == [f"{TOPIC}/load=0000000001 is not in the ledger: the ledger was edited"]


def test_rows_that_differ_from_the_manifest_are_named(warehouse: Path) -> None:
    rewrite(data_file(warehouse), lambda table: table.slice(1))
    found = problems(warehouse)
    assert any("rows, the manifest states" in each and "offsets [" in each for each in found)


def test_a_row_that_is_there_twice_in_place_of_another_is_named(warehouse: Path) -> None:
    rewrite(
        data_file(warehouse),
        lambda table: pa.concat_tables([table.slice(0, 1), table.slice(0, len(table) - 1)]),
    )
    assert any("is there 2 times" in each for each in problems(warehouse))


def test_sequences_that_differ_from_the_data_are_named(warehouse: Path) -> None:
    def forget(manifest: LoadManifest) -> LoadManifest:
        first, *rest = manifest.sequences
        return dataclasses.replace(manifest, sequences=[dataclasses.replace(first, ranges=((0, 99),)), *rest])

    edit(load_of(warehouse, 1), forget)
    assert any("sequences of web1, instance 1 differ" in each for each in problems(warehouse))


def test_a_row_in_the_wrong_hour_is_named(warehouse: Path) -> None:
    def move(table: pa.Table) -> pa.Table:
        rows = table.to_pylist()
        rows[0]["header"]["time"] = rows[0]["header"]["time"].replace(hour=3)
        return pa.Table.from_pylist(rows, table.schema)

    rewrite(data_file(warehouse), move)
    assert any("2015-05-17T03: it lies in the wrong hour" in each for each in problems(warehouse))


def test_rejected_records_that_differ_from_the_manifest_are_named(warehouse: Path) -> None:
    (path,) = load_of(warehouse, 3).glob("_rejected/*")
    pq.write_table(pq.read_table(path).slice(1), path)
    assert any("_rejected" in each for each in problems(warehouse))


def test_something_that_is_no_load_is_named(warehouse: Path) -> None:
    (warehouse / TOPIC / "load=1").mkdir()
    (warehouse / TOPIC / "load=1" / "copy.parquet").touch()
    (warehouse / TOPIC / "load=0000000009").mkdir()  # empty: a rename goes through it
    assert problems(warehouse) == [f"{TOPIC}/load=1 is nothing that Millrace writes: move it away"]


@pytest.mark.parametrize("stray", ["copy.parquet", "hour=10/copy.parquet", "hour=10/rev=01/copy.parquet"])
def test_something_that_is_no_revision_is_named(warehouse: Path, stray: str) -> None:
    path = warehouse / f"{TOPIC}.hourly" / "date=2015-05-17" / stray
    path.parent.mkdir(exist_ok=True)
    path.touch()
    (found,) = problems(warehouse)
    assert found.endswith("is nothing that Millrace writes: move it away")
    assert found.startswith(f"{TOPIC}.hourly/date=2015-05-17/{stray.removesuffix('/copy.parquet')}")


def test_rows_that_came_late_and_are_in_no_revision_are_a_note(tmp_path: Path) -> None:
    log = filled_log()
    load_topic(load_run(log, tmp_path), TOPIC)
    publish_hours(hourly_run(tmp_path), TOPIC, HOURS[:2])
    log.append_events(1, [START, START, START + 7_200_000])
    load_topic(load_run(log, tmp_path, "late"), TOPIC)
    _, hours = verify(LocalFilesystem(str(tmp_path)), None, None, no_progress)
    assert hours.problems == []
    (note,) = hours.notes
    assert note.startswith(f"{TOPIC}.hourly 2015-05-17T10: 2 rows came late")


def test_a_topic_with_a_name_like_a_hidden_file_s_is_verified(tmp_path: Path) -> None:
    log = MemoryLog(1, "_events")
    log.append_events(0, [START])
    load_topic(load_run(log, tmp_path), "_events")
    (tmp_path / ".snapshot" / "other").mkdir(parents=True)
    (report,) = verify(LocalFilesystem(str(tmp_path)), None, None, no_progress)
    assert (report.table, report.rows, report.problems) == ("_events", 1, [])


def test_leftovers_of_a_killed_run_are_notes(warehouse: Path, log: MemoryLog) -> None:
    (warehouse / TOPIC / "_staging" / "abandoned").mkdir(parents=True)
    plan = (warehouse / TOPIC / "_plans" / "run-3.json").read_text()
    (warehouse / TOPIC / "_plans" / "run-4.json").write_text(
        plan.replace("run-3", "run-4").replace('"end": ', '"end": 1')
    )
    loads, _ = verify(LocalFilesystem(str(warehouse)), None, None, no_progress)
    assert loads.problems == []
    assert len(loads.notes) == 2


@pytest.mark.parametrize("hour", ["10", "12"])
def test_a_revision_that_is_removed_is_named(warehouse: Path, hour: str) -> None:
    shutil.rmtree(warehouse / f"{TOPIC}.hourly" / "date=2015-05-17" / f"hour={hour}")
    assert any(f"hour={hour}/rev=1 is missing" in each for each in problems(warehouse))


def test_a_revision_with_other_rows_than_its_loads_is_named(warehouse: Path) -> None:
    from millrace_warehouse.history.manifest import HourManifest

    folder = warehouse / f"{TOPIC}.hourly" / "date=2015-05-17" / "hour=12" / "rev=1"
    (path,) = folder.glob("*.parquet")
    table = pq.read_table(path, partitioning=None)
    pq.write_table(pa.concat_tables([table.slice(0, 1), table.slice(0, len(table) - 1)]), path)
    fs = LocalFilesystem(str(folder))
    manifest = decode(HourManifest, (folder / "_manifest.json").read_bytes(), "here")
    (file,) = manifest.files
    file = dataclasses.replace(file, bytes=path.stat().st_size, sha256=fs.sha256(path.name))
    (folder / "_manifest.json").write_bytes(encode(sealed(dataclasses.replace(manifest, files=[file]))))
    assert any("are not those of its loads" in each for each in problems(warehouse))


def test_a_log_that_no_longer_holds_what_was_loaded_is_named(warehouse: Path, log: MemoryLog) -> None:
    other = MemoryLog()
    other.topic_id = log.topic_id
    assert any("messages are lost" in each for each in problems(warehouse, other))
    assert any("created anew on memory:9092" in each for each in problems(warehouse, MemoryLog()))
    other.cluster_id = "millrace-another"
    assert any("is another cluster (millrace-another)" in each for each in problems(warehouse, other))
    assert any("its log is gone" in each for each in problems(warehouse, MemoryLog(topic="Other")))


def test_what_is_not_loaded_yet_is_a_note(warehouse: Path, log: MemoryLog) -> None:
    longer = MemoryLog()
    longer.topic_id = log.topic_id
    longer.partitions = {**log.partitions, 1: dataclasses.replace(log.partitions[1])}
    longer.partitions[1].high_watermark += 10
    loads, _ = verify(LocalFilesystem(str(warehouse)), None, longer, no_progress)
    assert loads.problems == []
    assert "not loaded yet" in loads.notes[0]


def test_what_is_no_table_is_named_unless_it_is_hidden(warehouse: Path) -> None:
    for name in ("stray.txt", ".DS_Store", "_temporary"):
        (warehouse / name).write_text("x")
    (warehouse / "foo").mkdir()
    reports = verify(LocalFilesystem(str(warehouse)), None, None, no_progress)
    strays = {report.table: report for report in reports if not report.table.startswith(TOPIC)}
    assert list(strays) == ["foo", "stray.txt"]
    assert [len(report.notes) for report in strays.values()] == [1, 1]
    assert [problem for report in reports for problem in report.problems] == []


@pytest.mark.parametrize("table", [TOPIC, f"{TOPIC}.hourly"])
def test_a_table_in_the_place_of_its_warehouse_is_one_clear_line(warehouse: Path, table: str) -> None:
    with pytest.raises(MillraceError, match="is one table of a warehouse: name the folder above it"):
        problems(warehouse / table)


def test_a_warehouse_without_the_topic_is_one_clear_line(warehouse: Path) -> None:
    with pytest.raises(MillraceError, match="nothing of Nope"):
        verify(LocalFilesystem(str(warehouse)), "Nope", None, no_progress)
    with pytest.raises(MillraceError, match="check the path"):
        verify(LocalFilesystem(str(warehouse / "nowhere")), None, None, no_progress)
