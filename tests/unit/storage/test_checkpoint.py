"""The checkpoint file: whole or not at all, and seldom written."""

from __future__ import annotations

import os
from array import array
from pathlib import Path

import pytest

from millrace_broker.storage.checkpoint import FILE_NAME, Checkpoint
from millrace_broker.storage.landmarks import Landmarks
from millrace_broker.storage.partition_log import CHECKPOINT_INTERVAL_S
from millrace_broker.storage.segment import SegmentFacts
from millrace_broker.storage.state import LogState
from tests.unit.storage.logs import Clock, appended, batch, flush, open_log, position

CHECKPOINT = Checkpoint(
    state=LogState(900, 850, 880, 0, position(77, start=5, next_base=80, batches=1, records=2, dropped=3)),
    start=300,
    start_offset=290,
    segments=(SegmentFacts(300, 5, 450), SegmentFacts(500)),
    landmarks={500: Landmarks(array("q", [500, -1, 500, 700, 6, 695]))},
    producers=[[7, 0, 1.5, [[0, 300, 3, 400]]]],
    epochs=((0, 300), (4, 610)),
)


def test_a_checkpoint_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    assert Checkpoint.read(tmp_path) is None
    CHECKPOINT.write(tmp_path)
    assert Checkpoint.read(tmp_path) == CHECKPOINT
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_it_is_on_the_disk_before_it_takes_its_name_and_its_name_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = []
    fsync, replace = os.fsync, Path.replace

    def noted_fsync(fd: int) -> None:
        events.append(f"fsync {Path(f'/proc/self/fd/{fd}').readlink().name}")
        fsync(fd)

    def noted_replace(path: Path, target: Path) -> Path:
        events.append(f"rename to {target.name}")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    CHECKPOINT.write(tmp_path)
    assert events == ["fsync checkpoint.tmp", "rename to checkpoint", f"fsync {tmp_path.name}"]


def test_it_is_written_every_few_seconds_and_not_at_every_flush(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path, clock)

    def flushed_in_checkpoint() -> int:
        checkpoint = Checkpoint.read(tmp_path)
        assert checkpoint is not None
        return checkpoint.flushed

    for _ in range(10):
        appended(log, batch(1))
        flush(log)
    assert flushed_in_checkpoint() == 0
    clock.now += CHECKPOINT_INTERVAL_S
    flush(log)
    assert flushed_in_checkpoint() == log.end
    appended(log, batch(1))
    log.close()
    assert flushed_in_checkpoint() == log.end


def test_a_clock_that_is_set_back_does_not_keep_the_checkpoint_from_being_written(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path, clock)
    clock.now -= 3600
    appended(log, batch(1))
    flush(log)
    checkpoint = Checkpoint.read(tmp_path)
    assert checkpoint is not None
    assert checkpoint.flushed == log.end > 0
    log.close()
