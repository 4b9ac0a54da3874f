"""The hourly table of a topic: every revision what its manifest says, the newest ones what the loads hold."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa

from millrace_warehouse.history.editions import (
    edition_folder,
    expired_folders,
    expired_name,
    later_editions,
    read_edition,
)
from millrace_warehouse.history.layout import HOURLY, load_numbers
from millrace_warehouse.history.ledger import recorded_folders
from millrace_warehouse.history.manifest import HourManifest, LoadManifest, LoadPart
from millrace_warehouse.storage.filesystem import Filesystem
from millrace_warehouse.table.revisions import (
    hours,
    read_revision,
    revision_folder,
    revision_numbers,
    without_revision,
)
from millrace_warehouse.table.sources import UNPROVEN_AFTER_S, Unpublished, unpublished_note
from millrace_warehouse.verify.files import Offsets, check_files, offsets_by_partition
from millrace_warehouse.verify.report import OURS, TableCheck, TableReport, readable

NONE: Offsets = np.empty(0, np.int64)
ByPartition = Mapping[int, Offsets]
Loads = Callable[[int, int], LoadManifest | None]
"""The manifest of (load, edition), None when there is none that can be read."""


def verify_hours(of_loads: TableCheck) -> TableReport:
    """Check the hourly table of a topic: every revision, and the newest ones' rows against the loads.

    An hour is not compared with loads that are damaged.
    """
    fs, topic, table = of_loads.fs, of_loads.topic, f"{of_loads.topic}{HOURLY}"
    check = TableCheck(fs, topic, TableReport(table), of_loads.on_folder, {*of_loads.damaged})
    ledger = set(recorded_folders(fs, table))
    present: set[str] = set()
    newest: dict[str, HourManifest] = {}
    loads = functools.cache(functools.partial(readable, read_edition, fs, topic))
    for hour in hours(fs, topic):
        numbers = revision_numbers(fs, topic, hour)
        present |= {revision_folder(hour, number) for number in numbers}
        expected = {revision_folder(hour, number) for number in range(1, max(numbers, default=0) + 1)}
        for folder in sorted(expected - present - ledger):
            check.problem(f"{table}/{folder} is missing")
        manifest: HourManifest | None = None
        for number in numbers:
            folder, last = revision_folder(hour, number), number == numbers[-1]
            check.begin(f"{table}/{folder}", recorded=folder in ledger, newest=last)
            manifest = _check_revision(check, hour, number, manifest, newest=last)
        if manifest is not None:
            newest[hour] = manifest
            check.report.rows += manifest.rows
            check.problem(*_against_loads(check, manifest, loads))
    for folder in sorted(ledger - present):
        check.problem(f"{table}/{folder} is missing: the hour lost a revision that was published")
    check.check_expired_entries(table)
    _check_strays(check, table)
    _note_late_rows(check, newest, loads)
    return check.report


def _check_strays(check: TableCheck, table: str) -> None:
    """Report what lies among the dates, the hours and the revisions and is none of them."""
    fs = check.fs
    dates = {name for name in fs.names(table) if re.fullmatch(r"date=\d{4}-\d\d-\d\d", name)}
    check.check_strays(table, dates | OURS)
    for date in sorted(dates):
        names = fs.names(f"{table}/{date}")
        strays = [name for name in names if not re.fullmatch(r"hour=\d\d", name)]
        for hour in (name for name in names if name not in strays):
            inside = fs.names(f"{table}/{date}/{hour}")
            strays += [f"{hour}/{name}" for name in inside if not re.fullmatch(r"rev=[1-9]\d*", name)]
        for stray in strays:
            check.problem(f"{table}/{date}/{stray} is nothing that Millrace writes: move it away")


def _note_late_rows(check: TableCheck, newest: Mapping[str, HourManifest], loads: Loads) -> None:
    """Note the published hours that later loads have rows of: nobody sees those rows yet."""
    topic, editions = check.topic, later_editions(check.fs, check.topic)
    published = {hour: {part.load: part.edition for part in its.loads} for hour, its in newest.items()}
    late: dict[str, int] = {}
    for number in load_numbers(check.fs, topic):
        edition = editions.get(number, [1])[-1]
        load = loads(number, edition)
        for hour, rows in load.rows_by_hour().items() if load else ():
            if hour in published and published[hour].get(number) != edition:
                late[hour] = late.get(hour, 0) + rows
    stale = {h for h, parts in published.items() for n, e in parts.items() if e < editions.get(n, [1])[-1]}
    for hour in sorted(late.keys() | stale):
        what = " has rows that a re-load took away"
        if late.get(hour):
            what = f": {late[hour]} rows came late and are in no revision yet"
        check.note(f"{topic}{HOURLY} {hour}{what}: run `millrace hourly {topic} --late`")


def note_unpublished(check: TableCheck) -> None:
    """Note the hours that loads have rows of and that nobody has published, once a day has passed."""
    fs, topic = check.fs, check.topic
    editions, rows, loaded = later_editions(fs, topic), dict[str, int](), dict[str, datetime]()
    for number in load_numbers(fs, topic):
        load = readable(read_edition, fs, topic, number, editions.get(number, [1])[-1])
        if load is None:
            continue
        for hour, its in load.rows_by_hour().items():
            rows[hour] = rows.get(hour, 0) + its
            loaded.setdefault(hour, datetime.fromisoformat(load.created))
    waiting = [Unpublished(hour, rows[hour], loaded[hour]) for hour in without_revision(fs, topic, rows)]
    since = datetime.now(UTC) - timedelta(seconds=UNPROVEN_AFTER_S)
    if old := {hour.hour: hour.rows for hour in waiting if hour.since <= since}:
        check.note(unpublished_note(topic, old))


def _check_revision(
    check: TableCheck, hour: str, number: int, before: HourManifest | None, *, newest: bool
) -> HourManifest | None:
    """Check one revision; its manifest, for the next one to follow."""
    fs, topic, table = check.fs, check.topic, f"{check.topic}{HOURLY}"
    folder = revision_folder(hour, number)
    where = f"{table}/{folder}"
    revision = check.read(read_revision, topic, hour, number)
    if revision is None:
        return None
    manifest = revision.manifest
    check.report.files += len(manifest.files)
    problems = []
    if (manifest.topic, manifest.hour, manifest.revision) != (topic, hour, number):
        problems.append(f"the manifest is that of {manifest.topic} {manifest.hour} rev={manifest.revision}")
    if before is not None and manifest.previous != before.sha256:
        problems.append("it does not follow the revision before it")
    if not manifest.rows == sum(file.rows for file in manifest.files) == sum(p.rows for p in manifest.loads):
        problems.append(f"{manifest.rows} rows stated, its files and its loads state other numbers")
    check.check_manifest(table, folder, manifest, *problems, *_check_base(fs, topic, manifest))
    expired = check.is_expired(table, folder, manifest)
    if expired and newest:
        check.problem(f"{where} has expired and is the newest revision: its rows are gone")
    files, gone = ((), manifest.files) if expired else (manifest.files, ())
    if damaged := check_files(fs, where, files, expired=gone):
        check.problem(*damaged)
        check.damaged.add(where)
    return manifest


def _check_base(fs: Filesystem, topic: str, manifest: HourManifest) -> list[str]:
    """What is wrong with the revision that this one took rows over from, as far as its manifest says."""
    if manifest.base is None:
        return []
    if not 0 < manifest.base < manifest.revision:
        return [f"it states rev={manifest.base} as its base, which is not an earlier one"]
    base = readable(read_revision, fs, topic, manifest.hour, manifest.base)
    editions = {part.load: part.edition for part in manifest.loads}
    return [
        f"load={part.load:010d} was in its base, rev={manifest.base}, and is not in it"
        for part in (base.manifest.loads if base is not None else ())
        if editions.get(part.load, 0) < part.edition
    ]


def _against_loads(check: TableCheck, manifest: HourManifest, loads: Loads) -> list[str]:
    """Compare the hour's rows, offset by offset, with those of the loads it was made from.

    Of a load that has expired its manifest says where its rows lie, and how many they are.
    """
    fs, topic = check.fs, check.topic
    where = f"{topic}{HOURLY}/{revision_folder(manifest.hour, manifest.revision)}"
    sources: list[str] = []
    expired: list[tuple[LoadPart, LoadManifest]] = []
    gone = expired_folders(fs, topic)
    for part in manifest.loads:
        name, load = edition_folder(part.load, part.edition), loads(part.load, part.edition)
        folder = f"{topic}/{name}"
        if load is None or load.sha256 != part.sha256:
            return [f"{where} was made from another {folder} than the one that is there"]
        files = [file for file in load.files if file.hour == manifest.hour]
        if sum(file.rows for file in files) != part.rows:
            return [f"{where}: {folder} has {sum(f.rows for f in files)} rows of it, not {part.rows}"]
        if folder in check.damaged:
            return []
        if expired_name(name) in gone:
            expired.append((part, load))
        else:
            sources += [f"{folder}/{file.path}" for file in files]
    if where in check.damaged:
        return []
    try:
        mine = offsets_by_partition(fs, (f"{where}/{file.path}" for file in manifest.files))
        theirs = offsets_by_partition(fs, sources)
    except (pa.ArrowException, OSError) as error:
        return [f"{where}: its rows cannot be compared with its loads: {str(error).splitlines()[0]}"]
    return _compared(f"{where}: its rows of {topic}", mine, theirs, expired)


def _compared(
    where: str, mine: ByPartition, theirs: ByPartition, expired: Sequence[tuple[LoadPart, LoadManifest]]
) -> list[str]:
    problems = []
    rest = dict(mine)
    for partition in sorted(mine.keys() | theirs.keys()):
        # What the loads hold is taken out once for each time; what is left must be of those that expired.
        left, twice = _without(mine.get(partition, NONE), theirs.get(partition, NONE))
        rest[partition] = left
        if twice or (len(left) and not expired):
            problems.append(f"{where}-{partition} are not those of its loads")
    one_topic = len({load.topic_id for _, load in expired}) == 1
    for part, load in expired if not problems and one_topic else ():
        rows = 0
        for its in load.partitions:
            left = rest.get(its.partition, NONE)
            rows += int(np.count_nonzero((left >= its.start) & (left < its.end)))
        if rows != part.rows:
            problems.append(
                f"{where} are {rows} of load={part.load:010d}, which has expired, not {part.rows}"
            )
    return problems


def _without(mine: Offsets, theirs: Offsets) -> tuple[Offsets, bool]:
    """The sorted offsets of `mine` that `theirs` has not, and whether `theirs` has some that `mine` lacks."""
    values, counts = np.unique(mine, return_counts=True)
    taken, times = np.unique(theirs, return_counts=True)
    at = np.searchsorted(values, taken)
    if len(taken) and (not len(values) or at[-1] >= len(values) or not np.array_equal(values[at], taken)):
        return mine, True
    counts[at] -= times
    return np.repeat(values, np.maximum(counts, 0)), bool((counts < 0).any())
