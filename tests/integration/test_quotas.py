"""Quotas: who writes or reads too fast is slowed down and told so, loses nothing, and nobody else waits."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from millrace.client.connection import Connection, ConnectionFailed
from millrace.config import ClientSecurity
from millrace.errors import ErrorCode
from millrace.records import Message, build_batch
from millrace.wire.codec import decode, encode
from millrace.wire.messages import ApiKey
from millrace.zookeeper.session import Session
from millrace_broker.coordination.users import Users
from millrace_broker.handlers import quotas as messages
from tests.brokers import free_port
from tests.compat.brokers import RunningBroker, start_broker
from tests.logins import scram_settings
from tests.support import WAIT_S, Process, wait_until
from tests.unit.broker.asking import request_body

PASSWORD, RATE, MESSAGE = "long enough", 200_000, b"x" * 10_000
Op = messages.AlterClientQuotasRequest.Entry.Op


@dataclass
class Guarded:
    broker: RunningBroker
    logins: str
    password_file: Path

    def settings(self, user: str) -> dict[str, Any]:
        return scram_settings(self.logins, user, PASSWORD)

    def connection(self, user: str) -> Connection:
        host, _, port = self.logins.rpartition(":")
        security = ClientSecurity(protocol="SASL_PLAINTEXT", user=user, password_file=str(self.password_file))
        return Connection(host, int(port), client_id="raw", timeout_s=20, security=security)

    def alter(self, by: str, kind: str, user: str | None, **quotas: float | None) -> tuple[int, str | None]:
        """Error code and text of a change; None takes a quota away."""
        ops = tuple(Op(key=key, value=value or 0.0, remove=value is None) for key, value in quotas.items())
        entity = messages.QuotaEntity(entity_type=kind, entity_name=user)
        entry = messages.AlterClientQuotasRequest.Entry(entity=(entity,), ops=ops)
        request = messages.AlterClientQuotasRequest(entries=(entry,), validate_only=False)
        with self.connection(by) as connection:
            body = connection.request(49, 1, encode(request, 49, 1), timeout_s=20)
        (result,) = decode(messages.AlterClientQuotasResponse, 49, 1, body).entries
        return result.error_code, result.error_message

    def described(self) -> dict[str | None, dict[str, float]]:
        request = messages.DescribeClientQuotasRequest(components=(), strict=False)
        with self.connection("admin") as connection:
            body = connection.request(48, 1, encode(request, 48, 1), timeout_s=20)
        answer = decode(messages.DescribeClientQuotasResponse, ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, body)
        assert answer.error_code == 0
        return {
            entry.entity[0].entity_name: {value.key: value.value for value in entry.values}
            for entry in answer.entries or ()
        }


@pytest.fixture(scope="module")
def guarded(
    start_for_module: Callable[..., Process], zookeeper: str, tmp_path_factory: pytest.TempPathFactory
) -> Guarded:
    folder = tmp_path_factory.mktemp("quotas")
    session = Session.connect(zookeeper)
    for user in ("admin", "fast", "slow"):
        Users(session, "quotas").set_password(user, PASSWORD)
    session.close()
    logins = f"127.0.0.1:{free_port()}"
    settings: dict[str, Any] = {
        "listen": None,
        "listeners.plain.listen": f"127.0.0.1:{free_port()}",
        "listeners.logins.listen": logins,
        "listeners.logins.protocol": "SASL_PLAINTEXT",
        "security.authorizer": True,
        "security.super_users": ["User:admin", "User:ANONYMOUS", "User:slow"],
    }
    broker = start_broker(start_for_module, zookeeper, folder, "quotas", **settings)
    password_file = folder / "password"
    password_file.touch(mode=0o600)
    password_file.write_text(PASSWORD)
    return Guarded(broker, logins, password_file)


def produced(guarded: Guarded, user: str, topic: str, count: int) -> tuple[float, int]:
    """Seconds that it took, and the longest wait in ms that the client was told."""
    told: list[int] = []
    failed: list[object] = []
    producer = confluent_kafka.Producer(
        {
            **guarded.settings(user),
            "acks": "all",
            "batch.num.messages": 5,
            "max.in.flight": 1,
            "throttle_cb": lambda event: told.append(int(event.throttle_time * 1000)),
        }
    )
    began = time.monotonic()
    for _ in range(count):
        producer.produce(topic, MESSAGE, on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(60) == 0
    assert not failed
    return time.monotonic() - began, max(told, default=0)


def consumed(guarded: Guarded, user: str, topic: str, count: int) -> float:
    consumer = confluent_kafka.Consumer(
        {
            **guarded.settings(user),
            "group.id": f"{user}-{topic}",
            "fetch.message.max.bytes": 50_000,
            "fetch.max.bytes": 50_000,
            "message.max.bytes": 50_000,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    got, began = 0, time.monotonic()

    def take() -> bool:
        nonlocal got
        got += sum(1 for message in consumer.consume(100, 0.5) if message.error() is None)
        return got >= count

    wait_until("every message", take)
    took = time.monotonic() - began
    consumer.close()
    assert got == count
    return took


@pytest.mark.slow
def test_who_writes_and_reads_beyond_a_quota_is_slowed_down_and_nobody_else(guarded: Guarded) -> None:
    topic = guarded.broker.create_topic("limited", 1, flush_ms=5)
    limits = {"producer_byte_rate": float(RATE), "consumer_byte_rate": float(RATE)}
    assert guarded.alter("admin", "user", "slow", **limits) == (0, None)
    assert guarded.described() == {"slow": limits}
    count = 6 * RATE // len(MESSAGE)  # one second of six is free
    took, told_ms = produced(guarded, "slow", topic, count)
    assert took > 3.5
    assert told_ms > 0
    assert consumed(guarded, "slow", topic, count) > 3.5
    assert guarded.alter("admin", "user", "slow", **dict.fromkeys(limits)) == (0, None)
    assert guarded.described() == {}
    others, none_told = produced(guarded, "admin", topic, count)
    assert (none_told, others < took) == (0, True)


def test_the_share_of_the_loop_is_a_quota_too_and_the_default_counts_for_everybody(guarded: Guarded) -> None:
    topic = guarded.broker.create_topic("busy", 1, flush_ms=5)
    assert guarded.alter("admin", "user", None, request_percentage=0.1) == (0, None)
    try:
        with guarded.connection("slow") as connection:

            def asked(times: int) -> float:
                began = time.monotonic()
                for _ in range(times):
                    connection.request(ApiKey.API_VERSIONS, 0, b"", timeout_s=60)
                return time.monotonic() - began

            wait_until("the quota to count", lambda: asked(50) > 1)
    finally:
        assert guarded.alter("admin", "user", None, request_percentage=None)[0] == 0
    produced(guarded, "slow", topic, 1)


def test_more_connections_are_no_way_round_a_quota(guarded: Guarded) -> None:
    topic = guarded.broker.create_topic("crowded", 1, flush_ms=5)
    assert guarded.alter("admin", "user", "slow", producer_byte_rate=float(RATE)) == (0, None)
    try:
        batch = build_batch([Message(1, None, b"x" * RATE)])  # a second of the quota each
        data = [{"name": topic, "partition_data": [{"index": 0, "records": batch}]}]
        body = request_body(ApiKey.PRODUCE, 8, {"acks": 1, "timeout": 1000, "topic_data": data})
        with ExitStack() as stack:
            crowd = [stack.enter_context(guarded.connection("slow")) for _ in range(30)]
            wait_until("the quota to count", lambda: guarded.described().get("slow"))
            time.sleep(1)  # until the broker's loop goes by it, and all of a second's worth is earned
            for connection in crowd:
                connection.send(ApiKey.PRODUCE, 8, body, timeout_s=20)
            with selectors.DefaultSelector() as answers:
                for connection in crowd:
                    answers.register(connection._socket, selectors.EVENT_READ)
                assert answers.select(WAIT_S)
            served = 0
            for connection in crowd:
                with suppress(ConnectionFailed):
                    connection.receive(timeout_s=0.1)
                    served += 1
        # One at once, what is owed before all of the user's connections wait, and what was earned meanwhile.
        assert 1 <= served < 15
        assert guarded.described() == {"slow": {"producer_byte_rate": float(RATE)}}
    finally:
        assert guarded.alter("admin", "user", "slow", producer_byte_rate=None)[0] == 0


def test_what_cannot_be_a_quota_and_who_may_not_set_one_are_refused(guarded: Guarded) -> None:
    for kind, user, quotas in (
        ("client-id", "x", {"producer_byte_rate": 1.0}),
        ("user", "x" * 250, {"producer_byte_rate": 1.0}),
        ("user", "x", {"controller_mutation_rate": 1.0}),
        ("user", "x", {"producer_byte_rate": -1.0}),
        ("user", "x", {"producer_byte_rate": float("nan")}),
        ("user", "x", {"producer_byte_rate": float("inf")}),
    ):
        assert guarded.alter("admin", kind, user, **quotas)[0] == ErrorCode.INVALID_REQUEST
    code, _ = guarded.alter("fast", "user", "x", producer_byte_rate=1.0)
    assert code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert guarded.described() == {}
