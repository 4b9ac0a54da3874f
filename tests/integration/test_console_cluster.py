"""The console's page of the aggregate cluster's brokers, of which one dies."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from millrace_audit.auditor.service.app import build_app
from millrace_audit.auditor.service.cluster_look import ClusterLook
from millrace_audit.auditor.service.metrics import AuditNumbers
from millrace_audit.auditor.store import AuditStore
from tests.brokers import Start, TestCluster
from tests.support import wait_until
from tests.unit.audit.story import OPTIONS
from tests.unit.audit.test_app import Client, Worker


@pytest.mark.slow
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
    assert "the brokers are being asked" in browser.get("/cluster").text
    whole = "Every partition has a leader and all of its replicas in sync."
    wait_until("all is there", lambda: whole in browser.get("/cluster").text)
    page = browser.get("/cluster").text
    assert len(re.findall(r"<dt>disk</dt>.*>[\d.]+ [TGM]B of [\d.]+ [TGM]B free</dd>", page)) == 2
    assert len(re.findall(r"<dt>its logs</dt>.*>[\d.]+ ?k?B</dd>", page)) == 2
    cluster.brokers[2].kill()
    row = '<tr><td data-l="partition">%s</td><td data-l="leader">%s</td><td data-l="replicas">%s</td>'
    row += '<td data-l="in sync">%s</td></tr>'
    copied = [row % ("copied-0", 1, order, 1) for order in ("1, 2", "2, 1")]
    wait_until(
        "what is missing is listed", lambda: any(line in browser.get("/cluster").text for line in copied)
    )
    alone = row.partition("%s</td></tr>")[0] % (f"alone-{lost}", "none", 2)
    wait_until("a partition without a leader is listed", lambda: alone in browser.get("/cluster").text)
    page = browser.get("/cluster").text
    assert "1 partition without a leader" in page
    assert re.search(r"Broker 2 .*does not answer</span></h2>", page)
    assert page.count('<i class="x">') == 1
    store.close()
