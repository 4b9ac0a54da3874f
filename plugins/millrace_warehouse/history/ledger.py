"""The ledger: the hash of each manifest and publication that was made, in a file of its own.

A load is missed by its successor; the ledger is what notices that the newest one is gone, and an edition or
a publication, which nothing follows. A crash between a manifest and its entry leaves one unrecorded, and the
next run records it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from millrace.errors import MillraceError
from millrace_warehouse.history.layout import find, ledger_path
from millrace_warehouse.history.manifest import FORMAT, LoadManifest, Manifest, OffsetRange, encode
from millrace_warehouse.storage.verbs import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """That a manifest or a publication was made, and what would be missing without it."""

    path: str
    sha256: str
    """What the manifest states of itself."""
    run_id: str
    rows: int
    """Of the load; of the table after the publication."""
    offsets: Sequence[OffsetRange] = ()
    """What a load has read; empty for a publication, which can be made again from its loads."""
    format: int = FORMAT


def record(storage: Storage, path: str, manifest: Manifest) -> None:
    """Write the entry of what was made at a path, unless it is there; MillraceError if that one differs."""
    entry = LedgerEntry(
        path=path,
        sha256=manifest.sha256,
        run_id=manifest.run_id,
        rows=manifest.rows,
        offsets=manifest.ranges if isinstance(manifest, LoadManifest) else (),
    )
    if storage.create(ledger_path(path), encode(entry)):
        return
    recorded = read_entry(storage, path)
    if recorded is not None and recorded.sha256 != manifest.sha256:
        raise MillraceError(
            f"{path} is not what was published: the ledger has sha256 {recorded.sha256[:12]}…, the file"
            f" {manifest.sha256[:12]}…; restore it from a copy"
        )


def read_entry(storage: Storage, path: str) -> LedgerEntry | None:
    """The ledger's entry of a manifest or a publication, None when there is none."""
    return find(storage, LedgerEntry, ledger_path(path))
