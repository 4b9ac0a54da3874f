"""Every process of ours ends soon after SIGTERM: while it starts, waits, works or stops."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence

import pytest

from tests.brokers import TestCluster, free_port
from tests.conftest import Start
from tests.integration.test_up import overrides
from tests.support import REPOSITORY, Process

SOAK = "MILLRACE_ROUNDS" in os.environ
TRIES = {"audit-reader": 180, "auditor": 80, "registry": 80, "broker": 100, "zookeeper": 40, "up": 20}
"""Tries of each process, 500 in all; a few outside a soak."""
LIMIT_S = 10.0


@pytest.fixture(scope="module")
def commands(
    start_for_module: Start, zookeeper: str, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, Callable[[], Sequence[str]]]:
    """Map each process to its command, with everything it needs running beside it."""
    folder = tmp_path_factory.mktemp("stop")
    registry = start_for_module(
        "registry", "--listen", "127.0.0.1:0", "--database-url", f"sqlite:///{folder}/registry.db"
    ).ready()
    schemas = str(REPOSITORY / "schemas")
    start_for_module("schemas", "apply", schemas, "--registry", f"http://{registry}").wait()
    cluster = TestCluster(start_for_module, "stop", folder, zookeeper).start_brokers(1)
    with cluster.client() as client:
        for topic in ("audit", "audit-offline", "events"):
            client.create_topic(topic, 1)
    common = ("--bootstrap", cluster.bootstrap, "--registry", f"http://{registry}", "--zookeeper", zookeeper)
    config = folder / "other.toml"
    config.write_text(
        f"broker_id = 1\ncluster = 'stop-other'\nlisten = '127.0.0.1:{free_port()}'\n"
        f"zookeeper = {json.dumps(zookeeper)}\nsession_timeout_ms = 2000\n"
        f"log_dir = {json.dumps(str(folder / 'other'))}\n"
    )
    return {
        "audit-reader": lambda: (
            "audit-reader",
            "--cluster",
            "dc1",
            "--interval-ms",
            "10",
            "--new-cluster",  # other tests have a tier of that name, too, and the same ZooKeeper
            *common,
        ),
        "auditor": lambda: (
            "auditor",
            "--listen",
            "127.0.0.1:0",
            "--database-url",
            f"sqlite:///{folder}/auditor.db",
            "--origins",
            "dc1",
            *common,
        ),
        "registry": lambda: (
            "registry",
            "--listen",
            "127.0.0.1:0",
            "--database-url",
            f"sqlite:///{folder}/other.db",
        ),
        "broker": lambda: ("broker", str(config)),
        "zookeeper": lambda: ("zookeeper", "--port", "0", "--data-dir", str(folder / "zookeeper")),
        "up": lambda: ("up", str(REPOSITORY / "deploy" / "local.toml"), *overrides(folder / "up")),
    }


def seconds_to_end(process: Process, signals: Sequence[int]) -> float:
    began = time.monotonic()
    for number in signals:
        process.signal(number)
    process.wait(timeout_s=60)
    return time.monotonic() - began


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name == "up" else ()) for name in TRIES]
)
def test_a_process_ends_soon_after_sigterm_at_any_moment(
    name: str, commands: Mapping[str, Callable[[], Sequence[str]]], start: Start
) -> None:
    process = start(*commands[name]())
    began = time.monotonic()
    process.ready()
    start_s = time.monotonic() - began
    slowest = seconds_to_end(process, [signal.SIGTERM])
    for _ in range(TRIES[name] if SOAK else 2):
        process = start(*commands[name]())
        if random.random() < 0.5:
            process.ready()
            time.sleep(random.uniform(0, 0.1))  # the moment is the test's input
        else:
            time.sleep(random.uniform(0, start_s))
        # Ctrl-C is ignored until a handler is there in what was started in the background of a shell.
        more = random.choices((signal.SIGTERM, signal.SIGINT), k=random.randint(0, 2))
        slowest = max(slowest, seconds_to_end(process, [signal.SIGTERM, *more]))
    print(f"{name}: the slowest of {TRIES[name] if SOAK else 2} took {slowest:.1f} s")
    assert slowest < LIMIT_S
