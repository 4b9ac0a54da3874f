"""Fingerprints of messages' values, and sums of fingerprints. Producers, readers and the auditor compute them
in the same way.

    fast      XXH64 of the value; a sum is modulo 2^64, as a signed number
    strong    XXH64 in the lowest 64 bits, 504 bytes of SHAKE128 above them; a sum is modulo 2^4096, plus
              2^4096, which makes it larger than any fast sum

The sequence of a message is in both hashes, so two messages that swap their values are noticed. It is in the
value, or it is in the record header: then it is the seed of XXH64, and SHAKE128 hashes it behind the value.
The order of the messages does not matter. The lowest 64 bits of a strong sum are the fast sum, so a sum of
both kinds is fast. A fast sum finds accidents; a strong sum also finds forgeries (docs/audit.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import shake_128
from typing import Protocol

from xxhash import xxh64_intdigest

from millrace.topics_file import NO_POLICY, TopicPolicies

STRONG_BYTES = 504
"""Bytes of SHAKE128 in a strong fingerprint: three blocks. Wagner's attack on the sum takes at least 2^126
steps, for any number of replaced messages."""
_VERSION = b"\1"
_FAST_BITS, _MARK = 64, 1 << (64 + 8 * STRONG_BYTES)
_MOST_FAST_BITS = 128  # of 2^64 fast fingerprints that are not yet wrapped


class Fingerprint(Protocol):
    """One of the two functions below."""

    def __call__(self, value: bytes | memoryview, sequence: int | None = None) -> int: ...


def fingerprint(value: bytes | memoryview, sequence: int | None = None) -> int:
    """Return the fast fingerprint of one message, from 0 to 2^64 - 1.

    `sequence` is that of the message's record header; None without one.
    """
    return xxh64_intdigest(value, sequence or 0)


def strong_fingerprint(value: bytes | memoryview, sequence: int | None = None) -> int:
    """Return the strong fingerprint of one message, from 2^4096 to 2^4097 - 1."""
    shake = shake_128(value)
    if sequence is not None:
        shake.update(sequence.to_bytes(8, "big"))
    fast = fingerprint(value, sequence).to_bytes(8, "little")
    return int.from_bytes(b"".join((fast, shake.digest(STRONG_BYTES), b"\1")), "little")


_OF_POLICY: Mapping[str, Fingerprint] = {"fast": fingerprint, "strong": strong_fingerprint}


def fingerprint_of(topic: str, policies: TopicPolicies) -> Fingerprint:
    """Return the function that computes the fingerprints of a topic's messages."""
    return _OF_POLICY[policies.get(topic, NO_POLICY).fingerprint]


def is_strong(total: int) -> bool:
    return abs(total).bit_length() > _MOST_FAST_BITS


def wrapped(total: int) -> int:
    """Return a plain sum of fingerprints of one kind, reduced to the form that `added` takes.

    The sum of no fingerprints is 0.
    """
    return _MARK + total % _MARK if is_strong(total) else _signed(total)


def added(one: int, other: int) -> int:
    """Return the sum of two sums, each of either kind. A negative sum is subtracted."""
    if one and other and is_strong(one) != is_strong(other):
        return _signed(one + other)
    return wrapped(one + other)


def agree(one: int, other: int) -> bool:
    """Return True if two sums are equal. A strong and a fast sum are compared in 64 bits."""
    return one == other or (is_strong(one) != is_strong(other) and _signed(one - other) == 0)


def split(total: int) -> tuple[int, bytes | None]:
    """Return a sum as the two fields of a record: `fingerprint` and `strong`, which is None if it is fast."""
    if not is_strong(total):
        return _signed(total), None
    return _signed(total), _VERSION + (total % _MARK >> _FAST_BITS).to_bytes(STRONG_BYTES, "big")


def joined(fast: int, strong: bytes | None) -> int:
    """Return the sum from the two fields of a record; a strong sum of another version counts as fast.

    Raise ValueError if `strong` is broken.
    """
    if strong is None or strong[:1] != _VERSION:
        return fast
    if len(strong) != 1 + STRONG_BYTES:
        raise ValueError(f"a strong fingerprint has {len(strong)} bytes instead of {1 + STRONG_BYTES}")
    return _MARK | int.from_bytes(strong[1:], "big") << _FAST_BITS | fast % (1 << _FAST_BITS)


def _signed(total: int) -> int:
    """Return the lowest 64 bits as a signed number, which Avro and databases hold."""
    return (total + (1 << 63)) % (1 << 64) - (1 << 63)
