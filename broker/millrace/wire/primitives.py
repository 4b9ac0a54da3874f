"""The primitive types of Kafka's protocol, read and written: numbers, texts, bytes, ids and lengths.

In flexible versions a length is a varint of the length plus 1, so that 0 means null. The module declares no
message.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, Generic, ParamSpec, TypeVar
from uuid import UUID

from millrace.errors import InvalidRequest

P = ParamSpec("P")
T = TypeVar("T")
B = TypeVar("B", bytes, memoryview)
INT8 = struct.Struct(">b")
INT16 = struct.Struct(">h")
INT32 = struct.Struct(">i")
INT64 = struct.Struct(">q")
MIN_ITEM_LIMIT = 2_000
"""Number of items that every cluster accepts in all lists of a request together. Each takes up to 8 us of the
event loop, its answer included: less than 20 ms together."""
MAX_STRING_BYTES = 0x7FFF
"""Longest string in every version, as in Kafka. Flexible versions have no other bound."""
REFUSED_ITEMS = 4_000
"""Number of items over the limit up to which a request is still read, so that each item can be refused."""
_MAX_VARINT_BITS = 35
_NO_UUID = bytes(16)


class RequestTooLarge(InvalidRequest):
    """A request has more items or bytes than a broker reads: its connection is closed."""


class TooManyItems(InvalidRequest):
    """A request has more items than a broker serves: each item is refused."""

    def __init__(self, request: object, items: int, limit: int) -> None:
        super().__init__(f"{items} items in a request; {limit} are allowed")
        self.request = request


def reads(message: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Make a decoding function raise InvalidRequest, with the message's name, for malformed bytes."""

    def decorate(decode: Callable[P, T]) -> Callable[P, T]:
        @wraps(decode)
        def decoded(*args: P.args, **options: P.kwargs) -> T:
            try:
                return decode(*args, **options)
            except (ValueError, IndexError, struct.error) as error:
                raise InvalidRequest(f"malformed {message}: {error}") from error

        return decoded

    return decorate


class Reader(Generic[B]):
    """A reader at a position in a message's bytes; malformed bytes raise ValueError, IndexError or
    struct.error.

    Parts of bytes are bytes, parts of a view are views. `items` is the number of list items still allowed.
    """

    __slots__ = ("encoded", "flexible", "items", "position")

    def __init__(self, encoded: B, *, items: int = sys.maxsize, flexible: bool = False) -> None:
        self.encoded: B = encoded
        self.items, self.flexible, self.position = items, flexible, 0

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        start = self.position
        self.position = start + layout.size
        return layout.unpack_from(self.encoded, start)

    def number(self, layout: struct.Struct) -> int:
        start = self.position
        self.position = start + layout.size
        number: int = layout.unpack_from(self.encoded, start)[0]
        return number

    def part(self, size: int) -> B:
        start = self.position
        end = start + size
        if not start <= end <= len(self.encoded):
            raise ValueError(f"{size} bytes are stated, {len(self.encoded) - start} are there")
        self.position = end
        return self.encoded[start:end]

    def varint(self) -> int:
        number = self.encoded[self.position]
        if number < 0x80:  # nearly every one
            self.position += 1
            return number
        number = 0
        for shift in range(0, _MAX_VARINT_BITS, 7):
            byte = self.encoded[self.position]
            self.position += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
        raise ValueError(f"a number of more than {_MAX_VARINT_BITS} bits")

    def length(self) -> int:
        """Read the length of bytes or a list; negative for null."""
        return self.varint() - 1 if self.flexible else self.number(INT32)

    def count(self, items: int) -> int:
        """Return `items`, a list's length; raise if it exceeds the items allowed or the bytes left."""
        self.items -= items
        if self.items < 0:
            raise RequestTooLarge("too many items in the lists of a request")
        if not 0 <= items <= len(self.encoded) - self.position:
            raise ValueError(f"{items} items are stated, {len(self.encoded) - self.position} bytes are left")
        return items

    def string(self) -> str | None:
        size = self.varint() - 1 if self.flexible else self.number(INT16)
        if size > MAX_STRING_BYTES:
            raise ValueError(f"a string of {size} bytes; {MAX_STRING_BYTES} are allowed")
        return str(self.part(size), "utf-8") if size >= 0 else None

    def text(self) -> str:
        """Return a string that is not null."""
        if (value := self.string()) is None:
            raise ValueError("a string is null")
        return value

    def data(self) -> B | None:
        size = self.length()
        return self.part(size) if size >= 0 else None

    def uuid(self) -> UUID | None:
        value = bytes(self.part(16))
        return None if value == _NO_UUID else UUID(bytes=value)

    def skip_tagged_fields(self) -> None:
        if not self.encoded[self.position]:  # nearly always
            self.position += 1
            return
        for _ in range(self.count(self.varint())):
            self.varint()
            self.part(self.varint())

    def end(self) -> None:
        if self.position != len(self.encoded):
            raise ValueError("there are bytes after its end")


class Writer:
    """A writer of the bytes that `Reader` reads."""

    def __init__(self, *, flexible: bool = False) -> None:
        self._flexible = flexible

    def length(self, layout: struct.Struct, length: int) -> bytes:
        return compact_length(length) if self._flexible else layout.pack(length)

    def string(self, value: str | None) -> bytes:
        if value is None:
            return self.length(INT16, -1)
        return compact_text(value) if self._flexible else text(value)

    def data(self, value: bytes | None) -> bytes:
        return self.length(INT32, -1) if value is None else self.length(INT32, len(value)) + value

    def uuid(self, value: UUID | None) -> bytes:
        return _NO_UUID if value is None else value.bytes


def text(value: str) -> bytes:
    """Encode a text for versions that are not flexible."""
    encoded = value.encode()
    return INT16.pack(len(encoded)) + encoded


@lru_cache(maxsize=4096)
def compact_length(length: int) -> bytes:
    """Encode a length for flexible versions, -1 for null. Cached, because many messages have one size."""
    return _varint(length + 1)


def compact_text(value: str) -> bytes:
    """Encode a text for flexible versions."""
    encoded = value.encode()
    return compact_length(len(encoded)) + encoded


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
