"""Costs of the audit with fast and with strong fingerprints: producer against an unaudited producer,
reader for each message, and row of a window.

    python -m tests.bench.bench_audit [--events 500000] [--rounds 5] [--page]

Each figure is CPU time, which other processes disturb less than the time of day. The two producers take
turns, with the same encoder and settings, librdkafka's threads in both; what is added is compared round by
round. The reader is the real process on a real broker; its start is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from confluent_kafka import Producer

from millrace.client.cluster_client import ClusterClient
from millrace.topics_file import FINGERPRINTS, VARIABLE, policies_of_environment
from millrace_audit.auditor.verdict.evidence import Evidence
from millrace_audit.producer import AuditedProducer
from millrace_audit.reports.counts import SequenceTally
from millrace_audit.reports.event import EventSchema
from millrace_audit.reports.fingerprints import fingerprint_of, wrapped
from millrace_audit.reports.messages import OFFLINE, schema_file
from millrace_audit.reports.ranges import SequenceRanges
from tests.bench.halves import PAGE, write_half
from tests.bench.machine import busy_share, in_words, machine
from tests.bench.replay import cpu_seconds
from tests.brokers import free_port
from tests.support import Process, wait_until

PAGE_VIEW = schema_file("PageView")
START_MS = 1_760_000_000_000
EVENT: dict[str, Any] = {
    "memberId": None,
    "clientAddress": "83.149.9.216",
    "method": "GET",
    "url": "/presentations/logstash-monitorama-2013/images/kibana-search.png",
    "protocol": "HTTP/1.1",
    "referrer": "http://semicomplete.com/presentations/logstash-monitorama-2013/",
    "userAgent": "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_9_1) AppleWebKit/537.36 Chrome/32.0.1700.77",
    "status": 200,
    "bytes": 203023,
}
Send = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Site:
    """A broker with its ZooKeeper and a registry."""

    bootstrap: str
    registry: str
    zookeeper: str
    broker: int
    """The broker's process id."""


@contextmanager
def site(folder: Path) -> Iterator[Site]:
    zookeeper = Process(["zookeeper", "--port", "0", "--data-dir", f"{folder}/zookeeper"])
    database = f"sqlite:///{folder}/registry.db"
    registry = Process(["registry", "--listen", "127.0.0.1:0", "--database-url", database])
    processes = [zookeeper, registry]
    try:
        config = folder / "broker.toml"
        config.write_text(
            f'broker_id = 1\ncluster = "bench"\nlisten = "127.0.0.1:0"\n'
            f'zookeeper = "{zookeeper.ready()}"\nlog_dir = "{folder}/logs"\n'
        )
        broker = Process(["broker", str(config)])
        processes.append(broker)
        found = Site(broker.ready(), f"http://{registry.ready()}", zookeeper.ready(), broker.pid)
        with ClusterClient(found.bootstrap) as client:
            for topic, partitions in (("audit", 1), ("fast", 2), ("strong", 2), ("plain", 2), ("json", 2)):
                client.create_topic(topic, partitions)
        yield found
    finally:
        for process in reversed(processes):
            process.kill()


@contextmanager
def plain_producer(at: Site) -> Iterator[Send]:
    """The same events through the same encoder; nobody is told of them."""
    producer = Producer(
        {
            "bootstrap.servers": at.bootstrap,
            "linger.ms": 5,
            "acks": "all",
            "enable.idempotence": True,
            "delivery.report.only.error": True,
            "delivery.timeout.ms": 60_000,
            "log_level": 2,
        }
    )
    encoder = EventSchema(PAGE_VIEW, 1)
    header: dict[str, Any] = {"server": "web-1", "service": "shop", "instance": (1 << 62) + 5}

    def send(number: int) -> None:
        header["time"], header["sequence"] = START_MS + number, number
        while True:
            try:
                time_ms = START_MS + number
                producer.produce("plain", encoder.encode(header, EVENT), None, -1, None, None, time_ms)
                return
            except BufferError:
                producer.poll(0.1)

    yield send
    producer.flush()


@contextmanager
def audited_producer(at: Site, topic: str) -> Iterator[Send]:
    with AuditedProducer(
        at.bootstrap, at.registry, cluster="bench", server="web-1", service="shop", lateness_ms=1000
    ) as producer:
        yield lambda number: producer.send(topic, PAGE_VIEW, EVENT, time_ms=START_MS + number)


@contextmanager
def value_producer(at: Site) -> Iterator[Send]:
    """The same event as JSON, with a record header."""
    value = json.dumps(EVENT).encode()
    with AuditedProducer(
        at.bootstrap, at.registry, cluster="bench", server="web-1", service="shop", lateness_ms=1000
    ) as producer:
        yield lambda number: producer.send_value("json", value, time_ms=START_MS + number)


def value_figures(at: Site, events: int, rounds: int) -> list[str]:
    """Measure producer and reader of events with record headers."""
    least = min(cost(value_producer, at, events) for _ in range(rounds))
    size = len(json.dumps(EVENT))
    line = f"| `AuditedProducer.send_value`, JSON of {size} bytes, record header | {least:.2f} µs |"
    return [line, *reader_figures(at, "json", "record headers", rounds)]


def cost(producer: Callable[[Site], Any], at: Site, events: int) -> float:
    """Microseconds of this process for each event, up to the last acknowledgement and report."""
    with producer(at) as send:
        send(0)  # the registry, the hello, the connections
        began = time.process_time()
        for number in range(1, events):
            send(number)
    return (time.process_time() - began) / events * 1e6


def producer_figures(at: Site, events: int, rounds: int) -> list[str]:
    """The producer's part: lines of the page."""
    costs = []
    for _ in range(rounds):
        plain = cost(plain_producer, at, events)
        audited = [cost(partial(audited_producer, topic=topic), at, events) for topic in FINGERPRINTS]
        costs.append((plain, *audited))
        print("plain {:.2f} us, fast {:.2f} us, strong {:.2f} us".format(*costs[-1]), flush=True)
    size = len(EventSchema(PAGE_VIEW, 1).encode(_header(), EVENT))
    plain, *least = (min(some) for some in zip(*costs, strict=True))
    lines = [f"| producer, an event of {size} bytes, without reports | {plain:.2f} µs |"]
    for n, (topic, audited_us) in enumerate(zip(FINGERPRINTS, least, strict=True), start=1):
        added = statistics.median(each[n] / each[0] - 1 for each in costs)
        lines += [
            f"| `AuditedProducer`, the same event, {topic} fingerprints | {audited_us:.2f} µs |",
            f"| added, median of {rounds} rounds of {events:,} events | {added:+.1%} |",
        ]
    return lines


def _header() -> dict[str, Any]:
    return {"time": START_MS, "server": "web-1", "service": "shop", "instance": (1 << 62) + 5, "sequence": 0}


def fingerprint_figures() -> list[str]:
    """Measure the cost of the fingerprint and its sum alone."""
    value = EventSchema(PAGE_VIEW, 1).encode(_header(), EVENT)
    lines = []
    for topic in FINGERPRINTS:
        digest, total, times = fingerprint_of(topic, policies_of_environment()), 0, []
        for _ in range(20):
            began = time.process_time()
            for _ in range(5_000):
                total += digest(value)
            times.append((time.process_time() - began) / 5_000 * 1e6)
        lines.append(f"| {topic} fingerprint and its sum, a message | {min(times):.2f} µs |")
    return lines


def database_figures(instances: int = 200) -> list[str]:
    """Measure the size of a complete window's evidence: instances of a thousand events at two tiers."""
    lines = []
    for topic in FINGERPRINTS:
        digest, evidence = fingerprint_of(topic, policies_of_environment()), Evidence()
        for number in range(instances):
            total = wrapped(digest(b"%d" % number))
            evidence.report(number, SequenceRanges([(0, 999)]), total, SequenceRanges(), 0)
            for tier in ("dc1", OFFLINE):
                evidence.count(tier, number, SequenceTally([(0, 999)], total))
        sizes = [len(evidence.pack(fold=fold)) for fold in (False, True)]
        per_mb = [(1 << 20) // size for size in sizes]
        lines.append(
            f"| window of {instances} instances in the database, {topic}: while it changes, complete |"
            f" {sizes[0]:,}, {sizes[1]:,} bytes: {per_mb[0]:,}, {per_mb[1]:,} windows in 1 MiB |"
        )
    return lines


def reader_figures(at: Site, topic: str, kind: str, rounds: int) -> list[str]:
    """Measure the reader's cost for the messages that the audited producers have sent to the topic."""
    costs: list[float] = []
    for _ in range(rounds):
        metrics = f"127.0.0.1:{free_port()}"
        reader = Process(
            [
                *("audit-reader", "--cluster", "bench", "--bootstrap", at.bootstrap, "--topics", topic),
                *("--registry", at.registry, "--zookeeper", at.zookeeper, "--metrics-listen", metrics),
                *("--tier", f"{topic}-{len(costs)}"),
            ]
        )
        reader.ready()
        begun = cpu_seconds(reader.pid)
        seen = [0]

        def is_done(seen: list[int] = seen, metrics: str = metrics) -> bool:
            """Nothing was added for a moment, and something is there."""
            before = seen[0]
            time.sleep(0.5)
            text = httpx.get(f"http://{metrics}/metrics").text
            counts = re.findall(r"^millrace_audit_reader_messages_total\{.*\} ([\d.e+]+)$", text, re.M)
            seen[0] = int(sum(map(float, counts)))
            return before == seen[0] > 0

        wait_until("everything is counted", is_done, timeout_s=600)
        costs.append((cpu_seconds(reader.pid) - begun) / seen[0] * 1e6)
        reader.kill()
        print(f"reader, {topic}, {costs[-1]:.3f} us for each of {seen[0]:,} messages", flush=True)
    return [f"| auditing reader, a message, {kind}; best of {rounds} | {min(costs):.2f} µs |"]


def main() -> None:
    """Measure and print a table, or write it into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--page", action="store_true", help="write docs/benchmarks.md")
    options = parser.parse_args()
    busy = busy_share()
    with tempfile.TemporaryDirectory() as folder:
        policies = Path(folder) / "topics.toml"
        policies.write_text('[fast]\n[strong]\nfingerprint = "strong"\n')
        os.environ[VARIABLE] = str(policies)
        with site(Path(folder)) as at:
            rows = producer_figures(at, options.events, options.rounds)
            for topic in FINGERPRINTS:
                rows += reader_figures(at, topic, f"{topic} fingerprints", options.rounds)
            rows += value_figures(at, options.events, options.rounds)
        rows += fingerprint_figures() + database_figures()
    text = "\n".join(
        [
            "# The audit",
            "",
            f"- Run: `make bench-audit`, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC; other processes used"
            f" {busy:.0%} of all cores before it",
            f"- Machine: {in_words(machine())}",
            "",
            "The figures are CPU time; those of both producers include librdkafka's threads.",
            "",
            "| what | CPU, or size |",
            "|---|---|",
            *rows,
        ]
    )
    print(text)
    if options.page:
        write_half(PAGE, "audit", text)


if __name__ == "__main__":
    main()
