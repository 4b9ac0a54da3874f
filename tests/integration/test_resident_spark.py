"""`millrace load --follow --engine spark` as a real application: shown at once, sealed at SIGTERM, killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
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


def parts_of(loader: Process) -> dict[str, int]:
    """The processes of the application, all of which must end when one of them is killed."""
    commands = {pid: command_of(pid) for pid in descendants(loader.pid)}
    jvm = next(pid for pid, command in commands.items() if "/java " in command)
    driver = next(pid for pid, command in commands.items() if "script.py follow" in command and pid != jvm)
    return {"command": loader.pid, "JVM": jvm, "driver": driver}


@pytest.mark.slow
def test_rows_are_shown_at_once_and_loaded_once_though_every_process_is_killed(
    start: Start, site: TestSite, tmp_path: Path
) -> None:
    first, second = (site.topic(f"{name}-{uuid4().hex[:6]}", 2) for name in ("Fresh", "Other"))
    warehouse, words = tmp_path / "warehouse", (first, second, *SPARK)
    sent, others = 0, site.publish(second, [START_MS])
    for victim in ("driver", "JVM", "command"):
        loader = follow(start, site, warehouse, *words, "--metrics-listen", "127.0.0.1:0")
        sent += site.publish(first, [START_MS + n * 20_000 for n in range(200)])
        wait_until("rows in branch live", partial(are_shown, warehouse, first, sent))
        wait_until("rows of the other topic", partial(are_shown, warehouse, second, others))
        assert not (warehouse / first / "loads").exists(), "no load is made yet"
        assert metric(loader, "millrace_tail_rows", first) == sent
        assert metric(loader, "millrace_live_lag_seconds", first) < 60
        parts = parts_of(loader)
        os.kill(parts[victim], signal.SIGKILL)
        assert loader.wait() == (-signal.SIGKILL if victim == "command" else 1)
        wait_until("no process is left", partial(are_gone, parts.values()))
        assert loads_in(loader) == []

    loader = follow(start, site, warehouse, *words)
    sent += site.publish(first, [START_MS + n * 20_000 for n in range(100)])
    wait_until("all rows in branch live", partial(are_shown, warehouse, first, sent))
    assert loader.stop() == 0
    assert sorted((load["topic"], load["load"], load["rows"]) for load in loads_in(loader)) == sorted(
        [(first, 1, sent), (second, 1, others)]
    )
    load_here(site.cluster.bootstrap, site.registry, tmp_path / "once", first, subject=first)
    assert loaded_rows(warehouse, first) == loaded_rows(tmp_path / "once", first)
    assert shown(warehouse, first) == [(row.partition, row.offset) for row in loaded_rows(warehouse, first)]
    verified = run_millrace(
        "verify", "--warehouse", str(warehouse), "--rows", "--bootstrap", site.cluster.bootstrap, "--json"
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr


def are_gone(pids: Iterable[int]) -> bool:
    """True if none of the processes runs."""
    return not any(map(command_of, pids))


def are_shown(warehouse: Path, topic: str, rows: int) -> bool:
    """True if branch `live` has that many rows, each once."""
    places = shown(warehouse, topic)
    return len(places) == len({*places}) == rows


def test_a_loader_that_is_stopped_while_spark_starts_ends_without_a_load(
    start: Start, site: TestSite, tmp_path: Path
) -> None:
    topic = site.topic(f"Early-{uuid4().hex[:6]}", 1)
    loader = start("load", topic, *site.load_options(tmp_path), "--follow", *SPARK)
    wait_until("a JVM", lambda: any("/java " in command_of(pid) for pid in descendants(loader.pid)))
    assert loader.stop() == 0, loader.output
    assert loads_in(loader) == []


def test_a_resident_driver_is_not_sent_to_a_cluster(site: TestSite, tmp_path: Path) -> None:
    topic = site.topic(f"Elsewhere-{uuid4().hex[:6]}", 1)
    conf = ("--conf", "spark.submit.deployMode=cluster")
    done = run_millrace("load", topic, *site.load_options(tmp_path), "--follow", *SPARK, *conf)
    assert done.returncode == 2
    assert "--follow keeps its driver beside the command" in done.stderr
