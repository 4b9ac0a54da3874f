"""Faults at every commit of branch `live`: all or nothing, made whole by the next call, and `main` stays."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from itertools import repeat
from pathlib import Path

import pytest

from millrace.errors import MillraceError
from tests.published import TOPIC, warehouse
from tests.unit.warehouse.load.test_power_cut import Disk
from tests.unit.warehouse.publish import live_scenes
from tests.unit.warehouse.publish.live_scenes import (
    SCENES,
    Seen,
    before_each_file,
    check_all_or_nothing,
    look,
)
from tests.unit.warehouse.publish.test_faults import FAULTS, faulty

LEAST_FILES = 1
"""Every commit writes the table's metadata."""
scenes = pytest.mark.parametrize("scene", SCENES)


@pytest.mark.parametrize("fault", FAULTS)
@scenes
def test_the_branch_is_right_whatever_a_commit_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scene: str, fault: str
) -> None:
    case = SCENES[scene]
    with warehouse(tmp_path / "w") as w:
        case.prepare(w)
        history = loads_of(tmp_path / "w")
        with monkeypatch.context() as patch:
            faulty(patch, w.catalog, iter([fault] * 2))
            case.act(w)
        assert look(w) == case.after
        assert loads_of(tmp_path / "w") == history
        assert w.problems(rows=True) == []


@pytest.mark.parametrize("fault", ["before", "after", "after, as a conflict"])
@scenes
def test_a_catalog_that_fails_for_good_leaves_the_branch_as_it_was_or_as_it_should_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scene: str, fault: str
) -> None:
    case = SCENES[scene]
    monkeypatch.setattr("millrace_warehouse.races.TRIES", 2)
    with warehouse(tmp_path / "w") as w:
        case.prepare(w)
        history = loads_of(tmp_path / "w")
        with monkeypatch.context() as patch:
            faulty(patch, w.catalog, repeat(fault))
            with suppress(MillraceError):
                case.act(w)
        check_all_or_nothing(case, look(w))
        case.act(w)
        assert look(w) == case.after
        assert loads_of(tmp_path / "w") == history
        assert w.problems(rows=True) == []


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kills")
    subprocess.run([sys.executable, "-m", live_scenes.__name__, str(folder)], check=True, timeout=600)
    return folder


@scenes
def test_a_commit_that_is_killed_before_any_file_is_made_whole_by_the_next(killed: Path, scene: str) -> None:
    case, reports = SCENES[scene], sorted(killed.glob(f"{scene}, */seen.json"))
    assert len(reports) > LEAST_FILES
    for report in reports:
        stated = json.loads(report.read_text())
        check_all_or_nothing(case, Seen(**stated["found"]))
        assert Seen(**stated["made"]) == case.after, report
        assert stated["problems"] == [], report


@scenes
def test_a_power_cut_before_any_write_is_made_whole_by_the_next_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scene: str
) -> None:
    case, folder, cuts = SCENES[scene], tmp_path / "w", tmp_path / "cuts"
    disk = Disk(monkeypatch)
    cuts.mkdir()

    def cut() -> None:
        there = disk.restored(folder, cuts / f"{len(list(cuts.iterdir())):03d}")
        # SQLite syncs its file by itself, with calls that the disk does not see.
        shutil.copy(folder / "catalog.db", there / "catalog.db")

    try:
        with warehouse(folder) as w, monkeypatch.context() as patch:
            case.prepare(w)
            patch.setattr(os, "fsync", before_each_file(cut))
            case.act(w)
        cut()
    finally:
        disk.close()
    restored = sorted(cuts.iterdir())
    assert len(restored) > LEAST_FILES
    shutil.rmtree(folder)
    for there in restored:
        there.rename(folder)  # the table's metadata names its files by this path
        with warehouse(folder) as w:
            check_all_or_nothing(case, look(w))
            case.act(w)
            assert look(w) == case.after
            assert w.problems(rows=True) == []
        shutil.rmtree(folder)


def loads_of(warehouse: Path) -> dict[str, bytes]:
    """Return the manifests of all loads."""
    return {path.name: path.read_bytes() for path in (warehouse / TOPIC / "loads").iterdir()}
