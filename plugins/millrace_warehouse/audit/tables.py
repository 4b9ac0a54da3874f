"""The published table of one topic: its changed hours, and the rows that a reader gets of them now.

An hour is counted again when the table's current snapshot names other data files or other delete files for it
than were reported. So publications, compactions and changes by other programs are treated alike. pyiceberg
reads the rows as any reader does, so deleted rows do not count. An hour that lacks reported rows of loads is
not reported: the next publication changes it.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import FileScanTask, Table

from millrace.errors import MillraceError
from millrace_audit.reports.counts import HOUR_MS, WINDOW_MS, SequenceCounts, is_of_this_world
from millrace_audit.reports.messages import FOR_EVER
from millrace_warehouse.audit.loads import Loads
from millrace_warehouse.history import layout
from millrace_warehouse.history.hours import UNFILED, hour_of, start_ms
from millrace_warehouse.publish.contents import hour_of_file
from millrace_warehouse.publish.live import is_on, shown_through_s
from millrace_warehouse.publish.table import find_table, publication_of
from millrace_warehouse.sequences import (
    HEADER,
    RECORD_HEADER,
    TIMESTAMP,
    FileRows,
    count_sequences,
    count_unkeyed,
)

WRITTEN_EVERY = 100
"""Number of reported hours after which the reported state is stored. A reader that was killed repeats at most
these hours.
"""
LIVE_STEP_MS = 60_000
"""Step of the time through which branch `live` is reported: a resident loader commits every few seconds."""


@dataclass(frozen=True, slots=True)
class TableHour:
    """Rows of an hour that a reader of the table gets, wherever in the table they lie."""

    hour: str
    snapshot: int
    windows: list[int]
    counts: SequenceCounts
    """Sequence numbers in these windows alone."""
    unkeyed: Mapping[int, int]
    """Window -> rows without a whole audit header, in these windows alone."""


class PublishedTable:
    """The reported contents of a topic's table."""

    def __init__(self, topic: layout.Topic, *, again: bool = False) -> None:
        """With `again`, report every hour once more, whatever was reported."""
        self._topic = topic
        self.exists = False
        """True if the catalog had the table at the last `to_report`, even if it cannot be counted."""
        self._table: Table | None = None
        """Table that the last `to_report` found in the catalog."""
        self._seen = "", 0
        self._reported: dict[str, str] = {}
        self._strays: dict[str, FileRows] = {}
        """Hour -> rows of other hours that lie in its partition."""
        # A hint that is lost or cut only makes every hour be counted again.
        with suppress(FileNotFoundError, ValueError, TypeError):
            self._reported = dict(json.loads(topic.storage.read(layout.audited_table_path(topic.name))))
        if again:
            self._reported = dict.fromkeys(self._reported, "again")  # no digest of files

    def to_report(self, catalog: Catalog, loads: Loads) -> Iterator[TableHour]:
        """Yield the hours to report, ascending. Report each hour before asking for the next one.

        Raise MillraceError when the table differs from its publication, or cannot be read.
        """
        self._table = None
        self._table = table = find_table(catalog, self._topic.name)
        self.exists = table is not None
        snapshot = table.current_snapshot() if table is not None else None
        erased = loads.erased_by_hour()
        if table is None or snapshot is None:
            return
        version = table.metadata_location, sum(counts.total for counts in erased.values())
        if version == self._seen:
            return
        publication = publication_of(self._topic, table)
        lagging = None if publication is None else loads.lagging_hours(publication.loads)
        if lagging is None:
            return
        hours = _tasks_by_hour(table)
        files = {hour: _digest(tasks, erased.get(hour)) for hour, tasks in hours.items()}
        changed = [hour for hour in sorted(files.keys() | self._reported) if self._is_new(hour, files)]
        waiting, at = deque(hour for hour in changed if hour not in lagging), 0
        while waiting:
            hour = waiting.popleft()
            found, moved = self._count(table, hour, hours.get(hour, []))
            # Rows in the partition of another hour are counted where a reader of their own hour looks.
            again = [
                other
                for other in sorted(moved)
                if other in files.keys() | self._reported and other not in lagging
            ]
            waiting.extend(other for other in again if other not in waiting)
            if hour in erased:
                found.counts.merge(erased[hour])
            yield TableHour(hour, snapshot.snapshot_id, _windows(hour), found.counts, dict(found.unkeyed))
            self._reported[hour] = files.get(hour, "")
            at += 1
            if at % WRITTEN_EVERY == 0:
                self._write_reported()
        if changed:
            self._write_reported()
        self._seen = version

    def live_through(self) -> int | None:
        """Return the value of `WarehouseState.live_through` for the table that the last `to_report` found.

        Raise MillraceError when the loads or the publication cannot be read.
        """
        if self._table is None or not is_on(self._table):
            return None
        through_s = shown_through_s(self._topic, self._table)
        if through_s is None:
            return None
        if through_s == math.inf:
            return FOR_EVER
        through_ms = int(through_s * 1000)
        return through_ms - through_ms % LIVE_STEP_MS

    def _is_new(self, hour: str, digests: dict[str, str]) -> bool:
        return hour != UNFILED and self._reported.get(hour) != digests.get(hour, "")

    def _count(self, table: Table, hour: str, tasks: list[FileScanTask]) -> tuple[FileRows, set[str]]:
        """Return the hour's rows, wherever they lie, and the hours whose rows in its partition changed."""
        found = self._read(table, hour, tasks)
        own, strays = _split(found, hour)
        before = self._strays.pop(hour, FileRows())
        if strays.counts.tallies or strays.unkeyed:
            self._strays[hour] = strays
        moved = set() if strays == before else _hours_of(strays) | _hours_of(before)
        for other in self._strays.values():
            own.merge(_split(other, hour)[0])
        return own, moved

    def _read(self, table: Table, hour: str, tasks: list[FileScanTask]) -> FileRows:
        found = FileRows()
        wanted = HEADER, TIMESTAMP, *RECORD_HEADER
        columns = [name for name in wanted if name in table.schema().column_names]
        try:
            scan = ArrowScan(table.metadata, table.io, table.schema().select(*columns), AlwaysTrue())
            for batch in scan.to_record_batches(tasks) if columns else ():
                count_sequences(batch, found.counts)
                count_unkeyed(batch, found.unkeyed)
        except Exception as error:  # whatever pyiceberg and pyarrow raise for a missing or broken file
            reason = (str(error).splitlines() or [""])[0]
            raise MillraceError(
                f"{'.'.join(table.name())} cannot be read in {hour} ({reason or type(error).__name__}): run"
                " `millrace verify`"
            ) from error
        return found

    def _write_reported(self) -> None:
        # An hour with rows of other hours is counted again by the next process, which does not know them.
        reported = {
            hour: digest for hour, digest in self._reported.items() if digest and hour not in self._strays
        }
        content = json.dumps(reported, sort_keys=True).encode()
        self._topic.storage.put(layout.audited_table_path(self._topic.name), io.BytesIO(content))


def _windows(hour: str) -> list[int]:
    return [start_ms(hour) + n * WINDOW_MS for n in range(HOUR_MS // WINDOW_MS)]


def _split(found: FileRows, hour: str) -> tuple[FileRows, FileRows]:
    """Split rows into the rows of an hour's windows and the rows of all other windows."""
    windows = _windows(hour)
    parts = FileRows(), FileRows()
    for key, tally in found.counts.tallies.items():
        parts[key.window not in windows].counts.tallies[key] = tally
    for window, rows in found.unkeyed.items():
        parts[window not in windows].unkeyed[window] = rows
    return parts


def _hours_of(found: FileRows) -> set[str]:
    windows = {*found.unkeyed, *(key.window for key in found.counts.tallies)}
    return {hour_of(window // HOUR_MS) for window in windows if is_of_this_world(window)}


def _tasks_by_hour(table: Table) -> dict[str, list[FileScanTask]]:
    hours: defaultdict[str, list[FileScanTask]] = defaultdict(list)
    for task in table.scan().plan_files():
        hours[hour_of_file(table, task.file)].append(task)
    return hours


def _digest(tasks: list[FileScanTask], erased: SequenceCounts | None) -> str:
    """Return the digest of an hour's files, of its delete files, and of its number of erased sequences."""
    files = [(t.file.file_path, t.file.file_size_in_bytes, t.file.record_count) for t in tasks]
    deletes = {(d.file_path, d.file_size_in_bytes, d.record_count) for t in tasks for d in t.delete_files}
    named = json.dumps([sorted(files), sorted(deletes), *([erased.total] if erased else [])]).encode()
    return hashlib.blake2b(named, digest_size=8).hexdigest()
