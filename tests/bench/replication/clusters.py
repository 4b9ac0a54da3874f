"""Three brokers of Millrace, and three of Apache Kafka with the same flush settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from millrace.client.cluster_client import ClusterClient
from tests.bench.broker import java
from tests.bench.broker.apache_kafka import FLUSHED, SETTINGS
from tests.bench.broker.millrace import Millrace
from tests.brokers import TestCluster
from tests.peers import maven
from tests.peers.kafka import POM, KafkaBroker
from tests.support import Process, wait_until

BROKERS = (1, 2, 3)


class System(Protocol):
    """Three brokers."""

    title: str
    version: str
    bootstrap: str

    def start(self, folder: Path) -> None:
        """Start with no data; returns when all answer."""

    def stop(self) -> None:
        """End every process, also after a failed start."""

    @property
    def pids(self) -> Mapping[int, int]:
        """Broker -> its process."""


class MillraceCluster:
    """Brokers of this checkout, and their ZooKeeper."""

    title = "Millrace"

    def __init__(self) -> None:
        self.version = Millrace().version
        self.bootstrap = ""
        self._processes: list[Process] = []

    def start(self, folder: Path) -> None:
        zookeeper = self._start("zookeeper", "--port", "0", "--data-dir", str(folder / "zookeeper")).ready()
        self._cluster = TestCluster(self._start, "bench", folder, zookeeper).start_brokers(*BROKERS)
        self.bootstrap = self._cluster.bootstrap

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.kill()

    @property
    def pids(self) -> Mapping[int, int]:
        return {number: broker.process.pid for number, broker in self._cluster.brokers.items()}

    def _start(self, *arguments: str) -> Process:
        self._processes.append(Process(arguments))
        return self._processes[-1]


class KafkaCluster:
    """Brokers of Apache Kafka, of which the first is the controller, too."""

    title = "Apache Kafka"

    def __init__(self) -> None:
        self.version = next(maven.jars(POM).glob("kafka_2.13-*.jar")).stem.rpartition("-")[2]
        self.bootstrap = ""
        self._brokers: dict[int, KafkaBroker] = {}

    def start(self, folder: Path) -> None:
        for number in BROKERS:
            self._brokers[number] = KafkaBroker(
                folder / str(number),
                heap_mb=1024,
                settings=SETTINGS | FLUSHED,
                java_options=java.KAFKA_OPTIONS,
                first=self._brokers.get(BROKERS[0]),
                node_id=number,
            )
        self.bootstrap = ",".join(broker.address for broker in self._brokers.values())
        with ClusterClient(self.bootstrap) as client:
            wait_until("all may store something", lambda: client.broker_ids() == [*BROKERS])

    def stop(self) -> None:
        for broker in self._brokers.values():
            broker.kill()

    @property
    def pids(self) -> Mapping[int, int]:
        return {number: broker.pid for number, broker in self._brokers.items()}


SYSTEMS: Mapping[str, Callable[[], System]] = {"millrace": MillraceCluster, "kafka": KafkaCluster}
