"""PLAIN (RFC 4616): the client sends its password, which is checked against the SCRAM record of the user.

For TLS only. A thread hashes the password with the iterations in the user's record. The password is not
stored. The check of an unknown user takes as long as the check of a user with ITERATIONS.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable

from scramp import ScramException

from millrace_broker.security.login import LoginFailed
from millrace_broker.security.scram import ITERATIONS, MECHANISMS, Credential, Credentials

MAX_BYTES = 2_000
"""Most bytes of user and password together."""
_STRONGEST_FIRST = ("SCRAM-SHA-512", "SCRAM-SHA-256")
_NO_CREDENTIAL = Credential(bytes(32), b"", b"", ITERATIONS)


class PlainExchange:
    """One client's exchange: its only message carries the user and the password."""

    slow = True
    listed = True
    until: float | None = None

    def __init__(self, find: Callable[[str], Credentials | None]) -> None:
        self.user: str | None = None
        self._find = find

    def answer(self, message: bytes) -> bytes:
        try:
            if len(message) > MAX_BYTES:
                raise ValueError
            other, user, password = message.decode().split("\0")
        except ValueError:  # its text would show the password
            raise LoginFailed(f"PLAIN with a message of {len(message)} bytes that is malformed") from None
        if other not in ("", user):
            raise LoginFailed(f"PLAIN as {user[:100]!r}, which requests the identity of {other[:100]!r}")
        mechanism, kept = self._credential(user)
        known = kept is not _NO_CREDENTIAL
        try:
            made = MECHANISMS[mechanism].make_auth_info(password, kept.iterations, kept.salt)
            right = hmac.compare_digest(made[1], kept.stored_key)
        except (ScramException, ValueError):
            right = False
        if not right:
            what = "the password is wrong" if known else "the user does not exist"
            raise LoginFailed(f"PLAIN as {user[:100]!r}: {what}")
        if self._credential(user) != (mechanism, kept):
            raise LoginFailed(f"PLAIN as {user[:100]!r}, whose password was changed meanwhile")
        self.user = user
        return b""

    def _credential(self, user: str) -> tuple[str, Credential]:
        credentials = self._find(user) or {}
        for mechanism in _STRONGEST_FIRST:
            if mechanism in credentials:
                return mechanism, credentials[mechanism]
        return _STRONGEST_FIRST[0], _NO_CREDENTIAL
