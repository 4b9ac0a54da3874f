"""Where things lie in a warehouse, and how a manifest and the file beside it are read.

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

Knows folders and manifests. Does not know brokers, Spark or Parquet.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict

from millrace.errors import MillraceError
from millrace_audit.reports.counts import SequenceCounts
from millrace_warehouse.history.manifest import (
    MANIFEST,
    LoadManifest,
    M,
    ProducerSequences,
    SpilledFile,
    check_hash,
    decode,
)
from millrace_warehouse.storage.filesystem import Filesystem

LEDGER = "_ledger"
STAGING = "_staging"
PLANS = "_plans"
HOURS = "_hours"
HOURLY = ".hourly"
SPILLED = "_sequences.json.gz"
SPILL_ENTRIES = 100
"""Most sequence entries that a manifest holds itself, about 20 KB; more go into a file beside it."""


def check_topic_name(topic: str) -> None:
    """MillraceError for a topic whose loads would lie in the folder of another topic's hours."""
    if topic.endswith(HOURLY):
        raise MillraceError(
            f"topic {topic} cannot be loaded: {topic} is the table of hours of topic"
            f" {topic.removesuffix(HOURLY)}; give the topic another name"
        )


def load_folder(number: int) -> str:
    """Folder of a load inside its topic's."""
    return f"load={number:010d}"


def load_numbers(fs: Filesystem, topic: str) -> list[int]:
    """Numbers of the loads that can be seen, ascending, by one listing of the topic's folder."""
    matches = (re.fullmatch(r"load=(\d{10})", name) for name in fs.names(topic))
    numbers = sorted(int(match[1]) for match in matches if match)
    # A rename goes through an empty folder as if it were not there, so the next load may go where one is.
    # An empty folder further down was emptied, and whoever reads it says so.
    while numbers and not fs.names(f"{topic}/{load_folder(numbers[-1])}"):
        numbers.pop()
    return numbers


def read_load(fs: Filesystem, topic: str, number: int) -> LoadManifest:
    """The manifest of a load, its hash unchecked; MillraceError when it is missing or broken."""
    return read_manifest(fs, LoadManifest, f"{topic}/{load_folder(number)}")


def read_manifest(fs: Filesystem, cls: type[M], folder: str) -> M:
    """The manifest in a folder, its hash unchecked; MillraceError when it is missing or broken."""
    path = f"{folder}/{MANIFEST}"
    try:
        content = fs.read(path)
    except FileNotFoundError:
        raise MillraceError(f"{path} is missing: restore the folder from a copy, or move it away") from None
    return decode(cls, content, path)


def read_checked(fs: Filesystem, cls: type[M], folder: str) -> M:
    """The manifest in a folder; MillraceError when it is missing or broken, or was edited."""
    manifest = read_manifest(fs, cls, folder)
    if problem := check_hash(manifest):
        raise MillraceError(f"{folder}: {problem}; restore it from a copy")
    return manifest


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
    """Which sequences of which producers a load holds, from the manifest or from the file beside it.

    MillraceError when that file is gone or not the one that was published.
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
