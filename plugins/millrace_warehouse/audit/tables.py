"""The published table of one topic: which of its hours were changed, and what a reader gets of them now.

An hour is counted again when the table's current snapshot names other files for it, or other files of
deletions, than were told of; so a publication, a compaction and whatever another program does are looked at
alike. Rows are read by pyiceberg as any reader reads them: deleted ones are not there. Nothing is told of an
hour that does not have everything the auditor was told of loads: the next publication changes it.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import FileScanTask, Table

from millrace.errors import MillraceError
from millrace_audit.reports.counts import WINDOW_MS, SequenceCounts
from millrace_warehouse.audit.loads import Loads
from millrace_warehouse.history import layout
from millrace_warehouse.history.hours import UNFILED, hour_of, start_of
from millrace_warehouse.publish.table import find_table, publication_of
from millrace_warehouse.sequences import count_sequences
from millrace_warehouse.storage import Storage

HEADER = "header"
NOTED_EVERY = 100
"""Hours after which it is written down what was told: a killed reader tells at most so many again."""


@dataclass(frozen=True, slots=True)
class TableHour:
    """What a reader of the table gets of an hour."""

    hour: str
    snapshot: int
    windows: list[int]
    counts: SequenceCounts
    """Of these windows alone."""


class PublishedTable:
    """What was told of a topic's table."""

    def __init__(self, storage: Storage, topic: str) -> None:
        self._storage, self._topic = storage, topic
        self._seen = "", 0
        self._told: dict[str, str] = {}
        # A hint that is lost or cut costs no more than to count every hour again.
        with suppress(FileNotFoundError, ValueError, TypeError):
            self._told = dict(json.loads(storage.read(layout.audited_table_path(topic))))

    def news(self, catalog: Catalog, loads: Loads) -> Iterator[TableHour]:
        """The hours to tell of, ascending; ask for the next one when one is told.

        MillraceError when the table is not that of its publication, or cannot be read.
        """
        table = find_table(catalog, self._topic)
        snapshot = table.current_snapshot() if table is not None else None
        erased = loads.erased_by_hour()
        if table is None or snapshot is None:
            return
        version = table.metadata_location, sum(counts.total for counts in erased.values())
        if version == self._seen:
            return
        publication = publication_of(self._storage, self._topic, table)
        behind = None if publication is None else loads.behind(publication.loads)
        if behind is None or HEADER not in table.schema().column_names:
            return
        hours = _tasks_by_hour(table)
        digests = {hour: _digest(tasks, erased.get(hour)) for hour, tasks in hours.items()}
        changed = [hour for hour in sorted(digests.keys() | self._told) if self._is_new(hour, digests)]
        for at, hour in enumerate((hour for hour in changed if hour not in behind), 1):
            found = self._count(table, snapshot.snapshot_id, hour, hours.get(hour, []))
            if hour in erased:
                found.counts.merge(erased[hour])
            yield found
            self._told[hour] = digests.get(hour, "")
            if at % NOTED_EVERY == 0:
                self._note()
        if changed:
            self._note()
        self._seen = version

    def _is_new(self, hour: str, digests: dict[str, str]) -> bool:
        return hour != UNFILED and self._told.get(hour) != digests.get(hour, "")

    def _count(self, table: Table, snapshot: int, hour: str, tasks: list[FileScanTask]) -> TableHour:
        start = int(start_of(hour).timestamp()) * 1000
        windows = [start + n * WINDOW_MS for n in range(3_600_000 // WINDOW_MS)]
        counts, found = SequenceCounts(), SequenceCounts()
        try:
            scan = ArrowScan(table.metadata, table.io, table.schema().select(HEADER), AlwaysTrue())
            for batch in scan.to_record_batches(tasks):
                count_sequences(batch, found)
        except Exception as error:  # whatever pyiceberg and pyarrow say of a file that is gone or broken
            reason = (str(error).splitlines() or [""])[0]
            raise MillraceError(
                f"{'.'.join(table.name())} cannot be read in {hour} ({type(error).__name__}: {reason}): run"
                " `millrace verify`"
            ) from error
        counts.tallies = {key: tally for key, tally in found.tallies.items() if key.window in windows}
        return TableHour(hour, snapshot, windows, counts)

    def _note(self) -> None:
        told = {hour: digest for hour, digest in self._told.items() if digest}
        content = json.dumps(told, sort_keys=True).encode()
        self._storage.put(layout.audited_table_path(self._topic), io.BytesIO(content))


def _tasks_by_hour(table: Table) -> dict[str, list[FileScanTask]]:
    hours: defaultdict[str, list[FileScanTask]] = defaultdict(list)
    for task in table.scan().plan_files():
        hours[hour_of(task.file.partition[0])].append(task)
    return hours


def _digest(tasks: list[FileScanTask], erased: SequenceCounts | None) -> str:
    """Of the files that an hour has, of those that delete rows of it, and of how many rows were erased."""
    files = [(t.file.file_path, t.file.file_size_in_bytes, t.file.record_count) for t in tasks]
    deletes = {(d.file_path, d.file_size_in_bytes, d.record_count) for t in tasks for d in t.delete_files}
    named = json.dumps([sorted(files), sorted(deletes), *([erased.total] if erased else [])]).encode()
    return hashlib.blake2b(named, digest_size=8).hexdigest()
