"""Bound on the values of a JSON text, checked without parsing it."""

from __future__ import annotations

MOST_VALUES = 200_000
"""Most commas and brackets in a text: Python parses about a million empty lists a second, and holds its lock
meanwhile."""
_QUOTES_OF_VALUE = 4
"""Most quotation marks of a value: it and its name are at most two strings."""


def has_too_many_values(text: bytes) -> bool:
    """Return True for JSON in UTF-8 with more than MOST_VALUES commas and brackets outside of strings."""
    plain = text.replace(rb"\\", b"").replace(rb"\"", b"")  # now every quote begins or ends a string
    if plain.count(b'"') > _QUOTES_OF_VALUE * MOST_VALUES:
        return True
    if sum(map(plain.count, _OPENERS)) <= MOST_VALUES:
        return False
    outside = b"".join(plain.split(b'"')[::2])
    return sum(map(outside.count, _OPENERS)) > MOST_VALUES


_OPENERS = (b",", b"[", b"{")
