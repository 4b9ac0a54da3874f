"""Proof of the table: its rows by load and hour, counted in its files, are the rows of the publications.

A file that a load wrote counts as its manifest states, once its SHA-256 is proven. In any other file the
column `_load` is read. So the proof is valid after any program's compaction and expiry. A rollback, deleted
rows, foreign rows and foreign columns are reported as such.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyiceberg.manifest import DataFile as TableFile
from pyiceberg.table import Table

from millrace.errors import MillraceError
from millrace_warehouse.history.manifest import DataFile, Publication
from millrace_warehouse.history.rewritten import KnownFiles
from millrace_warehouse.publish.contents import (
    RowsByLoad,
    count_loads,
    edition_in,
    hour_of_file,
    path_in_topic,
)
from millrace_warehouse.publish.table import (
    PATH,
    TableChanged,
    check_columns,
    properties_of,
    snapshot_left_out,
)
from millrace_warehouse.storage import measure
from millrace_warehouse.verify.check import Check
from millrace_warehouse.verify.publications import Replay

SHOWN = 20
"""Most differences between the table and its publications that are listed one by one."""


@dataclass(frozen=True, slots=True)
class Head:
    """Files that the table's main branch names now."""

    table: Table
    files: Sequence[TableFile]
    deletes: int
    """Number of delete files, which no publication makes."""

    @classmethod
    def from_table(cls, table: Table) -> Head:
        """Read the head. Raise MillraceError for a file that is not of one hour."""
        tasks = list(table.scan().plan_files())
        for task in tasks:
            hour_of_file(table, task.file)
        deletes = {delete.file_path for task in tasks for delete in task.delete_files}
        return cls(table, [task.file for task in tasks], len(deletes))

    def paths(self, topic: str) -> set[str]:
        """Return the paths of the files from the topic's folder, without files that lie elsewhere."""
        paths = (path_in_topic(file.file_path, topic) for file in self.files)
        return {path for path in paths if path is not None}


@dataclass(slots=True)
class _Counted:
    """Rows of the table by hour and load, and the files that hold them."""

    rows: dict[str, RowsByLoad] = field(default_factory=lambda: defaultdict(Counter))
    files: dict[tuple[str, int | None], list[str]] = field(default_factory=lambda: defaultdict(list))
    sound: bool = True
    """False when a file could not be counted, which explains missing rows."""


def check_table(check: Check, head: Head, replay: Replay, whole: Mapping[str, DataFile]) -> None:
    """Count the table's rows and compare them with the replay of its publications.

    `whole` are the unchanged data files of loads, by path.
    """
    name = ".".join(head.table.name())
    if head.deletes:
        check.problem(f"{name}: another program has deleted rows, with {head.deletes} files of deletions")
    for key, value in properties_of(replay.publication, head.table.properties[PATH]).items():
        if (stated := head.table.properties.get(key)) != value:
            check.problem(f"{name} has {stated!r} as its property {key}, its publication states {value!r}")
    _check_line(check, head.table, replay.publication)
    _check_columns(check, head.table, replay.publication)
    counted = _Counted()
    known = KnownFiles(check.topic)
    count = check.count("files", len(head.files), "compared with the table")
    for file in head.files:
        _count(check, head.table, file, known, whole, counted)
        count.add(records=file.record_count, size=file.file_size_in_bytes)
        wrote = edition_in(file.file_path, check.topic.name)
        if wrote is not None and wrote[1] != replay.edition(wrote[0]):
            check.problem(
                f"{file.file_path}: rows of edition {wrote[1]} of load {wrote[0]}, but published was"
                f" edition {replay.edition(wrote[0])}: run `millrace publish {check.topic} --rebuild`"
            )
    for hour, parts in sorted(replay.lost.items()):
        for part in parts.values():
            check.problem(
                f"{name}: {part.rows} rows of load {part.load} in {hour} are lost, a rebuild found no file of"
                f" them: run `millrace reload` while the log has them",
                hour=hour,
            )
    check.report.published = sum(rows.total() for rows in counted.rows.values())
    differences = [*_differences(counted, replay)]
    for hour, difference in differences[:SHOWN]:
        check.problem(f"{name}: {difference}", hour=hour)
    if (more := len(differences) - SHOWN) > 0:
        check.problem(f"{name}: {more} more hours of loads differ")


def _check_line(check: Check, table: Table, newest: Publication) -> None:
    """Report a head of main that does not descend from the newest publication's snapshot, if known."""
    if (left_out := snapshot_left_out(table, newest.number)) is not None:
        head = table.current_snapshot()
        at = head.snapshot_id if head is not None else "nothing"
        check.problem(
            f"{'.'.join(table.name())} was rolled back: main is at snapshot {at}, publication"
            f" {newest.number} made snapshot {left_out}; set main to that one"
        )


def _check_columns(check: Check, table: Table, newest: Publication) -> None:
    """Report changed columns or partitions: readers find the rows' values by them."""
    try:
        check_columns(table, check.topic, newest.schema)
    except TableChanged as error:
        check.problem(str(error))
    except MillraceError:
        return  # a missing schema is reported with history


def _count(
    check: Check,
    table: Table,
    file: TableFile,
    known: KnownFiles,
    whole: Mapping[str, DataFile],
    counted: _Counted,
) -> None:
    """Add the rows of one file, from its load's manifest or from the column `_load`."""
    hour, uri = hour_of_file(table, file), file.file_path
    path = path_in_topic(uri, check.topic.name) or uri
    check.progress(path)
    # In a copied warehouse the file exists, but its table still names the original's file.
    is_here = uri == check.storage.uri(f"{check.topic}/{path}")
    if is_here and (mine := whole.get(path)) is not None:
        stated = (file.record_count, file.file_size_in_bytes, hour)
        if stated != (mine.rows, mine.bytes, mine.hour):
            check.problem(f"{uri}: the table and its load state different rows, bytes or hours", hour=hour)
        rows: RowsByLoad = Counter({int(path.split("/")[1][:10]): mine.rows})
    else:
        try:
            _check_written(check, path, known)
            rows = count_loads(table.io, file)
        except (pa.ArrowException, OSError, MillraceError) as error:
            gone = f"{uri} cannot be read: {_one_line(error)}; its {file.record_count} rows are gone"
            check.problem(gone, hour=hour)
            counted.sound = False
            return
        if rows.total() != file.record_count:
            check.problem(f"{uri} has {rows.total()} rows, the table states {file.record_count}", hour=hour)
    counted.rows[hour] += rows
    for load in rows:
        counted.files[hour, load].append(uri)


def _check_written(check: Check, path: str, known: KnownFiles) -> None:
    """Raise MillraceError for a listed file that is not as it was written."""
    stored = known.stored(path) if path.startswith("compacted/") else None
    if stored is not None and measure(check.storage, f"{check.topic}/{path}").sha256 != stored.sha256:
        raise MillraceError("it was changed: its SHA-256 differs from the written file's")


def _one_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _differences(counted: _Counted, replay: Replay) -> Iterator[tuple[str, str]]:
    """Yield hour and line, ascending, for each load whose rows differ from the published rows."""
    for hour in sorted(counted.rows.keys() | replay.table.keys()):
        there, stated = counted.rows.get(hour, Counter()), replay.expected(hour)
        for load in sorted(there.keys() | stated.keys(), key=lambda load: load or 0):
            rows, expected = there[load], stated.get(load, 0) if load is not None else 0
            if rows > expected:
                where = ", ".join(counted.files[hour, load][:3])
                whose = f"load {load}" if load is not None else "no load"
                yield (
                    hour,
                    f"{rows} rows of {whose} in {hour} instead of the {expected} published: foreign rows"
                    f" in {where}",
                )
            elif rows < expected and counted.sound:
                yield (
                    hour,
                    f"{rows} rows of load {load} in {hour} instead of the {expected} published: rows"
                    " are gone",
                )
