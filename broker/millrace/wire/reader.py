"""Reading messages that are laid out by hand, because they carry records that must not be copied."""

from __future__ import annotations

import struct

from millrace.errors import InvalidRequest
from millrace.records.compression import Buffer

INT8 = struct.Struct(">b")
INT16 = struct.Struct(">h")
INT32 = struct.Struct(">i")
INT64 = struct.Struct(">q")


class Reader:
    """A position in a message; InvalidRequest when the bytes for a step are not there."""

    __slots__ = ("_message", "_position", "_view")

    def __init__(self, message: str, body: Buffer) -> None:
        self._message = message
        self._view = memoryview(body)
        self._position = 0

    def take_all(self, layout: struct.Struct) -> tuple[int, ...]:
        start = self._position
        self._position = start + layout.size
        try:
            return layout.unpack_from(self._view, start)
        except struct.error:
            raise InvalidRequest(f"a {self._message} ends too early") from None

    def take(self, layout: struct.Struct) -> int:
        return self.take_all(layout)[0]

    def slice(self, size: int) -> memoryview:
        end = self._position + size
        if size < 0 or end > len(self._view):
            raise InvalidRequest(f"a {self._message} ends too early")
        part = self._view[self._position : end]
        self._position = end
        return part

    def string(self) -> str:
        try:
            return str(self.slice(self.take(INT16)), "utf-8")
        except UnicodeDecodeError:
            raise InvalidRequest(f"a {self._message} holds text that is not UTF-8") from None

    def end(self) -> None:
        if self._position != len(self._view):
            raise InvalidRequest(f"a {self._message} has bytes after its end")


def encoded(text: str) -> bytes:
    """A text behind its length."""
    characters = text.encode()
    return INT16.pack(len(characters)) + characters
