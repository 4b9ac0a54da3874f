"""The console's view of the aggregate cluster's brokers, of which one dies."""

from __future__ import annotations

from pathlib import Path

from millrace_audit.auditor.service.app import build_app
from millrace_audit.auditor.service.console import ClusterLook
from millrace_audit.auditor.service.metrics import AuditNumbers
from millrace_audit.auditor.store import AuditStore
from tests.brokers import Start, TestCluster
from tests.support import wait_until
from tests.unit.audit.story import OPTIONS
from tests.unit.audit.test_app import Client, Worker


def test_partitions_that_lack_a_leader_or_replicas_are_listed(
    start: Start, zookeeper: str, tmp_path: Path
) -> None:
    cluster = TestCluster(start, "console-replicas", tmp_path, zookeeper).start_brokers(1, 2)
    with cluster.client() as client:
        client.create_topic("copied", 1, replicas=2)
        client.create_topic("alone", 2, replicas=1)
        (lost,) = [number for number, leader in client.topic("alone").partitions.items() if leader == 2]
    store = AuditStore(f"sqlite:///{tmp_path}/audit.db")
    look = ClusterLook(cluster.bootstrap)
    browser = Client(build_app(store, OPTIONS, Worker(AuditNumbers(store, OPTIONS)), look))
    assert "the brokers are being asked" in browser.get("/console").text
    whole = "Every partition has a leader and all of its replicas in sync."
    wait_until("all is there", lambda: whole in browser.get("/console").text)
    cluster.brokers[2].kill()
    copied = '<tr><td>copied-0</td><td class="n">1</td><td>%s</td><td>1</td></tr>'
    wait_until(
        "what is missing is listed",
        lambda: any(copied % order in browser.get("/console").text for order in ("1, 2", "2, 1")),
    )
    alone = f'<tr><td>alone-{lost}</td><td class="n">nobody</td><td>2</td><td>'
    wait_until("who has no leader is listed", lambda: alone in browser.get("/console").text)
    store.close()
