"""Apache Kafka with TLS and logins as an origin: mirrored while logins end, counted, loaded and proved.

What is wrong is said. The listener CLIENTS takes SCRAM alone and ends logins after three seconds, EVERY takes
PLAIN, too.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka.admin
import pytest
from confluent_kafka import Producer

from millrace.client.cluster_client import ClusterClient
from millrace.client.confluent import librdkafka_settings
from millrace.client.connection import NotTrusted
from millrace.client.login import LoginRefused
from millrace.config import ClientSecurity
from millrace.security.client import load_client
from millrace.security.folder import SecurityFolder
from millrace_audit.producer import AuditedProducer
from millrace_audit.reports.counts import SequenceCounts
from millrace_audit.reports.messages import COUNTS_TOPIC, AuditCodec, Count
from millrace_registry.client import SchemaRegistryClient
from tests.brokers import free_port, read_topic, wait_for_values
from tests.compat.brokers import start_broker
from tests.peers.kafka import KafkaBroker
from tests.support import REPOSITORY, Process, run_millrace, wait_until
from tests.warehouses import EMPTY_EVENT, loaded_rows

kafka_admin: Any = confluent_kafka.admin
LOGIN_HOLDS_MS = 3_000
"""Kafka closes a connection that has not logged in anew by then."""
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
USERS = ("mirror", "producer", "reader", "loads")
START_MS = 1_431_856_800_000
EVENTS = 600
CLUSTER = "kafka-secured"
"""No other test's: who counts a cluster is known by its name in a ZooKeeper that all share."""


@dataclass
class Secured:
    """One broker, where only admin's own listener takes plain connections."""

    kafka: KafkaBroker
    bootstrap: str
    every: str
    """The listener that takes PLAIN, too."""
    folder: SecurityFolder

    def client_file(self, user: str, mechanism: str) -> str:
        """A client file of a user who logs in that way."""
        file = self.folder.path / f"{user}-{mechanism}.toml"
        file.write_text(f'{self.folder.client_file(user).read_text()}mechanism = "{mechanism}"\n')
        return str(file)


@pytest.fixture(scope="module")
def secured(needs_maven: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    path, port, every = tmp_path_factory.mktemp("kafka-secured"), free_port(), free_port()
    folder = SecurityFolder(path / "security")
    folder.make()
    passwords = folder.passwords()
    # Kafka takes a key and its certificates in one file of PEM, the key first.
    certificate, begin, key = folder.broker.read_text().partition("-----BEGIN PRIVATE KEY-----")
    (path / "kafka.pem").write_text(begin + key + certificate)
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    known = " ".join(f'user_{user}="{passwords[user]}"' for user in USERS)
    protocols = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,CLIENTS:SASL_SSL,EVERY:SASL_SSL"
    settings = {
        "listener.security.protocol.map": protocols,
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.name.clients.sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "listener.name.every.sasl.enabled.mechanisms": ",".join((*MECHANISMS, "PLAIN")),
        "listener.name.every.plain.sasl.jaas.config": (
            f"org.apache.kafka.common.security.plain.PlainLoginModule required {known};"
        ),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(path / "kafka.pem"),
        "connections.max.reauth.ms": str(LOGIN_HOLDS_MS),
    }
    for listener in ("clients", "every"):
        names = (f"listener.name.{listener}.{one.lower()}.sasl.jaas.config" for one in MECHANISMS)
        settings |= dict.fromkeys(names, scram)
    listeners = [f"CLIENTS://localhost:{port}", f"EVERY://localhost:{every}"]
    with KafkaBroker(path / "broker", settings=settings, listeners=listeners) as kafka:
        scram_512 = kafka_admin.ScramCredentialInfo(kafka_admin.ScramMechanism.SCRAM_SHA_512, 4096)
        admin = kafka_admin.AdminClient({"bootstrap.servers": kafka.address})
        upsertion = kafka_admin.UserScramCredentialUpsertion
        written = admin.alter_user_scram_credentials(
            [upsertion(user, scram_512, passwords[user].encode()) for user in USERS]
        )
        for done in written.values():
            done.result(30)
        yield Secured(kafka, f"localhost:{port}", f"localhost:{every}", folder)


def mirror_settings(security: ClientSecurity, bootstrap: str, topic: str) -> dict[str, Any]:
    named = {"protocol": security.protocol, "ca": security.ca, "user": security.user}
    named |= {"password_file": security.password_file, "mechanism": security.mechanism}
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
        ({"mechanism": "PLAIN"}, LoginRefused, "does not offer PLAIN: set mechanism to one of SCRAM-SHA-"),
        ({"ca": ""}, NotTrusted, "does not prove its identity"),
    ):
        with (
            pytest.raises(error, match=words) as raised,
            ClusterClient(secured.bootstrap, security=dataclasses.replace(security, **changed)) as client,
        ):
            client.broker_ids()
        assert "canary-3f" not in str(raised.value)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
def test_the_main_job_runs_on_a_cluster_that_wants_tls_and_a_login(
    secured: Secured, start: Callable[..., Process], zookeeper: str, tmp_path: Path, mechanism: str
) -> None:
    """Events of an audited producer are mirrored, counted, loaded by Spark and verified, each by a user."""
    topic, at = f"Main-{mechanism}", secured.every
    clients = {user: secured.client_file(user, mechanism) for user in USERS}
    as_user = {user: load_client(file) for user, file in clients.items()}
    process = start("registry", "--listen", "127.0.0.1:0", "--database-url", f"sqlite:///{tmp_path}/r.db")
    registry = f"http://{process.ready()}"
    with SchemaRegistryClient(registry) as schemas:
        schemas.register(topic, json.loads((REPOSITORY / "schemas" / "PageView.avsc").read_text()))
    with ClusterClient(at, security=as_user["mirror"]) as client:
        for name in {topic, "audit", COUNTS_TOPIC} - client.topics().keys():
            # Kafka's retention goes by the events' own times, and these lie years back.
            client.create_topic(name, 2 if name == topic else 1, {"retention.ms": "-1"})
    config: dict[str, Any] = librdkafka_settings(as_user["producer"])
    names: dict[str, Any] = {"cluster": CLUSTER, "server": "web", "service": "shop"}
    with AuditedProducer(at, registry, config=config, **names) as producer:
        for number in range(EVENTS):
            producer.send(topic, topic, EMPTY_EVENT, time_ms=START_MS + number, key=str(number % 7))

    settings = mirror_settings(as_user["mirror"], at, topic)
    copy = start_broker(start, zookeeper, tmp_path, f"copy-of-{mechanism.lower()}", **settings)
    with copy.client() as client:
        wait_for_values(client, topic, EVENTS)

    places = ("--bootstrap", at, "--registry", registry)
    reader = start(
        *("audit-reader", "--cluster", CLUSTER, *places, "--zookeeper", zookeeper),
        *("--topics", topic, "--interval-ms", "50"),
        env={"MILLRACE_CLIENT": clients["reader"]},
    )
    with ClusterClient(at, security=as_user["reader"]) as client, SchemaRegistryClient(registry) as schemas:
        codec = AuditCodec(schemas)

        def counted() -> bool:
            values = read_topic(client, COUNTS_TOPIC)[0].values
            said = [codec.decode(value) for value in values if value is not None]
            total = SequenceCounts()
            for one in said:
                if isinstance(one, Count) and one.topic == topic:
                    total.merge(one.counts)
            return [entry["ranges"] for entry in total.to_json()] == [[[0, EVENTS - 1]]]

        wait_until("every event is counted", counted)

    warehouse = tmp_path / "warehouse"
    environment = {"MILLRACE_CLIENT": clients["loads"]}
    load = run_millrace("load", topic, *places, "--warehouse", str(warehouse), "--json", env=environment)
    assert load.returncode == 0, load.stderr
    rows = loaded_rows(warehouse, topic)
    assert len(rows) == len({(row.instance, row.sequence) for row in rows}) == EVENTS
    verified = run_millrace(
        "verify", "--warehouse", str(warehouse), "--bootstrap", at, "--json", env=environment
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr
    said = [load.stdout, load.stderr, verified.stdout, verified.stderr, copy.process.output, reader.output]
    for password in secured.folder.passwords().values():
        assert not [text for text in said if password in text]
