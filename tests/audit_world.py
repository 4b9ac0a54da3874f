"""One origin, the aggregate cluster, the warehouse, their readers and the auditor, for tests of producers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from millrace_audit.reports.messages import AUDIT_TOPIC, COUNTS_TOPIC, schema_file
from millrace_registry.client import SchemaRegistryClient
from tests.brokers import TestCluster
from tests.integration.test_audit import World
from tests.support import Process

W = TypeVar("W", bound=World)


def audit_of_one_origin(
    kind: type[W],
    start: Callable[..., Process],
    zookeeper: str,
    folder: Path,
    topics: Sequence[str],
    security: str = "",
) -> W:
    """A world of dc1 with these topics, of two partitions each; PageView is registered.

    `security` is that of dc1's TestCluster; whoever comes without a login must have every right there.
    """
    run = uuid4().hex[:6]
    registry = start(
        "registry", "--listen", "127.0.0.1:0", "--database-url", f"sqlite:///{folder}/registry.db"
    )
    log = "[log]\nflush_ms = 20\n"
    dc1 = TestCluster(start, f"dc1-{run}", folder, zookeeper, log, known_as="dc1", security=security)
    dc1.start_brokers(1)
    mirrored = {**dict.fromkeys(topics, 2), AUDIT_TOPIC: 1, COUNTS_TOPIC: 1}
    with dc1.client() as client:
        for topic, partitions in mirrored.items():
            client.create_topic(topic, partitions)
    mirror = f"[mirror.dc1]\nbootstrap = {json.dumps(dc1.bootstrap)}\ntopics = {json.dumps(list(mirrored))}\n"
    offline = TestCluster(start, f"offline-{run}", folder, zookeeper, log + mirror)
    clusters = {"dc1": dc1, "offline": offline.start_brokers(1)}
    world = kind(start, clusters, f"http://{registry.ready()}", zookeeper, folder)
    for name in clusters:
        world.start_reader(name)
    world.auditor = world.start_auditor()
    for process in (*world.readers.values(), world.auditor, world.start_warehouse_reader()):
        process.ready()
    with SchemaRegistryClient(world.registry) as schemas:
        schemas.register("PageView", schema_file("PageView"))
    return world
