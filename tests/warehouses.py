"""A cluster with a registry and a warehouse to load into, for tests; and what is in that warehouse."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow.parquet as pq

from millrace.client.cluster_client import ClusterClient
from millrace_audit.producer import AuditedProducer
from millrace_registry.client import SchemaRegistryClient
from millrace_warehouse.context import quiet
from millrace_warehouse.history.layout import Topic
from millrace_warehouse.history.schemas import first_schema, pinned, with_own_columns
from millrace_warehouse.load.load import LoadResult, LoadRun, load_topic
from millrace_warehouse.load.range_writer import LoadContext, Pinned
from millrace_warehouse.log.formats import AVRO_MESSAGES, MessageFormat
from millrace_warehouse.storage import Storage, open_storage
from tests.brokers import TestCluster
from tests.support import REPOSITORY, Process, wait_until

Start = Callable[..., Process]
AUDIT_TOPICS = ("audit", "audit-offline")
HOUR_MS = 3_600_000
EMPTY_EVENT: dict[str, Any] = {
    "memberId": None,
    "clientAddress": "10.0.0.1",
    "method": "GET",
    "url": "/",
    "protocol": "HTTP/1.1",
    "referrer": None,
    "userAgent": None,
    "status": 200,
    "bytes": None,
}


def load_here(
    bootstrap: str,
    registry: str,
    warehouse: Path,
    topic: str,
    *,
    subject: str = "PageView",
    messages: MessageFormat = AVRO_MESSAGES,
) -> LoadResult:
    """Load what is new of a topic as `millrace load` does, its tasks in this process."""
    storage = open_storage(str(warehouse))
    connect = partial(ClusterClient, bootstrap)
    with connect() as client, SchemaRegistryClient(registry) as schemas:

        def pin(topic: str, used: int) -> Pinned:
            folder = Topic(storage, topic)
            table_schema = pinned(folder, used)
            if table_schema is None:
                latest = schemas.latest(subject)
                table_schema = first_schema(folder, latest.schema_id, latest.schema, messages)
            table_schema = with_own_columns(folder, table_schema, schemas.find_schema)
            return Pinned.from_schema(table_schema, connect, schemas.find_schema)

        context = LoadContext(
            storage=storage,
            client=client,
            run_tasks=lambda function, tasks: [function(task) for task in tasks],
            run_id=uuid4().hex,
            cut_bytes=64 << 20,
            pin=pin,
            progress=quiet,
        )
        return load_topic(LoadRun(context=context), topic)


def _knows(address: str, topic: str) -> bool:
    with ClusterClient(address) as client:
        return topic in client.topics([topic])


@dataclass(slots=True)
class TestSite:
    """One cluster, one registry that knows every schema of the project, and a folder for warehouses."""

    __test__ = False

    cluster: TestCluster
    registry: str
    folder: Path

    @classmethod
    def start(
        cls, start: Start, name: str, folder: Path, zookeeper: str, brokers: int = 1, replicas: int = 1
    ) -> TestSite:
        """Start everything; the audit topics are there."""
        registry = start(
            "registry", "--listen", "127.0.0.1:0", "--database-url", f"sqlite:///{folder}/registry.db"
        )
        settings = f"default_replicas = {replicas}\n[log]\nflush_ms = 20\n"
        cluster = TestCluster(start, name, folder, zookeeper, settings)
        cluster.start_brokers(*range(1, brokers + 1))
        site = cls(cluster, f"http://{registry.ready()}", folder)
        with SchemaRegistryClient(site.registry) as client:
            for path in (REPOSITORY / "schemas").glob("*.avsc"):
                client.register(path.stem, json.loads(path.read_text()))
        with cluster.client() as client:
            for topic in AUDIT_TOPICS:
                client.create_topic(topic, 1)
        return site

    def topic(self, name: str, partitions: int = 4) -> str:
        """Create a topic of events shaped like PageView, its schema registered under its own name."""
        with self.cluster.client() as client:
            client.create_topic(name, partitions)
        for broker in self.cluster.brokers.values():  # those that did not create it hear of it a moment later
            wait_until(f"{broker.address} knows {name}", partial(_knows, broker.address, name))
        if name != "PageView":
            schema = json.loads((REPOSITORY / "schemas" / "PageView.avsc").read_text())
            with SchemaRegistryClient(self.registry) as registry:
                registry.register(name, schema)
        return name

    def producer(self, server: str = "web1") -> AuditedProducer:
        """An audited producer of the cluster."""
        return AuditedProducer(
            self.cluster.bootstrap, self.registry, cluster=self.cluster.name, server=server, service="web"
        )

    def publish(self, topic: str, times_ms: Iterator[int] | list[int]) -> int:
        """One acknowledged event per time; how many there were."""
        count = 0
        with self.producer() as producer:
            for count, time_ms in enumerate(times_ms, 1):  # noqa: B007
                producer.send(topic, topic, EMPTY_EVENT, time_ms=time_ms)
        return count

    def load_options(self, warehouse: Path) -> list[str]:
        """Return the options for `millrace load` about the site."""
        places = ["--warehouse", str(warehouse), "--bootstrap", self.cluster.bootstrap]
        return [*places, "--registry", self.registry, "--json"]


@dataclass(frozen=True, slots=True)
class LoadedRow:
    """One row of a warehouse, by what identifies it and where it came from."""

    instance: int
    sequence: int
    time: datetime
    partition: int
    offset: int


def loaded_rows(warehouse: Path, topic: str) -> list[LoadedRow]:
    """Every row that counts, read the plainest way, in the order of partition and offset.

    Those are the files that the newest edition of each load names; other attempts may have left files, too.
    """
    manifests = {}
    for kind in ("loads", "editions"):
        for path in sorted((warehouse / topic / kind).glob("[0-9]*.json")):
            manifests[path.name[:10]] = json.loads(path.read_text())
    rows = []
    for file in (file for manifest in manifests.values() for file in manifest["files"]):
        columns = ["header", "_topic_partition", "_offset"]
        for row in pq.read_table(warehouse / topic / file["path"], columns=columns).to_pylist():
            header = row["header"]
            place = (row["_topic_partition"], row["_offset"])
            rows.append(LoadedRow(header["instance"], header["sequence"], header["time"], *place))
    return sorted(rows, key=lambda row: (row.partition, row.offset))


def race_to_create(storage: Storage, turns: int) -> None:
    """Create a file by several threads at once, again and again: exactly one says that it has."""
    racers = 6
    for turn in range(turns):
        barrier = threading.Barrier(racers)

        def create(racer: int, turn: int = turn, barrier: threading.Barrier = barrier) -> bool:
            barrier.wait()
            return storage.create(f"loads/{turn}", b"%d" % racer)

        with ThreadPoolExecutor(racers) as threads:
            won = list(threads.map(create, range(racers)))
        assert won.count(True) == 1
        assert storage.read(f"loads/{turn}") == b"%d" % won.index(True)
