"""Millrace: one broker with its defaults, and the ZooKeeper it registers in."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from millrace import __version__
from millrace.client.cluster_client import ClusterClient
from tests.bench.broker import meter
from tests.bench.broker.kafka_clients import clients
from tests.bench.broker.system import Client
from tests.support import REPOSITORY, Process


class Millrace:
    """The broker of this checkout."""

    name = "millrace"
    title = "Millrace"
    flush = "flushed after 10,000 messages or 100 ms, sooner when a client waits; nothing is visible before"

    def __init__(self, *overrides: str) -> None:
        """`overrides` are settings of the broker as `--set` takes them."""
        self._overrides = [word for override in overrides for word in ("--set", override)]
        self.version = f"{__version__} ({_commit()})"
        self.address = ""
        self.clients: Sequence[Client] = ()
        self._folder = Path()
        self._processes: list[Process] = []

    def install(self) -> None:
        """It is here."""

    def start(self, folder: Path) -> None:
        """ZooKeeper, then the broker."""
        self._folder = folder / "logs"
        zookeeper = Process(["zookeeper", "--port", "0", "--data-dir", str(folder / "zookeeper")])
        self._processes.append(zookeeper)
        config = folder / "broker.toml"
        config.write_text(
            f'broker_id = 1\ncluster = "bench"\nzookeeper = "{zookeeper.ready()}"\n'
            f'log_dir = "{self._folder}"\n{self._listeners(folder)}'
        )
        broker = Process(["broker", str(config), *self._overrides])
        self._processes.append(broker)
        self.address = broker.ready()
        self.clients = clients(self.address)

    def _listeners(self, folder: Path) -> str:
        """The lines of the broker's file that say where it listens."""
        return 'listen = "127.0.0.1:0"\n'

    def pids(self) -> list[int]:
        """The broker only: ZooKeeper does nothing while messages flow."""
        return meter.tree(self._processes[-1].pid)

    def create(self, place: str) -> None:
        """A topic of one partition."""
        with ClusterClient(self.address) as client:
            client.create_topic(place, 1)

    def delete(self, place: str) -> None:
        """The topic and its segments."""
        with ClusterClient(self.address) as client:
            client.delete_topic(place)

    def files(self, place: str) -> list[Path]:
        """The directory of partition 0."""
        return list(self._folder.glob(f"{place}-0-*"))

    def stop(self) -> None:
        """End both."""
        for process in reversed(self._processes):
            process.kill()
        self._processes.clear()


def _commit() -> str:
    command = ["git", "-C", str(REPOSITORY), "describe", "--always"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "no git"
