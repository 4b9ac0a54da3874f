"""A power cut behind a commit: whatever was published was on disk before that, and is still there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from millrace_warehouse.table.publish import publish_hours

from millrace_warehouse.load.load import load_topic
from millrace_warehouse.storage.filesystem import LocalFilesystem
from millrace_warehouse.verify import verify
from tests.unit.warehouse.memory_log import TOPIC, filled_log, hourly_run, load_run, rows_of

HOURS = ["2015-05-17T10", "2015-05-17T11", "2015-05-17T12"]


class Disk:
    """What a disk has after a power cut: of each file and folder what it held when it was synced.

    The kernel syncs inodes: a rename moves a folder with what of it is on disk, and is there itself once the
    folder above is. Everything else may be gone, and here it is.
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
        """What is found in a folder after the power cut, as a new folder."""
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


def problems(warehouse: Path) -> list[str]:
    reports = verify(LocalFilesystem(str(warehouse)), None, None, lambda folder: None)
    return [problem for report in reports for problem in report.problems]


def test_a_power_cut_loses_nothing_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, log, warehouse = Disk(monkeypatch), filled_log(), tmp_path / "warehouse"
    try:
        loaded = load_topic(load_run(log, warehouse), TOPIC)
        after_load = disk.restored(warehouse, tmp_path / "after the load")
        assert problems(after_load) == []
        assert len(rows_of(after_load)) == loaded.rows == 180
        assert not load_topic(load_run(log, after_load, "again"), TOPIC).published

        results = publish_hours(hourly_run(warehouse), TOPIC, HOURS)
        after_hours = disk.restored(warehouse, tmp_path / "after the hours")
        assert problems(after_hours) == []
        published = rows_of(after_hours, f"{TOPIC}.hourly/date=*/hour=*/rev=1/*.parquet")
        assert len(published) == sum(result.rows for result in results) == 180
    finally:
        disk.close()


def test_a_power_cut_at_any_step_leaves_a_warehouse_that_the_next_run_goes_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, log, warehouse = Disk(monkeypatch), filled_log(), tmp_path / "warehouse"
    cuts: list[Path] = []

    def cut(step: str) -> None:
        cuts.append(disk.restored(warehouse, tmp_path / f"{len(cuts)} {step.replace(' ', '-')}"))

    try:
        load_topic(load_run(log, warehouse, progress=cut), TOPIC)
        loads = len(cuts)
        publish_hours(hourly_run(warehouse, progress=cut), TOPIC, HOURS)
    finally:
        disk.close()
    assert loads >= 6
    assert len(cuts) >= loads + 4 * len(HOURS)
    for number, found in enumerate(cuts):
        load_topic(load_run(log, found, "after the power cut"), TOPIC)
        assert len(rows_of(found)) == 180, found
        if number >= loads:
            publish_hours(hourly_run(found), TOPIC, HOURS)
        assert problems(found) == [], found
