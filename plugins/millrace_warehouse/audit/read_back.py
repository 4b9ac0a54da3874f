"""Which sequences a load's files hold, read from the storage after they were written.

Reads the columns of the audit header and no other. Believes nothing that the load has said of its sequences,
but for files that `expire` has deleted, whose rows the table was counted to have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from millrace.errors import MillraceError
from millrace_audit.reports.counts import SequenceCounts
from millrace_warehouse.history.expired import expired_entries
from millrace_warehouse.history.hours import HOUR_US, hour_of
from millrace_warehouse.history.layout import rows_folder
from millrace_warehouse.history.manifest import LoadManifest
from millrace_warehouse.history.stored import erased_sequences_of, sequences_of
from millrace_warehouse.sequences import count_file
from millrace_warehouse.storage import Storage, open_file

_HOUR_MS = HOUR_US // 1000


@dataclass(frozen=True, slots=True)
class ReadBack:
    """What the files of a load were found to hold."""

    counts: SequenceCounts
    bad: Sequence[str]
    """A line for each file that is gone or broken: nothing in it is counted."""
    erased: SequenceCounts = field(default_factory=SequenceCounts)
    """What the manifest says was erased: only it can."""


def read_back(storage: Storage, manifest: LoadManifest) -> ReadBack:
    """Count the files of a load; MillraceError when the storage does not answer, or they go meanwhile."""
    topic, counts, bad = manifest.topic, SequenceCounts(), list[str]()
    folder = rows_folder(topic, manifest.load, manifest.attempt)
    there = {f"{folder}/{found.path}" for found in storage.files(folder)}
    paths = {file.path: f"{topic}/{file.path}" for file in manifest.files}
    expired = _expired(storage, topic) if set(paths.values()) - there else set()
    expired_hours = {f.hour for f in manifest.files if f.path in expired and paths[f.path] not in there}
    for file in manifest.files:
        path = paths[file.path]
        if file.hour in expired_hours:
            continue
        if path not in there:
            bad.append(f"{path} is gone")
            continue
        try:
            counts.merge(count_file(open_file(storage, path)))
        except FileNotFoundError:
            raise MillraceError(f"{path} was deleted while it was read; it is looked at again") from None
        except (pa.ArrowException, OSError) as error:
            bad.append(f"{path} cannot be read: {str(error).splitlines()[0]}")
    if expired_hours:
        for key, tally in sequences_of(storage, manifest).tallies.items():
            if hour_of(key.window // _HOUR_MS) in expired_hours:
                for first, last in tally.ranges():
                    counts.add(*key, first, last)
    return ReadBack(counts, bad, erased_sequences_of(storage, manifest))


def _expired(storage: Storage, topic: str) -> set[str]:
    return {path for entry in expired_entries(storage, topic) for path in entry.files}
