"""Records that expired before they were loaded: a gap is reported where records are missing, only there."""

from __future__ import annotations

from pathlib import Path

from millrace_warehouse.history.layout import Topic, read_load
from millrace_warehouse.load.load import LoadResult, load_topic
from millrace_warehouse.log.ranges import Gap
from millrace_warehouse.storage import open_storage
from tests.unit.warehouse.memory_log import (
    START,
    TOPIC,
    MemoryLog,
    append_position,
    load_run,
    mirrored_log,
    rows_of,
)
from tests.unit.warehouse.storages import problems


def load(log: MemoryLog, warehouse: Path, run_id: str) -> tuple[LoadResult, tuple[Gap, ...]]:
    result = load_topic(load_run(log, warehouse, run_id), TOPIC)
    assert problems(warehouse, TOPIC) == []
    manifest = read_load(Topic(open_storage(str(warehouse)), TOPIC), result.load or 0)
    return result, tuple(manifest.partitions[0].gaps)


def test_a_quiet_mirrored_partition_that_expires_has_lost_nothing(tmp_path: Path) -> None:
    log = mirrored_log()
    load(log, tmp_path, "first")
    append_position(log)  # of the new segment; the old one goes, with the position that no reader ever saw
    log.expire(0, 6)
    log.append_events(0, [START] * 5)
    append_position(log)
    result, gaps = load(log, tmp_path, "second")
    assert (result.rows, result.gaps) == (5, [])
    assert [gap.reason for gap in gaps] == ["control"]
    log.append_events(0, [START])
    assert load(log, tmp_path, "third")[1] == ()
    assert [row.sequence for row in rows_of(tmp_path)] == list(range(21))


def test_records_that_expired_before_they_were_loaded_are_a_gap_though_a_position_follows(
    tmp_path: Path,
) -> None:
    log = mirrored_log()
    load(log, tmp_path, "first")
    log.append_events(0, [START] * 5)
    append_position(log)
    log.expire(0, 7)  # what is left begins with that position
    log.append_events(0, [START] * 5)
    result, (gap,) = load(log, tmp_path, "second")
    assert (result.rows, gap.reason) == (5, "expired")
    assert result.gaps == [f"{TOPIC}-0 offsets [{gap.start}, {gap.end}) are expired"]


def test_without_a_position_it_cannot_be_told_and_is_a_gap(tmp_path: Path) -> None:
    log = MemoryLog(1)
    log.append_events(0, [START] * 5)
    load(log, tmp_path, "first")
    log.append_control(0)
    log.append_events(0, [START] * 5)
    log.append_events(0, [START] * 5)
    log.expire(0, 3)
    _, (gap,) = load(log, tmp_path, "second")
    assert gap.reason == "expired"
