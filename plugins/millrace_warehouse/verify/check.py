"""The check of one topic: its sources, its findings, and the comparison of manifests with the ledger.

A problem is one line that names the file, the load or the hour.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from millrace.errors import MillraceError
from millrace.steps import Count
from millrace_warehouse.context import Progress
from millrace_warehouse.history import layout
from millrace_warehouse.history.ledger import read_entry
from millrace_warehouse.history.manifest import M, Manifest, check_hash, decode
from millrace_warehouse.storage.interface import Storage


@dataclass(slots=True)
class TopicReport:
    """Findings on one topic: its loads, its publications, and the table."""

    topic: str
    loads: int = 0
    """Number of editions."""
    publications: int = 0
    files: int = 0
    """Data files of loads."""
    expired: int = 0
    """Data files of loads that were deleted because their rows are in the table or in a newer edition."""
    rows: int = 0
    """Rows of the newest edition of each load."""
    published: int | None = None
    """Rows of the table, counted in its files; None without a catalog or before the first publication."""
    compared: int = 0
    """Rows in files that no load wrote, whose values were compared with their loads' files."""
    problems: list[str] = field(default_factory=list)
    hours: dict[str, str] = field(default_factory=dict)
    """Problem -> the hour whose rows it concerns; other problems concern the whole topic."""
    notes: list[str] = field(default_factory=list)
    """Findings that the next run corrects by itself, or that a publication ends."""


@dataclass(slots=True)
class Check:
    """The check of one topic: its sources, and its findings so far."""

    topic: layout.Topic
    report: TopicReport
    progress: Progress
    """Callback with the path of each load, publication and file before it is checked."""

    def count(self, items: str, total: int, done: str) -> Count:
        """Return the count of a loop over the topic's manifests, files or hours."""
        return Count(self.progress, f"{items} of {self.topic} {done}", total, "rows")

    @property
    def storage(self) -> Storage:
        return self.topic.storage

    def problem(self, *problems: str, hour: str | None = None) -> None:
        self.report.problems.extend(problems)
        if hour is not None:
            self.report.hours |= dict.fromkeys(problems, hour)

    def note(self, *notes: str) -> None:
        self.report.notes.extend(notes)

    def recorded(self, folder: layout.Folder) -> set[str]:
        """Return the paths of all manifests in a folder that the ledger lists."""
        return {f"{self.topic}/{folder}/{name}" for name in self.topic.recorded(folder)}

    def read(self, cls: type[M], path: str) -> M | None:
        """Read a manifest and check its own hash and the ledger's. Return None when it cannot be read."""
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
        """Return a line when the ledger has another hash for the path, or None when it agrees or has none."""
        try:
            entry = read_entry(self.storage, path)
        except MillraceError as error:
            return str(error)
        if entry is None or entry.sha256 == manifest.sha256:
            return None
        return f"its sha256 is {manifest.sha256[:12]}…, the ledger has {entry.sha256[:12]}…: restore a copy"

    def unrecorded(self, path: str, *, newest: bool) -> None:
        """Report a manifest without an entry in the ledger; a crash can explain only the newest one."""
        try:
            if read_entry(self.storage, path) is not None:
                return  # made and recorded since the ledger was listed
        except MillraceError:
            return  # reported when the manifest is compared with its entry
        if newest:
            self.note(f"{path} is not in the ledger yet: the run that made it was interrupted")
        else:
            self.problem(f"{path} is not in the ledger: the ledger was edited")
