"""Rebuilds a topic's table from the newest publication's manifest, the loads, and the remaining files.

Serves a table that was dropped, rolled back or changed by other programs, and a catalog that was lost or
restored. The publication states the published hours and the newest load that they include; the manifests
state the rows of each load in each hour. An hour keeps its files if they hold exactly these rows. Else its
rows come from the files of its loads, and where those have expired, from the files that the table had or that
`compact` wrote. A file is taken only if none of its rows is there already and none is of a replaced edition.
Rows without any remaining file are reported as lost.

An existing table is rebuilt in place: readers see either the old rows or the new ones. A table with delete
files, with other partitions, or with missing files of its own is dropped, without its data, and recreated,
with branch `live` switched on if it was on.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.manifest import DataFile as IcebergDataFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import ancestors_of

from millrace.errors import MillraceError
from millrace_warehouse.arranging import Arranger, PartitionValues
from millrace_warehouse.columns import LOAD, OFFSET, TIME, TOPIC_PARTITION
from millrace_warehouse.context import Context
from millrace_warehouse.history import layout
from millrace_warehouse.history.entries import data_file
from millrace_warehouse.history.expired import note_named_again
from millrace_warehouse.history.hours import UNFILED, hour_of, number_of
from millrace_warehouse.history.ledger import add_to_ledger, read_entry
from millrace_warehouse.history.manifest import (
    DataFile,
    HourChange,
    HourVerdict,
    LoadRows,
    PreviousPublication,
    Publication,
)
from millrace_warehouse.history.metrics import metrics_of
from millrace_warehouse.history.rewritten import read_list
from millrace_warehouse.history.schemas import TableSchema, read_schema
from millrace_warehouse.iceberg_layout import partition_types
from millrace_warehouse.publish import table as tables
from millrace_warehouse.publish.catalog import TableFileGone, drop_table, table_identifier
from millrace_warehouse.publish.committer import branch_files
from millrace_warehouse.publish.contents import (
    RowsByLoad,
    count_loads,
    edition_in,
    has_hour,
    is_whole,
    path_in_topic,
    rows_by_load,
    stated_loads,
)
from millrace_warehouse.publish.files import entries_of
from millrace_warehouse.publish.hours_table import drop_if_gone
from millrace_warehouse.publish.layouts import LayoutIds, TableLayouts
from millrace_warehouse.publish.live import ON, is_on
from millrace_warehouse.publish.state import TableState
from millrace_warehouse.races import Conflict
from millrace_warehouse.storage.streams import open_file
from millrace_warehouse.table_layout import TableLayout


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A file that may hold rows that an hour needs."""

    file: IcebergDataFile
    counts: RowsByLoad
    open: Callable[[], Any]
    is_listed: bool = True
    """False if nothing states of which editions the rows are."""


@dataclass(slots=True)
class _NeededRows:
    """Rows that an hour must have, and the files that provide them."""

    wanted: RowsByLoad = field(default_factory=RowsByLoad)
    """Load -> rows that are still to be found."""
    raw: dict[int, list[IcebergDataFile]] = field(default_factory=dict)
    """Load -> its files of the hour, for loads whose files all exist."""
    files: list[IcebergDataFile] = field(default_factory=list)

    def take(self, attempts: Sequence[Sequence[_Candidate]]) -> None:
        """Take files of several attempts, which may hold the same rows. Choose the files that leave the
        fewest rows missing.

        Each attempt is tried as the first one. Its own files hold no row twice, but a file of another attempt
        may hold some of the same rows.
        """
        best = self.wanted, self.files
        for number, first in enumerate(attempts):
            left, files = _without_repeats(
                self.wanted, chain(first, *attempts[:number], *attempts[number + 1 :])
            )
            if left.total() < best[0].total():
                best = left, files
            if not left:
                break
        self.wanted, self.files = best

    def take_raw(self) -> None:
        for load, files in self.raw.items():
            if sum(file.record_count for file in files) == self.wanted[load]:
                self.files += files
                del self.wanted[load]


def _without_repeats(
    wanted: RowsByLoad, found: Iterable[_Candidate]
) -> tuple[RowsByLoad, list[IcebergDataFile]]:
    """Return the rows that are still missing, and the taken files, which hold no row twice."""
    left, files = wanted.copy(), []
    there: dict[tuple[int, int], list[pa.Array]] = {}
    for each in found:
        if not each.counts or any(left[load] < rows for load, rows in each.counts.items()):
            continue
        try:
            offsets = _offsets(each)
        except (OSError, KeyError, pa.ArrowException):  # broken, or without our columns
            continue
        if any(_overlap(new, old) for rows, new in offsets.items() for old in there.get(rows, ())):
            continue
        for rows, new in offsets.items():
            there.setdefault(rows, []).append(new)
        files.append(each.file)
        left -= each.counts
    return left, files


def _offsets(found: _Candidate) -> dict[tuple[int, int], pa.Array]:
    """Map each load and partition to the offsets in a file."""
    with found.open() as source, pq.ParquetFile(source) as parquet:
        rows = parquet.read(columns=[LOAD.name, TOPIC_PARTITION.name, OFFSET.name])
    groups = rows.group_by([LOAD.name, TOPIC_PARTITION.name]).aggregate([(OFFSET.name, "list")])
    return {
        (load.as_py(), partition.as_py()): offsets.values
        for load, partition, offsets in zip(*(groups[name] for name in groups.column_names), strict=True)
    }


def _overlap(one: pa.Array, other: pa.Array) -> bool:
    return bool(pc.any(pc.is_in(one, value_set=other)).as_py())


def rebuild_table(context: Context, topic: layout.Topic, run_id: str) -> tuple[Table, Publication]:
    """Rebuild the table of the newest publication, as far as files remain. Return the next publication.

    Raise Conflict when another commit to main was faster: read the table again and start over.
    """
    catalog = context.catalog
    table, head, live = _table(context, topic)
    base, base_path, number = _newest(topic, table)
    if base is not None:  # its run may have died; once it has a successor, later runs do not look at it
        add_to_ledger(topic.storage, base_path, base)
    drop_if_gone(catalog, topic.name)
    state = TableState.from_publication(base)
    state.number = number
    context.progress("publication read")
    stays = table is not None and _may_stay(topic, table)
    layouts = TableLayouts(topic, table.metadata if table is not None and stays else None)
    hours, schema = _wanted(topic, state, layouts)
    state.schema = max(schema, state.schema, int(table.properties.get(tables.SCHEMA, "1")) if table else 1)
    schemas = [read_schema(topic, number) for number in range(1, state.schema + 1)]
    for each in schemas:
        layouts.ids(each.number)
    kept = [file for file in head if table is not None and has_hour(table, file)]
    kept = [file for file in kept if not _is_replaced(topic.name, state, file)]
    if table is not None and not stays:
        kept = [file for file in kept if layouts.adopted(file, table.metadata) is not None]
    now = state.through.editions
    compacted = _Compacted(topic, now, _editions_of_head(topic, table, now), schemas, layouts)
    _choose(topic, table, hours, kept, compacted)
    context.progress("files found")
    if table is not None and not stays:
        _check_unmoved(context, topic, table)
        drop_table(catalog, table_identifier(topic.name))
        table, head = None, []
    if table is None:
        table = tables.make_table(catalog, topic, tables.SETTINGS | ({ON: "true"} if live else {}))
    chosen = {file.file_path: file for hour in hours.values() for file in hour.files}
    state.rows = sum(file.record_count for file in chosen.values())
    publication = _new_publication(topic.name, state, run_id, base, base_path, _lost(state, hours))
    there = {file.file_path for file in head}
    added = [file for uri, file in chosen.items() if uri not in there]
    removed = [file for file in head if file.file_path not in chosen]
    if publication.previous is not None:
        paths = {path for file in added if (path := path_in_topic(file.file_path, topic.name)) is not None}
        note_named_again(topic, publication.previous, paths, publication.created)
    broken = stays and not is_whole(table, topic.name)
    committed = tables.commit_publication(
        context, table, publication, added, removed, layouts, head_only=broken
    )
    return committed, publication


def _may_stay(topic: layout.Topic, table: Table) -> bool:
    """Return False for a table with delete files, or with partitions of another program."""
    return not tables.counted_rows(table)[1] and tables.is_partitioned_as_made(topic, table)


def _table(context: Context, topic: layout.Topic) -> tuple[Table | None, list[IcebergDataFile], bool]:
    """Return the topic's table, its files, and True if its branch `live` is on. Drop a table whose metadata
    or manifest is missing, and return None in its place.

    This happens when the catalog is older than the last expiry, or newer than the folder. The loads and
    publications of a topic are enough to rebuild its table.
    """
    table = None
    try:
        table = tables.find_table(context.catalog, topic.name)
        files = list(branch_files(table)) if table is not None else []
        return table, files, table is not None and is_on(table)
    except TableFileGone:
        if not layout.load_numbers(topic):
            raise
        if table is not None:
            _check_unmoved(context, topic, table)
        drop_table(context.catalog, table_identifier(topic.name))
        return None, [], table is not None and is_on(table)


def _check_unmoved(context: Context, topic: layout.Topic, table: Table) -> None:
    """Raise Conflict when another run has changed the table since it was read: a drop would undo that."""
    if tables.has_moved(context.catalog, topic, table):
        raise Conflict("another run has changed the table while it was read")


def _newest(topic: layout.Topic, table: Table | None) -> tuple[Publication | None, str, int]:
    """Return the newest readable publication, its path, and the highest number of any publication."""
    paths = []
    folder = layout.Folder.PUBLICATIONS.path(topic.name)
    for name in topic.recorded(layout.Folder.PUBLICATIONS):
        paths.append(f"{folder}/{name}")
    if table is not None and (named := table.properties.get(tables.PATH)) and named not in paths:
        paths.append(named)  # the run that made it died before the ledger's entry
    numbers = [int(path.rpartition("/")[2][:10]) for path in paths]
    highest = max([*numbers, int(table.properties.get(tables.NUMBER, "0")) if table is not None else 0])
    for _, path in sorted(zip(numbers, paths, strict=True), reverse=True):
        try:
            publication = layout.read_checked(topic.storage, Publication, path)
            entry = read_entry(topic.storage, path)
            if entry is None or entry.sha256 == publication.sha256:
                return publication, path, highest
        except MillraceError:
            continue  # the earlier publication covers less, but correctly
    return None, "", highest


def _editions_of_head(
    topic: layout.Topic, table: Table | None, otherwise: Mapping[str, int]
) -> Mapping[str, int]:
    """Return the editions of the publication from which the head of main descends.

    After a rollback, or with an older catalog, that is not the publication that the rebuild repeats. Return
    `otherwise` when the publication is not known.
    """
    head = table.current_snapshot() if table is not None else None
    for snapshot in ancestors_of(head, table.metadata) if table is not None else ():
        if snapshot.summary is not None and (path := snapshot.summary[tables.PATH]):
            try:
                return layout.read_checked(topic.storage, Publication, path).loads.editions
            except MillraceError:
                return otherwise
    return otherwise


def _wanted(
    topic: layout.Topic, state: TableState, layouts: TableLayouts
) -> tuple[dict[str, _NeededRows], int]:
    """Return the rows of every published hour, with the existing files of loads, and the newest schema."""
    present = {path: file.bytes for path, file in topic.files(layout.Folder.ROWS).items()}
    hours: dict[str, _NeededRows] = {}
    schema = 0
    for load in range(1, state.through.load + 1):
        edition = state.through.editions.get(str(load), 1)
        manifest = layout.read_edition(topic, load, edition)
        rows = {hour: rows for hour, rows in manifest.rows_by_hour().items() if state.is_published(hour)}
        for hour, count in rows.items():
            hours.setdefault(hour, _NeededRows()).wanted[load] = count
            schema = max(schema, manifest.schema)
        gone = {f.hour for f in manifest.files if present.get(f.path) != f.bytes}
        for entry in entries_of(topic, manifest, rows.keys() - gone, layouts):
            hours[hour_of(entry.partition[0])].raw.setdefault(load, []).append(entry)
    return hours, schema


def _choose(
    topic: layout.Topic,
    table: Table | None,
    hours: dict[str, _NeededRows],
    head: list[IcebergDataFile],
    compacted: _Compacted,
) -> None:
    """Choose each hour's files: its present files, else those of its loads, else any with its rows."""
    in_head: dict[str, list[_Candidate]] = {}
    for file in head:
        assert table is not None
        hour = hour_of(file.partition[0])
        if hour not in hours:
            continue
        found = _Candidate(file, _counts(table, file), table.io.new_input(file.file_path).open)
        path = path_in_topic(file.file_path, topic.name) or ""
        if not compacted.is_replaced(path, found.counts, compacted.of_head):
            in_head.setdefault(hour, []).append(found)
    missing: dict[str, dict[str, list[_Candidate]]] = {}
    for hour, state in hours.items():
        there = in_head.get(hour, [])
        if sum((found.counts for found in there), RowsByLoad()) == state.wanted:
            state.files = [found.file for found in there if found.counts]
            state.wanted = RowsByLoad()
        elif state.raw.keys() >= state.wanted.keys():
            state.take_raw()
        else:
            missing[hour] = {"": there}
    if missing:
        known = {file.file_path for file in head}
        for attempt, found in compacted.without(known):
            hour = hour_of(found.file.partition[0])
            if hour in missing and not compacted.is_doubtful(found, hours[hour]):
                missing[hour].setdefault(attempt, []).append(found)
    for hour, attempts in missing.items():
        hours[hour].take([*attempts.values()])
        hours[hour].take_raw()


def _is_replaced(topic: str, state: TableState, file: IcebergDataFile) -> bool:
    """Return True for a file of a replaced edition, which a rollback brings back."""
    wrote = edition_in(file.file_path, topic)
    return wrote is not None and wrote[1] != state.through.editions.get(str(wrote[0]), 1)


def _counts(table: Table, file: IcebergDataFile) -> RowsByLoad:
    """Map each load to its rows in a file of the table; empty for a file that cannot be read."""
    bounds = stated_loads(table, file)
    try:
        if bounds is None or bounds[0] != bounds[1]:
            return count_loads(table.io, file)
        with table.io.new_input(file.file_path).open() as source:
            source.read(1)
        return RowsByLoad({bounds[0]: file.record_count})
    except (OSError, pa.ArrowException):  # missing or broken; a storage that does not answer raises another
        return RowsByLoad()


@dataclass(frozen=True, slots=True)
class _Compacted:
    """Files below `compacted/`, which no load wrote."""

    topic: layout.Topic
    editions: Mapping[str, int]
    """Load -> edition, in the publication that the rebuild repeats."""
    of_head: Mapping[str, int]
    """Load -> edition, in the files of the table that have no list."""
    schemas: Sequence[TableSchema]
    """The table's schemas, in order."""
    layouts: TableLayouts

    def without(self, known: set[str]) -> Iterator[tuple[str, _Candidate]]:
        """Yield the files that are not among the known ones, newest first, with their attempt's folder.

        Leaves out files that hold rows of other editions, if a list states their editions.
        """
        topic, folder = self.topic, layout.Folder.COMPACTED.path(self.topic.name)
        for found in sorted(topic.storage.files(folder), key=lambda found: found.modified, reverse=True):
            path = f"{folder}/{found.path}"
            if not path.endswith(".parquet") or topic.storage.uri(path) in known:
                continue
            try:
                with open_file(topic.storage, path) as source, pq.ParquetFile(source) as parquet:
                    counts = rows_by_load(parquet.iter_batches(columns=[LOAD.name]))
                    entry = self._entry(path, found.bytes, parquet)
            # Interrupted while it was written, or without field ids or our columns: no file of our tables.
            except (OSError, ValueError, KeyError, pa.ArrowException):
                continue
            attempt, in_topic = path.rpartition("/")[0], path.removeprefix(f"{topic}/")
            if entry is not None and not self.is_replaced(in_topic, counts, self.editions):
                is_listed = read_list(topic.storage, attempt) is not None
                yield attempt, _Candidate(entry, counts, partial(open_file, topic.storage, path), is_listed)

    def is_replaced(self, path: str, counts: RowsByLoad, unlisted: Mapping[str, int]) -> bool:
        """Return True for a file with other editions of its loads than the publication.

        A rollback brings such a file back. The file's list states its editions. A file of another program has
        no list; its editions are `unlisted`.
        """
        if not path.startswith(f"{layout.Folder.COMPACTED}/"):
            return False
        listed = read_list(self.topic.storage, f"{self.topic}/{path.rpartition('/')[0]}")
        made_of = listed.editions if listed is not None else unlisted
        return any(made_of.get(str(load), 1) != self.editions.get(str(load), 1) for load in counts)

    def is_doubtful(self, found: _Candidate, needed: _NeededRows) -> bool:
        """Return True for a file without a list that may have older rows of a load than the load's files."""
        read_again = {load for load in found.counts if self.editions.get(str(load), 1) > 1}
        return not found.is_listed and not read_again.isdisjoint(needed.raw)

    def _entry(self, path: str, size: int, parquet: pq.ParquetFile) -> IcebergDataFile | None:
        """Return a file's entry, in the newest layout that has its rows in one partition; None without one.

        Whether its rows are sorted is not known.
        """
        rows = parquet.read(columns=[TIME.name])
        times = pc.min_max(pc.floor_temporal(rows[TIME.name], unit="hour")).as_py()
        if times["min"] != times["max"]:
            return None
        hour = UNFILED if times["min"] is None else times["min"].strftime("%Y-%m-%dT%H")
        columns = pyarrow_to_schema(parquet.schema_arrow).model_dump(mode="json")
        file = DataFile(path=path, bytes=size, sha256="", hour=hour, rows=len(rows))
        for schema in reversed(self.schemas):  # the first one has hours alone
            if (values := _partition_of(parquet, schema)) is not None:
                metrics = metrics_of(parquet.metadata, columns, values)
                types = partition_types(schema.schema, schema.layout)
                entry = data_file(file, metrics, self.topic.storage.uri(path), types)
                return LayoutIds(self.layouts.ids(schema.number).spec_id, 0).mark(entry)
        return None


def _partition_of(parquet: pq.ParquetFile, schema: TableSchema) -> PartitionValues | None:
    """Return the partition values of a file in a schema's layout; None for rows of several partitions."""
    partition = TableLayout(schema.layout.partition)
    columns = [term.column.partition(".")[0] for term in partition.partition]
    if not partition:
        return ()
    if not {*columns} <= {*parquet.schema_arrow.names}:
        return None
    parts = Arranger(partition, schema.schema).parts(parquet.read(columns=columns))
    return parts[0].values if len(parts) == 1 else None


def _lost(state: TableState, hours: Mapping[str, _NeededRows]) -> list[HourChange]:
    """Update the state's lost rows: rows without any remaining file, and rows that were found again. Return a
    change for each hour concerned; such an hour waits for a verdict.
    """
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
        reason = (
            f"no file has these rows of the hour any more: {loads}"
            if loads
            else "its lost rows were found again"
        )
        verdict = HourVerdict(verdict="incomplete" if loads else "unknown", reasons=[reason])
        added, removed = max(was - is_, 0), max(is_ - was, 0)
        changes.append(
            HourChange(hour=hour, kind="rebuild", loads=[], verdict=verdict, added=added, removed=removed)
        )
        if hour != UNFILED:
            state.incomplete.add(number_of(hour))
    return changes


def _new_publication(
    topic: str,
    state: TableState,
    run_id: str,
    base: Publication | None,
    base_path: str,
    lost: list[HourChange],
) -> Publication:
    state.settled()
    previous = PreviousPublication(path=base_path, sha256=base.sha256) if base is not None else None
    return state.to_publication(topic, uuid.uuid4().hex[:16], run_id, previous, lost)
