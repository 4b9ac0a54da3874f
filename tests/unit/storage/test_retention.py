"""Retention: whole segments, by the time of the last append, optionally by size."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millrace.config import LogConfig
from millrace.errors import OffsetOutOfRange, StorageError
from millrace_broker.storage import log_start, partition_log, reading, sealed
from millrace_broker.storage.chain import walk
from millrace_broker.storage.checkpoint import FILE_NAME, Checkpoint
from millrace_broker.storage.partition_log import IDLE_SECONDS, PartitionLog
from millrace_broker.storage.segment import Segment
from tests.integration.faults.small_disk import fill_bytes, no_space_left, small_disk
from tests.unit.storage.logs import (
    ORIGIN,
    Clock,
    PowerCut,
    appended,
    batch,
    batches_at,
    checkpoint,
    consume,
    crash,
    cut_short,
    flush,
    log_files,
    open_log,
    origin_batches,
    position,
    slice_bytes,
)


def test_segments_expire_by_the_time_of_their_last_append_not_by_event_time(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path, clock, segment_bytes=300, retention_ms=10_000)
    for _ in range(8):
        appended(log, batch(2, timestamp=5))  # events of 1970 are as young as their append
        clock.now += 2
    flush(log)
    assert log.apply_retention() == [0]
    bases = [int(path.stem) for path in log_files(tmp_path)]
    assert log.log_start_offset == bases[0] > 0
    with pytest.raises(OffsetOutOfRange):
        log.read(0, 1000)
    assert log.apply_retention() == []
    clock.now += 100
    assert log.apply_retention() == bases
    assert log.log_start_offset == log.high_watermark
    log.close()


def test_a_segment_that_always_gets_a_little_rolls_when_it_is_old_and_then_expires(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path, clock, segment_ms=5_000, retention_ms=10_000)
    for _ in range(8):
        appended(log, batch(2))
        flush(log)
        log.apply_retention()
        clock.now += 3
    assert log.log_start_offset > 0
    assert len(log_files(tmp_path)) > 2
    appended(log, batch(2))
    flush(log)
    log.close()
    again = open_log(tmp_path, clock, segment_ms=5_000, retention_ms=None)
    again.apply_retention()
    files = log_files(tmp_path)
    clock.now = files[-1].stat().st_mtime + 6
    again.apply_retention()
    assert len(log_files(tmp_path)) == len(files) + 1
    again.close()


def test_a_segment_rolls_by_size_alone_without_a_limit_of_its_age(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path, clock, segment_ms=None, retention_ms=None)
    appended(log, batch(2))
    flush(log)
    clock.now += 1e9
    log.apply_retention()
    assert len(log_files(tmp_path)) == 1
    log.close()


def test_no_retention_keeps_everything(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path, clock, segment_bytes=300, retention_ms=None)
    appended(log, *[batch(2) for _ in range(10)])
    flush(log)
    clock.now += 1e9
    assert log.apply_retention() == []
    log.close()


def test_retention_by_size_deletes_the_oldest_and_never_the_active_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=300, retention_bytes=700)
    appended(log, *[batch(2) for _ in range(20)])
    flush(log)
    assert log.apply_retention()
    assert sum(path.stat().st_size for path in log_files(tmp_path)) <= 700
    log.config = LogConfig(segment_bytes=300, retention_bytes=1)
    log.apply_retention()
    assert len(log_files(tmp_path)) == 1
    assert len(list(consume(log, log.log_start_offset))) >= 1
    log.close()


def test_nothing_is_deleted_before_it_is_flushed(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path, clock, segment_bytes=300, retention_ms=1000)
    appended(log, *[batch(2) for _ in range(10)])
    clock.now += 100
    assert log.apply_retention() == []
    flush(log)
    assert log.apply_retention()
    log.close()


def test_an_expired_active_segment_is_rolled_once_and_deleted(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path, clock, retention_ms=1000)
    appended(log, batch(4))
    flush(log)
    clock.now += 5
    assert log.apply_retention() == [0]
    only = log_files(tmp_path)
    clock.now += 5
    assert log.apply_retention() == []
    assert log_files(tmp_path) == only, "an empty segment does not expire again and again"
    log.close()


def test_a_slice_handed_out_outlives_its_segment(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path, clock, retention_ms=1000)
    appended(log, batch(4))
    flush(log)
    found = log.read(0, 1000)
    clock.now += 5
    log.apply_retention()
    assert len(slice_bytes(found)) > 0
    log.close()


def test_a_deleted_segment_that_was_read_frees_its_space(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path, clock, segment_bytes=300, retention_ms=1000)
    bases = [result.base_offset for result in appended(log, *[batch(2) for _ in range(12)])]
    flush(log)
    for base in bases:
        log.read(base, 100)
    clock.now += 5
    log.apply_retention()
    held = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    ours = [name for name in held if name.startswith(str(tmp_path))]
    assert ours, "the active segment is open"
    assert not [name for name in ours if name.endswith("(deleted)")]
    log.close()


def test_after_a_restart_the_age_counts_from_the_files_last_write(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path, clock, segment_bytes=300, retention_ms=1000)
    appended(log, *[batch(2) for _ in range(4)])
    log.close()
    for path in log_files(tmp_path):
        os.utime(path, (clock.now, clock.now))
    log = open_log(tmp_path, clock, segment_bytes=300, retention_ms=1000)
    assert log.apply_retention() == []
    clock.now += 2
    assert len(log.apply_retention()) == 2
    log.close()


def test_a_reader_that_had_read_all_that_was_deleted_goes_on_without_an_error(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path, clock, segment_bytes=250, retention_ms=10_000)
    appended(log, batch(2), batch(2))
    clock.now += 20
    third = appended(log, batch(3))[0]
    flush(log)
    done = [header.next_offset for header in consume(log, 0)][1]
    assert log.apply_retention() == [0]
    assert done < log.log_start_offset == third.base_offset
    for _ in range(2):
        assert batches_at(log, done)[0].base_offset == third.base_offset
        with pytest.raises(OffsetOutOfRange):
            log.read(done - 1, 1000)
        crash(log)
        log = open_log(tmp_path, clock, segment_bytes=250)
    log.close()


def test_retention_keeps_the_last_position_of_a_mirrored_partition(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path, clock, retention_ms=1000)
    log.append_mirrored(ORIGIN, None, origin_batches([3, 4]), position(7, batches=2, records=7, dropped=1))
    flush(log)
    recorded, mark = log.mirror_position, log.high_watermark
    for _ in range(3):
        clock.now += 5
        log.apply_retention()
        flush(log)
        assert len(log_files(tmp_path)) == 1
        assert log_files(tmp_path)[0].stat().st_size > 0
        assert (log.mirror_position, log.high_watermark) == (recorded, mark)
        crash(log)
        (tmp_path / "checkpoint").unlink()  # the position stands in the log itself
        log = open_log(tmp_path, clock, retention_ms=1000)
        assert log.mirror_position == recorded
        mark = log.high_watermark
    log.append_mirrored(ORIGIN, 7, origin_batches([1], 7), position(8, batches=3, records=8, dropped=1))
    flush(log)
    assert [header.records_count for header in consume(log, log.log_start_offset)] == [1]
    log.close()


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("checkpointed", [False, True])
def test_on_a_full_disk_retention_deletes_nothing_that_recovery_would_take_for_a_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpointed: bool
) -> None:
    clock = Clock()
    log = open_log(tmp_path, clock, segment_bytes=300, retention_ms=1_000_000)
    if checkpointed:
        appended(log, *[batch(2) for _ in range(4)])
        clock.now += 60
        flush(log)
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "write", full)
        appended(log, *[batch(2) for _ in range(9)])
        flush(log)
        mark, stored = log.high_watermark, [header.base_offset for header in consume(log, 0)]
        clock.now += 2000
        assert log.apply_retention() == ([0] if checkpointed else [])
    start = log.log_start_offset
    crash(log)
    log = open_log(tmp_path, clock, segment_bytes=300, retention_ms=1_000_000)
    assert log.high_watermark == mark
    assert [header.base_offset for header in consume(log, start)] == [at for at in stored if at >= start]
    log.close()


def test_what_retention_could_not_delete_on_a_full_disk_goes_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    log = open_log(tmp_path, clock, segment_bytes=300, retention_ms=1_000_000)
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "write", full)
        appended(log, *[batch(2) for _ in range(9)])
        flush(log)
        clock.now += 2000
        assert log.apply_retention() == []
    assert len(log.apply_retention()) == 3
    assert len(log_files(tmp_path)) == 1
    log.close()


def test_retention_does_not_count_messages_that_a_power_cut_took(tmp_path: Path) -> None:
    clock = Clock()
    meanwhile: list[bytearray] = []

    def sync(fd: int) -> None:
        os.fdatasync(fd)
        while meanwhile:
            appended(log, meanwhile.pop())

    log = PartitionLog(tmp_path, LogConfig(), clock, sync)
    appended(log, batch(2))
    clock.now += 60
    meanwhile.append(batch(400))
    flush(log)  # the checkpoint is written after the second batch came
    end, mark = log.visible_end, log.high_watermark
    crash(log)
    path = log_files(tmp_path)[0]
    os.truncate(path, end)
    os.utime(path, (clock.now, clock.now))
    log = open_log(tmp_path, clock, retention_ms=1_000_000)
    clock.now += 2000
    assert log.apply_retention() == [0]
    base = appended(log, batch(3))[0].base_offset
    flush(log)
    for offset in (mark, base, base + 1):
        assert batches_at(log, offset)[0].base_offset == base
    log.close()


def test_retention_writes_the_checkpoint_of_a_log_that_nobody_flushes_any_more(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path, clock)
    appended(log, batch(2))
    flush(log)
    clock.now += 60
    log.apply_retention()
    checkpoint = Checkpoint.read(tmp_path)
    assert checkpoint is not None
    assert checkpoint.flushed == log.visible_end > 0
    log.close()


def test_a_closed_log_deletes_nothing(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path, clock, segment_bytes=300, retention_ms=1000)
    appended(log, *[batch(2) for _ in range(9)])
    log.close()
    clock.now += 60
    files = log_files(tmp_path)
    assert log.apply_retention() == []
    assert log_files(tmp_path) == files


def test_retention_keeps_the_last_position_when_a_full_disk_takes_no_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    log = open_log(tmp_path, clock, segment_bytes=300, retention_ms=1_000_000)
    log.append_mirrored(ORIGIN, None, origin_batches([2]), position(2, batches=1, records=2))
    flush(log)
    clock.now += 2000
    with monkeypatch.context() as patch:
        patch.setattr(Segment, "append", full)
        assert log.apply_retention() == []
    crash(log)
    (tmp_path / FILE_NAME).unlink()
    log = open_log(tmp_path, clock, segment_bytes=300, retention_ms=1_000_000)
    assert log.mirror_position == position(2, batches=1, records=2)
    log.append_mirrored(ORIGIN, 2, origin_batches([2], 2), position(4, batches=2, records=4))
    log.close()


def test_retention_goes_by_the_settings_of_the_moment(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path, clock, segment_bytes=300, retention_ms=None)
    for _ in range(10):
        appended(log, batch(2))
        clock.now += 1
    flush(log)
    assert log.apply_retention() == []
    files = [int(path.stem) for path in log_files(tmp_path)]
    log.config = replace(log.config, retention_bytes=400)
    assert log.apply_retention() == files[:-2]
    log.config = replace(log.config, retention_bytes=None, retention_ms=1_500)
    assert log.apply_retention() == files[-2:-1]
    assert log.log_start_offset < log.high_watermark, "the last messages' time has not come"
    log.config = replace(log.config, retention_ms=500)
    assert log.apply_retention() == files[-1:]
    assert log.log_start_offset == log.high_watermark
    log.close()


def open_files(folder: Path) -> int:
    found = 0
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found += fd.readlink().is_relative_to(folder)
    return found


def test_an_idle_log_keeps_no_file_open_and_goes_on_when_it_is_used(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path, clock)
    (first,) = appended(log, batch(2))
    clock.now += IDLE_SECONDS + 1
    log.apply_retention()
    assert open_files(tmp_path) == 1, "what is not on the disk yet needs its file"
    flush(log)
    found = log.read(first.base_offset, 1000)
    log.apply_retention()
    assert found is not None
    assert (open_files(tmp_path), len(slice_bytes(found))) == (1, found.length), "the slice has its file"
    del found
    assert open_files(tmp_path) == 0
    appended(log, batch(3))
    flush(log)
    assert len(list(consume(log, 0))) == 2
    log.apply_retention()
    assert open_files(tmp_path) == 1
    log.close()


def test_a_log_that_is_closed_with_nothing_new_writes_nothing(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path, clock)
    appended(log, batch(2))
    flush(log)
    log.close()
    written = (tmp_path / FILE_NAME).stat()
    log = open_log(tmp_path, clock)
    assert log.high_watermark == 2
    log.close()
    assert (tmp_path / FILE_NAME).stat().st_ino == written.st_ino


def test_a_look_up_by_time_behind_deleted_records_walks_no_longer_than_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path, segment_bytes=1 << 30)
    placed = [appended(log, batch(1, b"x" * 60_000, timestamp=time))[0] for time in range(1000, 1200)]
    flush(log)
    log.delete_records(placed[1].base_offset)
    walked: list[int] = []

    def counted(*arguments: Any) -> Iterator[Any]:
        for found in walk(*arguments):
            walked.append(found[0])
            yield found

    monkeypatch.setattr(reading, "walk", counted)
    assert log.offset_for_timestamp(1190) == (placed[190].base_offset, 1190)
    assert len(walked) < 40
    log.close()


def test_deleted_records_are_gone_after_a_crash_and_their_files_with_retention(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=400)
    placed = [appended(log, batch(2, timestamp=time))[0] for time in range(100, 1100, 100)]
    flush(log)
    files, start = len(log_files(tmp_path)), placed[6].base_offset
    assert log.delete_records(start) == start == log.log_start_offset
    assert log.delete_records(placed[2].base_offset) == start, "what is gone stays gone"
    with pytest.raises(OffsetOutOfRange, match=f"before the start, {start}$"):
        log.read(start - 1, 1000)
    assert batches_at(log, start, 1)[0].base_offset == start
    assert log.offset_for_timestamp(0) == (start, 700)
    log = open_log(crash(log), segment_bytes=400)
    assert log.log_start_offset == start
    assert log.apply_retention()
    assert len(log_files(tmp_path)) < files
    assert log.log_start_offset == start
    inside = placed[8].base_offset + 1
    assert log.delete_records(inside) == inside, "within a batch"
    assert batches_at(log, inside, 1)[0].base_offset == inside - 1, "consumers skip what lies before"
    assert log.offset_of_max_timestamp() == (placed[9].base_offset + 1, 1001)
    end = log.high_watermark
    assert log.delete_records(-1) == end == log.log_start_offset
    assert log.offset_of_max_timestamp() is log.offset_for_timestamp(0) is None
    log.apply_retention()
    log = open_log(crash(log), segment_bytes=400)
    assert (log.log_start_offset, log.high_watermark) == (end, end)
    again = appended(log, batch())[0].base_offset
    flush(log)
    assert batches_at(log, end, 1)[0].base_offset == again
    assert log.offset_for_timestamp(0) == (again, 1000)
    log.close()


def test_a_start_that_cannot_be_written_down_does_not_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    appended(log, batch(), batch())
    flush(log)

    def full(*_: object) -> None:
        raise OSError(28, "no space left")

    for owner, name in ((partition_log, "write_start"), (Checkpoint, "write")):
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, full)
            with pytest.raises(StorageError, match="could not be written down"):
                log.delete_records(-1)
            assert log.log_start_offset == 0
    log.close()


def test_deleted_records_stay_deleted_whichever_file_is_lost_and_wherever_a_crash_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the checkpoint, with the one of before, with a damaged one; without the file of the start."""
    for after in range(100):
        log = open_log(tmp_path / str(after), segment_bytes=400)
        placed = [appended(log, batch(2))[0] for _ in range(10)]
        flush(log)
        checkpoint(log)
        start, old = placed[6].base_offset, (log.directory / FILE_NAME).read_bytes()
        with monkeypatch.context() as patched:
            counted = cut_short(after)
            for owner, name in ((os, "fsync"), (Path, "replace"), (Path, "unlink")):
                patched.setattr(owner, name, counted(getattr(owner, name)))
            try:
                done = log.delete_records(start) == start
            except PowerCut:
                done = False
        crash(log)
        for lost in (None, b"", old, b"damaged"):
            directory = tmp_path / f"{after}-{lost!r:.9}"
            shutil.copytree(log.directory, directory)
            if lost == b"":
                (directory / FILE_NAME).unlink()
            elif lost is not None:
                (directory / FILE_NAME).write_bytes(lost)
            again = open_log(directory, segment_bytes=400)
            assert again.log_start_offset in ((start,) if done else (0, start)), (after, lost)
            assert again.high_watermark == placed[-1].base_offset + 2
            crash(again)
        (log.directory / log_start.FILE_NAME).unlink(missing_ok=True)
        again = open_log(log.directory, segment_bytes=400)
        assert again.log_start_offset in ((start,) if done else (0, start))
        crash(again)
        if done:
            return
    pytest.fail("it never ends")


def test_a_start_behind_all_that_is_left_hides_nothing_that_comes_next(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    appended(log, batch(2))
    flush(log)
    log.delete_records(-1)
    crash(log)
    (tmp_path / FILE_NAME).unlink()
    for path in log_files(tmp_path):
        path.write_bytes(b"")
    log = open_log(tmp_path)
    next_one = appended(log, batch(2))[0].base_offset
    flush(log)
    assert batches_at(log, next_one, 1)[0].base_offset == next_one == 0
    crash(log)


def test_retention_makes_room_on_a_disk_without_a_free_byte_however_young_the_log_is(tmp_path: Path) -> None:
    clock = Clock()
    with small_disk(tmp_path / "small", 1 << 20, 100) as disk:
        log = open_log(disk / "log", clock, segment_bytes=20_000, retention_bytes=60_000)
        for _ in range(20):
            appended(log, batch(1, bytes(9000)))
            flush(log)
        fill_bytes(disk)
        assert len(log.apply_retention()) >= 5
        assert log_files(disk / "log") == log_files(crash(log)), "nothing but the files of the log is left"
        again = open_log(disk / "log", clock, segment_bytes=20_000)
        assert again.log_start_offset == log.log_start_offset > 0
        again.close()


def test_a_file_that_the_disk_had_no_room_for_leaves_the_old_one_and_no_other(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", 1 << 16, 20) as disk:
        sealed.write(disk / "facts", {"number": 1})
        fill_bytes(disk)
        with no_space_left():
            sealed.write(disk / "facts", {"number": 2})
        assert sealed.read(disk / "facts") == {"number": 1}
        assert {path.name for path in disk.iterdir()} == {"facts", "ballast"}


def test_segments_of_a_wrong_clock_are_as_young_as_the_look_at_them_also_after_a_restart(
    tmp_path: Path,
) -> None:
    clock = Clock()
    log = open_log(tmp_path, clock, segment_bytes=300, retention_ms=10_000)
    right = clock.now
    appended(log, batch(2))
    clock.now -= 1_000
    for _ in range(8):
        appended(log, batch(2))
    flush(log)
    clock.now = right + 5
    log.expires_by_time = False
    assert log.apply_retention() == []
    log.count_anew([(right - 1_001, right - 999)])
    log.expires_by_time = True
    assert log.apply_retention() == []
    log.close()
    again = open_log(tmp_path, clock, segment_bytes=300, retention_ms=10_000)
    clock.now += 9
    assert again.apply_retention() == []
    clock.now += 2
    assert again.apply_retention()
    again.close()
