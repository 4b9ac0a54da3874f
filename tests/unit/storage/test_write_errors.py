"""Errors of the disk: a full disk, a write that stops half-way, a flush that fails."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millrace.config import LogConfig
from millrace.errors import ErrorCode, StorageError
from millrace_broker.storage.checkpoint import Checkpoint
from millrace_broker.storage.partition_log import PartitionLog
from millrace_broker.storage.refused import MAX_SEQUENCE, REFUSED_S
from millrace_broker.storage.segment import CutFailed, Segment
from tests.unit.storage.logs import (
    ORIGIN,
    PRINCIPAL,
    Clock,
    append,
    appended,
    batch,
    consume,
    crash,
    flush,
    log_files,
    open_log,
    origin_batches,
    position,
)


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """The kernel takes what fits and then fails the write, as on a full disk (EFBIG in place of ENOSPC)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("room", [0, 1, 60, 73, 100, 145])
def test_a_full_disk_refuses_the_append_cuts_what_was_written_and_reads_go_on(
    tmp_path: Path, room: int
) -> None:
    log = open_log(tmp_path)
    appended(log, batch(3))
    flush(log)
    end = log.end
    with no_file_larger_than(end + room):
        results = append(log, batch(1), batch(1))
    assert [type(result) for result in results] == [StorageError, StorageError]
    assert (log.end, log_files(tmp_path)[0].stat().st_size) == (end, end)
    assert len(list(consume(log, 0))) == 1
    # Room again: the log goes on.
    assert appended(log, batch(2))[0].base_offset == end
    flush(log)
    assert len(list(consume(log, 0))) == 2
    log.close()


def test_a_mirrored_append_on_a_full_disk_leaves_neither_data_nor_position(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append_mirrored(ORIGIN, None, origin_batches([2]), position(2, batches=1, records=2))
    end, recorded = log.end, log.mirror_position
    with no_file_larger_than(end + 100), pytest.raises(StorageError):
        log.append_mirrored(ORIGIN, 2, origin_batches([2], 2), position(4, batches=2, records=4))
    assert (log.end, log.mirror_position) == (end, recorded)
    log.append_mirrored(ORIGIN, 2, origin_batches([2], 2), position(4, batches=2, records=4))
    log.close()


def test_what_was_written_to_an_earlier_segment_stays_when_the_next_cannot_be_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path, segment_bytes=200)

    def refuse(*_: object) -> Segment:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Segment, "create", refuse)
    results = append(log, batch(1), batch(1), batch(1), batch(1))
    assert [type(result).__name__ for result in results] == ["Appended", "Appended"] + ["StorageError"] * 2
    flush(log)
    assert len(list(consume(log, 0))) == 2
    log.close()


def test_a_retry_of_a_batch_that_could_not_be_written_is_no_duplicate(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    with no_file_larger_than(10):
        assert isinstance(append(log, batch(2, producer=1, sequence=0))[0], StorageError)
    assert not appended(log, batch(2, producer=1, sequence=0))[0].duplicate
    assert appended(log, batch(2, producer=1, sequence=0))[0].duplicate
    log.close()


def test_when_the_cut_fails_too_writes_are_refused_until_the_log_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    appended(log, batch(3))

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "ftruncate", refuse)
    with no_file_larger_than(log.end + 50):
        assert isinstance(append(log, batch(3))[0], StorageError)
    monkeypatch.undo()
    assert isinstance(append(log, batch(1))[0], StorageError)
    with pytest.raises(StorageError):
        log.append_mirrored(ORIGIN, None, [], position(5))
    assert log.refusal is not None
    assert flush(log), "what was appended before can still be flushed and read"
    assert len(list(consume(log, 0))) == 1
    end = log.end
    crash(log)
    log = open_log(tmp_path)
    assert appended(log, batch(1))[0].base_offset == end
    flush(log)
    assert len(list(consume(log, 0))) == 2
    log.close()


def test_cut_failed_is_an_os_error() -> None:
    assert issubclass(CutFailed, OSError)


class FailingDisk:
    """fdatasync that fails when told to, in the place of the real one."""

    def __init__(self) -> None:
        self.fails = False
        self.error = errno.EIO
        self.calls = 0

    def sync(self, fd: int) -> None:
        self.calls += 1
        if self.fails:
            raise OSError(self.error, os.strerror(self.error))
        os.fdatasync(fd)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.ENOMEM])
def test_after_a_failed_flush_nothing_becomes_visible_and_nothing_is_taken_until_a_restart(
    tmp_path: Path, error: int
) -> None:
    disk = FailingDisk()
    disk.error = error  # Linux tells what the write-back met, also want of memory
    log = PartitionLog(tmp_path, LogConfig(), Clock(), disk.sync)
    appended(log, batch(3))
    flush(log)
    mark, visible = log.high_watermark, log.visible_end
    appended(log, batch(5))
    disk.fails = True
    with pytest.raises(StorageError):
        log.flush()
    disk.fails = False
    calls = disk.calls
    with pytest.raises(StorageError):
        log.flush()
    assert disk.calls == calls, "a second fdatasync could succeed without the bytes being there"
    assert isinstance(append(log, batch(1))[0], StorageError)
    assert (log.high_watermark, log.visible_end) == (mark, visible)
    assert len(list(consume(log, 0))) == 1
    assert log.flush_refusal is not None
    log.close()
    reopened = open_log(tmp_path)
    assert reopened.high_watermark >= mark
    assert appended(reopened, batch(1))
    flush(reopened)
    assert len(list(consume(reopened, 0))) == 3, "the batch was in the file, written again and flushed"
    reopened.close()


def test_a_flush_syncs_every_segment_that_was_written_to(tmp_path: Path) -> None:
    synced: set[str] = set()

    def sync(fd: int) -> None:
        synced.add(Path(f"/proc/self/fd/{fd}").readlink().name)

    log = PartitionLog(tmp_path, LogConfig(segment_bytes=300), Clock(), sync)
    synced.clear()
    appended(log, *[batch(2) for _ in range(10)])
    flush(log)
    assert synced == {path.name for path in log_files(tmp_path)}
    synced.clear()
    appended(log, batch(1))
    flush(log)
    assert synced == {log_files(tmp_path)[-1].name}
    synced.clear()
    flush(log)
    assert not synced, "nothing new, nothing to sync"
    log.close()


def test_a_segment_created_since_the_last_flush_has_its_name_synced_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path, segment_bytes=300)
    synced: list[Path] = []
    monkeypatch.setattr("millrace_broker.storage.partition_log.sync_directory", synced.append)
    appended(log, batch(1))
    flush(log)
    assert synced == []
    appended(log, *[batch(2) for _ in range(4)])
    flush(log)
    assert synced == [tmp_path]
    log.close()


def test_a_segment_that_a_killed_broker_left_empty_has_its_name_synced_before_its_messages_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path, segment_bytes=300)
    appended(log, *[batch(2) for _ in range(3)])
    log.close()
    log = open_log(tmp_path, segment_bytes=300)
    with no_file_larger_than(0):
        assert isinstance(append(log, batch(9, b"x" * 30))[0], StorageError)
    assert [path.stat().st_size > 0 for path in log_files(tmp_path)] == [True, False]
    crash(log)
    named: set[Path] = set()
    for module in ("partition_log", "recovery", "checkpoint"):
        target = f"millrace_broker.storage.{module}.sync_directory"
        monkeypatch.setattr(target, lambda directory: named.update(log_files(directory)))
    log = open_log(tmp_path, segment_bytes=300)
    appended(log, batch(9, b"x" * 30))
    flush(log)
    assert set(log_files(tmp_path)) == named
    log.close()


def test_a_checkpoint_that_cannot_be_written_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    log = open_log(tmp_path, clock)
    clock.now += 60
    appended(log, batch(1))
    with no_file_larger_than(0):
        flush(log)
        log.write_due_checkpoint()
    assert "cannot write the checkpoint" in caplog.text
    assert len(caplog.records) == 1, "not tried again at every flush"
    clock.now += 60
    flush(log)
    checkpoint = Checkpoint.read(tmp_path)
    assert checkpoint is not None
    assert checkpoint.flushed == log.end
    appended(log, batch(1))
    assert flush(log)
    log.close()


def test_a_log_that_is_out_of_descriptors_while_it_flushes_goes_on_when_some_are_free(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=200)
    appended(log, *[batch(2) for _ in range(4)])  # rolls: the directory has to be synced
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = [os.open("/dev/null", os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (held[0], hard))
    try:
        with pytest.raises(StorageError, match="now"):
            log.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(held[0])
    assert (log.refusal, log.flush_refusal, log.high_watermark) == (None, None, 0)
    assert flush(log)
    appended(log, batch(1))
    assert flush(log)
    assert len(list(consume(log, 0))) == 5
    log.close()


def test_a_directory_that_could_not_be_synced_for_want_of_a_descriptor_is_synced_by_the_next_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path, segment_bytes=200)
    appended(log, *[batch(2) for _ in range(4)])
    synced: list[Path] = []

    def sync(directory: Path) -> None:
        synced.append(directory)
        if len(synced) == 1:
            raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("millrace_broker.storage.partition_log.sync_directory", sync)
    with pytest.raises(StorageError):
        log.flush()
    flush(log)
    assert synced == [tmp_path, tmp_path]
    flush(log)
    assert len(synced) == 2
    log.close()


def test_a_full_disk_is_told_once_when_it_begins_and_once_when_it_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    log = open_log(tmp_path, clock)
    with caplog.at_level("INFO"):
        for _ in range(20):  # large batches are refused, small ones fit in between
            with no_file_larger_than(log.end + 500):
                assert isinstance(append(log, batch(9, b"x" * 90))[0], StorageError)
                appended(log, batch(1))
            clock.now += 1
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        for _ in range(20):
            appended(log, batch(9, b"x" * 90))
            clock.now += 1
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]
    assert caplog.records[1].message == f"{tmp_path} takes writes again"
    with no_file_larger_than(log.end):
        append(log, batch(1))
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO", "ERROR"]
    log.close()


def test_appends_that_no_disk_refused_say_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = open_log(tmp_path)
    with caplog.at_level("INFO"):
        for _ in range(3):
            appended(log, batch(1))
    assert not caplog.records
    log.close()


# Idempotent producers whose batches were refused


def codes(log: PartitionLog, *sequences: int, producer: int = 9, epoch: int = 0) -> list[int]:
    """0 or the error's code for a batch of one message with each sequence, appended together."""
    batches = [batch(1, producer=producer, epoch=epoch, sequence=sequence) for sequence in sequences]
    outcomes = log.append(batches, [PRINCIPAL] * len(batches))
    return [0 if isinstance(outcome, int) else int(outcome.code) for outcome in outcomes]


def refuse(log: PartitionLog, *sequences: int, **producer: int) -> None:
    with no_file_larger_than(log.end):
        assert set(codes(log, *sequences, **producer)) == {ErrorCode.STORAGE_ERROR}


OUT_OF_ORDER, STORAGE = int(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), int(ErrorCode.STORAGE_ERROR)


@pytest.mark.parametrize("stored", [0, 3])
def test_behind_a_refused_batch_the_next_ones_are_refused_alike_until_it_comes_again(
    tmp_path: Path, stored: int
) -> None:
    """Five requests are in flight when the disk is full for a moment; the first of them is met by it."""
    log = open_log(tmp_path)
    codes(log, *range(stored))
    refuse(log, stored)
    assert codes(log, stored + 1, stored + 2) == [STORAGE, STORAGE]
    assert codes(log, stored + 3) == [STORAGE]
    assert codes(log, stored, stored + 1) == [0, 0]
    assert codes(log, stored + 2) == [0]
    assert codes(log, stored + 4) == [OUT_OF_ORDER], "that one was never refused for the disk"
    log.close()


def test_the_first_of_several_refused_batches_is_awaited(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    codes(log, 0)
    refuse(log, 1, 2)
    refuse(log, 3)
    refuse(log, 1)
    assert codes(log, 2) == [STORAGE]
    assert codes(log, 1, 2, 3) == [0, 0, 0]
    log.close()


def test_sequences_that_wrap_are_awaited_in_their_order(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    codes(log, MAX_SEQUENCE - 1)
    refuse(log, MAX_SEQUENCE)
    assert codes(log, 0) == [STORAGE]
    assert codes(log, MAX_SEQUENCE, 0, 1) == [0, 0, 0]
    log.close()


def test_a_newer_epoch_does_not_wait_for_what_an_older_one_gave_up(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    codes(log, 0)
    refuse(log, 1)
    assert codes(log, 0, epoch=1) == [0]
    assert codes(log, 5, epoch=1) == [OUT_OF_ORDER]
    refuse(log, 0, epoch=2)
    assert codes(log, 1, epoch=2) == [STORAGE]
    log.close()


def test_other_producers_are_not_held_up(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    codes(log, 0)
    refuse(log, 1)
    assert codes(log, 0, 1, producer=10) == [0, 0]
    assert codes(log, 7, producer=11) == [0], "an unknown producer may start anywhere"
    log.close()


def test_a_batch_that_does_not_come_again_is_awaited_for_a_time(tmp_path: Path) -> None:
    clock = Clock()
    log = PartitionLog(tmp_path, LogConfig(), clock)
    codes(log, 0)
    refuse(log, 1)
    clock.now += REFUSED_S
    assert codes(log, 2) == [STORAGE]
    clock.now += 1
    assert codes(log, 2) == [OUT_OF_ORDER]
    log.close()
