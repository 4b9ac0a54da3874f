"""Rows, tombstones and rejected messages of a load, counted in its stored files.

Reads the columns of the audit header and the record's time. Ignores the load's own statements about its rows,
except for files that `expire` has deleted. The manifest has the sequences of their rows with a header, and
only the number of their rows without a header, which are reported as uncounted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.errors import MillraceError
from millrace_audit.reports.counts import WINDOW_MS, SequenceCounts
from millrace_audit.reports.messages import NOTHING, HourRows, RejectedMessages, UnkeyedRows
from millrace_warehouse.audit.rejected import EARLIEST_COUNTED, rejected_messages
from millrace_warehouse.history.expired import expired_entries
from millrace_warehouse.history.hours import HOUR_US, UNFILED, hour_of, start_ms
from millrace_warehouse.history.layout import Topic, rows_folder
from millrace_warehouse.history.manifest import LoadManifest
from millrace_warehouse.history.schemas import read_schema
from millrace_warehouse.history.stored import erased_sequences_of, sequences_of
from millrace_warehouse.sequences import FileRows
from millrace_warehouse.storage import Storage, open_file

_HOUR_MS = HOUR_US // 1000


@dataclass(frozen=True, slots=True)
class ReadBack:
    """Contents found in the files of a load."""

    counts: SequenceCounts
    bad: Sequence[str] = ()
    """One line for each missing or broken file. Nothing in such a file is counted."""
    erased: SequenceCounts = field(default_factory=SequenceCounts)
    """Sequence numbers of erased rows, from the manifest, which is their only source."""
    unkeyed: Mapping[int, UnkeyedRows] = field(default_factory=dict)
    """Window -> rows without an audit header, and tombstones, which are in no hour's partition."""
    hours: Sequence[HourRows] = ()
    rejected: Sequence[RejectedMessages] = ()


def read_back(storage: Storage, manifest: LoadManifest) -> ReadBack:
    """Count the rows and messages in the files of a load.

    Raise MillraceError when the storage does not answer, or when files are deleted during the count.
    """
    topic, bad = Topic(storage, manifest.topic), list[str]()
    folder = rows_folder(topic.name, manifest.load, manifest.attempt)
    there = {f"{folder}/{found.path}" for found in storage.files(folder)}
    paths = {file.path: f"{topic}/{file.path}" for file in manifest.files}
    expired = _expired(topic) if set(paths.values()) - there else set()
    expired_hours = {f.hour for f in manifest.files if f.path in expired and paths[f.path] not in there}
    hours: defaultdict[str, FileRows] = defaultdict(FileRows)
    for file in manifest.files:
        path = paths[file.path]
        if file.hour in expired_hours:
            hours[file.hour].rows += file.rows
        elif path not in there:
            bad.append(f"{path} is gone")
        else:
            try:
                found = FileRows()
                found.add(open_file(storage, path))
                hours[file.hour].merge(found)
            except FileNotFoundError:
                raise MillraceError(
                    f"{path} was deleted while it was read; the next round reads again"
                ) from None
            except (pa.ArrowException, OSError) as error:
                bad.append(f"{path} cannot be read: {str(error).splitlines()[0]}")
    tombstones = Counter[int]()
    for aside in manifest.tombstone_files:
        try:
            tombstones.update(_tombstones(open_file(storage, f"{topic}/{aside.path}")))
        except FileNotFoundError:
            # An erasure deletes the tombstones of earlier editions; the next edition counts its own.
            if aside.path not in _expired(topic):
                bad.append(f"{topic}/{aside.path} is gone")
        except (pa.ArrowException, OSError) as error:
            bad.append(f"{topic}/{aside.path} cannot be read: {str(error).splitlines()[0]}")
    counts, uncounted = SequenceCounts(), Counter[str]()
    for rows in hours.values():
        counts.merge(rows.counts)
    if expired_hours:
        uncounted.update({hour: hours[hour].rows for hour in expired_hours})
        _add_expired(sequences_of(storage, manifest), counts, uncounted)
        if read_schema(topic, manifest.schema).time_field:  # the hour is not that of the records' times
            uncounted = Counter({UNFILED: uncounted.total()})
    erased = erased_sequences_of(storage, manifest)
    return ReadBack(
        counts=counts,
        bad=bad,
        erased=erased,
        unkeyed=_unkeyed(hours, tombstones),
        hours=_hours(manifest, {hour: rows.rows for hour, rows in hours.items()}, erased, uncounted),
        rejected=rejected_messages(storage, manifest),
    )


def _add_expired(stated: SequenceCounts, counts: SequenceCounts, uncounted: Counter[str]) -> None:
    """Count the stated sequences of the hours in `uncounted`, and take their rows out of it."""
    for key, tally in stated.tallies.items():
        if (hour := hour_of(key.window // _HOUR_MS)) in uncounted:
            uncounted[hour] -= tally.total
            for first, last in tally.ranges():
                counts.add(*key, first, last)


def _tombstones(content: BinaryIO) -> Counter[int]:
    """Map each window to its tombstones, by the record's time, as readers of a cluster count them."""
    with content, pq.ParquetFile(content) as file:
        times = np.maximum(file.read(["timestamp"])["timestamp"].to_numpy(), EARLIEST_COUNTED)
    windows, counts = np.unique(times - times % WINDOW_MS, return_counts=True)
    return Counter(dict(zip(windows.tolist(), counts.tolist(), strict=True)))


def _unkeyed(hours: Mapping[str, FileRows], tombstones: Counter[int]) -> dict[int, UnkeyedRows]:
    rows, unfiled = tombstones.copy(), tombstones.copy()
    for hour, found in hours.items():
        rows.update(found.unkeyed)
        if hour == UNFILED:
            unfiled.update(found.unkeyed)
    return {window: UnkeyedRows(window, rows[window], unfiled[window]) for window in sorted(rows)}


def _hours(
    manifest: LoadManifest, rows: Mapping[str, int], erased: SequenceCounts, uncounted: Counter[str]
) -> list[HourRows]:
    """Return the rows of each hour, with its erased and uncounted rows that had no audit header."""
    without = Counter[str]()
    for each in manifest.erased:
        without[each.hour] += each.rows
    for key, tally in erased.tallies.items():
        without[hour_of(key.window // _HOUR_MS)] -= tally.total
    named = sorted({*rows, *(hour for hour, count in without.items() if count > 0)} - {UNFILED})
    without, uncounted = +without, +uncounted
    rows_by_hour = [
        HourRows(start_ms(hour), rows.get(hour, 0), without[hour], uncounted[hour]) for hour in named
    ]
    if without[UNFILED] or uncounted[UNFILED]:
        rows_by_hour.append(HourRows(NOTHING, 0, without[UNFILED], uncounted[UNFILED]))
    return rows_by_hour


def _expired(topic: Topic) -> set[str]:
    return {path for entry in expired_entries(topic) for path in entry.files}
