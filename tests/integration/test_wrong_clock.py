"""A broker whose clock is wrong deletes nothing by time, and neither do its followers."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest

from millrace.client.cluster_client import EARLIEST, LATEST
from tests.brokers import TestCluster, free_port, read_partition
from tests.integration.faults.disk import shim_path
from tests.support import WAIT_S, Process, run_millrace, wait_until

Start = Callable[..., Process]
BROKERS = (1, 2, 3)
DAY_S = 24 * 3600
TIMELY, SIZED = "timely", "sized"
"""One topic expires by time, after the usual seven days. The other one also by size."""


class World:
    """Three brokers, each with a clock that may be wrong."""

    def __init__(self, start: Start, zookeeper: str, folder: Path) -> None:
        self._start, self._folder, self._shim = start, folder, shim_path(folder / "shim")
        self._numbers = {broker: free_port() for broker in BROKERS}
        for broker in BROKERS:
            self.set_clock(broker, 0)
        self.cluster = TestCluster(self._start_broker, f"clocks-{folder.name}", folder, zookeeper)
        self.cluster.start_brokers(*BROKERS)
        settings = {"segment.bytes": "1024", "flush.ms": "10"}
        with self.cluster.client() as client:
            client.create_topic(TIMELY, 1, settings, replicas=3)
            client.create_topic(SIZED, len(BROKERS), {**settings, "retention.bytes": "2000"}, replicas=3)

    def _start_broker(self, *words: str) -> Process:
        broker = int(Path(words[1]).stem.rpartition("-")[2])
        env = {"PYTHONPATH": self._shim, "DISK_CLOCK": str(self._clock(broker)), "DISK_PACE": "0.2"}
        return self._start(*words, "--set", f"metrics_listen=127.0.0.1:{self._numbers[broker]}", env=env)

    def _clock(self, broker: int) -> Path:
        return self._folder / f"clock-{broker}"

    def set_clock(self, broker: int, days: float) -> None:
        draft = self._folder / "draft"
        draft.write_text(str(days * DAY_S))
        draft.rename(self._clock(broker))

    def output(self, broker: int) -> str:
        return self.cluster.brokers[broker].process.output

    def await_line(self, broker: int, text: str) -> None:
        wait_until(f"broker {broker} says {text}", lambda: text in self.output(broker))

    def difference_s(self, broker: int) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._numbers[broker]}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        name = "millrace_broker_clock_difference_seconds "
        return next(float(line.split()[1]) for line in lines if line.startswith(name))

    @property
    def leader(self) -> int:
        """The leader of `timely`."""
        with self.cluster.client() as client:
            return client.topic(TIMELY).partitions[0]

    def send(self, topic: str, count: int, partition: int = 0) -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": self.cluster.bootstrap, "linger.ms": 0})
        for _ in range(count):
            producer.produce(topic, b"x" * 200, partition=partition)
            assert producer.flush(WAIT_S) == 0

    def start_of(self, topic: str, partition: int = 0) -> int:
        with self.cluster.client() as client:
            return client.list_offsets(topic, EARLIEST, [partition])[partition]

    def await_retention(self) -> None:
        """Until rounds of retention that began after this call have passed at every leader."""
        for partition in range(len(BROKERS)):
            with self.cluster.client() as client:
                end = client.list_offsets(SIZED, LATEST, [partition])[partition]
            self.send(SIZED, 30, partition)
            wait_until("retention by size", lambda: self.start_of(SIZED, partition) > end)  # noqa: B023

    def count(self) -> int:
        with self.cluster.client() as client:
            return len(read_partition(client, TIMELY, 0).records)


@pytest.fixture
def world(start: Start, zookeeper: str, tmp_path: Path) -> Iterator[World]:
    made = World(start, zookeeper, tmp_path)
    yield made
    for broker in BROKERS:
        made.cluster.brokers[broker].kill()


def test_a_leader_whose_clock_is_eight_days_ahead_keeps_messages_of_seconds_ago(world: World) -> None:
    world.send(TIMELY, 50)
    world.set_clock(wrong := world.leader, 8)
    world.await_retention()
    world.send(TIMELY, 50)
    world.await_retention()
    assert world.count() == 100
    assert world.output(wrong).count("ahead of ZooKeeper's: retention by time deletes nothing") == 1
    assert world.difference_s(wrong) == pytest.approx(8 * DAY_S, abs=60)

    world.set_clock(wrong, 0)
    world.await_line(wrong, "agrees with ZooKeeper's again")
    world.await_retention()
    assert world.count() == 100
    bootstrap = world.cluster.bootstrap
    done = run_millrace("topics", "alter", TIMELY, "--bootstrap", bootstrap, "--config", "retention.ms=1000")
    assert done.returncode == 0, done.stderr
    wait_until("retention by time goes on", lambda: world.start_of(TIMELY) > 0)


@pytest.mark.slow
def test_what_a_clock_that_was_behind_has_written_does_not_expire_when_the_clock_is_set(world: World) -> None:
    for broker in BROKERS:  # a machine starts so before it has asked the time
        world.cluster.brokers[broker].process.stop()
        world.set_clock(broker, -8)
        world.cluster.restart(broker)
        world.await_line(broker, "behind ZooKeeper's: retention by time deletes nothing")
    world.send(TIMELY, 50)
    for broker in BROKERS:
        world.set_clock(broker, 0)
        world.await_line(broker, "agrees with ZooKeeper's again")
    world.await_retention()
    assert world.count() == 50
