"""Look-ups by offset and by time: a bisection of landmarks and a short walk, whatever payloads contain."""

from __future__ import annotations

import os
import random
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from millrace.errors import CorruptMessage
from millrace.records import HEADER, BatchHeader, batch_crc, split_batches
from millrace_broker.storage import chain, landmarks, partition_log, reading, recovery
from millrace_broker.storage.chain import LogFile
from millrace_broker.storage.checkpoint import FILE_NAME
from millrace_broker.storage.landmarks import Landmarks, LandmarksMissing
from millrace_broker.storage.partition_log import PartitionLog
from millrace_broker.storage.reading import RECENT_POSITIONS, RecentPositions
from millrace_broker.storage.segment import Segment
from tests.support import wait_until
from tests.unit.storage.logs import (
    ORIGIN,
    PRINCIPAL,
    Appended,
    Clock,
    appended,
    batch,
    batches_at,
    consume,
    crash,
    crowded_batch,
    flush,
    forget_readers,
    log_files,
    open_log,
    origin_batches,
    position,
    slice_bytes,
)

SPAN = 2000


def count_at_least(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count `size` bytes for a smaller batch, wherever batches are counted."""
    for module in (landmarks, partition_log, recovery):
        monkeypatch.setattr(module, "LEAST_BATCH_BYTES", size)


@pytest.fixture(autouse=True)
def small_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    """A landmark every 2,000 bytes, so that a few kilobytes are as good as a gigabyte."""
    monkeypatch.setattr(landmarks, "SPAN_BYTES", SPAN)
    count_at_least(100, monkeypatch)
    for module in (landmarks, reading):
        monkeypatch.setattr(module, "WALKED_HEADERS", 2 * (SPAN // 100 + 1))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Record the ranges of the headers that look-ups read, by position."""
    found: list[tuple[int, int]] = []
    real = os.pread

    def noted(fd: int, length: int, offset: int) -> bytes:
        found.append((offset, offset + length))
        return real(fd, length, offset)

    # One header at a time: else a read of 64 KiB takes in all of these logs.
    monkeypatch.setattr(chain, "READ_AHEAD_BYTES", HEADER.size)
    monkeypatch.setattr(os, "pread", noted)
    return found


def filled(directory: Path, count: int = 200, **settings: int) -> tuple[PartitionLog, list[Appended]]:
    log = open_log(directory, None, **settings)
    results = [appended(log, batch(1, b"x" * 30, timestamp=1000 + 10 * index))[0] for index in range(count)]
    flush(log)
    return log, results


def values(log: PartitionLog, index: int = -1) -> list[int]:
    return log.snapshot[1].segments[index].known_landmarks().values.tolist()


def test_the_log_notes_a_landmark_for_every_span_with_the_largest_timestamp_and_the_next_offset_before_it(
    tmp_path: Path,
) -> None:
    log, results = filled(tmp_path)
    assert values(log)[:3] == [0, -1, 0]
    positions, newest, next_offsets = values(log)[::3], values(log)[1::3], values(log)[2::3]
    assert len(positions) == pytest.approx(log.end / SPAN, abs=2)
    bases = [result.base_offset for result in results]
    assert newest[1:] == [1000 + 10 * (bases.index(at) - 1) for at in positions[1:]]
    assert next_offsets[1:] == [bases[bases.index(at) - 1] + 1 for at in positions[1:]]
    assert max(after - before for before, after in pairwise(positions)) <= SPAN
    log.close()


def test_within_one_append_of_many_batches_they_are_noted_too(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    results = appended(log, *[batch(1, b"x" * 30, timestamp=10 * index) for index in range(200)])
    assert len(values(log)) // 3 == pytest.approx(log.end / SPAN, abs=2)
    assert set(values(log)[::3]) <= {result.base_offset for result in results}
    log.close()


def test_tiny_batches_get_a_landmark_after_a_number_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count_at_least(500, monkeypatch)
    log, results = filled(tmp_path, 40)
    bases = [result.base_offset for result in results]
    assert values(log)[::3] == bases[:: SPAN // 500]
    log.close()


def test_a_large_batch_begins_at_a_landmark_and_ends_at_one_its_filler_does_neither(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    results = appended(log, batch(1), batch(1, b"x" * 9000), crowded_batch(5000), batch(1), batch(1))
    assert values(log)[::3] == [results[index].base_offset for index in (0, 1, 2, 3)]
    log.close()


def test_an_append_that_fails_leaves_no_landmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, _ = filled(tmp_path, 5)
    before = values(log)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", full)
        log.append([batch(1, b"x" * 3000)] * 3, [PRINCIPAL] * 3)
    assert values(log) == before
    appended(log, *[batch(1, b"x" * 3000) for _ in range(2)])
    assert len(values(log)) > len(before)
    log.close()


def test_every_offset_is_found(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    chance = random.Random(5)
    batches = [batch(chance.randint(1, 40), chance.randbytes(chance.randint(0, 90))) for _ in range(40)]
    batches[7], batches[31] = crowded_batch(900), crowded_batch(200)
    expected = []
    for each in batches:
        header = BatchHeader.parse(each)
        assert header is not None
        result = appended(log, each)[0]
        expected.append((result.base_offset, result.base_offset + header.records_count))
    flush(log)
    for offset in range(0, log.high_watermark, 11):
        forget_readers(log)
        base = next(base for base, next_offset in expected if next_offset > offset)
        assert batches_at(log, offset, 1)[0].base_offset == base
    log.close()


@pytest.mark.parametrize("reopened", ["not", "after a close", "after a kill"])
def test_a_look_up_reads_no_further_than_from_one_landmark_to_the_next(
    tmp_path: Path, reads: list[tuple[int, int]], reopened: str
) -> None:
    log, results = filled(tmp_path, 400)
    if reopened != "not":
        log.close() if reopened == "after a close" else crash(log)
        log = open_log(tmp_path)
    for result in random.Random(1).sample(results, 30):
        forget_readers(log)
        reads.clear()
        assert batches_at(log, result.base_offset, 1)[0].base_offset == result.base_offset
        assert max(end for _, end in reads) - min(start for start, _ in reads) < SPAN + 300
        reads.clear()
        index = results.index(result)
        assert log.offset_for_timestamp(1000 + 10 * index) == (result.base_offset, 1000 + 10 * index)
        assert max(end for _, end in reads) - min(start for start, _ in reads) < SPAN + 300
    log.close()


def test_event_times_that_step_back_are_looked_up_right(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=9000)
    chance = random.Random(3)
    times = [chance.randint(0, 500) + 3 * index for index in range(300)]
    bases = [appended(log, batch(1, timestamp=time))[0].base_offset for time in times]
    flush(log)
    for wanted in range(0, 1300, 7):
        expected = next(
            ((base, time) for base, time in zip(bases, times, strict=True) if time >= wanted), None
        )
        assert log.offset_for_timestamp(wanted) == expected
    log.close()


def test_the_largest_time_is_that_of_a_visible_message_and_of_the_first_that_has_it(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=9000)
    chance = random.Random(4)
    visible: list[tuple[int, int]] = []
    for _ in range(30):
        times = [chance.randint(0, 100) + chance.randrange(3) * len(visible) for _ in range(10)]
        bases = [appended(log, batch(1, timestamp=time))[0].base_offset for time in times]
        expected = max(visible, key=lambda one: (one[1], -one[0]), default=None)
        assert log.offset_of_max_timestamp() == expected, "what is not flushed does not count"
        flush(log)
        visible += zip(bases, times, strict=True)
    log.close()


def test_a_sequential_reader_of_one_large_batch_at_a_time_looks_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    appended(log, *[batch(3, b"x" * 100_000) for _ in range(10)])
    flush(log)
    monkeypatch.setattr("millrace_broker.storage.reading.locate", None)
    assert len(list(consume(log, 0, max_bytes=500_000))) == 10
    log.close()


def headers_of_fetches(log: PartitionLog, reads: list[tuple[int, int]], max_bytes: int) -> list[int]:
    """Return the number of headers each fetch of a sequential reader reads, until the log's end."""
    found, offset = list[int](), 0
    while (piece := log.read(offset, max_bytes)) is not None:
        found.append(len(reads))
        offset = [header for header, _ in split_batches(slice_bytes(piece))][-1].next_offset
        reads.clear()
    assert offset == log.high_watermark
    return found


def of_segments(directory: Path, times: int) -> PartitionLog:
    """A log of single messages in closed segments and one that is appended to."""
    log, _ = filled(directory, times, segment_bytes=15_000)
    assert len(log_files(directory)) > 2
    return log


@pytest.mark.parametrize("max_bytes", [SPAN, SPAN + 300, 3 * SPAN])
def test_a_sequential_reader_goes_on_at_landmarks_and_walks_only_at_the_end_of_a_segment(
    tmp_path: Path, reads: list[tuple[int, int]], max_bytes: int
) -> None:
    log = of_segments(tmp_path, 600)
    in_a_span = SPAN // len(batch(1, b"x" * 30)) + 1
    counts = headers_of_fetches(log, reads, max_bytes)
    assert len(counts) <= 2 * log.end / max_bytes + 10
    walks = [count for count in counts if count > 6]
    assert len(walks) < len(log_files(tmp_path))
    assert max(counts) <= 2 * in_a_span
    log.close()


def test_a_reader_that_begins_anywhere_comes_to_landmarks_with_its_first_fetch(
    tmp_path: Path, reads: list[tuple[int, int]]
) -> None:
    log, results = filled(tmp_path, 400)
    for result in results[::7][:40]:
        forget_readers(log)
        first = batches_at(log, result.base_offset, SPAN)
        reads.clear()
        assert log.read(first[-1].next_offset, SPAN) is not None
        assert len(reads) <= 6
    log.close()


def test_a_reader_of_little_at_a_time_walks_no_further_than_over_what_it_read_last(
    tmp_path: Path, reads: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landmarks, "SPAN_BYTES", 10 * SPAN)
    log, _ = filled(tmp_path, 600)
    in_a_fetch = SPAN // len(batch(1, b"x" * 30)) + 1
    assert max(headers_of_fetches(log, reads, SPAN)) <= in_a_fetch + 5
    log.close()


def test_a_fetch_ends_with_a_whole_batch_wherever_a_landmark_lies(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    chance = random.Random(8)
    sizes = [chance.choice([10, 10, 300, 1500, 2500, 5000]) for _ in range(80)]
    bases = [result.base_offset for result in appended(log, *[batch(1, b"x" * size) for size in sizes])]
    flush(log)
    for max_bytes in (1, 400, 1900, SPAN, 4500, 100_000):
        assert [header.base_offset for header in consume(log, 0, max_bytes)] == bases
    log.close()


def mixed(log: PartitionLog, seed: int) -> None:
    """Batches of all kinds that a producer sends."""
    chance = random.Random(seed)
    for _ in range(40):
        batches = [
            crowded_batch(chance.randint(100, 3000))
            if chance.random() < 0.1
            else batch(
                chance.randint(1, 9),
                b"x" * chance.choice([0, 20, 90, 700]),
                timestamp=chance.randint(1, 9999),
            )
            for _ in range(chance.randint(1, 9))
        ]
        appended(log, *batches)
    flush(log)


def mirrored(log: PartitionLog, seed: int) -> None:
    """Batches with positions behind them."""
    chance, offset = random.Random(seed), 0
    for turn in range(120):
        counts = [chance.randint(1, 9) for _ in range(2)]
        log.append_mirrored(
            ORIGIN,
            offset if turn else None,
            origin_batches(counts, offset),
            position(offset + sum(counts), batches=2 * turn + 2, records=offset + sum(counts)),
        )
        offset += sum(counts)
    flush(log)


@pytest.mark.parametrize("fill", [mixed, mirrored])
@pytest.mark.parametrize("seed", range(5))
def test_the_log_a_recovery_and_a_build_note_the_same_landmarks(
    tmp_path: Path, fill: Callable[[PartitionLog, int], None], seed: int
) -> None:
    log = open_log(tmp_path, segment_bytes=15_000)
    fill(log, seed)
    kept = [values(log, index) for index in range(len(log_files(tmp_path)))]
    assert len(kept) > 1
    for segment, noted in zip(log.snapshot[1].segments, kept, strict=True):
        reader = segment.open_reader()
        assert landmarks.build_landmarks(reader, segment.end).values.tolist() == noted
    crash(log)
    (tmp_path / FILE_NAME).unlink()
    for path in tmp_path.glob("*.landmarks"):
        path.unlink()
    log = open_log(tmp_path, segment_bytes=15_000)
    assert [values(log, index) for index in range(len(kept))] == kept
    log.close()


@pytest.mark.parametrize("fill", [mixed, mirrored])
def test_with_landmarks_and_with_what_readers_left_an_offset_is_where_the_headers_say(
    tmp_path: Path, fill: Callable[[PartitionLog, int], None]
) -> None:
    log = open_log(tmp_path)
    fill(log, 6)
    (segment,) = log.snapshot[1].segments
    known = segment.known_landmarks()
    reader = segment.open_reader()
    found = list(chain.walk(reader, segment.base, segment.end))
    units = {header.next_offset: at for at, header in found if header.base_offset == at}
    ends, chance = [*units], random.Random(2)
    # Mostly where batches begin and end: nothing tells the offsets within one of them apart.
    edges = {edge + near for edge in (0, *ends) for near in (-2, -1, 0, 1)}
    for offset in sorted({*range(0, log.high_watermark, 50)} | edges & {*range(log.high_watermark)}):
        expected = units[ends[bisect_right(ends, offset)]]
        assert landmarks.locate(known, reader, offset, segment.end) == expected
        if chance.random() < 0.2:
            somewhere = chance.randrange(log.high_watermark)
            max_bytes = chance.choice([1, 300, SPAN, 4 * SPAN])
            assert log.read(somewhere, max_bytes) is not None
        piece = log.read(offset, 1)
        assert piece is not None
        assert piece.position == expected
    log.close()


# What payloads contain


def stamped(position: int, content: bytearray) -> bytes:
    """A batch that claims to stand at `position`."""
    forged = bytearray(content)
    forged[:8] = position.to_bytes(8, "big")
    return bytes(forged)


def forged_at(end: int, per_batch: int, records: int) -> bytearray:
    """A batch whose values are forged batches that state the positions at which they will stand."""
    start = end + len(batch(2))
    inner = batch(records, b"lie")
    for _ in range(4):  # the place of a value depends on the lengths before it: settle
        outer = batch(1, bytes(inner) * per_batch)
        offset = outer.find(inner[8:61])
        value = b"".join(
            stamped(start + offset - 8 + index * len(inner), inner) for index in range(per_batch)
        )
        outer = batch(1, value)
    # As many records as bytes make offsets reach over the forged batches.
    outer[23:27] = (len(outer) - 10).to_bytes(4, "big")
    outer[57:61] = (len(outer) - 9).to_bytes(4, "big")
    outer[17:21] = batch_crc(outer).to_bytes(4, "big")
    return outer


@pytest.mark.parametrize("max_bytes", [1, 400, 100_000])
def test_forged_batches_in_a_payload_do_not_fool_a_consumer(tmp_path: Path, max_bytes: int) -> None:
    """The producer guesses its position and hides whole, intact batches for exactly those positions."""
    log = open_log(tmp_path)
    real = []
    for _ in range(6):
        results = appended(log, batch(2), forgery := forged_at(log.end, per_batch=3, records=90))
        real += [result.base_offset for result in results]
        assert forgery[:8] == results[1].base_offset.to_bytes(8, "big")
    flush(log)
    assert [header.base_offset for header in consume(log, 0, max_bytes)] == real
    # Nor one that continues from any offset after a restart.
    for start in range(0, log.high_watermark, 7):
        forget_readers(log)
        found = [header.base_offset for header in consume(log, start, max_bytes)]
        assert found == [base for base in real if base in found]
        assert len(found) >= len([base for base in real if base >= start])
    log.close()


def test_a_look_up_among_forged_batches_reads_no_more_than_any_other(
    tmp_path: Path, reads: list[tuple[int, int]]
) -> None:
    log, _ = filled(tmp_path, 300)
    results = appended(log, batch(2), forged_at(log.end, 3, 2))
    flush(log)
    for offset in (log.high_watermark - 2, log.high_watermark - 2, log.high_watermark - 1):
        forget_readers(log)
        reads.clear()
        assert batches_at(log, offset, 1)[0].base_offset == results[1].base_offset
        assert min(start for start, _ in reads) > log.end - SPAN - 2000
    log.close()


# Damage


@pytest.mark.parametrize("byte", [0, 7, 8, 11, 16])
def test_behind_a_damaged_header_the_next_batch_and_the_next_landmark_are_found(
    tmp_path: Path, byte: int
) -> None:
    log, results = filled(tmp_path)
    marks = values(log)[::3]
    log.close()
    bases = [result.base_offset for result in results]
    damaged = bases.index(marks[3]) + 3
    flip(tmp_path, bases[damaged] + byte)
    log = open_log(tmp_path)
    for base in (bases[damaged - 1], bases[damaged + 1], marks[4], marks[4] + 50):
        forget_readers(log)
        wanted = next(each for each in bases if each + 1 > base)
        assert batches_at(log, base, 1)[0].base_offset == wanted
    for offset in (bases[damaged], bases[damaged] + 1, bases[damaged + 1] + 1):
        forget_readers(log)
        with pytest.raises(CorruptMessage):
            log.read(offset, 1)
    log.close()


def test_offsets_of_a_damaged_batch_before_a_landmark_are_not_passed_over(tmp_path: Path) -> None:
    log, results = filled(tmp_path)
    log.close()
    bases = [result.base_offset for result in results]
    mark = values(log)[::3][3]
    damaged = bases[bases.index(mark) - 1]
    flip(tmp_path, damaged)
    log = open_log(tmp_path)
    log.snapshot[1].segments[0].landmarks = Landmarks()
    log.snapshot[1].segments[0].build_landmarks()
    assert batches_at(log, mark, 1)[0].base_offset == mark
    for offset in (damaged, damaged + 1, mark - 1):
        forget_readers(log)
        with pytest.raises(CorruptMessage):
            log.read(offset, 1)
    log.close()


def test_when_the_whole_file_is_zeros_the_answer_is_corrupt_message_told_a_hundred_times_at_most(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log, results = filled(tmp_path, 300)
    log.close()
    path = next(tmp_path.glob("*.log"))
    path.write_bytes(bytes(path.stat().st_size))
    log = open_log(tmp_path)
    for result in results:
        with pytest.raises(CorruptMessage):
            read_with_landmarks(log, result.base_offset)
    assert 0 < len([record for record in caplog.records if record.levelname == "ERROR"]) <= 100
    log.close()


def flip(directory: Path, at: int) -> None:
    path = next(path for path in reversed(log_files(directory)) if int(path.stem) <= at)
    data = bytearray(path.read_bytes())
    data[at - int(path.stem)] ^= 1
    path.write_bytes(data)


def read_with_landmarks(log: PartitionLog, offset: int) -> BatchHeader:
    """The batch at an offset, as a fetch gets it that waits until the landmarks are built."""
    forget_readers(log)
    try:
        return batches_at(log, offset, 1)[0]
    except LandmarksMissing:
        log.build_landmarks()
        return batches_at(log, offset, 1)[0]


# Where they are kept


def test_a_closed_segments_landmarks_are_in_a_file_that_a_look_up_reads(
    tmp_path: Path, reads: list[tuple[int, int]]
) -> None:
    log, results = filled(tmp_path, 400, segment_bytes=15_000)
    kept = [values(log, index) for index in range(len(log_files(tmp_path)))]
    log.close()
    assert len(kept) >= 3
    files = sorted(path.stem for path in tmp_path.glob("*.landmarks"))
    assert files == [path.stem for path in log_files(tmp_path)[:-1]]
    log = open_log(tmp_path, segment_bytes=15_000)
    assert [values(log, index) for index in range(len(kept))] == kept
    assert [item.landmarks is None for item in log.snapshot[1].segments] == [True] * (len(kept) - 1) + [False]
    reads.clear()
    assert batches_at(log, results[100].base_offset, 1)[0].base_offset == results[100].base_offset
    assert max(end for _, end in reads) - min(start for start, _ in reads) < SPAN + 300
    log.close()


def lose(path: Path) -> None:
    path.unlink()


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)


def swap(path: Path) -> None:
    other = next(each for each in path.parent.glob("*.landmarks") if each != path)
    path.write_bytes(other.read_bytes())


def move(path: Path) -> None:
    """A whole file with a right CRC whose landmarks are no boundaries."""
    text = path.read_bytes().partition(b"\n")[0].replace(b"[0,-1,0,", b"[0,-1,0,77,3,70,")
    path.write_bytes(b"%s\n%08x\n" % (text, zlib.crc32(text)))


@pytest.mark.parametrize("spoil", [lose, damage, swap, move])
def test_a_file_of_landmarks_that_is_not_right_is_built_anew_when_a_look_up_needs_it(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    log, results = filled(tmp_path, 400, segment_bytes=15_000)
    log.close()
    path = sorted(tmp_path.glob("*.landmarks"))[0]
    right = path.read_bytes()
    spoil(path)
    log = open_log(tmp_path, segment_bytes=15_000)
    wanted = results[100] if spoil is not move else results[1]
    with pytest.raises(LandmarksMissing):
        log.read(wanted.base_offset, 1)
    assert path.exists() == (spoil is not lose), "a look-up on the loop writes nothing"
    log.build_landmarks()
    assert batches_at(log, wanted.base_offset, 1)[0].base_offset == wanted.base_offset
    assert path.read_bytes() == right
    lose(path)
    assert log.offset_for_timestamp(1000 + 1000) == (results[100].base_offset, 2000)
    assert path.read_bytes() == right
    log.close()


def without_landmarks(directory: Path) -> None:
    """Make of a closed log what an older Millrace wrote."""
    import json

    path = directory / FILE_NAME
    fields = json.loads(path.read_bytes().partition(b"\n")[0])
    del fields["landmarks"]
    fields["version"] = 1
    fields["segments"] = [[base, newest, 77, after] for base, newest, after in fields["segments"]]
    text = json.dumps(fields, separators=(",", ":")).encode()
    path.write_bytes(b"%s\n%08x\n" % (text, zlib.crc32(text)))
    for each in directory.glob("*.landmarks"):
        each.unlink()


def test_a_checkpoint_and_a_file_of_landmarks_of_two_numbers_are_passed_over(tmp_path: Path) -> None:
    log, results = filled(tmp_path, 400, segment_bytes=15_000)
    log.close()
    for path in (tmp_path / FILE_NAME, *tmp_path.glob("*.landmarks")):
        text = path.read_bytes().partition(b"\n")[0].replace(b'"version":3', b'"version":2')
        if path.name != FILE_NAME:
            text = text.replace(b'"version":2', b'"version":1')
        path.write_bytes(b"%s\n%08x\n" % (text, zlib.crc32(text)))
    log = open_log(tmp_path, segment_bytes=15_000)
    assert not any(values(log, index) for index in range(len(log_files(tmp_path))))
    for result in results[::9]:
        assert read_with_landmarks(log, result.base_offset).base_offset == result.base_offset
    log.close()


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_written_before_there_were_landmarks_is_read_and_gets_them_once(
    tmp_path: Path, clean: bool
) -> None:
    clock = Clock()
    log, results = filled(tmp_path, 400, segment_bytes=15_000)
    log.close()
    without_landmarks(tmp_path)
    log = open_log(tmp_path, clock, segment_bytes=15_000)
    results += appended(log, *[batch(1, b"x" * 30, timestamp=9000 + index) for index in range(300)])
    flush(log)
    bases = [result.base_offset for result in results]
    for base in bases:
        assert read_with_landmarks(log, base).base_offset == base
    clock.now += 60
    log.apply_retention()  # writes the checkpoint
    log.close() if clean else crash(log)
    log = open_log(tmp_path, segment_bytes=15_000)
    for base in bases:
        forget_readers(log)
        assert batches_at(log, base, 1)[0].base_offset == base
    log.close()


def test_landmarks_that_several_look_ups_lack_are_built_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, results = filled(tmp_path, 400)
    log.close()
    without_landmarks(tmp_path)
    log = open_log(tmp_path)
    asked, builds = list[int](), list[int]()
    ask, build = Segment.build_landmarks, landmarks.build_landmarks

    def noted(wanted: Segment) -> Landmarks:
        asked.append(wanted.base)
        return ask(wanted)

    def held_up(file: LogFile, end: int) -> Landmarks:
        wait_until("all have asked", lambda: len(asked) == 4)
        builds.append(file.base)
        return build(file, end)

    monkeypatch.setattr(Segment, "build_landmarks", noted)
    monkeypatch.setattr("millrace_broker.storage.segment.build_landmarks", held_up)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(log.offset_for_timestamp, [3000] * 4))
    assert found == [(results[200].base_offset, 3000)] * 4
    assert builds == [0]
    log.close()


class Replaced(array):  # type: ignore[type-arg]  # array takes no parameter at run time
    """Positions and timestamps of landmarks that a thread puts fewer in the place of, at the first look."""

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, int) and len(self) > 6:
            self[:9] = array("q", [0, -1, 0])
        return super().__getitem__(key)


@pytest.mark.parametrize("look_up", [lambda m: m.before_offset(250, 0), lambda m: m.before_timestamp(25, 0)])
def test_a_look_up_never_begins_behind_its_place_while_fewer_landmarks_take_the_place_of_more(
    look_up: Callable[[Landmarks], int],
) -> None:
    # A segment whose landmarks are built anew has fewer: each start of the broker had noted one more.
    assert look_up(Landmarks(Replaced("q", [0, -1, 0, 100, 10, 95, 200, 20, 195, 300, 30, 295]))) <= 250


def test_while_landmarks_are_built_every_look_up_there_is_put_off_at_once(
    tmp_path: Path, reads: list[tuple[int, int]]
) -> None:
    log, results = filled(tmp_path, 400)
    log.close()
    without_landmarks(tmp_path)
    log = open_log(tmp_path)
    with pytest.raises(LandmarksMissing):
        log.read(results[300].base_offset, 1)
    reads.clear()
    with pytest.raises(LandmarksMissing):
        log.read(results[200].base_offset, 1)
    assert not reads
    log.close()


def test_landmarks_beyond_a_cut_go_with_what_was_cut(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=15_000)
    results = [appended(log, batch(1, b"x" * 30))[0] for _ in range(400)]
    log.publish(log.flush())
    crash(log)
    assert not list(tmp_path.glob("*.landmarks")), "no checkpoint was written yet"
    files = log_files(tmp_path)
    cut = next(result for result in results[150:] if result.base_offset > int(files[1].stem) + 5000)
    os.truncate(files[1], cut.base_offset - int(files[1].stem) + 30)
    log = open_log(tmp_path, segment_bytes=15_000)
    assert log.end == cut.base_offset
    assert max(values(log)[::3]) < cut.base_offset
    again = appended(log, *[batch(7, b"y" * 90) for _ in range(30)])
    flush(log)
    for result in again:
        forget_readers(log)
        assert batches_at(log, result.base_offset, 1)[0].base_offset == result.base_offset
    log.close()


def test_a_closed_segment_that_a_cut_makes_the_last_again_keeps_no_file_of_landmarks(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path, clock, segment_bytes=15_000)
    results = [appended(log, batch(1, b"x" * 30))[0] for _ in range(400)]
    log.publish(log.flush())
    checkpoint = (tmp_path / FILE_NAME).read_bytes()
    log.close()
    (tmp_path / FILE_NAME).write_bytes(checkpoint)  # the power went between the files and the checkpoint
    files = log_files(tmp_path)
    flip(tmp_path, int(files[1].stem) + 5000)
    log = open_log(tmp_path, segment_bytes=15_000)
    assert log_files(tmp_path) == files[:2]
    assert [path.stem for path in tmp_path.glob("*.landmarks")] == [files[0].stem]
    kept = [result.base_offset for result in results if result.base_offset < log.end]
    for base in kept:
        forget_readers(log)
        assert batches_at(log, base, 1)[0].base_offset == base
    log.close()


def test_retention_takes_the_landmarks_with_the_segment(tmp_path: Path) -> None:
    log, _ = filled(tmp_path, 400, segment_bytes=15_000, retention_bytes=20_000)
    assert log.apply_retention()
    log.close()
    assert {path.stem for path in tmp_path.glob("*.landmarks")} == {
        path.stem for path in log_files(tmp_path)[:-1]
    }


def test_a_mirrored_log_has_landmarks_at_data_and_position_batches(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    offset = 0
    for turn in range(60):
        log.append_mirrored(
            ORIGIN,
            offset if turn else None,
            origin_batches([2, 1], offset),
            position(offset + 3, batches=2 * turn + 2, records=3 * turn + 3),
        )
        offset += 3
    flush(log)
    assert len(values(log)) // 3 == pytest.approx(log.end / SPAN, abs=4)
    bases = [header.base_offset for header in consume(log, 0)]
    crash(log)
    log = open_log(tmp_path)
    for base in bases:
        forget_readers(log)
        assert batches_at(log, base, 1)[0].base_offset == base
    log.close()


def test_the_positions_of_readers_are_bounded_and_the_latest_are_kept() -> None:
    recent = RecentPositions()
    for offset in range(5 * RECENT_POSITIONS):
        recent.note(offset, offset + 10)
    assert len(recent._positions) == RECENT_POSITIONS == 32
    assert recent.before(0) == 0
    assert recent.before(offset) == recent.before(offset + 5) == offset + 10
    assert recent.before(offset - 1) == offset + 9


def test_reads_of_cold_segments_hold_few_descriptors(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=200)
    bases = [appended(log, batch(2))[0].base_offset for _ in range(60)]
    flush(log)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for base in bases:
        log.read(base, 100)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 3
    crash(log)


def test_slices_of_many_segments_share_a_descriptor_for_each_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=100)
    bases = [appended(log, batch(2))[0].base_offset for _ in range(6)]
    flush(log)
    before = len(list(Path("/proc/self/fd").iterdir()))
    unsent = [log.read(base, 100) for _ in range(20) for base in bases]
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + len(bases)
    del unsent
    crash(log)
