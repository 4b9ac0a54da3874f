"""How one connection proves by SASL who it is: which mechanisms it may use, and how far it has come.

A client names a mechanism, then exchanges bytes with it. Whatever is wrong, user, password or bytes, it hears
the same. Where a login holds for a time only, the client proves again in that time that it is the same user
(KIP-368). Knows no requests and no sockets.
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
"""Of one connection before it has logged in: an exchange takes five at most."""
MAX_FRAME_BYTES = 64 << 10
"""The largest request before a login."""
MIN_RENEWAL_S = 1.0
"""How soon after a login the client may prove again who it is, as in Kafka."""
MAX_WAITING = 16
"""Proofs that wait for the thread that looks at them; a stranger can make as many as it likes."""
MAX_WAITING_OF_HOST = MAX_WAITING // 2
"""Of one host: who makes as many as it can leaves the others room."""


class LoginFailed(Exception):
    """The client has not proved who it is; the text is for the log and never for the client."""


class Exchange(Protocol):
    """One mechanism under way."""

    slow: bool
    """Whether `answer` takes too long for the loop."""
    user: str | None
    """Who has proved to be that; None so far."""
    listed: bool
    """Whether it is one of the cluster's users, and out when it is deleted."""
    until: float | None
    """When the proof ends, in seconds since 1970; None: never."""

    def answer(self, message: bytes) -> bytes:
        """What to send back; LoginFailed when the proof fails."""


Mechanisms = Mapping[str, Callable[[], Exchange]]
"""Name -> what begins an exchange."""


class Login:
    """A connection's way from its first request to its principal, and on to the next proof of it."""

    def __init__(
        self,
        mechanisms: Mechanisms,
        lifetime_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        failures: Counter[str] | None = None,
    ) -> None:
        """A login holds for `lifetime_s`, or as long as the connection; `failures` counts by mechanism."""
        self.mechanisms = mechanisms
        self._failures: Counter[str] = Counter() if failures is None else failures
        self._mechanism = ""
        self.failed = False
        """Nothing more is heard from a client that has failed once."""
        self.user: str | None = None
        """Who has logged in, if it is one of the cluster's users."""
        self.holds_s: float | None = None
        """How long the last proof holds, from its moment on; None: as long as the connection."""
        self._principal: str | None = None
        self._lifetime_s, self._clock = lifetime_s, clock
        self._proved_at = 0.0
        self._exchange: Exchange | None = None
        self._waits = False
        self._requests = 0

    def may_ask(self) -> bool:
        """Count a request before the login; False for one too many."""
        self._requests += 1
        return self._requests <= MAX_REQUESTS and not self.failed

    @property
    def may_begin(self) -> bool:
        """Whether a handshake is in order: before a login, and again where it holds for a time only."""
        if self._exchange is not None or self.failed:
            return False
        if self._principal is None:
            return True
        return self.holds_s is not None and self._clock() - self._proved_at >= MIN_RENEWAL_S

    def begin(self, mechanism: str) -> None:
        self._exchange, self._waits, self._mechanism = self.mechanisms[mechanism](), True, mechanism

    def fail(self) -> None:
        """Hear nothing more of the client, which has not proved what it must."""
        self.failed = True
        self._failures[self._mechanism] += 1

    def take(self) -> Exchange | None:
        """The exchange that waits for the client's bytes, for one `answer`; None when none does."""
        if not self._waits or self.failed:
            return None
        self._waits = False
        return self._exchange

    def answered(self, exchange: Exchange) -> str | None:
        """Note that the exchange has answered; the principal once it is proved.

        LoginFailed when it is another one than before, or holds no longer.
        """
        if exchange.user is None:
            self._waits = True
            return None
        principal = f"User:{exchange.user}"
        holds = [self._lifetime_s] if self._lifetime_s is not None else []
        if exchange.until is not None:
            holds.append(exchange.until - time.time())
        self.holds_s = min(holds, default=None)
        if principal == ANONYMOUS:  # rules for it are for clients of listeners that ask for no proof
            raise LoginFailed(f"{principal} is who has not logged in: use another name")
        if self._principal not in (None, principal):
            raise LoginFailed(f"{self._principal} proves to be {principal} now, on the same connection")
        if self.holds_s is not None and self.holds_s <= 0:
            raise LoginFailed(f"the proof of {principal} holds no longer")
        self.user = exchange.user if exchange.listed else None
        self._principal, self._exchange, self._proved_at = principal, None, self._clock()
        return principal


class LoginThread:
    """Looks at proofs that take too long for the loop, at most MAX_WAITING at a time; call it on the loop."""

    def __init__(self, post: Callable[[Callable[[], None]], None]) -> None:
        """`post` runs a function on the loop."""
        self._post = post
        self._waiting: Counter[str] = Counter()
        """By host."""
        self._threads = started_threads(1, "login")

    def answer(
        self, host: str, exchange: Exchange, message: bytes, then: Callable[[Future[bytes]], None]
    ) -> None:
        """Let the exchange answer, then call `then` on the loop; LoginFailed when too many wait."""
        waiting, own = self._waiting.total(), self._waiting[host]
        if waiting >= MAX_WAITING or own >= MAX_WAITING_OF_HOST:
            raise LoginFailed(
                f"{waiting} other logins wait already, {own} of them from there; the client should try again"
            )
        self._waiting[host] += 1

        def done(future: Future[bytes]) -> None:
            self._waiting -= Counter({host: 1})  # which forgets a host of which none waits
            then(future)

        future = self._threads.submit(exchange.answer, message)
        future.add_done_callback(lambda future: self._post(lambda: done(future)))
