"""The interface of a warehouse's storage: six operations. Drivers and tasks use the same storage.

Everything depends on `create`: only one of several callers can create a name, and the file is whole and on
disk. No file is ever renamed, moved or written twice. Depends on neither manifests nor Parquet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO, Protocol

CHUNK_BYTES = 8 << 20
"""Most bytes of a file that an operation holds in memory at a time."""
DRAFT = "."
"""Prefix of the name of a file that is being created, or that a crash left. `names` omits drafts."""


@dataclass(frozen=True, slots=True)
class Written:
    """Size and hash of a file that `put` has stored, computed while it was stored."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Listed:
    """A file in a listing."""

    path: str
    """Path relative to the listed folder, with `/`."""
    bytes: int
    modified: float
    """Time of the last change in seconds since the epoch, by the storage's clock."""


class Storage(Protocol):
    """Files of one warehouse. Every path is relative to the warehouse, with `/`. Can be pickled.

    Methods raise MillraceError, with advice, if the storage refuses a request or does not answer in time.
    They raise FileNotFoundError where their docstring says so.
    """

    @property
    def root(self) -> str:
        """The warehouse as a URI without a slash at its end: `file:///data/warehouse`, `s3://bucket/lake`."""

    def uri(self, path: str) -> str:
        """Return the path as a URI, for other programs and the table's metadata."""

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Return a file, or `length` bytes of it from `start` on.

        Raise FileNotFoundError when there is none.
        """

    def put(self, path: str, content: BinaryIO) -> Written:
        """Store a file and its folders. On return, the file is on disk.

        The caller must choose a unique name, because an existing file of the name is replaced.
        """

    def create(self, path: str, content: bytes) -> bool:
        """Create a whole file on disk, with its folders. Return False if the file exists with other bytes.

        True means that the file holds these bytes, even if an answer was lost and the request was repeated. A
        caller that must be the only creator puts a unique value, such as its attempt, into the bytes.
        """

    def names(self, folder: str, after: str = "") -> list[str]:
        """Return the names of files and folders in a folder that sort after `after`, sorted; [] without a
        folder.

        Drafts (see DRAFT) are left out.
        """

    def files(self, folder: str) -> list[Listed]:
        """Return every file below a folder, sorted by path; [] without a folder.

        The path of a file lists that file alone, with an empty path.
        """

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with everything in it; do nothing when it does not exist."""
