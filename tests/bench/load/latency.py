"""Time that an event of a steady stream takes to the aggregate cluster and to the warehouse.

A topology as `millrace up` starts it; an AuditedProducer sends events one by one as they become due, so a
stall counts for every event it delays. A consumer of the aggregate cluster notes when it sees each. Then,
while both go on, a load starts every so often, as a scheduler would start it; a row is visible when its
load's manifest is there.

    python -m tests.bench.load.latency [--quick]

Writes its part of the page; a quick run only prints it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from confluent_kafka import Consumer

from millrace_audit.producer import AuditedProducer
from millrace_registry.client import SchemaRegistryClient
from tests.bench import machine
from tests.bench.broker.levels import Level
from tests.bench.broker.report import levels_table, table
from tests.bench.halves import PAGE, write_half
from tests.bench.load.servers import SCHEMA, TOPIC
from tests.brokers import free_port
from tests.support import Process, start_for_the_test_run, wait_until

PARTITIONS = 2
LOAD_TIMEOUT_S = 120
POLL_S = 0.02
EVENT: dict[str, Any] = {
    "memberId": 1234567,
    "clientAddress": "83.149.9.216",
    "method": "GET",
    "url": "/presentations/logstash-monitorama-2013/images/kibana-search.png",
    "protocol": "HTTP/1.1",
    "referrer": "http://semicomplete.com/presentations/logstash-monitorama-2013/",
    "userAgent": "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_9_1) AppleWebKit/537.36 Chrome/32.0.1700.77",
    "status": 200,
    "bytes": 203023,
}
_UP = """
data_dir = "{data}"
zookeeper = "127.0.0.1:{zookeeper}"
registry = "127.0.0.1:{registry}"
auditor = "127.0.0.1:{auditor}"

[clusters.dc1]
brokers = ["127.0.0.1:{dc1}"]
topics = {{ {topic} = {partitions} }}

[clusters.offline]
brokers = ["127.0.0.1:{offline}"]

[clusters.offline.mirror]
origins = ["dc1"]
topics = ["{topic}", "audit", "audit-counts"]
"""


class LatencyFailed(Exception):
    """The stream or a load did not go through; the message says what is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Rate and length of the stream."""

    rate: int
    """Events a second."""
    settle_s: float
    """Not counted: connections and caches."""
    alone_s: float
    """Without loads."""
    every_s: float
    """From the start of a load to the start of the next."""
    loads: int
    """The first takes what gathered before; what came after its start counts."""


FULL = Plan(rate=500, settle_s=10, alone_s=60, every_s=60, loads=4)
QUICK = Plan(rate=500, settle_s=5, alone_s=10, every_s=25, loads=3)


WAYS = {
    "aggregate": "dc1 → aggregate cluster",
    "aggregate_with_loads": "dc1 → aggregate cluster, loads running",
    "warehouse": "dc1 → warehouse",
}
ABOUT = """\
# How long an event takes

One AuditedProducer sends {rate} events a second into dc1 of a `millrace up` topology; a load is
started every {every_s:.0f} s. An event's time begins when it was due, so a stall counts for every event that
it delays. The aggregate cluster's figures end when a consumer has the event; the warehouse's figures end when
the load's manifest exists, for every row produced after the first load was started. A load is a whole
`millrace load`, the start of its processes included, on the same cores as everything else.
"""


def main() -> None:
    """Measure and print; write the page's part unless the run is a quick one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a trial run")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything started is ended
    plan = QUICK if options.quick else FULL
    began = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    conditions = (
        f"- Run: `python -m tests.bench.load.latency`, {began}; other processes used"
        f" {machine.busy_share():.0%} of all cores before it\n"
        f"- Machine: {machine.in_words(machine.machine())}"
    )
    with tempfile.TemporaryDirectory(prefix="bench-events-", ignore_cleanup_errors=True) as name:
        try:
            found = measure(Path(name), plan)
        except LatencyFailed as failure:
            sys.exit(str(failure))
    text = report(found)
    if not options.quick:
        about = ABOUT.format(rate=plan.rate, every_s=plan.every_s)
        write_half(PAGE, "events", f"{about}\n{conditions}\n\n{text}")
    print(text)


def report(found: Mapping[str, Any]) -> str:
    """The levels, the percentiles, and what each load took."""
    rows = [
        [title, f"{found[way]['count']:,}", *(f"{found[way][which]:.3f}" for which in ("p50", "p99", "max"))]
        for way, title in WAYS.items()
    ]
    return "\n\n".join(
        [
            levels_table(_levels(found)),
            table(["way", "events", "p50 s", "p99 s", "max s"], rows),
            "From the start of each load's command to its manifest: "
            + ", ".join(f"{seconds:.1f}" for seconds in found["loads"])
            + " s.",
        ]
    )


def _levels(found: Mapping[str, Any]) -> Iterator[Level]:
    for way, which, wanted in (
        ("aggregate", "p50", 0.015),
        ("aggregate", "p99", 0.05),
        ("warehouse", "p50", 60.0),
        ("warehouse", "max", 120.0),
    ):
        yield Level(
            key=f"{way}-{which}",
            what=f"{WAYS[way]}, {which}",
            unit="s",
            wanted=wanted,
            measured=found[way][which],
            at_least=False,
        )


def measure(folder: Path, plan: Plan) -> dict[str, Any]:
    """Percentiles in seconds of both ways, and what each load took."""
    with topology(folder) as place, ExitStack() as stack:
        stream = stack.enter_context(Stream(place, plan.rate))
        seen = stack.enter_context(_Watcher(place))
        wait_until("the stream arrives", lambda: seen.latencies, timeout_s=60)
        time.sleep(plan.settle_s)
        alone, with_loads, loads = _phases(place, plan, seen)
        stream.stop()
        wait_until("everything has arrived", lambda: seen.count() >= stream.sent, timeout_s=60)
    first_start = loads[0].started
    rows = [load.visible - made for load in loads for made in load.times() if first_start <= made]
    if not rows:
        raise LatencyFailed("no row was produced after the first load's start")
    return {
        "rate": plan.rate,
        "every_s": plan.every_s,
        "aggregate": percentiles(alone),
        "aggregate_with_loads": percentiles(with_loads),
        "warehouse": percentiles(rows),
        "loads": [load.visible - load.started for load in loads],
    }


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Return the number of values, p50, p99 and the largest, in seconds."""
    ordered = sorted(seconds)
    last = len(ordered) - 1
    return {
        "count": len(ordered),
        "p50": ordered[round(last * 0.5)],
        "p99": ordered[round(last * 0.99)],
        "max": ordered[last],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Addresses and folders of the topology."""

    dc1: str
    offline: str
    registry: str
    warehouse: Path


@contextmanager
def topology(folder: Path) -> Iterator[Place]:
    """Start dc1, the aggregate cluster that mirrors it, and the services of both."""
    ports = {name: free_port() for name in ("zookeeper", "registry", "auditor", "dc1", "offline")}
    config = folder / "up.toml"
    config.write_text(_UP.format(data=folder / "up", topic=TOPIC, partitions=PARTITIONS, **ports))
    up = Process(["up", str(config)])
    try:
        registry = f"http://127.0.0.1:{ports['registry']}"
        wait_until("millrace up is ready", lambda: _is_up(up), timeout_s=60)
        with SchemaRegistryClient(registry) as client:
            client.register(TOPIC, json.loads(SCHEMA.read_text()))
        yield Place(
            dc1=f"127.0.0.1:{ports['dc1']}",
            offline=f"127.0.0.1:{ports['offline']}",
            registry=registry,
            warehouse=folder / "warehouse",
        )
        if not up.running:
            raise LatencyFailed(f"millrace up ended: {' / '.join(up.lines[-3:])}")
    finally:
        up.stop(timeout_s=60)


def _is_up(up: Process) -> bool:
    if not up.running:
        raise LatencyFailed(f"millrace up ended: {' / '.join(up.lines[-3:])}")
    return any(line.startswith("ready: ") for line in list(up.lines))


class Stream:
    """Sends an event every 1/rate s from a thread; its time is when it was due."""

    def __init__(self, place: Place, rate: int) -> None:
        self._place, self._rate = place, rate
        self.sent = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="steady stream", daemon=True)

    def __enter__(self) -> Stream:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Send no more; everything sent is acknowledged."""
        self._stop.set()
        self._thread.join(90)

    def _run(self) -> None:
        with AuditedProducer(
            self._place.dc1, self._place.registry, cluster="dc1", server="web-1", service="www"
        ) as producer:
            began = time.time()
            for number in itertools.count():
                due = began + number / self._rate
                if (pause := due - time.time()) > 0 and self._stop.wait(pause):
                    break
                if self._stop.is_set():
                    break
                producer.send(TOPIC, TOPIC, EVENT, time_ms=int(due * 1000))
                self.sent += 1


class _Watcher:
    """Reads the aggregate cluster from a thread: seconds from an event's time to when it was seen."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.latencies: list[tuple[float, float]] = []
        """(when it was made, how long it took)."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)

    def __enter__(self) -> _Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)

    def count(self) -> int:
        """Events seen so far."""
        return len(self.latencies)

    def between(self, start: float, end: float) -> list[float]:
        """Return the latencies of the events made in that time."""
        return [took for made, took in list(self.latencies) if start <= made < end]

    def _run(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._place.offline,
                "group.id": "watcher",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "topic.metadata.refresh.interval.ms": 500,
                "fetch.wait.max.ms": 500,
                "fetch.min.bytes": 1,
            }
        )
        consumer.subscribe([TOPIC])
        while not self._stop.is_set():
            message = consumer.poll(0.05)
            if message is not None and message.error() is None:
                made = message.timestamp()[1] / 1000
                self.latencies.append((made, time.time() - made))
        consumer.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    """One `millrace load`: when it was started, when its manifest was there, and its files."""

    started: float
    visible: float
    files: Sequence[Path]

    def times(self) -> list[float]:
        """Creation times of all rows of the load, in seconds."""
        found: list[float] = []
        for file in self.files:
            column = pq.read_table(file, columns=["_timestamp"], partitioning=None).column(0)
            found += [value / 1e6 for value in column.cast("int64").to_pylist()]
        return found


def _phases(place: Place, plan: Plan, seen: _Watcher) -> tuple[list[float], list[float], list[_Load]]:
    """Events alone, then with loads."""
    began = time.time()
    time.sleep(plan.alone_s)
    loads_began = time.time()
    loads = [_load_at(loads_began + number * plan.every_s, place) for number in range(plan.loads)]
    ended = time.time()
    wait_until("the last events are seen", lambda: seen.latencies[-1][0] >= ended, timeout_s=30)
    return seen.between(began, loads_began), seen.between(loads_began, ended), loads


def _load_at(when: float, place: Place) -> _Load:
    """Start a load at that time, and wait for it."""
    time.sleep(max(when - time.time(), 0))
    topic = place.warehouse / TOPIC
    before, started = _published(topic), time.time()
    command = [
        sys.executable,
        "-m",
        "millrace.cli",
        "load",
        TOPIC,
        "--warehouse",
        str(place.warehouse),
        "--bootstrap",
        place.offline,
        "--registry",
        place.registry,
        "--json",
    ]
    with tempfile.TemporaryFile() as output:
        process = start_for_the_test_run(command, stdout=output, stderr=subprocess.STDOUT)
        visible, manifest = 0.0, ""
        while (code := process.poll()) is None:
            if not manifest and (new := _published(topic) - before):
                visible, manifest = time.time(), min(new)
            if time.time() > started + LOAD_TIMEOUT_S:
                process.kill()
            time.sleep(POLL_S)
        if code != 0 or not manifest:
            output.seek(0)
            words = output.read().decode(errors="replace").strip().splitlines()[-1:]
            raise LatencyFailed(f"a load published nothing, exit code {code}: {' '.join(words)}")
    load = json.loads((topic / "loads" / manifest).read_text())
    return _Load(started=started, visible=visible, files=[topic / file["path"] for file in load["files"]])


def _published(topic: Path) -> set[str]:
    return {path.name for path in topic.glob("loads/*.json")}


if __name__ == "__main__":
    main()
