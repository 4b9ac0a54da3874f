"""Recovery: above the checkpoint the longest valid prefix is kept, below it nothing is ever cut."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from millrace.config import LogConfig
from millrace.errors import CorruptMessage, MillraceError
from millrace.records import BatchHeader
from millrace_broker.storage.checkpoint import FILE_NAME, Checkpoint
from millrace_broker.storage.partition_log import PartitionLog
from tests.unit.storage.logs import (
    ORIGIN,
    Clock,
    append,
    appended,
    batch,
    batches_at,
    consume,
    crash,
    crowded_batch,
    flush,
    log_files,
    open_log,
    origin_batches,
    position,
    slice_bytes,
)


@dataclass
class Written:
    """The batches given to a crashed log: base offset, record count and end with filler of each."""

    directory: Path
    units: list[tuple[int, int, int]]

    def kept_below(self, cut: int) -> list[tuple[int, int]]:
        """The batches a log cut at `cut` still has: whole ones; a missing filler is no loss."""
        return [(base, count) for base, count, end in self.units if end <= cut]


def write(directory: Path, batches: list[bytearray], segment_bytes: int = 1 << 20) -> Written:
    log = open_log(directory, segment_bytes=segment_bytes)
    units = []
    for each in batches:
        size, header = len(each), BatchHeader.parse(each)
        assert header is not None
        base = appended(log, each)[0].base_offset
        units.append((base, header.records_count, base + size))
    crash(log)
    return Written(directory, units)


def copy_cut(source: Path, directory: Path, position: int) -> None:
    """Copy a log up to a position, as if nothing behind it had reached the disk."""
    directory.mkdir()
    (directory / FILE_NAME).write_bytes((source / FILE_NAME).read_bytes())
    for path in log_files(source):
        if int(path.stem) <= position:
            (directory / path.name).write_bytes(path.read_bytes()[: position - int(path.stem)])


def data_of(log: PartitionLog) -> list[tuple[int, int]]:
    return [(header.base_offset, header.records_count) for header in consume(log, log.log_start_offset)]


MIXED = [
    lambda: batch(3),
    lambda: crowded_batch(300),
    lambda: batch(1, b""),
    lambda: crowded_batch(100),
    lambda: batch(5),
]


def build(makers: list[Callable[[], bytearray]]) -> list[bytearray]:
    return [make() for make in makers]


@pytest.mark.parametrize("segment_bytes", [1 << 20, 400])
def test_every_cut_keeps_the_longest_valid_prefix(tmp_path: Path, segment_bytes: int) -> None:
    written = write(tmp_path / "whole", build(MIXED), segment_bytes=segment_bytes)
    end = max(int(path.stem) + path.stat().st_size for path in log_files(written.directory))
    for cut in range(end + 1):
        directory = tmp_path / "cut"
        copy_cut(written.directory, directory, cut)
        log = open_log(directory, segment_bytes=segment_bytes)
        kept = written.kept_below(cut)
        assert data_of(log) == kept, f"cut at {cut}"
        assert log.high_watermark == (kept[-1][0] + kept[-1][1] if kept else 0)
        next_base = appended(log, batch(2))[0].base_offset
        assert next_base >= log.high_watermark, f"cut at {cut}: a filler is missing"
        flush(log)
        assert data_of(log) == [*kept, (next_base, 2)]
        log.close()
        reopened = open_log(directory, segment_bytes=segment_bytes)
        assert data_of(reopened) == [*kept, (next_base, 2)]
        reopened.close()
        shutil.rmtree(directory)


def test_a_flipped_byte_above_the_checkpoint_cuts_from_its_batch_on(tmp_path: Path) -> None:
    written = write(tmp_path / "whole", build(MIXED))
    whole = log_files(written.directory)[0].read_bytes()
    for index in range(0, len(whole), 3):
        if any(0 <= index - start - 12 < 4 for base, _, end in written.units for start in (base, end)):
            continue  # the leader epoch: no CRC covers it and nobody reads it
        directory = tmp_path / "flipped"
        shutil.copytree(written.directory, directory)
        damaged = bytearray(whole)
        damaged[index] ^= 0x40
        log_files(directory)[0].write_bytes(damaged)
        log = open_log(directory)
        assert data_of(log) == written.kept_below(index), f"byte {index} flipped"
        log.close()
        shutil.rmtree(directory)


def test_garbage_behind_the_log_is_cut(tmp_path: Path) -> None:
    written = write(tmp_path, build(MIXED))
    with open(log_files(tmp_path)[0], "ab") as file:
        file.write(os.urandom(500))
    log = open_log(tmp_path)
    assert data_of(log) == written.kept_below(1 << 40)
    assert log_files(tmp_path)[0].stat().st_size == log.end
    log.close()


def test_a_clean_close_is_read_back_without_reading_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    appended(log, *build(MIXED))
    end = log.end
    log.close()
    reads = []
    real = os.pread

    def noted(fd: int, length: int, offset: int) -> bytes:
        reads.append(offset)
        return real(fd, length, offset)

    monkeypatch.setattr(os, "pread", noted)
    log = open_log(tmp_path)
    assert not reads
    monkeypatch.undo()
    assert (log.end, log.visible_end) == (end, end)
    assert len(data_of(log)) == len(MIXED)
    log.close()


def flushed_then_damaged(tmp_path: Path, damaged_batch: int) -> tuple[Path, list[int]]:
    log = open_log(tmp_path)
    bases = [result.base_offset for result in appended(log, *[batch(3, b"x" * 40) for _ in range(6)])]
    log.close()
    path = log_files(tmp_path)[0]
    data = bytearray(path.read_bytes())
    data[bases[damaged_batch] + 70] ^= 1
    path.write_bytes(data)
    return path, bases


@pytest.mark.parametrize("damaged", range(6))
def test_a_flipped_bit_below_the_checkpoint_is_answered_and_never_cut(
    tmp_path: Path, damaged: int, caplog: pytest.LogCaptureFixture
) -> None:
    path, bases = flushed_then_damaged(tmp_path, damaged)
    size = path.stat().st_size
    log = open_log(tmp_path)
    assert path.stat().st_size == size
    assert log.high_watermark == bases[-1] + 3
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            with pytest.raises(CorruptMessage, match="CRC"):
                log.read(bases[damaged], 1)
    assert len(caplog.records) == 1, "the same damage is reported once"
    for index, base in enumerate(bases):
        if index != damaged:
            assert batches_at(log, base, max_bytes=1)[0].base_offset == base
    # Appending goes on behind it.
    after = appended(log, batch(1))[0]
    flush(log)
    assert batches_at(log, after.base_offset)[0].base_offset == after.base_offset
    log.close()


def test_a_damaged_length_below_the_checkpoint_hides_only_its_own_batch(tmp_path: Path) -> None:
    path, bases = flushed_then_damaged(tmp_path, 2)
    data = bytearray(path.read_bytes())
    data[bases[2] + 11] ^= 0xFF
    path.write_bytes(data)
    log = open_log(tmp_path)
    for index, base in enumerate(bases):
        if index == 2:
            with pytest.raises(CorruptMessage):
                log.read(base, 1)
        else:
            assert batches_at(log, base, max_bytes=1)[0].base_offset == base
    log.close()


def test_without_a_checkpoint_only_what_follows_the_last_valid_batch_is_cut(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, bases = flushed_then_damaged(tmp_path, 2)
    (tmp_path / FILE_NAME).unlink()
    size = path.stat().st_size
    with open(path, "ab") as file:
        file.write(b"torn")
    with caplog.at_level(logging.WARNING):
        log = open_log(tmp_path)
    assert "no checkpoint" in caplog.text
    assert path.stat().st_size == size
    assert log.high_watermark == bases[-1] + 3
    assert batches_at(log, bases[3])[0].base_offset == bases[3]
    with pytest.raises(CorruptMessage):
        log.read(bases[2], 1)
    log.close()


@pytest.mark.parametrize("damage", [b"", b"{}", b"{}\n00000000\n", None])
def test_an_unreadable_checkpoint_is_a_warning_not_a_loss(
    tmp_path: Path, damage: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log(tmp_path, segment_bytes=300)
    appended(log, *build(MIXED))
    log.close()
    path = tmp_path / FILE_NAME
    path.write_bytes(path.read_bytes()[:-3] if damage is None else damage)
    with caplog.at_level(logging.WARNING):
        log = open_log(tmp_path, segment_bytes=300)
    assert "fails its CRC" in caplog.text
    assert len(data_of(log)) == len(MIXED)
    log.close()


def test_an_unreadable_checkpoint_without_a_segment_is_no_new_log(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    appended(log, *build(MIXED))
    log.close()
    (tmp_path / FILE_NAME).write_bytes(b"{}")
    log_files(tmp_path)[0].unlink()
    with pytest.raises(MillraceError, match="no segment is left: restore"):
        open_log(tmp_path)
    assert not log_files(tmp_path)


def test_a_damaged_end_of_a_middle_segment_does_not_hide_the_next_without_a_checkpoint(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path, segment_bytes=300)
    bases = [result.base_offset for result in appended(log, *[batch(2) for _ in range(12)])]
    log.close()
    (tmp_path / FILE_NAME).unlink()
    first = log_files(tmp_path)[0]
    data = bytearray(first.read_bytes())
    data[-1] ^= 1
    first.write_bytes(data)
    log = open_log(tmp_path, segment_bytes=300)
    assert log.high_watermark == bases[-1] + 2
    log.close()


@pytest.mark.parametrize("missing", [1, 2, -1])
def test_a_missing_segment_is_refused_loudly(tmp_path: Path, missing: int) -> None:
    log = open_log(tmp_path, segment_bytes=300)
    appended(log, *[batch(2) for _ in range(12)])
    log.close()
    path = log_files(tmp_path)[missing]
    path.unlink()
    with pytest.raises(MillraceError, match="lost the bytes from position") as refused:
        open_log(tmp_path, segment_bytes=300)
    assert path.name in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_missing_segment_is_refused_without_a_checkpoint_too(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=300)
    appended(log, *[batch(2) for _ in range(12)])
    log.close()
    (tmp_path / FILE_NAME).unlink()
    log_files(tmp_path)[1].unlink()
    with pytest.raises(MillraceError, match="lost the bytes"):
        open_log(tmp_path)


def test_a_log_that_is_shorter_than_what_was_flushed_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    appended(log, *build(MIXED))
    log.close()
    path = log_files(tmp_path)[0]
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(MillraceError, match="lost the bytes"):
        open_log(tmp_path)


def test_the_oldest_segment_may_be_deleted_by_hand(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=300)
    appended(log, *[batch(2) for _ in range(12)])
    log.close()
    log_files(tmp_path)[0].unlink()
    log = open_log(tmp_path, segment_bytes=300)
    assert log.log_start_offset == int(log_files(tmp_path)[0].stem)
    assert data_of(log)[0][0] == log.log_start_offset
    log.close()


def test_what_retention_left_half_deleted_goes_at_the_next_start(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path, clock, segment_bytes=300, retention_ms=1000)
    appended(log, *[batch(2) for _ in range(12)])
    flush(log)
    first = log_files(tmp_path)[0]
    content = first.read_bytes()
    clock.now += 10
    assert log.apply_retention()
    start = log.log_start_offset
    log.close()
    first.write_bytes(content)
    log = open_log(tmp_path, clock, segment_bytes=300)
    assert not first.exists()
    assert log.log_start_offset == start
    log.close()


def test_recovery_writes_and_syncs_what_it_keeps_before_anyone_may_see_it(tmp_path: Path) -> None:
    written = write(tmp_path, build(MIXED))
    synced: list[int] = []
    path = log_files(tmp_path)[0]

    def sync(fd: int) -> None:
        assert os.fstat(fd).st_ino == path.stat().st_ino
        synced.append(os.fstat(fd).st_size)

    before = path.stat().st_mtime_ns
    log = PartitionLog(tmp_path, open_log(tmp_path / "other").config, Clock(), sync)
    assert synced == [log.visible_end]
    assert path.stat().st_mtime_ns == before, "retention counts from the last append, not from a restart"
    checkpoint = Checkpoint.read(tmp_path)
    assert checkpoint is not None
    assert checkpoint.flushed == log.visible_end
    assert data_of(log) == written.kept_below(1 << 40)
    log.close()


def test_the_high_watermark_survives_without_any_data(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path, clock, retention_ms=1000)
    appended(log, batch(3), batch(5))
    flush(log)
    mark = log.high_watermark
    clock.now += 10
    assert log.apply_retention() == [0]
    for _ in range(2):
        assert (log.high_watermark, log.log_start_offset) == (mark, mark)
        assert log.read(mark, 1000) is None
        crash(log)
        log = open_log(tmp_path, clock)
    after = appended(log, batch(1))[0]
    flush(log)
    assert after.base_offset > mark
    assert batches_at(log, mark)[0].base_offset == after.base_offset
    log.close()


def mirrored_log(directory: Path) -> list[tuple[int, int, list[int]]]:
    """A crashed mirrored log; for each append (end of the append, next origin offset, counts so far)."""
    log = open_log(directory)
    expected, states = None, []
    counts: list[int] = []
    offset = batches = records = 0
    for sizes in ([2, 3], [], [1]):
        added = origin_batches(sizes, offset)
        offset += sum(sizes) or 5
        batches, records = batches + len(sizes), records + sum(sizes)
        counts = [*counts, *sizes]
        end = log.append_mirrored(ORIGIN, expected, added, position(offset, batches=batches, records=records))
        expected = offset
        states.append((end, offset, counts))
    crash(log)
    return states


def test_every_cut_of_a_mirrored_log_goes_back_to_a_position_batch(tmp_path: Path) -> None:
    states = mirrored_log(tmp_path / "whole")
    for cut in range(states[-1][0] + 1):
        directory = tmp_path / "cut"
        copy_cut(tmp_path / "whole", directory, cut)
        log = open_log(directory)
        kept = [state for state in states if state[0] <= cut]
        recorded = log.mirror_position
        if kept:
            assert recorded is not None
            assert recorded.cursor.next_offset == kept[-1][1]
            assert log.end == kept[-1][0]
            assert [header.records_count for header in consume(log, 0)] == kept[-1][2]
        elif recorded is not None:
            assert (recorded.cursor.next_offset, recorded.batches) == (0, 0)
            assert log.read(0, 1000) is None
        assert log.snapshot[0].mirror == recorded
        # It goes on from what it says.
        expected = None if recorded is None else recorded.cursor.next_offset
        batches = origin_batches([2], expected or 0)
        end = log.append_mirrored(
            ORIGIN, expected, batches, position((expected or 0) + 2, batches=99, records=99)
        )
        flush(log)
        assert log.visible_end == end
        log.close()
        shutil.rmtree(directory)


def test_a_log_of_a_newer_release_is_refused_not_misread(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch())
    log.close()
    import zlib

    text = (tmp_path / FILE_NAME).read_bytes().partition(b"\n")[0].replace(b'"version":3', b'"version":4')
    (tmp_path / FILE_NAME).write_bytes(b"%s\n%08x\n" % (text, zlib.crc32(text)))
    with pytest.raises(MillraceError, match="version 4"):
        open_log(tmp_path)


def test_a_log_that_begins_behind_its_checkpoint_is_refused_and_nothing_is_deleted(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=300)
    appended(log, *[batch(2) for _ in range(12)])
    crash(log)  # the checkpoint is the one of the new, empty log
    log_files(tmp_path)[0].unlink()
    files = log_files(tmp_path)
    with pytest.raises(MillraceError, match="lost the bytes"):
        open_log(tmp_path, segment_bytes=300)
    assert log_files(tmp_path) == files


def test_files_that_are_no_segments_are_left_alone(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    appended(log, batch(3))
    log.close()
    for name in ("copy.log", "1.log", f"{0:020d}.log.bak"):
        (tmp_path / name).write_bytes(b"x")
    log = open_log(tmp_path)
    assert data_of(log) == [(0, 3)]
    log.close()
    assert (tmp_path / "copy.log").exists()


@pytest.mark.parametrize("left", [[], [lambda: crowded_batch(300)]])
def test_a_recovery_that_fails_leaves_no_file_open(
    tmp_path: Path, left: list[Callable[[], bytearray]]
) -> None:
    open_before = len(list(Path("/proc/self/fd").iterdir()))

    def refuse(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    for attempt in range(3):
        directory = tmp_path / str(attempt)
        if left:
            written = write(directory, build(left))
            os.truncate(log_files(directory)[0], written.units[0][2])  # its filler is missing
        else:
            directory.mkdir()
            (directory / f"{0:020d}.log").touch()  # its process was killed before the checkpoint
        with pytest.raises(MillraceError, match="cannot open the log"):
            PartitionLog(directory, LogConfig(), Clock(), refuse)
    assert len(list(Path("/proc/self/fd").iterdir())) <= open_before


def test_a_new_log_flushes_no_empty_file(tmp_path: Path) -> None:
    flushed: list[int] = []
    log = PartitionLog(tmp_path / "new", LogConfig(), Clock(), flushed.append)
    assert not flushed
    log.close()


@pytest.mark.parametrize("byte", range(12))
def test_a_slice_ends_before_a_batch_that_does_not_stand_where_it_must(tmp_path: Path, byte: int) -> None:
    log = open_log(tmp_path)
    bases = [result.base_offset for result in appended(log, *[batch(3, b"x" * 40) for _ in range(20)])]
    log.close()
    path = log_files(tmp_path)[0]
    data = bytearray(path.read_bytes())
    data[bases[10] + byte] ^= 1
    path.write_bytes(data)
    log = open_log(tmp_path)
    assert len(slice_bytes(log.read(0, 1 << 20))) == bases[10]
    assert [header.base_offset for header in batches_at(log, 0)] == bases[:10]
    with pytest.raises(CorruptMessage):
        log.read(bases[10], 1 << 20)
    assert [header.base_offset for header in batches_at(log, bases[11])] == bases[11:]
    log.close()
