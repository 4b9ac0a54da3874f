"""Security in a broker's metrics: failures of TLS and logins, refusals, waits."""

from __future__ import annotations

import socket
import ssl
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from prometheus_client.parser import text_string_to_metric_families

from millrace.zookeeper.session import Session
from millrace_broker.coordination.acls import AclStore
from millrace_broker.coordination.quotas import QuotaStore
from millrace_broker.coordination.users import Users
from millrace_broker.security.acls import Pattern, Rule
from millrace_broker.security.rights import Operation, ResourceType
from tests.brokers import free_port
from tests.certificates import Authority
from tests.compat.brokers import start_broker
from tests.support import Process, wait_until

PASSWORD = "long enough"


def test_failures_refusals_and_waits_are_counted_and_the_certificates_end_is_told(
    start: Callable[..., Process], zookeeper: str, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("server", days=20)
    session = Session.connect(zookeeper)
    Users(session, "counted").set_password("web", PASSWORD)
    QuotaStore(session, "counted").change(lambda _: {"web": {"producer_byte_rate": 1_000.0}})
    may = (Operation.CREATE, Operation.WRITE)
    rules = [Rule(ResourceType.TOPIC, Pattern.LITERAL, "noisy", "User:web", "*", one, True) for one in may]
    AclStore(session, "counted").change(lambda _: rules)
    session.close()
    port, metrics = free_port(), free_port()
    settings: dict[str, Any] = {
        "listen": None,
        "metrics_listen": f"127.0.0.1:{metrics}",
        "tls.certificate": issued.certificate,
        "tls.key": issued.key,
        "listeners.only.listen": f"127.0.0.1:{port}",
        "listeners.only.advertised": f"localhost:{port}",
        "listeners.only.protocol": "SASL_SSL",
        "listeners.only.mechanisms": ["SCRAM-SHA-512", "SCRAM-SHA-256"],
        "security.authorizer": True,
        "security.super_users": ["User:admin"],
    }
    start_broker(start, zookeeper, tmp_path, "counted", **settings)

    def numbers() -> dict[tuple[str, ...], float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=10) as answer:
            families = text_string_to_metric_families(answer.read().decode())
            return {
                (sample.name.removeprefix("millrace_broker_"), *sample.labels.values()): sample.value
                for family in families
                for sample in family.samples
            }

    def login(password: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": f"localhost:{port}",
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": authority.ca,
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "web",
            "sasl.password": password,
        }

    def code(topic: str, value: bytes) -> int:
        """Produce a message as the user; return the error code of the answer."""
        codes: list[int] = []
        producer = confluent_kafka.Producer(login(PASSWORD))
        producer.produce(
            topic, value, on_delivery=lambda error, _: codes.append(error.code() if error else 0)
        )
        assert producer.flush(30) == 0
        return codes[0]

    before = numbers()
    assert before["tls_failures_total",] == before["login_failures_total", "SCRAM-SHA-512"] == 0
    assert 19 * 86_400 < before["certificate_expires_seconds",] - time.time() < 21 * 86_400
    with socket.create_connection(("127.0.0.1", port)) as plain:
        plain.sendall(b"no TLS at all, and that for long enough\n")
        assert plain.recv(100) is not None
    trusts_nobody = ssl.create_default_context()
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        try:
            trusts_nobody.wrap_socket(stranger, server_hostname="localhost")
        except ssl.SSLError:
            pass
        else:
            raise AssertionError("it trusts a certificate of a test")
    wait_until("both are counted", lambda: numbers()["tls_failures_total",] == 2)

    wrong = confluent_kafka.Producer(login("wrong"))
    wrong.poll(0.1)
    wait_until("the login is counted", lambda: numbers()["login_failures_total", "SCRAM-SHA-512"] > 0)
    del wrong
    assert code("secret", b"x") == KafkaError.TOPIC_AUTHORIZATION_FAILED
    after = numbers()
    assert after["login_failures_total", "SCRAM-SHA-256"] == 0
    assert after["rights_refused_total", "metadata"] > 0
    assert after["throttled_seconds_total", "producer_byte_rate"] == 0
    admin = AdminClient(login(PASSWORD))
    admin.create_topics([NewTopic("noisy", 1)])["noisy"].result(20)
    assert code("noisy", b"x" * 3_000) == 0
    told = numbers()["throttled_seconds_total", "producer_byte_rate"]
    assert 1.5 < told <= 5  # 3 s of the quota, and one of them at once
