"""Rejected records: no condition fits them, so all their bytes go, or are named."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

from millrace.errors import MillraceError
from millrace_warehouse.erase.erasing import EraseResult
from millrace_warehouse.history import layout
from millrace_warehouse.history.erasures import read_done
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
from tests.unit.warehouse.memory_log import TOPIC


def named(done: EraseResult) -> list[str]:
    """What the answer says of rejected records."""
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
    with pytest.raises(MillraceError, match=r"4711 of PageView leaves rejected records alone.*another --id"):
        scene.erase(id="4711", rejected=True)
    assert named(scene.erase(rejected=True)) == [], "without a name it is another erasure"
    assert holding(scene.folder, NAME) == []


def test_their_bytes_are_taken_out_of_every_file_and_the_account_closes(scene: Scene) -> None:
    scene.send_unknown(times=2)
    scene.send(OTHER)
    scene.load_new()
    scene.publish(TEN, ELEVEN, TWELVE)
    before = layout.read_edition(scene.storage, TOPIC, 3, 1)
    assert scene.erase(rejected=True, dry_run=True).rejected == 2
    assert len(holding(scene.folder, NAME)) == 1
    done = scene.erase(id="4711", rejected=True)
    assert (done.rows, done.rejected, named(done)) == (4, 2, [])
    assert holding(scene.folder, NAME) == []
    after = layout.read_edition(scene.storage, TOPIC, 3, 2)
    assert (after.rejected, after.rows, after.erased) == (before.rejected, before.rows, ())
    written = read_done(scene.storage, TOPIC, "4711")
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
    assert any("the bytes of records that erasure 4711 takes" in each for each in scene.problems(rows=True))


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
