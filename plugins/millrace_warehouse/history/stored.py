"""Files that a manifest names, with their size and hash: stored once, and read only if unchanged.

A load's sequence numbers are in its manifest while they are few, else in a file beside its rows.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import BinaryIO

from millrace.errors import MillraceError
from millrace_audit.reports.counts import SequenceCounts
from millrace_warehouse.history.layout import Topic
from millrace_warehouse.history.manifest import LoadManifest, ProducerSequences, StoredFile
from millrace_warehouse.storage.interface import Storage

ENTRIES = "entries.avro"
SEQUENCES = "sequences.json.gz"
ERASED = "erased.json.gz"
HELD_ENTRIES = 100
"""Most entries of sequence numbers in a manifest, about 20 KB. A longer list goes into a file."""


def store(storage: Storage, path: str, content: BinaryIO) -> StoredFile:
    """Store a file under a path that begins with its topic. Return its description for a manifest."""
    written = storage.put(path, content)
    return StoredFile(path=path.partition("/")[2], bytes=written.bytes, sha256=written.sha256)


def read_stored(topic: Topic, file: StoredFile) -> bytes:
    """Return a stored file's bytes. Raise MillraceError when the file is missing or was changed."""
    path = f"{topic}/{file.path}"
    try:
        content = topic.storage.read(path)
    except FileNotFoundError:
        raise MillraceError(f"{path} is missing: restore it from a copy") from None
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise MillraceError(
            f"{path} was changed: its SHA-256 differs from its manifest's; restore it from a copy"
        )
    return content


def store_sequences(
    storage: Storage, folder: str, counts: SequenceCounts, name: str = SEQUENCES
) -> tuple[Sequence[ProducerSequences], StoredFile | None]:
    """Return the counts for a manifest: as entries, or without entries and with a file in `folder`."""
    entries = counts.to_json()
    if len(entries) <= HELD_ENTRIES and counts.range_count <= 4 * HELD_ENTRIES:
        return [ProducerSequences(**entry) for entry in entries], None
    # No time of writing inside: the same counts always make the same bytes.
    content = gzip.compress(json.dumps(entries, separators=(",", ":")).encode(), mtime=0)
    return (), store(storage, f"{folder}/{name}", io.BytesIO(content))


def sequences_of(storage: Storage, manifest: LoadManifest) -> SequenceCounts:
    """Return the sequence numbers of each producer in a load, from its manifest or from the file that it
    names.

    Raise MillraceError when that file is missing or was changed.
    """
    return _counts(storage, manifest, manifest.sequences, manifest.sequences_file)


def erased_sequences_of(storage: Storage, manifest: LoadManifest) -> SequenceCounts:
    """Return the sequence numbers of a load's erased rows, as `sequences_of` does for its rows."""
    return _counts(storage, manifest, manifest.erased_sequences, manifest.erased_sequences_file)


def _counts(
    storage: Storage, manifest: LoadManifest, held: Sequence[ProducerSequences], file: StoredFile | None
) -> SequenceCounts:
    if file is None:
        return SequenceCounts.from_json(asdict(entry) for entry in held)
    content = read_stored(Topic(storage, manifest.topic), file)
    return SequenceCounts.from_json(json.loads(gzip.decompress(content)))
