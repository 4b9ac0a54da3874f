"""Logins by SCRAM: independent clients get in, strangers get nothing and learn nothing."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import confluent_kafka
import pytest
from scramp import ScramClient

from millrace.client.connection import Connection, ConnectionFailed
from millrace.client.metadata import VERSION as METADATA_VERSION
from millrace.client.metadata import decode_response, encode_request
from millrace.errors import ErrorCode
from millrace.wire import security_messages as messages
from millrace.wire.codec import decode, encode
from millrace.wire.messages import ApiKey
from millrace.zookeeper.session import Session
from tests.brokers import free_port, read_topic
from tests.certificates import Authority
from tests.compat.brokers import RunningBroker, start_broker
from tests.logins import ask, authenticate, handshake, log_in, topics
from tests.support import Process, wait_until

with warnings.catch_warnings():
    # kafka-python reads its schemas with a function that Python 3.11 calls deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

PASSWORD = "canary-9f2c7e-in-no-log"
VALUES = [f"value {number}".encode() for number in range(500)]
PROTOCOLS = ["SASL_PLAINTEXT", "SASL_SSL"]
MECHANISMS = ["SCRAM-SHA-256", "SCRAM-SHA-512"]


@dataclass
class Guarded:
    """A broker with a plain listener and two where clients log in."""

    broker: RunningBroker
    zookeeper: str
    ca: str
    ports: dict[str, int]
    password_file: Path

    def users(self, *arguments: str) -> str:
        """`millrace users ...`, what it prints."""
        command = [sys.executable, "-m", "millrace.cli", "users", *arguments]
        options = ["--zookeeper", self.zookeeper, "--cluster", "guarded"]
        done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def create(self, name: str, password: str = PASSWORD, *arguments: str) -> None:
        self.password_file.write_text(password)
        self.users("create", name, "--password-file", str(self.password_file), *arguments)

    def settings(
        self, protocol: str, mechanism: str, user: str = "alice", password: str = PASSWORD
    ) -> dict[str, str]:
        return {
            "bootstrap.servers": f"localhost:{self.ports[protocol]}",
            "security.protocol": protocol,
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
            "ssl.ca.location": self.ca,
        }

    @contextmanager
    def raw(self) -> Iterator[Connection]:
        connection = Connection("localhost", self.ports["SASL_PLAINTEXT"], client_id="raw", timeout_s=10)
        yield connection
        connection.close()


@pytest.fixture(scope="module")
def guarded(
    start_for_module: Callable[..., Process], zookeeper: str, tmp_path_factory: pytest.TempPathFactory
) -> Guarded:
    folder = tmp_path_factory.mktemp("login")
    authority = Authority(folder)
    server = authority.issue("server")
    ports = {name: free_port() for name in ("PLAINTEXT", *PROTOCOLS)}
    settings: dict[str, object] = {
        "listen": None,
        "tls.certificate": server.certificate,
        "tls.key": server.key,
    }
    for name, port in ports.items():
        settings[f"listeners.{name}.listen"] = f"127.0.0.1:{port}"
        settings[f"listeners.{name}.advertised"] = f"localhost:{port}"
        settings[f"listeners.{name}.protocol"] = name
    broker = start_broker(start_for_module, zookeeper, folder, "guarded", **settings)  # type: ignore[arg-type]
    password_file = folder / "password"
    password_file.touch(mode=0o600)
    made = Guarded(broker, zookeeper, authority.ca, ports, password_file)
    made.create("alice")
    wait_until("alice may log in", lambda: logs_in(made, "alice", PASSWORD))
    return made


def logs_in(guarded: Guarded, user: str, password: str) -> bool:
    with guarded.raw() as connection:
        return log_in(connection, user, password).error_code == 0


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_confluent_kafka_logs_in_writes_and_reads(guarded: Guarded, protocol: str, mechanism: str) -> None:
    topic = guarded.broker.create_topic(f"by-{protocol}-{mechanism}", 1, flush_ms=5)
    settings: dict[str, str | int] = {**guarded.settings(protocol, mechanism)}
    producer = confluent_kafka.Producer({**settings, "acks": "all"})
    for value in VALUES:
        producer.produce(topic, value)
    assert producer.flush(30) == 0
    consumer = confluent_kafka.Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    got: list[bytes | None] = []

    def take() -> bool:
        got.extend(message.value() for message in consumer.consume(500, 1.0) if message.error() is None)
        return len(got) >= len(VALUES)

    wait_until("every value", take)
    consumer.close()
    assert got == VALUES


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_logs_in_and_writes(guarded: Guarded, mechanism: str) -> None:
    topic = guarded.broker.create_topic(f"python-{mechanism}", 1, flush_ms=5)
    producer = kafka.KafkaProducer(
        bootstrap_servers=f"localhost:{guarded.ports['SASL_SSL']}",
        security_protocol="SASL_SSL",
        sasl_mechanism=mechanism,
        sasl_plain_username="alice",
        sasl_plain_password=PASSWORD,
        ssl_cafile=guarded.ca,
        acks="all",
    )
    for value in VALUES:
        producer.send(topic, value)
    producer.flush(30)
    producer.close()
    with guarded.broker.client() as client:
        assert list(read_topic(client, topic)[0].values) == VALUES


def test_a_wrong_password_and_an_unknown_user_get_the_same_answer_late_and_the_end(guarded: Guarded) -> None:
    answers, times = [], []
    for user, password in (("alice", "wrong"), ("nobody", PASSWORD)):
        with guarded.raw() as connection:
            began = time.monotonic()
            answers.append(log_in(connection, user, password))
            times.append(time.monotonic() - began)
            with pytest.raises(ConnectionFailed):
                topics(connection)
    assert answers[0] == answers[1]
    assert answers[0].error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert min(times) > 0.1


def test_a_librdkafka_client_with_a_wrong_password_is_told_so(guarded: Guarded) -> None:
    errors: list[str] = []
    settings = guarded.settings("SASL_PLAINTEXT", "SCRAM-SHA-256", password="wrong")
    producer = confluent_kafka.Producer({**settings, "error_cb": lambda error: errors.append(error.str())})
    wait_until("an error", lambda: producer.poll(0.1) or errors)
    wait_until("the reason", lambda: producer.poll(0.1) or any("authentication failed" in e for e in errors))


def test_nothing_is_served_before_a_login(guarded: Guarded) -> None:
    with guarded.raw() as connection, pytest.raises(ConnectionFailed):
        topics(connection)
    with guarded.raw() as connection:
        assert handshake(connection).error_code == 0
        with pytest.raises(ConnectionFailed):
            topics(connection)


def test_requests_sent_in_one_segment_with_a_login_are_served_behind_it_only(guarded: Guarded) -> None:
    produce = (ApiKey.METADATA, METADATA_VERSION, encode_request(None))
    with guarded.raw() as connection:
        api, body = (
            ApiKey.SASL_HANDSHAKE,
            encode(messages.SaslHandshakeRequest(mechanism="SCRAM-SHA-512"), 17, 1),
        )
        connection.send(api, 1, body, timeout_s=10)
        connection.send(*produce, timeout_s=10)
        with contextlib.suppress(ConnectionFailed):  # it may be closed before the first answer has left
            assert decode(messages.SaslHandshakeResponse, 17, 1, connection.receive(timeout_s=10))
        with pytest.raises((ConnectionFailed, IndexError)):
            connection.receive(timeout_s=10)
    with guarded.raw() as connection:
        handshake(connection)
        client = ScramClient(["SCRAM-SHA-512"], "alice", PASSWORD)
        first = authenticate(connection, client.get_client_first().encode())
        client.set_server_first(first.auth_bytes.decode())
        proof = messages.SaslAuthenticateRequest(auth_bytes=client.get_client_final().encode())
        connection.send(ApiKey.SASL_AUTHENTICATE, 1, encode(proof, 36, 1), timeout_s=10)
        connection.send(*produce, timeout_s=10)
        answer = decode(messages.SaslAuthenticateResponse, 36, 1, connection.receive(timeout_s=10))
        assert answer.error_code == 0
        assert decode_response(connection.receive(timeout_s=10)).cluster_id


def test_guesses_sent_together_are_one_guess(guarded: Guarded) -> None:
    with guarded.raw() as connection:
        assert handshake(connection).error_code == 0
        guess = encode(messages.SaslAuthenticateRequest(auth_bytes=b"n,,"), 36, 1)
        for _ in range(5):
            connection.send(ApiKey.SASL_AUTHENTICATE, 1, guess, timeout_s=10)
        answer = decode(messages.SaslAuthenticateResponse, 36, 1, connection.receive(timeout_s=10))
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        with pytest.raises(ConnectionFailed):
            connection.receive(timeout_s=10)


def test_the_order_of_a_login_is_kept(guarded: Guarded) -> None:
    with guarded.raw() as connection:
        assert authenticate(connection, b"x").error_code == ErrorCode.ILLEGAL_SASL_STATE
        unknown = handshake(connection, "PLAIN")
        assert unknown.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert sorted(unknown.mechanisms) == MECHANISMS
        assert handshake(connection, version=0).error_code == ErrorCode.UNSUPPORTED_VERSION
        assert handshake(connection).error_code == 0
        assert handshake(connection).error_code == ErrorCode.ILLEGAL_SASL_STATE
    with guarded.raw() as connection:
        assert log_in(connection, "alice", PASSWORD).error_code == 0
        assert topics(connection) is not None
        assert handshake(connection).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert authenticate(connection, b"x").error_code == ErrorCode.ILLEGAL_SASL_STATE
    with Connection("localhost", guarded.ports["PLAINTEXT"], client_id="raw", timeout_s=10) as plain:
        assert handshake(plain).error_code == ErrorCode.ILLEGAL_SASL_STATE


def test_a_stranger_may_send_little_and_seldom(guarded: Guarded) -> None:
    with guarded.raw() as connection, pytest.raises(ConnectionFailed):
        ask(connection, ApiKey.API_VERSIONS, 2, bytes(65 << 10))
    with guarded.raw() as connection:
        for _ in range(8):
            ask(connection, ApiKey.API_VERSIONS, 2, b"")
        with pytest.raises(ConnectionFailed):
            ask(connection, ApiKey.API_VERSIONS, 2, b"")
    with guarded.raw() as connection:  # and whoever has logged in as much as ever
        log_in(connection, "alice", PASSWORD)
        for _ in range(20):
            ask(connection, ApiKey.API_VERSIONS, 2, bytes(65 << 10))


def test_a_user_that_is_deleted_is_out_and_a_new_password_holds_at_once(guarded: Guarded) -> None:
    guarded.create("bob", "first")
    wait_until("bob may log in", lambda: logs_in(guarded, "bob", "first"))
    with guarded.raw() as connection:
        log_in(connection, "bob", "first")
        guarded.create("bob", "second")
        wait_until("the new one holds", lambda: logs_in(guarded, "bob", "second"))
        assert not logs_in(guarded, "bob", "first")
        topics(connection)
        guarded.users("delete", "bob")

        def closed() -> bool:
            try:
                topics(connection)
            except ConnectionFailed:
                return True
            return False

        wait_until("bob's connection is closed", closed)
    assert not logs_in(guarded, "bob", "second")
    assert logs_in(guarded, "alice", PASSWORD)


def test_users_are_listed_and_mistakes_are_one_line(guarded: Guarded) -> None:
    guarded.create("carol", "x", "--mechanism", "SCRAM-SHA-256", "--iterations", "5000")
    told = json.loads(guarded.users("list", "--json"))
    assert {"user": "carol", "mechanism": "SCRAM-SHA-256", "iterations": 5000} in told
    with pytest.raises(AssertionError, match="there is no user dave in cluster guarded"):
        guarded.users("delete", "dave")
    guarded.password_file.chmod(0o644)
    with pytest.raises(AssertionError, match="can be read by others: chmod 600"):
        guarded.users("create", "dave", "--password-file", str(guarded.password_file))
    guarded.password_file.chmod(0o600)


def test_the_password_is_nowhere(guarded: Guarded) -> None:
    assert PASSWORD not in guarded.broker.process.output
    assert PASSWORD not in guarded.broker.config.read_text()
    session = Session.connect(guarded.zookeeper)
    try:
        node = session.get("/guarded/security/users/alice")
        assert node is not None
        assert PASSWORD.encode() not in node[0]
        assert set(json.loads(node[0])) == {*MECHANISMS, "changed_ms"}
    finally:
        session.close()
