"""Leader epochs, as a log stamps them, remembers them and finds them again."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest

from millrace.records import BatchHeader
from millrace_broker.storage.chain import LogFile, walk
from millrace_broker.storage.checkpoint import FILE_NAME
from millrace_broker.storage.epochs import EpochEnd
from tests.unit.storage.logs import (
    ORIGIN,
    Clock,
    append,
    appended,
    batch,
    checkpoint,
    crash,
    crowded_batch,
    flush,
    log_files,
    open_log,
    origin_batches,
    position,
)


def stamped(directory: Path) -> list[int]:
    """The epoch in each header, fillers and positions too."""
    headers: list[BatchHeader] = []
    for path in log_files(directory):
        file = LogFile(path, int(path.stem))
        headers += [header for _, header in walk(file, file.base, file.base + path.stat().st_size)]
    return [header.partition_leader_epoch for header in headers]


def test_each_batch_its_filler_and_a_position_carry_the_epoch_of_the_leader(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t")
    appended(log, batch())
    log.lead(7)
    append(log, crowded_batch(1000))
    assert stamped(tmp_path / "t") == [0, 7, 7]
    assert log.epochs.starts == ((0, 0), (7, len(batch())))
    mirrored = open_log(tmp_path / "m")
    mirrored.lead(3)
    mirrored.append_mirrored(ORIGIN, None, origin_batches([2]), position(2, batches=1, records=2))
    assert stamped(tmp_path / "m") == [3, 3, 3]
    for each in (log, mirrored):
        each.close()


def test_a_leader_that_wrote_nothing_leaves_no_trace_and_an_older_one_never_follows(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.lead(4)
    log.lead(6)
    appended(log, batch())
    log.lead(5)
    appended(log, batch())
    assert stamped(tmp_path) == [6, 6]
    assert log.epochs.starts == ((6, 0),)
    log.close()


@pytest.mark.parametrize("flushes", range(4))
def test_epochs_are_found_again_in_the_checkpoint_and_behind_it(tmp_path: Path, flushes: int) -> None:
    log = open_log(tmp_path, segment_bytes=1024)
    for round_, epoch in enumerate((0, 2, 2, 5)):
        log.lead(epoch)
        appended(log, batch(9, b"x" * 60))
        if round_ == flushes:
            flush(log)
            checkpoint(log)
    starts = log.epochs.starts
    crash(log)
    again = open_log(tmp_path)
    assert again.epochs.starts == starts
    appended(again, batch())
    assert stamped(tmp_path)[-1] == 5  # before anybody has said which epoch it is
    again.close()
    assert open_log(tmp_path).epochs.starts == starts


def test_a_log_without_epochs_is_of_epoch_0(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    appended(log, batch(), batch())
    end = log.end
    log.close()
    path = log_files(tmp_path)[0]
    data = bytearray(path.read_bytes())
    for start in (0, end // 2):
        data[start + 12 : start + 16] = b"\xff" * 4  # as older releases stamped it
    path.write_bytes(data)
    fields = json.loads((tmp_path / FILE_NAME).read_bytes().partition(b"\n")[0])
    del fields["epochs"]
    text = json.dumps(fields).encode()
    (tmp_path / FILE_NAME).write_bytes(b"%s\n%08x\n" % (text, zlib.crc32(text)))
    again = open_log(tmp_path)
    assert again.epochs.starts == ((0, 0),)
    crash(again)
    (tmp_path / FILE_NAME).unlink()
    again = open_log(tmp_path)
    assert (again.epochs.starts, again.end) == (((0, 0),), end)
    appended(again, batch())
    assert again.epochs.end_of(0, again.end) == EpochEnd(0, again.end)
    again.close()


def test_an_epoch_that_falls_above_the_checkpoint_is_cut_off(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    appended(log, batch())
    flush(log)
    checkpoint(log)
    kept = log.end
    log.lead(3)
    appended(log, batch())
    third = log.end
    appended(log, batch())
    crash(log)
    path = log_files(tmp_path)[0]
    data = bytearray(path.read_bytes())
    data[third + 12 : third + 16] = bytes(4)  # its CRC still fits
    path.write_bytes(data)
    again = open_log(tmp_path)
    assert (again.end, again.epochs.starts) == (third, ((0, 0), (3, kept)))
    again.close()


def test_one_wrong_epoch_costs_nothing_where_no_checkpoint_says_what_was_flushed(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    appended(log, batch(), batch(), batch())
    size = log.end // 3
    log.close()
    (tmp_path / FILE_NAME).unlink()
    path = log_files(tmp_path)[0]
    data = bytearray(path.read_bytes())
    data[size + 12] = 0x40
    path.write_bytes(data)
    again = open_log(tmp_path)
    assert again.end == 3 * size
    again.close()


def test_epochs_that_retention_dropped_are_forgotten_and_the_last_one_is_not(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path, clock, segment_bytes=1, retention_ms=1000)
    for epoch in (0, 3, 8):
        log.lead(epoch)
        appended(log, batch())
    flush(log)
    clock.now += 10
    log.apply_retention()
    assert log.epochs.starts == ((8, log.end),)
    log.close()
    again = open_log(tmp_path, clock)
    assert again.epochs.starts == ((8, again.end),)
    again.close()
