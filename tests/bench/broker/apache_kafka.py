"""Apache Kafka: one broker that is its own controller, with its defaults or Millrace's flush settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.bench.broker import java, meter
from tests.bench.broker.kafka_clients import clients
from tests.bench.broker.system import Client, missing_without_jars
from tests.peers import maven
from tests.peers.kafka import POM, KafkaBroker

SETTINGS = {"log.segment.delete.delay.ms": "0", "num.network.threads": "3", "num.io.threads": "8"}
FLUSHED = {
    "log.flush.interval.messages": "10000",
    "log.flush.interval.ms": "100",
    # The time is looked at by a scheduler that runs this often, too.
    "log.flush.scheduler.interval.ms": "100",
}
"""Millrace's flush settings."""


class ApacheKafka:
    """`flushed` gives it the flush settings of Millrace; consumers see data before the flush even so."""

    def __init__(self, *, flushed: bool) -> None:
        self.name = "kafka-flushed" if flushed else "kafka"
        self.title = "Apache Kafka, flushed" if flushed else "Apache Kafka"
        self.flush = (
            "flushed after 10,000 messages or 100 ms (flush.messages, flush.ms), visible before"
            if flushed
            else "never flushed by the broker (its default), visible at once"
        )
        self.version = "?"
        self.address = ""
        self.clients: Sequence[Client] = ()
        self._settings = SETTINGS | FLUSHED if flushed else dict(SETTINGS)
        self._listeners: Sequence[str] = ()
        self._broker: KafkaBroker | None = None

    def install(self) -> None:
        """Fetch it through Maven."""
        java.prepare()
        with missing_without_jars():
            folder = maven.jars(POM)
        self.version = next(folder.glob("kafka_2.13-*.jar")).stem.rpartition("-")[2]

    def start(self, folder: Path) -> None:
        """With the heap and collector of its own start script."""
        with missing_without_jars():
            self._broker = KafkaBroker(
                folder,
                heap_mb=1024,
                settings=self._settings,
                java_options=java.KAFKA_OPTIONS,
                listeners=self._listeners,
            )
        self.address = self._broker.address
        self.clients = clients(self.address)

    def pids(self) -> list[int]:
        """Broker and controller are one process."""
        return meter.tree(self._running.pid)

    def create(self, place: str) -> None:
        """A topic of one partition."""
        with self._running.client() as client:
            client.create_topic(place, 1)

    def delete(self, place: str) -> None:
        """The topic and its segments."""
        with self._running.client() as client:
            client.delete_topic(place)

    def files(self, place: str) -> list[Path]:
        """The directory of partition 0."""
        return [self._running.folder / "data" / f"{place}-0"]

    def stop(self) -> None:
        """Kill it: its data is deleted next."""
        if self._broker is not None:
            self._broker.kill()
            self._broker = None

    @property
    def _running(self) -> KafkaBroker:
        assert self._broker is not None
        return self._broker
