"""The ledger: the hash of each manifest of a load or publication, in a file of its own.

The next load names its predecessor, so a missing load is noticed. The ledger reveals a missing newest load,
and a missing edition or publication, which no later manifest names. A crash between a manifest and its entry
leaves the manifest without an entry; the next run writes the entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from millrace.errors import MillraceError
from millrace_warehouse.history.layout import find, ledger_path
from millrace_warehouse.history.manifest import FORMAT, LoadManifest, Manifest, OffsetRange, encode
from millrace_warehouse.storage.interface import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """Proof that a manifest was written, and a description of the rows and offsets that would be missing
    without it.
    """

    path: str
    sha256: str
    """The hash that the manifest states for itself."""
    run_id: str
    rows: int
    """Rows of the load, or of the table after the publication."""
    offsets: Sequence[OffsetRange] = ()
    """Offsets that a load has read; empty for a publication, which can be rebuilt from its loads."""
    format: int = FORMAT


def add_to_ledger(storage: Storage, path: str, manifest: Manifest) -> None:
    """Write the ledger's entry of the manifest at a path, unless it exists.

    Raise MillraceError if an existing entry has another hash.
    """
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
            f"{path} differs from its ledger entry: the ledger has sha256 {recorded.sha256[:12]}…, the file"
            f" {manifest.sha256[:12]}…; restore it from a copy"
        )


def read_entry(storage: Storage, path: str) -> LedgerEntry | None:
    """Return the ledger's entry of a manifest, or None when there is none."""
    return find(storage, LedgerEntry, ledger_path(path))
