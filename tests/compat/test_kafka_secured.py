"""Apache Kafka with TLS and logins as an origin: mirrored while logins end, and what is wrong is said."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from millrace.client.cluster_client import ClusterClient
from millrace.client.confluent import librdkafka_settings
from millrace.client.connection import NotTrusted
from millrace.client.login import LoginRefused
from millrace.config import ClientSecurity
from millrace.security.folder import SecurityFolder
from tests.brokers import free_port, wait_for_values
from tests.compat.brokers import start_broker
from tests.peers.kafka import KafkaBroker, kafka_tool
from tests.support import Process

LOGIN_HOLDS_MS = 3_000
"""Kafka closes a connection that has not logged in anew by then."""
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass
class Secured:
    """One broker, where only admin's own listener takes plain connections."""

    kafka: KafkaBroker
    bootstrap: str
    folder: SecurityFolder


@pytest.fixture(scope="module")
def secured(needs_maven: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    path, port = tmp_path_factory.mktemp("kafka-secured"), free_port()
    folder = SecurityFolder(path / "security")
    folder.make()
    # Kafka takes a key and its certificates in one file of PEM, the key first.
    certificate, begin, key = folder.broker.read_text().partition("-----BEGIN PRIVATE KEY-----")
    (path / "kafka.pem").write_text(begin + key + certificate)
    mechanism = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,CLIENTS:SASL_SSL",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(path / "kafka.pem"),
        "connections.max.reauth.ms": str(LOGIN_HOLDS_MS),
    }
    settings |= {f"listener.name.clients.{one.lower()}.sasl.jaas.config": mechanism for one in MECHANISMS}
    with KafkaBroker(path / "broker", settings=settings, listeners=[f"CLIENTS://localhost:{port}"]) as kafka:
        password = folder.passwords()["mirror"]
        done = kafka_tool(
            "ConfigCommand",
            *("--bootstrap-server", kafka.address, "--alter", "--entity-type", "users"),
            *("--entity-name", "mirror", "--add-config", f"SCRAM-SHA-512=[password={password}]"),
        )
        assert done.returncode == 0, done.stderr
        yield Secured(kafka, f"localhost:{port}", folder)


def mirror_settings(security: ClientSecurity, bootstrap: str, topic: str) -> dict[str, Any]:
    named = {"protocol": security.protocol, "ca": security.ca, "user": security.user}
    named["password_file"] = security.password_file
    settings: dict[str, Any] = {f"mirror.dc1.security.{key}": value for key, value in named.items()}
    return {"mirror.dc1.bootstrap": bootstrap, "mirror.dc1.topics": [topic], **settings}


def test_a_mirror_follows_a_cluster_whose_logins_end_again_and_again(
    secured: Secured, start: Callable[..., Process], zookeeper: str, tmp_path: Path
) -> None:
    security = secured.folder.client("mirror")
    with ClusterClient(secured.bootstrap, security=security) as client:
        client.create_topic("followed", 2)
    settings = mirror_settings(security, secured.bootstrap, "followed")
    copy = start_broker(start, zookeeper, tmp_path, "copy-of-secured", **settings)
    producer = Producer(
        {"bootstrap.servers": secured.bootstrap, "acks": "all", **librdkafka_settings(security)}
    )
    sent = 0
    with copy.client() as client:
        for _ in range(4):
            for _ in range(100):
                producer.produce("followed", f"value {sent}".encode())
                sent += 1
            assert producer.flush(30) == 0
            wait_for_values(client, "followed", sent)
            time.sleep(LOGIN_HOLDS_MS / 1000)  # what is open by now is closed, or has logged in anew
        found = wait_for_values(client, "followed", sent)
    values = sorted(value or b"" for one in found.values() for value in one.values)
    assert values == sorted(f"value {number}".encode() for number in range(sent))
    assert "ERROR" not in copy.process.output


def test_what_is_wrong_is_said_at_once(secured: Secured, tmp_path: Path) -> None:
    security = secured.folder.client("mirror")
    wrong = tmp_path / "wrong"
    wrong.touch(mode=0o600)
    wrong.write_text("canary-3f")
    for changed, error, words in (
        ({"password_file": str(wrong)}, LoginRefused, "refuses user 'mirror' by SCRAM-SHA-512"),
        ({"mechanism": "PLAIN"}, LoginRefused, "takes no PLAIN: set mechanism to one of SCRAM-SHA-"),
        ({"ca": ""}, NotTrusted, "does not prove who it is"),
    ):
        with (
            pytest.raises(error, match=words) as raised,
            ClusterClient(secured.bootstrap, security=dataclasses.replace(security, **changed)) as client,
        ):
            client.broker_ids()
        assert "canary-3f" not in str(raised.value)
