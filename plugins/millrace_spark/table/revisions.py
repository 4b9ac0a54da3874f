"""The revisions of hours: their folders and manifests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa

from millrace.errors import ConfigError
from millrace_spark.files.filesystem import Filesystem
from millrace_spark.parquet.hour_files import hour_folder
from millrace_spark.warehouse.layout import HOURLY, read_manifest
from millrace_spark.warehouse.manifest import HourManifest

FOLDER_COLUMNS = pa.schema([("date", pa.date32()), ("hour", pa.int32()), ("rev", pa.int32())])

Hours = tuple[datetime, datetime]
"""The hours that begin in [from, to); a time without a zone is UTC."""


@dataclass(frozen=True, slots=True)
class Revision:
    """One revision of one hour: where it is, and what it says of itself."""

    folder: str
    manifest: HourManifest


def revision_folder(hour: str, revision: int) -> str:
    """Folder of a revision inside its table's."""
    return f"{hour_folder(hour)}/rev={revision}"


def hours(fs: Filesystem, topic: str) -> list[str]:
    """Every hour that has a revision, in order."""
    table = f"{topic}{HOURLY}"
    return [
        f"{date[5:]}T{hour[5:]}"
        for date in fs.names(table)
        if re.fullmatch(r"date=\d{4}-\d\d-\d\d", date)
        for hour in fs.names(f"{table}/{date}")
        if re.fullmatch(r"hour=\d\d", hour) and fs.names(f"{table}/{date}/{hour}")
    ]


def without_revision(fs: Filesystem, topic: str, wanted: Iterable[str]) -> list[str]:
    """Those of the hours that have no revision, in order; one listing for each of their dates."""
    table = f"{topic}{HOURLY}"
    dates = {hour_folder(hour).partition("/")[0] for hour in wanted} & set(fs.names(table))
    present = {f"{date}/{hour}" for date in dates for hour in fs.names(f"{table}/{date}")}
    return [
        hour
        for hour in sorted(set(wanted))
        if hour_folder(hour) not in present or not revision_numbers(fs, topic, hour)
    ]


def revision_numbers(fs: Filesystem, topic: str, hour: str) -> list[int]:
    """An hour's revisions, ascending."""
    names = fs.names(f"{topic}{HOURLY}/{hour_folder(hour)}")
    return sorted(int(match[1]) for name in names if (match := re.fullmatch(r"rev=([1-9]\d*)", name)))


def read_revision(fs: Filesystem, topic: str, hour: str, revision: int) -> Revision:
    """One revision; MillraceError when its manifest is not there or broken."""
    folder = f"{topic}{HOURLY}/{revision_folder(hour, revision)}"
    return Revision(folder, read_manifest(fs, HourManifest, folder))


def newest_revision(fs: Filesystem, topic: str, hour: str) -> Revision:
    """The newest revision of an hour that has one; MillraceError when its manifest is not there or broken."""
    return read_revision(fs, topic, hour, revision_numbers(fs, topic, hour)[-1])


def newest_revisions(fs: Filesystem, topic: str, between: Hours | None = None) -> Iterator[Revision]:
    """The newest revision of every hour, or of those that begin in [from, to), in order of the hours."""
    for hour in hours(fs, topic):
        begin = datetime.fromisoformat(f"{hour}:00+00:00")
        if between is None or utc(between[0]) <= begin < utc(between[1]):
            yield newest_revision(fs, topic, hour)


def utc(time: datetime) -> datetime:
    """The time in UTC, which one without a zone is taken for; ConfigError for what is no datetime."""
    if not isinstance(time, datetime):  # this is called by hand, in notebooks
        raise ConfigError(
            f"hours: {time!r} is no datetime: give two, like"
            " (datetime(2015, 5, 17, 10), datetime(2015, 5, 17, 12))"
        )
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
