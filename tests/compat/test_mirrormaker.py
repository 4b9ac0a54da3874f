"""A company's own MirrorMaker 2 fills the aggregate Kafka: what audit and commands see of its copies."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from confluent_kafka import Producer

from millrace.client.cluster_client import ClusterClient
from millrace_audit.answer import Completeness, Finding
from millrace_audit.client import completeness
from millrace_audit.producer import AuditedProducer
from millrace_registry.client import SchemaRegistryClient
from tests.compat.audited_transactions import send_transactions
from tests.peers.kafka import KafkaBroker
from tests.peers.mirrormaker import MirrorMaker, properties_of
from tests.support import REPOSITORY, Process, wait_until
from tests.warehouses import EMPTY_EVENT

Start = Callable[..., Process]
EVENTS = 50
SETTLE_S = 120.0
NEVER_COMMITS = {"offset.flush.interval.ms": "600000", "offset.lag.max": "0"}
"""Settings that copy every record again after a kill; every record has an offset sync of its own."""
DEPLOYMENT = """
zookeeper = "127.0.0.1:0"
registry = "127.0.0.1:0"
auditor = "127.0.0.1:0"
grace_s = 0
[clusters.dc1]
bootstrap = "{dc1}"
topics = {{ PageView = 2 }}
[clusters.offline]
bootstrap = "{offline}"
[clusters.offline.mirror]
origins = ["dc1"]
by_mirrormaker = true
"""


def test_what_mirrormaker_copies_again_after_a_kill_the_audit_calls_duplicate(
    needs_maven: None, start: Start, tmp_path: Path
) -> None:
    with KafkaBroker(tmp_path / "dc1") as dc1, KafkaBroker(tmp_path / "offline") as offline:
        file = tmp_path / "up.toml"
        file.write_text(DEPLOYMENT.format(dc1=dc1.address, offline=offline.address))
        up = start("up", str(file), "--set", f"data_dir={tmp_path / 'data'}")
        up.ready()
        at = dict(line.split() for line in up.lines if len(line.split()) == 2)
        properties = properties_of({"dc1": dc1.address}, offline.address, "PageView")
        with MirrorMaker(tmp_path / "mm2", "offline", properties | NEVER_COMMITS) as mirror:
            produce(dc1.address, at["registry"])

            def answer() -> Completeness:
                now = datetime.now(UTC)
                return completeness(at["auditor"], "PageView", now - timedelta(hours=2), now)

            def counted(tier: str) -> int:
                return sum(window.tiers.get(tier, 0) for window in answer().windows)

            wait_until("all is counted in both", lambda: counted("offline") == EVENTS, timeout_s=SETTLE_S)
            assert counted("dc1") == EVENTS
            assert not [window.findings for window in answer().windows if window.findings]
            with ClusterClient(offline.address) as client:
                seen = client.topic("PageView").partitions
            assert sorted(seen) == [10_000, 10_001]

            mirror.kill()
            mirror.start()
            found = wait_until(
                "the audit names what came again",
                lambda: [f for window in answer().windows for f in window.findings],
                timeout_s=SETTLE_S,
            )
            assert {(finding.kind, finding.tier) for finding in found} == {("duplicate", "offline")}
            assert answer().verdict == "incomplete"


def test_aborted_events_that_mirrormaker_copies_uncommitted_are_unexpected(
    needs_maven: None, start: Start, tmp_path: Path
) -> None:
    with KafkaBroker(tmp_path / "dc1") as dc1, KafkaBroker(tmp_path / "offline") as offline:
        file = tmp_path / "up.toml"
        file.write_text(DEPLOYMENT.format(dc1=dc1.address, offline=offline.address))
        up = start("up", str(file), "--set", f"data_dir={tmp_path / 'data'}")
        up.ready()
        at = dict(line.split() for line in up.lines if len(line.split()) == 2)
        properties = properties_of({"dc1": dc1.address}, offline.address, "PageView")
        uncommitted = NEVER_COMMITS | {"dc1.consumer.isolation.level": "read_uncommitted"}
        with MirrorMaker(tmp_path / "mm2", "offline", properties | uncommitted):
            began = int((time.time() - 3600) * 1000)
            send_transactions(dc1.address, at["registry"], "PageView", 3, began)
            # MirrorMaker's position passes a transaction's marker with the next message.
            later = Producer({"bootstrap.servers": dc1.address})
            for partition in (0, 1):
                later.produce("PageView", b"later", partition=partition)
            assert later.flush(30) == 0

            def found() -> list[Finding]:
                now = datetime.now(UTC)
                answer = completeness(at["auditor"], "PageView", now - timedelta(hours=2), now)
                return [finding for window in answer.windows for finding in window.findings]

            (finding,) = wait_until("the audit names the aborted events", found, timeout_s=SETTLE_S)
    assert (finding.kind, finding.tier, finding.sequences) == ("unexpected", "offline", [[20, 29]])


def produce(bootstrap: str, registry: str) -> None:
    """Audited events of an hour ago, one by one: MirrorMaker syncs what it has time for."""
    began = int((time.time() - 3600) * 1000)
    with SchemaRegistryClient(registry) as client:
        client.register("PageView", json.loads((REPOSITORY / "schemas" / "PageView.avsc").read_text()))
    with AuditedProducer(bootstrap, registry, cluster="dc1", server="web1", service="shop") as producer:
        for number in range(EVENTS):
            producer.send("PageView", "PageView", EMPTY_EVENT, time_ms=began + number)
            time.sleep(0.05)
