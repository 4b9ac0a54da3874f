"""The kinds of messages: a row, a tombstone, or one of three kinds of rejected records. Looks of their bytes.

A tombstone is a message without a value: its producer has deleted the key. It is neither a row nor a failure.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from enum import StrEnum

FIRST_BYTES = 8
"""Most bytes of a message with a foreign framing that an error quotes."""
_LOOKED_AT = 64
_OBJECT = re.compile(rb"""\s*\{\s*["}]""")
_ARRAY = re.compile(rb"""\s*\[\s*[\[{"\-0-9tfn\]]""")
"""First characters of a JSON array. A line of a text log may begin with a bracket, too."""
_TEXT = frozenset(string.printable)
_FRAME_BYTES = 5
_FIELD_BYTES = {0: None, 1: 8, 2: None, 5: 4}
"""Wire type of Protocol Buffers -> bytes of a field; None if a variable-length number decides."""
_MAX_FIELD = (1 << 29) - 1


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


class Look(StrEnum):
    """Names of what a value looks like by its first bytes."""

    EMPTY = "an empty value"
    CUT_OFF = "a schema id that is cut off"
    AVRO_FILE = "an Avro file"
    OBJECT = "JSON"
    ARRAY = "a JSON array"
    TEXT = "plain text"
    PROTOBUF = "Protocol Buffers"
    FRAMED_AVRO = "Avro in Confluent's wire format"
    FRAMED_OBJECT = "JSON in Confluent's wire format"
    FRAMED_PROTOBUF = "Protocol Buffers in Confluent's wire format"
    UNKNOWN = "no format that is known here"

    @property
    def plural(self) -> str:
        return _PLURALS.get(self, self)

    @property
    def formats(self) -> Sequence[str]:
        """The formats of messages that may take such values, the likeliest first."""
        return _FORMATS.get(self, ("bytes",))


_PLURALS = {
    Look.EMPTY: "empty values",
    Look.CUT_OFF: "schema ids that are cut off",
    Look.AVRO_FILE: "Avro files",
    Look.OBJECT: "JSON objects",
    Look.ARRAY: "JSON arrays",
}
_FORMATS = {
    Look.CUT_OFF: ("bytes", "avro-unframed"),
    Look.OBJECT: ("json",),
    Look.ARRAY: ("text",),
    Look.TEXT: ("text",),
    Look.PROTOBUF: ("bytes", "avro-unframed"),
    Look.FRAMED_AVRO: ("avro",),
    Look.FRAMED_OBJECT: ("json",),
    Look.UNKNOWN: ("bytes", "avro-unframed"),
}


def name_format(value: bytes) -> Look:
    """Name the format that the first bytes of a value look like."""
    start = value[:_LOOKED_AT]
    if not start:
        return Look.EMPTY
    if start[0] == 0:
        return _framed(value) if len(value) >= _FRAME_BYTES else Look.CUT_OFF
    if start.startswith(b"Obj\1"):
        return Look.AVRO_FILE
    if _OBJECT.match(start):
        return Look.OBJECT
    if _ARRAY.match(start):
        return Look.ARRAY
    if _is_text(start, is_cut=len(value) > len(start)):
        return Look.TEXT
    return Look.PROTOBUF if _is_protobuf(value) else Look.UNKNOWN


def _framed(value: bytes) -> Look:
    """Name the format of a body after a zero byte and a schema id."""
    body = value[_FRAME_BYTES:]
    if _OBJECT.match(body[:_LOOKED_AT]):
        return Look.FRAMED_OBJECT
    # A zero names the first message of the schema's file, and nearly every topic holds that message.
    if body[:1] == b"\0" and _is_protobuf(body[1:]):
        return Look.FRAMED_PROTOBUF
    return Look.FRAMED_AVRO


def _is_text(start: bytes, *, is_cut: bool) -> bool:
    try:
        text = start.decode()
    except UnicodeDecodeError as error:
        if not is_cut or error.start < len(start) - 3:
            return False
        text = start[: error.start].decode()
    return all(letter in _TEXT or letter.isprintable() for letter in text)


def _is_protobuf(value: bytes) -> bool:
    """Return True if the value is whole fields of Protocol Buffers, as far as it is looked at."""
    position = 0
    while position < min(len(value), _LOOKED_AT):
        tag, position = _varint(value, position)
        number, type_ = divmod(tag, 8)
        if not 0 < number <= _MAX_FIELD or type_ not in _FIELD_BYTES:
            return False
        size = _FIELD_BYTES[type_]
        if size is None:
            size, position = _varint(value, position)
        position += size if type_ else 0
    return 0 < position <= len(value)


def _varint(value: bytes, position: int) -> tuple[int, int]:
    """Return a variable-length number and the position after it: past the end if the number is cut off."""
    number = shift = 0
    for byte in value[position : position + 10]:
        number |= (byte & 0x7F) << shift
        shift, position = shift + 7, position + 1
        if byte < 0x80:
            return number, position
    return 0, len(value) + 1
