"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, 7677): the stored record of a password, and the server's side.

No password is stored, and a record is not enough to log in. An unknown user is challenged like any other user
and fails at the proof. So the names of users with ITERATIONS and a salt of the usual length cannot be found
out. The exchange itself is done by scramp.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from scramp import ScramException, ScramMechanism

from millrace.errors import ConfigError
from millrace_broker.security.login import Exchange, LoginFailed, Mechanisms

MECHANISMS = {
    "SCRAM-SHA-256": ScramMechanism("SCRAM-SHA-256"),
    "SCRAM-SHA-512": ScramMechanism("SCRAM-SHA-512"),
}
MECHANISM_NUMBERS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
"""The mechanisms' numbers in Kafka's messages."""
_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
ITERATIONS = 8_192
MIN_ITERATIONS, MAX_ITERATIONS = 4_096, 1_000_000
_SALT_BYTES = 32
"""Length of a salt, as scramp draws it: it must not reveal that a user exists."""


@dataclass(frozen=True, slots=True)
class Credential:
    """The stored record of a user's password for one mechanism."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


Credentials = Mapping[str, Credential]
"""A user's credentials by mechanism."""


def check_iterations(iterations: int) -> None:
    """Raise ConfigError when the number of iterations is not allowed."""
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise ConfigError(
            f"{iterations} iterations: between {MIN_ITERATIONS} and {MAX_ITERATIONS} are allowed"
        )


def credential_of_salted(mechanism: str, salt: bytes, salted_password: bytes, iterations: int) -> Credential:
    """Return the record of a password that the client has hashed (RFC 5802, section 3)."""
    hashed = _HASHES[mechanism]
    stored_key = hashlib.new(hashed, hmac.digest(salted_password, b"Client Key", hashed)).digest()
    return Credential(salt, stored_key, hmac.digest(salted_password, b"Server Key", hashed), iterations)


def make_credential(mechanism: str, password: str, iterations: int = ITERATIONS) -> Credential:
    """Return the record of a password. Raise ConfigError when the password or the iterations are invalid."""
    check_iterations(iterations)
    if not password:
        raise ConfigError("the password is empty: give one of at least one character")
    try:
        return Credential(*MECHANISMS[mechanism].make_auth_info(password, iteration_count=iterations))
    except ScramException as error:
        raise ConfigError(f"the password cannot be used with {mechanism}: {error}") from None


class ScramExchange:
    """One client's exchange. The first message is answered by a challenge, and the last by the server's own
    proof.
    """

    slow = False
    listed = True
    until: float | None = None

    def __init__(self, mechanism: str, find: Callable[[str], Credentials | None], secret: bytes) -> None:
        """Begin an exchange; `secret` is the cluster's secret, from which an unknown user's challenge is
        derived.
        """
        self.user: str | None = None
        self._mechanism, self._find, self._secret = mechanism, find, secret
        self._named, self._known = "", False
        self._server = MECHANISMS[mechanism].make_server(self._credential)
        self._challenged = False

    def answer(self, message: bytes) -> bytes:
        try:
            text = message.decode()
            if not self._challenged:
                self._server.set_client_first(text)
                self._challenged = True
                return str(self._server.get_server_first()).encode()
            self._server.set_client_final(text)
            proof = str(self._server.get_server_final()).encode()
        except (ScramException, ValueError) as error:  # its text would reveal whether the user exists
            raise LoginFailed(f"{self._mechanism} as {self._named[:100]!r}: {error}") from None
        if self._known and self._mechanism not in (self._find(self._named) or {}):
            self._known = False  # deleted since the challenge
        if not self._known:
            raise LoginFailed(f"{self._mechanism} as {self._named[:100]!r}: the user does not exist")
        self.user = self._named
        return proof

    def _credential(self, user: str) -> tuple[bytes, bytes, bytes, int]:
        self._named = user
        kept = (self._find(user) or {}).get(self._mechanism)
        self._known = kept is not None
        if kept is not None:
            return kept.salt, kept.stored_key, kept.server_key, kept.iterations

        def drawn(what: str) -> bytes:
            text = f"{what} {self._mechanism} {user}".encode()
            return hmac.digest(self._secret, text, _HASHES[self._mechanism])

        return drawn("salt")[:_SALT_BYTES], drawn("stored key"), drawn("server key"), ITERATIONS


def scram_mechanisms(
    names: Sequence[str], find: Callable[[str], Credentials | None], secret: bytes
) -> Mechanisms:
    """Return the SCRAM mechanisms among `names`; `find` returns a user's credentials."""

    def begin(name: str) -> Callable[[], Exchange]:
        return lambda: ScramExchange(name, find, secret)

    return {name: begin(name) for name in names if name in MECHANISMS}
