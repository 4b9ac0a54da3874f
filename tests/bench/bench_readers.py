"""Readers that share a cluster: CPU of each, and the events that they could count in a second.

    python -m tests.bench.bench_readers [--events 1000000] [--readers 1,2] [--rounds 3]

Each row starts that many readers of one tier, sends events to a topic of 32 partitions, and waits until all
are counted. A reader is one thread, so a tier can count as fast as the busiest of its readers: the events
divided by that reader's CPU. CPU time is measured because other processes disturb it less than the time of
day.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from confluent_kafka import Producer

from millrace.client.cluster_client import ClusterClient
from millrace_audit.reports.record_header import HEADER_NAME, encode_header, topic_tag
from tests.bench.bench_audit import START_MS, Site, site
from tests.bench.machine import busy_share, in_words, machine
from tests.bench.replay import cpu_seconds
from tests.brokers import free_port
from tests.support import Process, wait_until

PARTITIONS, VALUE = 32, b"x" * 200
WAIT_S = 900.0


def send(at: Site, topic: str, events: int) -> None:
    """Send events with record headers, spread over all partitions."""
    producer = Producer({"bootstrap.servers": at.bootstrap, "linger.ms": 20, "acks": "all", "log_level": 2})
    tag = topic_tag(topic)
    for n in range(events):
        header: list[tuple[str, str | bytes | None]] = [
            (HEADER_NAME, encode_header(tag, 7, n, START_MS + n // 100))
        ]
        while True:
            try:
                producer.produce(topic, VALUE, None, n // 500 % PARTITIONS, headers=header)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(WAIT_S) == 0


@contextmanager
def readers(at: Site, topic: str, number: int) -> Iterator[dict[str, Process]]:
    """Start readers that share a tier of their own; yield them by the address of their metrics."""
    started = {}
    try:
        for _ in range(number):
            metrics = f"127.0.0.1:{free_port()}"
            started[metrics] = Process(
                [
                    *("audit-reader", "--cluster", "bench", "--bootstrap", at.bootstrap, "--topics", topic),
                    *("--registry", at.registry, "--zookeeper", at.zookeeper, "--metrics-listen", metrics),
                    *("--tier", topic),
                ]
            )
        for process in started.values():
            process.ready()
        line = f"is shared by {number} readers"
        wait_until("they share", lambda: number == 1 or all(line in p.output for p in started.values()))
        yield started
    finally:
        for process in started.values():
            process.kill()


def counted(metrics: str) -> int:
    """Return the messages that a reader has counted."""
    text = httpx.get(f"http://{metrics}/metrics").text
    counts = re.findall(r"^millrace_audit_reader_messages_total\{.*\} ([\d.e+]+)$", text, re.M)
    return int(sum(map(float, counts)))


def measure(at: Site, number: int, run: int, events: int) -> tuple[list[float], list[int], float]:
    """Return CPU seconds and messages of each reader, and the seconds until all were counted."""
    topic = f"events-{number}-{run}"
    with ClusterClient(at.bootstrap) as client:
        client.create_topic(topic, PARTITIONS)
    with readers(at, topic, number) as started:
        before, began = {m: cpu_seconds(p.pid) for m, p in started.items()}, time.monotonic()
        send(at, topic, events)
        wait_until("all are counted", lambda: sum(map(counted, started)) >= events, timeout_s=WAIT_S)
        seconds = time.monotonic() - began
        cpu = [cpu_seconds(process.pid) - before[metrics] for metrics, process in started.items()]
        return cpu, [counted(metrics) for metrics in started], seconds


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--readers", default="1,2")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"{in_words(machine())}; other processes used {busy_share():.0%} of all cores before")
    print(
        "| readers | events | share of each | CPU s of each | us an event, all | events/s, busiest | ratio |"
    )
    print("|---|---|---|---|---|---|---|")
    first = 0.0
    with tempfile.TemporaryDirectory() as folder, site(Path(folder)) as at:
        for number in map(int, options.readers.split(",")):
            runs = [measure(at, number, run, options.events) for run in range(options.rounds)]
            cpu, shares, seconds = min(runs, key=lambda run: max(run[0]))
            speed = options.events / max(cpu)
            first = first or speed
            each = ", ".join(f"{share / options.events:.0%}" for share in shares)
            spent = ", ".join(f"{used:.2f}" for used in cpu)
            total = sum(cpu) / options.events * 1e6
            row = (number, f"{options.events:,}", each, spent, f"{total:.2f}", f"{speed:,.0f}")
            print(
                "|", " | ".join(map(str, row)), f"| {speed / first:.2f} |", f"({seconds:.0f} s)", flush=True
            )


if __name__ == "__main__":
    main()
