"""The kinds of messages: a row, a tombstone, or one of three kinds of rejected records.

A tombstone is a message without a value: its producer has deleted the key. It is neither a row nor a failure.
"""

from __future__ import annotations

import re
import string
from enum import StrEnum

FIRST_BYTES = 8
"""Most bytes of a message with a foreign framing that an error quotes."""
_LOOKED_AT = 64
_JSON = re.compile(rb"""\s*(\{\s*["}]|\[\s*[\[{"\-0-9tfn\]])""")
"""First characters of a JSON object or array. A line of a text log may begin with a bracket, too."""
_TEXT = frozenset(string.printable)
_LENGTH_FIRST, _TYPES = 2, (0, 1, 2, 5)
"""Wire types of Protocol Buffers: the type of text and bytes, and all types."""


class Kind(StrEnum):
    """Kinds of rejected records."""

    FOREIGN_FRAMING = "foreign_framing"
    """Messages that do not begin with the registry's zero byte and a schema id."""
    UNKNOWN_SCHEMA = "unknown_schema"
    """Messages with a schema id that the registry does not have."""
    BROKEN_BODY = "broken_body"
    """Messages whose body cannot be decoded into a row of their schema. Includes all records of an unreadable
    batch.
    """

    @property
    def words(self) -> str:
        return self.replace("_", " ")


TOMBSTONE = "tombstone"
ASIDE = (TOMBSTONE, *(kind.value for kind in Kind))
"""The kinds of messages that do not become rows."""


def name_format(value: bytes) -> str:
    """Name the format that the first bytes of a value look like."""
    start = value[:_LOOKED_AT]
    if not start:
        return "an empty value"
    if start[0] == 0 and len(value) < 5:
        return "a schema id that is cut off"
    if start.startswith(b"Obj\1"):
        return "an Avro file"
    if _JSON.match(start):
        return "JSON"
    if _is_text(start, is_cut=len(value) > len(start)):
        return "plain text"
    if _is_protobuf(value):
        return "Protocol Buffers"
    return "no format that is known here"


def _is_text(start: bytes, *, is_cut: bool) -> bool:
    try:
        text = start.decode()
    except UnicodeDecodeError as error:
        if not is_cut or error.start < len(start) - 3:
            return False
        text = start[: error.start].decode()
    return all(letter in _TEXT or letter.isprintable() for letter in text)


def _is_protobuf(value: bytes) -> bool:
    """Return True if the value may begin with a field of Protocol Buffers."""
    number, type_ = divmod(value[0], 8)
    if type_ == _LENGTH_FIRST and len(value) > 1 and value[1] < 0x80:
        return number > 0 and 2 + value[1] <= len(value)
    return number > 0 and type_ in _TYPES
