"""What a verification finds of one table, and the checks that loads, their editions and hours share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from millrace.errors import MillraceError
from millrace_warehouse.history import editions
from millrace_warehouse.history.layout import HOURS, LEDGER, PLANS, STAGING
from millrace_warehouse.history.ledger import read_entry
from millrace_warehouse.history.manifest import MANIFEST, Manifest, check_hash, decode
from millrace_warehouse.history.promotions import PROMOTIONS
from millrace_warehouse.storage.filesystem import Filesystem

OURS = frozenset({PLANS, LEDGER, STAGING, HOURS, editions.RELOADS, editions.EXPIRED, PROMOTIONS})
"""What lies in a table's folder beside its loads."""
OnFolder = Callable[[str], None]
"""Called before each folder that is checked: a progress bar."""
T = TypeVar("T")


@dataclass(slots=True)
class TableReport:
    """What was found of one table: a topic's loads, or its hours."""

    table: str
    folders: int = 0
    files: int = 0
    rows: int = 0
    """Those that readers see: of the newest edition of each load, of the newest revision of each hour."""
    expired: int = 0
    """Folders whose data files `millrace expire` deleted: their manifests are checked, not their rows."""
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TableCheck:
    """The check of one table: what it reads from, and what it has found so far."""

    fs: Filesystem
    topic: str
    report: TableReport
    on_folder: OnFolder
    damaged: set[str] = field(default_factory=set)
    """Folders with files that are not the published ones: nothing else is read from them."""

    def problem(self, *problems: str) -> None:
        self.report.problems.extend(problems)

    def note(self, note: str) -> None:
        self.report.notes.append(note)

    def read(self, read: Callable[..., T], *arguments: object) -> T | None:
        """What `read` returns; what cannot be read is a problem, and None."""
        try:
            return read(self.fs, *arguments)
        except MillraceError as error:
            self.problem(str(error))
            return None

    def entries(self, cls: type[T], folder: str) -> Iterator[tuple[str, T]]:
        """The files of a folder by path, decoded; one that cannot be is a problem."""
        for name in self.fs.names(folder):
            path = f"{folder}/{name}"
            if not name.startswith(".") and (entry := self.read(_decoded, cls, path)) is not None:
                yield path, entry

    def begin(self, folder: str, *, recorded: bool, newest: bool) -> None:
        """Count a published folder; a crash can explain that the ledger lacks the newest one, no other."""
        self.on_folder(folder)
        self.report.folders += 1
        if not recorded and newest:
            self.note(f"{folder} is not in the ledger yet: the run that published it was cut off there")
        elif not recorded:
            self.problem(f"{folder} is not in the ledger: the ledger was edited")

    def check_manifest(self, table: str, folder: str, manifest: Manifest, *problems: str | None) -> None:
        """Report a manifest that was edited, or is not the one the ledger knows, and the problems given."""
        for problem in (check_hash(manifest), self._against_ledger(table, folder, manifest), *problems):
            if problem:
                self.problem(f"{table}/{folder}: {problem}")

    def _against_ledger(self, table: str, folder: str, manifest: Manifest) -> str | None:
        """One line when the ledger knows the folder by another hash; None when it agrees or knows nothing."""
        try:
            entry = read_entry(self.fs, table, folder)
        except MillraceError as error:
            return str(error)
        if entry is None or entry.sha256 == manifest.sha256:
            return None
        published, here = entry.sha256[:12], manifest.sha256[:12]
        return f"published was a manifest with sha256 {published}…, here is one with {here}…"

    def is_expired(self, table: str, folder: str, manifest: Manifest) -> bool | None:
        """True for a folder that has expired, counted and compared with what was written down of it.

        None when that cannot be read, which is a problem.
        """
        path = editions.expired_path(table, folder)
        try:
            entry = decode(editions.ExpiredEntry, self.fs.read(path), path)
        except FileNotFoundError:
            return False
        except MillraceError as error:
            self.problem(str(error))
            return None
        self.report.expired += 1
        if (entry.folder, entry.sha256) != (folder, manifest.sha256):
            self.problem(f"{path} is about another folder: it was edited")
        if left := [name for name in self.fs.names(f"{table}/{folder}") if not name.startswith("_")]:
            do = "run `millrace expire` again"
            if editions.expired_name(folder) not in editions.deletions(self.fs, table):
                do = f"it came back later, delete {', '.join(left)} in it"
            self.note(f"{table}/{folder} has expired and is not deleted: {do}")
        return True

    def check_expired_entries(self, table: str) -> None:
        """Report what is said to have expired and has no manifest any more."""
        for path, entry in self.entries(editions.ExpiredEntry, f"{table}/{editions.EXPIRED}"):
            if editions.expired_path(table, entry.folder) != path:
                self.problem(f"{path} is about {entry.folder}: it was edited")
            elif MANIFEST not in self.fs.names(f"{table}/{entry.folder}"):
                self.problem(f"{table}/{entry.folder} has expired, but its manifest should be there")

    def check_strays(self, folder: str, ours: Collection[str]) -> None:
        """Report what lies in a folder and is none of ours, and what unfinished runs left."""
        for name in self.fs.names(folder):
            if name == STAGING:
                if left := self.fs.names(f"{folder}/{STAGING}"):
                    self.note(f"{folder}/{STAGING} holds {len(left)} unfinished or abandoned folder(s)")
            # An empty folder of a load is no load: a rename goes through it.
            elif name not in ours and (self.fs.names(f"{folder}/{name}") or not name.startswith("load=")):
                self.problem(f"{folder}/{name} is nothing that Millrace writes: move it away")


def _decoded(fs: Filesystem, cls: type[T], path: str) -> T:
    return decode(cls, fs.read(path), path)


def readable(read: Callable[..., T], *arguments: object) -> T | None:
    """What `read` returns, None for what cannot be read: it is named where it is checked itself."""
    try:
        return read(*arguments)
    except MillraceError:
        return None
