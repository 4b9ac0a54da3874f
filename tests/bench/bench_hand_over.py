"""Time from a broker's stop until other replicas lead its partitions and serve them.

    python -m tests.bench.bench_hand_over [--partitions 1000] [--topics 10] [--kill]

Three brokers, three replicas, idle partitions; one broker was away before, so that the one which is stopped
leads about half. Seconds from the signal until ZooKeeper says that others lead all, until these have answered
a ListOffsets of each, and until the process has ended; and the CPU that all processes used until the first.
With --kill it gets SIGKILL, and ZooKeeper forgets it after 2 s.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from pathlib import Path

from millrace.client.cluster_client import LATEST, ClusterClient
from millrace.zookeeper.topic_state import PartitionState
from millrace_broker.coordination.cluster import Cluster
from tests.brokers import TestCluster
from tests.support import Process, wait_until

LONG_S = 120


def main() -> None:
    """Start, stop the broker of most partitions, and print the times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--topics", type=int, default=10)
    parser.add_argument("--kill", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-hand-over-") as folder:
        started: list[Process] = []

        def start(*arguments: str) -> Process:
            started.append(Process(arguments))
            return started[-1]

        try:
            zookeeper = start("zookeeper", "--port", "0", "--data-dir", f"{folder}/zookeeper").ready()
            settings = "default_replicas = 3\n"
            brokers = TestCluster(start, "over", Path(folder), zookeeper, settings).start_brokers(1, 2, 3)
            with brokers.client() as client, Cluster.connect(zookeeper, "over", create=False) as cluster:
                for number in range(options.topics):
                    client.create_topic(f"t{number}", options.partitions // options.topics)
                wait_until("all are led", lambda: _led_by(cluster, options, {1, 2, 3}), timeout_s=LONG_S)
                brokers.brokers[3].process.stop()
                wait_until("two lead all", lambda: _led_by(cluster, options, {1, 2}), timeout_s=LONG_S)
                brokers.restart(3)
                wait_until("all are in sync", lambda: _are_in_sync(cluster), timeout_s=LONG_S)
                _serve(client, options)
                time.sleep(3)
                print(_timed(brokers, cluster, client, options, started), flush=True)
        finally:
            for process in reversed(started):
                process.kill()


def _timed(
    brokers: TestCluster,
    cluster: Cluster,
    client: ClusterClient,
    options: argparse.Namespace,
    started: list[Process],
) -> str:
    led = sum(state.leader == 2 for state in _states(cluster))
    leaver = brokers.brokers[2].process
    gone = leaver.pid if options.kill else -1  # what it had used would count as less than nothing
    running = [process.pid for process in started if process.running and process.pid != gone]
    used = _cpu_s(running)
    ended: list[float] = []

    def stop() -> None:
        leaver.kill() if options.kill else leaver.stop()
        ended.append(time.monotonic() - began)

    began = time.monotonic()
    thread = threading.Thread(target=stop)
    thread.start()
    while not _led_by(cluster, options, {1, 3}):
        time.sleep(0.002)
    elsewhere = time.monotonic() - began
    used = _cpu_s(running) - used
    _serve(client, options)
    served = time.monotonic() - began
    thread.join()
    return (
        f"{led} of {options.partitions} partitions: led elsewhere after {elsewhere:.2f} s"
        f" ({used:.2f} s of CPU), served after {served:.2f} s, the process has ended after {ended[0]:.2f} s"
    )


def _states(cluster: Cluster) -> list[PartitionState]:
    return [state for topic in cluster.topics.values() for state in topic.partitions.values()]


def _led_by(cluster: Cluster, options: argparse.Namespace, brokers: set[int]) -> bool:
    states = _states(cluster)
    full = len(states) == options.partitions // options.topics * options.topics
    return full and all(state.leader in brokers for state in states)


def _are_in_sync(cluster: Cluster) -> bool:
    return all(len(state.isr) == len(state.replicas) for state in _states(cluster))


def _serve(client: ClusterClient, options: argparse.Namespace) -> None:
    for number in range(options.topics):
        client.list_offsets(f"t{number}", LATEST)


def _cpu_s(pids: list[int]) -> float:
    """Sum the CPU of the processes that still run; an ended process is not counted any more."""
    total = 0.0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


if __name__ == "__main__":
    main()
