"""CPU time of the Java interceptor: `onSend` and `onAcknowledgement` of one event.

    python -m tests.bench.bench_interceptor [--events 2000000] [--rounds 9] [--page]

Prints a table, and with --page puts it into docs/benchmarks.md. What is measured stands in `TEXT`. Maven is
needed.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from millrace.zookeeper.embedded import find_java
from tests.bench.halves import PAGE, write_half
from tests.bench.machine import busy_share, in_words, machine
from tests.compat.java_interceptor import compile_programs

TEXT = """# The Java interceptor

CPU nanoseconds that the interceptor adds to one event of a producer: `onSend` and `onAcknowledgement`,
called by one thread without a producer, with 1,000 events outstanding. The same loop without the interceptor
is subtracted. Reports, waiting for a lock that another thread holds, and the 45 bytes of the header on the
wire are not in the figures. *Thread* is the calling thread; *process* includes Java's garbage collector and
compiler, and is exact to {tick} ns. Each cell has the median of {rounds} rounds of {events:,} events and, in
brackets, the lowest and the highest; {warm_up} rounds before them are not counted. The level is 300 ns.

- Run: `python -m tests.bench.bench_interceptor --page`, {day}; other processes used {busy:.0%} of all cores
- Machine: {machine}

| kafka-clients | outcomes | value | thread, ns | process, ns |
| --- | --- | --- | ---: | ---: |
{rows}
"""
SOURCES = Path(__file__).with_name("java")
TICK_NS = 10_000_000
"""Step of a process's CPU time in Java."""
WARM_UP = 5
"""As in Cost.java."""
CASES = (
    ("4.1", "exact", 0, "a string"),
    ("4.1", "exact", 300, "300 bytes, hashed"),
    ("3.9", "older", 0, "a string"),
    ("3.9", "older", 300, "300 bytes, hashed"),
)
OUTCOMES = {"exact": "by event", "older": "by stretches"}


def measure(clients: str, kind: str, size: int, events: int, rounds: int) -> tuple[list[int], list[int]]:
    """Return the added nanoseconds of each round: of the thread, and of the process."""
    with tempfile.TemporaryDirectory(prefix="bench-interceptor-") as folder:
        path = compile_programs(Path(folder), clients, SOURCES)
        words = [find_java(), "-Xmx512m", "-cp", path, "io.millrace.audit.Cost"]
        words += [str(events), str(rounds), str(size), kind]
        output = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    figures = [[int(word) for word in line.split()] for line in output.splitlines()]
    assert len(figures) == rounds, output
    return [line[1] - line[0] for line in figures], [line[3] - line[2] for line in figures]


def cell(figures: list[int]) -> str:
    return f"{statistics.median(figures):.0f} ({min(figures)} to {max(figures)})"


def main() -> None:
    """Measure the string and the hashed value with a new and an older client."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    busy, rows = busy_share(), []
    for clients, kind, size, value in CASES:
        thread, process = measure(clients, kind, size, options.events, options.rounds)
        rows.append(f"| {clients} | {OUTCOMES[kind]} | {value} | {cell(thread)} | {cell(process)} |")
        print(rows[-1], flush=True)
    text = TEXT.format(
        tick=TICK_NS // options.events,
        rounds=options.rounds,
        events=options.events,
        warm_up=WARM_UP,
        day=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        busy=busy,
        machine=in_words(machine()),
        rows="\n".join(rows),
    )
    if options.page:
        write_half(PAGE, "interceptor", text)


if __name__ == "__main__":
    main()
