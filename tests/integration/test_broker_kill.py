"""A broker killed under acks=all traffic: what was acknowledged is there afterwards, once and in order."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import confluent_kafka
import pytest

from tests.compat.brokers import RunningBroker, start_broker
from tests.compat.clients import BEGINNING, CONFLUENT
from tests.support import ROUNDS, Process

pytestmark = pytest.mark.soak

PARTITIONS = 2
TRAFFIC_S = 0.6
"""Of uninterrupted traffic before a kill, at most."""


class Traffic:
    """An idempotent acks=all producer that numbers its messages per partition and notes what was stored."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 1,
                "batch.num.messages": 50, "delivery.timeout.ms": 60_000, "retry.backoff.ms": 50,
                "reconnect.backoff.max.ms": 200, "socket.timeout.ms": 5000, "log_level": 0,
            }
        )  # fmt: skip
        self.sent = [0] * PARTITIONS
        self.acknowledged: list[list[int]] = [[] for _ in range(PARTITIONS)]
        self.errors: list[object] = []

    def run(self, seconds: float) -> None:
        """Produce for a while, as fast as acknowledgements allow."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for partition in range(PARTITIONS):
                self._send(partition)
            self._producer.poll(0)
            if len(self._producer) > 2000:
                self._producer.poll(0.01)

    def _send(self, partition: int) -> None:
        number = self.sent[partition]
        self.sent[partition] += 1

        def delivered(error: object, message: object) -> None:
            if error is None:
                self.acknowledged[partition].append(number)
            else:
                self.errors.append(error)

        self._producer.produce(self._topic, b"%d" % number, partition=partition, on_delivery=delivered)

    @property
    def stored(self) -> int:
        """Messages acknowledged so far."""
        return sum(map(len, self.acknowledged))

    def run_until_stored(self, count: int) -> None:
        """Produce until so many are acknowledged in all."""
        deadline = time.monotonic() + 30
        while self.stored < count:
            assert time.monotonic() < deadline, "no acknowledgements within 30 s"
            self.run(0.02)

    def finish(self) -> None:
        """Wait until every message is stored."""
        assert self._producer.flush(60) == 0
        assert not self.errors, self.errors[0]


@pytest.fixture
def broker(start: Callable[..., Process], zookeeper: str, tmp_path: Path) -> RunningBroker:
    return start_broker(start, zookeeper, tmp_path, f"kill-{tmp_path.name}")


def read_numbers(broker: RunningBroker, topic: str, partition: int) -> list[int]:
    return [int(value) for _, value in CONFLUENT.read(broker.bootstrap, topic, partition, BEGINNING)]


def test_sigkill_under_idempotent_traffic_loses_repeats_and_reorders_nothing(broker: RunningBroker) -> None:
    topic = broker.create_topic("traffic", PARTITIONS, segment_bytes=200_000)
    traffic = Traffic(broker.bootstrap, topic)
    for _ in range(ROUNDS):
        traffic.run_until_stored(traffic.stored + 500)
        traffic.run(random.uniform(0, TRAFFIC_S))
        broker.process.kill()
        traffic.run(0.1)  # retried after the restart
        broker.restart()
    traffic.run_until_stored(traffic.stored + 500)
    traffic.finish()
    for partition in range(PARTITIONS):
        numbers = read_numbers(broker, topic, partition)
        assert traffic.acknowledged[partition] == list(range(traffic.sent[partition]))
        assert numbers == list(range(traffic.sent[partition])), "each message once, in order"
    assert sum(traffic.sent) > 1000


def test_what_a_consumer_has_seen_survives_a_kill(broker: RunningBroker) -> None:
    topic = broker.create_topic("seen", PARTITIONS)
    for _ in range(ROUNDS):
        traffic = Traffic(broker.bootstrap, topic)
        traffic.run_until_stored(200)
        with broker.client() as client:
            seen = client.list_offsets(topic, -1)
        visible = CONFLUENT.read(broker.bootstrap, topic, 0, BEGINNING)
        broker.process.kill()
        broker.restart()
        with broker.client() as client:
            assert all(offset >= seen[p] for p, offset in client.list_offsets(topic, -1).items())
        assert CONFLUENT.read(broker.bootstrap, topic, 0, BEGINNING)[: len(visible)] == visible
        traffic.finish()
