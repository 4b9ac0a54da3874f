"""The levels the broker has to reach, each with the figure it is compared with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.bench.broker import figures
from tests.bench.broker.figures import Result
from tests.bench.broker.system import MESSAGE_BYTES

SENDFILE = "sendfile of cached file to loopback TCP"


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level; `measured` is None when its cell was not measured."""

    key: str
    what: str
    unit: str
    wanted: float
    measured: float | None
    at_least: bool = True
    system: str = "millrace"
    client: str = "replay"
    cell: str | None = None
    """Cell that the figure comes from; None for a figure from elsewhere."""

    @property
    def met(self) -> bool | None:
        """None when there is no figure."""
        if self.measured is None:
            return None
        return self.measured >= self.wanted if self.at_least else self.measured <= self.wanted


def levels(result: Result) -> Iterator[Level]:
    """Every level, with what was measured."""
    yield from _rates(result)
    yield from _broker_cpu(result)
    yield Level(
        key="sendfile",
        what="consumption, of raw sendfile",
        unit="%",
        wanted=70,
        measured=_sendfile(result),
        cell="consume",
    )
    yield Level(
        key="latency",
        what="produce→consume p99, 10,000 a second",
        unit="ms",
        wanted=8,
        measured=_latency(result),
        at_least=False,
        client="Java",
        cell="latency",
    )
    idle = result.get("systems", {}).get("millrace", {}).get("idle_rss")
    yield Level(
        key="idle",
        what="resident memory, idle",
        unit="MB",
        wanted=55,
        measured=None if idle is None else idle / 1e6,
        at_least=False,
    )


def _rates(result: Result) -> Iterator[Level]:
    """Yield the levels for rates of replay; `scale` turns messages a second into the level's unit."""
    for key, cell, what, unit, wanted, scale in (
        ("large", "produce-large", "large batches", "GB/s", 2.0, MESSAGE_BYTES / 1e9),
        ("fifty", "produce-50", "50 per request", "M msgs/s", 5.0, 1e-6),
        ("single", "produce-1", "1 per request", "k requests/s", 600, 1e-3),
    ):
        found = figures.outcome(result, "millrace", "replay", cell)
        measured = None if found is None else figures.rate(found, "produce") * scale
        yield Level(key=key, what=f"replay, {what}", unit=unit, wanted=wanted, measured=measured, cell=cell)
    for key, cell, role, what, unit, wanted, scale in (
        ("tls-consume", "consume", "consume", "consumption", "GB/s", 1.2, MESSAGE_BYTES / 1e9),
        ("tls-fifty", "produce-50", "produce", "50 per request", "M msgs/s", 2.5, 1e-6),
    ):
        found = figures.outcome(result, "millrace-tls", "replay", cell)
        yield Level(
            key=key,
            what=f"replay with TLS, {what}",
            unit=unit,
            wanted=wanted,
            measured=None if found is None else figures.rate(found, role) * scale,
            system="millrace-tls",
            cell=cell,
        )


def _broker_cpu(result: Result) -> Iterator[Level]:
    wanted_of = [
        ("cpu-fifty", "produce-50", "50 per request", 0.15),
        ("cpu-single", "produce-1", "1 per request", 3.0),
    ]
    kafka = figures.outcome(result, "kafka", "replay", "produce-large")
    if kafka is not None:
        their_cpu = figures.broker_cpu_per_million(kafka)
        wanted_of.append(("cpu-large", "produce-large", "large batches (Apache Kafka's)", their_cpu))
    for key, cell, what, wanted in wanted_of:
        found = figures.outcome(result, "millrace", "replay", cell)
        yield Level(
            key=key,
            what=f"broker CPU, {what}",
            unit="s/M",
            wanted=wanted,
            measured=None if found is None else figures.broker_cpu_per_million(found),
            at_least=False,
            cell=cell,
        )


def _sendfile(result: Result) -> float | None:
    """Bytes of the log consumed a second (messages and what is stored around them), in % of raw sendfile."""
    consumed = figures.outcome(result, "millrace", "replay", "consume")
    stored = figures.outcome(result, "millrace", "replay", "produce-large")
    limit = next((limit["mb_per_s"] for limit in result.get("raw", ()) if limit["name"] == SENDFILE), None)
    if consumed is None or stored is None or limit is None:
        return None
    per_message = MESSAGE_BYTES + float(stored["overhead_bytes"])
    return figures.rate(consumed, "consume") * per_message / 1e6 / float(limit) * 100


def _latency(result: Result) -> float | None:
    found = figures.outcome(result, "millrace", "Java", "latency")
    return None if found is None else float(found["roles"]["latency"]["p99_ms"])
