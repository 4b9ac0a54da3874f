"""Time that a broker of many busy partitions takes to come back after SIGKILL.

    python -m tests.bench.bench_restart [--partitions 300] [--rounds 3] [--directory DIR]

A producer writes to every partition with acks=all until the broker is killed. Seconds from the start of the
new process until its port opens, until it answers a first request, and until every partition has answered.
"""

from __future__ import annotations

import argparse
import socket
import tempfile
import threading
import time
from pathlib import Path

from confluent_kafka import Producer

from millrace.client.cluster_client import LATEST, ClusterClient
from tests.brokers import TestCluster
from tests.support import Process

LOAD_S = 5.0


def main() -> None:
    """Kill and start the broker, and print a line for each time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, help="Where the logs are; default: a temporary folder.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-restart-", dir=options.directory) as folder:
        started: list[Process] = []

        def start(*arguments: str) -> Process:
            started.append(Process(arguments))
            return started[-1]

        try:
            zookeeper = start("zookeeper", "--port", "0", "--data-dir", f"{folder}/zookeeper").ready()
            cluster = TestCluster(start, "restart", Path(folder), zookeeper).start_brokers(1)
            with cluster.client() as client:
                client.create_topic("t", options.partitions)
            for _ in range(options.rounds):
                kill_under_load(cluster, options.partitions)
                print(f"{options.partitions} partitions: {timed_restart(cluster)}", flush=True)
        finally:
            for process in reversed(started):
                process.kill()


def kill_under_load(cluster: TestCluster, partitions: int) -> None:
    """Write to all partitions for a while, and kill the broker in the middle of it."""
    killed = threading.Event()

    def produce() -> None:
        producer = Producer(
            {"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 20, "log_level": 0}
        )
        while not killed.is_set():
            for partition in range(partitions):
                try:
                    producer.produce("t", b"y" * 300, partition=partition)
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0.05)
        producer.purge()

    thread = threading.Thread(target=produce)
    thread.start()
    time.sleep(LOAD_S)
    cluster.brokers[1].kill()
    killed.set()
    thread.join()


def timed_restart(cluster: TestCluster) -> str:
    """Start the broker again; when it could be reached, answered, and served all."""
    broker, began = cluster.brokers[1], time.monotonic()
    broker.process = cluster.start("broker", str(broker.config))
    while not _is_open(broker.address):
        time.sleep(0.01)
    opened = time.monotonic() - began
    with ClusterClient(broker.address) as client:
        client.broker_ids()
        answered = time.monotonic() - began
        client.list_offsets("t", LATEST)
        served = time.monotonic() - began
    return f"port open after {opened:.1f} s, first answer after {answered:.1f} s, all after {served:.1f} s"


def _is_open(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
