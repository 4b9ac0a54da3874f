"""Storages for tests: they end a process, lose answers or count what they are asked, and pass on all else."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from millrace.errors import MillraceError
from millrace_warehouse.history.layout import (
    Topic,
    edition_path,
    editions_of,
    load_numbers,
    loads_after,
    manifest_path,
    read_checked,
)
from millrace_warehouse.history.ledger import read_entry
from millrace_warehouse.history.manifest import LoadManifest, check_law
from millrace_warehouse.storage import Listed, Storage, Written, open_storage


class Wrapped(Storage):
    """A storage around another one, which does what is asked."""

    def __init__(self, inside: Storage | Path) -> None:
        self.inside = open_storage(str(inside)) if isinstance(inside, Path) else inside

    @property
    def root(self) -> str:
        return self.inside.root

    def uri(self, path: str) -> str:
        return self.inside.uri(path)

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        return self.inside.read(path, start, length)

    def put(self, path: str, content: BinaryIO) -> Written:
        return self.inside.put(path, content)

    def create(self, path: str, content: bytes) -> bool:
        return self.inside.create(path, content)

    def names(self, folder: str, after: str = "") -> list[str]:
        return self.inside.names(folder, after)

    def files(self, folder: str) -> list[Listed]:
        return self.inside.files(folder)

    def delete(self, path: str) -> None:
        self.inside.delete(path)


class CutOff(BaseException):
    """The process has ended here; nothing after it is done, no clean-up either."""


class MortalStorage(Wrapped):
    """A warehouse whose process ends at the n-th change to it, and changes nothing from then on."""

    def __init__(self, inside: Storage | Path, changes: int | None = None) -> None:
        super().__init__(inside)
        self._left = changes

    def _change(self) -> None:
        if self._left is not None:
            self._left -= 1
            if self._left <= 0:
                raise CutOff

    def put(self, path: str, content: BinaryIO) -> Written:
        self._change()
        return super().put(path, content)

    def create(self, path: str, content: bytes) -> bool:
        self._change()
        return super().create(path, content)

    def delete(self, path: str) -> None:
        for listed in self.files(path):
            self._change()
            super().delete(f"{path}/{listed.path}" if listed.path else path)
        self._change()
        super().delete(path)


class CountingStorage(Wrapped):
    """Counts the questions that would each be a round trip."""

    asked = 0

    def names(self, folder: str, after: str = "") -> list[str]:
        self.asked += 1
        return super().names(folder, after)

    def files(self, folder: str) -> list[Listed]:
        self.asked += 1
        return super().files(folder)

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        self.asked += 1
        return super().read(path, start, length)


class UnansweredStorage(Wrapped):
    """Gives no answer to some creates: `happens` says of each path what becomes of it.

    None for an answer as it should be; True for a file that is created, and nobody is told; False for a
    request that never arrives.
    """

    def __init__(self, inside: Storage | Path, happens: Callable[[str], bool | None]) -> None:
        super().__init__(inside)
        self._happens = happens

    def create(self, path: str, content: bytes) -> bool:
        happens = self._happens(path)
        if happens is None:
            return super().create(path, content)
        if happens:
            super().create(path, content)
        raise MillraceError(f"{path} was not answered in time: check the storage, then run again")


def problems(storage: Storage | Path, topic: str) -> list[str]:
    """Return the problems of a topic's loads: the chain, the laws, the ledger, and the hash of every file."""
    storage = open_storage(str(storage)) if isinstance(storage, Path) else storage
    found, stored = list[str](), Topic(storage, topic)
    try:
        newest = {load.load: load for load in loads_after(stored, 0)}
        if list(newest) != load_numbers(stored):
            found.append("a listing shows other loads than the chain")
        manifests = list(newest.values())
        for load, numbers in editions_of(stored).items():
            for number in numbers:
                edition = read_checked(storage, LoadManifest, edition_path(topic, load, number))
                if edition.previous != newest[load].sha256:
                    found.append(f"edition {number} of load {load} replaces another one")
                newest[load] = edition
                manifests.append(edition)
    except MillraceError as error:
        return [str(error)]
    for manifest in manifests:
        path = manifest_path(manifest)
        found += check_law(manifest)
        entry = read_entry(storage, path)
        if entry is None or entry.sha256 != manifest.sha256:
            found.append(f"{path} is not as the ledger has it")
        others = (manifest.entries, manifest.sequences_file)
        for file in [*manifest.files, *manifest.aside_files, *(file for file in others if file)]:
            content = storage.read(f"{topic}/{file.path}")
            if (len(content), hashlib.sha256(content).hexdigest()) != (file.bytes, file.sha256):
                found.append(f"{file.path} is not what {path} names")
        folder = f"rows/{manifest.load:010d}-{manifest.attempt}/"
        if not all(file.path.startswith(folder) for file in manifest.files):
            found.append(f"{path} names a file of another attempt")
    return found
