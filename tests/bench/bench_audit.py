"""Costs of the audit: the producer beside an unaudited one, and the reader for each message.

    python -m tests.bench.bench_audit [--events 500000] [--rounds 5] [--page]

Each figure is CPU time, which other processes disturb less than the time of day. The two producers take
turns, with the same encoder and settings, librdkafka's threads in both; what is added is compared round by
round. The reader is the real process on a real broker; its start is not counted.
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from confluent_kafka import Producer

from millrace.client.cluster_client import ClusterClient
from millrace_audit.producer import AuditedProducer
from millrace_audit.reports.event import EventSchema
from millrace_audit.reports.messages import schema_file
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
            for topic, partitions in (("audit", 1), ("audited", 2), ("plain", 2)):
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
def audited_producer(at: Site) -> Iterator[Send]:
    with AuditedProducer(
        at.bootstrap, at.registry, cluster="bench", server="web-1", service="shop", lateness_ms=1000
    ) as producer:
        yield lambda number: producer.send("audited", PAGE_VIEW, EVENT, time_ms=START_MS + number)


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
    pairs = []
    for _ in range(rounds):
        pairs.append((cost(plain_producer, at, events), cost(audited_producer, at, events)))
        print(f"plain {pairs[-1][0]:.2f} us, audited {pairs[-1][1]:.2f} us", flush=True)
    size = len(EventSchema(PAGE_VIEW, 1).encode(_header(), EVENT))
    added = [audited / plain - 1 for plain, audited in pairs]
    plain, audited = (min(some) for some in zip(*pairs, strict=True))
    return [
        f"| producer, an event of {size} bytes, without reports | {plain:.2f} us |",
        f"| `AuditedProducer`, the same event | {audited:.2f} us |",
        f"| added, median of {rounds} rounds of {events:,} events | {statistics.median(added):+.1%} |",
    ]


def _header() -> dict[str, Any]:
    return {"time": START_MS, "server": "web-1", "service": "shop", "instance": (1 << 62) + 5, "sequence": 0}


def reader_figures(at: Site, rounds: int) -> list[str]:
    """The reader's part, of what the audited producers have sent."""
    costs: list[float] = []
    for _ in range(rounds):
        metrics = f"127.0.0.1:{free_port()}"
        reader = Process(
            [
                *("audit-reader", "--cluster", "bench", "--bootstrap", at.bootstrap, "--topics", "audited"),
                *("--registry", at.registry, "--zookeeper", at.zookeeper, "--metrics-listen", metrics),
                *("--tier", f"round-{len(costs)}"),
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
        print(f"reader {costs[-1]:.3f} us for each of {seen[0]:,} messages", flush=True)
    return [f"| auditing reader, a message; best of {rounds} | {min(costs):.2f} us |"]


def main() -> None:
    """Measure and print a table, or write it into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--page", action="store_true", help="write docs/benchmarks.md")
    options = parser.parse_args()
    busy = busy_share()
    with tempfile.TemporaryDirectory() as folder, site(Path(folder)) as at:
        rows = producer_figures(at, options.events, options.rounds) + reader_figures(at, options.rounds)
    text = "\n".join(
        [
            "## The audit",
            "",
            f"- Run: `make bench-audit`, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC; other processes used"
            f" {busy:.0%} of all cores before it",
            f"- Machine: {in_words(machine())}",
            "",
            "The figures are CPU time; those of both producers include librdkafka's threads.",
            "",
            "| what | CPU |",
            "|---|---|",
            *rows,
        ]
    )
    print(text)
    if options.page:
        write_half(PAGE, "audit", text)


if __name__ == "__main__":
    main()
