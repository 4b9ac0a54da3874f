"""`millrace erase` as it is typed: one member leaves a loaded and published topic, and the log is asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

from tests.support import Process, run_millrace
from tests.warehouses import EMPTY_EVENT, TestSite, load_here

Start = Callable[..., Process]


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
    proven = run_millrace("verify", str(warehouse), "--rows", "--bootstrap", bootstrap)
    assert proven.returncode == 0, proven.stdout + proven.stderr
    again = run_millrace("erase", *words)
    assert "nothing to do: 4711 is done: 5 rows" in again.stdout
    record = json.loads((warehouse / topic / "erasures" / "4711.json").read_text())
    assert (record["by"], record["reason"]) == ("data protection", "request 4711")
    everything = run_millrace(
        "erase", topic, "--where", "true", "--reason", "x", "--warehouse", str(warehouse)
    )
    assert everything.returncode == 1
    assert "give --all-rows" in everything.stderr
