"""Reports of the warehouse's reader on loads: their files' rows, once, whatever the loads say."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from millrace.errors import MillraceError
from millrace.records import Message
from millrace_audit.reports.counts import SequenceCounts
from millrace_audit.reports.messages import NOTHING, HourRows, LoadCount, UnkeyedRows
from millrace_warehouse.audit.loads import Loads
from millrace_warehouse.audit.read_back import read_back
from millrace_warehouse.audit.rejected import MOST_REPORTED
from millrace_warehouse.history.expired import Expired
from millrace_warehouse.history.layout import (
    Topic,
    audited_path,
    audited_rows_path,
    expired_path,
    read_edition,
    read_load,
    schema_path,
)
from millrace_warehouse.history.manifest import DataFile, LoadManifest, PreviousPublication, encode
from millrace_warehouse.history.stored import sequences_of
from millrace_warehouse.load.load import load_topic
from millrace_warehouse.load.rejections import RejectedLimits
from millrace_warehouse.load.reload import reload_topic
from millrace_warehouse.storage import open_storage
from millrace_warehouse.storage.interface import Storage
from tests.unit.warehouse.memory_log import HOUR, START, TOPIC, event, filled_log, load_run
from tests.unit.warehouse.mended import Mended, later_event, moved_event


@pytest.fixture
def loaded(tmp_path: Path) -> LoadManifest:
    load_topic(load_run(filled_log(), tmp_path), TOPIC)
    return read_load(Topic(open_storage(str(tmp_path)), TOPIC), 1)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path))


def tell(storage: Storage, loads: Loads, *, killed: bool = False) -> list[LoadCount]:
    """Report the loads as a reader would; a killed one dies before it writes down the last report."""
    told: list[LoadCount] = []
    for manifest in loads.to_report():
        found = read_back(storage, manifest)
        told += loads.records(manifest, found.counts, found)
        if not killed:
            loads.add_report(manifest, found.counts, found.unkeyed)
    return told


def rewrite(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    table = pq.ParquetFile(path).read()
    pq.write_table(change(table), path)


def test_the_files_of_a_load_hold_what_its_tasks_have_counted(storage: Storage, loaded: LoadManifest) -> None:
    found = read_back(storage, loaded)
    assert found.bad == []
    assert found.counts == sequences_of(storage, loaded)
    assert found.counts.total == 180


def test_a_row_that_a_file_lacks_is_not_told_although_the_manifest_names_it(
    tmp_path: Path, storage: Storage, loaded: LoadManifest
) -> None:
    rewrite(tmp_path / TOPIC / loaded.files[0].path, lambda table: table.slice(3))
    (told,) = tell(storage, Loads(Topic(storage, TOPIC)))
    lost = sequences_of(storage, loaded).without(told.counts)
    assert lost.total == 3
    assert told.source.sha256 == loaded.sha256
    assert told.source.manifest == f"file://{tmp_path}/{TOPIC}/loads/0000000001.json"
    assert {end.partition: end.end for end in told.ends} == loaded.ends


def test_a_row_that_a_file_has_with_another_sequence_is_told_with_that(
    tmp_path: Path, storage: Storage, loaded: LoadManifest
) -> None:
    def swap(table: pa.Table) -> pa.Table:
        header = table.column("header").combine_chunks()
        fields = {field.name: header.field(i) for i, field in enumerate(header.type)}
        fields["sequence"] = pc.add(fields["sequence"], 1000)
        swapped = pa.StructArray.from_arrays(list(fields.values()), fields=list(header.type))
        return table.set_column(table.column_names.index("header"), table.schema.field("header"), swapped)

    rows = loaded.files[0].rows
    rewrite(tmp_path / TOPIC / loaded.files[0].path, swap)
    stated, found = sequences_of(storage, loaded), read_back(storage, loaded).counts
    assert stated.without(found).total == found.without(stated).total == rows


@pytest.mark.parametrize("fault", ["gone", "broken"])
def test_a_file_that_is_gone_or_broken_is_named_and_what_it_held_is_not_told(
    tmp_path: Path, storage: Storage, loaded: LoadManifest, fault: str
) -> None:
    path = tmp_path / TOPIC / loaded.files[1].path
    if fault == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-9])
    found = read_back(storage, loaded)
    (line,) = found.bad
    assert line.startswith(f"{TOPIC}/{loaded.files[1].path} ")
    assert found.counts.total == 180 - loaded.files[1].rows


def test_files_that_expire_has_deleted_before_they_were_counted_count_as_their_manifest_says(
    tmp_path: Path, storage: Storage, loaded: LoadManifest
) -> None:
    expire(storage, tmp_path, [file for file in loaded.files if file.hour == loaded.files[0].hour][:1])
    assert read_back(storage, loaded) == dataclasses.replace(
        read_back(storage, loaded), counts=sequences_of(storage, loaded), bad=[]
    )


@pytest.mark.parametrize("time_field", ["", "at"])
def test_rows_without_a_header_of_files_that_expire_has_deleted_are_told_as_not_counted(
    tmp_path: Path, time_field: str
) -> None:
    """With a time field, the hour of the rows is not that of their records' times."""
    scene = Mended(tmp_path)
    scene.log.append(0, [event(0, START), event(1, START), event(2, START + HOUR)])
    scene.load()
    storage, manifest = scene.storage(), read_load(scene.topic, 1)
    (file,) = (file for file in manifest.files if file.hour.endswith("10"))
    expire(storage, tmp_path, [file])
    if time_field:
        path = tmp_path / schema_path(TOPIC, manifest.schema)
        path.write_text(json.dumps({**json.loads(path.read_text()), "time_field": time_field}))
    later_only = [each for each in manifest.sequences if each.window == START + HOUR]
    found = read_back(storage, dataclasses.replace(manifest, sequences=later_only))
    assert (found.bad, found.counts.total, found.unkeyed) == ([], 1, {})
    here, later = HourRows(START, 2), HourRows(START + HOUR, 1)
    assert found.hours == (
        [here, later, HourRows(NOTHING, 0, uncounted=2)]
        if time_field
        else [dataclasses.replace(here, uncounted=2), later]
    )


def expire(storage: Storage, folder: Path, files: Sequence[DataFile]) -> None:
    """Delete files as `millrace expire` does."""
    entry = Expired(
        number=1,
        created="",
        publication=PreviousPublication(path="", sha256=""),
        files=[file.path for file in files],
    )
    storage.create(expired_path(TOPIC, 1), encode(entry))
    for file in files:
        (folder / TOPIC / file.path).unlink()


def test_a_load_is_told_once_and_again_in_the_same_words_by_who_comes_after_a_kill(tmp_path: Path) -> None:
    log, storage = filled_log(), open_storage(str(tmp_path))
    load_topic(load_run(log, tmp_path), TOPIC)
    first = tell(storage, Loads(Topic(storage, TOPIC)), killed=True)
    loads = Loads(Topic(storage, TOPIC))
    again = tell(storage, loads)
    assert [dataclasses.replace(told, time=0) for told in first] == [
        dataclasses.replace(told, time=0) for told in again
    ]
    assert tell(storage, loads) == tell(storage, Loads(Topic(storage, TOPIC))) == []
    log.append_events(0, [START])
    load_topic(load_run(log, tmp_path, "run-2"), TOPIC)
    (told,) = tell(storage, loads)
    assert (told.source.load, told.counts.total) == (2, 1)
    assert tell(storage, Loads(Topic(storage, TOPIC))) == []


def test_an_edition_is_told_as_what_it_has_more_than_the_one_before(tmp_path: Path) -> None:
    scene = Mended(tmp_path)
    scene.log.append(0, [event(0, START), event(1, START), moved_event(2, START, START + 2 * HOUR)])
    scene.load()
    scene.log.append(1, [later_event(3, START + HOUR)])
    scene.load()
    storage = scene.storage()
    before = tell(storage, Loads(Topic(storage, TOPIC)))
    scene.fixed = True
    reload_topic(scene.reload_run(), TOPIC, [1, 2])
    told = tell(storage, Loads(Topic(storage, TOPIC)))
    assert [(each.source.load, each.source.edition) for each in told] == [(1, 2), (2, 2)]
    total = SequenceCounts()
    for each in (*before, *told):
        total.merge(each.counts)
    for each in told:
        total = total.without(each.removed)
    expected = SequenceCounts()
    for load in (1, 2):
        expected.merge(sequences_of(storage, read_edition(Topic(storage, TOPIC), load, 2)))
    assert total == expected
    (tmp_path / TOPIC / "audited" / "0000000001.0002.json.gz").unlink()
    (tmp_path / TOPIC / "audited" / "0000000001.0001.json.gz").write_bytes(b"edited")
    with pytest.raises(MillraceError, match=r"audited/0000000001\.0001\.json\.gz is gone or was edited"):
        tell(storage, Loads(Topic(storage, TOPIC)))


def test_a_manifest_that_was_edited_is_told_nothing_of(
    tmp_path: Path, storage: Storage, loaded: LoadManifest
) -> None:
    path = tmp_path / TOPIC / "loads" / "0000000001.json"
    path.write_text(path.read_text().replace('"rows": 5', '"rows": 6', 1).replace("run-1", "run-9"))
    with pytest.raises(MillraceError, match="the manifest was edited"):
        tell(storage, Loads(Topic(storage, TOPIC)))


def set_aside(scene: Mended) -> None:
    """Two messages that the first decoder rejects, of which one is no event, and one that is empty."""
    scene.log.append(0, [event(0, START), later_event(1, START + HOUR), Message(START, None, b"text")])
    scene.log.append(1, [Message(START + HOUR, None, b"")])
    scene.load()


def test_rejected_messages_are_told_by_window_as_they_lie_in_the_files(tmp_path: Path) -> None:
    scene = Mended(tmp_path)
    set_aside(scene)
    storage = scene.storage()
    (told,) = tell(storage, Loads(Topic(storage, TOPIC)))
    assert [(each.window, each.last, each.messages, each.keyed) for each in told.rejected] == [
        (START, START, 1, 0),
        (START + HOUR, START + HOUR, 2, 0),
    ]
    assert told.rejected[0].reason.startswith("the message does not begin with a zero byte and a schema id")
    assert told.hours == [HourRows(START, 1)]
    scene.fixed = True
    reload_topic(scene.reload_run(), TOPIC, [1])
    (again,) = tell(storage, Loads(Topic(storage, TOPIC)))
    assert [(each.window, each.messages) for each in again.rejected] == [(START, 1), (START + HOUR, 1)]
    assert again.hours == [HourRows(START, 1), HourRows(START + HOUR, 1)]


def test_tombstones_are_told_as_messages_without_a_header_that_lie_in_no_hours_partition(
    tmp_path: Path,
) -> None:
    scene = Mended(tmp_path, fixed=True)
    scene.log.append(0, [event(0, START), Message(START, b"k", None), Message(START + HOUR, b"l", None)])
    scene.log.append(1, [Message(-(1 << 63), b"m", None)])
    scene.load()
    storage = scene.storage()
    (told,) = tell(storage, Loads(Topic(storage, TOPIC)))
    assert (told.rejected, told.hours, told.counts.total) == ([], [HourRows(START, 1)], 1)
    assert told.unkeyed is not None
    assert [(each.rows, each.unfiled) for each in told.unkeyed] == [(1, 1)] * 3
    assert [each.window for each in told.unkeyed][1:] == [START, START + HOUR]
    (path, _) = sorted((tmp_path / TOPIC).glob("rows/*/tombstones-*.parquet"))
    path.unlink()
    found = read_back(storage, read_load(Topic(storage, TOPIC), 1))
    assert [line.rpartition(" is ")[2] for line in found.bad] == ["gone"]


def test_a_rejected_event_has_a_header_where_its_schema_begins_with_one(tmp_path: Path) -> None:
    scene = Mended(tmp_path, fixed=True)
    whole = event(0, START).value
    assert whole is not None
    scene.log.append(0, [event(1, START), Message(START, None, whole[:-1])])
    scene.load()
    (told,) = tell(scene.storage(), Loads(scene.topic))
    assert [(each.messages, each.keyed) for each in told.rejected] == [(1, 1)]


def rewrite_rejected(scene: Mended, change: Callable[[pa.Table], pa.Table]) -> Path:
    (path,) = {scene.folder / TOPIC / f.path for f in read_load(scene.topic, 1).rejected_files[:1]}
    rewrite(path, change)
    return path


@pytest.mark.parametrize("fault", ["older", "gone", "broken"])
def test_of_a_file_that_tells_no_times_any_window_of_the_load_may_be_meant(
    tmp_path: Path, fault: str
) -> None:
    scene = Mended(tmp_path)
    scene.log.append(0, [event(0, START), event(1, START + HOUR), Message(START, None, b"text")])
    scene.load()
    path = rewrite_rejected(scene, lambda rows: rows.drop_columns(["timestamp", "keyed"]))
    if fault == "gone":
        path.unlink()
    elif fault == "broken":
        path.write_bytes(b"PAR1")
    (told,) = tell(scene.storage(), Loads(scene.topic))
    (aside,) = told.rejected
    assert (aside.window, aside.last, aside.messages) == (START, START + HOUR, 1)
    assert aside.reason.startswith("not known which: ")


def test_in_a_load_of_one_window_it_is_known_which_one_is_meant(tmp_path: Path) -> None:
    scene = Mended(tmp_path)
    scene.log.append(0, [event(0, START), Message(START, None, b"text")])
    scene.log.append(1, [event(1, START), Message(START, None, b"more")])
    scene.load()
    path = rewrite_rejected(scene, lambda rows: rows.drop_columns(["timestamp", "keyed"]))
    (told,) = tell(scene.storage(), Loads(scene.topic))
    assert [(each.window, each.last, each.messages) for each in told.rejected] == [(START, START, 2)], path


def test_rejected_messages_of_very_many_windows_are_told_in_a_bounded_number_of_entries(
    tmp_path: Path,
) -> None:
    scene = Mended(tmp_path)
    times = [START + n * 600_000 for n in range(MOST_REPORTED + 50)]
    for at in range(0, len(times), 100):
        scene.log.append(0, [Message(time, None, b"text") for time in times[at : at + 100]])
    scene.load(max_rejected=RejectedLimits.parse("100%"))
    (told,) = tell(scene.storage(), Loads(scene.topic))
    assert len(told.rejected) == MOST_REPORTED + 1
    span = told.rejected[-1]
    assert (span.window, span.last, span.messages) == (times[MOST_REPORTED], times[-1], 50)
    assert span.reason == "not known which: in 50 windows"


def test_rows_without_a_header_are_told_by_the_time_of_their_record(tmp_path: Path) -> None:
    scene = Mended(tmp_path)
    scene.log.append(0, [event(0, START), event(1, START), event(2, START + HOUR)])
    scene.load()
    path = next(f.path for f in read_load(scene.topic, 1).files if f.hour.endswith("10"))

    def without_header(rows: pa.Table) -> pa.Table:
        index = rows.column_names.index("header")
        field = rows.schema.field(index)
        return rows.set_column(index, field, pa.nulls(len(rows), field.type))

    rewrite(tmp_path / TOPIC / path, without_header)
    (told,) = tell(scene.storage(), Loads(scene.topic))
    assert told.unkeyed == [UnkeyedRows(START, 2)]
    assert told.counts.total == 1
    assert told.hours == [HourRows(START, 2), HourRows(START + HOUR, 1)]


def test_what_was_made_in_place_of_loads_that_are_gone_is_told_again(tmp_path: Path) -> None:
    log, storage = filled_log(), open_storage(str(tmp_path))
    load_topic(load_run(log, tmp_path), TOPIC)
    log.append_events(0, [START])
    load_topic(load_run(log, tmp_path, "run-2"), TOPIC)
    loads = Loads(Topic(storage, TOPIC))
    assert len(tell(storage, loads)) == 2
    second = loads.newest()
    assert second == (2, read_load(Topic(storage, TOPIC), 2).sha256)
    for folder in ("loads", "ledger/loads"):
        (tmp_path / TOPIC / folder / "0000000002.json").unlink()
    assert (tell(storage, loads), loads.newest().load) == ([], 1)
    load_topic(load_run(log, tmp_path, "run-3"), TOPIC)
    (told,) = tell(storage, loads)
    assert (told.source.load, loads.newest() == second) == (2, False)


def test_a_reader_that_comes_after_notices_another_load_under_a_number_that_was_told_of(
    tmp_path: Path,
) -> None:
    log, storage = filled_log(), open_storage(str(tmp_path))
    load_topic(load_run(log, tmp_path), TOPIC)
    log.append_events(0, [START])
    load_topic(load_run(log, tmp_path, "run-2"), TOPIC)
    tell(storage, Loads(Topic(storage, TOPIC)))
    for folder in ("loads", "ledger/loads"):
        (tmp_path / TOPIC / folder / "0000000002.json").unlink()
    load_topic(load_run(log, tmp_path, "run-3"), TOPIC)
    (told,) = tell(storage, Loads(Topic(storage, TOPIC)))
    assert told.source.sha256 == read_load(Topic(storage, TOPIC), 2).sha256


def test_loads_that_the_version_before_told_of_are_told_again_with_their_rows(tmp_path: Path) -> None:
    scene = Mended(tmp_path)
    set_aside(scene)
    storage = scene.storage()
    (told,) = tell(storage, Loads(Topic(storage, TOPIC)))
    storage.delete(audited_rows_path(TOPIC))  # as the version before left it
    note = {"manifest": told.source.sha256, "counts": told.counts.to_json()}
    storage.put(audited_path(TOPIC, 1, 1), io.BytesIO(gzip.compress(json.dumps(note).encode())))
    (again,) = tell(storage, Loads(Topic(storage, TOPIC)))
    assert dataclasses.replace(again, time=0) == dataclasses.replace(told, time=0)
    assert tell(storage, Loads(Topic(storage, TOPIC))) == []
