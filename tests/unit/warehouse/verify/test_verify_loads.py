"""Verification of what real loads write: rejected records, sequence numbers, and the log they came from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from millrace_warehouse.history.manifest import LoadManifest, decode, encode, sealed
from millrace_warehouse.load.load import load_topic
from millrace_warehouse.storage import measure
from tests.published import Warehouse, warehouse
from tests.unit.warehouse.memory_log import START, TOPIC, MemoryLog, event, filled_log, load_run

HOURS = ["2015-05-17T10", "2015-05-17T11", "2015-05-17T12"]


@pytest.fixture(scope="module")
def log() -> MemoryLog:
    return filled_log()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory, log: MemoryLog) -> Path:
    """Three loads, the last one with a rejected record, and their hours."""
    folder = tmp_path_factory.mktemp("loads") / "w"
    with warehouse(folder) as w:
        load_topic(load_run(log, folder), TOPIC)
        w.publish(*HOURS)
        log.append_events(1, [START + n for n in range(25)])
        load_topic(load_run(log, folder, "run-2"), TOPIC)
        log.append(0, [event(log.sequence, START), dataclasses.replace(event(0, START), value=b"?")])
        load_topic(load_run(log, folder, "run-3"), TOPIC)
        w.publish()
    return folder


def edit(w: Warehouse, load: int, change: Callable[[LoadManifest], LoadManifest]) -> None:
    """Edit a load's manifest and seal it anew, as somebody with the source code would."""
    path = w.topic / "loads" / f"{load:010d}.json"
    path.write_bytes(encode(sealed(change(decode(LoadManifest, path.read_bytes(), "here")))))


def test_real_loads_and_their_log_have_neither_problems_nor_notes(w: Warehouse, log: MemoryLog) -> None:
    report = w.verify(rows=True, client=log)
    assert (report.problems, report.notes) == ([], [])
    assert (report.loads, report.rows, report.published) == (3, 206, 206)


def test_real_loads_verify_when_they_are_compacted_and_expired(w: Warehouse, log: MemoryLog) -> None:
    w.compact()
    w.forget_snapshots()
    assert w.expire().data_files > 0
    report = w.verify(rows=True, client=log)
    assert report.problems == []
    assert report.expired > 0
    assert report.published == 206


def test_a_file_of_rejected_records_that_is_gone_or_changed_is_named(w: Warehouse) -> None:
    (path,) = w.topic.glob("rows/0000000003-*/rejected-*.parquet")
    content = path.read_bytes()
    path.write_bytes(content + b"x")
    assert any(path.name in problem and "bytes, not the" in problem for problem in w.problems())
    path.unlink()
    assert any(f"{path.name} is missing" in problem for problem in w.problems(rows=True))


def test_rejected_records_that_differ_from_the_manifest_are_named(w: Warehouse) -> None:
    (path,) = w.topic.glob("rows/0000000003-*/rejected-*.parquet")
    pq.write_table(pq.read_table(path).slice(1), path)
    written = measure(w.storage, path.relative_to(w.folder).as_posix())

    def accept(manifest: LoadManifest) -> LoadManifest:
        (file,) = manifest.rejected_files
        file = dataclasses.replace(file, bytes=written.bytes, sha256=written.sha256)
        return dataclasses.replace(manifest, rejected_files=[file])

    edit(w, 3, accept)
    assert any("its rejected records are {} by partition" in problem for problem in w.problems(rows=True))


def test_sequences_that_differ_from_the_rows_are_named(w: Warehouse) -> None:
    def forget(manifest: LoadManifest) -> LoadManifest:
        first, *rest = manifest.sequences
        return dataclasses.replace(manifest, sequences=[dataclasses.replace(first, ranges=((0, 99),)), *rest])

    edit(w, 1, forget)
    assert any("sequences of web1, instance 1 differ" in problem for problem in w.problems(rows=True))


def test_a_log_that_no_longer_holds_what_was_loaded_is_named(w: Warehouse, log: MemoryLog) -> None:
    other = MemoryLog()
    other.topic_id = log.topic_id
    assert any("messages are lost" in problem for problem in w.problems(client=other))
    assert any("recreated on memory:9092" in problem for problem in w.problems(client=MemoryLog()))
    other.cluster_id = "millrace-another"
    assert any("is another cluster (millrace-another)" in problem for problem in w.problems(client=other))
    assert any("its log is gone" in problem for problem in w.problems(client=MemoryLog(topic="Other")))


def test_what_is_not_loaded_yet_is_a_note(w: Warehouse, log: MemoryLog) -> None:
    longer = MemoryLog()
    longer.topic_id = log.topic_id
    longer.partitions = {**log.partitions, 1: dataclasses.replace(log.partitions[1])}
    longer.partitions[1].high_watermark += 10
    report = w.verify(client=longer)
    assert report.problems == []
    assert any("not loaded yet" in note for note in report.notes)


def test_a_plan_that_no_load_reaches_is_a_note(w: Warehouse) -> None:
    plan = (w.topic / "plans" / "run-3.json").read_text()
    longer = plan.replace("run-3", "run-4").replace('"end": ', '"end": 1')
    (w.topic / "plans" / "run-4.json").write_text(longer)
    report = w.verify()
    assert report.problems == []
    assert report.notes == ["run run-4 is unfinished: no load reaches the end it planned"]


def test_a_rebuilt_table_verifies_and_rows_that_are_lost_are_named_until_they_are_read_again(
    tmp_path: Path,
) -> None:
    nine = "2015-05-17T09"
    with warehouse(tmp_path / "w") as w:
        w.load({nine: 3})
        w.load({nine: 2})
        w.publish(nine)
        w.catalog.drop_table(w.table.name())
        w.publish(rebuild=True)
        assert w.problems(rows=True) == []
        w.catalog.drop_table(w.table.name())
        for path in w.data_files(1):
            path.unlink()
        w.publish(rebuild=True)
        problems = w.problems()
        assert any("3 rows of load 1 in 2015-05-17T09 are lost" in problem for problem in problems)
        w.read_again(1, {nine: 3})
        w.publish()
        report = w.verify(rows=True)
        assert (report.problems, report.published) == ([], 5)
