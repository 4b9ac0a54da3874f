"""Puts the small files of published hours together, in one process; rows stay, and are counted by load.

An hour that was quiet and has too many small files gets few large ones, in one commit of the table. The
rows of each load in it are counted before and after: equal, or there is no commit. Whoever commits in between
wins, and what this run has written is a stray that `millrace expire` sweeps. Knows no logs and no auditor.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyiceberg.catalog import Catalog

from millrace_warehouse.storage.verbs import Storage

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactRun:
    """Everything one run needs; built in one place, by the command."""

    storage: Storage
    catalog: Catalog
    quiet_s: float = 6 * 3600.0
    """Leave an hour alone that a publication has changed since."""
    small_bytes: int = 64 << 20
    """A file below it is put together with others."""
    small_files: int = 8
    """Leave an hour alone that has at most so many small files."""
    target_bytes: int = 256 << 20
    """Start the next file when one has reached about this size."""
    dry_run: bool = False
    """Say what would be put together, and write nothing."""
    progress: Progress = lambda step: None
    clock: Callable[[], float] = time.time


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedHour:
    """One hour that has fewer files now, or would have."""

    hour: str
    rows: int
    """In the files that were put together."""
    files_before: int
    files_after: int
    """0 in a dry run."""
    bytes: int
    """Of the files that were put together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactResult:
    """What a run has put together."""

    topic: str
    hours: Sequence[CompactedHour]


def compact_topic(run: CompactRun, topic: str) -> CompactResult:
    """Put the small files of quiet hours together; MillraceError when the table is not what was published."""
    raise NotImplementedError
