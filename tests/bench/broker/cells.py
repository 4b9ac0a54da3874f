"""The cells of the benchmark: what each loads, how many messages, and what is kept of it.

A cell makes its topic, stream or queue, loads it, and deletes it again. Counts are those of the paper (10 M)
where the system can; slower ones get what fits in half a minute, and every figure states its count.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tests.bench.broker import meter
from tests.bench.broker.run import Usage, run
from tests.bench.broker.system import LARGE, MESSAGE_BYTES, Client, Command, Figures, System

CELLS = ("produce-1", "produce-50", "produce-large", "consume", "both", "latency", "cold")
PER_REQUEST = {"produce-1": 1, "produce-50": 50, "produce-large": LARGE}
MILLION = 1_000_000
QUICK_DIVISOR = 20
WARM_UP_DIVISOR = 5
LATENCY_SECONDS = 10
COLD_PRODUCE_SECONDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Messages of each cell of one system, and the rates of those that have one."""

    single: int
    """One message per request."""
    batched: int
    """50 per request, large batches, consuming, both at once."""
    behind: int
    """Messages that a cold consumer finds."""
    latency_rate: int
    cold_rate: int
    """Messages a second that go on being produced while the cold consumer reads."""

    def of(self, cell: str) -> int:
        """Messages of a cell."""
        return {"produce-1": self.single, "cold": self.behind}.get(cell, self.batched)


_KAFKA = Counts(
    single=400_000, batched=10 * MILLION, behind=80 * MILLION, latency_rate=10_000, cold_rate=100_000
)
COUNTS: Mapping[str, Counts] = {
    "millrace": _KAFKA,
    "kafka": _KAFKA,
    "kafka-flushed": _KAFKA,
    "millrace-tls": _KAFKA,
    "kafka-tls": _KAFKA,
    "rabbitmq-streams": Counts(
        single=10 * MILLION, batched=10 * MILLION, behind=20 * MILLION, latency_rate=10_000, cold_rate=100_000
    ),
    "rabbitmq-classic": Counts(
        single=600_000, batched=600_000, behind=600_000, latency_rate=5_000, cold_rate=5_000
    ),
    "activemq": Counts(single=400_000, batched=400_000, behind=400_000, latency_rate=2_000, cold_rate=2_000),
    "activemq-memory": Counts(
        single=600_000, batched=600_000, behind=600_000, latency_rate=2_000, cold_rate=2_000
    ),
}
_ENCRYPTED = tuple(cell for cell in CELLS if cell not in ("produce-50", "consume"))
LEFT_OUT = {
    "confluent-kafka": ("both", "latency", "cold"),
    "kafka-flushed": ("produce-1", "consume", "cold"),
    "millrace-tls": _ENCRYPTED,
    "kafka-tls": _ENCRYPTED,
}
"""Cells that a client or system does not run: they would say again what another row says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One cell of one client on one system; figures by what was done, None for what failed."""

    messages: int
    roles: Mapping[str, Figures]
    usage: Usage
    overhead_bytes: float | None = None

    def as_json(self) -> dict[str, Any]:
        """Plain values, for the result file."""
        return asdict(self)


def pairs(system: System, wanted: tuple[str, ...]) -> list[tuple[Client, str]]:
    """(client, cell) of everything to run on a started system; the cold cell only for the first client."""
    return [
        (client, cell)
        for client in system.clients
        for cell in wanted
        if cell not in LEFT_OUT.get(client.name, ())
        and cell not in LEFT_OUT.get(system.name, ())
        and (
            cell != "cold" or (client is system.clients[0] and any(one.holds_rate for one in system.clients))
        )
        and _offers(client, cell)
    ]


def _offers(client: Client, cell: str) -> bool:
    """Tell whether the client's protocol offers this cell."""
    if cell in PER_REQUEST:
        return client.produce("-", PER_REQUEST[cell], 1) is not None
    return cell != "latency" or client.latency("-", 1, 1) is not None


def warm_up(system: System, *, quick: bool) -> None:
    """Load a place nobody measures: when the first cell starts, compilers have compiled and heaps grown."""
    client, place = system.clients[0], "bench-warm-up"
    divisor = WARM_UP_DIVISOR * (QUICK_DIVISOR if quick else 1)
    single, most = COUNTS[system.name].single // divisor, COUNTS[system.name].batched // divisor
    system.create(place)
    try:
        run([_need(client.produce(place, 1, single))], system.pids())
        run([_need(client.produce(place, _largest(client), most))], system.pids())
        run([_need(client.consume(place, single + most))], system.pids())
    finally:
        system.delete(place)


def measure(system: System, client: Client, cell: str, *, quick: bool) -> Measured:
    """Run one cell from an empty topic to its deletion."""
    counts, divisor = COUNTS[system.name], QUICK_DIVISOR if quick else 1
    place = f"bench-{client.name.lower()}-{cell}"
    messages = max(counts.of(cell) // divisor, 1000)
    system.create(place)
    try:
        if cell in PER_REQUEST:
            return _produce(system, client, place, PER_REQUEST[cell], messages)
        if cell == "consume":
            _load(system, place, messages)
            return _measured(system, messages, {"consume": _need(client.consume(place, messages))})
        if cell == "both":
            producing = client.produce(place, _largest(client), messages)
            commands = {"consume": _need(client.consume(place, messages)), "produce": _need(producing)}
            return _measured(system, messages, commands)
        if cell == "latency":
            seconds = max(LATENCY_SECONDS // divisor, 2)
            rate = counts.latency_rate
            return _measured(system, rate * seconds, {"latency": _need(client.latency(place, rate, seconds))})
        return _cold(system, place, messages, counts.cold_rate, divisor)
    finally:
        system.delete(place)


def _produce(system: System, client: Client, place: str, per_request: int, messages: int) -> Measured:
    before = meter.disk_bytes(system.files(place))
    measured = _measured(system, messages, {"produce": _need(client.produce(place, per_request, messages))})
    files = system.files(place)
    if not files:
        return measured
    produced = measured.roles["produce"].messages
    stored = meter.disk_bytes(files) - before
    return Measured(
        messages=produced,
        roles=measured.roles,
        usage=measured.usage,
        overhead_bytes=stored / produced - MESSAGE_BYTES,
    )


def _cold(system: System, place: str, messages: int, rate: int, divisor: int) -> Measured:
    _load(system, place, messages)
    meter.drop_page_cache(system.files(place))
    reader = system.clients[0]
    writer = next(client for client in system.clients if client.holds_rate)
    count = max(rate * COLD_PRODUCE_SECONDS // divisor, 1000)
    commands = {
        "consume": _need(reader.consume(place, messages)),
        "produce": _need(writer.produce(place, _largest(writer), count, rate=rate)),
    }
    return _measured(system, messages, commands)


def _load(system: System, place: str, messages: int) -> None:
    """Fill the place the fastest way the system has, unmeasured."""
    loader = system.clients[0]
    run([_need(loader.produce(place, _largest(loader), messages))], system.pids())
    time.sleep(0.5)  # whatever it still flushes


def _largest(client: Client) -> int:
    """The largest batches the client's protocol has."""
    return next(size for size in (LARGE, 50, 1) if client.produce("-", size, 1) is not None)


def _measured(system: System, messages: int, commands: Mapping[str, Command]) -> Measured:
    figures, usage = run(list(commands.values()), system.pids())
    return Measured(messages=messages, roles=dict(zip(commands, figures, strict=True)), usage=usage)


def _need(command: Command | None) -> Command:
    assert command is not None, "asked for a cell that the client does not offer"
    return command
