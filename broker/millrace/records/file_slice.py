"""Bytes of a file that will be sent to a socket.

They are not read here: the server passes them to `os.sendfile`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


class OpenFile(Protocol):
    """A file that stays open while any object refers to it."""

    @property
    def name(self) -> Any: ...

    def fileno(self) -> int: ...


@dataclass(frozen=True, slots=True)
class FileSlice:
    """`length` bytes of `file` from `position`; the server sends them with sendfile, without a copy."""

    file: OpenFile
    position: int
    length: int
