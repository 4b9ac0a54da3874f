"""Two auditors on one database: one writes, the other answers and takes over when the first is killed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

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


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/audit.db"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.mark.parametrize("database", ["sqlite", "postgresql"], indirect=True)
def test_the_second_auditor_stands_by_and_takes_over_when_the_first_is_killed(
    start: Start, zookeeper: str, tmp_path: Path, database: str
) -> None:
    cluster = TestCluster(start, f"standby-{uuid4().hex[:6]}", tmp_path, zookeeper).start_brokers(1)
    with cluster.client() as client:
        for topic in ("audit", "audit-counts", "audit-offline"):
            client.create_topic(topic, 1)
    registry = start("registry", "--listen", "127.0.0.1:0", "--database-url", f"sqlite:///{tmp_path}/r.db")
    made = cluster, f"http://{registry.ready()}", database
    first = Auditor(start, *made)
    wait_until("it writes", lambda: first.health()["role"] == "active" and first.accept().status_code == 200)
    second = Auditor(start, *made)
    wait_until("it stands by", lambda: second.health()["role"] == "standby")
    assert "another auditor writes to this database" in second.health()["trouble"]
    assert httpx.get(f"{second.url}/v1/topics", timeout=WAIT_S).json() == []
    refused = second.accept()
    assert refused.status_code == 503
    assert f"process {first.process.pid} on " in refused.json()["error"]
    first.process.kill()
    wait_until("it takes over", lambda: second.health()["role"] == "active")
    assert second.accept().status_code == 200
