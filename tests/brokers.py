"""Clusters of real brokers for tests, and everything that is in one of their partitions."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from kazoo.exceptions import NodeExistsError

from millrace.client.cluster_client import EARLIEST, LATEST, ClusterClient
from millrace.errors import ErrorCode
from millrace.records import BatchHeader, Record, iter_records, split_batches
from millrace.wire import admin_messages as messages
from millrace.wire.cluster_id import new_cluster_id
from millrace.wire.messages import ApiKey
from millrace.zookeeper.session import Session
from tests.support import WAIT_S, Process, wait_until

Start = Callable[..., Process]
_given_out: dict[int, socket.socket] = {}
"""Port -> its claim: the UDP port of the same number, which no other test run can have."""


def free_port() -> int:
    """A TCP port that is this test run's until it ends, also while nobody listens on it: a broker that is
    killed must come back at the same address.

    Below those that the system gives to outgoing connections: one of them could take it in the meantime.
    """
    while True:
        port, claim = random.randrange(15_000, 32_000), socket.socket(type=socket.SOCK_DGRAM)
        with suppress(OSError):
            claim.bind(("127.0.0.1", port))
            socket.create_server(("127.0.0.1", port)).close()
            _given_out[port] = claim
            return port
        claim.close()


def _knows(client: ClusterClient, broker_ids: Iterable[int]) -> bool:
    """A broker hears of the others a moment after they are there."""
    return set(broker_ids) <= set(client.broker_ids())


@dataclass(slots=True)
class TestBroker:
    """One broker process and what is needed to start it again."""

    __test__ = False

    config: Path
    address: str
    process: Process

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()


@dataclass(slots=True)
class TestCluster:
    """Some brokers of one cluster; they keep their ports and data over restarts."""

    __test__ = False

    start: Start
    name: str
    folder: Path
    zookeeper: str
    settings: str = ""
    known_as: str = ""
    """Name that clients call the cluster by, where many tests share one ZooKeeper; empty: `name`."""
    security: str = ""
    """Lines about listeners with logins, and rights; the address of a broker is then its listener `plain`."""
    brokers: dict[int, TestBroker] = field(default_factory=dict)

    @property
    def bootstrap(self) -> str:
        """HOST:PORT of every broker."""
        return ",".join(broker.address for broker in self.brokers.values())

    def directory(self, broker_id: int) -> Path:
        """The log directory of a broker."""
        return self.folder / f"{self.name}-{broker_id}"

    def start_brokers(self, *broker_ids: int) -> TestCluster:
        """Start them at once, then wait for all."""
        if self.known_as:
            with closing(Session.connect(self.zookeeper)) as session, suppress(NodeExistsError):
                cluster_id = new_cluster_id(self.known_as).encode()
                session.call(session.client.create_async, f"/{self.name}/id", cluster_id, makepath=True)
        listen = "listeners.plain.listen" if self.security else "listen"
        for broker_id in broker_ids:
            address = f"127.0.0.1:{free_port()}"
            config = self.folder / f"{self.name}-{broker_id}.toml"
            config.write_text(
                f"broker_id = {broker_id}\ncluster = {json.dumps(self.name)}\n"
                f"{listen} = {json.dumps(address)}\nzookeeper = {json.dumps(self.zookeeper)}\n"
                "session_timeout_ms = 2000\n"
                f"log_dir = {json.dumps(str(self.directory(broker_id)))}\n{self.security}{self.settings}"
            )
            self.brokers[broker_id] = TestBroker(config, address, self.start("broker", str(config)))
        for broker_id in broker_ids:
            self.brokers[broker_id].process.ready()
        for broker in self.brokers.values():
            if broker.process.running:
                with ClusterClient(broker.address, timeout_s=20) as client:
                    known = partial(_knows, client, broker_ids)
                    wait_until(f"{broker.address} knows brokers {broker_ids}", known)
        return self

    def restart(self, broker_id: int) -> None:
        """Start a broker that has ended again, and wait for it."""
        broker = self.brokers[broker_id]
        broker.process = self.start("broker", str(broker.config))
        broker.process.ready()

    def client(self) -> ClusterClient:
        """A client of the cluster."""
        return ClusterClient(self.bootstrap, timeout_s=20)

    def reassign(self, topic: str, partition: int, replicas: tuple[int, ...]) -> None:
        """Begin to move a partition to the brokers `replicas`."""
        Topic = messages.AlterPartitionReassignmentsRequest.Topic
        moving = Topic.Partition(partition_index=partition, replicas=replicas)
        request = messages.AlterPartitionReassignmentsRequest(
            topics=(Topic(name=topic, partitions=(moving,)),)
        )
        with self.client() as client:
            answer = client.call(
                None,
                ApiKey.ALTER_PARTITION_REASSIGNMENTS,
                1,
                request,
                messages.AlterPartitionReassignmentsResponse,
            )
        ((moved,),) = [topic.partitions for topic in answer.responses]
        assert moved.error_code == ErrorCode.NONE, moved.error_message


@dataclass(frozen=True, slots=True)
class Contents:
    """All there is in one partition, up to the high watermark."""

    batches: tuple[bytes, ...]
    """Data batches without what the broker stamps: base offset and leader epoch."""
    records: tuple[Record, ...]
    high_watermark: int

    @property
    def values(self) -> list[bytes | None]:
        """The records' values, in order."""
        return [record.value for record in self.records]


def read_partition(client: ClusterClient, topic: str, partition: int) -> Contents:
    """Every data batch and record of the partition, in order."""
    offset = client.list_offsets(topic, EARLIEST, [partition])[partition]
    end = client.list_offsets(topic, LATEST, [partition])[partition]
    batches: list[bytes] = []
    records: list[Record] = []
    while offset < end:
        fetched = client.fetch(topic, {partition: offset}, max_bytes=8 << 20, max_wait_ms=1000)[partition]
        assert fetched.error == 0
        whole: list[tuple[BatchHeader, memoryview]] = list(split_batches(fetched.records))
        assert whole, f"{topic}-{partition} gives nothing at {offset}, its end is {end}"
        for header, batch in whole:
            if header.next_offset > offset and not header.is_control:
                batches.append(bytes(batch[8:12]) + bytes(batch[16:]))
                records += iter_records(header, batch)
            offset = max(offset, header.next_offset)
    return Contents(tuple(batches), tuple(records), end)


def read_topic(client: ClusterClient, topic: str) -> dict[int, Contents]:
    """Every partition of the topic."""
    return {number: read_partition(client, topic, number) for number in client.topic(topic).partitions}


def wait_for_values(
    client: ClusterClient, topic: str, count: int, *, timeout_s: float = WAIT_S
) -> Mapping[int, Contents]:
    """The whole topic, once it holds `count` records."""

    def complete() -> Mapping[int, Contents] | None:
        if topic not in client.topics():
            return None
        found = read_topic(client, topic)
        return found if sum(len(each.records) for each in found.values()) >= count else None

    return wait_until(f"{topic} holds {count} records", complete, timeout_s=timeout_s) or {}


def values(contents: Iterable[Contents]) -> list[bytes | None]:
    """The values of several partitions, one after the other."""
    return [value for each in contents for value in each.values]
