"""The six things a warehouse asks of a storage. Each is given to the driver and to tasks alike.

Everything hangs on `create`: a name is taken by exactly one of those who try, whole and on disk, or not at
all. Nothing is ever renamed, moved or written twice. Knows paths and bytes; no manifests, no Parquet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO, Protocol

CHUNK_BYTES = 8 << 20
"""Most bytes of a file that a verb holds at a time."""
DRAFT = "."
"""What a name begins with that is still being created, or that a crash has left; `names` does not show it."""


@dataclass(frozen=True, slots=True)
class Written:
    """What `put` has stored, as it went through its hands."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Listed:
    """A file that a listing has found."""

    path: str
    """Relative to the folder that was listed, with `/`."""
    bytes: int
    modified: float
    """s since the epoch, by the storage's clock."""


class Storage(Protocol):
    """Files under one warehouse; every path is relative to it, with `/`. Can be pickled.

    MillraceError, in one sentence that says what to do, for everything that the storage refuses or that
    does not answer in time; FileNotFoundError where it is said.
    """

    @property
    def root(self) -> str:
        """The warehouse as a URI without a slash at its end: `file:///data/warehouse`, `s3://bucket/lake`."""

    def uri(self, path: str) -> str:
        """The path as other programs, and the table's metadata, name it."""

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """A file, or `length` bytes of it from `start` on; FileNotFoundError when it is not there."""

    def put(self, path: str, content: BinaryIO) -> Written:
        """Store a file under a name of its own, folders included; on disk when it returns.

        What is there under that name is replaced: whoever chooses the name makes it unique.
        """

    def create(self, path: str, content: bytes) -> bool:
        """Create a file, whole and on disk, folders included; False when it is there with other bytes.

        True says that the name now holds these bytes: also when an answer was lost and the request was sent
        again. Whoever must be the only one puts something of its own into them, such as an attempt.
        """

    def names(self, folder: str, after: str = "") -> list[str]:
        """Names in a folder that sort behind `after`, files and folders, sorted; [] without a folder.

        Drafts (see DRAFT) are left out.
        """

    def files(self, folder: str) -> list[Listed]:
        """Every file below a folder, sorted by path; [] without a folder.

        The path of a file lists that file alone, with an empty path.
        """

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with all that is in it; nothing when it is not there."""
