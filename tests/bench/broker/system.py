"""Interface of a system under test: the same few operations for every broker.

A system is one server with its data in one folder; a client is a way to load it. Clients are commands, so
that their CPU is counted apart from the broker's and a peer's own tool can be one as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests.peers import maven

MESSAGE_BYTES = 200
LARGE = 0
"""Messages per request: as large batches as the client likes."""


class Missing(Exception):
    """The system cannot be run here; the message says why and what would help."""


@contextmanager
def missing_without_jars() -> Iterator[None]:
    """Missing, with Maven's words, where jars are fetched here and cannot be had."""
    try:
        yield
    except maven.NoMaven as error:
        raise Missing(str(error)) from error
    except AssertionError as error:
        raise Missing(str(error).strip().splitlines()[-1]) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures that a client reports of its run."""

    messages: int
    seconds: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    p999_ms: float | None = None
    max_ms: float | None = None
    stalls: int | None = None
    """Number of times that messages came later than 20 ms; consecutive late messages count once."""
    cpu_s: float | None = None
    """The client's own CPU while it was timed; None counts its whole life, with its start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One process that loads the broker; `parse` reads its figures from what it printed."""

    arguments: Sequence[str]
    parse: Callable[[str], Figures]
    environment: Mapping[str, str] = field(default_factory=dict)


class Client(Protocol):
    """A way to load the system. None where its protocol has no such thing."""

    name: str
    holds_rate: bool
    """True if `produce` and `latency` can send at a fixed rate."""

    def produce(self, place: str, per_request: int, messages: int, *, rate: int = 0) -> Command | None:
        """Send so many messages, all acknowledged at the end; at most `rate` a second unless 0."""

    def consume(self, place: str, messages: int) -> Command | None:
        """Read so many messages, from the oldest on."""

    def latency(self, place: str, rate: int, seconds: int) -> Command | None:
        """Produce and consume at a fixed rate; the time from one to the other."""


class System(Protocol):
    """One server. `place` is what it calls topic, stream or queue."""

    name: str
    title: str
    version: str
    flush: str
    """Rule for when written messages reach the disk, and which of them a consumer may see before."""
    clients: Sequence[Client]
    """The first is the one that loads data for other cells."""

    def install(self) -> None:
        """Fetch what is missing; Missing when that is impossible."""

    def start(self, folder: Path) -> None:
        """Start with no data; returns when it answers."""

    def pids(self) -> list[int]:
        """Every process of the server."""

    def create(self, place: str) -> None:
        """Make a topic, stream or queue."""

    def delete(self, place: str) -> None:
        """Delete it with its data."""

    def files(self, place: str) -> list[Path]:
        """The folders that hold its data; a system that mixes all queues in one store names the store."""

    def stop(self) -> None:
        """End every process of the server, also after a failed start."""
