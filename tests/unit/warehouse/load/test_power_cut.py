"""A power cut behind a commit: whatever counts was on disk before that, and is still there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from millrace_warehouse.context import Progress
from millrace_warehouse.history.layout import Topic, read_edition
from millrace_warehouse.load.load import load_topic
from millrace_warehouse.load.reload import ReloadRun, reload_topic
from millrace_warehouse.storage import open_storage
from tests.unit.warehouse.load.crashing import LOAD_STEPS, RELOAD_STEPS
from tests.unit.warehouse.memory_log import TOPIC, MemoryLog, filled_log, load_run, no_progress, rows_of
from tests.unit.warehouse.storages import problems


class Disk:
    """A disk after a power cut: each file and folder has the content of its last sync.

    The kernel syncs inodes: a file is there once its bytes are and the folder that names it is. Everything
    else may be gone, and here it is.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._files: dict[int, bytes] = {}
        self._folders: dict[int, dict[str, tuple[int, bool]]] = {}
        self._kept: list[int] = []
        real = os.fsync

        def fsync(descriptor: int) -> None:
            real(descriptor)
            self._note(Path(f"/proc/self/fd/{descriptor}"))

        monkeypatch.setattr(os, "fsync", fsync)

    def _note(self, path: Path) -> None:
        inode = path.stat().st_ino
        if inode not in self._files | self._folders:
            self._kept.append(os.open(path, os.O_RDONLY))  # so that no other one gets the number
        if not path.is_dir():
            self._files[inode] = path.read_bytes()
            return
        with os.scandir(path) as entries:
            self._folders[inode] = {each.name: (each.inode(), each.is_dir()) for each in entries}

    def restored(self, folder: Path, target: Path) -> Path:
        """Restore a folder as it is after the power cut, as a new folder."""
        self._restore(folder.stat().st_ino, target)
        return target

    def _restore(self, inode: int, target: Path) -> None:
        target.mkdir()
        for name, (inside, is_folder) in self._folders.get(inode, {}).items():
            if is_folder:
                self._restore(inside, target / name)
            else:
                (target / name).write_bytes(self._files.get(inside, b""))

    def close(self) -> None:
        for descriptor in self._kept:
            os.close(descriptor)


def reload_run(log: MemoryLog, warehouse: Path, progress: Progress = no_progress) -> ReloadRun:
    run = load_run(log, warehouse, "again", progress=progress)
    return ReloadRun(context=run.context, reason="a test")


def test_a_power_cut_loses_nothing_that_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, log, warehouse = Disk(monkeypatch), filled_log(), tmp_path / "warehouse"
    try:
        loaded = load_topic(load_run(log, warehouse), TOPIC)
        after_load = disk.restored(warehouse, tmp_path / "after the load")
        assert problems(after_load, TOPIC) == []
        assert len(rows_of(after_load)) == loaded.rows == 180
        assert not load_topic(load_run(log, after_load, "again"), TOPIC).published

        (result,) = reload_topic(reload_run(log, warehouse), TOPIC, [1])
        after_reload = disk.restored(warehouse, tmp_path / "after the re-load")
        assert problems(after_reload, TOPIC) == []
        assert len(rows_of(after_reload)) == result.rows == 180
    finally:
        disk.close()


def test_a_power_cut_at_any_step_leaves_a_warehouse_that_the_next_run_goes_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, log, warehouse = Disk(monkeypatch), filled_log(), tmp_path / "warehouse"
    cuts: list[Path] = []

    def cut(step: str) -> None:
        cuts.append(disk.restored(warehouse, tmp_path / f"{len(cuts)} {step}"))

    try:
        load_topic(load_run(log, warehouse, progress=cut), TOPIC)
        loads = len(cuts)
        reload_topic(reload_run(log, warehouse, cut), TOPIC, [1])
    finally:
        disk.close()
    assert (loads, len(cuts)) == (len(LOAD_STEPS), len(LOAD_STEPS) + len(RELOAD_STEPS))
    for number, found in enumerate(cuts):
        load_topic(load_run(log, found, "after the power cut"), TOPIC)
        if number >= loads:
            reload_topic(reload_run(log, found), TOPIC, [1])
            assert read_edition(Topic(open_storage(str(found)), TOPIC), 1, 2).run_id == "again"
        assert len(rows_of(found)) == 180, found
        assert problems(found, TOPIC) == [], found
