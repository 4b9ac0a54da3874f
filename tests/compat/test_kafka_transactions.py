"""Transactions of an audited producer on Apache Kafka: what they abort is at no tier, and is not missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millrace.errors import TopicAlreadyExists
from millrace_audit.reports.messages import AUDIT_TOPIC, COUNTS_TOPIC
from tests.brokers import TestCluster
from tests.compat.audited_transactions import EVENTS, send_transactions
from tests.integration.test_audit import World
from tests.page_view import START
from tests.peers.kafka import KafkaBroker
from tests.support import Process

HOME, TOPIC = "dc-transactions", "transacted"
TRANSACTIONS = 30


@dataclass
class Home:
    """Apache Kafka in the place of a cluster of the world."""

    bootstrap: str
    name: str = HOME


def test_every_third_transaction_is_aborted_and_the_hour_is_complete(
    kafka: KafkaBroker, zookeeper: str, start: Callable[..., Process], tmp_path: Path
) -> None:
    registry = start(
        "registry", "--listen", "127.0.0.1:0", "--database-url", f"sqlite:///{tmp_path}/registry.db"
    )
    topics = {TOPIC: 2, AUDIT_TOPIC: 1, COUNTS_TOPIC: 1}
    with kafka.client() as client:
        for topic, partitions in topics.items():
            with suppress(TopicAlreadyExists):  # other tests also report to this Kafka
                client.create_topic(topic, partitions, {"retention.ms": "-1"})
    mirror = f"[mirror.{HOME}]\nbootstrap = {json.dumps(kafka.address)}\ntopics = {json.dumps([*topics])}\n"
    offline = TestCluster(start, "offline-transactions", tmp_path, zookeeper, mirror).start_brokers(1)
    clusters: dict[str, Any] = {HOME: Home(kafka.address), "offline": offline}
    world = World(start, clusters, f"http://{registry.ready()}", zookeeper, tmp_path)
    for name in clusters:
        world.start_reader(name)
    world.auditor = world.start_auditor()
    for process in (*world.readers.values(), world.auditor, world.start_warehouse_reader()):
        process.ready()

    send_transactions(kafka.address, world.registry, TOPIC, TRANSACTIONS, START)
    committed = TRANSACTIONS * EVENTS * 2 // 3
    world.await_tier(TOPIC, "offline", committed)
    world.load(TOPIC)
    (window,) = world.await_verdict(TOPIC, "complete").windows
    assert window.acknowledged == TRANSACTIONS * EVENTS
    assert window.tiers == dict.fromkeys((HOME, "offline", "warehouse"), committed)
    aborted = TRANSACTIONS * EVENTS - committed
    assert window.reasons == [
        f"{aborted} events at {HOME} lie in aborted transactions, and no tier may hold them"
    ]
