"""How one connection proves by SASL who it is: which mechanisms it may use, and how far it has come.

A client names a mechanism, then exchanges bytes with it. Whatever is wrong, user, password or bytes, it hears
the same. Knows no requests and no sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

MAX_REQUESTS = 8
"""Of one connection before it has logged in: an exchange takes five at most."""
MAX_FRAME_BYTES = 64 << 10
"""The largest request before a login."""


class LoginFailed(Exception):
    """The client has not proved who it is; the text is for the log and never for the client."""


class Exchange(Protocol):
    """One mechanism under way."""

    user: str | None
    """Who has proved to be that; None so far."""

    def answer(self, message: bytes) -> bytes:
        """What to send back; LoginFailed when the proof fails."""


Mechanisms = Mapping[str, Callable[[], Exchange]]
"""Name -> what begins an exchange."""


class Login:
    """A connection's way from its first request to its principal."""

    def __init__(self, mechanisms: Mechanisms) -> None:
        self.mechanisms = mechanisms
        self.failed = False
        """Nothing more is heard from a client that has failed once."""
        self._exchange: Exchange | None = None
        self._requests = 0

    def may_ask(self) -> bool:
        """Count a request before the login; False for one too many."""
        self._requests += 1
        return self._requests <= MAX_REQUESTS and not self.failed

    @property
    def begun(self) -> bool:
        return self._exchange is not None

    def begin(self, mechanism: str) -> None:
        """Begin an exchange by a mechanism that is in `mechanisms`."""
        self._exchange = self.mechanisms[mechanism]()

    def answer(self, message: bytes) -> tuple[bytes, str | None]:
        """What to send back, and the user's name once it is proved; LoginFailed when it will never be."""
        assert self._exchange is not None, "an exchange has begun"
        try:
            return self._exchange.answer(message), self._exchange.user
        except LoginFailed:
            self.failed = True
            raise
