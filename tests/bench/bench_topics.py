"""CPU and memory that a broker needs for each topic, beside more and more other topics.

    python -m tests.bench.bench_topics [--topics 1000,5000] [--partitions 1] [--kafka]

A cost that grows with the other topics shows as a column that rises from row to row. CPU is that of the
broker's process alone, without what it uses when nothing happens. With --kafka an Apache Kafka creates the
same topics.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from millrace.client.cluster_client import LATEST, ClusterClient
from millrace.wire import messages
from millrace.wire.messages import ApiKey
from millrace.zookeeper.session import Session
from millrace.zookeeper.topic_state import decode_topic, encode_topic
from tests.bench.broker import meter
from tests.bench.broker.java import KAFKA_OPTIONS
from tests.bench.broker.report import table
from tests.brokers import TestCluster, free_port
from tests.peers.kafka import KafkaBroker
from tests.support import Process, wait_until

NAME = "topics"
SLICE = 100
"""Topics of one request."""
SINGLE = 50
"""Topics that are created one by one."""
SCRAPES = 5
PAUSE_S = 0.05
LONG_S = 600
HEAD = (
    "topics",
    "partitions",
    "created one by one",
    "created by 100",
    "leader changed",
    "restarted",
    "deleted by 100",
    "KB a partition",
    "/metrics, ms",
)


def main() -> None:
    """Measure each number of topics in a broker of its own, and print a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--topics", default="1000,5000")
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--kafka", action="store_true")
    options = parser.parse_args()
    rows = []
    for topics in map(int, options.topics.split(",")):
        rows.append(measure(topics, options.partitions))
        print(rows[-1], flush=True)
        if options.kafka:
            rows.append(measure_kafka(topics, options.partitions))
    print("CPU ms of the broker for each topic\n")
    print(table(HEAD, rows))


def measure(topics: int, partitions: int) -> list[str]:
    """Return the line of Millrace."""
    with tempfile.TemporaryDirectory(prefix="bench-topics-") as folder:
        started: list[Process] = []

        def start(*arguments: str) -> Process:
            started.append(Process(arguments))
            return started[-1]

        try:
            data = Path(folder, "zookeeper")
            zookeeper = start("zookeeper", "--port", "0", "--data-dir", str(data)).ready()
            port = free_port()
            settings = f'metrics_listen = "127.0.0.1:{port}"\n'
            cluster = TestCluster(start, NAME, Path(folder), zookeeper, settings).start_brokers(1)
            figures = list(_figures(cluster, zookeeper, port, topics, partitions))
        finally:
            for process in reversed(started):
                process.kill()
    return [str(topics), str(partitions), *(f"{figure:.2f}" for figure in figures)]


def _figures(
    cluster: TestCluster, zookeeper: str, port: int, topics: int, partitions: int
) -> Iterator[float]:
    pid = cluster.brokers[1].process.pid
    names = [f"topic-{number:05}" for number in range(topics)]
    with ClusterClient(cluster.bootstrap, timeout_s=LONG_S) as client:
        create(client, [f"first-{number:05}" for number in range(SLICE)], partitions, SLICE)
        quiet(pid)
        before = meter.rss_bytes([pid])
        by_slice = cpu_of(pid, lambda: create(client, names, partitions, SLICE)) / topics
        kb = (meter.rss_bytes([pid]) - before) / (topics * partitions) / 1000
        more = [f"more-{number:05}" for number in range(SINGLE)]
        yield cpu_of(pid, lambda: create(client, more, partitions, 1)) / SINGLE
        yield by_slice
        yield cpu_of(pid, lambda: change_leaders(client, zookeeper, names)) / topics
        scrape(port)  # the first takes longer
        metrics = cpu_of_scrapes(pid, port)
        yield restart(cluster, client, names) / topics
        pid = cluster.brokers[1].process.pid
        yield cpu_of(pid, lambda: delete(client, names)) / topics
        yield kb
        yield metrics


def measure_kafka(topics: int, partitions: int) -> list[str]:
    """Return the line of an Apache Kafka: creation only."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-topics-") as folder,
        KafkaBroker(Path(folder), heap_mb=1024, java_options=KAFKA_OPTIONS) as kafka,
        kafka.client(LONG_S) as client,
    ):
        names = [f"topic-{number:05}" for number in range(topics)]
        by_slice = cpu_of(kafka.pid, lambda: create(client, names, partitions, SLICE)) / topics
        more = [f"more-{number:05}" for number in range(SINGLE)]
        single = cpu_of(kafka.pid, lambda: create(client, more, partitions, 1)) / SINGLE
    return [f"Apache Kafka: {topics}", str(partitions), f"{single:.2f}", f"{by_slice:.2f}", *[""] * 5]


def cpu_of(pid: int, work: Callable[[], None]) -> float:
    """Return the CPU ms that the process uses for `work` until it is quiet again, without its idle use."""
    quiet(pid)
    idle = _idle_share(pid)
    before, began = cpu_ms(pid), time.monotonic()
    work()
    quiet(pid)
    return cpu_ms(pid) - before - idle * (time.monotonic() - began)


def cpu_of_scrapes(pid: int, port: int) -> float:
    """Return the CPU ms of a scrape of the metrics."""
    before = cpu_ms(pid)
    for _ in range(SCRAPES):
        scrape(port)
    return (cpu_ms(pid) - before) / SCRAPES


def _idle_share(pid: int) -> float:
    """CPU ms in a second."""
    before = cpu_ms(pid)
    time.sleep(3)
    return (cpu_ms(pid) - before) / 3


def cpu_ms(pid: int) -> float:
    """CPU ms of all threads of a process so far: of its own clock, which is exact."""
    return time.clock_gettime(~pid << 3 | 2) * 1000


def quiet(pid: int) -> None:
    """Wait until two pauses use the same, as the second without work does."""
    meter.wait_for_quiet([pid], timeout_s=60, share=0.1)
    time.sleep(2)


def create(client: ClusterClient, names: list[str], partitions: int, each: int) -> None:
    """Create topics, `each` with one request."""
    Request, Response = messages.CreateTopicsRequest, messages.CreateTopicsResponse
    for first in range(0, len(names), each):
        topics = tuple(
            Request.Topic(name=name, num_partitions=partitions, replication_factor=1)
            for name in names[first : first + each]
        )
        request = Request(topics=topics, timeout=30_000)
        response = client.call(None, ApiKey.CREATE_TOPICS, 5, request, Response)
        assert not [topic for topic in response.topics if topic.error_code], response.topics
        time.sleep(PAUSE_S)


def delete(client: ClusterClient, names: list[str]) -> None:
    """Delete topics."""
    Request, Response = messages.DeleteTopicsRequest, messages.DeleteTopicsResponse
    for first in range(0, len(names), SLICE):
        request = Request(topic_names=tuple(names[first : first + SLICE]), timeout=30_000)
        response = client.call(None, ApiKey.DELETE_TOPICS, 3, request, Response)
        assert not [topic for topic in response.responses if topic.error_code], response.responses


def change_leaders(client: ClusterClient, zookeeper: str, names: list[str]) -> None:
    """Write every topic once in a new epoch, and wait until the broker has read the last."""
    session = Session.connect(zookeeper)
    try:
        paths = [f"/{NAME}/topics/{name}" for name in names]
        writes = []
        for path, (data, _) in session.read_all(paths).items():
            topic = decode_topic(path.rpartition("/")[2], data)
            states = {n: replace(state, leader_epoch=1) for n, state in topic.partitions.items()}
            writes.append(session.client.set_async(path, encode_topic(replace(topic, partitions=states))))
        for write in writes:
            write.get(timeout=60)
    finally:
        session.close()

    def is_read() -> bool:
        client.topic(names[-1])
        return client.epoch_of((names[-1], 0)) == 1

    wait_until("the broker has read every topic", is_read)


def restart(cluster: TestCluster, client: ClusterClient, names: list[str]) -> float:
    """Return the CPU ms of a broker that starts with these topics, without that of one which starts alone."""
    broker = cluster.brokers[1]
    broker.process.stop()
    broker.process = cluster.start("broker", str(broker.config))
    broker.process.ready(timeout_s=LONG_S)
    client.list_offsets(names[-1], LATEST)
    return cpu_ms(broker.process.pid)


def scrape(port: int) -> None:
    """One scrape of the broker's metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        answer.read()


if __name__ == "__main__":
    main()
