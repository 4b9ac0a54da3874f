"""Apache Kafka as the aggregate cluster: what the mirror writes into it, each record once."""

from __future__ import annotations

import json
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from confluent_kafka import Producer

from millrace.client.cluster_client import LATEST, ClusterClient
from millrace.client.topic_admin import alter_topic_settings
from millrace.client.transactions import batches_from
from millrace.records import Record, iter_records
from tests.brokers import TestCluster
from tests.compat.transactions import transact
from tests.peers.kafka import KafkaBroker
from tests.support import Process, run_millrace, wait_until

ROUNDS = int(os.environ.get("MILLRACE_ROUNDS", "3"))
SETTLE_S = 120.0
Committed = dict[int, list[Record]]


def committed(client: ClusterClient, topic: str) -> Committed:
    """Partition -> the records that a reader of committed transactions gets."""
    if topic not in client.topics():
        return {}
    found: Committed = {}
    for partition, end in client.list_offsets(topic, LATEST).items():
        offset, records = 0, list[Record]()
        while offset < end:
            fetched = client.fetch(topic, {partition: offset}, max_bytes=8 << 20, max_wait_ms=500)[partition]
            assert fetched.error == 0
            for header, batch, readable in batches_from(fetched, offset):
                records += iter_records(header, batch) if readable else ()
                offset = header.next_offset
        found[partition] = records
    return found


def patient(bootstrap: str) -> ClusterClient:
    """A client that waits for brokers which were just killed, on a machine that has much to do."""
    return ClusterClient(bootstrap, timeout_s=SETTLE_S)


def values(contents: Committed) -> list[bytes]:
    return sorted(record.value or b"" for records in contents.values() for record in records)


def wait_for(client: ClusterClient, topic: str, count: int) -> Committed:
    """Wait until `count` records are committed; return the committed contents."""
    wait_until(
        f"{topic} holds {count} records",
        lambda: len(values(committed(client, topic))) >= count,
        timeout_s=SETTLE_S,
    )
    return committed(client, topic)


class Site:
    """A cluster of Millrace as origin, an Apache Kafka as aggregate, and the mirror between them."""

    def __init__(self, start: Callable[..., Process], folder: Path, zookeeper: str, origin: str) -> None:
        # A broker that was killed is let in again only when its last session is over.
        settings = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "500"}
        self.kafka = KafkaBroker(folder / "kafka", settings=settings)
        self._start, self._folder, self._zookeeper = start, folder, zookeeper
        self._name = f"offline-{uuid4().hex[:6]}"
        self.file = self.config("dc1", origin)
        self.mirror = self.start_mirror()

    def config(self, origin: str, bootstrap: str) -> Path:
        file = self._folder / f"{origin}.toml"
        file.write_text(
            f'cluster = "{self._name}"\nbootstrap = "{self.kafka.address}"\nzookeeper = "{self._zookeeper}"\n'
            f'metrics_listen = "127.0.0.1:0"\n[mirror.{origin}]\nbootstrap = "{bootstrap}"\ntopics = ["*"]\n'
        )
        return file

    def start_mirror(self) -> Process:
        self.mirror = self._start("mirror", "run", str(self.file))
        self.mirror.ready()
        return self.mirror


@pytest.fixture(scope="module")
def origin(
    zookeeper: str, start_for_module: Callable[..., Process], tmp_path_factory: pytest.TempPathFactory
) -> TestCluster:
    folder = tmp_path_factory.mktemp("origin")
    cluster = TestCluster(
        start_for_module, f"dc1-{uuid4().hex[:6]}", folder, zookeeper, "[log]\nflush_ms = 20\n"
    )
    return cluster.start_brokers(1)


@pytest.fixture(scope="module")
def site(
    needs_maven: None,
    origin: TestCluster,
    zookeeper: str,
    start_for_module: Callable[..., Process],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Site]:
    made = Site(start_for_module, tmp_path_factory.mktemp("aggregate"), zookeeper, origin.bootstrap)
    yield made
    made.kafka.kill()


def produce(bootstrap: str, topic: str, records: list[dict[str, Any]], **settings: object) -> None:
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 2, **settings})
    for record in records:
        producer.produce(topic, on_delivery=lambda e, _: failed.append(e) if e else None, **record)
    assert producer.flush(SETTLE_S) == 0
    assert not failed, failed[0]


def test_a_copy_has_the_keys_values_headers_and_times_of_its_origin_in_order(
    site: Site, origin: TestCluster
) -> None:
    with patient(origin.bootstrap) as client:
        client.create_topic("records", 2)
    sent: list[dict[str, Any]] = [
        {"key": b"k", "value": b"v", "headers": [("a", b"1"), ("a", b""), ("b", None)], "timestamp": 1000},
        {"key": None, "value": None, "headers": [], "timestamp": 1_431_856_800_000},
        {"key": b"", "value": b"", "headers": [], "timestamp": 5},
    ]
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        many = [{"key": b"x", "value": b"%d" % n, "headers": [], "timestamp": n + 1} for n in range(200)]
        produce(
            origin.bootstrap,
            "records",
            [{**r, "partition": 1} for r in [*sent, *many]],
            **{"compression.type": codec},
        )
    with patient(origin.bootstrap) as ours, patient(site.kafka.address) as theirs:
        wanted = committed(ours, "records")[1]
        assert len(wanted) == 5 * 203
        copy = wait_for(theirs, "records", len(wanted))
    copied = [(r.key, r.value, r.headers, r.timestamp) for r in max(copy.values(), key=len)]
    assert copied == [(r.key, r.value, r.headers, r.timestamp) for r in wanted]


def test_only_committed_records_of_a_kafka_are_copied_and_the_topics_of_two_origins_become_one(
    site: Site, origin: TestCluster, kafka: KafkaBroker, start: Callable[..., Process]
) -> None:
    start("mirror", "run", str(site.config("dc2", kafka.address))).ready()
    with patient(origin.bootstrap) as ours, patient(kafka.address) as theirs:
        ours.create_topic("both", 1)
        theirs.create_topic("both", 2)
    transact(kafka.address, "both", [b"committed"], commit=True)
    transact(kafka.address, "both", [b"aborted"], commit=False)
    produce(kafka.address, "both", [{"value": b"plain", "partition": 1}])
    produce(origin.bootstrap, "both", [{"value": b"ours", "partition": 0}])
    with patient(site.kafka.address) as client:
        copy = wait_for(client, "both", 3)
    assert sorted([r.value for r in records] for records in copy.values()) == [
        [b"committed"],
        [b"ours"],
        [b"plain"],
    ]


def test_a_second_mirror_takes_over_and_the_first_ends_with_a_sentence(
    site: Site, origin: TestCluster
) -> None:
    with patient(origin.bootstrap) as client:
        client.create_topic("taken", 1)
    produce(origin.bootstrap, "taken", [{"value": b"%d" % n, "partition": 0} for n in range(50)])
    with patient(site.kafka.address) as client:
        wait_for(client, "taken", 50)
        first, second = site.mirror, site.start_mirror()
        wait_until("the second has begun", lambda: "writes to" in second.output, timeout_s=SETTLE_S)
        produce(origin.bootstrap, "taken", [{"value": b"%d" % n, "partition": 0} for n in range(50, 100)])
        assert first.wait(timeout_s=SETTLE_S) == 1
        assert "another process now mirrors" in first.lines[-1]
        copy = wait_for(client, "taken", 100)
        assert second.running
    assert [r.value for r in copy[0]] == [b"%d" % n for n in range(100)]


def test_positions_behind_a_transaction_that_hangs_are_not_overlooked(
    site: Site, origin: TestCluster
) -> None:
    def send(first: int) -> None:
        records = [{"value": b"%d" % n, "partition": 0} for n in range(first, first + 50)]
        produce(origin.bootstrap, "hanging", records)

    with patient(origin.bootstrap) as client:
        client.create_topic("hanging", 1)
    send(0)
    with patient(site.kafka.address) as client:
        wait_for(client, "hanging", 50)
        other = Producer({"bootstrap.servers": site.kafka.address, "transactional.id": uuid4().hex})
        other.init_transactions(SETTLE_S)
        other.begin_transaction()
        other.produce("__millrace-mirror-dc1", b"{}", b"somebody", partition=0)
        assert other.flush(SETTLE_S) == 0
        send(50)
        wait_for(client, "hanging", 100)
        mirror = site.start_mirror()
        wait_until(
            "it does not begin",
            lambda: "does not return a record that was just committed" in mirror.output,
            timeout_s=SETTLE_S,
        )
        send(100)
        other.abort_transaction(SETTLE_S)
        copy = wait_for(client, "hanging", 150)
    assert [r.value for r in copy[0]] == [b"%d" % n for n in range(150)]
    site.mirror = mirror


def test_an_event_of_tomorrow_is_copied(site: Site, origin: TestCluster) -> None:
    ahead = int((time.time() + 24 * 3600) * 1000)
    with patient(origin.bootstrap) as ours:
        ours.create_topic("tomorrow", 1)
    record: dict[str, Any] = {"value": b"a", "timestamp": ahead, "headers": [("caf\u00e9", b"1")]}
    produce(origin.bootstrap, "tomorrow", [{**record, "partition": 0}])
    with patient(site.kafka.address) as theirs:
        (copied,) = wait_for(theirs, "tomorrow", 1)[0]
    assert (copied.timestamp, copied.headers) == (ahead, (("caf\u00e9", b"1"),))


def test_a_topic_of_the_aggregate_s_own_is_left_alone(site: Site, origin: TestCluster) -> None:
    with patient(site.kafka.address) as client:
        client.create_topic("own", 1)
        produce(site.kafka.address, "own", [{"value": b"theirs", "partition": 0}])
        with patient(origin.bootstrap) as ours:
            ours.create_topic("own", 1)
        produce(origin.bootstrap, "own", [{"value": b"ours", "partition": 0}])
        wait_until("the mirror says so", lambda: "messages of its own" in site.mirror.output)
        assert values(committed(client, "own")) == [b"theirs"]
        assert len(client.topic("own").partitions) == 1


def test_a_partition_that_kafka_refuses_holds_up_no_other_and_goes_on_when_it_may(
    site: Site, origin: TestCluster
) -> None:
    with patient(site.kafka.address) as theirs, patient(origin.bootstrap) as ours:
        theirs.create_topic("refused", 2, {"max.message.bytes": "2000"})
        ours.create_topic("refused", 2)
        large: dict[str, Any] = {"value": os.urandom(5000), "partition": 0}
        produce(origin.bootstrap, "refused", [large, {"value": b"small", "partition": 1}])
        assert values(wait_for(theirs, "refused", 1)) == [b"small"]
        wait_until("the mirror says why", lambda: "cannot append" in site.mirror.output)
        alter_topic_settings(theirs, "refused", {"max.message.bytes": "20000"})
        assert values(wait_for(theirs, "refused", 2)) == sorted([large["value"], b"small"])


def test_how_far_it_has_come_is_told_by_its_metrics_and_by_mirror_status(
    site: Site, origin: TestCluster
) -> None:
    with patient(origin.bootstrap) as client:
        client.create_topic("told", 1)
    produce(origin.bootstrap, "told", [{"value": b"%d" % n, "partition": 0} for n in range(30)])
    with patient(site.kafka.address) as client:
        wait_for(client, "told", 30)
    found = re.findall(r"metrics on (http\S+)/metrics", site.mirror.output)
    place = 'origin="dc1",partition="0",topic="told"'

    def metrics() -> str:
        return httpx.get(f"{found[-1]}/metrics").text

    wait_until("no lag is left", lambda: f"millrace_broker_mirror_lag{{{place}}} 0.0" in metrics())
    running = 'mirror_state{origin="dc1",partition="0",state="running",topic="told"} 1.0'
    assert running in metrics()
    (count,) = re.findall(r'mirror_transactions_total{origin="dc1",outcome="committed"} (\S+)', metrics())
    assert float(count) >= 1
    assert httpx.get(f"{found[-1]}/healthz").status_code == 200

    told = run_millrace("mirror", "status", str(site.file), "--json")
    (row,) = [row for row in json.loads(told.stdout) if row["topic"] == "told"]
    assert (row["records"], row["lag"], row["state"]) == (30, 0, "recorded")
    assert row["next_offset"] == row["origin_high_watermark"]
    for refused in (("reset", "--topic", "told"), ("translate", "--group", "g")):
        done = run_millrace("mirror", refused[0], str(site.file), "--origin", "dc1", *refused[1:])
        assert done.returncode == 2
        assert "Apache Kafka" in done.stderr


class Producing:
    """Sends numbered values to the three partitions of a topic until it is told to stop."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.sent: list[list[bytes]] = [[], [], []]
        self._bootstrap, self._topic = bootstrap, topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Producing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            new = [[b"%d" % n for n in range(number + p, number + 300, 3)] for p in range(3)]
            records = [{"value": value, "partition": p} for p in range(3) for value in new[p]]
            produce(self._bootstrap, self._topic, records)
            for sent, some in zip(self.sent, new, strict=True):
                sent += some
            number += 300
            time.sleep(0.05)


@pytest.mark.soak
def test_nothing_is_lost_or_there_twice_when_mirror_and_kafka_are_killed(
    site: Site, origin: TestCluster
) -> None:
    with patient(origin.bootstrap) as client:
        client.create_topic("killed", 3)
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    draw = random.Random(seed)
    with Producing(origin.bootstrap, "killed") as producing:
        for number in range(ROUNDS):
            time.sleep(draw.uniform(0.1, 3.0))
            victim = ("mirror", "kafka", "both")[number % 3]
            if victim != "kafka":
                site.mirror.kill()
            if victim != "mirror":
                site.kafka.kill()
                time.sleep(draw.uniform(0, 2))
                site.kafka.start()
            if victim != "kafka":
                site.start_mirror()
    with patient(site.kafka.address) as client:
        copy = wait_for(client, "killed", sum(map(len, producing.sent)))
        time.sleep(2)  # what would come twice has time to come
        copy = committed(client, "killed")
    copied = sorted([record.value for record in records] for records in copy.values())
    assert copied == sorted(producing.sent), "each partition has what was acknowledged, once and in order"
    assert site.mirror.running
