"""The time from produce to consume at fixed rates, and the CPU it costs the broker, side by side.

    python -m tests.bench.latency [--only "Millrace,Millrace batch"] [--rates 100,1000] [--rounds 3]

All systems run all the time; each round measures every rate on each of them in turn, so that what else the
machine does meets all alike. *Millrace batch* is Millrace with `log.flush=batch`: nothing hurries a flush.
Writes its part of the page if all systems and rates were measured; keeps nothing.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.bench import machine
from tests.bench.broker import run
from tests.bench.broker.apache_kafka import ApacheKafka
from tests.bench.broker.levels import Level
from tests.bench.broker.millrace import Millrace
from tests.bench.broker.rabbitmq import RabbitMq
from tests.bench.broker.report import levels_table, table
from tests.bench.broker.system import System
from tests.bench.connections import BUSY
from tests.bench.halves import PAGE, write_half

RATES = (100, 1_000, 10_000)
SECONDS = 10
ROUNDS = 3
SYSTEMS: Mapping[str, System] = {
    "Millrace": Millrace(),
    "Millrace batch": Millrace("log.flush=batch"),
    "Apache Kafka": ApacheKafka(flushed=False),
    "RabbitMQ streams": RabbitMq(streams=True),
}
HEAD = ("msgs/s", "system", "p50 ms", "p99 ms", "p99.9 ms", "stalls", "broker CPU µs a message")
ABOUT = """\
# Visible latency by rate

The time from the moment when a message of 200 bytes is due to the moment when a consumer has it, with
`acks=1` and without lingering. The Java client loads Millrace and Apache Kafka, the stream client RabbitMQ's
streams: one partition, one producer and one consumer, for 10 seconds after 3 seconds that are not counted.
*Stalls* is how often messages came later than 20 ms; consecutive late messages count once. *CPU* is the CPU
of the broker's process, its work when idle included. Each cell has the median of three interleaved rounds
and, in brackets, the lowest and the highest. Millrace shows only messages that were flushed; the other
systems never flush here. *Millrace batch* is `log.flush = "batch"`. All systems get the same rates: a service
sends the same number of messages to any broker.

A flush and the fetch after it cost about 0.25 ms of CPU, two fifths of it in the kernel, where the threads
wake each other. For waiting consumers Millrace begins at most 1,000 flushes a second in the long run: at
1,000 messages a second nearly every message has a flush of its own, at 10,000 ten messages share one.

The missed levels are the price of the flush. The consumer's answer waits for it, about 0.2 ms on a free disk,
and for two hand-overs between the loop and the thread that flushes; Apache Kafka shows what is only in
memory. *Millrace batch* saves the CPU because it flushes ten times a second.
"""
MOST_P99_MS = 8.0
MOST_CPU = 2.5
"""Times the CPU of a broker that nothing hurries to flush."""
Row = tuple[float, float, float, int, float]
"""p50, p99 and p99.9 in ms, stalls, µs of the broker's CPU a message."""
Taken = dict[tuple[int, str], list[Row]]
"""The rounds of each rate and system."""


def main() -> None:
    """Measure and print; with everything measured, write the page's part too."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything started is ended
    busy, began = machine.busy_share(), time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    systems = {name: SYSTEMS[name] for name in options.only}
    with ExitStack() as started:
        for number, system in enumerate(systems.values()):
            prefix = f"bench-latency-{number}-"
            folder = started.enter_context(
                tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)
            )
            system.install()
            started.callback(system.stop)
            system.start(Path(folder))
        taken = _measure(systems, options.rates, options.rounds)
        versions = ", ".join(f"{name} {system.version}" for name, system in systems.items())
    text = table(
        HEAD,
        [[f"{rate:,}", name, *map(_spread, zip(*rows, strict=True))] for (rate, name), rows in taken.items()],
    )
    if systems == SYSTEMS and options.rates == list(RATES) and options.rounds == ROUNDS:
        conditions = (
            f"- Run: `python -m tests.bench.latency`, {began}; other processes used {busy:.0%} of all cores"
            f" before it\n- Machine: {machine.in_words(machine.machine())}\n- Systems: {versions}"
        )
        if busy > BUSY:
            conditions += "\n- Other work ran on the same cores all the time: compare the rows of one rate"
        text = f"{levels_table(_levels(taken))}\n\n{text}"
        write_half(PAGE, "latency", f"{ABOUT}\n{conditions}\n\n{text}")
    print(text)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(SYSTEMS))
    parser.add_argument(
        "--rates", type=lambda text: [int(rate) for rate in text.split(",")], default=list(RATES)
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    return parser.parse_args()


def _measure(systems: Mapping[str, System], rates: Sequence[int], rounds: int) -> Taken:
    taken: Taken = {(rate, name): [] for rate in rates for name in systems}
    for number in range(rounds):
        for rate, name in taken:
            taken[rate, name].append(_one(systems[name], f"latency-{rate}-{number}", rate))
    return taken


def _levels(taken: Taken) -> Iterator[Level]:
    """Levels of each rate, with the medians of the rounds."""
    for rate in RATES:
        ours, batch, peer = (
            [statistics.median(values) for values in zip(*taken[rate, name], strict=True)]
            for name in ("Millrace", "Millrace batch", "Apache Kafka")
        )
        for what, unit, wanted, measured in (
            ("p50, at most Apache Kafka's", "ms", peer[0], ours[0]),
            ("p99", "ms", MOST_P99_MS, ours[1]),
            ("CPU, compared with *Millrace batch*", "times", MOST_CPU, ours[4] / batch[4]),
        ):
            yield Level(
                key=f"{rate}-{what}",
                what=f"{rate:,} a second: {what}",
                unit=unit,
                wanted=wanted,
                measured=measured,
                at_least=False,
            )


def _one(system: System, place: str, rate: int) -> Row:
    system.create(place)
    try:
        command = system.clients[-1 if len(system.clients) == 1 else 1].latency(place, rate, SECONDS)
        assert command is not None, "each system has a client that takes latencies"
        (figures,), usage = run.run([command], system.pids())
    finally:
        system.delete(place)
    cpu = usage.broker_cpu_s / figures.messages * 1e6
    return figures.p50_ms or 0, figures.p99_ms or 0, figures.p999_ms or 0, figures.stalls or 0, cpu


def _spread(values: Sequence[float]) -> str:
    low, middle, high = (_digits(value) for value in (min(values), statistics.median(values), max(values)))
    return middle if low == high else f"{middle} ({low} to {high})"


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


if __name__ == "__main__":
    main()
