"""Finding the batch that holds an offset without an index, whatever payloads contain."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.errors import CorruptMessage
from millrace.records import BatchHeader
from millrace.storage import chain, lookup
from millrace.storage.chain import find_headers, walk
from millrace.storage.partition_log import PartitionLog
from tests.unit.storage.logs import (
    appended,
    batch,
    batches_at,
    consume,
    crash,
    crowded_batch,
    flush,
    open_log,
)


@pytest.fixture
def searching(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look-ups search backwards from the first byte on, as they do far from a segment's base."""
    monkeypatch.setattr(lookup, "SHORT_WALK_BYTES", -(1 << 40))


def fresh(log: PartitionLog) -> None:
    """Forget remembered boundaries, as a restart does."""
    log._reader.boundaries = lookup.Boundaries()


def stamped(position: int, content: bytearray) -> bytes:
    """A batch that claims to stand at `position`."""
    forged = bytearray(content)
    forged[:8] = position.to_bytes(8, "big")
    return bytes(forged)


@pytest.mark.usefixtures("searching")
def test_every_offset_is_found_by_searching(tmp_path: Path) -> None:
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
        fresh(log)
        base = next(base for base, next_offset in expected if next_offset > offset)
        assert batches_at(log, offset, 1)[0].base_offset == base
    log.close()


def test_far_from_the_segments_base_the_log_is_searched_not_walked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    for _ in range(5):
        results = appended(log, *[batch(20, b"x" * 100) for _ in range(100)])
    flush(log)
    base = results[50].base_offset
    reads = []

    def noted(fd: int, base: int, low: int, high: int, limit: int) -> list[tuple[int, int]]:
        reads.append(high - low)
        return find_headers(fd, base, low, high, limit)

    monkeypatch.setattr(lookup, "find_headers", noted)
    monkeypatch.setattr(lookup, "walk", None)
    fresh(log)
    assert batches_at(log, base + 7)[0].base_offset == base
    assert reads[0] <= len(batch(20, b"x" * 100))
    log.close()


def test_a_look_up_among_small_batches_beside_a_large_one_computes_one_crc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    results = appended(log, batch(1, b"x" * 200_000), *[batch(1, b"x" * 100) for _ in range(900)])
    flush(log)
    checked = []
    read_batch = chain.read_batch

    def counted(fd: int, base: int, position: int, header: BatchHeader) -> bytes | None:
        checked.append(position)
        return read_batch(fd, base, position, header)

    monkeypatch.setattr(chain, "read_batch", counted)
    fresh(log)
    assert batches_at(log, results[800].base_offset)[0].base_offset == results[800].base_offset
    assert checked == [results[800].base_offset]
    log.close()


def test_a_sequential_reader_of_large_batches_never_searches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    appended(log, *[batch(3, b"x" * 100_000) for _ in range(10)])
    flush(log)
    monkeypatch.setattr(lookup, "find_headers", None)
    monkeypatch.setattr(lookup, "walk", None)
    assert len(list(consume(log, 0, max_bytes=1_000_000))) == 10
    log.close()


@pytest.mark.usefixtures("searching")
@pytest.mark.parametrize("max_bytes", [1, 400, 100_000])
def test_forged_batches_in_a_payload_do_not_fool_a_sequential_consumer(
    tmp_path: Path, max_bytes: int
) -> None:
    """The producer guesses its position and hides whole, intact batches for exactly those positions."""
    log = open_log(tmp_path)
    real = []
    for _ in range(6):
        results = appended(log, batch(2), forgery := forged_at(log.end, per_batch=3, records=90))
        real += [result.base_offset for result in results]
        assert forgery[:8] == results[1].base_offset.to_bytes(8, "big")
    flush(log)
    assert [header.base_offset for header in consume(log, 0, max_bytes)] == real
    # Nor after a restart, when a consumer continues from any offset and no boundary is remembered.
    for start in range(0, log.high_watermark, 7):
        fresh(log)
        found = [header.base_offset for header in consume(log, start, max_bytes)]
        assert found == [base for base in real if base in found]
        assert len(found) >= len([base for base in real if base >= start])
    log.close()


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
    from millrace.records import batch_crc

    outer[17:21] = batch_crc(outer).to_bytes(4, "big")
    return outer


@pytest.mark.usefixtures("searching")
def test_a_log_is_walked_once_around_forged_batches_not_at_every_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    appended(log, *[batch(1) for _ in range(300)])
    outer = forged_at(log.end, 3, 2)
    results = appended(log, batch(2), outer)
    flush(log)
    fresh(log)
    walked = []

    def noted(fd: int, base: int, start: int, limit: int) -> Iterator[tuple[int, BatchHeader]]:
        for item in walk(fd, base, start, limit):
            walked.append(item)
            yield item

    monkeypatch.setattr(lookup, "walk", noted)
    for offset in (log.high_watermark - 2, log.high_watermark - 2, log.high_watermark - 1):
        assert batches_at(log, offset, 1)[0].base_offset == results[1].base_offset
    assert 300 < len(walked) < 320
    log.close()


@pytest.mark.usefixtures("searching")
def test_a_forged_batch_that_spans_the_next_real_one_is_not_believed(tmp_path: Path) -> None:
    """Two batches of one producer: the first hides a header that claims the second as its own payload."""

    from millrace.records import HEADER, batch_crc

    log = open_log(tmp_path)
    second = batch(50, b"truth")
    room = bytes(61)
    plain = batch(1, room)
    at = bytes(plain).find(room)
    tail = len(plain) - at - 61
    header = BatchHeader.parse(batch(1))
    assert header is not None
    lie = header._replace(
        base_offset=at,
        batch_length=61 + tail + len(second) - 12,
        last_offset_delta=500,
        records_count=501,
    )
    stamped_second = bytearray(second)
    stamped_second[:16] = len(plain).to_bytes(8, "big") + second[8:12] + b"\xff" * 4
    whole = bytearray(HEADER.pack(*lie) + plain[-tail:] + stamped_second)
    whole[17:21] = batch_crc(whole).to_bytes(4, "big")
    first = batch(1, bytes(whole[:61]))
    assert len(first) == len(plain)
    results = appended(log, first, second)
    flush(log)
    for offset in range(results[1].base_offset, log.high_watermark):
        fresh(log)
        assert batches_at(log, offset, 1)[0].base_offset == results[1].base_offset
    log.close()


@pytest.mark.usefixtures("searching")
def test_when_nothing_intact_is_near_the_answer_is_corrupt_message(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    results = appended(log, *[batch(30, b"x" * 20) for _ in range(4)])
    log.close()
    path = next(tmp_path.glob("*.log"))
    path.write_bytes(bytes(path.stat().st_size))
    log = open_log(tmp_path)
    for result in results:
        with pytest.raises(CorruptMessage):
            log.read(result.base_offset + 3, 100)
    log.close()


def test_the_cache_of_boundaries_is_bounded() -> None:
    boundaries = lookup.Boundaries()
    for offset in range(5 * lookup.REMEMBERED_BOUNDARIES):
        boundaries.note(offset, offset + 10)
    assert len(boundaries._positions) <= lookup.REMEMBERED_BOUNDARIES
    assert boundaries.get(0) is None
    assert boundaries.get(offset) == offset + 10
    assert boundaries.nearest(5, 9) == 5
    assert boundaries.nearest(5, offset) == offset


def test_reads_of_cold_segments_hold_few_descriptors(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=200)
    bases = [appended(log, batch(2))[0].base_offset for _ in range(60)]
    flush(log)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for base in bases:
        log.read(base, 100)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 3
    crash(log)


@pytest.mark.usefixtures("searching")
def test_damage_asked_for_at_ever_other_offsets_is_told_a_hundred_times_at_most(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log(tmp_path)
    results = appended(log, *[batch(30, b"x" * 20) for _ in range(300)])
    log.close()
    path = next(tmp_path.glob("*.log"))
    path.write_bytes(bytes(path.stat().st_size))
    log = open_log(tmp_path)
    for offset in [result.base_offset + 3 for result in results]:
        with pytest.raises(CorruptMessage):
            log.read(offset, 1000)
    assert 0 < len(caplog.records) <= 100
    log.close()
