"""Millrace and Apache Kafka with TLS: the same brokers, reached by replay through an encrypted listener."""

from __future__ import annotations

import json
from pathlib import Path

from tests.bench.broker.apache_kafka import ApacheKafka
from tests.bench.broker.kafka_clients import Replay
from tests.bench.broker.millrace import Millrace
from tests.brokers import free_port
from tests.certificates import Authority, Issued


def _certificates(folder: Path) -> tuple[Issued, str]:
    """A broker's certificate of an authority of its own, and the client file by which others check it."""
    authority, client = Authority(folder), folder / "client.toml"
    client.write_text(f'protocol = "SSL"\nca = {json.dumps(authority.ca)}\n')
    return authority.issue("server"), str(client)


class EncryptedMillrace(Millrace):
    """A listener in the clear, on which topics are made, and one with TLS, on which they are loaded."""

    name = "millrace-tls"
    title = "Millrace, TLS"

    def _listeners(self, folder: Path) -> str:
        server, self._client = _certificates(folder)
        self._encrypted = f"localhost:{free_port()}"
        return (
            '[listeners.clear]\nlisten = "127.0.0.1:0"\n'
            f'[listeners.encrypted]\nlisten = "{self._encrypted}"\nprotocol = "SSL"\n'
            f"[tls]\ncertificate = {json.dumps(server.certificate)}\nkey = {json.dumps(server.key)}\n"
        )

    def start(self, folder: Path) -> None:
        """As without TLS; the clients are others."""
        super().start(folder)
        self.clients = [Replay(self._encrypted, self._client)]


class EncryptedKafka(ApacheKafka):
    """The same of Apache Kafka with its defaults."""

    def __init__(self) -> None:
        super().__init__(flushed=False)
        self.name, self.title = "kafka-tls", "Apache Kafka, TLS"

    def start(self, folder: Path) -> None:
        """The certificates, then as without them."""
        server, client = _certificates(folder)
        # Kafka takes a key and its certificate in one file of PEM, the key first.
        keystore, port = folder / "kafka.pem", free_port()
        keystore.write_text(Path(server.key).read_text() + Path(server.certificate).read_text())
        self._settings |= {
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,CLIENTS:SSL",
            "inter.broker.listener.name": "PLAINTEXT",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(keystore),
        }
        self._listeners = [f"CLIENTS://localhost:{port}"]
        super().start(folder)
        self.clients = [Replay(f"localhost:{port}", client)]
