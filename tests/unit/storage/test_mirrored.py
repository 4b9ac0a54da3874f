"""Mirrored partitions: compare-and-append, and the position that travels with the data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from millrace.errors import InvalidRequest, PolicyViolation
from millrace.records import BatchHeader, Cursor, split_batches
from millrace.records.mirror_position import POSITION_PREFIX, MirrorPosition, Origin, PositionMismatch
from millrace_broker.storage.partition_log import PartitionLog
from tests.unit.storage.logs import (
    ORIGIN,
    append,
    appended,
    batch,
    consume,
    crowded_batch,
    flush,
    log_files,
    open_log,
    origin_batches,
    position,
    slice_bytes,
)


def kinds(log: PartitionLog) -> list[list[str]]:
    """Return each file's content: d for data, f for a filler, p<next offset> for a position."""
    found = []
    for path in log_files(log.directory):
        file, at = [], int(path.stem)
        for header, content in split_batches(path.read_bytes()):
            mirror = MirrorPosition.from_batch(header, content)
            if mirror is not None:
                file.append(f"p{mirror.cursor.next_offset}")
            else:
                file.append("d" if not header.is_control else "f")
            assert (header.base_offset == at) == (file[-1] != "f")
            at += header.size
        found.append(file)
    return found


def test_a_position_is_read_back_as_it_was_written() -> None:
    for written in (position(5), position(1 << 62, start=3, next_base=99, batches=7, records=8, dropped=9)):
        assert MirrorPosition.decode(written.encode(7)) == written
    assert MirrorPosition.decode(b"") is None
    assert MirrorPosition.decode(bytes(500)) is None
    assert not bytes(500).startswith(POSITION_PREFIX)


def test_data_and_position_are_one_write_and_the_batches_keep_their_bytes(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    sent = origin_batches([2, 3], 100)
    original = [bytes(each) for each in sent]
    end = log.append_mirrored(ORIGIN, None, sent, position(105, start=100, batches=2, records=5))
    assert end == log.end
    assert kinds(log) == [["p100", "d", "d", "p105"]]
    flush(log)
    for header, kept in zip(consume(log, 0), original, strict=True):
        found = slice_bytes(log.read(header.base_offset, 1))
        assert found[16:] == kept[16:]
        assert found[:8] == header.base_offset.to_bytes(8, "big")
    log.close()


def test_only_an_append_at_the_recorded_position_is_accepted(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    with pytest.raises(PositionMismatch) as wrong:
        log.append_mirrored(ORIGIN, 0, origin_batches([2]), position(2))
    assert wrong.value.recorded is None
    log.append_mirrored(ORIGIN, None, origin_batches([2]), position(2, batches=1, records=2))
    end = log.end
    for expected in (None, 0, 1, 3):
        with pytest.raises(PositionMismatch) as wrong:
            log.append_mirrored(ORIGIN, expected, origin_batches([2], 2), position(4))
        assert wrong.value.recorded == log.mirror_position
    assert log.end == end
    log.append_mirrored(ORIGIN, 2, origin_batches([2], 2), position(4, batches=2, records=4))
    log.close()


def test_a_retry_of_an_accepted_append_is_refused_with_what_is_recorded(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    arguments = (ORIGIN, None, origin_batches([2]), position(2, batches=1, records=2))
    log.append_mirrored(*arguments)
    with pytest.raises(PositionMismatch) as retry:
        log.append_mirrored(*arguments)
    assert retry.value.recorded == arguments[3], "the caller sees that its append is there"
    log.close()


def test_the_position_is_recorded_at_once_and_visible_after_the_flush(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append_mirrored(ORIGIN, None, origin_batches([2]), position(2, batches=1, records=2))
    assert log.mirror_position == position(2, batches=1, records=2)
    before = log.snapshot[0].mirror
    flush(log)
    assert (before, log.snapshot[0].mirror) == (None, log.mirror_position)
    log.close()


def test_an_empty_partition_has_no_position(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert log.mirror_position is None
    log.close()


def test_another_origin_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append_mirrored(ORIGIN, None, origin_batches([2]), position(2, batches=1, records=2))
    for other in (
        replace(ORIGIN, cluster="dc2"),
        replace(ORIGIN, partition=4),
        replace(ORIGIN, topic_id=UUID(int=8)),
        Origin("dc1", "Other", ORIGIN.topic_id, 3),
    ):
        with pytest.raises(PolicyViolation, match="mirrors"):
            log.append_mirrored(other, 2, origin_batches([1], 2), position(3, origin=other))
    with pytest.raises(InvalidRequest):
        log.append_mirrored(ORIGIN, 2, origin_batches([1], 2), position(3, origin=other))
    log.close()


def test_ordinary_produce_and_mirroring_exclude_each_other(tmp_path: Path) -> None:
    mirrored = open_log(tmp_path / "mirrored")
    mirrored.append_mirrored(ORIGIN, None, origin_batches([2]), position(2, batches=1, records=2))
    assert [type(result) for result in append(mirrored, batch(), batch())] == [PolicyViolation] * 2
    mirrored.close()
    ordinary = open_log(tmp_path / "ordinary")
    appended(ordinary, batch())
    with pytest.raises(PolicyViolation, match="produced"):
        ordinary.append_mirrored(ORIGIN, None, origin_batches([2]), position(2))
    ordinary.close()


@pytest.mark.parametrize(
    ("batches", "moved"),
    [
        (origin_batches([2], 2), position(3, batches=2, records=4)),  # the batches reach further
        (origin_batches([2], 0), position(4, batches=2, records=4)),  # copied already
        (origin_batches([2], 2) * 2, position(6, batches=3, records=6)),  # twice the same
        ([], position(2, batches=1, records=2)),  # nothing at all
        ([], position(1, batches=1, records=2)),  # backwards
        ([], position(9, batches=0, records=2)),  # totals go back
        ([], position(9, start=1, batches=1, records=2)),  # another start
    ],
)
def test_an_append_that_contradicts_its_position_is_refused(
    tmp_path: Path, batches: list[bytearray], moved: MirrorPosition
) -> None:
    log = open_log(tmp_path)
    log.append_mirrored(ORIGIN, None, origin_batches([2]), position(2, batches=1, records=2))
    end = log.end
    with pytest.raises(InvalidRequest):
        log.append_mirrored(ORIGIN, 2, batches, moved)
    assert log.end == end
    log.close()


def test_compaction_gaps_and_left_out_batches_are_the_mirrors_business(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    sparse = [*origin_batches([1], 10), *origin_batches([2], 50)]
    log.append_mirrored(ORIGIN, None, sparse, position(60, batches=2, records=3, dropped=1))
    log.append_mirrored(ORIGIN, 60, [], position(70, batches=2, records=3, dropped=4))
    flush(log)
    assert [header.records_count for header in consume(log, 0)] == [1, 2]
    log.close()


def test_a_new_segment_starts_with_the_current_position(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=1100)
    expected, offset = None, 0
    for index in range(8):
        offset += 3
        moved = position(offset, batches=index + 1, records=offset)
        log.append_mirrored(ORIGIN, expected, origin_batches([3], offset - 3), moved)
        expected = offset
    flush(log)
    files = kinds(log)
    assert len(files) > 2
    last = "p0"
    for file in files:
        assert file[0] == last, "a segment begins with the position the one before it ended with"
        assert file[-1].startswith("p")
        last = file[-1]
    assert [header.records_count for header in consume(log, 0)] == [3] * 8
    log.close()


def test_an_append_never_crosses_segments(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=1500)
    log.append_mirrored(ORIGIN, None, origin_batches([1]), position(1, batches=1, records=1))
    log.append_mirrored(ORIGIN, 1, origin_batches([1] * 30, 1), position(31, batches=31, records=31))
    assert [file[0] + file[-1] for file in kinds(log)] == ["p0p1", "p1p31"]
    flush(log)
    assert len(list(consume(log, 0))) == 31
    log.close()


def test_mirrored_batches_get_fillers_too(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    crowded = crowded_batch(4000)
    log.append_mirrored(ORIGIN, None, [crowded], position(4000, batches=1, records=4000))
    log.append_mirrored(ORIGIN, 4000, origin_batches([1], 4000), position(4001, batches=2, records=4001))
    flush(log)
    assert kinds(log) == [["p0", "d", "f", "p4000", "d", "p4001"]]
    assert [header.records_count for header in consume(log, 0)] == [4000, 1]
    log.close()


def test_trailing_position_batches_are_not_served(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append_mirrored(ORIGIN, None, origin_batches([3]), position(3, batches=1, records=3))
    flush(log)
    mark = log.high_watermark
    served = [header for header, _ in split_batches(slice_bytes(log.read(0, 1 << 20)))]
    assert not served[-1].is_control
    assert served[-1].next_offset == mark < log.visible_end
    for offset in range(mark, log.visible_end + 1):
        assert log.read(offset, 1000) is None
    log.append_mirrored(ORIGIN, 3, [], position(9, batches=1, records=3, dropped=2))
    assert not flush(log), "a position alone shows consumers nothing new"
    assert log.high_watermark == mark
    assert log.read(mark, 1000) is None
    log.close()


def test_a_reset_moves_the_position_anywhere_and_appends_nothing_else(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append_mirrored(ORIGIN, None, origin_batches([3]), position(3, batches=1, records=3))
    moved = position(500, start=500, batches=1, records=3)
    with pytest.raises(InvalidRequest):
        log.append_mirrored(ORIGIN, 3, [], moved)
    with pytest.raises(InvalidRequest, match="no batches"):
        log.append_mirrored(ORIGIN, 3, origin_batches([1], 3), moved, reset=True)
    with pytest.raises(PositionMismatch):
        log.append_mirrored(ORIGIN, 2, [], moved, reset=True)
    first_reset_at = log.end
    log.append_mirrored(ORIGIN, 3, [], moved, reset=True)
    assert log.mirror_position == replace(moved, reset_at=first_reset_at)
    second_reset_at = log.end
    log.append_mirrored(ORIGIN, 500, [], position(10, start=10), reset=True)
    log.append_mirrored(ORIGIN, 10, origin_batches([2], 10), position(12, start=10, batches=1, records=2))
    log.close()
    expected = position(12, start=10, batches=1, records=2)
    assert open_and_close(tmp_path) == replace(expected, reset_at=second_reset_at), "it is carried on"


def open_and_close(directory: Path) -> MirrorPosition | None:
    log = open_log(directory)
    recorded = log.mirror_position
    log.close()
    return recorded


def test_a_reset_may_be_the_first_thing_a_partition_holds(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append_mirrored(ORIGIN, None, [], position(40, start=40), reset=True)
    log.append_mirrored(ORIGIN, 40, origin_batches([2], 40), position(42, start=40, batches=1, records=2))
    flush(log)
    assert len(list(consume(log, 0))) == 1
    log.close()


def test_the_cursor_keeps_the_expected_byte_position_of_a_millrace_origin(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    source = batch(3)
    header = BatchHeader.parse(source)
    assert header is not None
    after = Cursor(0).after(header)
    log.append_mirrored(ORIGIN, None, [source], MirrorPosition(ORIGIN, 0, after, 1, 3, 0))
    log.close()
    recorded = open_and_close(tmp_path)
    assert recorded is not None
    assert recorded.cursor == after == Cursor(3, len(source))
