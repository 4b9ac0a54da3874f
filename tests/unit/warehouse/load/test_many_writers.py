"""Loads of many producers and many writer schemas: few files, a small manifest, bounded memory."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from millrace.errors import MillraceError
from millrace.records import Message
from millrace_audit.reports.counts import SequenceCounts
from millrace_warehouse.history.layout import Topic, newest_load, read_load
from millrace_warehouse.history.manifest import StoredFile
from millrace_warehouse.history.stored import SEQUENCES, sequences_of, store_sequences
from millrace_warehouse.load.load import load_topic
from millrace_warehouse.load.task import CutResult, pack_sequences
from millrace_warehouse.log.ranges import RangeStats
from millrace_warehouse.storage import open_storage
from tests.unit.warehouse.memory_log import (
    HOUR,
    SCHEMA_ID,
    START,
    TOPIC,
    MemoryLog,
    event,
    filled_log,
    load_run,
    rows_of,
    with_field,
)
from tests.unit.warehouse.storages import problems

WINDOW_MS = 600_000


def crowd(producers: int, windows: int) -> MemoryLog:
    """Every producer says something in every window."""
    log = MemoryLog(1)
    for window in range(windows):
        messages = [
            event(window, START + window * WINDOW_MS, instance=instance * 7_919, server=f"web{instance}")
            for instance in range(producers)
        ]
        log.append(0, messages)
    return log


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    warehouse = tmp_path_factory.mktemp("crowded")
    load_topic(load_run(crowd(1_000, 6), warehouse, cut_bytes=1 << 20), TOPIC)
    return warehouse


def test_a_thousand_producers_in_six_windows_leave_the_manifest_small_and_the_counts_exact(
    crowded: Path,
) -> None:
    storage = open_storage(str(crowded))
    assert (crowded / TOPIC / "loads/0000000001.json").stat().st_size < 64 << 10
    manifest = read_load(Topic(storage, TOPIC), 1)
    assert manifest.sequences == ()
    assert manifest.sequences_file is not None
    counts = sequences_of(storage, manifest)
    assert (len(counts.tallies), counts.total) == (6_000, 6_000)
    expected = SequenceCounts()
    for instance in range(1_000):
        for window in range(6):
            expected.add(f"web{instance}", "web", instance * 7_919, START + window * WINDOW_MS, window)
    assert counts == expected
    assert problems(crowded, TOPIC) == []


@pytest.mark.parametrize("damage", ["changed", "cut", "gone", "another"])
def test_a_file_of_sequences_that_was_tampered_with_is_noticed_by_whoever_needs_it(
    crowded: Path, damage: str
) -> None:
    storage = open_storage(str(crowded))
    manifest = newest_load(Topic(storage, TOPIC))
    assert manifest is not None
    assert manifest.sequences_file is not None
    path = crowded / TOPIC / manifest.sequences_file.path
    content = path.read_bytes()
    try:
        if damage == "gone":
            path.unlink()
        elif damage == "another":
            folder = f"{TOPIC}/{manifest.sequences_file.path[: -len(SEQUENCES) - 1]}"
            store_sequences(storage, folder, counts_of(200))
        else:
            path.write_bytes(content[:-1] if damage == "cut" else content[:-1] + b"x")
        assert path.exists() == (damage != "gone")
        with pytest.raises(MillraceError, match=SEQUENCES):
            sequences_of(storage, manifest)
        assert newest_load(Topic(storage, TOPIC)) == manifest, "a run that only goes on needs no counts"
    finally:
        path.write_bytes(content)


def counts_of(producers: int) -> SequenceCounts:
    counts = SequenceCounts()
    for instance in range(producers):
        counts.add("web1", "web", instance, START, 0, 5)
    return counts


@pytest.mark.parametrize(("producers", "spilled"), [(0, False), (100, False), (101, True)])
def test_few_counts_stay_in_the_manifest(tmp_path: Path, producers: int, spilled: bool) -> None:
    storage, counts = open_storage(str(tmp_path)), counts_of(producers)
    entries, file = store_sequences(storage, f"{TOPIC}/rows/a", counts)
    assert (file is not None) == spilled
    load_topic(load_run(filled_log(), tmp_path), TOPIC)
    load = read_load(Topic(storage, TOPIC), 1)
    manifest = dataclasses.replace(load, sequences=entries, sequences_file=file)
    assert sequences_of(storage, manifest) == counts


def test_few_producers_with_many_holes_get_a_file_too(tmp_path: Path) -> None:
    counts = SequenceCounts()
    for sequence in range(0, 20_000, 2):
        counts.add("web1", "web", 1, START, sequence)
    entries, file = store_sequences(open_storage(str(tmp_path)), f"{TOPIC}/rows/a", counts)
    assert entries == ()
    assert isinstance(file, StoredFile)


def test_the_same_counts_always_make_the_same_bytes(tmp_path: Path) -> None:
    storage, folder = open_storage(str(tmp_path)), f"{TOPIC}/rows/a"
    first, second = (store_sequences(storage, folder, counts_of(500)) for _ in range(2))
    assert first == second


def interleaved(schemas: dict[int, dict[str, Any]]) -> MemoryLog:
    """One event after the other, each of the next schema, over three hours."""
    log = MemoryLog(2)
    log.schemas = dict(schemas)
    ids = list(schemas)
    for batch in range(20):
        messages = []
        for n in range(10):
            schema_id = ids[n % len(ids)]
            fields: dict[str, Any] = {field["name"]: 1 for field in schemas[schema_id]["fields"][2:]}
            time_ms = START + (batch * 10 + n) * HOUR // 70
            schema = (schema_id, schemas[schema_id])
            messages.append(event(log.sequence, time_ms, schema=schema, **fields))
            log.sequence += 1
        log.append(batch % 2, messages)
    return log


def test_three_writer_schemas_interleaved_make_as_many_files_as_one(tmp_path: Path) -> None:
    one = with_field("a", "int", 0, with_field("b", "int", 0))
    three = {3: with_field("a", "int", 0), 4: with_field("b", "int", 0), 5: one}
    for name, schemas in (("one", {5: one}), ("three", three)):
        result = load_topic(load_run(interleaved(schemas), tmp_path / name), TOPIC)
        assert (result.rows, result.rejected) == (200, 0)
        assert problems(tmp_path / name, TOPIC) == []
    files = {name: hours_and_tasks(tmp_path / name) for name in ("one", "three")}
    assert len(files["three"]) == len(set(files["three"])), "one file per hour and task"
    assert len(files["one"]) == len(set(files["one"]))
    # Their cuts differ by a few bytes of schema, not by the number of schemas.
    assert abs(len(files["three"]) - len(files["one"])) <= 4
    assert [row.sequence for row in rows_of(tmp_path / "three")] == list(range(200))
    found = [
        (row["a"], row["b"])
        for path in (tmp_path / "three").glob(f"{TOPIC}/rows/*/2015*.parquet")
        for row in pq.read_table(path, partitioning=None).to_pylist()
    ]
    assert {pair: found.count(pair) for pair in set(found)} == {(1, 0): 80, (0, 1): 60, (1, 1): 60}


def hours_and_tasks(warehouse: Path) -> list[str]:
    """Hour and number of the task of every file of a load."""
    paths = (warehouse / TOPIC).glob("rows/*/2015*.parquet")
    return [path.name[: len("2015-05-17T10-00000")] for path in paths]


def test_what_the_driver_holds_of_ten_thousand_cuts_is_small() -> None:
    counts = SequenceCounts()
    for instance in range(50):
        for window in range(6):
            counts.add("web1.dc1.example.com", "web", instance << 40, window * WINDOW_MS, 0, 10_000)
    cut = RangeStats(TOPIC, 0, 0, 1 << 26)
    result = CutResult(cut, [], [], [], pack_sequences(counts), {}, {}, b"", {})
    assert result.sequences == counts
    assert len(result.packed_sequences) < 3_000, f"{len(json.dumps(counts.to_json()))} bytes as JSON"


def test_a_record_of_many_megabytes_is_a_row_like_any_other(tmp_path: Path) -> None:
    log = MemoryLog(1)
    log.schemas = {SCHEMA_ID: with_field("blob", "bytes", "")}
    schema = (SCHEMA_ID, log.schemas[SCHEMA_ID])
    messages: list[Message] = []
    for n in range(3):
        messages.append(event(n, START, schema=schema, blob=bytes(2 << 20)))
    for message in messages:
        log.append(0, [message])
    log.append(0, messages)
    result = load_topic(load_run(log, tmp_path, cut_bytes=1 << 20), TOPIC)
    assert (result.rows, result.rejected) == (6, 0)
