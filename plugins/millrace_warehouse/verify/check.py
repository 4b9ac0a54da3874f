"""The check of one topic: where it reads, what it finds, and how a manifest is held against the ledger.

A problem is one line that names the file, the load or the hour.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from millrace.errors import MillraceError
from millrace_warehouse.at import Progress
from millrace_warehouse.history import layout
from millrace_warehouse.history.ledger import read_entry
from millrace_warehouse.history.manifest import M, Manifest, check_hash, decode
from millrace_warehouse.storage.verbs import Storage


@dataclass(slots=True)
class TopicReport:
    """What was found of one topic: its loads, its publications, and the table."""

    topic: str
    loads: int = 0
    """Editions counted."""
    publications: int = 0
    files: int = 0
    """Data files of loads."""
    expired: int = 0
    """Data files of loads that are gone because the table, or a newer edition, has their rows."""
    rows: int = 0
    """Of the newest edition of each load."""
    published: int | None = None
    """Rows of the table, counted in its own files; None without a catalog or before the first publication."""
    compared: int = 0
    """Rows of the table in files that no load wrote, whose values were compared with their loads' files."""
    problems: list[str] = field(default_factory=list)
    hours: dict[str, str] = field(default_factory=dict)
    """Problem -> the hour whose rows it is about; the others concern the whole topic."""
    notes: list[str] = field(default_factory=list)
    """What the next run puts right by itself, or what nobody has published yet."""


@dataclass(slots=True)
class Check:
    """The check of one topic: where it reads, and what it has found so far."""

    storage: Storage
    topic: str
    report: TopicReport
    progress: Progress
    """Told the path of each load, publication and file before it is checked."""

    def problem(self, *problems: str, hour: str | None = None) -> None:
        self.report.problems.extend(problems)
        if hour is not None:
            self.report.hours |= dict.fromkeys(problems, hour)

    def note(self, *notes: str) -> None:
        self.report.notes.extend(notes)

    def recorded(self, folder: str) -> set[str]:
        """Paths of everything in a folder of manifests that the ledger knows."""
        return {f"{folder}/{name}" for name in self.storage.names(layout.ledger_path(folder))}

    def read(self, cls: type[M], path: str) -> M | None:
        """A manifest or record held against its own hash and the ledger's; None when it cannot be read."""
        self.progress(path)
        try:
            manifest: M = decode(cls, self.storage.read(path), path)
        except FileNotFoundError:
            self.problem(f"{path} is missing")
            return None
        except MillraceError as error:
            self.problem(str(error))
            return None
        self._tell(path, [check_hash(manifest), self._against_ledger(path, manifest)])
        return manifest

    def _tell(self, path: str, problems: Iterable[str | None]) -> None:
        self.problem(*(f"{path}: {problem}" for problem in problems if problem))

    def _against_ledger(self, path: str, manifest: Manifest) -> str | None:
        """One line when the ledger knows the path by another hash; None when it agrees or knows nothing."""
        try:
            entry = read_entry(self.storage, path)
        except MillraceError as error:
            return str(error)
        if entry is None or entry.sha256 == manifest.sha256:
            return None
        return f"made was one with sha256 {entry.sha256[:12]}…, here is one with {manifest.sha256[:12]}…"

    def unrecorded(self, path: str, *, newest: bool) -> None:
        """Report what the ledger does not know; a crash explains that for the newest one, for no other."""
        try:
            if read_entry(self.storage, path) is not None:
                return  # made and recorded since the ledger was listed
        except MillraceError:
            return  # named when the manifest is held against it
        if newest:
            self.note(f"{path} is not in the ledger yet: the run that made it was cut off there")
        else:
            self.problem(f"{path} is not in the ledger: the ledger was edited")
