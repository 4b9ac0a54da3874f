"""Bytes on disk on their way to a socket, and the read side of a segment's file.

Owns nothing but open files. Does not read them: the server hands them to `os.sendfile`.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import BinaryIO


@dataclass(frozen=True, slots=True)
class FileSlice:
    """`length` bytes of `file` from `position`: the server sends them with sendfile, nobody copies them."""

    file: BinaryIO
    position: int
    length: int


class ReadFile(io.FileIO):
    """A segment opened for reading; closes when the last slice that uses it is gone.

    Retention and topic deletion unlink the file and forget it: an answer that is still being sent keeps
    its bytes, and the descriptor goes with the answer.
    """

    def __del__(self) -> None:
        self.close()  # the intended way, while FileIO's own finalizer warns of a leak
