"""Stored files as seekable streams, and hashes of files while they are stored or read."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from functools import cached_property
from typing import BinaryIO

from millrace_warehouse.storage.interface import CHUNK_BYTES, Storage, Written


class Hashing:
    """Chunks of a local stream from its current position, with the size and hash of the bytes read so far."""

    def __init__(self, content: BinaryIO) -> None:
        self._content, self._bytes, self._sha256 = content, 0, hashlib.sha256()

    def __iter__(self) -> Iterator[bytes]:
        while chunk := self._content.read(CHUNK_BYTES):
            self._sha256.update(chunk)
            self._bytes += len(chunk)
            yield chunk

    @property
    def written(self) -> Written:
        return Written(self._bytes, self._sha256.hexdigest())


def open_file(storage: Storage, path: str) -> io.BufferedReader:
    """Open a file for reading and seeking. If it is missing, the first read raises FileNotFoundError."""
    return io.BufferedReader(_Ranges(storage, path), 1 << 20)


def measure(storage: Storage, path: str) -> Written:
    """Return the size and SHA-256 of a stored file, read in chunks.

    Raise FileNotFoundError when it is missing.
    """
    size, sha256 = 0, hashlib.sha256()
    while chunk := storage.read(path, size, CHUNK_BYTES):
        sha256.update(chunk)
        size += len(chunk)
        if len(chunk) < CHUNK_BYTES:
            break
    return Written(size, sha256.hexdigest())


def size_of(storage: Storage, path: str) -> int:
    """Return the size of a stored file in bytes. Raise FileNotFoundError when it is missing."""
    found = storage.files(path)
    if [listed.path for listed in found] != [""]:
        raise FileNotFoundError(storage.uri(path))
    return found[0].bytes


class _Ranges(io.RawIOBase):
    """A stored file as a raw stream. Each read is one request. The size is requested when first needed."""

    def __init__(self, storage: Storage, path: str) -> None:
        self._storage, self._path, self._position = storage, path, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = 0 if whence == io.SEEK_SET else self._position if whence == io.SEEK_CUR else self._size
        if start + offset < 0:
            raise ValueError(f"seek to {start + offset}")
        self._position = start + offset
        return self._position

    def readall(self) -> bytes:
        return self._read(None)

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        wanted = min(len(buffer), self._size - self._position)
        content = self._read(wanted) if wanted > 0 else b""
        buffer[: len(content)] = content
        return len(content)

    def _read(self, length: int | None) -> bytes:
        content = self._storage.read(self._path, self._position, length)
        self._position += len(content)
        return content

    @cached_property
    def _size(self) -> int:
        return size_of(self._storage, self._path)
