"""pyiceberg's FileIO on a warehouse's storage, named by `py-io-impl` in the settings of our own client.

A file that pyiceberg writes is on disk when its stream is closed, so a catalog never names a file that a
power failure can take away. pyiceberg's own FileIO does not sync files. The table does not name this class,
so other engines read the same files with their own classes.
"""

from __future__ import annotations

import io
import tempfile
from types import TracebackType
from typing import BinaryIO, cast
from urllib.parse import urlsplit

from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.typedef import EMPTY_DICT, Properties

from millrace_warehouse.storage.interface import CHUNK_BYTES, Storage
from millrace_warehouse.storage.open import open_storage
from millrace_warehouse.storage.streams import open_file, size_of

PY_IO_IMPL = "millrace_warehouse.storage.file_io.StorageFileIO"
"""The value of pyiceberg's setting `py-io-impl`."""


class StorageFileIO(FileIO):
    """Files at every location that `open_storage` knows, with one client for each bucket or nameservice."""

    def __init__(self, properties: Properties = EMPTY_DICT) -> None:
        super().__init__(properties)
        self._storages: dict[str, Storage] = {}

    def new_input(self, location: str) -> StoredInput:
        return StoredInput(location, *self._found(location))

    def new_output(self, location: str) -> StoredOutput:
        return StoredOutput(location, *self._found(location))

    def delete(self, location: str | InputFile | OutputFile) -> None:
        storage, path = self._found(location if isinstance(location, str) else location.location)
        storage.delete(path)

    def _found(self, location: str) -> tuple[Storage, str]:
        """Return the storage of a location, and the path inside it."""
        if location.startswith("file:/") and not location.startswith("file://"):
            location = location.replace("file:", "file://", 1)  # Spark names files as Hadoop's classes do
        scheme, _, rest = location.rpartition("://")
        root = f"{scheme}://{urlsplit(location).netloc}" if scheme not in ("", "file") else "/"
        if root not in self._storages:
            self._storages[root] = open_storage(root)
        path = rest if root == "/" else location.removeprefix(root)
        return self._storages[root], path.lstrip("/")


class StoredInput(InputFile):
    """A stored file to read."""

    def __init__(self, location: str, storage: Storage, path: str) -> None:
        super().__init__(location)
        self._storage, self._path = storage, path

    def __len__(self) -> int:
        return size_of(self._storage, self._path)

    def exists(self) -> bool:
        return [listed.path for listed in self._storage.files(self._path)] == [""]

    def open(self, seekable: bool = True) -> io.BufferedReader:
        """Return the file as a stream. If the file is missing, the first read raises FileNotFoundError."""
        return open_file(self._storage, self._path)


class StoredOutput(OutputFile):
    """A stored file to write."""

    def __init__(self, location: str, storage: Storage, path: str) -> None:
        super().__init__(location)
        self._storage, self._path = storage, path

    def __len__(self) -> int:
        return len(self.to_input_file())

    def exists(self) -> bool:
        return self.to_input_file().exists()

    def to_input_file(self) -> StoredInput:
        return StoredInput(self.location, self._storage, self._path)

    def create(self, overwrite: bool = False) -> StoredStream:
        if not overwrite and self.exists():
            raise FileExistsError(self.location)
        return StoredStream(self._storage, self._path)


class StoredStream:
    """Bytes of a file. `close` stores them, and an error inside `with` discards them."""

    def __init__(self, storage: Storage, path: str) -> None:
        self._storage, self._path = storage, path
        self._local = tempfile.SpooledTemporaryFile(CHUNK_BYTES)  # noqa: SIM115  # closed by `close`

    @property
    def closed(self) -> bool:
        return self._local.closed

    def write(self, content: bytes) -> int:
        return self._local.write(content)

    def tell(self) -> int:
        return self._local.tell()

    def flush(self) -> None:
        """Do nothing: only whole files are stored."""

    def close(self) -> None:
        if not self._local.closed:
            with self._local as content:
                content.seek(0)
                self._storage.put(self._path, cast(BinaryIO, content))

    def __enter__(self) -> StoredStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._local.close()
