"""A power cut: the broker is killed and every log file loses what was never synced, at a random place.

What was acknowledged with acks=all, and what a consumer was ever shown, must be there after the restart. The
broker's own fdatasync calls are recorded from outside, so the test knows what a disk may have lost.
"""

from __future__ import annotations

import functools
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import confluent_kafka
import pytest

from tests.compat.brokers import RunningBroker, start_broker
from tests.compat.clients import BEGINNING, CONFLUENT
from tests.support import ROUNDS, Process

# Python imports a module of this name before anything else.
RECORDER = """
import os
path, real = os.environ["SYNC_RECORD"], os.fdatasync
record = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def fdatasync(fd):
    size = os.fstat(fd).st_size
    real(fd)
    os.write(record, f"{size} {os.readlink(f'/proc/self/fd/{fd}')}\\n".encode())
os.fdatasync = fdatasync
"""


@pytest.fixture
def broker(start: Callable[..., Process], zookeeper: str, tmp_path: Path) -> RunningBroker:
    """A broker whose fdatasync calls are noted in `synced` of the test's folder."""
    (tmp_path / "sitecustomize.py").write_text(RECORDER)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {"PYTHONPATH": path, "SYNC_RECORD": str(tmp_path / "synced")}
    recorded = functools.partial(start, env=env)
    return start_broker(recorded, zookeeper, tmp_path, f"power-{tmp_path.name}")


def cut_power(broker: RunningBroker, folder: Path, chance: random.Random) -> int:
    """Kill the broker and lose, at random, what was written and never synced; return the bytes lost."""
    broker.process.kill()
    synced: dict[str, int] = {}
    for line in (folder / "synced").read_text().splitlines():
        synced_size, _, name = line.partition(" ")
        synced[name] = int(synced_size)
    lost = 0
    for path in folder.glob("*/*/*.log"):
        size = path.stat().st_size
        length = chance.randint(min(size, synced.get(str(path), 0)), size)
        lost += size - length
        os.truncate(path, length)
        with open(path, "ab") as file:
            file.write(chance.randbytes(chance.choice([0, 7, 500])))
    return lost


class Traffic:
    """A producer that numbers its messages and notes which were acknowledged."""

    def __init__(self, broker: RunningBroker, topic: str, acks: str) -> None:
        self.sent = 0
        self.acknowledged: set[int] = set()
        self._topic = topic
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": broker.bootstrap, "acks": acks, "enable.idempotence": acks == "all",
                "linger.ms": 1, "batch.num.messages": 20, "retry.backoff.ms": 50, "log_level": 0,
                "reconnect.backoff.max.ms": 200, "socket.timeout.ms": 5000,
            }
        )  # fmt: skip

    def run(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            number, self.sent = self.sent, self.sent + 1
            self._producer.produce(
                self._topic, b"%d" % number, partition=0, on_delivery=functools.partial(self._note, number)
            )
            self._producer.poll(0)
            if len(self._producer) > 500:
                self._producer.poll(0.01)

    def _note(self, number: int, error: object, _: object) -> None:
        if error is None:
            self.acknowledged.add(number)

    def finish(self) -> None:
        assert self._producer.flush(30) == 0


@pytest.mark.soak
def test_what_was_acknowledged_by_all_or_ever_shown_survives_a_power_cut(
    broker: RunningBroker, tmp_path: Path
) -> None:
    seed = random.randrange(1 << 30)
    chance, lost = random.Random(seed), 0
    # Flushed rarely, so that there is always something to lose that was acknowledged with acks=1 only.
    synced = broker.create_topic("synced", 1, segment_bytes=30_000)
    lazy = broker.create_topic("lazy", 1, segment_bytes=30_000, flush_ms=400)
    certain, hasty = Traffic(broker, synced, "all"), Traffic(broker, lazy, "1")
    for round_number in range(ROUNDS):
        for _ in range(3):
            certain.run(chance.uniform(0.05, 0.15))
            hasty.run(chance.uniform(0.05, 0.15))
        shown = {topic: read(broker, topic) for topic in (synced, lazy)}
        acknowledged = set(certain.acknowledged)
        with broker.client() as client:
            marks = {topic: client.list_offsets(topic, -1)[0] for topic in shown}
        hasty.run(chance.uniform(0, 0.2))
        lost += cut_power(broker, tmp_path, chance)
        broker.restart()
        where = f"round {round_number}, seed {seed}"
        for topic, before in shown.items():
            assert read(broker, topic)[: len(before)] == before, where
            with broker.client() as client:
                assert client.list_offsets(topic, -1)[0] >= marks[topic], where
        assert acknowledged <= {int(value) for _, value in read(broker, synced)}, where
    certain.run(0.1)
    certain.finish()
    hasty.finish()
    # Retries after the cut: each message once and in order, although batches were taken away below them.
    assert [int(value) for _, value in read(broker, synced)] == list(range(certain.sent)), f"seed {seed}"
    assert lost > 0, "nothing was ever at risk: the test shows nothing"


def read(broker: RunningBroker, topic: str) -> list[tuple[int, bytes]]:
    return CONFLUENT.read(broker.bootstrap, topic, 0, BEGINNING)
