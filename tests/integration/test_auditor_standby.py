"""Two auditors on one database: one writes, the other answers and takes over when the first is killed."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from millrace_audit.auditor.lease import LEASE_S
from tests.brokers import TestCluster
from tests.support import WAIT_S, Process, wait_until

Start = Callable[..., Process]


class Auditor:
    """An auditor process, asked as others ask it."""

    def __init__(self, start: Start, cluster: TestCluster, registry: str, database: str) -> None:
        options = ["--listen", "127.0.0.1:0", "--database-url", database, "--origins", "dc1"]
        options += [
            "--bootstrap",
            cluster.bootstrap,
            "--registry",
            registry,
            "--zookeeper",
            cluster.zookeeper,
        ]
        self.process = start("auditor", *options)
        self.url = f"http://{self.process.ready()}"

    def health(self) -> dict[str, Any]:
        return dict(httpx.get(f"{self.url}/v1/health", timeout=WAIT_S).json())

    def accept(self) -> httpx.Response:
        return httpx.post(f"{self.url}/v1/accept", json={"service": "s", "reason": "a test"}, timeout=WAIT_S)


def two_auditors(start: Start, zookeeper: str, tmp_path: Path, database: str) -> tuple[Auditor, Auditor]:
    """The second one starts when the first writes."""
    cluster = TestCluster(start, f"standby-{uuid4().hex[:6]}", tmp_path, zookeeper).start_brokers(1)
    with cluster.client() as client:
        for topic in ("audit", "audit-counts", "audit-offline"):
            client.create_topic(topic, 1)
    registry = start("registry", "--listen", "127.0.0.1:0", "--database-url", f"sqlite:///{tmp_path}/r.db")
    made = cluster, f"http://{registry.ready()}", database
    first = Auditor(start, *made)
    wait_until("it writes", lambda: first.health()["role"] == "active" and first.accept().status_code == 200)
    return first, Auditor(start, *made)


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/audit.db"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", "postgresql"], indirect=True)
def test_the_second_auditor_stands_by_and_takes_over_when_the_first_is_killed(
    start: Start, zookeeper: str, tmp_path: Path, database: str
) -> None:
    first, second = two_auditors(start, zookeeper, tmp_path, database)
    wait_until("it stands by", lambda: second.health()["role"] == "standby")
    assert "another auditor writes to this database" in second.health()["trouble"]
    assert httpx.get(f"{second.url}/v1/topics", timeout=WAIT_S).json() == []
    refused = second.accept()
    assert refused.status_code == 503
    assert f"process {first.process.pid} on " in refused.json()["error"]
    first.process.kill()
    wait_until("it takes over", lambda: second.health()["role"] == "active")
    assert second.accept().status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", "postgresql"], indirect=True)
def test_an_auditor_that_was_stopped_for_longer_than_its_lease_stands_by_when_it_goes_on(
    start: Start, zookeeper: str, tmp_path: Path, database: str
) -> None:
    first, second = two_auditors(start, zookeeper, tmp_path, database)
    wait_until("the second stands by", lambda: second.health()["role"] == "standby")
    first.process.signal(signal.SIGSTOP)
    wait_until("the second takes over", lambda: second.accept().status_code == 200, timeout_s=3 * LEASE_S)
    first.process.signal(signal.SIGCONT)
    wait_until("the first stands by", lambda: first.health()["role"] == "standby")
    refused = first.accept()
    assert refused.status_code == 503
    assert f"process {second.process.pid} on " in refused.json()["error"]
    assert second.process.stop() == 0
    wait_until("the first writes again", lambda: first.accept().status_code == 200)
    assert httpx.get(f"{first.url}/v1/rejected-records", timeout=WAIT_S).json() == []
