"""Logs that come back from an older copy and grow past their old end: nobody passes over the new messages."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from millrace.client.cluster_client import EARLIEST
from millrace.errors import MillraceError
from millrace_spark.jobs.mirror import tasks_of
from millrace_spark.mirror_batch import mirror_partition
from millrace_spark.source.options import parse_options
from millrace_spark.source.rows import RowReader
from millrace_spark.source.stream import MillraceStreamReader
from millrace_warehouse.requests import Mirror
from tests.brokers import TestCluster, read_topic, wait_for_values
from tests.integration.test_mirror import World, produce
from tests.support import Process, run_millrace, wait_until

Start = Callable[..., Process]
ORIGIN_BROKERS = (1, 2)


@dataclass
class Copies:
    """The folders of one topic on the origin's brokers, as they were at one time."""

    brokers: TestCluster
    topic: str
    folder: Path

    def save(self) -> None:
        with stopped(self.brokers):
            for broker in ORIGIN_BROKERS:
                for partition in self.brokers.directory(broker).glob(f"{self.topic}-*"):
                    shutil.copytree(partition, self.folder / str(broker) / partition.name)

    def put_back(self) -> None:
        """Put the folders back while the brokers are stopped. They elect a leader anew: another epoch."""
        with stopped(self.brokers):
            for broker in ORIGIN_BROKERS:
                directory = self.brokers.directory(broker)
                for partition in directory.glob(f"{self.topic}-*"):
                    shutil.rmtree(partition)
                shutil.copytree(self.folder / str(broker), directory, dirs_exist_ok=True)


@contextmanager
def stopped(brokers: TestCluster) -> Iterator[None]:
    """Stop the origin's brokers, and start them again."""
    for broker in ORIGIN_BROKERS:
        brokers.brokers[broker].process.stop()
    yield
    for broker in ORIGIN_BROKERS:
        brokers.restart(broker)


@pytest.fixture(scope="module")
def world(zookeeper: str, start_for_module: Start, tmp_path_factory: pytest.TempPathFactory) -> World:
    folder, run = tmp_path_factory.mktemp("cut"), uuid4().hex[:6]
    settings = "default_replicas = 2\nreplica_lag_ms = 2000\n[log]\nflush_ms = 20\n"
    origin = TestCluster(start_for_module, f"dc1-{run}", folder, zookeeper, settings)
    origin.start_brokers(*ORIGIN_BROKERS)
    settings = (
        "[log]\nflush_ms = 20\n"
        f"[mirror.dc1]\nbootstrap = {json.dumps(origin.bootstrap)}\n"
        'topics = ["away", "connected", "restarts", "expires"]\nbatch_topics = ["batch"]\n'
    )
    aggregate = TestCluster(start_for_module, f"offline-{run}", folder, zookeeper, settings)
    aggregate.start_brokers(1)
    return World(origin, aggregate)


def values(prefix: str, count: int) -> list[str]:
    return [f"{prefix} {number}" for number in range(count)]


def encoded(texts: list[str]) -> list[bytes]:
    return [text.encode() for text in texts]


def copied(world: World, topic: str) -> list[bytes | None]:
    with world.aggregate.client() as aggregate:
        return read_topic(aggregate, topic)[0].values


def reset(world: World, topic: str) -> None:
    config = str(world.aggregate.brokers[1].config)
    done = run_millrace("mirror", "reset", config, "--origin", "dc1", "--topic", topic, "--yes")
    assert done.returncode == 0, done.stderr
    assert "goes on at offset" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("topic", ["away", "connected"])
def test_a_mirror_stops_where_its_origin_used_offsets_again(world: World, topic: str, tmp_path: Path) -> None:
    world.topic(topic, 1)
    old, lost, new = values("old", 10), values("lost", 10), values("new", 60)
    produce(world.origin.bootstrap, topic, old)
    copies = Copies(world.origin, topic, tmp_path)
    copies.save()
    produce(world.origin.bootstrap, topic, lost)
    world.assert_equal(topic, 20)
    before = world.status()[topic, 0].position
    assert before is not None
    assert before.cursor.epoch >= 0

    if topic == "away":
        world.aggregate.brokers[1].kill()
    copies.put_back()
    produce(world.origin.bootstrap, topic, new)
    with world.origin.client() as client:
        assert client.bounds(topic, 0)[1] > before.cursor.next_offset, "it has grown past its old end"
    if topic == "away":
        world.aggregate.restart(1)

    row = world.await_state(topic, "stopped")
    assert f"millrace mirror reset CONFIG --origin dc1 --topic {topic} --partition 0" in row.detail
    if topic == "away":
        assert f"{topic}-0 of dc1 was read up to offset {before.cursor.next_offset} in epoch" in row.detail
        assert "its log was cut back" in row.detail
    assert copied(world, topic) == encoded(old + lost)
    reset(world, topic)
    with world.aggregate.client() as aggregate:
        wait_for_values(aggregate, topic, 80)
    assert copied(world, topic) == encoded(old + lost + new)
    world.await_state(topic, "running")


@pytest.mark.slow
def test_an_origin_that_restarts_or_changes_its_leaders_stops_no_mirror(world: World) -> None:
    world.topic("restarts", 1)
    for number in range(4):
        produce(world.origin.bootstrap, "restarts", values(str(number), 10))
        broker = ORIGIN_BROKERS[number % 2]
        world.origin.brokers[broker].process.stop() if number < 2 else world.origin.brokers[broker].kill()
        produce(world.origin.bootstrap, "restarts", values(f"{number} led by the other", 10))
        world.origin.restart(broker)
        wait_until("both replicas are in sync", lambda: in_sync(world, "restarts"))
    produce(world.origin.bootstrap, "restarts", values("last", 10))
    world.assert_equal("restarts", 90)
    row = world.await_state("restarts", "running")
    assert row.position is not None
    assert row.position.cursor.epoch > 2


@pytest.mark.slow
def test_an_origin_whose_copied_segments_expire_stops_no_mirror(world: World) -> None:
    world.topic("expires", 1, retention_bytes="2000", segment_bytes="1200")
    for number in range(10):
        produce(world.origin.bootstrap, "expires", [f"{number} " + "x" * 300])
        with world.aggregate.client() as aggregate:
            wait_for_values(aggregate, "expires", number + 1)
        if number == 5:
            with stopped(world.origin):
                pass
    with world.origin.client() as client:
        wait_until("segments expire", lambda: client.list_offsets("expires", EARLIEST)[0] > 0)
    world.aggregate.brokers[1].kill()
    world.aggregate.restart(1)
    produce(world.origin.bootstrap, "expires", ["last"])
    with world.aggregate.client() as aggregate:
        wait_for_values(aggregate, "expires", 11)
    world.await_state("expires", "running")


@pytest.mark.slow
def test_a_batch_mirror_refuses_an_origin_that_used_offsets_again(world: World, tmp_path: Path) -> None:
    def mirror() -> None:
        request = Mirror(
            topics=("batch",),
            origin="dc1",
            origin_bootstrap=world.origin.bootstrap,
            bootstrap=world.aggregate.bootstrap,
        )
        for task in tasks_of(request):
            mirror_partition(task)

    world.topic("batch", 1)
    old, lost, new = values("old", 10), values("lost", 10), values("new", 60)
    produce(world.origin.bootstrap, "batch", old)
    copies = Copies(world.origin, "batch", tmp_path)
    copies.save()
    produce(world.origin.bootstrap, "batch", lost)
    mirror()
    mirror()
    copies.put_back()
    for part in (new[:10], new[10:20], new[20:]):
        produce(world.origin.bootstrap, "batch", part)
    with pytest.raises(MillraceError, match=r"its log was cut back .* to go on: millrace mirror reset"):
        mirror()
    assert copied(world, "batch") == encoded(old + lost)
    reset(world, "batch")
    mirror()
    assert copied(world, "batch") == encoded(old + lost + new)


@pytest.mark.slow
def test_a_streaming_query_refuses_a_log_that_used_offsets_again(world: World, tmp_path: Path) -> None:
    options = {"bootstrap": world.origin.bootstrap, "subscribe": "stream", "startingOffsets": "earliest"}

    def plan(start: dict[str, Any]) -> dict[str, Any]:
        stream = MillraceStreamReader(RowReader(parse_options(options), None))
        try:
            return stream.latestOffset(start, ReadAllAvailable())
        finally:
            stream.stop()

    world.topic("stream", 1)
    produce(world.origin.bootstrap, "stream", values("old", 10))
    copies = Copies(world.origin, "stream", tmp_path)
    copies.save()
    before = plan({})
    produce(world.origin.bootstrap, "stream", values("lost", 10))
    after = plan(before)
    assert after != before, "brokers that were started again stop no query"
    copies.put_back()
    produce(world.origin.bootstrap, "stream", values("new", 60))
    with pytest.raises(MillraceError, match=r"its log was cut back .* start with a new checkpoint"):
        plan(after)


def in_sync(world: World, topic: str) -> bool:
    with world.origin.client() as client:
        return all(len(one.isr) == 2 for one in client.topic(topic).copies.values())


@pytest.mark.slow
def test_an_origins_only_copy_that_an_operator_lets_serve_stops_the_mirror(
    zookeeper: str, start: Start, tmp_path: Path
) -> None:
    run = uuid4().hex[:6]
    origin = TestCluster(start, f"alone-{run}", tmp_path, zookeeper, "[log]\nflush_ms = 20\n")
    origin.start_brokers(1)
    mirror = f"[mirror.dc1]\nbootstrap = {json.dumps(origin.bootstrap)}\ntopics = ['t']\n"
    aggregate = TestCluster(start, f"whole-{run}", tmp_path, zookeeper, mirror)
    world = World(origin, aggregate.start_brokers(1))
    old, lost, new = values("old", 10), values("lost", 10), values("new", 60)
    world.topic("t", 1)
    produce(origin.bootstrap, "t", old)
    directory, copy = origin.directory(1), tmp_path / "copy"
    origin.brokers[1].process.stop()
    shutil.copytree(directory, copy)
    origin.restart(1)
    produce(origin.bootstrap, "t", lost)
    world.assert_equal("t", 20)
    aggregate.brokers[1].process.stop()
    origin.brokers[1].process.stop()
    shutil.rmtree(directory)
    shutil.copytree(copy, directory)
    origin.restart(1)
    arguments = ("t-0", "--replica", "1", "--reason", "no newer copy", "--bootstrap", origin.bootstrap)
    done = run_millrace("topics", "elect", "--unclean", *arguments)
    assert done.returncode == 0, done.stderr
    for part in (new[:20], new[20:40], new[40:]):
        produce(origin.bootstrap, "t", part)
    aggregate.restart(1)
    assert "t-0 of dc1 was read up to offset" in world.await_state("t", "stopped").detail
    assert copied(world, "t") == encoded(old + lost)
    reset(world, "t")
    with aggregate.client() as client:
        wait_for_values(client, "t", 80)
    assert copied(world, "t") == encoded(old + lost + new)
