"""Rejected records: no condition fits them, so all their bytes go, or are named."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.errors import MillraceError
from millrace.records import Message
from millrace_warehouse.audit.read_back import read_back
from millrace_warehouse.erase.erasing import EraseResult
from millrace_warehouse.history import erasures, layout
from millrace_warehouse.history.erasures import Erasure, read_done
from millrace_warehouse.load.rejections import REJECTED_SCHEMA, read_without_bytes
from tests.unit.warehouse.erase.scene import (
    ELEVEN,
    MEMBERS,
    NAME,
    OTHER,
    TEN,
    TWELVE,
    UNKNOWN,
    Scene,
    holding,
)
from tests.unit.warehouse.memory_log import START


def named(done: EraseResult) -> list[str]:
    """Return the answer's lines about rejected records."""
    assert done.purged is not None
    return [left.what for left in done.purged.left if "could not be decoded" in left.what]


def test_an_erasure_and_its_dry_run_say_which_rejected_records_stay_and_how_they_go(scene: Scene) -> None:
    scene.send_unknown(times=2)
    scene.load_new()
    would = scene.erase(dry_run=True)
    assert would.rejected == 0
    assert not (scene.topic / "erasures").exists()
    (said,) = named(would)
    assert "2 records" in said
    assert "PageView/rows/*/rejected-*.parquet of load 3:" in said
    assert "--rejected and another --id" in said
    assert named(scene.erase(id="4711")) == [said]
    assert len(holding(scene.folder, NAME)) == 1
    with pytest.raises(MillraceError, match=r"4711 of PageView does not take rejected records.*another --id"):
        scene.erase(id="4711", rejected=True)
    assert named(scene.erase(rejected=True)) == [], "without a name it is another erasure"
    assert holding(scene.folder, NAME) == []


def test_their_bytes_are_taken_out_of_every_file_and_the_account_closes(scene: Scene) -> None:
    scene.send_unknown(times=2)
    scene.send(OTHER)
    scene.load_new()
    scene.publish(TEN, ELEVEN, TWELVE)
    before = layout.read_edition(scene.stored, 3, 1)
    assert scene.erase(rejected=True, dry_run=True).rejected == 2
    assert len(holding(scene.folder, NAME)) == 1
    done = scene.erase(id="4711", rejected=True)
    assert (done.rows, done.rejected, named(done)) == (4, 2, [])
    assert holding(scene.folder, NAME) == []
    after = layout.read_edition(scene.stored, 3, 2)
    assert (after.rejected, after.rows, after.erased) == (before.rejected, before.rows, ())
    written = read_done(scene.stored, "4711")
    assert written is not None
    assert written.rejected == 2
    assert scene.members().count(OTHER) == 5
    assert scene.problems(rows=True) == []
    assert scene.erase(id="4711").rejected == 2
    later = scene.erase(f"memberId = {OTHER}", id="4712")
    assert named(later) == [], "the next edition of load 3 has none either"
    assert scene.problems(rows=True) == []


def test_no_load_and_no_reload_brings_their_bytes_back(scene: Scene) -> None:
    scene.send_unknown()
    scene.load_new()
    scene.erase(id="4711", rejected=True)
    scene.send_unknown()
    scene.send(OTHER)
    assert scene.load_new().rejected == 1
    scene.reload(3)
    assert named(scene.erase(id="4711")) == []
    assert holding(scene.folder, NAME) == []
    assert scene.problems(rows=True) == []


def test_once_an_erasure_is_no_longer_in_force_their_bytes_are_kept_again(scene: Scene) -> None:
    scene.send_unknown()
    scene.load_new()
    scene.erase(id="4711", rejected=True, until="2015-05-18T00:00:00.000Z")
    scene.send_unknown(times=3)
    scene.load_new()
    (said,) = named(scene.erase(id="4711"))
    assert "3 records" in said
    assert "of load 5:" in said
    assert scene.problems(rows=True) == []


def test_what_a_reload_could_decode_is_left_in_no_rejected_file(scene: Scene) -> None:
    scene.send_unknown()
    scene.load_new()
    assert named(scene.erase(id="4711")) != []
    scene.log.schemas[UNKNOWN] = MEMBERS
    (again,) = scene.reload(3)
    assert (again.rejected, again.rows) == (0, 0), "it matches, and the erasure is in force"
    done = scene.erase(id="4711")
    assert (done.rows, named(done)) == (5, [])
    assert holding(scene.folder, NAME) == []
    assert scene.problems(rows=True) == []


def test_a_rejected_file_that_somebody_deleted_holds_up_no_erasure_and_stays_named_by_verify(
    scene: Scene,
) -> None:
    scene.send_unknown()
    scene.send(OTHER)
    scene.load_new()
    (path,) = scene.topic.glob("rows/*/rejected-*.parquet")
    path.unlink()
    assert scene.erase(id="4711", rejected=True).rows == 4
    assert scene.erase(f"memberId = {OTHER}", id="4712").rows == 5
    (problem,) = {each.rpartition("/")[2] for each in scene.problems(rows=True)}
    assert problem == f"{path.name} is missing: restore it from a copy"


def test_a_rejected_file_that_was_changed_may_be_restored_or_deleted(scene: Scene) -> None:
    scene.send_unknown()
    scene.load_new()
    (path,) = scene.topic.glob("rows/*/rejected-*.parquet")
    path.write_bytes(path.read_bytes() + b"!")
    with pytest.raises(MillraceError, match="was changed: restore it from a copy, or delete it, then run ag"):
        scene.erase(id="4711", rejected=True)
    path.unlink()
    assert scene.erase(id="4711").rows == 4


def test_an_erasure_counts_the_records_whose_bytes_it_took_and_no_others(scene: Scene) -> None:
    scene.send_unknown(times=2)
    scene.load_new()
    assert scene.erase(id="4711", rejected=True).rejected == 2
    assert scene.erase(f"memberId = {OTHER}", id="4712", rejected=True).rejected == 0
    scene.send_unknown(times=3)  # no load keeps their bytes now
    scene.load_new()
    assert scene.erase(id="4711").rejected == 2


def test_of_two_runs_with_one_new_name_the_one_that_takes_more_is_told_that_it_lost(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.send_unknown()
    scene.load_new()
    record = erasures.create_erasure

    def behind_another(topic: layout.Topic, erasure: Erasure, where: str) -> Erasure:
        record(topic, dataclasses.replace(erasure, rejected=False), where)
        return record(topic, erasure, where)

    monkeypatch.setattr(erasures, "create_erasure", behind_another)
    with pytest.raises(MillraceError, match=r"4711 of PageView does not take rejected records.*another --id"):
        scene.erase(id="4711", rejected=True)


def test_files_of_a_reload_that_ran_across_an_erasure_are_named_until_it_is_given_again(scene: Scene) -> None:
    scene.send_unknown()
    scene.load_new()
    scene.publish(TEN, ELEVEN, TWELVE)
    scene.log.schemas[UNKNOWN] = MEMBERS
    begun: list[str] = []

    def meanwhile(step: str) -> None:
        if step == "written" and not begun:
            begun.append(step)
            scene.erase(id="4711")

    scene.reload(3, progress=meanwhile)
    assert begun
    assert layout.editions_of(scene.stored)[3] == [2, 3], "it was made anew without what matches"
    assert holding(scene.folder, NAME) != []
    (problem,) = scene.problems()
    assert "was begun before erasure 4711" in problem
    assert problem.endswith("run `millrace erase PageView --id 4711` again")
    scene.erase(id="4711")
    assert holding(scene.folder, NAME) == []
    assert scene.problems(rows=True) == []


@pytest.mark.parametrize("load", [1, 3])
def test_a_reload_when_an_erasure_is_over_and_its_condition_gone_is_published(
    scene: Scene, load: int
) -> None:
    scene.publish(TEN, ELEVEN, TWELVE)
    scene.erase(f"memberId = {OTHER}", id="4711", until="2015-05-18T00:00:00.000Z")
    scene.expire()
    assert not (scene.topic / "erasures" / "4711.where").exists()
    scene.reload(load)  # load 3 is the erasure's own, without rows
    scene.publish()
    assert scene.problems(rows=True) == []


def test_bytes_that_came_back_are_named_by_verify(scene: Scene) -> None:
    scene.send_unknown()
    scene.load_new()
    scene.erase(id="4711", rejected=True)
    (kept,) = scene.topic.glob("erasures/4711.json")
    record = kept.read_text()
    kept.write_text(record.replace('"rejected": true', '"rejected": false'))
    scene.send_unknown()
    scene.load_new()
    kept.write_text(record)
    assert scene.problems() == []
    assert any("of rejected records that erasure 4711 takes" in each for each in scene.problems(rows=True))


def test_verify_and_erase_do_not_read_the_bytes_which_may_be_gigabytes_unpacked(scene: Scene) -> None:
    scene.send_unknown()
    scene.load_new()
    (path,) = scene.topic.glob("rows/*/rejected-*.parquet")
    (record,) = pq.read_table(path, partitioning=None).to_pylist()
    raw = pq.read_metadata(path).row_group(0).column(REJECTED_SCHEMA.get_field_index("raw"))
    first = raw.dictionary_page_offset or raw.data_page_offset
    content = bytearray(path.read_bytes())
    content[first : first + raw.total_compressed_size] = bytes(raw.total_compressed_size)
    path.write_bytes(content)
    with pytest.raises(OSError, match="deserialize"):
        pq.read_table(path, partitioning=None)
    (changed,) = scene.problems(rows=True)
    assert "was changed" in changed
    assert read_without_bytes(path).to_pylist() == [{**record, "raw": None}]


@pytest.mark.parametrize("columns", [6, 8])
def test_the_bytes_of_a_file_of_a_version_before_can_be_taken_out(scene: Scene, columns: int) -> None:
    record = {"partition": 0, "offset": 5, "records": 1, "schema_id": 9, "reason": "unknown", "raw": b"jane"}
    path = scene.folder / "rejected.parquet"
    pq.write_table(pa.Table.from_pylist([record], pa.schema(list(REJECTED_SCHEMA)[:columns])), path)
    missing = dict.fromkeys(REJECTED_SCHEMA.names)
    assert read_without_bytes(path).to_pylist() == [{**missing, **record, "raw": None}]


def test_keys_of_tombstones_and_rejected_records_are_named_and_taken_with_the_bytes(scene: Scene) -> None:
    key = NAME.encode()

    def send() -> None:
        scene.log.append(0, [Message(START, key, None), Message(START, key, b"no event")])

    send()
    scene.load_new()
    first = scene.erase(id="4710")
    assert first.purged is not None
    (left,) = [left.what for left in first.purged.left if "tombstones" in left.what]
    assert left.startswith("1 tombstones with their keys in PageView/rows/*/tombstones-*.parquet of load 3")
    assert len(named(first)) == 1
    assert len(holding(scene.folder, NAME)) == 2
    done = scene.erase(id="4711", rejected=True)
    assert (done.rejected, holding(scene.folder, NAME)) == (2, [])
    replaced = read_back(scene.storage, layout.read_edition(scene.stored, 3, 1))
    assert replaced.bad == [], "the erasure has written down that it deleted the file"
    assert done.purged is not None
    assert not [left for left in done.purged.left if "tombstones" in left.what]
    send()
    scene.load_new()
    assert holding(scene.folder, NAME) == [], "the erasure is in force"
    for load, edition in ((3, 2), (6, 1)):
        manifest = layout.read_edition(scene.stored, load, edition)
        assert (manifest.tombstones, manifest.rejected) == (1, 1)
    assert scene.problems(rows=True) == []
    (path,) = scene.topic.glob("rows/0000000006-*/tombstones-*.parquet")
    assert pq.read_table(path, partitioning=None)["key"].null_count == 1
