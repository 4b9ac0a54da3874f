"""Who may connect to a broker, and how much of its memory clients may hold together.

Keeps the counts and says what has to go; closes nothing itself. Knows no sockets and no protocol.

What one client can make the broker hold is bounded for each connection; that bound times thousands of
connections is more than a machine has, so there is a sum for all of them, too. An honest client's bytes go
within moments: when the sum is spent, who holds more than an even share and has completed nothing for the
longest time goes first.
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from millrace.config import ClientLimits

RESERVED_FILES = 128
"""Descriptors that connections leave to the logs."""
CROWD = 16
"""So many times one connection's limit of waiting requests may wait in all; beyond it each gets so few."""


class Holder(Protocol):
    """A connection, as far as it holds memory."""

    held: int
    """Bytes, as noted last."""
    waiting: int
    """Requests without an answer, as noted last."""
    served_at: float
    """When a whole request of it came last, or when it was opened."""


H = TypeVar("H", bound=Holder)


def allow_open_files() -> int:
    """Raise this process's limit of open files as far as it may itself; the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


class Admission:
    """Counts the connections of each address and knows who is one too many."""

    def __init__(self, limits: ClientLimits) -> None:
        self._limits = limits
        self._addresses: Counter[str] = Counter()
        self._last_file = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - RESERVED_FILES
        self.open = 0
        self.accepted = 0
        self.refused = 0
        self.closed_idle = 0
        self.closed_greedy = 0
        """Connections closed later: because nothing came, and because all held too much."""

    def refusal(self, address: str, fd: int) -> str | None:
        """Why a new connection cannot stay; None counts it as open."""
        limits = self._limits
        self.accepted += 1
        if self.open >= limits.max_connections:
            reason = f"{self.open} are open (max_connections)"
        elif self._addresses[address] >= limits.max_connections_per_address:
            reason = f"{self._addresses[address]} of its address are open (max_connections_per_address)"
        elif fd >= self._last_file:  # the kernel gives the lowest free number
            reason = "too few file descriptors are left for the logs; raise `ulimit -n`"
        else:
            self.open += 1
            self._addresses[address] += 1
            return None
        self.refused += 1
        return reason

    def leave(self, address: str) -> None:
        """One connection of the address has gone."""
        self.open -= 1
        self._addresses[address] -= 1
        if not self._addresses[address]:
            del self._addresses[address]


class Budget:
    """What all connections hold together."""

    def __init__(self, limits: ClientLimits) -> None:
        self._limits = limits
        self.held = 0
        """Bytes of unfinished requests and of answers not yet taken."""
        self.waiting = 0
        """Requests without an answer."""
        self.request_limit = limits.max_queued_requests
        """How many requests one connection may have waiting at present."""

    def note(self, holder: Holder, held: int, waiting: int) -> None:
        """Remember what a connection holds now in place of what it held before."""
        self.held += held - holder.held
        self.waiting += waiting - holder.waiting
        holder.held, holder.waiting = held, waiting
        limit = self._limits.max_queued_requests
        self.request_limit = limit if self.waiting < CROWD * limit else min(CROWD, limit)

    @property
    def spent(self) -> bool:
        """True when connections must be closed."""
        return self.held > self._limits.max_buffered_bytes

    def victims(self, holders: Iterable[H]) -> Sequence[H]:
        """The connections to close, so that an eighth of the budget is free again."""
        holding = [holder for holder in holders if holder.held]
        share = self.held / len(holding)
        greedy = sorted((h for h in holding if h.held >= share), key=lambda holder: holder.served_at)
        excess, count = self.held - self._limits.max_buffered_bytes * 7 // 8, 0
        while excess > 0 and count < len(greedy):
            excess -= greedy[count].held
            count += 1
        return greedy[:count]
