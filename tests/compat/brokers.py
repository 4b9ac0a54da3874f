"""Brokers for tests: a settings file, a process, and what its clients need to know."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millrace.client.cluster_client import ClusterClient
from tests.certificates import Authority
from tests.peers.kafka import KafkaBroker
from tests.support import Process


@dataclass
class RunningBroker:
    """A broker process; `restart` starts it again on the same port and directory."""

    start: Callable[..., Process]
    config: Path
    process: Process
    bootstrap: str

    def restart(self) -> None:
        """Start it again after it was stopped or killed."""
        self.process = self.start("broker", str(self.config), "--set", f"listen={self.bootstrap}")
        assert self.process.ready() == self.bootstrap

    def client(self, timeout_s: float = 20) -> ClusterClient:
        """A client of this broker's cluster."""
        return ClusterClient(self.bootstrap, timeout_s=timeout_s)

    def create_topic(self, name: str, partitions: int = 1, **settings: int) -> str:
        """Create a topic; `flush_ms=5` becomes flush.ms. Returns its name."""
        configs = {key.replace("_", "."): str(value) for key, value in settings.items()}
        with self.client() as client:
            client.create_topic(name, partitions, configs)
        return name


Home = RunningBroker | KafkaBroker
"""Broker to which an audited service produces."""


def address(home: Home) -> str:
    """Return HOST:PORT of the broker."""
    return home.address if isinstance(home, KafkaBroker) else home.bootstrap


def create(home: Home, topic: str) -> str:
    """Create a topic of three partitions. Returns its name."""
    with home.client() as client:
        client.create_topic(topic, 3, {})
    return topic


def login_settings(authority: Authority, logins: str, *super_users: str) -> dict[str, Any]:
    """Settings of a broker with rights, and with TLS and logins at `logins`. Other listeners allow all."""
    issued = authority.issue("broker")
    return {
        "listeners.logins.listen": logins,
        "listeners.logins.protocol": "SASL_SSL",
        "tls.certificate": issued.certificate,
        "tls.key": issued.key,
        "security.authorizer": True,
        "security.super_users": ["User:ANONYMOUS", *super_users],
    }


def start_broker(
    start: Callable[..., Process],
    zookeeper: str,
    folder: Path,
    cluster: str,
    broker_id: int = 1,
    **settings: Any,
) -> RunningBroker:
    """One broker on a free port, its files in `folder`; `settings` are lines of its file (None: no line)."""
    lines: dict[str, Any] = {
        "broker_id": broker_id,
        "cluster": cluster,
        "listen": "127.0.0.1:0",
        "zookeeper": zookeeper,
        "log_dir": str(folder / f"{cluster}-{broker_id}"),
        **settings,
    }
    config = folder / f"{cluster}-{broker_id}.toml"
    # A JSON scalar is a TOML scalar, and a flat JSON object one `key = value` per line.
    config.write_text(
        "".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items() if value is not None)
    )
    process = start("broker", str(config))
    return RunningBroker(start, config, process, process.ready())
