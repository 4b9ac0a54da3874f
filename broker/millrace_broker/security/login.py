"""A connection's SASL login: the mechanisms that it may use, and its progress.

A client names a mechanism, and then exchanges bytes with it. A client gets the same answer if the user, the
password or the bytes are wrong. If a login has a limited lifetime, the client must log in again as the same
user within that time (KIP-368). Requests and sockets are handled elsewhere.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Protocol

from millrace_broker.mailbox import started_threads
from millrace_broker.security.rights import ANONYMOUS

MAX_REQUESTS = 8
"""Most requests of one connection before it has logged in. A login takes at most five."""
MAX_FRAME_BYTES = 64 << 10
"""Largest request before a login."""
MIN_RENEWAL_S = 1.0
"""Seconds after a login before the client may log in again, as in Kafka."""
MAX_WAITING = 16
"""Most logins that wait for the thread that checks them. Unknown clients can begin any number."""
MAX_WAITING_OF_HOST = MAX_WAITING // 2
"""Most waiting logins of one host, so that a host cannot take the room of other hosts."""


class LoginFailed(Exception):
    """The client has not proven its identity. The text is for the log, and never for the client."""


class Exchange(Protocol):
    """One exchange of a mechanism, in progress."""

    slow: bool
    """True if `answer` takes too long for the loop."""
    user: str | None
    """The authenticated user; None while the exchange is not complete."""
    listed: bool
    """True for a user in the cluster's list: its connections are closed when the user is deleted."""
    until: float | None
    """Expiry of the proof, in seconds since 1970; None: never."""

    def answer(self, message: bytes) -> bytes:
        """Return the bytes to send back. Raise LoginFailed when the proof fails."""


Mechanisms = Mapping[str, Callable[[], Exchange]]
"""Name -> function that begins an exchange."""


class Login:
    """One connection's login, from its first request to its principal, and later logins of the same
    principal.
    """

    def __init__(
        self,
        mechanisms: Mechanisms,
        lifetime_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        failures: Counter[str] | None = None,
    ) -> None:
        """Prepare a login, which holds for `lifetime_s`, or as long as the connection.

        `failures` counts by mechanism.
        """
        self.mechanisms = mechanisms
        self._failures: Counter[str] = Counter() if failures is None else failures
        self._mechanism = ""
        self.failed = False
        """True after a failure: the client may not try again on this connection."""
        self.user: str | None = None
        """The user that has logged in, if it is in the cluster's list."""
        self.holds_s: float | None = None
        """Lifetime in seconds of the last login, counted from the login; None: as long as the connection."""
        self._principal: str | None = None
        self._lifetime_s, self._clock = lifetime_s, clock
        self._proved_at = 0.0
        self._exchange: Exchange | None = None
        self._waits = False
        self._requests = 0

    def may_ask(self) -> bool:
        """Count a request before the login. Return False above the limit, or after a failure."""
        self._requests += 1
        return self._requests <= MAX_REQUESTS and not self.failed

    @property
    def may_begin(self) -> bool:
        """True if a handshake is allowed: before a login, and again if logins have a limited lifetime."""
        if self._exchange is not None or self.failed:
            return False
        if self._principal is None:
            return True
        return self.holds_s is not None and self._clock() - self._proved_at >= MIN_RENEWAL_S

    def begin(self, mechanism: str) -> None:
        self._exchange, self._waits, self._mechanism = self.mechanisms[mechanism](), True, mechanism

    def fail(self) -> None:
        """Refuse the client from now on: it has not proven its identity."""
        self.failed = True
        self._failures[self._mechanism] += 1

    def take(self) -> Exchange | None:
        """Return the exchange that waits for the client's bytes, for one `answer`; None if there is none."""
        if not self._waits or self.failed:
            return None
        self._waits = False
        return self._exchange

    def answered(self, exchange: Exchange) -> str | None:
        """Note that the exchange has answered. Return the principal once it is authenticated.

        Raise LoginFailed when the principal differs from the one before, or the proof has expired.
        """
        if exchange.user is None:
            self._waits = True
            return None
        principal = f"User:{exchange.user}"
        holds = [self._lifetime_s] if self._lifetime_s is not None else []
        if exchange.until is not None:
            holds.append(exchange.until - time.time())
        self.holds_s = min(holds, default=None)
        if (
            principal == ANONYMOUS
        ):  # rules for this principal are for clients of listeners without authentication
            raise LoginFailed(f"{principal} is the name of clients without a login: use another name")
        if self._principal not in (None, principal):
            raise LoginFailed(f"{self._principal} logs in as {principal} on the same connection")
        if self.holds_s is not None and self.holds_s <= 0:
            raise LoginFailed(f"the login of {principal} has expired")
        self.user = exchange.user if exchange.listed else None
        self._principal, self._exchange, self._proved_at = principal, None, self._clock()
        return principal


class LoginThread:
    """A thread that checks logins which take too long for the loop, at most MAX_WAITING at a time.

    Must be called on the loop.
    """

    def __init__(self, post: Callable[[Callable[[], None]], None]) -> None:
        """Start the thread; `post` runs a function on the loop."""
        self._post = post
        self._waiting: Counter[str] = Counter()
        """Number of waiting logins by host."""
        self._threads = started_threads(1, "login")

    def answer(
        self, host: str, exchange: Exchange, message: bytes, then: Callable[[Future[bytes]], None]
    ) -> None:
        """Let the exchange answer, then call `then` on the loop.

        Raise LoginFailed when too many logins wait.
        """
        waiting, own = self._waiting.total(), self._waiting[host]
        if waiting >= MAX_WAITING or own >= MAX_WAITING_OF_HOST:
            raise LoginFailed(
                f"{waiting} other logins wait already, {own} of them from there; the client should try again"
            )
        self._waiting[host] += 1

        def done(future: Future[bytes]) -> None:
            self._waiting -= Counter({host: 1})  # also drops a host at zero
            then(future)

        future = self._threads.submit(exchange.answer, message)
        future.add_done_callback(lambda future: self._post(lambda: done(future)))
