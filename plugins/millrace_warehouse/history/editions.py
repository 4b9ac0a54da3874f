"""The editions of loads: which readings of the same offsets there are, and which have only a manifest left.

    <topic>/load=<10 digits>/                                     the first edition
    <topic>/_reloads/load=<10 digits>/edition=<4 digits>/         a later one; `_ledger/`, `_staging/` beside
    <topic>/_expired/load=<10 digits>[,edition=<4 digits>].json   written before its data files were deleted
    <topic>.hourly/_expired/date=…,hour=…,rev=<n>.json            the same for a revision that was superseded
    …/_expired/.deleting,load=<10 digits>                         from before that until a day afterwards

The newest edition of a load is the one that counts. Knows folders and manifests; no Parquet, log or Spark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from millrace.errors import MillraceError
from millrace_warehouse.history.layout import load_folder, read_checked
from millrace_warehouse.history.ledger import recorded_folders
from millrace_warehouse.history.manifest import FORMAT, LoadManifest
from millrace_warehouse.storage.filesystem import Filesystem

RELOADS = "_reloads"
EXPIRED = "_expired"
_DELETION = ".deleting,"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiredEntry:
    """That the data files of a folder were deleted, and where their rows are instead."""

    folder: str
    sha256: str
    """Of the folder's manifest, which stays."""
    expired: str
    rows: int
    files: int
    bytes: int
    revisions: Mapping[str, int]
    """Hour -> the revision whose files were checked and hold the rows."""
    format: int = FORMAT


def reloads_table(topic: str) -> str:
    """The folder that holds a topic's later editions, with a ledger of its own."""
    return f"{topic}/{RELOADS}"


def reload_folder(load: int, edition: int) -> str:
    """Folder of a later edition inside `_reloads`."""
    return f"{load_folder(load)}/edition={edition:04d}"


def edition_folder(load: int, edition: int) -> str:
    """Folder of any edition of a load inside its topic's."""
    return load_folder(load) if edition == 1 else f"{RELOADS}/{reload_folder(load, edition)}"


def read_edition(fs: Filesystem, topic: str, load: int, edition: int) -> LoadManifest:
    """The manifest of an edition; MillraceError when it is not there or was edited."""
    return read_checked(fs, LoadManifest, f"{topic}/{edition_folder(load, edition)}")


def later_editions(fs: Filesystem, topic: str) -> dict[int, list[int]]:
    """Load -> its editions after the first that can be seen, ascending; loads without any are left out."""
    table = reloads_table(topic)
    editions: dict[int, list[int]] = {}
    for name in fs.names(table):
        if not (load := re.fullmatch(r"load=(\d{10})", name)):
            continue
        for folder in fs.names(f"{table}/{name}"):
            edition = re.fullmatch(r"edition=(\d{4,})", folder)
            if edition and fs.names(f"{table}/{name}/{folder}"):
                editions.setdefault(int(load[1]), []).append(int(edition[1]))
    return {load: sorted(numbers) for load, numbers in editions.items()}


def newest_editions(fs: Filesystem, topic: str) -> dict[int, int]:
    """Load -> its newest edition, for loads that were read again; MillraceError when one is gone.

    To go on without it would bring back the rows of the edition before.
    """
    # In this order: an edition is there before the ledger knows it.
    recorded = recorded_folders(fs, reloads_table(topic))
    editions = later_editions(fs, topic)
    present = {reload_folder(load, edition) for load, numbers in editions.items() for edition in numbers}
    for folder in recorded:
        if folder not in present:
            raise MillraceError(
                f"{reloads_table(topic)}/{folder} was published and is gone: restore it from a copy"
            )
    return {load: numbers[-1] for load, numbers in editions.items()}


def expired_path(table: str, folder: str) -> str:
    """Where it is written down that the data files of a folder of a table were deleted."""
    return f"{table}/{EXPIRED}/{expired_name(folder)}.json"


def expired_folders(fs: Filesystem, table: str) -> set[str]:
    """The names of what has expired in a table, as `expired_name` gives them."""
    return {name.removesuffix(".json") for name in fs.names(f"{table}/{EXPIRED}") if not name.startswith(".")}


def expired_name(folder: str) -> str:
    """How `expired_folders` names a folder of the table."""
    return folder.removeprefix(f"{RELOADS}/").replace("/", ",")


def deletion_path(table: str, name: str) -> str:
    """The empty file that says that a run is deleting, or has deleted, what `expired_name` names."""
    return f"{table}/{EXPIRED}/{_DELETION}{name}"


def deletions(fs: Filesystem, table: str) -> list[str]:
    """The names of what is being deleted in a table, or was lately."""
    return [
        name.removeprefix(_DELETION) for name in fs.names(f"{table}/{EXPIRED}") if name.startswith(_DELETION)
    ]
