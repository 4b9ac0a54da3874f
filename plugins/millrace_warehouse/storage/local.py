"""A warehouse in a folder that every process sees: a local disk, or a mounted file system (`file://`).

`create` writes a private draft and then uses link(2): it is exclusive in the kernel, and the whole content
appears at once. A stored file is on disk together with the folders that lead to it, up to the mount point.
"""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from millrace.errors import MillraceError
from millrace_warehouse.storage.interface import DRAFT, Listed, Written
from millrace_warehouse.storage.streams import Hashing

DELETE_TRIES = 20
"""Most tries to delete a folder: a task whose job has ended may still write into it."""
_ADVICE = {
    errno.ENOSPC: "make room on the disk, then run again",
    errno.EDQUOT: "raise the quota or delete what is not needed, then run again",
    errno.EACCES: "let this user write to the warehouse's folder",
    errno.EPERM: "let this user write to the warehouse's folder",
    errno.EROFS: "mount the file system for writing, then run again",
}


@dataclass(frozen=True, slots=True)
class LocalStorage:
    """Storage on a POSIX file system."""

    folder: str
    """Absolute path without a slash at its end."""

    @property
    def root(self) -> str:
        return f"file://{self.folder}"

    def uri(self, path: str) -> str:
        return f"{self.root}/{path}"

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        with self._explained("read", path), open(self._path(path), "rb") as file:
            file.seek(start)
            return file.read(-1 if length is None else length)

    def put(self, path: str, content: BinaryIO) -> Written:
        target, chunks = self._path(path), Hashing(content)
        with self._explained("write", path):
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(target, "wb") as file:
                file.writelines(chunks)
                file.flush()
                os.fsync(file.fileno())
            _sync_above(target)
        return chunks.written

    def create(self, path: str, content: bytes) -> bool:
        target = self._path(path)
        draft = target.with_name(f"{DRAFT}{target.name[:100]}.{uuid.uuid4().hex}")
        with self._explained("create", path):
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                with open(draft, "xb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                with suppress(FileExistsError):
                    os.link(draft, target)
                # Sync it whether or not this run created it: another run may have died before its sync.
                _sync_above(target)
                return target.read_bytes() == content
            finally:
                draft.unlink(missing_ok=True)

    def names(self, folder: str, after: str = "") -> list[str]:
        with self._explained("list", folder):
            try:
                names = os.listdir(self._path(folder))  # noqa: PTH208  # iterdir takes three times as long
            except (FileNotFoundError, NotADirectoryError):
                return []
        return sorted(name for name in names if name > after and not name.startswith(DRAFT))

    def files(self, folder: str) -> list[Listed]:
        top = self._path(folder)
        with self._explained("list", folder):
            if top.is_file():
                return list(_listed(top, ""))
            walk = os.walk(top, onerror=_raise_unless_gone)
            paths = [Path(parent, name) for parent, _, names in walk for name in names]
            return sorted(
                (found for path in paths for found in _listed(path, path.relative_to(top).as_posix())),
                key=lambda found: found.path,
            )

    def delete(self, path: str) -> None:
        target = self._path(path)
        with self._explained("delete", path):
            for turn in range(DELETE_TRIES):
                try:
                    if target.is_dir() and not target.is_symlink():
                        shutil.rmtree(target, onerror=_continue_when_gone)
                    else:
                        target.unlink(missing_ok=True)
                    return
                except OSError as error:
                    if error.errno != errno.ENOTEMPTY or turn == DELETE_TRIES - 1:
                        raise

    def _path(self, path: str) -> Path:
        return Path(self.folder, path)

    @contextmanager
    def _explained(self, verb: str, path: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            advice = _ADVICE.get(error.errno or 0, "see what is wrong with this path, then run again")
            raise MillraceError(
                f"cannot {verb} {self._path(path)}: {error.strerror or error}: {advice}"
            ) from None


def _sync_above(path: Path) -> None:
    """Sync every folder that leads to the path, up to its mount point: each may be new.

    This includes folders of other runs: such a run may have died, or may be suspended, before syncing them.
    """
    for folder in path.parents:
        try:
            _sync(folder)
        except PermissionError:
            if folder.stat().st_uid == os.geteuid():
                raise
            return  # above the warehouse, and not a folder that a run could have created
        if folder.is_mount():
            return


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _listed(path: Path, name: str) -> Iterator[Listed]:
    with suppress(FileNotFoundError):  # deleted since it was listed
        status = path.stat()
        yield Listed(name, status.st_size, status.st_mtime)


def _continue_when_gone(_function: object, _path: str, error: tuple[type, BaseException, object]) -> None:
    """Let rmtree continue when an entry has been deleted already; raise every other error."""
    if not isinstance(error[1], FileNotFoundError):
        raise error[1]


def _raise_unless_gone(error: OSError) -> None:
    """Let a walk skip a missing folder; raise other errors, as a partial listing would seem complete."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error
