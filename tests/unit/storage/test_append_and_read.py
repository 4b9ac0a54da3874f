"""Appends, flushes and fetches on one partition: the rules that keep byte-position offsets right."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from millrace.config import LogConfig
from millrace.errors import InvalidRecord, OffsetOutOfRange
from millrace.records import BatchHeader, Message, batch_crc, build_batch
from millrace.records.compression import Codec
from millrace_broker.storage import segment as segment_module
from millrace_broker.storage.partition_log import PartitionLog
from millrace_broker.storage.staging import MAX_FILLER_BYTES, MAX_FILLER_RATIO
from tests.unit.storage.logs import (
    PRINCIPAL,
    Appended,
    Clock,
    append,
    appended,
    batch,
    batches_at,
    consume,
    crowded_batch,
    flush,
    forget_readers,
    log_files,
    open_log,
    slice_bytes,
)


def test_a_batch_is_stamped_with_its_byte_position(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    first, second = batch(), batch(4)
    results = appended(log, first, second)
    assert results == [Appended(0, False, len(first)), Appended(len(first), False, len(first) + len(second))]
    on_disk = log_files(tmp_path)[0].read_bytes()
    assert on_disk == bytes(first + second)
    header = BatchHeader.parse(on_disk, len(first))
    assert header is not None
    assert (header.base_offset, header.partition_leader_epoch) == (len(first), 0)
    end, third = log.end, batch()
    assert appended(log, third) == [Appended(end, False, end + len(third))], "without a landmark, too"
    assert log_files(tmp_path)[0].read_bytes() == bytes(first + second + third)
    log.close()


def test_read_only_buffers_are_copied_not_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    frozen = bytes(batch())
    appended(log, batch())
    log.append([frozen, memoryview(frozen)], [PRINCIPAL] * 2)
    flush(log)
    assert len(list(consume(log, 0))) == 3
    log.close()


def test_nothing_is_visible_before_it_is_flushed_and_published(tmp_path: Path) -> None:
    synced: list[Path] = []

    def sync(fd: int) -> None:
        os.fdatasync(fd)
        synced.append(Path(f"/proc/self/fd/{fd}").readlink())

    log = PartitionLog(tmp_path, LogConfig(), Clock(), sync)
    appended(log, batch(3))
    synced.clear()
    assert (log.high_watermark, log.visible_end, log.unflushed_messages) == (0, 0, 3)
    assert log.read(0, 1000) is None
    flushed = log.flush()
    assert log_files(tmp_path)[0] in synced, "it is on the disk"
    assert log.read(0, 1000) is None
    assert log.publish(flushed)
    assert (log.high_watermark, log.unflushed_messages) == (3, 0)
    assert log.visible_end == log.end > 3
    assert not log.publish(flushed), "the same flush shows nothing new"
    log.close()


def test_what_is_appended_during_a_flush_waits_for_the_next_one(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    appended(log, batch(2))
    flushed = log.flush()
    later = appended(log, batch(5))[0]
    log.publish(flushed)
    assert log.visible_end == later.base_offset
    assert log.unflushed_messages == 5
    assert flush(log)
    assert log.high_watermark == later.base_offset + 5
    log.close()


def test_what_is_appended_while_the_disk_works_is_not_part_of_that_flush(tmp_path: Path) -> None:
    def sync(fd: int) -> None:
        os.fdatasync(fd)
        if late:
            appended(log, late.pop())

    late: list[bytearray] = []
    log = PartitionLog(tmp_path, LogConfig(), Clock(), sync)
    first = appended(log, batch(3))[0]
    late.append(batch(3))
    flush(log)
    assert log.visible_end == first.end < log.end
    assert (log.high_watermark, log.unflushed_messages) == (3, 3)
    log.close()


def test_the_high_watermark_is_the_last_record_plus_one_and_never_the_file_size(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    last = appended(log, batch(3), batch(7))[1]
    flush(log)
    assert log.high_watermark == last.base_offset + 7 < log.end
    for offset in range(log.high_watermark, log.end + 1):
        assert log.read(offset, 1000) is None
    with pytest.raises(OffsetOutOfRange):
        log.read(log.end + 1, 1000)
    log.close()


def test_an_offset_that_is_appended_and_not_yet_flushed_is_early_not_out_of_range(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    told = appended(log, batch(3), batch(3))[1]
    assert log.read(told.base_offset + 2, 1000) is None
    log.close()


def test_a_fetch_inside_a_batch_returns_all_of_it_and_in_a_gap_the_next(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    sizes = [appended(log, batch(records))[0] for records in (3, 1, 8)]
    flush(log)
    first, second, third = sizes
    for offset in range(0, 3):
        assert batches_at(log, offset)[0].base_offset == first.base_offset
    for offset in range(3, second.base_offset + 1):
        assert batches_at(log, offset)[0].base_offset == second.base_offset
    for offset in range(second.base_offset + 1, third.base_offset + 8):
        assert batches_at(log, offset)[0].base_offset == third.base_offset
    log.close()


@pytest.mark.parametrize("max_bytes", [0, 1, 100, 10_000])
def test_a_fetch_returns_one_whole_batch_whatever_the_limit(tmp_path: Path, max_bytes: int) -> None:
    log = open_log(tmp_path)
    big = appended(log, batch(3, b"x" * 1000), batch(3))[0]
    flush(log)
    found = slice_bytes(log.read(0, max_bytes))
    assert len(found) == min(log.end, max(max_bytes, big.end))
    log.close()


def test_a_fetch_does_not_reach_into_the_next_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=250)
    appended(log, *[batch(2) for _ in range(6)])
    flush(log)
    assert len(log_files(tmp_path)) == 3
    assert len(slice_bytes(log.read(0, 1 << 20))) == log_files(tmp_path)[0].stat().st_size
    assert len(list(consume(log, 0))) == 6
    log.close()


def test_a_segment_is_named_after_its_base_and_is_filled_up_to_its_size(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=1000)
    size = len(batch(5))
    for count in [1] * 30 + [15, 15]:  # several appends to a segment, and several segments to an append
        appended(log, *[batch(5) for _ in range(count)])
    position = 0
    for path in log_files(tmp_path):
        assert int(path.stem) == position
        position += path.stat().st_size
        assert path.stat().st_size <= 1000
        assert path.stat().st_size > 1000 - size or position == log.end, "and is full before the next begins"
    assert position == log.end
    log.close()


def test_a_fetch_reads_as_little_of_a_large_log_as_of_a_small_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, pread = 0, os.pread

    def counted(fd: int, size: int, position: int) -> bytes:
        nonlocal read
        read += size
        return pread(fd, size, position)

    def most_read(name: str, batches: int) -> int:
        log = open_log(tmp_path / name, max_message_bytes=1 << 20)
        one = batch(1, b"x" * 20_000)
        bases = [each.base_offset for each in appended(log, *[bytearray(one) for _ in range(batches)])]
        flush(log)
        with monkeypatch.context() as patch:
            patch.setattr(os, "pread", counted)
            found = []
            for base in bases[:: len(bases) // 50]:
                nonlocal read
                read = 0
                forget_readers(log)
                assert batches_at(log, base, 1)[0].base_offset == base
                found.append(read)
        log.close()
        return max(found)

    small, large = most_read("small", 200), most_read("large", 4000)  # 4 MB and 80 MB
    assert large < 1.5 * small


def test_a_batch_larger_than_a_segment_gets_one_of_its_own(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=300)
    appended(log, batch(1), batch(1, b"x" * 1000), batch(1))
    flush(log)
    assert [header.records_count for header in consume(log, 0)] == [1, 1, 1]
    assert len(log_files(tmp_path)) == 3
    log.close()


def test_more_records_than_bytes_are_followed_by_a_filler(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    crowded = crowded_batch(5000)
    first, second = appended(log, crowded, batch(2))
    flush(log)
    assert first.end == len(crowded)
    assert second.base_offset > 5000
    assert [header.base_offset for header in consume(log, 0)] == [0, second.base_offset]
    # Every offset of the crowded batch is found, those too whose bytes the filler occupies.
    for offset in (0, len(crowded), 4999):
        assert batches_at(log, offset)[0].base_offset == 0
    for offset in (5000, 5001, second.base_offset - 1):
        assert batches_at(log, offset)[0].base_offset == second.base_offset
    log.close()


def test_a_filler_at_the_end_is_not_served_and_not_counted(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    crowded = crowded_batch(400)
    appended(log, crowded)
    flush(log)
    assert log.high_watermark == 400 < log.end
    assert len(slice_bytes(log.read(0, 1 << 20))) == len(crowded)
    assert log.read(400, 1000) is None
    assert log.read(log.end, 1000) is None
    log.close()


@pytest.mark.parametrize("excess", range(0, 4))
def test_as_many_records_as_bytes_need_no_filler_and_one_more_does(tmp_path: Path, excess: int) -> None:
    log = open_log(tmp_path)
    size = len(crowded_batch(1))
    appended(log, crowded_batch(size + excess))
    after = appended(log, batch(1))[0]
    flush(log)
    assert (after.base_offset == size) == (excess == 0)
    assert after.base_offset >= size + excess
    assert [header.base_offset for header in consume(log, 0)] == [0, after.base_offset]
    log.close()


def test_a_filler_of_a_mebibyte_is_written_and_a_larger_one_refused_alone(tmp_path: Path) -> None:
    log = open_log(tmp_path, max_message_bytes=1 << 30)
    crowded = partial(crowded_batch, packed=b"z" * 20_000)
    most = len(crowded(1)) + MAX_FILLER_BYTES - 2
    results = append(log, batch(1), crowded(most), crowded(most + 1), crowded(1 << 30))
    assert [isinstance(result, InvalidRecord) for result in results] == [False, False, True, True]
    assert log.end == len(batch(1)) + len(crowded(1)) + MAX_FILLER_BYTES
    flush(log)
    assert [header.records_count for header in consume(log, 0)] == [1, most]
    log.close()


def test_a_few_bytes_take_no_more_than_a_multiple_of_them_whatever_they_state(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    size = len(crowded_batch(1))
    results = append(
        log, crowded_batch(MAX_FILLER_RATIO * size), crowded_batch((MAX_FILLER_RATIO + 2) * size)
    )
    assert [isinstance(result, InvalidRecord) for result in results] == [False, True]
    assert log.end <= (MAX_FILLER_RATIO + 1) * size
    log.close()


def test_an_append_of_nothing_changes_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    appended(log, batch(), crowded_batch(500))
    before, facts = log.appended, replace(log.snapshot[1].segments[-1].facts)
    assert append(log) == []
    assert (log.appended, log.snapshot[1].segments[-1].facts) == (before, facts)


def test_one_append_is_one_write_per_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path, segment_bytes=2000)
    calls = []
    real = os.writev

    def counted(fd: int, buffers: list[bytes]) -> int:
        calls.append(len(buffers))
        return real(fd, buffers)

    monkeypatch.setattr(os, "writev", counted)
    appended(log, *[batch(2) for _ in range(15)])
    assert len(calls) == 1
    appended(log, *[batch(2) for _ in range(15)])
    assert len(calls) == 3, "this append crosses a segment's end"
    log.close()


@pytest.mark.parametrize("most", [1, 7, 100, 361])
def test_short_writes_and_long_lists_of_buffers_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(segment_module, "IOV_MAX", 3)
    real = os.writev

    def short(fd: int, buffers: list[bytes]) -> int:
        assert len(buffers) <= 3
        return real(fd, [b"".join(bytes(buffer) for buffer in buffers)[:most]])

    monkeypatch.setattr(os, "writev", short)
    log = open_log(tmp_path)
    batches = [batch(2) for _ in range(8)]
    appended(log, *batches)
    assert log_files(tmp_path)[0].read_bytes() == bytes(b"".join(batches))
    log.close()


def test_a_large_append_is_written_in_pieces_that_end_where_blocks_of_the_file_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends, real = list[int](), os.writev

    def noting(fd: int, buffers: list[bytes]) -> int:
        written = real(fd, buffers)
        ends.append(os.fstat(fd).st_size)
        return written

    log = open_log(tmp_path)
    block = segment_module.WRITE_BYTES
    small = batch(3)
    appended(log, small)
    monkeypatch.setattr(os, "writev", noting)
    large = [batch(1, os.urandom(size)) for size in (10, 2 * block, 0, 50_000)]
    appended(log, *large)
    assert ends == [*range(block, log.end, block), log.end]
    assert log_files(tmp_path)[0].read_bytes() == bytes(b"".join([small, *large]))
    log.close()


def test_a_reader_of_a_slice_does_not_move_where_the_writer_writes(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    appended(log, batch(3))
    flush(log)
    found = log.read(0, 1000)
    assert found is not None
    os.lseek(found.file.fileno(), 5, os.SEEK_SET)  # as sendfile through asyncio does
    appended(log, batch(3))
    flush(log)
    assert len(list(consume(log, 0))) == 2
    log.close()


def test_offsets_by_timestamp_name_the_first_record_that_is_not_older(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=400)
    bases = [appended(log, batch(2, timestamp=time))[0].base_offset for time in (100, 300, 200, 400, 500)]
    assert log.offset_for_timestamp(0) is log.offset_of_max_timestamp() is None, "nothing is visible yet"
    flush(log)
    assert log.offset_for_timestamp(0) == (bases[0], 100)
    assert log.offset_for_timestamp(150) == (bases[1], 300)
    assert log.offset_for_timestamp(301) == (bases[1] + 1, 301)
    assert log.offset_for_timestamp(302) == (bases[3], 400)
    assert log.offset_for_timestamp(501) == (bases[4] + 1, 501)
    assert log.offset_for_timestamp(502) is None
    log.close()
    log = open_log(tmp_path, segment_bytes=400)
    assert log.offset_for_timestamp(302) == (bases[3], 400), "remembered across a restart"
    log.close()


@pytest.mark.parametrize("codec", list(Codec))
def test_a_time_is_looked_up_inside_compressed_batches(tmp_path: Path, codec: Codec) -> None:
    log = open_log(tmp_path)
    times = [500, 100, 900, 300]  # event times step back; the last batch is for what comes before it
    data = bytearray(build_batch([Message(time, None, b"x" * 100) for time in times], codec=codec))
    (first,) = appended(log, data)
    flush(log)
    found = {t: log.offset_for_timestamp(t) for t in (0, 500, 501, 900, 901)}
    base = first.base_offset
    assert found == {0: (base, 500), 500: (base, 500), 501: (base + 2, 900), 900: (base + 2, 900), 901: None}
    log.close()


def test_a_batch_that_cannot_be_looked_into_stands_for_its_records(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    data = bytearray(build_batch([Message(1, None, b""), Message(9, None, b"")]))
    data[22] |= Codec.ZSTD  # says so, but is not
    data[17:21] = batch_crc(data).to_bytes(4, "big")
    (stored,) = appended(log, data)
    flush(log)
    assert log.offset_for_timestamp(5) == (stored.base_offset, 9)
    log.close()


def test_a_batch_whose_header_promises_a_time_that_no_record_has_stands_for_its_records(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path)
    data = bytearray(build_batch([Message(1, None, b"")]))
    data[35:43] = (900).to_bytes(8, "big")
    data[17:21] = batch_crc(data).to_bytes(4, "big")
    (first, _) = appended(log, data, batch(1, timestamp=50))
    flush(log)
    # Whoever looks for the right one instead reads the rest of the segment, at the will of a producer.
    assert log.offset_for_timestamp(20) == (first.base_offset, 900)
    log.close()


def test_a_deleted_or_closed_log_still_serves_the_slices_it_handed_out(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    appended(log, batch(3))
    flush(log)
    found = log.read(0, 1000)
    log.delete()
    assert not list(tmp_path.iterdir())
    assert len(slice_bytes(found)) == log.end


def test_every_codec_is_stored_as_it_was_sent(tmp_path: Path) -> None:
    from millrace.records.compression import Codec

    log = open_log(tmp_path)
    sent = [bytearray(build_batch([Message(5, b"k", b"v" * 50)] * 4, codec=codec)) for codec in Codec]
    appended(log, *sent)
    flush(log)
    assert slice_bytes(log.read(0, 1 << 20)) == bytes(b"".join(sent))
    log.close()
