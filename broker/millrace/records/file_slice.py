"""Bytes on disk on their way to a socket. Opens and reads no file: the server hands it to `os.sendfile`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


class OpenFile(Protocol):
    """A file that is open for as long as somebody refers to it."""

    @property
    def name(self) -> Any: ...

    def fileno(self) -> int: ...


@dataclass(frozen=True, slots=True)
class FileSlice:
    """`length` bytes of `file` from `position`: the server sends them with sendfile, nobody copies them."""

    file: OpenFile
    position: int
    length: int
