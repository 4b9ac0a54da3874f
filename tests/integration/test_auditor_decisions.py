"""Decisions of operators and of the auditor are records of the audit topic, which a new database reads."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from millrace.client.cluster_client import LATEST
from millrace.config import OFFLINE_AUDIT_TOPIC
from millrace_audit.reports.messages import ACCEPT, AUDIT_TOPIC, AuditCodec, Decision, Hello, now_ms
from millrace_audit.reports.publish import AuditPublisher
from millrace_audit.reports.seals import new_key, seal_of, sign
from millrace_registry.client import SchemaRegistryClient
from tests.brokers import TestCluster
from tests.support import WAIT_S, Process, wait_until

TOPIC = "PageView"


class Auditor:
    """An auditor process whose database is a file."""

    def __init__(self, start: Callable[..., Process], database: Path, options: list[str]) -> None:
        self.database = database
        address = ("--listen", "127.0.0.1:0", "--database-url", f"sqlite:///{database}", "--origins", "dc1")
        self.process = start("auditor", *address, *options)
        self.url = f"http://{self.process.ready()}"

    def accepted(self) -> dict[int, str | None]:
        """Return instance -> the reason for which an operator accepted it."""
        topics = httpx.get(f"{self.url}/v1/topics", timeout=WAIT_S).json()
        return {one["instance"]: one["accepted"] for topic in topics for one in topic["instances"]}

    def accept(self, instance: int) -> httpx.Response:
        said = {"reason": "its rack is gone", "who": "me@host"}
        return httpx.post(f"{self.url}/v1/instances/{instance}/accept", json=said, timeout=WAIT_S)

    def get(self, path: str) -> Any:
        return httpx.get(f"{self.url}/v1/{path}", timeout=WAIT_S).json()


def cluster_and_registry(
    start: Callable[..., Process], name: str, zookeeper: str, folder: Path
) -> tuple[TestCluster, str]:
    """Start a broker with the audit's topics, and a registry; return the cluster and the registry's URL."""
    cluster = TestCluster(start, name, folder, zookeeper).start_brokers(1)
    with cluster.client() as brokers:
        for topic in (AUDIT_TOPIC, "audit-counts", OFFLINE_AUDIT_TOPIC):
            brokers.create_topic(topic, 1)
    registry = start("registry", "--listen", "127.0.0.1:0", "--database-url", f"sqlite:///{folder}/r.db")
    return cluster, f"http://{registry.ready()}"


@pytest.mark.slow
def test_a_new_database_knows_an_acceptance_and_who_only_may_produce_can_forge_none(
    start: Callable[..., Process], zookeeper: str, tmp_path: Path
) -> None:
    cluster, schemas = cluster_and_registry(start, "decisions", zookeeper, tmp_path)
    options = ["--bootstrap", cluster.bootstrap, "--registry", schemas, "--zookeeper", zookeeper]
    auditor = Auditor(start, tmp_path / "first.db", options)
    common: dict[str, Any] = {"time": now_ms(), "cluster": "offline", "server": "web", "service": "shop"}
    by_producer = Decision(time=1, written=1, id="x", kind=ACCEPT, who="you", reason="forged", instance=2)
    with closing(SchemaRegistryClient(schemas)) as client:
        codec = AuditCodec(client)
        hellos = [
            codec.encode(Hello(**common, instance=instance, topic=TOPIC, seal=seal_of(new_key())))
            for instance in (1, 2)
        ]
        forged = codec.encode(by_producer)
    with AuditPublisher(cluster.bootstrap, AUDIT_TOPIC) as publisher:
        publisher.publish(hellos)
    with AuditPublisher(cluster.bootstrap, OFFLINE_AUDIT_TOPIC) as publisher:
        publisher.publish([forged, forged], keys=[b"", sign(0, b"guessed", forged)])

    wait_until("both are known", lambda: auditor.accepted() == {1: None, 2: None})
    assert auditor.accept(1).json() == {"instance": 1, "accepted": "its rack is gone"}
    assert auditor.accepted() == {1: "its rack is gone", 2: None}, "at once"
    (entry,) = auditor.get(f"topics/{TOPIC}/history?from=2026-01-01&to=2026-01-02")
    wait_until(
        "the forged ones are rejected",
        lambda: any(row["count"] == 2 for row in auditor.get("rejected-records")),
    )

    assert auditor.process.stop() == 0
    auditor.database.unlink()
    again = Auditor(start, tmp_path / "second.db", options)
    wait_until("it is known again", lambda: again.accepted() == {1: "its rack is gone", 2: None})
    assert again.get(f"topics/{TOPIC}/history?from=2026-01-01&to=2026-01-02") == [entry]

    cluster.brokers[1].kill()
    refused = again.accept(2)
    assert refused.status_code == 503
    assert "the decision is not written and has no effect:" in refused.json()["error"]
    assert again.accepted()[2] is None


@pytest.mark.slow
def test_the_auditor_accepts_by_itself_an_instance_that_was_silent_for_as_long_as_its_topic_allows(
    start: Callable[..., Process], zookeeper: str, tmp_path: Path
) -> None:
    cluster, schemas = cluster_and_registry(start, "silence", zookeeper, tmp_path)
    options = ["--bootstrap", cluster.bootstrap, "--registry", schemas, "--zookeeper", zookeeper]
    common: dict[str, Any] = {"cluster": "offline", "server": "web", "service": "shop"}
    silent_for = {1: 61, 2: 59, 3: 61}
    with closing(SchemaRegistryClient(schemas)) as client:
        codec = AuditCodec(client)
        hellos = [
            codec.encode(
                Hello(
                    **common,
                    time=now_ms() - minutes * 60_000,
                    instance=instance,
                    topic="Other" if instance == 3 else TOPIC,
                    seal=seal_of(new_key()),
                )
            )
            for instance, minutes in silent_for.items()
        ]
    with AuditPublisher(cluster.bootstrap, AUDIT_TOPIC) as publisher:
        publisher.publish(hellos)
    reader = ("--cluster", cluster.name, "--tier", "offline", "--interval-ms", "50")
    start("audit-reader", *reader, *options)
    ends = set[int]()
    with cluster.client() as brokers:  # an auditor looks for silent instances when it starts, and each minute

        def heartbeats() -> int:
            ends.update(brokers.list_offsets(OFFLINE_AUDIT_TOPIC, LATEST).values())
            return len(ends - {0})

        wait_until("the reader has sent heartbeats", lambda: heartbeats() > 2)
    topics = tmp_path / "topics.toml"
    topics.write_text(f"[{TOPIC}]\nsilent_after = '1h'\n")

    auditor = Auditor(start, tmp_path / "first.db", [*options, "--topics-file", str(topics)])
    accepted = {1: "silent for 1h", 2: None, 3: None}
    wait_until("the silent instance is accepted", lambda: auditor.accepted() == accepted)
    (entry,) = auditor.get(f"topics/{TOPIC}/history?from=2026-01-01&to=2026-01-02")
    assert (entry["who"], entry["what"]) == ("auditor", "accepted instance 1: silent for 1h")

    assert auditor.process.stop() == 0
    again = Auditor(start, tmp_path / "second.db", options)
    wait_until("a new database has it, whatever the file says", lambda: again.accepted() == accepted)
