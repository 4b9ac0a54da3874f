"""The sequence numbers that a load holds: in its manifest where few, else in a file beside its rows."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
from collections.abc import Sequence
from dataclasses import asdict

from millrace.errors import MillraceError
from millrace_audit.reports.counts import SequenceCounts
from millrace_warehouse.history.manifest import LoadManifest, ProducerSequences, StoredFile
from millrace_warehouse.storage.verbs import Storage

SEQUENCES = "sequences.json.gz"
HELD_ENTRIES = 100
"""Most sequence entries that a manifest holds itself, about 20 KB; more go into a file."""


def store_sequences(
    storage: Storage, topic: str, folder: str, counts: SequenceCounts
) -> tuple[Sequence[ProducerSequences], StoredFile | None]:
    """The counts as a manifest holds them: its own entries, or none and the file now stored in `folder`."""
    entries = counts.to_json()
    if len(entries) <= HELD_ENTRIES and counts.range_count <= 4 * HELD_ENTRIES:
        return [ProducerSequences(**entry) for entry in entries], None
    # The same counts always make the same bytes: no time of writing inside.
    content = gzip.compress(json.dumps(entries, separators=(",", ":")).encode(), mtime=0)
    path = f"{folder}/{SEQUENCES}"
    written = storage.put(path, io.BytesIO(content))
    return (), StoredFile(path=path.removeprefix(f"{topic}/"), bytes=written.bytes, sha256=written.sha256)


def sequences_of(storage: Storage, manifest: LoadManifest) -> SequenceCounts:
    """Which sequences of which producers a load holds, from its manifest or from the file that it names.

    MillraceError when that file is gone or not the one that was stored.
    """
    stored = manifest.sequences_file
    if stored is None:
        return SequenceCounts.from_json(asdict(entry) for entry in manifest.sequences)
    path = f"{manifest.topic}/{stored.path}"
    try:
        content = storage.read(path)
    except FileNotFoundError:
        raise MillraceError(f"{path} is missing: restore it from a copy") from None
    if hashlib.sha256(content).hexdigest() != stored.sha256:
        raise MillraceError(
            f"{path} was changed: its SHA-256 is not the one its manifest states; restore it from a copy"
        )
    return SequenceCounts.from_json(json.loads(gzip.decompress(content)))
