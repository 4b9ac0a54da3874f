"""Bytes on disk on their way to a socket. Opens and reads no file: the server hands it to `os.sendfile`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO


@dataclass(frozen=True, slots=True)
class FileSlice:
    """`length` bytes of `file` from `position`: the server sends them with sendfile, nobody copies them."""

    file: BinaryIO
    position: int
    length: int
