"""Loads that may not take everything: by bytes, by time, at batch boundaries; the next one takes the rest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from millrace.client.cluster_client import ClusterClient
from millrace.records import build_batch, split_batches
from millrace.wire.fetch import FetchedPartition
from millrace_warehouse.history.layout import Topic, read_load
from millrace_warehouse.history.manifest import LoadManifest
from millrace_warehouse.history.plan import plan_path
from millrace_warehouse.load.load import load_topic
from millrace_warehouse.log.bounds import Bounds, bounded_ends
from millrace_warehouse.storage import open_storage
from tests.unit.warehouse.memory_log import START, TOPIC, MemoryLog, event, load_run, rows_of
from tests.unit.warehouse.storages import problems

MINUTE = 60_000


def load_bounded(log: MemoryLog, warehouse: Path, run_id: str, **bounds: Any) -> LoadManifest:
    result = load_topic(load_run(log, warehouse, run_id, bounds=Bounds(**bounds)), TOPIC)
    assert result.load is not None
    return read_load(Topic(open_storage(str(warehouse)), TOPIC), result.load)


def size_of(log: MemoryLog, first: int, last: int) -> int:
    """Bytes of the batches [first, last) of partition 0, of those that have not expired, and one more."""
    return sum(header.size for header in list(log.partitions[0].batches())[first:last]) + 1


def clean(warehouse: Path) -> bool:
    """True if the warehouse proves itself, and no load says that offsets are missing."""
    loads = [json.loads(path.read_text()) for path in warehouse.glob(f"{TOPIC}/loads/*.json")]
    assert loads
    return not problems(warehouse, TOPIC) and not any(
        part["gaps"] for load in loads for part in load["partitions"]
    )


def uneven_log() -> MemoryLog:
    """Three partitions: one with much, one with little, one with nothing; a control batch in between."""
    log = MemoryLog(3)
    log.append_events(0, [START + n * MINUTE for n in range(200)])
    log.append_control(0, b"x" * 300)
    log.append_events(0, [START + n * MINUTE for n in range(100)])
    log.append_events(1, [START + n * MINUTE for n in range(20)], batch=1)
    return log


def test_loads_of_so_many_bytes_take_the_whole_log_one_after_the_other(tmp_path: Path) -> None:
    log = uneven_log()
    biggest = max(h.size for one in log.partitions.values() for h in one.batches())
    loads = 0
    while True:
        manifest = load_bounded(log, tmp_path, f"run-{loads}", max_bytes=2_000)
        if manifest.load == loads:
            break
        loads = manifest.load
        taken = {part.partition: part.end - part.start for part in manifest.partitions}
        assert sum(taken.values()) <= 2_000 + 2 * biggest
        waiting = {p: one.high_watermark - manifest.ends[p] for p, one in log.partitions.items()}
        assert all(taken[p] > 0 or waiting[p] == 0 for p in waiting), "every partition makes progress"
    assert loads > 5
    assert [row.sequence for row in rows_of(tmp_path)] == list(range(320))
    assert clean(tmp_path)


def test_bytes_are_shared_in_proportion_to_what_waits(tmp_path: Path) -> None:
    log = MemoryLog(2)
    log.append_events(0, [START] * 900, batch=1)
    log.append_events(1, [START] * 100, batch=1)
    manifest = load_bounded(log, tmp_path, "run", max_bytes=30_000)
    first, second = (part.end - part.start for part in manifest.partitions)
    assert first + second <= 30_000
    assert 0.85 < first / (first + second) < 0.95


def test_a_batch_larger_than_its_share_is_taken_alone(tmp_path: Path) -> None:
    log = MemoryLog(1)
    log.append_events(0, [START] * 500, batch=500)
    log.append_events(0, [START] * 500, batch=500)
    manifest = load_bounded(log, tmp_path, "run", max_bytes=10)
    assert manifest.rows == 500
    assert load_bounded(log, tmp_path, "run 2", max_bytes=10).rows == 500


def test_a_bound_larger_than_what_waits_takes_everything(tmp_path: Path) -> None:
    manifest = load_bounded(uneven_log(), tmp_path, "run", max_bytes=1 << 30)
    assert manifest.rows == 320


def test_everything_before_a_time_is_loaded_and_the_next_run_takes_the_rest(tmp_path: Path) -> None:
    log = MemoryLog(2)
    log.append_events(0, [START + n * MINUTE for n in range(60)])
    log.append_events(1, [START + n * MINUTE for n in range(100, 130)])
    manifest = load_bounded(log, tmp_path, "run", until_ms=START + 34 * MINUTE)
    # The batch that the time falls into is taken whole, minutes 30 to 39.
    assert [row.sequence for row in rows_of(tmp_path)] == list(range(40))
    assert [part.read for part in manifest.partitions] == [40, 0]
    load_bounded(log, tmp_path, "run 2", until_ms=START + 40 * MINUTE)
    assert len(rows_of(tmp_path)) == 40, "the time is that of the first record of a batch: nothing before it"
    load_bounded(log, tmp_path, "run 3", until_ms=START + 500 * MINUTE)
    assert [row.sequence for row in rows_of(tmp_path)] == list(range(90))
    assert clean(tmp_path)


def test_bytes_and_time_hold_together(tmp_path: Path) -> None:
    log = MemoryLog(1)
    log.append_events(0, [START + n * MINUTE for n in range(100)])
    both = {"until_ms": START + 50 * MINUTE, "max_bytes": size_of(log, 0, 3)}
    assert load_bounded(log, tmp_path, "run", **both).rows == 30
    assert load_bounded(log, tmp_path, "run 2", **both).rows == 20
    assert load_bounded(log, tmp_path, "run 3", **both).load == 2, "nothing is left before that time"


def test_a_retried_run_keeps_to_its_plan_whatever_the_bounds_are_now(tmp_path: Path) -> None:
    log = MemoryLog(1)
    log.append_events(0, [START] * 100)

    def stop(step: str) -> None:
        if step == "planned":
            raise InterruptedError

    with pytest.raises(InterruptedError):
        load_topic(load_run(log, tmp_path, bounds=Bounds(max_bytes=2_000), progress=stop), TOPIC)
    planned = json.loads((tmp_path / plan_path(TOPIC, "run-1")).read_text())
    assert (planned["max_bytes"], planned["until_ms"]) == (2_000, None)
    result = load_topic(load_run(log, tmp_path), TOPIC)
    assert 0 < result.rows < 100
    assert result.left_offsets == log.partitions[0].high_watermark - planned["ends"][0]["end"]
    assert result.left_bytes == result.left_offsets
    again = load_topic(load_run(log, tmp_path), TOPIC)
    assert (again.load, again.published, again.rows) == (1, False, result.rows)


@pytest.mark.parametrize("more", [0, 5])
def test_the_beginning_of_a_batch_is_reached_with_the_end_of_the_one_before(
    tmp_path: Path, more: int
) -> None:
    log = MemoryLog(2)
    log.append_events(0, [START] * 100)

    def stop(step: str) -> None:
        if step == "planned":
            raise InterruptedError

    first = Bounds(max_bytes=size_of(log, 0, 1))
    with pytest.raises(InterruptedError):
        load_topic(load_run(log, tmp_path, "first", bounds=first, progress=stop), TOPIC)
    planned = json.loads((tmp_path / plan_path(TOPIC, "first")).read_text())
    manifest = load_bounded(log, tmp_path, "second", max_bytes=1)
    part = manifest.partitions[0]
    assert (part.end, part.end_base) == (10, planned["ends"][0]["end"]), "one place, two offsets"
    log.append_events(1, [START] * more)
    result = load_topic(load_run(log, tmp_path, "first"), TOPIC)
    assert (result.load, result.published) == (1, False)
    assert load_bounded(log, tmp_path, "third").rows == 90 + more
    assert clean(tmp_path)


def test_an_end_at_a_batch_boundary_is_where_retention_may_cut(tmp_path: Path) -> None:
    log = MemoryLog(1)
    log.append_events(0, [START] * 100)
    assert load_bounded(log, tmp_path, "run", max_bytes=size_of(log, 0, 3)).rows == 30
    log.expire(0, 3)
    manifest = load_bounded(log, tmp_path, "run 2", max_bytes=size_of(log, 0, 2))
    assert (manifest.rows, manifest.partitions[0].gaps) == (20, ())
    log.expire(0, 3)
    last = load_bounded(log, tmp_path, "run 3")
    assert [gap.reason for gap in last.partitions[0].gaps] == ["expired"]
    assert last.rows == 40


def test_a_run_whose_bounds_leave_nothing_says_so(tmp_path: Path) -> None:
    log = MemoryLog(1)
    log.append_events(0, [START] * 10)
    past = Bounds(until_ms=START - MINUTE)
    empty = load_topic(load_run(log, tmp_path, "run", bounds=past), TOPIC)
    assert empty.message == "no message of the topic lies within the limits, there is nothing to load"
    assert empty.left_offsets
    load_bounded(log, tmp_path, "run 2")
    log.append_events(0, [START])
    later = load_topic(load_run(log, tmp_path, "run 3", bounds=past), TOPIC)
    assert later.message == "nothing new within the limits since load 1"


def test_a_bound_counts_from_what_is_still_there(tmp_path: Path) -> None:
    log = MemoryLog(1)
    log.append_events(0, [START] * 100)
    log.expire(0, 5)
    manifest = load_bounded(log, tmp_path, "run", max_bytes=size_of(log, 0, 2))
    assert manifest.rows == 20
    (gap,) = manifest.partitions[0].gaps
    assert (gap.start, gap.end, gap.reason) == (0, log.partitions[0].start, "expired")


class NumberedLog(ClusterClient):
    """One partition whose offsets count records, as on Apache Kafka."""

    cluster_id = "4L6g3nShT-eMCtK--X86sw"

    def __init__(self, batches: int, records: int) -> None:
        messages = [event(n, START) for n in range(records)]
        self.batches = [build_batch(messages, base_offset=n * records) for n in range(batches)]
        self.end = batches * records

    def fetch(
        self, topic: str, offsets: Mapping[int, int], *, max_bytes: int, **_: Any
    ) -> dict[int, FetchedPartition]:
        taken: list[bytes] = []
        size = 0
        for batch in self.batches:
            ((header, _batch),) = split_batches(batch)
            if header.next_offset > offsets[0] and (not taken or size + header.size <= max_bytes):
                taken.append(batch)
                size += header.size
        return {0: FetchedPartition(0, self.end, self.end, 0, memoryview(b"".join(taken)))}


def test_where_offsets_count_records_bytes_are_reckoned_from_the_first_of_them() -> None:
    client = NumberedLog(batches=100, records=50)
    size = len(client.batches[0])
    ends = bounded_ends(client, TOPIC, {0: (100, client.end)}, Bounds(max_bytes=10 * size + 5))
    assert ends == {0: 100 + 10 * 50}
    small = bounded_ends(client, TOPIC, {0: (100, client.end)}, Bounds(max_bytes=1))
    assert small == {0: 150}
