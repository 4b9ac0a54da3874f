"""Time from an event in dc1 to a row that readers of an Iceberg table have, and the CPU of the writer.

    python -m tests.bench.load.freshness [--rate 500] [--every 5] [--seconds 120] [--rounds 2] [--page]
    python -m tests.bench.load.freshness --rate 50000 --engine spark --readers DuckDB [--page]

An AuditedProducer sends events into dc1 of a `millrace up` topology, and an aggregate cluster mirrors them.
In each round a resident loader keeps branch `live` of a new table, then a stream of Spark appends to another
new table. pyiceberg, DuckDB and Spark read the table in processes of their own. With `--engine spark` the
loader is a resident application of Spark. `--page` writes the section of the page, one for each engine.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

from millrace_warehouse.publish.catalog import connect
from millrace_warehouse.storage import open_storage
from tests.bench import machine
from tests.bench.broker.levels import Level
from tests.bench.broker.report import UNEXPLAINED, levels_table, short_of, table
from tests.bench.broker.system import Missing
from tests.bench.connections import BUSY
from tests.bench.halves import PAGE, write_half
from tests.bench.load import ways
from tests.bench.load.accounting import COMPILER, TreeMeter
from tests.bench.load.fresh_reader import ENGINES
from tests.bench.load.latency import PARTITIONS, LatencyFailed, Place, Stream, percentiles, topology
from tests.bench.load.servers import SCHEMA, TOPIC
from tests.bench.load.spark_jobs import Task
from tests.support import REPOSITORY, Process, wait_until

OURS = "millrace"
SETTLE_S = 20.0
"""Not counted after all readers have caught up."""
WAIT_S = 420.0
"""Limit of the wait for the readers: on a busy machine a stream of Spark begins after minutes."""
LEVELS = {"local": {"p50": 5.0, "p99": 10.0}, "spark": {"p50": 15.0}}
"""Required seconds, by the engine of the resident loader."""
COSTS = ("writer", "rows", "CPU s/M rows", "of it JVM compiler", "with its end", "peak memory MB")
ABOUT = """\
# Freshness

The time from an event in dc1 to a row that a reader of the table has. One AuditedProducer sends {rate} events
a second into dc1 of a `millrace up` topology, and the aggregate cluster mirrors them. *Millrace* is
`millrace load --follow --live --every {every_s:g}s`, and the readers read branch `live`. *Spark's
stream* is Spark 4.1 with its Kafka source, from_avro and Iceberg's runtime, triggered every {every_s:g} s; it
appends to the table's main branch. Both read the aggregate cluster and fill a new table, partitioned by hour,
in a SQLite catalog. Rounds in which they take turns: {rounds}. A round has a window of {seconds:g} s for each
of them, after the writer and its readers have caught up.

Each reader is a process. Every half second it asks the catalog for the head of the branch. If the head is
new, the engine reads the columns `_topic_partition`, `_offset` and `_timestamp` of all rows that the reader
does not have. An event's time begins when it was due and ends when the row is in the reader's memory, so a
stall anywhere counts. The run fails if a reader lacks an event of a window or has one twice.

*CPU* is the CPU time of the writer with all its processes in the windows, for a million rows. For a small
topic most of it is the fixed cost of an interval: do not scale it up. *With its end* adds the time from
SIGTERM on. Millrace then makes a load, which it otherwise makes every 5 minutes: it writes the rows of its
small files again, one file for each hour. Spark's small files stay as they are. The JVM's compiler does less
in a stream that runs for hours, and Spark's heap may grow to 4 GB.

Spark stands for the Iceberg sink of Kafka Connect: Maven Central has no runtime bundle of it, and it needs
transactions, which Millrace's brokers refuse.
"""
ABOUT_LARGE = """\
# Freshness of a large topic

The same as [Freshness](#freshness), but with {rate} events a second and with `millrace load --follow --live
--every {every_s:g}s --engine spark`. Rounds: {rounds}, with a window of {seconds:g} s for each writer.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Settings of a run."""

    rate: int
    every_s: float
    seconds: float
    rounds: int
    engine: str
    """Engine of the resident loader, as `LEVELS` names it."""
    readers: Sequence[str]


@dataclass(slots=True)
class Measured:
    """Sums over the rounds of one writer."""

    title: str
    missing: str | None = None
    rows: int = 0
    cpu_s: float = 0.0
    """CPU time of the writer in the windows."""
    compiler_s: float = 0.0
    """Part of it that the JVM's compiler used."""
    end_cpu_s: float = 0.0
    """CPU time of the writer from its SIGTERM to its end."""
    peak_rss: int = 0
    latencies: dict[str, list[float]] = field(default_factory=dict)
    """Seconds of each event, by reader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """One way to keep a table fresh."""

    title: str
    branch: str
    start: Callable[[Place, Path, Plan], Process]
    ends_well: bool
    """True if the process must end with exit code 0 at SIGTERM."""


def main() -> None:
    """Measure and print; with `--page`, write the section."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything started is ended
    plan = Plan(
        rate=options.rate,
        every_s=options.every,
        seconds=options.seconds,
        rounds=options.rounds,
        engine=options.engine,
        readers=options.readers.split(","),
    )
    began = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    run = conditions(" ".join(sys.argv[1:]), began, machine.busy_share())
    with tempfile.TemporaryDirectory(prefix="bench-freshness-", ignore_cleanup_errors=True) as name:
        try:
            found = measure(Path(name), plan)
        except LatencyFailed as failure:
            sys.exit(str(failure))
    text = f"{run}\n\n{report(found, plan.engine)}"
    if options.page:
        is_on_spark = plan.engine == "spark"
        about = (ABOUT_LARGE if is_on_spark else ABOUT).format(
            rate=f"{plan.rate:,}", every_s=plan.every_s, seconds=plan.seconds, rounds=plan.rounds
        )
        write_half(PAGE, "freshness-spark" if is_on_spark else "freshness", f"{about}\n{text}")
    print(text)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=int, default=500, help="events a second")
    parser.add_argument("--every", type=float, default=5, help="seconds between two commits of a writer")
    parser.add_argument("--seconds", type=float, default=120, help="length of a window")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--engine", choices=[*LEVELS], default="local", help="of the resident loader")
    parser.add_argument("--readers", default=",".join(ENGINES), help="some of them, separated by commas")
    parser.add_argument("--page", action="store_true", help="write the section of docs/benchmarks.md")
    return parser.parse_args()


def conditions(options: str, began: str, busy: float) -> str:
    """Return the lines about run and machine."""
    command = f"python -m tests.bench.load.freshness {options}".rstrip()
    lines = [
        f"- Run: `{command}`, {began}, commit {_commit()}; other processes used {busy:.0%} of all cores"
        " before it",
        f"- Machine: {machine.in_words(machine.machine())}",
    ]
    if busy > BUSY:
        lines.append(
            "- Other work ran on the same cores all the time: all times are longer than on a quiet machine"
        )
    return "\n".join(lines)


def _commit() -> str:
    command = ["git", "-C", str(REPOSITORY), "describe", "--always"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def report(found: Mapping[str, Measured], engine: str) -> str:
    """Return the levels and the figures of each writer."""
    levels = list(_levels(found[OURS], engine))
    missed = [f"- *{level.what}* is {short_of(level)}. {UNEXPLAINED}" for level in levels if not level.met]
    missing = [f"- **{each.title} is missing: {each.missing}**" for each in found.values() if each.missing]
    there = [each for each in found.values() if not each.missing]
    parts = [
        levels_table(levels),
        "\n".join([*missed, *missing]),
        table(["writer", "reader", "events", "p50 s", "p99 s", "max s"], _latencies(there)),
        table(COSTS, _costs(there)),
    ]
    return "\n\n".join(filter(None, parts))


def _levels(ours: Measured, engine: str) -> Iterator[Level]:
    for reader, latencies in ours.latencies.items():
        values = percentiles(latencies)
        for which, wanted in LEVELS[engine].items():
            yield Level(
                key=f"{reader}-{which}",
                what=f"dc1 → {reader}, {which}",
                unit="s",
                wanted=wanted,
                measured=values[which],
                at_least=False,
            )


def _latencies(measured: Sequence[Measured]) -> list[list[str]]:
    rows = []
    for each in measured:
        for reader, latencies in each.latencies.items():
            values = percentiles(latencies)
            seconds = [f"{values[which]:.2f}" for which in ("p50", "p99", "max")]
            rows.append([each.title, reader, f"{len(latencies):,}", *seconds])
    return rows


def _costs(measured: Sequence[Measured]) -> list[list[str]]:
    return [
        [
            each.title,
            f"{each.rows:,}",
            *(
                f"{seconds / each.rows * 1e6:,.0f}"
                for seconds in (each.cpu_s, each.compiler_s, each.cpu_s + each.end_cpu_s)
            ),
            f"{each.peak_rss / 1e6:,.0f}",
        ]
        for each in measured
    ]


def measure(folder: Path, plan: Plan) -> dict[str, Measured]:
    """Measure all writers in turn, as often as the plan says."""
    found = {name: Measured(writer.title) for name, writer in WRITERS.items()}
    with topology(folder) as place, Stream(place, plan.rate):
        for turn in range(plan.rounds):
            for name, writer in WRITERS.items():
                here = folder / f"{name}-{turn}"
                here.mkdir()
                try:
                    _window(place, here, plan, writer, found[name])
                except (Missing, LatencyFailed, AssertionError) as failure:
                    if name == OURS:
                        raise LatencyFailed(str(failure)) from failure
                    found[name].missing = str(failure)  # the figures of the other writer count
    return found


def _window(place: Place, folder: Path, plan: Plan, writer: Writer, measured: Measured) -> None:
    """Start a writer and its readers, measure one window, and end them."""
    with ExitStack() as stack:
        started = time.time()
        process = writer.start(place, folder, plan)
        stack.callback(process.kill)
        readers = {name: Reader(name, folder, writer.branch) for name in plan.readers}
        for reader in readers.values():
            stack.callback(reader.process.kill)

        def all_have(moment: float) -> bool:
            _check(process)
            return all(reader.has(moment) for reader in readers.values())

        wait_until("all readers have caught up", lambda: all_have(started), timeout_s=WAIT_S)
        time.sleep(SETTLE_S)
        meter = stack.enter_context(TreeMeter(process.pid))
        meter.mark()
        began = time.time()
        time.sleep(plan.seconds)
        ended, used = time.time(), meter.used()
        wait_until("all readers have the window", lambda: all_have(ended), timeout_s=WAIT_S)
        meter.mark()
        if process.stop() != 0 and writer.ends_well:
            raise LatencyFailed(f"{writer.title} did not end well: {_last_words(process)}")
        measured.end_cpu_s += meter.used().cpu_s
    due = round(plan.rate * (ended - began))
    for name, reader in readers.items():
        latencies = reader.between(began, ended)
        if abs(len(latencies) - due) > 1 + plan.rate / 1000:  # an event's time is exact to a millisecond
            raise LatencyFailed(f"{name} has {len(latencies):,} of {due:,} events that {writer.title} wrote")
        measured.latencies.setdefault(name, []).extend(latencies)
    measured.rows += due
    measured.cpu_s += used.cpu_s
    measured.compiler_s += used.groups.get(COMPILER, 0.0)
    measured.peak_rss = max(measured.peak_rss, used.peak_rss)


class Reader:
    """A process that reads the table, and the rows that its looks found."""

    def __init__(self, engine: str, folder: Path, branch: str) -> None:
        home = folder / f"home-{engine}"
        home.mkdir()
        words = [engine, str(folder / "warehouse"), branch, str(home)]
        self.process = Process(words, module="tests.bench.load.fresh_reader")
        self._parsed = 0
        self._newest: dict[str, float] = {}
        """Time of the newest event seen, by partition."""
        self._seen: list[tuple[float, float]] = []
        """For each event the time when it was due, and the seconds it took."""

    def has(self, moment: float) -> bool:
        """Return whether the reader has an event of each partition that was due after that moment."""
        _check(self.process)
        lines = self.process.lines[self._parsed :]
        self._parsed += len(lines)
        for look in (json.loads(line) for line in lines if line.startswith("{")):
            for partition, times in look["sent"].items():
                self._newest[partition] = times[-1]
                self._seen += [(due, look["at"] - due) for due in times]
        return len(self._newest) == PARTITIONS and min(self._newest.values()) > moment

    def between(self, began: float, ended: float) -> list[float]:
        """Return the seconds that each event took which was due in that time."""
        return [took for due, took in self._seen if began <= due < ended]


def _check(process: Process) -> None:
    if not process.running:
        raise LatencyFailed(f"{process.arguments} ended: {_last_words(process)}")


def _last_words(process: Process) -> str:
    return " / ".join(process.lines[-5:])


def _follow(place: Place, folder: Path, plan: Plan) -> Process:
    """Start the resident loader."""
    words = ["load", TOPIC, "--follow", "--live", "--every", f"{plan.every_s:g}s", "--json"]
    words += ["--bootstrap", place.offline, "--registry", place.registry]
    words += ["--engine", "spark"] if plan.engine == "spark" else []
    warehouse = folder / "warehouse"
    warehouse.mkdir()
    return Process([*words, "--warehouse", str(warehouse)])


def _stream(place: Place, folder: Path, plan: Plan) -> Process:
    """Start Spark's stream, in a catalog that pyiceberg created."""
    warehouse = folder / "warehouse"
    warehouse.mkdir()
    with closing(connect(open_storage(str(warehouse)))):
        pass
    task = Task(
        way="spark-stream",
        bootstrap=place.offline,
        topic=TOPIC,
        registry=place.registry,
        schema=SCHEMA.read_text(),
        hours=(),
        out=str(folder / "checkpoint"),
        every_s=plan.every_s,
    )
    way = ways.streaming(warehouse)
    return Process([], program=ways.once(way, task, folder), env=ways.environment(way))


WRITERS = {
    OURS: Writer(title="Millrace", branch="live", start=_follow, ends_well=True),
    "spark-stream": Writer(title="Spark's stream", branch="main", start=_stream, ends_well=False),
}


if __name__ == "__main__":
    main()
