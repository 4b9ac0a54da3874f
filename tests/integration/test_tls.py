"""A broker with TLS: our own client and confluent-kafka write and read, and trust no broker without proof."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from millrace.client.cluster_client import ClusterClient
from millrace.client.connection import Connection, ConnectionFailed, NotTrusted
from millrace.config import ClientSecurity
from millrace.errors import MillraceError
from tests.brokers import free_port, read_topic
from tests.certificates import Authority, Issued
from tests.compat.brokers import RunningBroker, start_broker
from tests.support import Process, wait_until

VALUES = [f"value {number}".encode() * 100 for number in range(2_000)]


@dataclass
class Secured:
    """A broker with three listeners, and what its clients need."""

    broker: RunningBroker
    authority: Authority
    server: Issued
    client: Issued
    ports: dict[str, int]

    def tls(self, certificate: Issued | None = None) -> ClientSecurity:
        issued = (certificate.certificate, certificate.key) if certificate else ("", "")
        return ClientSecurity(protocol="SSL", ca=self.authority.ca, certificate=issued[0], key=issued[1])

    def settings(self, listener: str, **more: str) -> dict[str, str | int]:
        """Return settings of confluent-kafka."""
        return {
            "bootstrap.servers": f"localhost:{self.ports[listener]}",
            "security.protocol": "SSL",
            "ssl.ca.location": self.authority.ca,
            **more,
        }

    @property
    def certificate_settings(self) -> dict[str, str]:
        return {"ssl.certificate.location": self.client.certificate, "ssl.key.location": self.client.key}


@pytest.fixture(scope="module")
def secured(
    start_for_module: Callable[..., Process], zookeeper: str, tmp_path_factory: pytest.TempPathFactory
) -> Secured:
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority(folder)
    server, client = authority.issue("server"), authority.issue("client")
    ports = {name: free_port() for name in ("plain", "tls", "mutual")}
    settings: dict[str, Any] = {"listen": None, "tls.certificate": server.certificate}
    settings |= {"tls.key": server.key, "tls.ca": authority.ca}
    for name, port in ports.items():
        settings |= {f"listeners.{name}.listen": f"0.0.0.0:{port}"}
        settings |= {f"listeners.{name}.advertised": f"localhost:{port}"}
        settings |= {f"listeners.{name}.protocol": "PLAINTEXT" if name == "plain" else "SSL"}
    settings["listeners.mutual.client_certificates"] = "required"
    broker = start_broker(start_for_module, zookeeper, folder, "secured", **settings)
    return Secured(broker, authority, server, client, ports)


@pytest.mark.parametrize("listener", ["tls", "mutual"])
def test_confluent_kafka_writes_and_reads_by_tls_what_others_read_without(
    secured: Secured, listener: str
) -> None:
    certificate = secured.certificate_settings if listener == "mutual" else {}
    topic = secured.broker.create_topic(f"written-by-{listener}", 1, flush_ms=5)
    producer = confluent_kafka.Producer(secured.settings(listener, acks="all", **certificate))
    for value in VALUES:
        producer.produce(topic, value)
    assert producer.flush(30) == 0
    more = {"group.id": listener, "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer(secured.settings(listener, **more, **certificate))
    consumer.subscribe([topic])
    got: list[bytes | None] = []

    def take() -> bool:
        got.extend(message.value() for message in consumer.consume(500, 1.0) if message.error() is None)
        return len(got) >= len(VALUES)

    wait_until("every value", take)
    consumer.close()
    with secured.broker.client() as client:
        assert got == VALUES == list(read_topic(client, topic)[0].values)


@pytest.mark.parametrize("listener", ["tls", "mutual"])
def test_our_own_client_reads_by_tls_what_was_written_without(secured: Secured, listener: str) -> None:
    topic = secured.broker.create_topic(f"read-by-{listener}", 2, flush_ms=5)
    producer = confluent_kafka.Producer({"bootstrap.servers": secured.broker.bootstrap, "acks": "all"})
    for number, value in enumerate(VALUES):
        producer.produce(topic, value, partition=number % 2)
    assert producer.flush(30) == 0
    tls = secured.tls(secured.client if listener == "mutual" else None)
    with ClusterClient(f"localhost:{secured.ports[listener]}", timeout_s=20, security=tls) as client:
        read = read_topic(client, topic)
        assert client.addresses == {1: ("localhost", secured.ports[listener])}
    assert [list(read[number].values) for number in (0, 1)] == [VALUES[0::2], VALUES[1::2]]


def connect(port: int, host: str, security: ClientSecurity) -> Connection:
    return Connection(host, port, client_id="test", timeout_s=10, security=security)


def test_a_broker_that_is_not_who_it_should_be_is_refused_in_one_line(
    secured: Secured, tmp_path: Path
) -> None:
    port, stranger = secured.ports["tls"], Authority(tmp_path, "Stranger")
    with pytest.raises(NotTrusted, match=r"does not prove its identity: .*127\.0\.0\.2"):
        connect(port, "127.0.0.2", secured.tls())
    with pytest.raises(NotTrusted, match="does not prove its identity: unable to get local issuer"):
        connect(port, "localhost", ClientSecurity(protocol="SSL", ca=stranger.ca))
    with pytest.raises(ConnectionFailed, match="no TLS with the broker"):
        connect(secured.ports["plain"], "localhost", secured.tls())
    with (
        pytest.raises(MillraceError, match=r"cannot reach|no answer from the broker"),
        ClusterClient(f"localhost:{port}", timeout_s=1) as plain,
    ):
        plain.broker_ids()


def test_sighup_reads_a_renewed_certificate_while_clients_go_on(secured: Secured) -> None:
    topic = secured.broker.create_topic("renewed", 1, flush_ms=5)
    producer = confluent_kafka.Producer(secured.settings("tls", acks="all"))
    producer.produce(topic, b"before")
    assert producer.flush(30) == 0
    renewed = secured.authority.issue("renewed")
    shutil.copy(renewed.key, secured.server.key)
    shutil.copy(renewed.certificate, secured.server.certificate)
    secured.broker.process.signal(signal.SIGHUP)
    wait_until("it says so", lambda: "read the certificates again" in secured.broker.process.output)
    producer.produce(topic, b"behind")
    assert producer.flush(30) == 0
    with secured.broker.client() as client:
        assert list(read_topic(client, topic)[0].values) == [b"before", b"behind"]


def test_a_broker_does_not_start_with_a_certificate_that_has_expired(
    secured: Secured, start: Callable[..., Process], zookeeper: str, tmp_path: Path
) -> None:
    old = secured.authority.issue("expired", days=-1)
    config = tmp_path / "broker.toml"
    config.write_text(
        f"broker_id = 7\ncluster = 'never'\nzookeeper = {json.dumps(zookeeper)}\n"
        f"log_dir = {json.dumps(str(tmp_path / 'data'))}\n"
        "[listeners.a]\nlisten = '127.0.0.1:0'\nprotocol = 'SSL'\n"
        f"[tls]\ncertificate = {json.dumps(old.certificate)}\nkey = {json.dumps(old.key)}\n"
    )
    process = start("broker", str(config))
    assert process.wait() != 0
    assert "expired.pem expired at" in process.output
    assert "Traceback" not in process.output
