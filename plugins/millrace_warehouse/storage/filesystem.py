"""What a warehouse asks of its file system, and the local one (`file://` or a plain path).

Everything hangs on `move`: it is exclusive, never replaces and never nests. `os.rename` of a folder onto one
that has something in it fails, in the kernel, whoever else tries at the same moment. Onto an empty folder it
succeeds, so a published folder must never be empty: it always holds its manifest.

Knows paths and bytes. Does not know manifests, topics or Parquet. Object stores are refused: they have no
such rename.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import time
import urllib.parse
import uuid
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from millrace.errors import ConfigError, MillraceError
from millrace_warehouse.storage.task_storage import SharedFolder, TaskStorage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


DELETE_TRIES = 20
"""Most tries to delete a folder: tasks may write to it a moment after their job has ended."""


def _go_on_if_it_is_gone(_function: object, _path: str, error: tuple[type, BaseException, object]) -> None:
    """Let rmtree go on where somebody else has deleted an entry first; raise every other error."""
    if not isinstance(error[1], FileNotFoundError):
        raise error[1]


class Filesystem(Protocol):
    """Folders and files under one warehouse; every path is relative to it, with `/`."""

    root: str

    def uri(self, path: str) -> str:
        """The path as pyarrow takes it, and Spark to write to; to read, Spark takes its `literal`."""

    def names(self, folder: str) -> list[str]:
        """Names in a folder, sorted; [] when there is no such folder."""

    def files(self, folder: str) -> list[tuple[str, int]]:
        """Every file below a folder, sorted: its path relative to the folder, and its bytes."""

    def read(self, path: str) -> bytes:
        """A whole file; FileNotFoundError when it is not there."""

    def write(self, path: str, content: bytes) -> None:
        """Write a file into a folder that is still private; `sync` puts it on disk."""

    def create(self, path: str, content: bytes) -> bool:
        """Create a file, whole and on disk, folders included; False when it is there already."""

    def make_folder(self, folder: str) -> None:
        """Create a folder and those above it."""

    def sync(self, folder: str) -> None:
        """Put every file and folder in it on disk."""

    def move(self, source: str, target: str) -> bool:
        """Rename a folder, exclusively and on disk; False when the target is taken, and nothing changed."""

    def gather(self, source: str, target: str, paths: Iterable[str]) -> None:
        """Move these files from one private folder to another, each to its path there; nothing else."""

    def delete(self, path: str) -> None:
        """Delete a file or a folder with all that is in it; nothing when it is not there."""

    def sha256(self, path: str) -> str:
        """SHA-256 of a file, in hex."""

    def age_s(self, path: str) -> float:
        """Seconds since the file or folder changed last; 0 when it is not there (any more)."""

    def touch(self, folder: str) -> None:
        """Let a folder look as if it had changed now; nothing when it is not there."""

    def local_copy(self, path: str) -> AbstractContextManager[Path]:
        """A local file with the bytes of a file, to read only; FileNotFoundError when it is not there."""

    def for_tasks(self) -> TaskStorage:
        """The same files as tasks reach them without Spark; ConfigError when they cannot."""


class LocalFilesystem:
    """A warehouse on a POSIX file system that every task can see (a local disk, or one that is shared)."""

    def __init__(self, root: str) -> None:
        self.root = str(Path(root).absolute())
        self._root = Path(self.root)

    def uri(self, path: str) -> str:
        return str(self._root / path)

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(path.name for path in (self._root / folder).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def files(self, folder: str) -> list[tuple[str, int]]:
        top = self._root / folder
        paths = [path for path in top.rglob("*") if not path.is_dir()]
        return sorted((path.relative_to(top).as_posix(), path.stat().st_size) for path in paths)

    def read(self, path: str) -> bytes:
        return (self._root / path).read_bytes()

    def write(self, path: str, content: bytes) -> None:
        (self._root / path).write_bytes(content)

    def create(self, path: str, content: bytes) -> bool:
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        # A link is exclusive and shows the whole content at once: a crash leaves no half-written file.
        draft = target.with_name(f".{target.name[:100]}.{uuid.uuid4().hex}")
        try:
            with open(draft, "xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(draft, target)
                created = True
            except FileExistsError:
                created = False  # on disk all the same: whoever made it may have died before its sync
            self._sync_above(target)
            return created
        finally:
            draft.unlink(missing_ok=True)

    def make_folder(self, folder: str) -> None:
        (self._root / folder).mkdir(parents=True, exist_ok=True)

    def sync(self, folder: str) -> None:
        for path, _, names in os.walk(self._root / folder, topdown=False):
            for name in names:
                self._sync_one(Path(path, name))
            self._sync_one(Path(path))

    def move(self, source: str, target: str) -> bool:
        old, new = self._root / source, self._root / target
        new.parent.mkdir(parents=True, exist_ok=True)
        try:
            old.rename(new)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise
        self._sync_above(new)
        return True

    def gather(self, source: str, target: str, paths: Iterable[str]) -> None:
        for path in paths:
            new = self._root / target / path
            new.parent.mkdir(parents=True, exist_ok=True)
            (self._root / source / path).rename(new)

    def delete(self, path: str) -> None:
        target = self._root / path
        for _ in range(DELETE_TRIES):
            try:
                if target.is_dir():
                    shutil.rmtree(target, onerror=_go_on_if_it_is_gone)
                else:
                    target.unlink(missing_ok=True)
                return
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise MillraceError(
                        f"cannot delete {target}: {error.strerror}; delete it by hand"
                    ) from None
        raise MillraceError(f"cannot delete {target}: somebody still writes to it; delete it by hand")

    def sha256(self, path: str) -> str:
        with open(self._root / path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def age_s(self, path: str) -> float:
        try:
            return time.time() - (self._root / path).stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def touch(self, folder: str) -> None:
        with suppress(FileNotFoundError):
            os.utime(self._root / folder)

    def local_copy(self, path: str) -> AbstractContextManager[Path]:
        return SharedFolder().local_copy(self.uri(path))

    def for_tasks(self) -> TaskStorage:
        return SharedFolder()

    def _sync_above(self, path: Path) -> None:
        """Every folder that leads to the path, up to its mount point: each may have been made a moment ago.

        By whom does not matter: another run may have died, or stand, between making one and syncing it.
        """
        for folder in path.parents:
            try:
                self._sync_one(folder)
            except PermissionError:
                if folder.is_relative_to(self._root):
                    raise
                return  # above the warehouse, and none that a run could have made
            if folder.is_mount():
                return

    @staticmethod
    def _sync_one(path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def literal(uri: str) -> str:
    """A file's uri for Spark to read: a bracket or a star in a folder's name is a pattern to Spark."""
    return re.sub(r"([][{}*?\\])", r"\\\1", uri)


def absolute(warehouse: str) -> str:
    """The warehouse as every process finds it, whatever its folder; ConfigError when it can be none."""
    parsed = urllib.parse.urlparse(warehouse)
    if parsed.scheme in ("hdfs", "viewfs"):
        return warehouse
    if parsed.scheme not in ("", "file"):
        raise ConfigError(
            f"warehouse {warehouse!r}: {parsed.scheme}:// has no exclusive rename, use file:// or hdfs://"
        )
    if parsed.netloc not in ("", "localhost"):
        raise ConfigError(f"warehouse {warehouse!r} names a host: write file:///path with three slashes")
    path = urllib.parse.unquote(parsed.path) if parsed.scheme else warehouse
    if not path:
        raise ConfigError(f"warehouse {warehouse!r} names no folder")
    return str(Path(path).absolute())


def open_filesystem(warehouse: str, spark: SparkSession | None = None) -> Filesystem:
    """The file system of a warehouse: `file://` or a plain path, or `hdfs://` by way of a Spark session."""
    root = absolute(warehouse)
    if root.startswith("/"):
        return LocalFilesystem(root)
    if spark is None:
        raise MillraceError(
            f"{warehouse} can only be read through Spark: use tables.read(spark, ...), or a millrace command,"
            " which brings a Spark session along"
        )
    from millrace_warehouse.storage.hadoop import open_hadoop

    return open_hadoop(spark, root)
