"""What a verification finds of one table, and the checks that loads and hours share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from millrace.errors import MillraceError
from millrace_spark.files.filesystem import Filesystem
from millrace_spark.warehouse.editions import EXPIRED, RELOADS
from millrace_spark.warehouse.layout import HOURS, LEDGER, PLANS, STAGING
from millrace_spark.warehouse.ledger import read_entry
from millrace_spark.warehouse.promotions import PROMOTIONS

OURS = frozenset({PLANS, LEDGER, STAGING, HOURS, RELOADS, EXPIRED, PROMOTIONS})
"""What lies in a table's folder beside its loads."""
OnFolder = Callable[[str], None]
"""Called before each folder that is checked: a progress bar."""


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
    damaged: set[str] = field(default_factory=set)
    """Folders with files that are not the published ones: nothing else is read from them."""

    def as_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {name: getattr(self, name) for name in TableReport.__slots__ if name != "damaged"}


def against_ledger(fs: Filesystem, table: str, folder: str, sha256: str) -> str | None:
    """One line when the ledger knows the folder by another hash; None when it agrees or knows nothing."""
    try:
        entry = read_entry(fs, table, folder)
    except MillraceError as error:
        return str(error)
    if entry is None or entry.sha256 == sha256:
        return None
    return f"published was a manifest with sha256 {entry.sha256[:12]}…, here is one with {sha256[:12]}…"


def not_recorded(report: TableReport, folder: str, *, newest: bool) -> None:
    """Report a folder without a ledger entry: a crash can explain the newest one, nothing the others."""
    if newest:
        report.notes.append(f"{folder} is not in the ledger yet: the run that published it was cut off there")
    else:
        report.problems.append(f"{folder} is not in the ledger: the ledger was edited")


def check_strays(fs: Filesystem, table: str, present: Iterable[str], report: TableReport) -> None:
    """Report what lies in a table's folder and is none of ours, and what unfinished runs left."""
    known = {*present, *OURS}
    for name in fs.names(table):
        if name == STAGING:
            if left := fs.names(f"{table}/{STAGING}"):
                report.notes.append(f"{table}/{STAGING} holds {len(left)} unfinished or abandoned folder(s)")
        elif name not in known and (fs.names(f"{table}/{name}") or not name.startswith("load=")):
            report.problems.append(f"{table}/{name} is nothing that Millrace writes: move it away")
