"""Where things lie in a warehouse, what was published, and the ledger that remembers it.

    <topic>/load=<10 digits>/_manifest.json               one load, immutable
                             date=…/hour=…/*.parquet      its rows by event time, UTC
                             _rejected/*.parquet          its records that could not be decoded
    <topic>/_plans/<run id>.json                          how far a run reads, frozen before it reads
    <topic>/_ledger/load=<10 digits>.json                 the load's hash, written after it was published
    <topic>/_staging/<uuid>/                              a load on its way; readers never look here
    <topic>.hourly/date=…/hour=…/rev=<n>/                 one revision of one hour, immutable
    <topic>.hourly/_ledger/, _staging/                    as above

The ledger is what notices that the newest folder is gone: every other one is missed by its successor. A
crash between the rename and the ledger's entry leaves one folder unrecorded; the next run records it.
Knows folders and manifests. Does not know brokers, Spark or Parquet.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from millrace.errors import MillraceError
from millrace.manifest import (
    MANIFEST,
    FORMAT,
    LoadManifest,
    Manifest,
    check_hash,
    decode,
    encode,
)

from millrace_spark.filesystem import Filesystem

LEDGER = "_ledger"
STAGING = "_staging"
PLANS = "_plans"
HOURLY = ".hourly"
STALE_STAGING_S = 24 * 3600
"""Staging folders older than this belong to nobody: no load runs for a day."""

Progress = Callable[[str], None]
"""Called with the name of each step when it is done: a progress line, or a test that ends the process."""


def no_progress(step: str) -> None:
    """Say nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """That a folder was published, and with which manifest."""

    folder: str
    sha256: str
    run_id: str
    format: int = FORMAT


def load_folder(number: int) -> str:
    """Folder of a load inside its topic's."""
    return f"load={number:010d}"


def load_numbers(fs: Filesystem, topic: str) -> list[int]:
    """Numbers of the loads that can be seen, ascending."""
    matches = (re.fullmatch(r"load=(\d{10})", name) for name in fs.names(topic))
    # A folder without a file in it is nobody's: a rename goes through it as if it were not there.
    return sorted(int(m[1]) for m in matches if m and fs.names(f"{topic}/{m[0]}"))


def read_load(fs: Filesystem, topic: str, number: int) -> LoadManifest:
    """The manifest of a load; MillraceError when it is not there. Its hash is not checked here."""
    return read_manifest(fs, LoadManifest, f"{topic}/{load_folder(number)}")


def read_manifest[T](fs: Filesystem, cls: type[T], folder: str) -> T:
    """The manifest in a folder; MillraceError when it is not there or cannot be read as one."""
    path = f"{folder}/{MANIFEST}"
    try:
        content = fs.read(path)
    except FileNotFoundError:
        raise MillraceError(f"{path} is missing: restore the folder from a copy, or move it away") from None
    return decode(cls, content, path)
