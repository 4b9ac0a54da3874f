"""Seals of reports and signatures. Producers, readers and the auditor compute them in the same way.

    seal           SHA-256 of the key that only the next report of the instance will show
    signature      message key of a count or heartbeat := turn (8 bytes, big endian),
                   HMAC-SHA256(secret, value)

The module handles bytes and numbers, no records and no topics.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

KEY_BYTES, SEAL_BYTES = 16, 32
_TURN_BYTES = 8


def new_key() -> bytes:
    return secrets.token_bytes(KEY_BYTES)


def seal_of(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def sign(turn: int, secret: bytes, value: bytes) -> bytes:
    """Return the message key under which a reader of that turn publishes a record."""
    return turn.to_bytes(_TURN_BYTES, "big") + hmac.digest(secret, value, "sha256")


def signed_turn(key: bytes | None) -> int | None:
    """Return the number of the turn that a message key claims; None when the key is no signature."""
    if key is None or len(key) != _TURN_BYTES + SEAL_BYTES:
        return None
    return int.from_bytes(key[:_TURN_BYTES], "big")


def is_signed(key: bytes, secret: bytes, value: bytes) -> bool:
    """Return True if the message key is the value's signature with the secret.

    The key's turn is not checked.
    """
    return hmac.compare_digest(key[_TURN_BYTES:], hmac.digest(secret, value, "sha256"))
