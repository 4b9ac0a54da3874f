"""Places for producer ids are shared out by principal: no principal makes a partition forget another's id."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from millrace.client.connection import Connection
from millrace.config import ClientSecurity
from millrace.coordination.session import Session
from millrace.coordination.users import Users
from millrace.errors import ErrorCode
from millrace.records import Message, build_batch
from millrace.wire.messages import ApiKey
from tests.brokers import free_port
from tests.compat.brokers import RunningBroker, start_broker
from tests.support import Process, wait_until

PASSWORD, PRODUCE_VERSION = "long enough", 8
PLACES = 1_000
"""Places of one partition in these tests; one principal takes at most half."""
PIPELINED = 200
PRODUCER_IDS = itertools.count(1)


@dataclass
class Guarded:
    broker: RunningBroker
    logins: str
    password_file: Path

    def connection(self, user: str) -> Connection:
        host, _, port = self.logins.rpartition(":")
        security = ClientSecurity(protocol="SASL_PLAINTEXT", user=user, password_file=str(self.password_file))
        return Connection(host, int(port), client_id=user, timeout_s=20, security=security)

    def settings(self, user: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.logins,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": user,
            "sasl.password": PASSWORD,
        }


@pytest.fixture
def guarded(start: Callable[..., Process], zookeeper: str, tmp_path: Path) -> Iterator[Guarded]:
    session = Session.connect(zookeeper)
    for user in ("victim", "attacker"):
        Users(session, tmp_path.name).set_password(user, PASSWORD)
    session.close()
    logins = f"127.0.0.1:{free_port()}"
    settings: dict[str, Any] = {
        "listen": None,
        "listeners.plain.listen": f"127.0.0.1:{free_port()}",
        "listeners.logins.listen": logins,
        "listeners.logins.protocol": "SASL_PLAINTEXT",
        "max_producer_ids": 10 * PLACES,
    }
    broker = start_broker(start, zookeeper, tmp_path, tmp_path.name, **settings)
    password_file = tmp_path / "password"
    password_file.touch(mode=0o600)
    password_file.write_text(PASSWORD)
    yield Guarded(broker, logins, password_file)
    broker.process.kill()


def produce(connection: Connection, topic: str, batches: Sequence[bytes]) -> list[tuple[int, int]]:
    """The error code and base offset of each batch, sent with acks=all in a request of its own."""
    outcomes = []
    for at in range(0, len(batches), PIPELINED):
        some = batches[at : at + PIPELINED]
        for batch in some:
            body = struct.pack(">hhiih", -1, -1, 30_000, 1, len(topic)) + topic.encode()
            body += struct.pack(">iii", 1, 0, len(batch)) + batch
            connection.send(ApiKey.PRODUCE, PRODUCE_VERSION, body, timeout_s=20)
        for _ in some:
            answer = connection.receive(timeout_s=20)
            outcomes.append(struct.unpack_from(">hq", answer, 4 + 2 + len(topic) + 4 + 4))
    return outcomes


def batch_of(producer_id: int, sequence: int, value: bytes) -> bytes:
    message = Message(1, None, value)
    return build_batch([message], producer_id=producer_id, producer_epoch=0, base_sequence=sequence)


def new_ids(count: int, value: bytes) -> list[bytes]:
    """One-record batches, each the first of a new producer id."""
    return [batch_of(next(PRODUCER_IDS), 0, value) for _ in range(count)]


def values(guarded: Guarded, topic: str, count: int) -> list[bytes | None]:
    """All values of the partition; `count` is how many there must be at least."""
    settings = {**guarded.settings("victim"), "group.id": "all", "enable.partition.eof": True}
    consumer = confluent_kafka.Consumer(settings)
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found: list[bytes | None] = []
    ended = False

    def read() -> bool:
        nonlocal ended
        for message in consumer.consume(1_000, 0.5):
            if message.error() is None:
                found.append(message.value())
            ended = message.error() is not None
        return ended and len(found) >= count

    wait_until("the end of the partition", read)
    consumer.close()
    return found


def test_a_retry_is_stored_once_however_many_ids_another_principal_sends_meanwhile(guarded: Guarded) -> None:
    topic = guarded.broker.create_topic("shared", 1, flush_ms=5)
    with guarded.connection("victim") as victim, guarded.connection("attacker") as attacker:
        first = batch_of(next(PRODUCER_IDS), 0, b"victim")
        ((code, offset),) = produce(victim, topic, [first])
        assert code == 0
        outcomes = produce(attacker, topic, new_ids(2 * PLACES, b"attacker"))
        assert produce(victim, topic, [first]) == [(0, offset)], "the retry is answered with its first offset"
        codes = [code for code, _ in outcomes]
        assert codes == [0] * (PLACES // 2) + [ErrorCode.NOT_ENOUGH_REPLICAS] * (2 * PLACES - PLACES // 2)
        assert produce(victim, topic, new_ids(1, b"new"))[0][0] == 0, "another principal finds a place"
    found = values(guarded, topic, PLACES // 2 + 2)
    assert (found.count(b"victim"), found.count(b"new")) == (1, 1)
    assert found.count(b"attacker") == PLACES // 2, "nothing that was refused is stored"
