"""The batch mirror between two real clusters: whole batches, each once, whoever is killed or repeated."""

from __future__ import annotations

import json
import multiprocessing
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from millrace.client.cluster_client import LATEST, ClusterClient
from millrace.errors import MillraceError
from millrace.records import Cursor
from millrace.records.mirror_position import Origin
from millrace.wire.mirror_append import MirrorAppend, MirrorMode
from millrace_spark.jobs.mirror import mirror_topics, tasks_of
from millrace_spark.mirror_batch import MirroredPartition, MirrorTask, mirror_partition, recorded_position
from millrace_warehouse.requests import Mirror
from tests.brokers import TestCluster, read_topic
from tests.jobs import kill_at_a_step
from tests.support import ROUNDS, WAIT_S, Process, run_millrace, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Start = Callable[..., Process]
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass
class World:
    """One origin, dc1, and an aggregate cluster of two brokers."""

    origin: TestCluster
    aggregate: TestCluster

    def topic(self, topic: str, partitions: int = 3) -> str:
        with self.origin.client() as client:
            client.create_topic(topic, partitions)
        return topic

    def produce(self, topic: str, count: int, *, codec: str = "none", size: int = 100) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.origin.bootstrap,
                "linger.ms": 5,
                "compression.type": codec,
                "acks": "all",
                "batch.size": 20_000,
            }
        )
        failed: list[object] = []
        for number in range(count):
            producer.produce(
                topic,
                f"{codec} {number} ".ljust(size, "."),
                key=str(number),
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
            producer.poll(0)
        assert producer.flush(WAIT_S) == 0
        assert failed == []  # a message that was given up is not in flight any more either

    def settings(self, *topics: str, max_bytes: int | None = None) -> Mirror:
        return Mirror(
            topics=topics,
            origin="dc1",
            origin_bootstrap=self.origin.bootstrap,
            bootstrap=self.aggregate.bootstrap,
            max_bytes=max_bytes,
        )

    def command(self, topic: str) -> list[str]:
        addresses = ["--origin-bootstrap", self.origin.bootstrap, "--bootstrap", self.aggregate.bootstrap]
        return ["mirror-batch", topic, "--origin", "dc1", *addresses, "--json"]

    def assert_equal(self, topic: str, count: int) -> None:
        """Each origin partition and its target hold the same batches in the same order."""
        with self.origin.client() as origin, self.aggregate.client() as aggregate:
            originals, copies = read_topic(origin, topic), read_topic(aggregate, topic)
            for number, original in originals.items():
                assert copies[self.target(aggregate, origin, topic, number)].batches == original.batches
            assert sum(len(copy.records) for copy in copies.values()) == count

    @staticmethod
    def target(aggregate: ClusterClient, origin: ClusterClient, topic: str, number: int) -> int:
        place = Origin("dc1", topic, origin.topic(topic).topic_id, number)
        return aggregate.mirror_append(topic, MirrorAppend(mode=MirrorMode.DESCRIBE, origin=place)).partition


@pytest.fixture(scope="module")
def world(zookeeper: str, start_for_module: Start, tmp_path_factory: pytest.TempPathFactory) -> World:
    folder, run = tmp_path_factory.mktemp("spark-mirror"), uuid4().hex[:6]
    settings = "[log]\nflush_ms = 20\n"
    origin = TestCluster(start_for_module, f"dc1-{run}", folder, zookeeper, settings)
    aggregate = TestCluster(start_for_module, f"offline-{run}", folder, zookeeper, settings)
    return World(origin.start_brokers(1), aggregate.start_brokers(1, 2))


def copied(parts: list[MirroredPartition]) -> tuple[int, int]:
    return sum(part.records for part in parts), sum(part.dropped for part in parts)


def test_every_batch_arrives_as_it_was_and_a_second_run_has_nothing_to_do(
    spark: SparkSession, world: World
) -> None:
    topic = world.topic("Copied")
    for codec in CODECS:
        world.produce(topic, 300, codec=codec)
    first = mirror_topics(spark.sparkContext, world.settings(topic))
    assert copied(first) == (1_500, 0), first
    world.assert_equal(topic, 1_500)
    second = mirror_topics(spark.sparkContext, world.settings(topic))
    assert copied(second) == (0, 0)
    assert [part.start for part in second] == [part.end for part in second] == [part.end for part in first]
    world.produce(topic, 10)
    assert copied(mirror_topics(spark.sparkContext, world.settings(topic))) == (10, 0)
    world.assert_equal(topic, 1_510)


def test_several_topics_in_one_run_and_as_much_as_is_allowed(spark: SparkSession, world: World) -> None:
    topics = [world.topic("ManyA", 2), world.topic("ManyB", 1)]
    for topic in topics:
        world.produce(topic, 2_000, size=2_000)
    first = mirror_topics(spark.sparkContext, world.settings(*topics, max_bytes=2_000_000))
    assert [(part.topic, part.partition) for part in first] == [("ManyA", 0), ("ManyA", 1), ("ManyB", 0)]
    assert all(part.bytes > 0 and part.lag > 0 for part in first)
    # Each partition passes its share by a batch at most.
    assert 1_900_000 <= sum(part.bytes for part in first) < 2_100_000
    second = mirror_topics(spark.sparkContext, world.settings(*topics))
    assert copied(first)[0] + copied(second)[0] == 4_000
    assert [part.lag for part in second] == [0, 0, 0]
    for topic in topics:
        world.assert_equal(topic, 2_000)


def test_an_append_whose_answer_was_lost_is_counted_and_not_repeated(world: World) -> None:
    topic = world.topic("LostAnswer", 1)
    world.produce(topic, 500)
    (task,) = tasks_of(world.settings(topic))
    first = mirror_partition(task)
    again = mirror_partition(task)  # as Spark does when the first attempt's result did not arrive
    assert (first.records, again.records) == (500, 500)
    assert (first.bytes > 0, again.bytes) == (True, 0)
    world.assert_equal(topic, 500)


def test_an_origin_that_lost_its_log_is_no_idle_one(world: World) -> None:
    topic = world.topic("Shortened", 1)
    world.produce(topic, 50)
    (task,) = tasks_of(world.settings(topic))
    mirror_partition(task)
    with world.aggregate.client() as client:
        recorded = recorded_position(client, task.origin).position
        assert recorded is not None
        ahead = Cursor(recorded.cursor.next_offset + 10_000)
        client.mirror_append(
            topic,
            MirrorAppend(
                mode=MirrorMode.RESET, origin=task.origin, expected=recorded.cursor.next_offset, cursor=ahead
            ),
        )
    (task,) = tasks_of(world.settings(topic))
    with pytest.raises(MillraceError, match="lost what it showed before"):
        mirror_partition(task)


@pytest.mark.soak
def test_drivers_that_race_copy_no_batch_twice(spark: SparkSession, world: World) -> None:
    topic = world.topic("RacedCopy")
    for turn in range(ROUNDS):
        world.produce(topic, 2_000, size=1_000)
        found: list[list[MirroredPartition] | BaseException] = []

        def drive(found: list[list[MirroredPartition] | BaseException] = found) -> None:
            try:
                found.append(mirror_topics(spark.sparkContext, world.settings(topic)))
            except BaseException as error:
                found.append(error)

        drivers = [threading.Thread(target=drive) for _ in range(2)]
        for driver in drivers:
            driver.start()
        for driver in drivers:
            driver.join(120)
        parts = [part for each in found if isinstance(each, list) for part in each]
        assert len(found) == 2
        assert not [each for each in found if isinstance(each, BaseException)]
        # Each counts by positions what was copied while it ran, whoever did it.
        assert 2_000 <= copied(parts)[0] <= 4_000
        world.assert_equal(topic, 2_000 * (turn + 1))


@pytest.mark.slow
@pytest.mark.soak
def test_killed_at_random_moments_and_run_again_the_copy_is_the_original(
    spark: SparkSession, world: World
) -> None:
    topic = world.topic("KilledCopy")
    chance = random.Random(time.time_ns())
    turns = max(1, ROUNDS - 1)
    for turn in range(1, turns + 1):
        world.produce(topic, 3_000, size=5_000)
        kill_at_a_step(Process(world.command(topic)), steps=1, pause_s=chance.uniform(0, 1.5))
        if turn < turns:
            assert copied(mirror_topics(spark.sparkContext, world.settings(topic)))[0] <= 3_000
        else:
            done = run_millrace(*world.command(topic))  # once all the way through spark-submit
            assert done.returncode == 0, done.stderr
            answer = json.loads(done.stdout)
            assert answer["records"] <= 3_000
            assert answer["dropped"] == 0
        world.assert_equal(topic, 3_000 * turn)


@pytest.mark.soak
def test_tasks_killed_in_the_middle_of_an_append_neither_lose_nor_repeat_a_batch(world: World) -> None:
    topic = world.topic("KilledTask", 1)
    chance = random.Random(time.time_ns())
    for turn in range(1, 3 * ROUNDS + 1):
        world.produce(topic, 1_000, size=5_000)
        (task,) = tasks_of(world.settings(topic))
        kill_in_the_middle(world, task, copied_bytes=5_000_000 * (turn - 1), pause_s=chance.uniform(0, 0.02))
        mirror_partition(task)
        world.assert_equal(topic, 1_000 * turn)


def kill_in_the_middle(world: World, task: MirrorTask, *, copied_bytes: int, pause_s: float) -> None:
    """SIGKILL to a process that runs the task, soon after it has appended something."""
    topic = task.origin.topic
    child = multiprocessing.get_context("spawn").Process(target=mirror_partition, args=(task,))
    child.start()
    with world.aggregate.client() as client:
        wait_until(
            "the task has begun to append, or has ended",
            lambda: not child.is_alive() or sum(latest(client, topic).values()) > copied_bytes,
        )
    time.sleep(pause_s)
    child.kill()
    child.join()
    child.close()


def latest(client: ClusterClient, topic: str) -> dict[int, int]:
    return client.list_offsets(topic, LATEST) if topic in client.topics() else {}


def test_a_topic_the_origin_does_not_have_is_one_clear_line(spark: SparkSession, world: World) -> None:
    with pytest.raises(MillraceError, match="topic 'Nowhere' does not exist") as caught:
        mirror_topics(spark.sparkContext, world.settings("Nowhere"))
    assert "\n" not in str(caught.value)


def test_an_origin_that_was_created_anew_stops_loudly(spark: SparkSession, world: World) -> None:
    topic = world.topic("Anew", 1)
    world.produce(topic, 10)
    mirror_topics(spark.sparkContext, world.settings(topic))
    with world.origin.client() as client:
        client.delete_topic(topic)
    world.topic(topic, 1)
    world.produce(topic, 5)
    with pytest.raises(MillraceError) as caught:
        mirror_topics(spark.sparkContext, world.settings(topic))
    assert "reset" in str(caught.value)
    with world.aggregate.client() as aggregate:
        assert sum(len(each.records) for each in read_topic(aggregate, topic).values()) == 10
