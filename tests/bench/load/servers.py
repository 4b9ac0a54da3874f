"""The servers of the load benchmark: real processes on free ports, ended with the context."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from millrace_registry.client import SchemaRegistryClient
from tests.bench.broker.java import KAFKA_OPTIONS
from tests.bench.broker.system import missing_without_jars
from tests.brokers import free_port
from tests.peers.kafka import KafkaBroker
from tests.support import REPOSITORY, Process

TOPIC = "PageView"
SCHEMA = REPOSITORY / "schemas" / f"{TOPIC}.avsc"
KAFKA_HEAP_MB = 1024
_KAFKA_SETTINGS = {"log.segment.delete.delay.ms": "0", "num.network.threads": "3", "num.io.threads": "8"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """One broker of either kind."""

    address: str
    pid: int


class Servers:
    """Starts servers, each in a folder of its own; the context kills them all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, *arguments: str) -> Process:
        """One `millrace` command."""
        process = Process(arguments)
        self._stack.callback(process.kill)
        return process

    def zookeeper(self) -> str:
        """HOST:PORT of a ZooKeeper."""
        return self.start("zookeeper", "--port", "0", "--data-dir", str(self._folder / "zookeeper")).ready()

    def registry(self) -> tuple[str, int]:
        """URL of a registry that knows PageView, and that schema's id."""
        process = self.start(
            "registry", "--listen", "127.0.0.1:0", "--database-url", f"sqlite:///{self._folder}/registry.db"
        )
        url = f"http://{process.ready()}"
        with SchemaRegistryClient(url) as client:
            return url, client.register(TOPIC, json.loads(SCHEMA.read_text()))

    def millrace(self, name: str, zookeeper: str, more: str = "") -> Broker:
        """A cluster of one broker with its defaults; `more` is added to its file."""
        config = self._folder / f"{name}.toml"
        address = f"127.0.0.1:{free_port()}"
        config.write_text(
            f'broker_id = 1\ncluster = "{name}"\nlisten = "{address}"\nzookeeper = "{zookeeper}"\n'
            f'log_dir = "{self._folder / name}"\n{more}'
        )
        process = self.start("broker", str(config))
        process.ready()
        return Broker(address=address, pid=process.pid)

    def kafka(self, name: str) -> Broker:
        """An Apache Kafka with the heap and collector of its own start script; Missing without it."""
        with missing_without_jars():
            broker = KafkaBroker(
                self._folder / name,
                heap_mb=KAFKA_HEAP_MB,
                settings=_KAFKA_SETTINGS,
                java_options=KAFKA_OPTIONS,
            )
        self._stack.callback(broker.kill)
        return Broker(address=broker.address, pid=broker.pid)
