"""The hourly table of a topic: every revision what its manifest says, the newest ones what the loads hold."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from millrace.errors import MillraceError
from millrace.manifest import HourManifest, LoadManifest, check_hash
from millrace_spark.filesystem import Filesystem
from millrace_spark.tables import hours, read_revision, revision_folder, revision_numbers
from millrace_spark.verify.files import check_files, offsets_by_partition
from millrace_spark.verify.report import OnFolder, TableReport, against_ledger, check_strays, not_recorded
from millrace_spark.warehouse import HOURLY, load_folder, load_numbers, read_load, recorded_folders

Loads = Callable[[int], LoadManifest | None]
"""The manifest of a load, None when there is none that can be read."""


def verify_hours(fs: Filesystem, topic: str, damaged: set[str], on_folder: OnFolder) -> TableReport:
    """Check the hourly table of a topic: every revision, and the newest ones' rows against the loads.

    `damaged` are the loads that are known to be: an hour is not compared with those.
    """
    table = f"{topic}{HOURLY}"
    report = TableReport(table, damaged=set(damaged))
    ledger = set(recorded_folders(fs, table))
    present: set[str] = set()
    loads = functools.cache(functools.partial(_load, fs, topic))
    for hour in hours(fs, topic):
        numbers = revision_numbers(fs, topic, hour)
        present |= {revision_folder(hour, number) for number in numbers}
        expected = {revision_folder(hour, number) for number in range(1, max(numbers, default=0) + 1)}
        for folder in sorted(expected - present - ledger):
            report.problems.append(f"{table}/{folder} is missing")
        previous: str | None = None
        for number in numbers:
            folder = revision_folder(hour, number)
            on_folder(f"{table}/{folder}")
            report.folders += 1
            if folder not in ledger:
                not_recorded(report, f"{table}/{folder}", newest=number == numbers[-1])
            previous = _check_revision(fs, topic, hour, number, previous, report)
        if newest := _readable(fs, topic, hour, numbers):
            report.rows += newest.rows
            report.problems += _against_loads(fs, topic, newest, loads, report.damaged)
    for folder in sorted(ledger - present):
        report.problems.append(f"{table}/{folder} is missing: the hour lost a revision that was published")
    _check_strays(fs, table, report)
    _note_late_rows(fs, topic, loads, report)
    return report


def _check_strays(fs: Filesystem, table: str, report: TableReport) -> None:
    """Report what lies among the dates, the hours and the revisions and is none of them."""
    dates = {name for name in fs.names(table) if re.fullmatch(r"date=\d{4}-\d\d-\d\d", name)}
    check_strays(fs, table, dates, report)
    for date in sorted(dates):
        names = fs.names(f"{table}/{date}")
        strays = [name for name in names if not re.fullmatch(r"hour=\d\d", name)]
        for hour in (name for name in names if name not in strays):
            inside = fs.names(f"{table}/{date}/{hour}")
            strays += [f"{hour}/{name}" for name in inside if not re.fullmatch(r"rev=[1-9]\d*", name)]
        for stray in strays:
            report.problems.append(f"{table}/{date}/{stray} is nothing that Millrace writes: move it away")


def _note_late_rows(fs: Filesystem, topic: str, loads: Loads, report: TableReport) -> None:
    """Note the published hours that later loads have rows of: nobody sees those rows yet."""
    published: dict[str, set[int]] = {}
    for hour in hours(fs, topic):
        if newest := _readable(fs, topic, hour, revision_numbers(fs, topic, hour)):
            published[hour] = {part.load for part in newest.loads}
    late: dict[str, int] = {}
    for number in load_numbers(fs, topic):
        load = loads(number)
        for hour, rows in load.rows_by_hour().items() if load else ():
            if hour in published and number not in published[hour]:
                late[hour] = late.get(hour, 0) + rows
    report.notes += [
        f"{topic}{HOURLY} {hour}: {rows} rows came late and are in no revision yet: run"
        f" `millrace hourly {topic} --hour {hour}`"
        for hour, rows in sorted(late.items())
    ]


def _check_revision(
    fs: Filesystem, topic: str, hour: str, number: int, previous: str | None, report: TableReport
) -> str | None:
    """Check one revision; its hash, for the next one to follow."""
    table, folder = f"{topic}{HOURLY}", revision_folder(hour, number)
    where = f"{table}/{folder}"
    try:
        manifest = read_revision(fs, topic, hour, number).manifest
    except MillraceError as error:
        report.problems.append(str(error))
        return None
    report.files += len(manifest.files)
    found = [check_hash(manifest), against_ledger(fs, table, folder, manifest.sha256)]
    if (manifest.topic, manifest.hour, manifest.revision) != (topic, hour, number):
        found.append(f"the manifest is that of {manifest.topic} {manifest.hour} rev={manifest.revision}")
    if number > 1 and previous is not None and manifest.previous != previous:
        found.append("it does not follow the revision before it")
    if not manifest.rows == sum(file.rows for file in manifest.files) == sum(p.rows for p in manifest.loads):
        found.append(f"{manifest.rows} rows stated, its files and its loads state other numbers")
    report.problems += [f"{where}: {problem}" for problem in found if problem]
    if damaged := check_files(fs, where, manifest.files):
        report.problems += damaged
        report.damaged.add(where)
    return manifest.sha256


def _load(fs: Filesystem, topic: str, number: int) -> LoadManifest | None:
    try:
        return read_load(fs, topic, number)
    except MillraceError:
        return None  # named where the loads are checked


def _readable(fs: Filesystem, topic: str, hour: str, numbers: list[int]) -> HourManifest | None:
    try:
        return read_revision(fs, topic, hour, numbers[-1]).manifest if numbers else None
    except MillraceError:
        return None  # named where the revision is checked


def _against_loads(
    fs: Filesystem, topic: str, manifest: HourManifest, loads: Loads, damaged: set[str]
) -> list[str]:
    """Compare the hour's rows, offset by offset, with those of the loads it was made from."""
    where = f"{topic}{HOURLY}/{revision_folder(manifest.hour, manifest.revision)}"
    sources: list[str] = []
    for part in manifest.loads:
        folder, load = f"{topic}/{load_folder(part.load)}", loads(part.load)
        if load is None or load.sha256 != part.sha256:
            return [f"{where} was made from another {folder} than the one that is there"]
        files = [file for file in load.files if file.hour == manifest.hour]
        if sum(file.rows for file in files) != part.rows:
            return [f"{where}: {folder} has {sum(f.rows for f in files)} rows of it, not {part.rows}"]
        if folder in damaged:
            return []
        sources += [f"{folder}/{file.path}" for file in files]
    if where in damaged:
        return []
    try:
        mine = offsets_by_partition(fs, (f"{where}/{file.path}" for file in manifest.files))
        theirs = offsets_by_partition(fs, sources)
    except (pa.ArrowException, OSError) as error:
        return [f"{where}: its rows cannot be compared with its loads: {str(error).splitlines()[0]}"]
    return [
        f"{where}: its rows of {topic}-{partition} are not those of its loads"
        for partition in sorted(mine.keys() | theirs.keys())
        if not np.array_equal(mine.get(partition, []), theirs.get(partition, []))
    ]
