"""A catalog from a copy that is older than what was compacted and swept since, or none at all."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.errors import MillraceError
from millrace_warehouse.publish import committer
from tests.loaded import offsets
from tests.published import Warehouse, warehouse

NINE, TEN = "2015-05-17T09", "2015-05-17T10"
A_DAY = 26 * 3600.0


@pytest.fixture
def w(tmp_path: Path) -> Iterator[Warehouse]:
    with warehouse(tmp_path / "w") as made:
        for _ in range(3):
            made.load({NINE: 3, TEN: 2})
        made.publish(NINE, TEN)
        yield made


def swept(w: Warehouse, after_s: float) -> bytes:
    """Compact, and expire what the compacted files stand for; the catalog as it was before."""
    copy = (w.folder / "catalog.db").read_bytes()
    w.compact()
    w.forget_snapshots()
    assert w.expire(clock=lambda: time.time() + after_s).data_files == 6
    return copy


def restored(w: Warehouse, copy: bytes) -> None:
    w.catalog.close()
    (w.folder / "catalog.db").write_bytes(copy)


@pytest.mark.parametrize(
    ("after_s", "words"), [(A_DAY, "names 6 files that are gone"), (10 * A_DAY, "deleted")]
)
def test_nothing_is_swept_for_a_table_whose_files_are_gone(w: Warehouse, after_s: float, words: str) -> None:
    restored(w, swept(w, after_s))
    left = sorted(w.topic.glob("compacted/*/*.parquet"))
    with pytest.raises(MillraceError, match=words):
        w.expire(clock=lambda: time.time() + 2 * after_s)
    assert sorted(w.topic.glob("compacted/*/*.parquet")) == left


def test_a_rebuild_forgets_old_snapshots_whose_manifests_are_gone(
    w: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "SNAPSHOTS", 4)
    for _ in range(3):
        w.load({NINE: 1})
        w.publish()
    copy = (w.folder / "catalog.db").read_bytes()
    for _ in range(2):
        w.load({NINE: 1})
        w.publish()
    w.expire(clock=lambda: time.time() + 10 * A_DAY)
    restored(w, copy)
    w.publish(rebuild=True)
    w.expire(clock=lambda: time.time() + 20 * A_DAY)
    assert len(offsets(w.table)) == 20
    assert w.problems(rows=True) == []


@pytest.mark.slow
@pytest.mark.parametrize(("more", "after_s"), [(0, A_DAY), (0, 10 * A_DAY), (3, 10 * A_DAY), (22, A_DAY)])
def test_a_rebuild_makes_the_tables_again_whatever_of_their_own_files_is_gone(
    w: Warehouse, more: int, after_s: float
) -> None:
    copy = (w.folder / "catalog.db").read_bytes()
    for _ in range(more):
        w.load({NINE: 1})
        w.publish()
    w.compact()
    w.forget_snapshots()
    w.expire(clock=lambda: time.time() + after_s)
    before = offsets(w.table)
    restored(w, copy)
    result = w.publish(rebuild=True)
    assert result.publication is not None
    assert (result.publication.rows, dict(result.publication.lost)) == (15 + more, {})
    assert offsets(w.table) == before
    assert w.problems(rows=True) == []
    assert not w.publish().published


@pytest.mark.slow
def test_a_folder_from_before_its_first_publication_is_published_again_by_a_rebuild(tmp_path: Path) -> None:
    with warehouse(tmp_path / "w") as w:
        w.load({NINE: 3, TEN: 2})
        shutil.copytree(w.topic, tmp_path / "copy")
        w.publish(NINE, TEN)
        before = offsets(w.table)
        shutil.rmtree(w.topic)
        shutil.copytree(tmp_path / "copy", w.topic)
        with pytest.raises(MillraceError, match=r"names a file that is gone .* --rebuild"):
            w.publish(NINE, TEN)
        assert w.publish(NINE, TEN, rebuild=True).published
        assert offsets(w.table) == before
        assert w.problems(rows=True) == []


def test_of_two_compactions_that_overlap_a_rebuild_takes_no_row_twice_and_leaves_none_out(
    tmp_path: Path,
) -> None:
    with warehouse(tmp_path / "w") as w:
        w.load({NINE: 12}, files_per_hour=6)
        w.publish(NINE)
        before = offsets(w.table)
        size = w.data_files()[0].stat().st_size
        begun: list[str] = []

        def another(step: str) -> None:
            if step == "written" and not begun:
                begun.append(step)
                w.compact(target_bytes=3 * size)

        assert w.compact(target_bytes=2 * size, progress=another).hours == []
        live = {file.file.file_path.rpartition("/")[2] for file in w.table.scan().plan_files()}
        w.forget_snapshots()
        assert w.expire(clock=lambda: time.time() + 23 * 3600).data_files == 6
        files = sorted(w.topic.glob("compacted/*/*.parquet"))
        won, lost = ([file for file in files if (file.name in live) is wins] for wins in (True, False))
        assert (len(won), len(lost)) == (2, 3)
        for age, file in enumerate([lost[0], won[0], lost[1], won[1], lost[2]]):
            os.utime(file, (time.time() - 1000 + age,) * 2)
    (tmp_path / "w" / "catalog.db").unlink()
    with warehouse(tmp_path / "w") as w:
        assert w.publish(rebuild=True).published
        assert offsets(w.table) == before
        assert w.problems(rows=True) == []
