"""The part of the page: levels, why one is missed, and a table for each kind of traffic."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.bench.broker.levels import Level
from tests.bench.broker.report import levels_table, number, short_of, table
from tests.bench.replication import bare
from tests.bench.replication.cells import FIFTY, LARGE, MINIMUM, Latency, Load, Run, p99

OURS, PEER = "Millrace", "Apache Kafka"
KINDS: Mapping[str, Load] = {"large": LARGE, "fifty": FIFTY}
ABOUT = """\
# Replication

Three brokers of Millrace and three of Apache Kafka on one machine, which they share with the client. A
topic has one partition with 1, 2 or 3 replicas, and `min.insync.replicas` is 1, 1 and 2. All requests ask
for `acks=all`, hold messages of 200 bytes, were encoded beforehand, and go to the leader. Both flush after
10,000 messages or 100 ms. In addition Millrace answers `acks=all` only after a flush on every replica in
sync; Apache Kafka does not wait for one. Apache Kafka serves one request of a connection at a time, so there
are several connections. Each cell has the median of three interleaved rounds and, in brackets, the
lowest and the highest. *CPU* is user and system time: of the leader's process, of the two other brokers
together (*followers*), and of all three (*brokers*). Apache Kafka's controller is in one of its brokers;
Millrace's ZooKeeper is idle meanwhile and is not counted. A *gigabyte* counts messages alone. *A bare relay*
is what this machine does with as many bytes when nothing is parsed, checked or acknowledged: one process
receives and writes them and sends them on from its file, the other processes write what they receive, and
all flush every 9 MB.
"""
WHY: Mapping[Load, str] = {
    LARGE: "In a profile (perf) the kernel takes 72 % of the three brokers' CPU, two thirds of it for copies"
    " into new pages of the page cache; Python takes 24 %, the checksum 1 %.",
    FIFTY: "The followers' interpreter takes 2 to 3 µs for each batch, and the flushes of three logs wait"
    " for one disk.",
}
"""Reasons why a level is missed, by its traffic."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The rounds of each cell, by replicas and system's title, and what the disk alone takes."""

    loads: dict[tuple[Load, int, str], list[Run]] = field(default_factory=dict)
    latencies: dict[tuple[int, str], list[Latency]] = field(default_factory=dict)
    flushes_ms: list[float] = field(default_factory=list)


def text(measured: Measured) -> str:
    """All tables."""
    found = [level for level in levels(measured) if level.measured is not None]
    parts = ["## Levels", levels_table(found)]
    if missed := [_missed(level, measured) for level in found if not level.met]:
        parts.append("\n".join(missed))
    for kind in (LARGE, FIFTY):
        who = ("leader", "followers", "brokers", "client")
        head = ("replicas", "system", kind.rate_unit, *(f"{one} CPU {kind.cpu_unit}" for one in who))
        parts += [
            f"## {kind.title}, {kind.connections} connections with {kind.in_flight} requests in flight each",
            table(
                head,
                [
                    _row(factor, system, [(r.rate, r.leader, r.followers, r.brokers, r.client) for r in runs])
                    for (of, factor, system), runs in measured.loads.items()
                    if of == kind
                ],
            ),
        ]
    parts += [
        "## One request at a time, otherwise idle",
        table(
            ("replicas", "system", "p50 ms", "p99 ms", "brokers CPU ms a request"),
            [_row(factor, system, runs) for (factor, system), runs in measured.latencies.items()],
        ),
        f"On the same disk an append of 300 bytes and its flush took {_flush(measured)} alone.",
    ]
    return "\n\n".join(parts)


def levels(measured: Measured) -> Iterator[Level]:
    """Every level; `measured` is None where its cell was not measured."""

    def rate(kind: Load, factor: int) -> float | None:
        return _median(measured.loads.get((kind, factor, OURS)), lambda run: run.rate)

    for key, what, wanted, kind in (
        ("large-3", "3 replicas, large batches", 300, LARGE),
        ("large-2", "2 replicas, large batches", 450, LARGE),
        ("fifty-3", "3 replicas, 50 per request", 1.2e6, FIFTY),
    ):
        yield Level(key=key, what=what, unit=kind.rate_unit, wanted=wanted, measured=rate(kind, int(key[-1])))
    for factor in MINIMUM:
        yield Level(
            key=f"p99-{factor}",
            what=f"{_replicas(factor)}, one request at a time, p99",
            unit="ms",
            wanted=6,
            measured=_median(measured.latencies.get((factor, OURS)), lambda run: run.p99),
            at_least=False,
        )
    if measured.flushes_ms:
        yield Level(
            key="p50-1",
            what="1 replica, one request at a time, p50: a flush and 1 ms",
            unit="ms",
            wanted=statistics.median(measured.flushes_ms) + 1,
            measured=_median(measured.latencies.get((1, OURS)), lambda run: run.p50),
            at_least=False,
        )
    for (name, kind), factor in itertools.product(KINDS.items(), MINIMUM):
        ours, theirs = (
            _median(measured.loads.get((kind, factor, system)), lambda run: run.brokers)
            for system in (OURS, PEER)
        )
        yield Level(
            key=f"{name}-{factor}",
            what=f"{_replicas(factor)}, {kind.title.lower()}: messages for a second of the brokers' CPU",
            unit="times Apache Kafka's",
            wanted=1,
            measured=theirs / ours if ours and theirs else None,
        )


def _replicas(factor: int) -> str:
    return f"{factor} replica{'s'[: factor - 1]}"


def _median(runs: Sequence[Run] | Sequence[Latency] | None, value: Callable[..., float]) -> float | None:
    return statistics.median(map(value, runs)) if runs else None


def _missed(level: Level, measured: Measured) -> str:
    """By how much, and where the time goes: into whose cores, or into the disk."""
    what, factor = level.key.split("-")
    short = f"- *{level.what}* is {short_of(level)}."
    if what in ("p50", "p99"):
        return (
            f"{short} An answer waits for the slowest of {factor} flushes on one disk, where one alone takes"
            f" {_flush(measured)}."
        )
    runs = measured.loads[KINDS[what], int(factor), OURS]
    run = sorted(runs)[len(runs) // 2]
    relays = measured.loads[LARGE, int(factor), bare.TITLE]
    relayed = statistics.median(run.rate for run in relays)
    used = statistics.median(run.brokers for run in relays)
    leader, thread, followers, client = map(
        run.cores, (run.leader, run.leader_thread, run.followers, run.client)
    )
    return (
        f"{short} Cores used meanwhile: {leader:.2f} by the leader ({thread:.2f} by its busiest thread),"
        f" {followers:.2f} by the other brokers, {client:.2f} by the client. {bare.TITLE.capitalize()} takes"
        f" {number(relayed)} MB/s and {number(used)} s of CPU for a gigabyte. {WHY[KINDS[what]]}"
    )


def _flush(measured: Measured) -> str:
    flushes = measured.flushes_ms
    return f"{statistics.median(flushes):.1f} ms (p50) and {p99(flushes):.1f} ms (p99)"


def _row(factor: int, system: str, runs: Sequence[Sequence[float]]) -> list[str]:
    return [str(factor), system, *map(_spread, zip(*runs, strict=True))]


def _spread(values: Sequence[float]) -> str:
    low, middle, high = (number(value) for value in (min(values), statistics.median(values), max(values)))
    return middle if low == high else f"{middle} ({low} to {high})"
