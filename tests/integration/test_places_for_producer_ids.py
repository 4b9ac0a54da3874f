"""Places for producer ids are shared out by principal: no principal makes a partition forget another's id."""

from __future__ import annotations

import asyncio
import itertools
import struct
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import pytest

from millrace.client.connection import Connection
from millrace.config import ClientSecurity
from millrace.errors import ErrorCode
from millrace.records import Message, build_batch
from millrace.wire.messages import ApiKey
from millrace.zookeeper.session import Session
from millrace_broker.coordination.cluster import Cluster
from millrace_broker.coordination.users import Users
from millrace_broker.storage.producer_state import RETRIED_S
from tests.brokers import TestCluster, free_port
from tests.compat.brokers import RunningBroker, start_broker
from tests.logins import scram_settings
from tests.support import Process, wait_until

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
PASSWORD, PRODUCE_VERSION = "long enough", 8
PLACES = 1_000
"""Places of one partition in these tests; one principal takes at most half."""
HALF_TAKEN = [0] * (PLACES // 2) + [int(ErrorCode.NOT_ENOUGH_REPLICAS)] * (PLACES // 2)
"""Error codes of as many new ids as there are places, sent by one principal."""
PIPELINED = 200
MESSAGES = 30
LONGEST_S = 2 * RETRIED_S
"""Time that clients take for a delivery: more than the age at which an id gives its place up."""
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
        return scram_settings(self.logins, user, PASSWORD)


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


def send_by_librdkafka(guarded: Guarded, topic: str) -> None:
    failed: list[object] = []
    producer = confluent_kafka.Producer(
        {
            **guarded.settings("victim"),
            "enable.idempotence": True,
            "batch.num.messages": 1,
            "delivery.timeout.ms": int(LONGEST_S * 1000),
        }
    )
    for number in range(MESSAGES):
        producer.produce(
            topic, b"%d" % number, on_delivery=lambda error, _: failed.append(error) if error else None
        )
    assert producer.flush(LONGEST_S) == 0
    assert not failed


def in_python(guarded: Guarded) -> dict[str, Any]:
    """The victim's settings as clients in Python name them."""
    return {
        "bootstrap_servers": guarded.logins,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": "victim",
        "sasl_plain_password": PASSWORD,
    }


def send_by_kafka_python(guarded: Guarded, topic: str) -> None:
    producer = kafka.KafkaProducer(
        **in_python(guarded), enable_idempotence=True, batch_size=1, delivery_timeout_ms=int(LONGEST_S * 1000)
    )
    sent = [producer.send(topic, b"%d" % number) for number in range(MESSAGES)]
    for each in sent:
        each.get(LONGEST_S)
    producer.close()


def send_by_aiokafka(guarded: Guarded, topic: str) -> None:
    async def send() -> None:
        producer = aiokafka.AIOKafkaProducer(
            **in_python(guarded),
            enable_idempotence=True,
            max_batch_size=1,
            request_timeout_ms=int(LONGEST_S * 1000),
        )
        await producer.start()
        sent = [await producer.send(topic, b"%d" % number) for number in range(MESSAGES)]
        await asyncio.gather(*sent)
        await producer.stop()

    asyncio.run(send())


@pytest.mark.slow
def test_clients_wait_for_a_place_and_store_each_message_once_and_in_order(guarded: Guarded) -> None:
    """Their principal has taken its half; places are free when the first ids are two minutes old."""
    senders = {"rdkafka": send_by_librdkafka, "python": send_by_kafka_python, "aio": send_by_aiokafka}
    for topic in senders:
        guarded.broker.create_topic(topic, 1, flush_ms=5)
        with guarded.connection("victim") as connection:
            outcomes = produce(connection, topic, new_ids(PLACES // 2, b"early"))
        assert {code for code, _ in outcomes} == {0}
    began = time.monotonic()
    with ThreadPoolExecutor() as threads:
        for sending in [threads.submit(send, guarded, topic) for topic, send in senders.items()]:
            sending.result()
    assert time.monotonic() - began > RETRIED_S - 10, "they had to wait"
    for topic in senders:
        found = [value for value in values(guarded, topic, PLACES // 2 + MESSAGES) if value != b"early"]
        assert found == [b"%d" % number for number in range(MESSAGES)], topic


def test_a_retry_is_stored_once_however_many_ids_another_principal_sends_meanwhile(guarded: Guarded) -> None:
    topic = guarded.broker.create_topic("shared", 1, flush_ms=5)
    with guarded.connection("victim") as victim, guarded.connection("attacker") as attacker:
        first = batch_of(next(PRODUCER_IDS), 0, b"victim")
        ((code, offset),) = produce(victim, topic, [first])
        assert code == 0
        outcomes = produce(attacker, topic, new_ids(PLACES, b"attacker"))
        assert produce(victim, topic, [first]) == [(0, offset)], "the retry is answered with its first offset"
        assert [code for code, _ in outcomes] == HALF_TAKEN
        assert produce(victim, topic, new_ids(1, b"new"))[0][0] == 0, "another principal finds a place"
    found = values(guarded, topic, PLACES // 2 + 2)
    assert (found.count(b"victim"), found.count(b"new")) == (1, 1)
    assert found.count(b"attacker") == PLACES // 2, "nothing that was refused is stored"


def test_a_new_leader_knows_every_id_and_shares_out_the_places_that_are_left(
    start: Callable[..., Process], zookeeper: str, tmp_path: Path
) -> None:
    settings = f"max_producer_ids = {10 * PLACES}\n"
    brokers = TestCluster(start, tmp_path.name, tmp_path, zookeeper, settings).start_brokers(1, 2)
    with brokers.client() as client:
        client.create_topic("moved", 1, {"flush.ms": "5"}, replicas=2)
    cluster = Cluster.connect(zookeeper, brokers.name, create=False)

    def led_by(*ids: int) -> int:
        topic = cluster.topics.get("moved")
        state = None if topic is None else topic.partitions[0]
        ready = state is not None and state.leader in ids and set(ids) <= set(state.isr)
        return state.leader if state is not None and ready else 0

    def connection(broker_id: int) -> Connection:
        host, _, port = brokers.brokers[broker_id].address.rpartition(":")
        return Connection(host, int(port), client_id="one of many", timeout_s=20)

    def wait_until_it_leads(leader: Connection) -> None:
        probe = build_batch([Message(1, None, b"probe")])  # of no producer id: it takes no place
        wait_until("it takes messages", lambda: produce(leader, "moved", [probe])[0][0] == 0)

    leader = wait_until("both replicas are in sync", lambda: led_by(1, 2))
    early = new_ids(PLACES, b"early")
    with connection(leader) as first:
        wait_until_it_leads(first)
        stored = produce(first, "moved", early)
    assert [code for code, _ in stored] == [0] * (PLACES // 2) + [ErrorCode.NOT_ENOUGH_REPLICAS] * (
        PLACES // 2
    )
    brokers.brokers[leader].kill()
    wait_until("the other replica leads", lambda: led_by(3 - leader))
    with connection(3 - leader) as second:
        wait_until_it_leads(second)
        codes = [code for code, _ in produce(second, "moved", new_ids(PLACES, b"late"))]
        assert codes == HALF_TAKEN
        again = produce(second, "moved", early[: PLACES // 2])
    assert again == stored[: PLACES // 2], "every retry is answered with its first offset"
    cluster.close()
