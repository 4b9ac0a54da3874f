"""Makes a topic's table again: from the newest publication's record, the loads, and the files that are left.

For a table that was dropped, rolled back or changed by others, and for a catalog that was lost or restored.
The record says which hours are published and through which load; the manifests say how many rows each load
has of each hour. An hour keeps its files when they hold just those. Else its rows come from the files of its
loads; where those have expired, from the files that the table had, or that `compact` wrote, the newest first.
A file is taken when no row in it is there already. Rows of which no file is left are named, and missing.

In place when there is a table: readers see the old rows or the new ones. A table with files of deletes, or
with other partitions, is dropped, without its data, and made again: nothing else takes them out.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.manifest import DataFile as IcebergDataFile
from pyiceberg.table import Table

from millrace.errors import MillraceError
from millrace_warehouse.at import At
from millrace_warehouse.columns import LOAD, TIME
from millrace_warehouse.history import layout
from millrace_warehouse.history.entries import data_file
from millrace_warehouse.history.hours import UNFILED, hour_of, number_of
from millrace_warehouse.history.ledger import read_entry, record
from millrace_warehouse.history.manifest import (
    DataFile,
    HourChange,
    LoadRows,
    PreviousPublication,
    Publication,
    Verdict,
)
from millrace_warehouse.history.metrics import metrics_of
from millrace_warehouse.history.rewritten import read_list
from millrace_warehouse.publish import table as tables
from millrace_warehouse.publish.catalog import asked, table_identifier
from millrace_warehouse.publish.committer import live_files
from millrace_warehouse.publish.contents import (
    RowsByLoad,
    count_loads,
    edition_in,
    rows_by_load,
    stated_loads,
)
from millrace_warehouse.publish.files import entries_of
from millrace_warehouse.publish.state import State
from millrace_warehouse.storage.streams import open_file
from millrace_warehouse.storage.verbs import Storage


@dataclass(slots=True)
class _Hour:
    """What an hour shall have, and which files give it."""

    wanted: RowsByLoad = field(default_factory=RowsByLoad)
    """Load -> rows; what is still to be found."""
    raw: dict[int, list[IcebergDataFile]] = field(default_factory=dict)
    """Load -> its files of the hour, for loads whose files are all there."""
    files: list[IcebergDataFile] = field(default_factory=list)

    def take(self, file: IcebergDataFile, counts: RowsByLoad) -> None:
        """Take a file, unless it has a row that is found already or belongs to nobody."""
        if counts and all(self.wanted[load] >= rows for load, rows in counts.items()):
            self.files.append(file)
            self.wanted -= counts

    def take_raw(self) -> None:
        for load, files in self.raw.items():
            if sum(file.record_count for file in files) == self.wanted[load]:
                self.files += files
                del self.wanted[load]


def rebuild_table(at: At, topic: str, run_id: str) -> tuple[Table, Publication]:
    """Make the table what its newest publication was, as far as files are left; that publication's successor.

    Unsure when the commit may have been made, or lost to another: look, then begin again.
    """
    storage, catalog = at.storage, at.catalog
    table = tables.find_table(catalog, topic)
    base, base_path, number = _newest(storage, topic, table)
    if base is not None:  # the run that made it may have died, and what follows it hides it from all others
        record(storage, base_path, base)
    state = State.of(base)
    state.number = number
    at.progress("record read")
    head = list(live_files(table)) if table is not None else []
    hours, schema = _wanted(storage, topic, state)
    kept = [file for file in head if not _is_replaced(topic, state, file)]
    _choose(storage, topic, table, hours, kept, state.through.editions)
    at.progress("files found")
    if table is not None and (tables.counted_rows(table)[1] or not tables.is_partitioned_as_made(table)):
        with suppress(NoSuchTableError):  # dropped, and the answer was lost
            asked(f"catalog {catalog.name}", lambda: catalog.drop_table(table_identifier(topic)))
        table, head = None, []
    if table is None:
        table = tables.make_table(catalog, storage, topic)
    state.schema = max(schema, state.schema, int(table.properties.get(tables.SCHEMA, "1")))
    chosen = {file.file_path: file for hour in hours.values() for file in hour.files}
    state.rows = sum(file.record_count for file in chosen.values())
    publication = _record(topic, state, run_id, base, base_path, _lost(state, hours))
    there = {file.file_path for file in head}
    added = [file for uri, file in chosen.items() if uri not in there]
    removed = [file for file in head if file.file_path not in chosen]
    return tables.commit_publication(at, table, publication, added, removed), publication


def _newest(storage: Storage, topic: str, table: Table | None) -> tuple[Publication | None, str, int]:
    """The newest record that can be read, its path, and the highest number that any publication has had."""
    paths = []
    folder = layout.Folder.PUBLICATIONS.of(topic)
    for name in storage.names(layout.ledger_path(folder)):
        paths.append(f"{folder}/{name}")
    if table is not None and (named := table.properties.get(tables.PATH)) and named not in paths:
        paths.append(named)  # the run that made it died before the ledger
    numbers = [int(path.rpartition("/")[2][:10]) for path in paths]
    highest = max([*numbers, int(table.properties.get(tables.NUMBER, "0")) if table is not None else 0])
    for _, path in sorted(zip(numbers, paths, strict=True), reverse=True):
        try:
            publication = layout.read_checked(storage, Publication, path)
            entry = read_entry(storage, path)
            if entry is None or entry.sha256 == publication.sha256:
                return publication, path, highest
        except MillraceError:
            continue  # the one before says less, and says it truly
    return None, "", highest


def _wanted(storage: Storage, topic: str, state: State) -> tuple[dict[str, _Hour], int]:
    """What every published hour shall have, the files of loads that are there, and the newest schema."""
    present = {found.path: found.bytes for found in storage.files(layout.Folder.ROWS.of(topic))}
    hours: dict[str, _Hour] = {}
    schema = 0
    for load in range(1, state.through.load + 1):
        edition = state.through.editions.get(str(load), 1)
        manifest = layout.read_edition(storage, topic, load, edition)
        rows = {hour: rows for hour, rows in manifest.rows_by_hour().items() if state.is_published(hour)}
        for hour, count in rows.items():
            hours.setdefault(hour, _Hour()).wanted[load] = count
            schema = max(schema, manifest.schema)
        gone = {f.hour for f in manifest.files if present.get(f.path.removeprefix("rows/")) != f.bytes}
        for entry in entries_of(storage, manifest, rows.keys() - gone):
            hours[hour_of(entry.partition[0])].raw.setdefault(load, []).append(entry)
    return hours, schema


def _choose(
    storage: Storage,
    topic: str,
    table: Table | None,
    hours: dict[str, _Hour],
    head: list[IcebergDataFile],
    editions: Mapping[str, int],
) -> None:
    """Find files for every hour: those it has, else those of its loads, else whatever has its rows."""
    in_head: dict[str, list[tuple[IcebergDataFile, RowsByLoad]]] = {}
    for file in head:
        assert table is not None
        hour = hour_of(file.partition[0])
        if hour in hours:
            in_head.setdefault(hour, []).append((file, _counts(table, file)))
    missing = []
    for hour, state in hours.items():
        has = sum((counts for _, counts in in_head.get(hour, ())), RowsByLoad())
        if has == state.wanted:
            state.files = [file for file, counts in in_head[hour] if counts] if has else []
            state.wanted = RowsByLoad()
        elif state.raw.keys() >= state.wanted.keys():
            state.take_raw()
        else:
            for file, counts in in_head.get(hour, ()):
                state.take(file, counts)
            if state.wanted:
                missing.append(hour)
    if missing:
        known = {file.file_path for file in head}
        for file, counts in _compacted(storage, topic, known, editions):
            hour = hour_of(file.partition[0])
            if hour in hours:
                hours[hour].take(file, counts)
        for hour in missing:
            hours[hour].take_raw()


def _is_replaced(topic: str, state: State, file: IcebergDataFile) -> bool:
    """True for a file of an edition that does not count any more, which a rollback brings back."""
    wrote = edition_in(file.file_path, topic)
    return wrote is not None and wrote[1] != state.through.editions.get(str(wrote[0]), 1)


def _counts(table: Table, file: IcebergDataFile) -> RowsByLoad:
    """Load -> rows of a file of the table; nothing for a file that cannot be read."""
    bounds = stated_loads(table, file)
    try:
        if bounds is None or bounds[0] != bounds[1]:
            return count_loads(table.io, file)
        with table.io.new_input(file.file_path).open() as source:
            source.read(1)
        return RowsByLoad({bounds[0]: file.record_count})
    except (OSError, pa.ArrowException):  # gone or broken; a storage that does not answer says neither
        return RowsByLoad()


def _compacted(
    storage: Storage, topic: str, known: set[str], editions: Mapping[str, int]
) -> Iterator[tuple[IcebergDataFile, RowsByLoad]]:
    """Files below `compacted/` that the table has not, the newest first, each with load -> rows.

    Those with rows of other editions than these are left out, as far as a list says what they were made of.
    """
    folder = layout.Folder.COMPACTED.of(topic)
    for found in sorted(storage.files(folder), key=lambda found: found.modified, reverse=True):
        path = f"{folder}/{found.path}"
        if not path.endswith(".parquet") or storage.uri(path) in known:
            continue
        try:
            with open_file(storage, path) as source, pq.ParquetFile(source) as parquet:
                columns = pyarrow_to_schema(parquet.schema_arrow)
                rows = parquet.read(columns=[LOAD.name, TIME.name])
                metrics = metrics_of(parquet.metadata, columns.model_dump(mode="json"))
                times = pc.min_max(pc.floor_temporal(rows[TIME.name], unit="hour")).as_py()
        # Cut off while it was written, or without field ids or our columns: nothing that a table of ours had.
        except (OSError, ValueError, KeyError, pa.ArrowException):
            continue
        counts = rows_by_load(rows.to_batches())
        listed = read_list(storage, path.rpartition("/")[0])
        made_of = listed.editions if listed is not None else editions
        other = any(made_of.get(str(load), 1) != editions.get(str(load), 1) for load in counts)
        if times["min"] == times["max"] and not other:
            hour = UNFILED if times["min"] is None else times["min"].strftime("%Y-%m-%dT%H")
            file = DataFile(path=path, bytes=found.bytes, sha256="", hour=hour, rows=rows.num_rows)
            yield data_file(file, metrics, storage.uri(path)), counts


def _lost(state: State, hours: Mapping[str, _Hour]) -> list[HourChange]:
    """What no file is left of now, or was found again, hour by hour; such an hour waits for a verdict."""
    before, changes = state.lost, []
    state.lost = {
        hour: [
            LoadRows(load=load, edition=state.through.editions.get(str(load), 1), rows=rows)
            for load, rows in sorted(left.wanted.items())
            if load is not None
        ]
        for hour, left in hours.items()
        if left.wanted
    }
    for hour in sorted(before.keys() | state.lost.keys()):
        was, is_ = (sum(rows.rows for rows in lost.get(hour, ())) for lost in (before, state.lost))
        loads = ", ".join(f"{lost.rows:,} of load {lost.load}" for lost in state.lost.get(hour, ()))
        reason = f"no file is left with rows of it: {loads}" if loads else "its lost rows were found again"
        verdict = Verdict(verdict="incomplete" if loads else "unknown", reasons=[reason])
        added, removed = max(was - is_, 0), max(is_ - was, 0)
        changes.append(
            HourChange(hour=hour, kind="rebuild", loads=[], verdict=verdict, added=added, removed=removed)
        )
        if hour != UNFILED:
            state.incomplete.add(number_of(hour))
    return changes


def _record(
    topic: str, state: State, run_id: str, base: Publication | None, base_path: str, lost: list[HourChange]
) -> Publication:
    state.settled()
    previous = PreviousPublication(path=base_path, sha256=base.sha256) if base is not None else None
    return state.record(topic, uuid.uuid4().hex[:16], run_id, previous, lost)
