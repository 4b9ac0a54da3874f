"""OAUTHBEARER (RFC 7628): a client sends a token that an issuer has signed. The token names its user.

A token's signature is checked with a key of the issuer's key set; its issuer, audience and times are checked
as well. The configuration names the algorithms, none of which uses a shared secret. An unsigned token is
refused. Keys are fetched in a thread of their own, never while a client waits: a client whose token names an
unknown key is refused, and the set is fetched again, at most once in MIN_INTERVAL_S.
"""

from __future__ import annotations

import json
import logging
import re
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from millrace.config import OauthConfig, TlsConfig
from millrace.security.certificates import client_context
from millrace_broker.security.login import LoginFailed

logger = logging.getLogger("millrace.security.oauth")
REFRESH_S = 3600.0
"""Seconds between fetches of the key set while they succeed."""
MIN_INTERVAL_S = 60.0
"""Shortest time in seconds before the set is fetched again, after an unknown key or a failed fetch."""
TIMEOUT_S = 10.0
"""Longest time of one fetch."""
MAX_BYTES, MAX_KEYS = 256 << 10, 100
"""Limits of a key set."""
MIN_RSA_BITS = 2048
LEEWAY_S = 30
"""Seconds by which the issuer's clock may differ from this machine's."""
MAX_NAME_CHARACTERS = 249
_TOKEN_ERRORS = (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError)
"""Errors that an invalid token or key can raise."""


class SigningKey(NamedTuple):
    """A public key of the issuer."""

    key: Any
    algorithm: str | None
    """The only algorithm for which the key may be used, if the set names one."""


class KeySet:
    """The issuer's keys, as fetched last. `key` is for any thread."""

    def __init__(self, config: OauthConfig, fetch: Callable[[], bytes] | None = None) -> None:
        self._config, self._fetch = config, fetch or self._fetch_from_issuer
        self._keys: Mapping[str, SigningKey] = {}
        self._wake, self._stopped = threading.Event(), threading.Event()

    def key(self, key_id: str) -> SigningKey | None:
        """Return the key, or None when it is unknown: then the set is fetched again soon."""
        key = self._keys.get(key_id)
        if key is None:
            self._wake.set()
        return key

    def watch(self) -> None:
        """Fetch the set now and at intervals, in a thread of its own, until `stop`."""

        def follow() -> None:
            while not self._stopped.is_set():
                self._wake.clear()  # before the fetch: the result may lack a key that is requested meanwhile
                well = self.refresh()
                if not self._stopped.wait(MIN_INTERVAL_S) and well:
                    self._wake.wait(REFRESH_S)

        threading.Thread(target=follow, name="key-set", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        self._wake.set()

    def refresh(self) -> bool:
        """Fetch the set. Return True when that succeeds; otherwise keep the keys and log the reason."""
        try:
            self._keys = parse_keys(self._fetch())
        except Exception as error:  # logins with known keys must work whatever an issuer answers
            logger.error("the keys of %s stay as they were: %s", self._config.jwks, error)
            return False
        logger.info("fetched %d keys from %s", len(self._keys), self._config.jwks)
        return True

    def _fetch_from_issuer(self) -> bytes:
        import httpx  # imported only where tokens are taken

        context: ssl.SSLContext = client_context(TlsConfig(ca=self._config.ca))
        data, give_up_at = b"", time.monotonic() + TIMEOUT_S
        # Without redirects: a redirect could lead to a server without TLS.
        with (
            httpx.Client(verify=context, timeout=TIMEOUT_S, follow_redirects=False) as client,
            client.stream("GET", self._config.jwks) as response,
        ):
            if response.status_code != 200:
                raise ValueError(f"it answers with status {response.status_code}")
            for piece in response.iter_bytes(64 << 10):
                data += piece
                if len(data) > MAX_BYTES:
                    raise ValueError(f"it has more than {MAX_BYTES} bytes")
                if time.monotonic() > give_up_at:
                    raise TimeoutError(f"it is not whole after {TIMEOUT_S:.0f} s")
        return data


def parse_keys(data: bytes) -> Mapping[str, SigningKey]:
    """Return the keys of a key set (RFC 7517) that may sign tokens, by id.

    Raise ValueError if the data is no key set.
    """
    values = json.loads(data)
    entries = values.get("keys") if isinstance(values, dict) else None
    if not isinstance(entries, list) or len(entries) > MAX_KEYS:
        raise ValueError(f"it is no key set of at most {MAX_KEYS} keys")
    keys: dict[str, SigningKey] = {}
    for entry in entries:
        if not isinstance(entry, dict) or entry.get("use", "sig") != "sig" or entry.get("kty") == "oct":
            continue
        key_id = entry.get("kid")
        try:
            key = jwt.PyJWK(entry).key
        except _TOKEN_ERRORS:
            continue  # an unknown kind of key
        weak = isinstance(key, RSAPublicKey) and key.key_size < MIN_RSA_BITS
        public = not hasattr(key, "private_numbers") and not hasattr(key, "private_bytes")
        if isinstance(key_id, str) and public and not weak:
            keys[key_id] = SigningKey(key, entry.get("alg"))
    return keys


class BearerExchange:
    """One client's exchange: its only message carries the token."""

    slow = True
    listed = False

    def __init__(self, config: OauthConfig, keys: KeySet) -> None:
        self.user: str | None = None
        self.until: float | None = None
        self._config, self._keys = config, keys

    def answer(self, message: bytes) -> bytes:
        token, other = _token(message)
        claims = self._claims(token)
        user = claims.get(self._config.principal_claim)
        if not isinstance(user, str) or not 0 < len(user) <= MAX_NAME_CHARACTERS or not user.isprintable():
            raise LoginFailed(f"OAUTHBEARER: {self._config.principal_claim} of the token is no user's name")
        if other not in ("", user):
            raise LoginFailed(f"OAUTHBEARER as {user!r}, which requests the identity of {other[:100]!r}")
        self.user, self.until = user, float(claims["exp"]) + LEEWAY_S
        return b""

    def _claims(self, token: str) -> Mapping[str, Any]:
        """Return the claims of a valid token.

        Raise LoginFailed, with the reason and without the token, for an invalid token.
        """
        config = self._config
        try:
            header = jwt.get_unverified_header(token)
            algorithm, key_id = header.get("alg"), header.get("kid")
            if not isinstance(algorithm, str) or algorithm not in config.algorithms:
                raise LoginFailed(
                    f"OAUTHBEARER: algorithm {str(algorithm)[:100]!r} is not in oauth.algorithms"
                )
            key = self._keys.key(key_id) if isinstance(key_id, str) else None
            if key is None:
                raise LoginFailed(f"OAUTHBEARER: no key {str(key_id)[:100]!r} is known")
            if key.algorithm not in (None, algorithm):
                raise LoginFailed(f"OAUTHBEARER: key {str(key_id)[:100]!r} is not for {algorithm}")
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key.key,
                algorithms=[algorithm],
                audience=config.audience,
                issuer=config.issuer,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iss", "aud"]},
            )
        except _TOKEN_ERRORS as error:
            raise LoginFailed(f"OAUTHBEARER: {str(error)[:200]}") from None
        return claims


def _token(message: bytes) -> tuple[str, str]:
    """Return the token in a client's message, and the user that the client names, if any.

    Raise LoginFailed when there is no token.
    """
    match = re.fullmatch(
        rb"n,(?:a=([^,\x01]*))?,\x01((?:[A-Za-z]+=[^\x01]*\x01)+)\x01", message, flags=re.DOTALL
    )
    try:
        if match is None:
            raise ValueError
        pairs = [pair.partition("=") for pair in match[2].decode().split("\1")[:-1]]
        (value,) = (value for key, _, value in pairs if key == "auth")
        scheme, _, token = value.partition(" ")
        if scheme.lower() != "bearer":
            raise ValueError
        return token.strip(), (match[1] or b"").decode().replace("=2C", ",").replace("=3D", "=")
    except ValueError:  # its text would show the token
        raise LoginFailed(f"OAUTHBEARER with a message of {len(message)} bytes that is malformed") from None
