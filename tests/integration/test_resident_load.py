"""`millrace load --follow` as a real process, with real brokers and a table: killed, restarted, stopped."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from millrace_warehouse.publish.branch_commit import LIVE
from millrace_warehouse.publish.catalog import connect, table_identifier
from millrace_warehouse.storage import open_storage
from tests.jobs import descendants
from tests.support import Process, run_millrace, run_python, wait_until
from tests.warehouses import TestSite, load_here, loaded_rows

Start = Callable[..., Process]
START_MS = 1_431_856_800_000
LEASE_S = 3
"""The lease of a loader with --every 1s."""


@pytest.fixture(scope="module")
def site(zookeeper: str, start_for_module: Start, tmp_path_factory: pytest.TempPathFactory) -> TestSite:
    folder = tmp_path_factory.mktemp("resident")
    return TestSite.start(start_for_module, f"offline-{uuid4().hex[:6]}", folder, zookeeper, brokers=2)


def follow(start: Start, site: TestSite, warehouse: Path, *words: str) -> Process:
    process = start("load", *words, *site.load_options(warehouse), "--follow", "--every", "1s")
    process.ready()
    return process


def shown(warehouse: Path, topic: str) -> list[tuple[int, int]]:
    """Partition and offset of each row that a reader of branch `live` sees; empty without the branch."""
    with closing(connect(open_storage(str(warehouse)), create=False)) as catalog:
        if not catalog.table_exists(table_identifier(topic)):
            return []
        table = catalog.load_table(table_identifier(topic))
        if LIVE not in table.metadata.refs:
            return []
        rows = table.scan(selected_fields=("_topic_partition", "_offset")).use_ref(LIVE).to_arrow()
    return sorted(zip(rows["_topic_partition"].to_pylist(), rows["_offset"].to_pylist(), strict=True))


def loads_in(process: Process) -> list[dict[str, Any]]:
    """Printed results of the loads that the process has made."""
    return [json.loads(line) for line in process.lines if line.startswith("{")]


def metric(process: Process, name: str, topic: str) -> float:
    (url,) = re.findall(r"metrics on (http\S+/metrics)", process.output)
    found = re.findall(rf'^{name}{{topic="{topic}"}} (\S+)', httpx.get(url).text, re.MULTILINE)
    return float(found[0])


@pytest.mark.slow
def test_rows_are_shown_at_once_and_loaded_once_though_the_loader_is_killed(
    start: Start, site: TestSite, tmp_path: Path
) -> None:
    first, second = site.topic(f"Fresh-{uuid4().hex[:6]}", 2), site.topic(f"Plain-{uuid4().hex[:6]}", 1)
    policies = tmp_path / "topics.toml"
    policies.write_text(f'["{first}"]\nlive = true\n')
    warehouse, words = tmp_path / "warehouse", (first, second, "--topics-file", str(policies))
    loader = follow(start, site, warehouse, *words, "--metrics-listen", "127.0.0.1:0")
    sent = site.publish(first, [START_MS + n for n in range(500)])
    site.publish(second, [START_MS])
    wait_until("rows in branch live", lambda: len(shown(warehouse, first)) == sent)
    assert not (warehouse / first / "loads").exists(), "no load is made yet"
    assert metric(loader, "millrace_tail_rows", first) == sent
    assert metric(loader, "millrace_live_lag_seconds", first) < 60
    assert [*descendants(loader.pid)] == [], "no JVM runs"
    # The topic without the branch gets its load at once.
    wait_until("a load of the other topic", lambda: len(loads_in(loader)) == 1)

    sent += site.publish(first, [START_MS + n for n in range(100)])
    loader.kill()
    loader = follow(start, site, warehouse, *words)
    sent += site.publish(first, [START_MS + n for n in range(100)])
    wait_until("all rows in branch live", lambda: len(shown(warehouse, first)) == sent)
    assert len({*shown(warehouse, first)}) == sent
    assert loader.stop() == 0
    (made,) = loads_in(loader)
    assert (made["topic"], made["load"], made["rows"]) == (first, 1, sent)
    rows = loaded_rows(warehouse, first)
    assert len({(row.partition, row.offset) for row in rows}) == len(rows) == sent
    assert shown(warehouse, first) == [(row.partition, row.offset) for row in rows]
    assert len(loaded_rows(warehouse, second)) == 1
    verified = run_millrace(
        "verify", "--warehouse", str(warehouse), "--rows", "--bootstrap", site.cluster.bootstrap, "--json"
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr


@pytest.mark.slow
def test_the_second_loader_stands_by_and_takes_over_when_the_first_one_is_killed(
    start: Start, site: TestSite, tmp_path: Path
) -> None:
    topic = site.topic(f"Twice-{uuid4().hex[:6]}", 2)
    first = follow(start, site, tmp_path, topic, "--live")
    sent = site.publish(topic, [START_MS + n for n in range(50)])
    wait_until("rows in branch live", lambda: len(shown(tmp_path, topic)) == sent)
    second = follow(start, site, tmp_path, topic, "--live")
    time.sleep(LEASE_S)
    assert len([*(tmp_path / topic / "rows").iterdir()]) == 1, "the one that stands by writes nothing"
    first.kill()
    sent += site.publish(topic, [START_MS + n for n in range(50)])
    wait_until("rows in branch live", lambda: len(shown(tmp_path, topic)) == sent)
    assert second.stop() == 0
    assert [load["rows"] for load in loads_in(second)] == [sent]


def test_a_bad_topic_does_not_stop_the_others_and_the_exit_code_tells_of_it(
    start: Start, site: TestSite, tmp_path: Path
) -> None:
    good, bad = (site.topic(f"{name}-{uuid4().hex[:6]}", 1) for name in ("Good", "Bad"))
    site.publish(good, [START_MS])
    site.publish(bad, [START_MS])
    load_here(site.cluster.bootstrap, site.registry, tmp_path, bad)
    site.publish(bad, [START_MS])
    loader = follow(start, site, tmp_path, good, bad, "--live")
    wait_until("rows of both", lambda: len(shown(tmp_path, good)) == 1 and len(shown(tmp_path, bad)) == 2)
    with site.cluster.client() as client:
        client.delete_topic(bad)
        client.create_topic(bad, 1)
    wait_until("the reason", lambda: "the topic is not loaded any more" in loader.output)
    assert len(shown(tmp_path, bad)) == 1, "what is in no load is shown no more"
    site.publish(good, [START_MS])
    wait_until("rows of the good topic", lambda: len(shown(tmp_path, good)) == 2)
    assert loader.stop() == 1
    assert f"topic {bad} was deleted and recreated" in loader.output
    assert [(load["topic"], load["rows"]) for load in loads_in(loader)] == [(good, 2)]


def test_the_resident_loader_imports_no_spark() -> None:
    code = (
        "import sys, millrace_spark.commands.loading, millrace_warehouse.commands.following\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('pyspark', 'py4j')])"
    )
    done = run_python("-c", code)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
