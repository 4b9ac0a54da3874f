"""The model of a disk: what a finished sync made certain stays certain."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from tests.integration.faults import disk_shim


def test_a_sync_that_began_earlier_and_ends_later_takes_nothing_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, kept, record = tmp_path / "root", tmp_path / "kept", tmp_path / "record"
    root.mkdir()
    kept.mkdir()
    for name, path in {"ROOT": root, "KEPT": kept, "RULES": tmp_path / "rules"}.items():
        monkeypatch.setenv(f"DISK_{name}", str(path))
    began, ended = threading.Event(), threading.Event()

    def slow_at_first(fd: int) -> None:
        if not began.is_set():
            began.set()
            assert ended.wait(10)

    written = os.open(record, os.O_WRONLY | os.O_CREAT)
    sync = disk_shim.recording(slow_at_first, written)
    folder = os.open(root, os.O_RDONLY)
    earlier = threading.Thread(target=sync, args=[folder])
    earlier.start()
    assert began.wait(10)
    (root / "name").touch()
    sync(folder)
    ended.set()
    earlier.join()
    os.close(folder)
    os.close(written)
    assert "name" in json.loads(record.read_text().splitlines()[-1])["names"]
