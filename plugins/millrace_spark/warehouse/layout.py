"""Where things lie in a warehouse, what was published, and the ledger that remembers it.

    <topic>/load=<10 digits>/_manifest.json               one load, immutable
                             _sequences.json.gz           its sequence numbers, where they are many
                             date=…/hour=…/*.parquet      its rows by event time, UTC
                             _rejected/*.parquet          its records that could not be decoded
    <topic>/_plans/<run id>.json                          how far a run reads, frozen before it reads
    <topic>/_ledger/load=<10 digits>.json                 the load's hash, written after it was published
    <topic>/_staging/<uuid>/                              a load on its way; readers never look here
    <topic>/_hours/                                       a shortcut: which loads have rows of which hour
    <topic>.hourly/date=…/hour=…/rev=<n>/                 one revision of one hour, immutable
    <topic>.hourly/_ledger/, _staging/                    as above

The ledger is what notices that the newest folder is gone: every other one is missed by its successor. A
crash between the rename and the ledger's entry leaves one folder unrecorded; the next run records it.
Knows folders and manifests. Does not know brokers, Spark or Parquet.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

from millrace.errors import MillraceError
from millrace_audit.reports.counts import SequenceCounts
from millrace_spark.files.filesystem import Filesystem
from millrace_spark.warehouse.manifest import (
    FORMAT,
    MANIFEST,
    HourManifest,
    LoadManifest,
    Manifest,
    ProducerSequences,
    SpilledFile,
    check_hash,
    decode,
    encode,
)

M = TypeVar("M", LoadManifest, HourManifest)

LEDGER = "_ledger"
STAGING = "_staging"
PLANS = "_plans"
HOURS = "_hours"
SPILLED = "_sequences.json.gz"
SPILL_ENTRIES = 100
"""Sequence entries a manifest holds itself: about 20 KB of it. More of them go into a file beside it."""
HOURLY = ".hourly"
SWEPT = ".swept"
STALE_STAGING_S = 24 * 3600
"""Staging folders that nobody has touched for so long belong to nobody: drivers touch theirs all the time."""

Progress = Callable[[str], None]
"""Called with the name of each step when it is done: a progress line, or a test that ends the process."""


def no_progress(step: str) -> None:
    """Say nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRange:
    """Offsets [start, end) of a partition that a load holds."""

    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """That a folder was published, and what would be missing without it."""

    folder: str
    sha256: str
    run_id: str
    rows: int
    offsets: Sequence[LedgerRange] = ()
    """Of a load: what it read. An hour has none, it can be made again from its loads."""
    format: int = FORMAT


def check_topic_name(topic: str) -> None:
    """MillraceError for a topic whose loads would lie in the folder of another one's hours."""
    if topic.endswith(HOURLY):
        raise MillraceError(
            f"topic {topic} cannot be loaded: {topic} is the table of hours of topic"
            f" {topic.removesuffix(HOURLY)}; give the topic another name"
        )


def load_folder(number: int) -> str:
    """Folder of a load inside its topic's."""
    return f"load={number:010d}"


def load_numbers(fs: Filesystem, topic: str) -> list[int]:
    """Numbers of the loads that can be seen, ascending; one listing, however many they are."""
    matches = (re.fullmatch(r"load=(\d{10})", name) for name in fs.names(topic))
    numbers = sorted(int(match[1]) for match in matches if match)
    # A folder without a file in it is nobody's: a rename goes through it as if it were not there. That can
    # only be where the next load goes: one further down was emptied, and whoever reads it says so.
    while numbers and not fs.names(f"{topic}/{load_folder(numbers[-1])}"):
        numbers.pop()
    return numbers


def read_load(fs: Filesystem, topic: str, number: int) -> LoadManifest:
    """The manifest of a load; MillraceError when it is not there. Its hash is not checked here."""
    return read_manifest(fs, LoadManifest, f"{topic}/{load_folder(number)}")


def read_manifest(fs: Filesystem, cls: type[M], folder: str) -> M:
    """The manifest in a folder; MillraceError when it is not there or cannot be read as one."""
    path = f"{folder}/{MANIFEST}"
    try:
        content = fs.read(path)
    except FileNotFoundError:
        raise MillraceError(f"{path} is missing: restore the folder from a copy, or move it away") from None
    return decode(cls, content, path)


def _ledger_path(table: str, folder: str) -> str:
    return f"{table}/{LEDGER}/{folder.replace('/', ',')}.json"


def record(fs: Filesystem, table: str, folder: str, manifest: Manifest) -> None:
    """Write the ledger's entry of a published folder, unless it is there; MillraceError if that differs."""
    parts = manifest.partitions if isinstance(manifest, LoadManifest) else ()
    entry = LedgerEntry(
        folder=folder,
        sha256=manifest.sha256,
        run_id=manifest.run_id,
        rows=manifest.rows,
        offsets=[
            LedgerRange(partition=part.partition, start=part.start, end=part.end)
            for part in parts
            if part.end > part.start
        ],
    )
    if fs.create(_ledger_path(table, folder), encode(entry)):
        return
    there = recorded(fs, table, folder)
    if there is not None and there.sha256 != manifest.sha256:
        raise MillraceError(
            f"{table}/{folder} is not the one that was published: the ledger has sha256"
            f" {there.sha256[:12]}…, its manifest {manifest.sha256[:12]}…; restore it from a copy"
        )


def recorded(fs: Filesystem, table: str, folder: str) -> LedgerEntry | None:
    """The ledger's entry of a folder, None when there is none."""
    path = _ledger_path(table, folder)
    try:
        content = fs.read(path)
    except FileNotFoundError:
        return None
    return decode(LedgerEntry, content, path)


def recorded_at(fs: Filesystem, table: str, folder: str) -> float:
    """When a folder was recorded, which is after it could be seen: s since the epoch; now if it is not."""
    return time.time() - fs.age_s(_ledger_path(table, folder))


def recorded_folders(fs: Filesystem, table: str) -> list[str]:
    """Every folder the ledger knows, sorted."""
    names = fs.names(f"{table}/{LEDGER}")
    return [name[: -len(".json")].replace(",", "/") for name in names if not name.startswith(".")]


def newest_load(fs: Filesystem, topic: str) -> LoadManifest | None:
    """The newest load's manifest, None before the first load; MillraceError when history has a hole.

    To read on from a history with a hole would load the same offsets twice, or skip some for ever.
    """
    numbers = load_numbers(fs, topic)
    known = {load_folder(number) for number in numbers}
    expected = {load_folder(number) for number in range(1, max(numbers, default=0) + 1)}
    for missing in sorted((expected | set(recorded_folders(fs, topic))) - known):
        raise MillraceError(
            f"{topic}/{missing} was published and is gone: restore it from a copy; to load its offsets again"
            f" on purpose, delete {_ledger_path(topic, missing)} and every later load with its entry"
        )
    if not numbers:
        return None
    newest = read_load(fs, topic, numbers[-1])
    if problem := check_hash(newest):
        raise MillraceError(f"{topic}/{load_folder(newest.load)}: {problem}; restore it from a copy")
    return newest


def spill_sequences(
    fs: Filesystem, staging: str, counts: SequenceCounts
) -> tuple[Sequence[ProducerSequences], SpilledFile | None]:
    """The counts as a manifest holds them: its own entries, or none and the file now written beside it."""
    entries = counts.to_json()
    if len(entries) <= SPILL_ENTRIES and counts.range_count <= 4 * SPILL_ENTRIES:
        return [ProducerSequences(**entry) for entry in entries], None
    # The same counts always make the same bytes: no time of writing inside.
    content = gzip.compress(json.dumps(entries, separators=(",", ":")).encode(), mtime=0)
    fs.write(f"{staging}/{SPILLED}", content)
    digest = hashlib.sha256(content).hexdigest()
    return (), SpilledFile(path=SPILLED, entries=len(entries), bytes=len(content), sha256=digest)


def sequences_of(fs: Filesystem, folder: str, manifest: LoadManifest) -> SequenceCounts:
    """Which sequences of which producers a load holds, wherever it says so.

    MillraceError when the file beside the manifest is gone or not the one that was published.
    """
    spilled = manifest.spilled
    if spilled is None:
        return SequenceCounts.from_json(asdict(entry) for entry in manifest.sequences)
    path = f"{folder}/{spilled.path}"
    try:
        content = fs.read(path)
    except FileNotFoundError:
        raise MillraceError(f"{path} is missing: restore it from a copy") from None
    if hashlib.sha256(content).hexdigest() != spilled.sha256:
        raise MillraceError(
            f"{path} was changed: its SHA-256 is not the published one; restore it from a copy"
        )
    return SequenceCounts.from_json(json.loads(gzip.decompress(content)))


def publish(
    fs: Filesystem, table: str, staging: str, folder: str, manifest: Manifest, progress: Progress
) -> bool:
    """Make a staged folder the published one with one exclusive rename; False when another was first.

    The loser's staging is deleted: its rows were published by the winner, under that number. MillraceError
    when the staging was deleted meanwhile.
    """
    try:
        fs.write(f"{staging}/{MANIFEST}", encode(manifest))
        progress("described")
        fs.sync(staging)
        progress("synced")
        moved = fs.move(staging, f"{table}/{folder}")
    except FileNotFoundError:
        raise MillraceError(
            f"{fs.uri(staging)} is gone: this run stood still for more than a day, or somebody deleted it;"
            f" {table}/{folder} was not published by it, run it again"
        ) from None
    if not moved:
        fs.delete(staging)
        return False
    progress("published")
    record(fs, table, folder, manifest)
    progress("recorded")
    return True


def sweep_staging(fs: Filesystem, table: str) -> None:
    """Delete what runs that were killed more than a day ago left behind."""
    for name in fs.names(f"{table}/{STAGING}"):
        folder = f"{table}/{STAGING}/{name}"
        if fs.age_s(folder) <= STALE_STAGING_S:
            continue
        # Out of its driver's reach first: one that only slept could publish a folder that is half deleted.
        swept = folder if name.endswith(SWEPT) else f"{folder}{SWEPT}"
        try:
            if swept != folder and not fs.move(folder, swept):
                continue
        except FileNotFoundError:
            continue  # its driver has published it, or another run sweeps it
        fs.delete(swept)
