"""Costs to ZooKeeper and the brokers when many topics change at once, as when a broker has died.

    python -m tests.bench.bench_watches [--topics 500] [--partitions 30] [--watchers 1,2,4]

Watchers are processes that follow a cluster as a broker does. Then every topic's state is written once, as
fast as one client can, and each watcher tells when it has read the last of them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

from millrace.zookeeper.topic_state import BrokerAddress, TopicState, encode_topic
from millrace_broker.coordination.cluster import Cluster
from tests.bench.broker import meter
from tests.bench.broker.report import table
from tests.support import Process

CLUSTER = "bench"


def main() -> None:
    """Measure every number of watchers and print a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--topics", type=int, default=500)
    parser.add_argument("--partitions", type=int, default=30)
    parser.add_argument("--watchers", default="1,2,4")
    parser.add_argument("--watch", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.watch is not None:
        watch(options.watch)
        return
    rows = []
    with tempfile.TemporaryDirectory(prefix="bench-watches-") as folder:
        zookeeper = Process(["zookeeper", "--port", "0", "--data-dir", str(Path(folder))])
        try:
            address = zookeeper.ready()
            with Cluster.connect(address, CLUSTER) as cluster:
                cluster.register_broker(1, BrokerAddress("127.0.0.1", 1, {}))
                topics = [
                    cluster.create_topic(f"topic-{number}", options.partitions, {})
                    for number in range(options.topics)
                ]
                servers = meter.tree(zookeeper.pid)
                for epoch, count in enumerate(map(int, options.watchers.split(",")), 1):
                    rows.append(measure(address, cluster, servers, topics, count, epoch))
        finally:
            zookeeper.kill()
    size = len(encode_topic(topics[0]))
    print(f"{options.topics} topics of {options.partitions} partitions, {size} bytes each\n")
    print(table(("watchers", "all written, s", "all read, s", "ZooKeeper CPU s", "CPU s of a watcher"), rows))


def measure(
    address: str, cluster: Cluster, servers: list[int], topics: list[TopicState], count: int, epoch: int
) -> list[str]:
    """Write every topic once in a new epoch while `count` processes watch."""
    command = [sys.executable, "-m", "tests.bench.bench_watches", "--watch"]
    watchers = [
        subprocess.Popen([*command, f"{address} {epoch} {len(topics)}"], stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    try:
        for process in watchers:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        before, began = meter.cpu_seconds(servers), time.monotonic()
        client = cluster.session.client
        writes = [
            client.set_async(f"/{CLUSTER}/topics/{topic.name}", encode_topic(in_epoch(topic, epoch)))
            for topic in topics
        ]
        for write in writes:
            write.get(timeout=60)
        written_s = time.monotonic() - began
        ends, used = zip(
            *(map(float, process.communicate(timeout=120)[0].split()) for process in watchers), strict=True
        )
    finally:
        for process in watchers:
            process.kill()
            process.wait()
    figures = (written_s, max(ends) - began, meter.cpu_seconds(servers) - before, sum(used) / count)
    return [str(count), *(f"{figure:.2f}" for figure in figures)]


def in_epoch(topic: TopicState, epoch: int) -> TopicState:
    """The topic with a new leader's epoch in every partition."""
    changed = {number: replace(state, leader_epoch=epoch) for number, state in topic.partitions.items()}
    return replace(topic, partitions=changed)


def watch(told: str) -> None:
    """Follow the cluster until every topic is in that epoch; print when that was, and its CPU seconds."""
    address, epoch, topics = told.split()
    with Cluster.connect(address, CLUSTER, create=False) as cluster:
        done = threading.Event()

        def look() -> None:
            states = cluster.topics.values()
            if len(states) == int(topics) and all(s.partitions[0].leader_epoch == int(epoch) for s in states):
                done.set()

        cluster.on_change(look)
        before = time.process_time()
        print("ready", flush=True)
        done.wait(120)
        print(time.monotonic(), time.process_time() - before, flush=True)


if __name__ == "__main__":
    main()
