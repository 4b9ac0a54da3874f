"""Who may connect to a broker, and how much of its memory clients may hold together.

Keeps the counts and says what has to go; closes nothing itself. Knows no sockets and no protocol.

What one client can make the broker hold is bounded for each connection; that bound times thousands of
connections is more than a machine has, so there are sums for all of them, too.

Unfinished requests: when their sum is spent, only the oldest large one goes on being read, until others are
whole and gone; who then sends too slowly is closed, so the oldest is never one that does not end.
Unread answers: when their sum is spent, who holds more than an even share and has completed nothing for the
longest time is closed.
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from millrace.config import ClientLimits

RESERVED_FILES = 128
"""Descriptors that connections leave to the logs."""
CROWD = 8
"""So many times one connection's limit of waiting requests may wait in all; beyond it each gets so few."""
LARGE_BYTES = 8 << 10
"""Every connection may hold so much of an unfinished request, whatever the others do, ..."""
CROWDED_READ_BYTES = 16 << 10
"""... and one read more. The two of 4,000 connections are three quarters of the budget."""
MIN_RATE = 256 << 10
"""Bytes a second at which a large request must come while others wait for their turn, ..."""
PATIENCE_S = 2.0
"""... seen over so long."""


class Holder(Protocol):
    """A connection, as far as it holds memory."""

    unfinished: int
    """Bytes of a request that is not whole, as noted last."""
    unserved: int
    """Bytes of requests whose turn has not come, as noted last."""
    unread: int
    """Bytes of answers, as noted last."""
    waiting: int
    """Requests without an answer, as noted last."""
    served_at: float
    """When a whole request of it came last, or when it was opened."""
    paused: bool
    """True while it may not be read."""

    @property
    def gathered(self) -> int:
        """Bytes that came of its unfinished requests, ever."""


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


class Budget(Generic[H]):
    """What all connections hold together."""

    def __init__(self, limits: ClientLimits) -> None:
        self._limits = limits
        self.unfinished = 0
        """Bytes of requests that are not whole."""
        self.unserved = 0
        """Bytes of requests whose turn has not come."""
        self.unread = 0
        """Bytes of answers not yet taken."""
        self.waiting = 0
        """Requests without an answer."""
        self.request_limit = limits.max_queued_requests
        """How many requests one connection may have waiting at present."""
        self._large: dict[H, tuple[float, int]] = {}
        """Who holds much of an unfinished request, the oldest first; and what had come of it at a time."""
        self._paused = 0

    def note(
        self, holder: H, *, unfinished: int, unserved: int, unread: int, waiting: int, now: float
    ) -> None:
        """Remember what a connection holds now in place of what it held before."""
        self.unfinished += unfinished - holder.unfinished
        self.unserved += unserved - holder.unserved
        self.unread += unread - holder.unread
        self.waiting += waiting - holder.waiting
        holder.unfinished, holder.unserved, holder.unread = unfinished, unserved, unread
        holder.waiting = waiting
        limit = self._limits.max_queued_requests
        self.request_limit = limit if self.waiting < CROWD * limit else min(CROWD, limit)
        if unfinished > LARGE_BYTES:
            if holder.served_at == now:
                self._large.pop(holder, None)  # this is the next request already: others come first
            if holder not in self._large:
                self._large[holder] = now, holder.gathered
            if not holder.paused and self._must_wait(holder):
                holder.paused = True
                self._paused += 1
        elif holder in self._large:
            del self._large[holder]
            self._paused -= holder.paused
            holder.paused = False

    def _must_wait(self, holder: H) -> bool:
        return self.unfinished > self._limits.max_buffered_bytes and holder is not next(iter(self._large))

    @property
    def held(self) -> int:
        """All these bytes."""
        return self.unfinished + self.unserved + self.unread

    @property
    def crowded(self) -> bool:
        """True while a sum is spent, so that only little should be read at once."""
        limit = self._limits.max_buffered_bytes
        return self.unserved > limit // 2 or self.unfinished > limit

    def resumed(self, now: float) -> Sequence[H]:
        """Who was paused and may be read again; ask it at the end of a turn."""
        if not self._paused:
            return ()
        if self.unfinished > self._limits.max_buffered_bytes * 3 // 4:
            oldest = next(iter(self._large))
            found = [oldest] if oldest.paused else []
        else:
            found = [holder for holder in self._large if holder.paused]
        for holder in found:
            holder.paused = False
            self._large[holder] = now, holder.gathered
        self._paused -= len(found)
        return found

    def slow(self, now: float) -> Sequence[H]:
        """Who keeps others from being read by sending a large request too slowly; ask it again and again."""
        found = []
        for holder, (since, gathered) in self._large.items() if self._paused else ():
            if not holder.paused and now - since > PATIENCE_S:
                if holder.gathered - gathered < (now - since) * MIN_RATE:
                    found.append(holder)
                self._large[holder] = now, holder.gathered
        return found

    def greedy(self, holders: Iterable[H]) -> Sequence[H]:
        """The connections to close, so that an eighth of the room for answers is free again; mostly none."""
        if self.unread <= self._limits.max_buffered_bytes:
            return ()
        holding = [holder for holder in holders if holder.unread]
        share = self.unread / len(holding)
        greedy = sorted((h for h in holding if h.unread >= share), key=lambda holder: holder.served_at)
        excess, count = self.unread - self._limits.max_buffered_bytes * 7 // 8, 0
        while excess > 0 and count < len(greedy):
            excess -= greedy[count].unread
            count += 1
        return greedy[:count]
