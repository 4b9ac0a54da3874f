"""A stored file as a stream that pyarrow can seek in, and its hash, both over the verb `read`."""

from __future__ import annotations

import hashlib
import io

from millrace_warehouse.storage.verbs import CHUNK_BYTES, Storage, Written


def open_file(storage: Storage, path: str) -> io.BufferedReader:
    """A file to read and to seek in, at most 1 MiB ahead; FileNotFoundError when it is not there."""
    found = storage.files(path)
    if [listed.path for listed in found] != [""]:
        raise FileNotFoundError(storage.uri(path))
    return io.BufferedReader(_Ranges(storage, path, found[0].bytes), 1 << 20)


def measure(storage: Storage, path: str) -> Written:
    """Bytes and SHA-256 of a stored file, read in chunks; FileNotFoundError when it is not there."""
    size, sha256 = 0, hashlib.sha256()
    while chunk := storage.read(path, size, CHUNK_BYTES):
        sha256.update(chunk)
        size += len(chunk)
        if len(chunk) < CHUNK_BYTES:
            break
    return Written(size, sha256.hexdigest())


class _Ranges(io.RawIOBase):
    """A file of a known size; each read is one request."""

    def __init__(self, storage: Storage, path: str, size: int) -> None:
        self._storage, self._path, self._size, self._position = storage, path, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if start + offset < 0:
            raise ValueError(f"seek to {start + offset}")
        self._position = start + offset
        return self._position

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        wanted = min(len(buffer), self._size - self._position)
        if wanted <= 0:
            return 0
        content = self._storage.read(self._path, self._position, wanted)
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)
