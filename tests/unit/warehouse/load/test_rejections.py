"""Records that cannot be decoded: how many may be, what a load says of them, what a task holds of them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.errors import MillraceError
from millrace.records import Message
from millrace_warehouse.history.layout import Topic, load_numbers, read_load
from millrace_warehouse.load.load import load_topic
from millrace_warehouse.load.rejections import (
    DEFAULT_LIMIT,
    HELD_BYTES,
    OTHER,
    REJECTED_SCHEMA,
    AsideFile,
    Reasons,
    RejectedLimit,
    RejectedLimits,
    rejected_rows,
)
from millrace_warehouse.log.kinds import Kind
from millrace_warehouse.log.messages import RejectedRecords
from millrace_warehouse.storage import open_storage
from tests.unit.warehouse.memory_log import START, TOPIC, MemoryLog, load_run, rows_of


def log_with(good: int, *bad: bytes) -> MemoryLog:
    """A log of events, then of messages that are none."""
    log = MemoryLog(1)
    log.append_events(0, [START + n for n in range(good)])
    for index in range(0, len(bad), 10):
        log.append(0, [Message(START, None, value) for value in bad[index : index + 10]])
    return log


def unknown(schema_id: int) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + b"body"


def rejected(reason: str, raw: bytes = b"", records: int = 1) -> RejectedRecords:
    return RejectedRecords(0, 5, records, Kind.BROKEN_BODY, None, reason, None, raw, START)


def test_more_than_the_limit_fails_the_load_with_the_reasons_and_publishes_nothing(tmp_path: Path) -> None:
    log = log_with(200, *[unknown(99)] * 101, *[b"text"] * 7)
    with pytest.raises(MillraceError) as caught:
        load_topic(load_run(log, tmp_path), TOPIC)
    assert str(caught.value) == (
        "PageView: 101 of 308 records have a schema id that the registry does not know, allowed are 0.1 % or"
        " 100 records: 101 times 'schema id 99 is not in the registry'; nothing was loaded: register the"
        " schema, or raise --max-rejected"
    )
    storage = open_storage(str(tmp_path))
    assert (load_numbers(Topic(storage, TOPIC)), storage.files(f"{TOPIC}/rows")) == ([], [])


@pytest.mark.parametrize("schema_id", [1 << 31, (1 << 32) - 1])
def test_an_id_above_what_a_registry_gives_is_rejected_as_any_other(tmp_path: Path, schema_id: int) -> None:
    result = load_topic(load_run(log_with(3, unknown(schema_id)), tmp_path), TOPIC)
    assert (result.rows, result.rejected) == (3, 1)
    (file,) = read_load(Topic(open_storage(str(tmp_path)), TOPIC), 1).rejected_files
    (record,) = pq.read_table(tmp_path / TOPIC / file.path, partitioning=None).to_pylist()
    assert record["schema_id"] == schema_id - (1 << 32), "the same four bytes, with a sign"
    assert record["reason"] == f"schema id {schema_id} is not in the registry"


def test_a_failed_load_can_be_run_again_with_a_higher_limit_and_reads_to_the_same_end(tmp_path: Path) -> None:
    log = log_with(200, *[unknown(99)] * 150)
    with pytest.raises(MillraceError):
        load_topic(load_run(log, tmp_path), TOPIC)
    log.append_events(0, [START])
    result = load_topic(load_run(log, tmp_path, max_rejected=RejectedLimits.parse("100%")), TOPIC)
    assert (result.rows, result.rejected) == (200, 150)
    files = read_load(Topic(open_storage(str(tmp_path)), TOPIC), 1).rejected_files
    assert sum(pq.read_table(tmp_path / TOPIC / file.path).num_rows for file in files) == 150
    assert len(rows_of(tmp_path)) == 200


@pytest.mark.parametrize(
    ("limit", "read", "allowed"),
    [("0", 1000, 0), ("5", 10, 5), ("1%", 10, 0), ("1%", 1000, 10), ("0.5 %", 1000, 5), ("100%", 7, 7)],
)
def test_a_limit_is_a_number_or_a_share_of_what_was_read(limit: str, read: int, allowed: int) -> None:
    assert RejectedLimit.parse(limit).allowed(read) == allowed


def test_without_a_limit_a_few_records_of_a_small_table_do_not_stop_it_and_a_broken_hour_does() -> None:
    assert DEFAULT_LIMIT.allowed(10) >= 10
    assert DEFAULT_LIMIT.allowed(50_000) == 100
    assert DEFAULT_LIMIT.allowed(10_000_000) == 10_000


def test_a_limit_says_what_it_is() -> None:
    limits = [str(RejectedLimit.parse(text)) for text in ("0", "50", "0.5%")]
    assert limits == ["0 records", "50 records", "0.5 %"]


def test_reasons_are_bounded_in_number_and_the_most_frequent_come_first() -> None:
    reasons = Reasons()
    reasons.add([*((f"reason {n}", 1) for n in range(1000)), ("reason 3", 5)])
    assert len(reasons.counts) == 21
    assert sum(reasons.counts.values()) == 1005
    assert str(reasons) == "6 times 'reason 3', 1 times 'reason 0', 1 times 'reason 1', and more"
    other = Reasons({"a": 1})
    other.add(reasons.counts.items())
    assert other.counts[OTHER] >= 980
    assert sum(other.counts.values()) == 1006


def test_a_task_holds_no_more_rejected_bytes_than_it_must(tmp_path: Path) -> None:
    file, raw = AsideFile(tmp_path / "rejected.parquet", REJECTED_SCHEMA), bytes(1 << 20)
    before, peak = pa.total_allocated_bytes(), 0
    for _ in range(100):
        file.add(rejected_rows([rejected("bad", bytes(raw))]))
        peak = max(peak, pa.total_allocated_bytes() - before)
    assert file.close()
    assert peak < 4 * HELD_BYTES
    assert file.rows == pq.read_table(file.path).num_rows == 100


def test_a_task_without_rejected_records_writes_no_file(tmp_path: Path) -> None:
    assert not AsideFile(tmp_path / "rejected.parquet", REJECTED_SCHEMA).close()
    assert not list(tmp_path.iterdir())
