"""`millrace load --follow --engine spark` as a real application: shown at once, sealed at SIGTERM, killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from tests.integration.test_resident_load import START_MS, follow, loads_in, metric, shown
from tests.jobs import descendants
from tests.support import Process, run_millrace, wait_until
from tests.warehouses import TestSite, load_here, loaded_rows

Start = Callable[..., Process]
SPARK = ("--live", "--engine", "spark", "--master", "local[2]")


@pytest.fixture(scope="module")
def site(zookeeper: str, start_for_module: Start, tmp_path_factory: pytest.TempPathFactory) -> TestSite:
    folder = tmp_path_factory.mktemp("resident-spark")
    return TestSite.start(start_for_module, f"offline-{uuid4().hex[:6]}", folder, zookeeper)


def command_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return ""


def driver_of(process: Process) -> int:
    """The process in which the application's Python driver runs."""
    (driver,) = (
        pid for pid in descendants(process.pid) if "script.py follow" in command_of(pid).partition("java")[0]
    )
    return driver


def test_rows_are_shown_at_once_and_loaded_once_though_the_driver_is_killed(
    start: Start, site: TestSite, tmp_path: Path
) -> None:
    first, second = (site.topic(f"{name}-{uuid4().hex[:6]}", 2) for name in ("Fresh", "Other"))
    warehouse, words = tmp_path / "warehouse", (first, second, *SPARK)
    loader = follow(start, site, warehouse, *words, "--metrics-listen", "127.0.0.1:0")
    sent = site.publish(first, [START_MS + n * 20_000 for n in range(500)])
    others = site.publish(second, [START_MS])
    wait_until("rows in branch live", lambda: len(shown(warehouse, first)) == sent)
    wait_until("rows of the other topic", lambda: len(shown(warehouse, second)) == others)
    assert not (warehouse / first / "loads").exists(), "no load is made yet"
    assert metric(loader, "millrace_tail_rows", first) == sent
    assert metric(loader, "millrace_live_lag_seconds", first) < 60

    os.kill(driver_of(loader), signal.SIGKILL)
    assert loader.wait() == 1
    assert "the Spark job `follow` ended with exit code" in loader.output
    assert loads_in(loader) == []

    loader = follow(start, site, warehouse, *words)
    sent += site.publish(first, [START_MS + n * 20_000 for n in range(100)])
    wait_until("all rows in branch live", lambda: len(shown(warehouse, first)) == sent)
    assert len({*shown(warehouse, first)}) == sent
    assert loader.stop() == 0
    assert sorted((load["topic"], load["load"], load["rows"]) for load in loads_in(loader)) == sorted(
        [(first, 1, sent), (second, 1, others)]
    )
    load_here(site.cluster.bootstrap, site.registry, tmp_path / "once", first, subject=first)
    assert loaded_rows(warehouse, first) == loaded_rows(tmp_path / "once", first)
    assert shown(warehouse, first) == [(row.partition, row.offset) for row in loaded_rows(warehouse, first)]
    verified = run_millrace(
        "verify", str(warehouse), "--rows", "--bootstrap", site.cluster.bootstrap, "--json"
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr
