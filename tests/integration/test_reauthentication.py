"""Logins that hold for a time, and PLAIN: who proves again who it is goes on, anybody else is closed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from millrace.client.cluster_client import ClusterClient
from millrace.client.connection import Connection, ConnectionFailed
from millrace.config import ClientSecurity
from millrace.errors import ErrorCode
from millrace.zookeeper.session import Session
from millrace_broker.coordination.users import Users
from tests.brokers import free_port, read_topic
from tests.certificates import Authority
from tests.compat.brokers import RunningBroker, start_broker
from tests.logins import authenticate, handshake, log_in, log_in_plainly, topics
from tests.support import Process, wait_until

PASSWORD = "canary-77ab-in-no-log"
LIFETIME_S = 3
LONG_LIFETIME_S = 10
"""Lifetime of a login that must not end between two steps of a test."""
MECHANISMS = ["SCRAM-SHA-512", "PLAIN"]


@dataclass
class Guarded:
    """A broker whose logins end after a time, and a user's files."""

    broker: RunningBroker
    ports: dict[str, int]
    ca: str
    password_file: Path

    @contextmanager
    def raw(self) -> Iterator[Connection]:
        """Without TLS."""
        with Connection("localhost", self.ports["SASL_PLAINTEXT"], client_id="raw", timeout_s=20) as one:
            yield one

    @contextmanager
    def raw_by_tls(self) -> Iterator[Connection]:
        tls, port = ClientSecurity(protocol="SSL", ca=self.ca), self.ports["SASL_SSL"]
        with Connection("localhost", port, client_id="raw", timeout_s=20, security=tls) as one:
            yield one


@pytest.fixture(scope="module")
def guarded(
    start_for_module: Callable[..., Process], zookeeper: str, tmp_path_factory: pytest.TempPathFactory
) -> Guarded:
    return start_guarded(start_for_module, zookeeper, tmp_path_factory.mktemp("renewed"), LIFETIME_S)


@pytest.fixture(scope="module")
def patient(
    start_for_module: Callable[..., Process], zookeeper: str, tmp_path_factory: pytest.TempPathFactory
) -> Guarded:
    return start_guarded(start_for_module, zookeeper, tmp_path_factory.mktemp("patient"), LONG_LIFETIME_S)


def start_guarded(start: Callable[..., Process], zookeeper: str, folder: Path, lifetime_s: int) -> Guarded:
    session = Session.connect(zookeeper)
    for user in ("alice", "bob"):
        Users(session, folder.name).set_password(user, PASSWORD)
    session.close()
    authority = Authority(folder)
    server = authority.issue("server")
    settings: dict[str, Any] = {
        "listen": None,
        "tls.certificate": server.certificate,
        "tls.key": server.key,
        "security.reauthenticate_ms": lifetime_s * 1000,
    }
    ports = {name: free_port() for name in ("PLAINTEXT", "SASL_PLAINTEXT", "SASL_SSL")}
    for name, port in ports.items():
        settings[f"listeners.{name}.listen"] = f"127.0.0.1:{port}"
        settings[f"listeners.{name}.advertised"] = f"localhost:{port}"
        settings[f"listeners.{name}.protocol"] = name
    settings["listeners.SASL_SSL.mechanisms"] = MECHANISMS
    broker = start_broker(start, zookeeper, folder, folder.name, **settings)
    password_file = folder / "password"
    password_file.touch(mode=0o600)
    password_file.write_text(PASSWORD)
    return Guarded(broker, ports, authority.ca, password_file)


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_proves_again_in_time_and_stays_connected(guarded: Guarded, mechanism: str) -> None:
    topic = guarded.broker.create_topic(f"renewed-{mechanism}", 1, flush_ms=5)
    errors: list[str] = []
    failed: list[object] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": f"localhost:{guarded.ports['SASL_SSL']}",
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": guarded.ca,
            "sasl.mechanism": mechanism,
            "sasl.username": "alice",
            "sasl.password": PASSWORD,
            "acks": "all",
            "error_cb": lambda error: errors.append(str(error)),
        }
    )
    count, end = 0, time.monotonic() + 2.5 * LIFETIME_S
    while time.monotonic() < end:
        producer.produce(topic, b"x", on_delivery=lambda error, _: failed.append(error) if error else None)
        count += 1
        producer.poll(0.05)
    assert producer.flush(30) == 0
    assert not failed
    assert not errors
    with ClusterClient(f"127.0.0.1:{guarded.ports['PLAINTEXT']}", timeout_s=20) as client:
        assert len(read_topic(client, topic)[0].values) == count


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_our_own_client_goes_on_where_a_login_ends(guarded: Guarded, mechanism: str) -> None:
    security = ClientSecurity(
        protocol="SASL_SSL",
        ca=guarded.ca,
        mechanism=mechanism,
        user="alice",
        password_file=str(guarded.password_file),
    )
    with ClusterClient(f"localhost:{guarded.ports['SASL_SSL']}", timeout_s=20, security=security) as client:
        end = time.monotonic() + 1.5 * LIFETIME_S
        while time.monotonic() < end:
            assert client.broker_ids() == [1]
            threading.Event().wait(0.2)


def closed(connection: Connection) -> bool:
    try:
        topics(connection)
    except ConnectionFailed:
        return True
    return False


def test_who_does_not_prove_again_is_closed_when_the_login_ends(guarded: Guarded) -> None:
    with guarded.raw() as connection:
        told = log_in(connection, "alice", PASSWORD)
        began = time.monotonic()
        assert told.session_lifetime == LIFETIME_S * 1000
        wait_until("the end", lambda: closed(connection))
        assert time.monotonic() - began > LIFETIME_S - 0.5
    wait_until("a line", lambda: "its login has expired" in guarded.broker.process.output)


@pytest.mark.slow
def test_who_proves_again_holds_on_and_may_not_do_it_all_the_time(patient: Guarded) -> None:
    with patient.raw() as connection:
        assert log_in(connection, "alice", PASSWORD).error_code == 0
        assert handshake(connection).error_code == ErrorCode.ILLEGAL_SASL_STATE
        end = time.monotonic() + 1.5 * LONG_LIFETIME_S
        while time.monotonic() < end:
            time.sleep(1.1)
            assert log_in(connection, "alice", PASSWORD).session_lifetime == LONG_LIFETIME_S * 1000
            assert topics(connection) is not None


@pytest.mark.parametrize(("user", "password"), [("bob", PASSWORD), ("alice", "wrong")])
def test_who_proves_to_be_another_or_proves_nothing_is_out(
    patient: Guarded, user: str, password: str
) -> None:
    with patient.raw() as connection:
        assert log_in(connection, "alice", PASSWORD).error_code == 0
        time.sleep(1.1)
        assert log_in(connection, user, password).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert closed(connection)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_who_is_in_sends_no_larger_proof_than_a_stranger(patient: Guarded, mechanism: str) -> None:
    with patient.raw_by_tls() as connection:
        assert log_in_plainly(connection, "alice", PASSWORD).error_code == 0
        time.sleep(1.1)
        assert handshake(connection, mechanism).error_code == 0
        answer = authenticate(connection, b"\0alice\0" + b"x" * 100_000)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert closed(connection)
    wait_until("the line", lambda: "with a message of 100007 bytes" in patient.broker.process.output)


def test_plain_takes_the_right_password_only_and_tells_strangers_nothing(guarded: Guarded) -> None:
    with guarded.raw_by_tls() as connection:
        assert log_in_plainly(connection, "alice", PASSWORD).error_code == 0
        assert topics(connection) is not None
    answers = []
    for user, password in (("alice", "wrong"), ("nobody", PASSWORD), ("alice", ""), ("", "")):
        with guarded.raw_by_tls() as connection:
            answers.append(log_in_plainly(connection, user, password))
            assert closed(connection)
    assert answers[0].error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert len(set(answers)) == 1
    assert PASSWORD not in guarded.broker.process.output


def test_plain_is_nothing_for_a_listener_without_tls(guarded: Guarded, start: Callable[..., Process]) -> None:
    with guarded.raw() as connection:
        assert handshake(connection, "PLAIN").error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    mistaken = 'listeners.SASL_PLAINTEXT.mechanisms=["PLAIN"]'
    process = start("broker", str(guarded.broker.config), "--set", mistaken)
    assert process.wait() != 0
    assert "PLAIN sends passwords to eavesdroppers: use protocol SASL_SSL" in process.output
