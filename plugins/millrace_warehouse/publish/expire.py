"""Deletes what nobody needs any more: files of loads whose rows the table has elsewhere, and strays.

A data file of a load goes when all rows of the load are published, no snapshot of the table names the file,
and both have been so for long enough. That is written down first, in `expired/`; then the files are deleted.
After a crash at any step the next run goes on where this one stopped. Manifests, rejected records and the
files beside a manifest stay. Reads no rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyiceberg.catalog import Catalog

from millrace_warehouse.storage.verbs import Storage

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireRun:
    """Everything one run needs; built in one place, by the command."""

    storage: Storage
    catalog: Catalog
    older_than_s: float
    """Leave files of loads alone that are younger."""
    reader_grace_s: float = 3 * 24 * 3600.0
    """How long what no snapshot names stays at least, for queries that began before."""
    dry_run: bool = False
    """Say what would be deleted, and delete nothing."""
    progress: Progress = lambda step: None
    clock: Callable[[], float] = time.time


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireResult:
    """What a run deleted, or would have."""

    topic: str
    data_files: int
    """Of loads, whose rows the table or a newer edition has."""
    compacted_files: int
    """That `compact` or a re-load wrote and no snapshot names any more, or none ever named."""
    metadata_files: int
    """Of the table, that no snapshot names."""
    strays: int
    """Files of attempts that never became a load, an edition or a publication."""
    plans: int
    bytes: int
    """Of all of them."""
    kept: Mapping[str, str]
    """Old loads whose files stay -> why."""


def expire_topic(run: ExpireRun, topic: str) -> ExpireResult:
    """Delete what is old and not needed; MillraceError for a hole in the history."""
    raise NotImplementedError
