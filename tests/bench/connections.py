"""Produce requests of one message, by connections and requests in flight: Millrace, then Apache Kafka.

    python -m tests.bench.connections

A broker's rate depends on both numbers more than on anything else, so docs/benchmarks.md shows several. One
client process serves all connections and sends requests that were encoded beforehand; its own share of the
CPU is in the table. Writes its part of the page and keeps nothing.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.bench import machine, replay
from tests.bench.broker import meter
from tests.bench.broker.apache_kafka import ApacheKafka
from tests.bench.broker.millrace import Millrace
from tests.bench.broker.report import table
from tests.bench.halves import PAGE, write_half

PATTERNS = [(32, 1), (8, 5), (1, 5), (1, 1000)]
"""(connections, requests in flight on each)."""
REQUESTS = 120_000
ROUNDS = 3
PLACE = "bench-connections"
WARM_UP_REQUESTS = 80_000
BUSY = 0.1
"""From this share of the cores on, the page says that they were shared."""
ABOUT = """\
# Connections and requests in flight

Produce requests of one message of 200 bytes, `acks=1`, to one partition. What a rate means depends on how
many connections there are and how many requests each has in flight. One client process serves all
connections with requests that were encoded beforehand. The table has the lowest and the highest of three
rounds; *CPU* is user and system time of one request. Rates depend on what else the machine does, CPU
hardly. Kafka's clients have 5 in flight unless told otherwise; 1,000 on one connection is no real client's
pattern.
"""


def main() -> None:
    """Measure both brokers, one after the other, and write the table."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything started is ended
    busy, began = machine.busy_share(), time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    rows: list[list[str]] = []
    version = []
    for system in (Millrace(), ApacheKafka(flushed=False)):
        with tempfile.TemporaryDirectory(prefix="bench-connections-", ignore_cleanup_errors=True) as folder:
            try:
                system.install()
                system.start(Path(folder))
                version.append(f"{system.title} {system.version}")
                rows += _rows(system)
            finally:
                system.stop()
    head = ["connections x in flight", "system", "thousand msgs/s", "broker CPU µs", "client CPU µs"]
    conditions = (
        f"- Run: `python -m tests.bench.connections`, {began}; other processes used {busy:.0%} of all cores"
        f" before it\n- Machine: {machine.in_words(machine.machine())}\n- Systems: {', '.join(version)}"
    )
    if busy > BUSY:
        conditions += "\n- Other work ran on the same cores all the time: compare the CPU, not the rates"
    ordered = sorted(rows, key=lambda row: [f"{a} x {b}" for a, b in PATTERNS].index(row[0]))
    write_half(PAGE, "connections", f"{ABOUT}\n{conditions}\n\n{table(head, ordered)}")
    print(table(head, ordered))


def _rows(system: Millrace | ApacheKafka) -> Iterator[list[str]]:
    address = system.address
    system.create(PLACE)
    replay.produce(address, PLACE, per_request=1, requests=WARM_UP_REQUESTS)
    system.delete(PLACE)
    for connections, in_flight in PATTERNS:
        rates, broker, client = [], [], []
        for number in range(ROUNDS):
            place = f"{PLACE}-{connections}-{in_flight}-{number}"
            system.create(place)
            before = meter.cpu_seconds(system.pids())
            run = replay.produce(
                address,
                place,
                per_request=1,
                requests=REQUESTS // connections,
                in_flight=in_flight,
                connections=connections,
            )
            broker.append((meter.cpu_seconds(system.pids()) - before) / run.requests * 1e6)
            client.append(run.client_cpu_s / run.requests * 1e6)
            rates.append(run.messages_per_s / 1000)
            system.delete(place)
        yield [
            f"{connections} x {in_flight}",
            system.title,
            *(f"{min(values):.0f} to {max(values):.0f}" for values in (rates, broker, client)),
        ]


if __name__ == "__main__":
    main()
