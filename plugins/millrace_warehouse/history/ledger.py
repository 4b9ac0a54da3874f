"""The ledger of a table: the hash of each folder that was published, and whether one of them is gone.

Every load but the newest is missed by its successor; the ledger is what notices that the newest one is gone.
A crash between the rename and the ledger's entry leaves one folder unrecorded, and the next run records it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from millrace.errors import MillraceError
from millrace_warehouse.history.layout import LEDGER, load_folder, load_numbers, read_checked
from millrace_warehouse.history.manifest import FORMAT, LoadManifest, Manifest, OffsetRange, decode, encode
from millrace_warehouse.storage.filesystem import Filesystem


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """That a folder was published, and what would be missing without it."""

    folder: str
    sha256: str
    run_id: str
    rows: int
    offsets: Sequence[OffsetRange] = ()
    """What a load has read; an hour has none, because its loads can make it again."""
    format: int = FORMAT


def _path(table: str, folder: str) -> str:
    return f"{table}/{LEDGER}/{folder.replace('/', ',')}.json"


def record(fs: Filesystem, table: str, folder: str, manifest: Manifest) -> None:
    """Write the ledger's entry of a published folder, unless it is there; MillraceError if that differs."""
    entry = LedgerEntry(
        folder=folder,
        sha256=manifest.sha256,
        run_id=manifest.run_id,
        rows=manifest.rows,
        offsets=manifest.ranges if isinstance(manifest, LoadManifest) else (),
    )
    if fs.create(_path(table, folder), encode(entry)):
        return
    recorded = read_entry(fs, table, folder)
    if recorded is not None and recorded.sha256 != manifest.sha256:
        raise MillraceError(
            f"{table}/{folder} is not the one that was published: the ledger has sha256"
            f" {recorded.sha256[:12]}…, its manifest {manifest.sha256[:12]}…; restore it from a copy"
        )


def read_entry(fs: Filesystem, table: str, folder: str) -> LedgerEntry | None:
    """The ledger's entry of a folder, None when there is none."""
    path = _path(table, folder)
    try:
        return decode(LedgerEntry, fs.read(path), path)
    except FileNotFoundError:
        return None


def recorded_at(fs: Filesystem, table: str, folder: str) -> float:
    """When a folder was recorded, in s since the epoch; the present time if it is not recorded.

    A folder is recorded after it could be seen.
    """
    return time.time() - fs.age_s(_path(table, folder))


def recorded_folders(fs: Filesystem, table: str) -> list[str]:
    """Every folder that has an entry, sorted."""
    names = fs.names(f"{table}/{LEDGER}")
    return [name.removesuffix(".json").replace(",", "/") for name in names if not name.startswith(".")]


def require_load(fs: Filesystem, topic: str) -> LoadManifest:
    """The newest load's manifest; MillraceError when there is none, or when history has a hole."""
    newest = newest_load(fs, topic)
    if newest is None:
        raise MillraceError(f"no load of {topic} in {fs.root}: check the warehouse and the topic")
    return newest


def newest_load(fs: Filesystem, topic: str) -> LoadManifest | None:
    """The newest load's manifest, None before the first load; MillraceError when history has a hole.

    To read on from a history with a hole would load the same offsets twice, or skip some for ever.
    """
    numbers = load_numbers(fs, topic)
    present = {load_folder(number) for number in numbers}
    expected = {load_folder(number) for number in range(1, max(numbers, default=0) + 1)}
    for missing in sorted((expected | set(recorded_folders(fs, topic))) - present):
        raise MillraceError(
            f"{topic}/{missing} was published and is gone: restore it from a copy; to load its offsets again"
            f" on purpose, delete {_path(topic, missing)} and every later load with its entry"
        )
    return read_checked(fs, LoadManifest, f"{topic}/{load_folder(numbers[-1])}") if numbers else None
