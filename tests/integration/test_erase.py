"""`millrace erase` as it is typed: a member leaves a published topic, and so does what nobody can decode."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer

from tests.support import Process, run_millrace
from tests.warehouses import EMPTY_EVENT, TestSite, load_here

Start = Callable[..., Process]


@pytest.mark.slow
def test_a_member_is_erased_and_the_logs_say_until_when_they_hold_them(
    zookeeper: str, start: Start, tmp_path: Path
) -> None:
    site = TestSite.start(start, f"erase-{uuid4().hex[:6]}", tmp_path, zookeeper)
    topic = site.topic("PageView", partitions=1)
    with site.producer() as producer:
        for number in range(20):
            event = {**EMPTY_EVENT, "memberId": 42 if number % 4 == 0 else 7}
            producer.send(topic, topic, event, time_ms=1_431_856_800_000 + number)
    warehouse = tmp_path / "warehouse"
    bootstrap = site.cluster.bootstrap
    assert load_here(bootstrap, site.registry, warehouse, topic).rows == 20
    hour = ["--hour", "2015-05-17T10", "--unasked"]
    assert run_millrace("publish", topic, *hour, "--warehouse", str(warehouse)).returncode == 0
    words = [
        topic,
        "--where",
        "memberId = 42",
        "--reason",
        "request 4711",
        "--id",
        "4711",
        "--log",
        bootstrap,
    ]
    words += ["--warehouse", str(warehouse)]
    tried = run_millrace("erase", *words, "--dry-run")
    assert tried.returncode == 0, tried.stderr
    assert "would erase: 5 rows of 1 load(s)" in tried.stdout
    done = run_millrace("erase", *words, "--by", "data protection", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["rows"], answer["hours"]) == (5, {"2015-05-17T10": 5})
    (log,) = answer["logs"]
    assert log["retention_ms"] == 7 * 24 * 3_600_000
    assert "retention.ms=604800000" in log["retention"]
    assert log["loads_again"] == 1
    assert log["offsets"] > 0
    until = datetime.fromisoformat(answer["in_force_until"]) - datetime.now(UTC)
    assert timedelta(days=7, hours=22) < until < timedelta(days=8, minutes=1), "the retention, and a day"
    assert load_here(bootstrap, site.registry, warehouse, topic).rows == 0
    proven = run_millrace("verify", "--warehouse", str(warehouse), "--rows", "--bootstrap", bootstrap)
    assert proven.returncode == 0, proven.stdout + proven.stderr
    again = run_millrace("erase", *words)
    assert "nothing to do: 4711 is done: 5 rows" in again.stdout
    record = json.loads((warehouse / topic / "erasures" / "4711.json").read_text())
    assert (record["by"], record["reason"]) == ("data protection", "request 4711")
    everything = run_millrace(
        "erase", topic, "--where", "true", "--reason", "x", "--warehouse", str(warehouse)
    )
    assert everything.returncode == 2
    assert "give --all-rows" in everything.stderr


@pytest.mark.slow
def test_records_that_nobody_can_decode_are_named_and_their_bytes_go_when_that_is_asked_for(
    zookeeper: str, start: Start, tmp_path: Path
) -> None:
    site = TestSite.start(start, f"rejected-{uuid4().hex[:6]}", tmp_path, zookeeper)
    topic, bootstrap, warehouse = site.topic("PageView", partitions=1), site.cluster.bootstrap, tmp_path / "w"
    site.publish(topic, [1_431_856_800_000])
    foreign = Producer({"bootstrap.servers": bootstrap})
    foreign.produce(topic, b"jane doe, in no schema")
    assert foreign.flush(60) == 0
    loaded = load_here(bootstrap, site.registry, warehouse, topic)
    assert (loaded.rows, loaded.rejected) == (1, 1)

    words = ["--where", "memberId = 42", "--reason", "request", "--warehouse", str(warehouse)]
    tried = run_millrace("erase", topic, *words, "--dry-run")
    assert "would erase: 0 rows of 0 load(s)" in tried.stdout
    assert "left: 1 records that could not be decoded, with their bytes" in tried.stderr
    assert "/rejected-*.parquet of load 1: " in tried.stderr
    done = run_millrace("erase", topic, *words, "--rejected")
    assert done.returncode == 0, done.stderr
    taken = (
        "no row matched: 0 rows of 0 load(s), in 0 file(s), and the bytes and keys of 1 rejected record(s)"
    )
    assert taken in done.stdout
    assert "could not be decoded" not in done.stderr
    (kept,) = warehouse.glob("PageView/rows/*/rejected-*.parquet")
    (record,) = pq.read_table(kept).to_pylist()
    assert record["raw"] is None
    assert record["reason"].startswith("the message does not begin with a zero byte and a schema id")
    proven = run_millrace("verify", "--warehouse", str(warehouse), "--rows", "--bootstrap", bootstrap)
    assert proven.returncode == 0, proven.stdout + proven.stderr
