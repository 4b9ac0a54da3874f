"""The six verbs that a warehouse needs of a storage. Drivers and tasks use the same storage.

Everything depends on `create`: at most one of several callers takes a name, with a file whole and on disk.
Nothing is ever renamed, moved or written twice. Knows paths and bytes; no manifests, no Parquet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO, Protocol

CHUNK_BYTES = 8 << 20
"""Most bytes of a file that a verb holds at a time."""
DRAFT = "."
"""Prefix of a name that is still being created, or that a crash has left; `names` does not show it."""


@dataclass(frozen=True, slots=True)
class Written:
    """Size and hash of a file that `put` has stored, computed on the way."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Listed:
    """A file in a listing."""

    path: str
    """Relative to the folder that was listed, with `/`."""
    bytes: int
    modified: float
    """Seconds since the epoch, by the storage's clock."""


class Storage(Protocol):
    """Files under one warehouse; every path is relative to it, with `/`. Can be pickled.

    MillraceError, with advice, for everything that the storage refuses or does not answer in time;
    FileNotFoundError where a verb's description says so.
    """

    @property
    def root(self) -> str:
        """The warehouse as a URI without a slash at its end: `file:///data/warehouse`, `s3://bucket/lake`."""

    def uri(self, path: str) -> str:
        """Return the path as a URI, as other programs and the table's metadata name it."""

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Return a file, or `length` bytes of it from `start` on; FileNotFoundError when there is none."""

    def put(self, path: str, content: BinaryIO) -> Written:
        """Store a file under a unique name, folders included; on disk when it returns.

        A file that has the name is replaced: the caller must choose a unique name.
        """

    def create(self, path: str, content: bytes) -> bool:
        """Create a file, whole and on disk, folders included; False when it exists with other bytes.

        True means that the name now holds these bytes, even if an answer was lost and the request was sent
        again. A caller that must be the only creator puts something unique into the bytes, such as its
        attempt.
        """

    def names(self, folder: str, after: str = "") -> list[str]:
        """Names in a folder that sort after `after`, files and folders, sorted; [] without a folder.

        Drafts (see DRAFT) are left out.
        """

    def files(self, folder: str) -> list[Listed]:
        """Every file below a folder, sorted by path; [] without a folder.

        The path of a file lists that file alone, with an empty path.
        """

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with everything in it; do nothing when it does not exist."""
