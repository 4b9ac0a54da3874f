"""The cells: a topic with some replicas, loaded by requests that were encoded beforehand."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from millrace.client.cluster_client import ClusterClient
from tests.bench import replay
from tests.bench.broker import meter
from tests.bench.replay import VALUE_BYTES
from tests.bench.replication.clusters import System

MINIMUM = {1: 1, 2: 1, 3: 2}
"""Replicas -> min.insync.replicas, as it is in Millrace where nobody sets it."""
SINGLE_REQUESTS = 300
PAUSE_S = 0.01
"""Before each of them, so that nothing else goes on."""
READY_S = 30
SETTLE_S = 0.3
"""The last flushes belong to the cell."""


class Load(NamedTuple):
    """One kind of traffic, and its units: what a message counts in the rate, and in the CPU's."""

    title: str
    per_request: int
    messages: int
    connections: int
    in_flight: int
    rate_unit: str
    rate_scale: float
    cpu_unit: str
    cpu_scale: float


LARGE = Load("Large batches", 4500, 4_000_000, 8, 5, "MB/s", VALUE_BYTES / 1e6, "s/GB", VALUE_BYTES / 1e9)
FIFTY = Load("50 per request", 50, 2_000_000, 32, 30, "msgs/s", 1, "s/M", 1e-6)


class Run(NamedTuple):
    """One run of a load, in the load's units."""

    rate: float
    leader: float
    """CPU of the leader's process."""
    followers: float
    """CPU of the other brokers together."""
    client: float
    seconds: float
    units: float
    """Amount sent, in the unit that the CPU is counted by."""
    leader_thread: float
    """CPU of the leader's busiest thread."""

    @property
    def brokers(self) -> float:
        return self.leader + self.followers

    def cores(self, cpu: float) -> float:
        """Convert CPU per unit to cores."""
        return cpu * self.units / self.seconds


class Latency(NamedTuple):
    """One run of single requests, in ms."""

    p50: float
    p99: float
    brokers: float
    """CPU of all brokers for a request, what they do when idle included."""


def load(system: System, kind: Load, factor: int, share: float) -> Run:
    """Send all messages of one kind of traffic to a topic with so many replicas."""
    with _topic(system, factor) as (topic, leader, address):
        sampler = meter.Sampler.start([system.pids[leader]])
        before = {number: meter.cpu_seconds([pid]) for number, pid in system.pids.items()}
        run = replay.produce(
            address,
            topic,
            per_request=kind.per_request,
            requests=max(1, int(kind.messages * share) // kind.per_request // kind.connections),
            acks=-1,
            in_flight=kind.in_flight,
            connections=kind.connections,
        )
        time.sleep(SETTLE_S)
        sampler.sample()
        used = {number: meter.cpu_seconds([pid]) - before[number] for number, pid in system.pids.items()}
    units = run.messages * kind.cpu_scale
    return Run(
        rate=run.messages_per_s * kind.rate_scale,
        leader=used.pop(leader) / units,
        followers=sum(used.values()) / units,
        client=run.client_cpu_s / units,
        seconds=run.seconds,
        units=units,
        leader_thread=sampler.busiest_thread_s() / units,
    )


def latency(system: System, factor: int, share: float) -> Latency:
    """Send single messages, each when the one before is acknowledged by all and a moment has passed."""
    with _topic(system, factor) as (topic, _, address):
        before = meter.cpu_seconds(system.pids.values())
        count = max(1, int(SINGLE_REQUESTS * share))
        taken = replay.acknowledged_ms(address, topic, requests=count, pause_s=PAUSE_S)
        used = meter.cpu_seconds(system.pids.values()) - before
    return Latency(statistics.median(taken), p99(taken), used / len(taken) * 1000)


def p99(values: Sequence[float]) -> float:
    """Only one in a hundred is larger."""
    return sorted(values)[int(len(values) * 0.99)]


@contextmanager
def _topic(system: System, factor: int) -> Iterator[tuple[str, int, str]]:
    """A topic of one partition: its name, its leader, and the leader's address. Deleted afterwards."""
    name = f"bench-{time.time_ns()}"
    with ClusterClient(system.bootstrap, timeout_s=READY_S) as client:
        client.create_topic(name, 1, {"min.insync.replicas": str(MINIMUM[factor])}, replicas=factor)
        try:
            leader = client.topic(name).partitions[0]
            address = "{}:{}".format(*client.addresses[leader])
            _wait_until_it_takes(address, name)
            yield name, leader, address
        finally:
            client.delete_topic(name)


def _wait_until_it_takes(address: str, topic: str) -> None:
    """Apache Kafka names a leader before that one leads."""
    deadline = time.monotonic() + READY_S
    while True:
        try:
            replay.produce(address, topic, per_request=1, requests=10, acks=-1, in_flight=1)
            return
        except ConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
