"""Admission of connections to a broker, and the limit on the memory that clients hold together.

Admission keeps the counts and decides which client must wait. It closes nothing itself, and uses no sockets
and no protocol.

A connection holds the bytes of its unfinished and unserved requests and of its unsent answers, and for each
unanswered request the request's size, at least REQUEST_BYTES. Once the sum of all connections exceeds
`max_buffered_bytes`, a connection that holds more than a quarter of an even share is not read, until an
eighth of the sum is free again. The connection with the oldest unfinished request is always read: otherwise
all connections could wait for each other.

Connections over which brokers copy are not counted and not limited: clients that use up everything must not
make followers fall out of sync.
"""

from __future__ import annotations

import resource
from collections import Counter

from millrace.config import ClientLimits
from millrace_broker.server.connection import ClientConnection
from millrace_broker.server.request import REQUEST_BYTES

RESERVED_FILES = 128
"""Descriptors that connections leave to the logs."""
SPARE = 128
"""Most connections over the limits that are kept because they may be brokers. Beyond this number the oldest
is closed."""
MAX_WORKING = 8
"""Most requests of one client in the threads' queue: other clients' requests wait for them."""


class Admission:
    """Counts the connections and their memory, and decides which connections exceed a limit."""

    def __init__(self, limits: ClientLimits) -> None:
        self._limits = limits
        self.addresses: Counter[str] = Counter()
        self._last_file = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - RESERVED_FILES - SPARE
        self.open = self.accepted = self.refused = 0
        self.closed_idle = self.closed_over_limit = self.closed_unauthenticated = 0
        self.closed_login_ended = self.failed_tls = 0
        self.held = 0
        self.over_limit = False
        self.over_since = 0.0
        """Time at which the sum last exceeded the limit."""
        self.max_queued_bytes = limits.max_queued_bytes
        self.max_queued_requests = limits.max_queued_requests
        """Most bytes and requests of one connection at present; while the sum is over the limit, a
        connection's share."""
        self.paused: dict[ClientConnection, None] = {}
        """Connections that may not be read."""
        self.unfinished: dict[ClientConnection, None] = {}
        """Connections with an unfinished request, the oldest first."""

    def refusal(self, address: str, fd: int) -> str | None:
        """Return the reason for which a new connection cannot stay.

        Otherwise count it as open and return None.
        """
        limits = self._limits
        self.accepted += 1
        if self.open >= limits.max_connections:
            reason = f"{self.open} are open (max_connections)"
        elif self.addresses[address] >= limits.max_connections_per_address:
            reason = f"{self.addresses[address]} of its address are open (max_connections_per_address)"
        elif fd >= self._last_file:  # the kernel gives the lowest free number
            reason = "too few file descriptors are left for the logs; raise `ulimit -n`"
        else:
            self.open += 1
            self.addresses[address] += 1
            return None
        return reason

    def has_spare(self, fd: int) -> bool:
        """Return True while one more connection may stay because it may be a broker's."""
        return fd < self._last_file + SPARE

    def exempt(self, connection: ClientConnection, now: float) -> None:
        """Stop counting a connection: a broker copies over it."""
        self.note(connection, 0, unfinished=False, now=now)
        self.paused.pop(connection, None)

    def leave(self, address: str) -> None:
        self.open -= 1
        self.addresses[address] -= 1
        if not self.addresses[address]:
            del self.addresses[address]

    @property
    def share(self) -> int:
        """A quarter of an even share of the limit in bytes.

        All connections that hold less cannot exceed the limit together.
        """
        return self._limits.max_buffered_bytes // 4 // max(1, self.open)

    def is_full(self, connection: ClientConnection) -> bool:
        """Return True while the client must receive answers before it may send more requests."""
        is_full = (
            connection.queued_bytes > self.max_queued_bytes
            or connection.unanswered >= self.max_queued_requests
            or connection.working >= MAX_WORKING
        )
        return is_full and not connection.is_broker

    def is_too_much(self, connection: ClientConnection) -> bool:
        """Return True for a client with too many unsent answers at twice the limit: nothing
        else bounds them.
        """
        on_its_way = connection.queued_bytes + connection.kept_bytes
        return self.held > 2 * self._limits.max_buffered_bytes and on_its_way > self.share

    def note(self, connection: ClientConnection, held: int, *, unfinished: bool, now: float) -> None:
        """Note the bytes that a connection holds now.

        `unfinished` is True if an unfinished request is part of them.
        """
        self.held += held - connection.held
        connection.held = held
        if not unfinished or connection.served_at == now:
            self.unfinished.pop(connection, None)
        if unfinished:
            self.unfinished.setdefault(connection)  # a connection served in this turn goes after the others
        if self.over_limit or self.held > self._limits.max_buffered_bytes:
            self._limit(now)
            if self.over_limit and held > self.share and connection is not self._oldest():
                self.paused[connection] = None
                return
        if self.paused:
            self.paused.pop(connection, None)

    def _limit(self, now: float) -> None:
        limits, share = self._limits, self.share
        limit = limits.max_buffered_bytes
        over_limit = self.held > (limit * 7 // 8 if self.over_limit else limit)
        if over_limit and not self.over_limit:
            self.over_since = now
        self.over_limit = over_limit
        self.max_queued_bytes = min(limits.max_queued_bytes, share) if over_limit else limits.max_queued_bytes
        most = max(1, share // REQUEST_BYTES) if over_limit else limits.max_queued_requests
        self.max_queued_requests = min(limits.max_queued_requests, most)

    def _oldest(self) -> ClientConnection | None:
        return next(iter(self.unfinished), None)

    def pass_over_oldest(self, since: float) -> None:
        """Put the oldest unfinished request after all others if it has made no progress since `since`."""
        oldest = self._oldest()
        if oldest is not None and oldest.received_at <= since:
            del self.unfinished[oldest]
            self.unfinished[oldest] = None

    def resumed(self) -> list[ClientConnection]:
        """Return the paused connections that may be read again. Called at the end of a turn."""
        oldest = self._oldest()
        if not self.over_limit:
            resumed = list(self.paused)
        else:
            resumed = [oldest] if oldest is not None and oldest in self.paused else []
        for connection in resumed:
            del self.paused[connection]
        return resumed
