"""Costs of replicas: three brokers of Millrace and three of Apache Kafka, side by side on one machine.

    python -m tests.bench.replication [--share 0.05] [--factors 3] [--systems millrace] [--rounds 1]

Both clusters run all the time, and each round measures every cell on one and then on the other. Writes its
part of the page if all was measured; keeps nothing. The options are for trial runs.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.bench import machine
from tests.bench.connections import BUSY
from tests.bench.halves import PAGE, write_half
from tests.bench.replication import bare, cells, report
from tests.bench.replication.cells import Load, Run
from tests.bench.replication.clusters import SYSTEMS, System
from tests.bench.replication.report import Measured

ROUNDS = 3


def main() -> None:
    """Measure what is asked for and print it; write the page's part if that is everything."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything started is ended
    busy, began = machine.busy_share(), time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    started, systems = time.monotonic(), [SYSTEMS[name]() for name in options.systems]
    with ExitStack() as stack:
        prefix = "bench-replication-"
        data = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True))
        )
        for name, system in zip(options.systems, systems, strict=True):
            (data / name).mkdir()
            stack.callback(system.stop)
            system.start(data / name)
            for kind in (cells.LARGE, cells.FIFTY):  # compilers compile, heaps and the page cache grow
                cells.load(system, kind, max(cells.MINIMUM), options.share)
        measured = _measure(systems, data, options)
        measured.flushes_ms.extend(_flushes_ms(data, max(1, int(cells.SINGLE_REQUESTS * options.share))))
    text = report.text(measured)
    whole = options.share == 1 and options.rounds == ROUNDS and options.factors == list(cells.MINIMUM)
    if whole and options.systems == list(SYSTEMS):
        versions = ", ".join(f"{system.title} {system.version}" for system in systems)
        conditions = (
            f"- Run: `python -m tests.bench.replication`, {began}; other processes used {busy:.0%} of all"
            f" cores before it\n- Machine: {machine.in_words(machine.machine())}\n- Systems: {versions}"
        )
        if busy > BUSY:
            conditions += "\n- Other work ran on the same cores all the time: compare the CPU, not the rates"
        write_half(PAGE, "replication", f"{report.ABOUT}\n{conditions}\n\n{text}")
    print(f"{text}\n\nafter {(time.monotonic() - started) / 60:.1f} minutes")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument(
        "--factors", type=lambda text: [int(one) for one in text.split(",")], default=list(cells.MINIMUM)
    )
    parser.add_argument("--systems", type=lambda text: text.split(","), default=list(SYSTEMS))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    return parser.parse_args()


def _measure(systems: Sequence[System], data: Path, options: argparse.Namespace) -> Measured:
    measured = Measured()

    def note_load(kind: Load, factor: int, who: str, run: Run) -> None:
        measured.loads.setdefault((kind, factor, who), []).append(run)
        print(f"{factor} {who:13} {kind.title:15} {run}", file=sys.stderr, flush=True)

    for _, factor in itertools.product(range(options.rounds), options.factors):
        for system in systems:
            for kind in (cells.LARGE, cells.FIFTY):
                note_load(kind, factor, system.title, cells.load(system, kind, factor, options.share))
            late = cells.latency(system, factor, options.share)
            measured.latencies.setdefault((factor, system.title), []).append(late)
            print(f"{factor} {system.title:13} {late}", file=sys.stderr, flush=True)
        note_load(cells.LARGE, factor, bare.TITLE, bare.relay(factor, data, options.share))
    return measured


def _flushes_ms(folder: Path, count: int) -> list[float]:
    """Measure how long this disk alone takes for an append of 300 bytes and its flush."""
    taken = []
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        for _ in range(count):
            time.sleep(cells.PAUSE_S)
            began = time.perf_counter()
            os.write(file.fileno(), bytes(300))
            os.fdatasync(file.fileno())
            taken.append((time.perf_counter() - began) * 1000)
    return taken


if __name__ == "__main__":
    main()
