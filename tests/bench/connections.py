"""Produce requests by connections and requests in flight: Millrace and Apache Kafka side by side.

    python -m tests.bench.connections [--only 32x1,256x1] [--share 0.1]

A broker's rate depends on both numbers more than on anything else. One client process serves all connections
and sends requests that were encoded beforehand; its own share of the CPU is in the table. Both brokers run
all the time, and each round measures every row on one and then on the other. Writes its part of the page if
all was measured; keeps nothing. `--share` is a trial run with fewer requests, `--only` one of some patterns.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from millrace.client.cluster_client import ClusterClient
from tests.bench import machine, replay
from tests.bench.broker import meter
from tests.bench.broker.apache_kafka import ApacheKafka
from tests.bench.broker.levels import Level
from tests.bench.broker.millrace import Millrace
from tests.bench.broker.report import levels_table, table
from tests.bench.halves import PAGE, write_half

PATTERNS = [(1, 1000), (1, 5), (8, 5), (32, 1), (32, 5), (256, 1), (1000, 1)]
"""(connections, requests in flight on each)."""
MAIN_PATTERNS = [(8, 5), (32, 1), (256, 1)]
"""Patterns that have levels with acks=all, and with which idempotent producers are measured."""
ROUNDS = 3
WARM_UP_REQUESTS = 80_000
REQUESTS = {1: 60_000, 50: 20_000}
"""Requests of each cell, by messages in each request."""
WAITING_REQUESTS = 200
"""Requests of each connection at most with acks=all, where every request waits for the disk."""
READY_TIMEOUT_S = 10
IDLE_CONNECTIONS = 1000
IDLE_PARTITIONS = 300
SETTLE_S = 20
"""Pause in which a broker finishes the work that the last requests leave behind."""
IDLE_S = 30
BUSY = 0.1
"""From this share of the cores on, the page says that they were shared."""
HEAD = (
    "connections x in flight",
    "Millrace, requests/s",
    "Apache Kafka, requests/s",
    "times as many",
    "Millrace, CPU µs",
    "Apache Kafka, CPU µs",
    "client's CPU µs",
)
ABOUT = """\
# Connections and requests in flight

Produce requests with messages of 200 bytes. A rate depends on the number of connections and on how many
requests each connection has in flight. One client process serves all connections with requests that were
encoded beforehand; with 32 partitions each request goes to the next partition. *Idempotent* connections are
producers with ids and sequences, which Java's producer is by default. Each cell has the median of three
interleaved rounds and, in brackets, the lowest and the highest; *times as many* is Millrace's rate divided
by Apache Kafka's in the same round. *CPU* is user and system time of one request: the broker's, and the
median of the client's with Millrace / with Apache Kafka. With `acks=all` Millrace answers after a flush;
Apache Kafka with its one replica does not flush. Before each run a `sync` writes what earlier ones have left.
Java's producer has at most 5 requests in flight by default.
"""
# After a whole run, take out the sentences that begin with "After this run": its figures contain the change.
ABOUT_LEVELS = """\
## Levels

A ratio is the median of the rounds' ratios. Why levels are missed:

- *acks=all*: Millrace waits for the disk, Apache Kafka does not. Of 32 connections with one request each, the
  first few begin a flush and the others wait for the next one. So 32 answers take two flushes (0.2 ms each on
  a free disk), four hand-overs between the loop and the thread that flushes, and about three times the CPU of
  acks=1. With 32 x 5 on one partition more requests share a flush, and Millrace is ahead.
  A commit journal does not help: one file that takes the batches of all partitions, with one flush in place
  of `syncfs`. Without the code for its recovery, it took 0.99 to 1.09 times as many requests a second over 32
  partitions, and 0.82 to 1.01 times with 50 messages to a request, which are written twice (8 x 5, 32 x 1 and
  256 x 1, three interleaved rounds, 2026-11-30). The broker already uses 0.9 of a core at 32 x 1: where a
  flush ends sooner, fewer requests share it.
  After this run the broker was changed: a flush now waits, for a millisecond or one turn of the loop at most,
  while the loop still reads requests of producers that shared the last flush. Compared with the broker of
  this run, over one partition, in five interleaved rounds on a machine whose system calls take five times as
  long (2026-11-30): 1.37 times as many requests a second with 0.68 times the CPU at 8 x 5, 1.14 times with
  0.68 times the CPU at 32 x 1, no difference at 256 x 1; with 50 messages to a request 0.94 to 1.16 times as
  many. Over 32 partitions such a wait does not pay (0.76 to 0.93 times as many), because the disk has nothing
  to do meanwhile.
- *32 partitions*: with one request in flight, no two requests share an append. Each costs a receive, a write
  and a send (2.4 µs together in a bare loop), and some forty functions of the interpreter: a third reads and
  checks, a third appends, a sixth answers. With `acks=all` one `syncfs` flushes all partitions, but the
  broker still keeps the books of each. We tried to serve several clients together that go from partition to
  partition: to sort their bytes costs 7 µs a request, to read each client by itself 6 µs.
- *Idempotent*: the interpreter compares each batch with the state of its producer, and keeps the new state.
  After this run the broker was changed: batches that come next in their sequences are now checked together.
  Compared as above, 8 x 5, 32 x 1 and 256 x 1: with acks=1 1.34, 1.25 and 1.05 times as many requests a
  second with 0.76, 0.79 and 0.88 times the CPU; with acks=all, the default of Java's producer, 1.26, 1.59 and
  1.30 times as many with 0.56, 0.62 and 0.78 times the CPU.
- *50 to a request*: the kernel copies 10 kB twice, and the checksum reads them. The broker's one loop is busy
  with that, while Apache Kafka's threads have both cores.

Without the compiled `_runs.c`, Python checks each record of a batch. On an Intel Xeon, 1 x 1000 with acks=1
fell from 942,750 to 232,348 requests a second without it (`--only 1x1000`, 2026-11-27).
"""
TIMES, CPU, CPU_TIMES = "requests/s", "broker's CPU of a request", "broker's CPU"
ABOUT_IDLE = f"""\
## Idle

Resident memory just after the start, and with {IDLE_PARTITIONS} partitions and {IDLE_CONNECTIONS:,}
connections that have produced a few messages. The CPU is of {IDLE_S} seconds without a request, beginning
{SETTLE_S} seconds after the last one. Millrace's levels: at most 70 MB and 1 % of a core.
"""
IDLE_HEAD = ("system", "MB at the start", "MB then", "CPU of a core")
System = Millrace | ApacheKafka


class Cell(NamedTuple):
    """One row of a table."""

    acks: int
    per_request: int
    partitions: int
    idempotent: bool
    connections: int
    in_flight: int


class Figures(NamedTuple):
    """One run: requests a second, and µs of the CPU for each request on both sides."""

    rate: float
    broker_us: float
    client_us: float


Rounds = list[tuple[Figures, Figures]]
"""Figures of Millrace and of Apache Kafka in each round of one cell."""
LEVELS: list[tuple[str, float, list[Cell]]] = [
    (TIMES, 1.8, [Cell(1, 1, 1, False, *pair) for pair in [(32, 1), (256, 1)]]),
    (TIMES, 5.0, [Cell(1, 1, 1, False, *pair) for pair in [(8, 5), (32, 5)]]),
    (TIMES, 2.5, [Cell(1, 50, 1, False, 8, 5)]),
    (CPU, 9.0, [Cell(1, 1, 1, False, *pair) for pair in [(32, 1), (256, 1)]]),
    (CPU, 11.0, [Cell(1, 1, 1, True, *pair) for pair in [(32, 1), (256, 1)]]),
    (CPU, 13.0, [Cell(1, 1, 32, False, 32, 1)]),
    (TIMES, 1.2, [Cell(-1, n, p, False, *pair) for n in (1, 50) for p in (1, 32) for pair in MAIN_PATTERNS]),
    (CPU, 22.0, [Cell(-1, 1, 1, False, *pair) for pair in [(32, 1), (256, 1)]]),
    (CPU, 35.0, [Cell(-1, 1, 32, False, *pair) for pair in MAIN_PATTERNS]),
    (CPU_TIMES, 1.0, [Cell(-1, 50, p, False, *pair) for p in (1, 32) for pair in MAIN_PATTERNS]),
]
"""(measure; required value, the least for TIMES and the greatest for the others; cells)."""


def main() -> None:
    """Measure both brokers and print the table; write it if it is whole."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=lambda text: text.split(","), metavar="32x1,...")
    parser.add_argument("--share", type=float, default=1.0)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything started is ended
    busy, began = machine.busy_share(), time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    cells = [
        *(
            Cell(acks, per_request, partitions, False, *pair)
            for acks, per_request, partitions, pair in itertools.product((1, -1), (1, 50), (1, 32), PATTERNS)
        ),
        *(Cell(acks, 1, 1, True, *pair) for acks, pair in itertools.product((1, -1), MAIN_PATTERNS)),
    ]
    if options.only:
        cells = [cell for cell in cells if _pattern(cell, "x") in options.only]
    systems = (Millrace(), ApacheKafka(flushed=False))
    with ExitStack() as started:
        idle = []
        for system in systems:
            folder = started.enter_context(
                tempfile.TemporaryDirectory(prefix="bench-connections-", ignore_cleanup_errors=True)
            )
            system.install()
            started.callback(system.stop)
            system.start(Path(folder))
            idle.append(_idle(system))
            _run(system, Cell(1, 1, 1, False, 1, 1000), int(WARM_UP_REQUESTS * options.share))
        taken = _measured(systems, cells, options.share)
        parts = [] if options.only else [f"{ABOUT_LEVELS}\n{levels_table(levels(taken))}"]
        text = "\n\n".join([*parts, *_tables(taken), f"{ABOUT_IDLE}\n{table(IDLE_HEAD, idle)}"])
        versions = ", ".join(f"{system.title} {system.version}" for system in systems)
    conditions = (
        f"- Run: `python -m tests.bench.connections`, {began}; other processes used {busy:.0%} of all cores"
        f" before it\n- Machine: {machine.in_words(machine.machine())}\n- Systems: {versions}"
    )
    if busy > BUSY:
        conditions += "\n- Other work ran on the same cores all the time: compare the CPU, not the rates"
    if not options.only and options.share == 1:
        write_half(PAGE, "connections", f"{ABOUT}\n{conditions}\n\n{text}")
    print(text)


def _measured(systems: tuple[System, System], cells: Sequence[Cell], share: float) -> dict[Cell, Rounds]:
    """Every cell on both systems, round by round."""
    taken: dict[Cell, Rounds] = {cell: [] for cell in cells}
    for _, cell in itertools.product(range(ROUNDS), cells):
        requests = int(REQUESTS[cell.per_request] * share)
        if cell.acks == -1:
            requests = min(requests, WAITING_REQUESTS * cell.connections * cell.in_flight)
        ours, theirs = systems
        taken[cell].append((_run(ours, cell, requests), _run(theirs, cell, requests)))
    return taken


def _tables(taken: dict[Cell, Rounds]) -> list[str]:
    tables = []
    for kind, cells in itertools.groupby(taken, lambda cell: cell[:4]):
        tables.append(f"## {_title(*kind)}\n\n{table(HEAD, [_row(cell, taken[cell]) for cell in cells])}")
    return tables


def _title(acks: int, per_request: int, partitions: int, idempotent: bool) -> str:
    named, several = "all" if acks == -1 else acks, "s" if partitions > 1 else ""
    title = f"acks={named}, {per_request} to a request, {partitions} partition{several}"
    return f"{title}, idempotent" if idempotent else title


def _pattern(cell: Cell, between: str = " x ") -> str:
    return f"{cell.connections}{between}{cell.in_flight}"


def levels(taken: Mapping[Cell, Rounds]) -> Iterator[Level]:
    """Every level, with the median of its cell's rounds."""
    for what, wanted, cells in LEVELS:
        for cell in cells:
            yield Level(
                key="",
                what=f"{_title(*cell[:4])}, {_pattern(cell)}: {what}",
                unit="µs" if what == CPU else "times Apache Kafka's",
                wanted=wanted,
                measured=statistics.median(_of_level(what, *pair) for pair in taken[cell]),
                at_least=what == TIMES,
            )


def _of_level(what: str, ours: Figures, theirs: Figures) -> float:
    if what == TIMES:
        return ours.rate / theirs.rate
    return ours.broker_us if what == CPU else ours.broker_us / theirs.broker_us


def _run(system: System, cell: Cell, requests: int) -> Figures:
    place = f"bench-{time.time_ns()}"
    _create(system.address, place, cell.partitions)
    os.sync()  # else the flushes of this run write what an earlier one has left unwritten
    before = sum(map(replay.cpu_seconds, system.pids()))
    try:
        run = replay.produce(
            system.address,
            place,
            per_request=cell.per_request,
            requests=max(1, requests // cell.connections),
            acks=cell.acks,
            in_flight=cell.in_flight,
            connections=cell.connections,
            partitions=cell.partitions,
            idempotent=cell.idempotent,
        )
        broker_us = (sum(map(replay.cpu_seconds, system.pids())) - before) / run.requests * 1e6
    finally:
        system.delete(place)
    return Figures(run.requests_per_s, broker_us, run.client_cpu_s / run.requests * 1e6)


def _create(address: str, place: str, partitions: int) -> None:
    """Create a topic and wait until every partition takes messages: Apache Kafka names a leader before."""
    with ClusterClient(address) as client:
        client.create_topic(place, partitions)
    deadline = time.monotonic() + READY_TIMEOUT_S
    while True:
        try:
            replay.produce(address, place, per_request=1, requests=partitions, partitions=partitions)
            return
        except ConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _idle(system: System) -> list[str]:
    """One row of what nobody's work costs; the broker was started just now."""
    meter.wait_for_quiet(system.pids())
    at_start = meter.rss_bytes(system.pids())
    _create(system.address, "bench-idle", IDLE_PARTITIONS)
    with ExitStack() as connected:
        for partition in range(IDLE_CONNECTIONS):
            connection = connected.enter_context(replay.connect(system.address))
            batch = {partition % IDLE_PARTITIONS: replay.batch_of(1)}
            connection.sendall(replay.produce_request("bench-idle", batch, 1))
            if not connection.recv(1 << 16):
                raise ConnectionError(f"{system.title} closed connection {partition}")
        time.sleep(SETTLE_S)
        memory, before = meter.rss_bytes(system.pids()), meter.cpu_seconds(system.pids())
        time.sleep(IDLE_S)
        share = (meter.cpu_seconds(system.pids()) - before) / IDLE_S
    system.delete("bench-idle")
    return [system.title, f"{at_start / 1e6:.1f}", f"{memory / 1e6:.1f}", f"{share:.1%}"]


def _row(cell: Cell, rounds: Rounds) -> list[str]:
    ours, theirs = zip(*rounds, strict=True)
    client = [f"{statistics.median(run.client_us for run in runs):.1f}" for runs in (ours, theirs)]
    return [
        _pattern(cell),
        _spread([run.rate for run in ours]),
        _spread([run.rate for run in theirs]),
        _spread([_of_level(TIMES, *pair) for pair in rounds], digits=2),
        _spread([run.broker_us for run in ours]),
        _spread([run.broker_us for run in theirs]),
        " / ".join(client),
    ]


def _spread(values: Sequence[float], digits: int | None = None) -> str:
    low, middle, high = min(values), statistics.median(values), max(values)
    digits = digits or (0 if middle >= 100 else 1)
    return f"{middle:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


if __name__ == "__main__":
    main()
