"""The table people query: every hour's newest revision, read with one pinned schema.

    read(spark, warehouse, topic)     a Spark DataFrame          dataset(warehouse, topic)   for pyarrow
    duckdb(warehouse, topic)          a DuckDB relation          pandas(warehouse, topic)    in memory

The files read are those the manifests name, never what a listing finds, and they are named once: a reader
sees each hour as it was at that moment, whole, whatever is published meanwhile. What it reads is deleted
no sooner than `expire` allows for. The columns are those of the newest promotion in any hour of the table,
whichever hours are read; one that an older revision lacks is null there. `date`, `hour` and `rev` come from
the folders.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from millrace.errors import ConfigError, MillraceError
from millrace.manifest import HourManifest
from millrace_spark.filesystem import Filesystem, open_filesystem
from millrace_spark.hour_files import hour_folder
from millrace_spark.promotions import PROMOTIONS
from millrace_spark.warehouse import HOURLY, newest_load, read_manifest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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


def revision_numbers(fs: Filesystem, topic: str, hour: str) -> list[int]:
    """An hour's revisions, ascending."""
    names = fs.names(f"{topic}{HOURLY}/{hour_folder(hour)}")
    return sorted(int(match[1]) for name in names if (match := re.fullmatch(r"rev=([1-9]\d*)", name)))


def read_revision(fs: Filesystem, topic: str, hour: str, revision: int) -> Revision:
    """One revision; MillraceError when its manifest is not there or broken."""
    folder = f"{topic}{HOURLY}/{revision_folder(hour, revision)}"
    return Revision(folder, read_manifest(fs, HourManifest, folder))


def newest_revisions(fs: Filesystem, topic: str, between: Hours | None = None) -> Iterator[Revision]:
    """The newest revision of every hour, or of those that begin in [from, to), in order of the hours."""
    for hour in hours(fs, topic):
        if between is None or _utc(between[0]) <= _utc(datetime.fromisoformat(f"{hour}:00")) < _utc(
            between[1]
        ):
            yield read_revision(fs, topic, hour, revision_numbers(fs, topic, hour)[-1])


def _utc(time: datetime) -> datetime:
    if not isinstance(time, datetime):  # this is called by hand, in notebooks
        raise ConfigError(
            f"hours: {time!r} is no datetime: give two, like"
            " (datetime(2015, 5, 17, 10), datetime(2015, 5, 17, 12))"
        )
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def read(spark: SparkSession, warehouse: str, topic: str, hours: Hours | None = None) -> DataFrame:
    """The hourly table of a topic for Spark; MillraceError when nothing was published yet."""
    from pyspark.sql.pandas.types import from_arrow_schema

    fs = open_filesystem(warehouse, spark)
    revisions = _published(fs, topic, hours)
    columns = from_arrow_schema(_schema(fs, topic, revisions))
    reader = spark.read.schema(columns).option("basePath", fs.uri(f"{topic}{HOURLY}"))
    return reader.parquet(*(fs.uri(path) for path in _paths(revisions)))


def dataset(warehouse: str, topic: str, hours: Hours | None = None) -> Any:
    """The hourly table of a topic as a pyarrow dataset; MillraceError when nothing was published yet."""
    fs = open_filesystem(warehouse)
    revisions = _published(fs, topic, hours)
    return ds.dataset(
        [fs.uri(path) for path in _paths(revisions)],
        schema=_schema(fs, topic, revisions),
        format="parquet",
        partitioning=ds.partitioning(FOLDER_COLUMNS, flavor="hive"),
        partition_base_dir=fs.uri(f"{topic}{HOURLY}"),
    )


def duckdb(warehouse: str, topic: str, hours: Hours | None = None, connection: Any = None) -> Any:
    """The hourly table of a topic as a DuckDB relation, on the connection or on DuckDB's default one."""
    return (connection or _installed("duckdb")).from_arrow(dataset(warehouse, topic, hours))


def pandas(warehouse: str, topic: str, hours: Hours | None = None) -> Any:
    """The hourly table of a topic as a pandas DataFrame, all of it in memory: narrow it by `hours`."""
    _installed("pandas")  # what pyarrow says without it names no remedy
    return dataset(warehouse, topic, hours).to_table().to_pandas()


def _installed(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ConfigError(f"{name} is not installed: pip install {name}") from None


def _published(fs: Filesystem, topic: str, between: Hours | None) -> list[Revision]:
    revisions = [each for each in newest_revisions(fs, topic, between) if each.manifest.files]
    if not revisions:
        inside = "" if between is None else f" from {_utc(between[0])} to {_utc(between[1])}"
        raise MillraceError(
            f"no hour of {topic} with rows is published in {fs.root}{inside}: load it, then run"
            f" `millrace hourly {topic}`"
        )
    return revisions


def _schema(fs: Filesystem, topic: str, revisions: Sequence[Revision]) -> pa.Schema:
    """The columns of the table: of the revision with the newest promotion; among those, of the newest load.

    It is among the revisions that are read, or else it is looked for from the newest hour backwards.
    """
    newest = max(revisions, key=lambda revision: _age(revision.manifest))
    last, others = _newest_promotion(fs, topic), _backwards(fs, topic)
    while _age(newest.manifest)[0] < last and (other := next(others, None)) is not None:
        newest = max(newest, other, key=lambda revision: _age(revision.manifest))
    with fs.local_copy(_paths([newest])[0]) as file:
        columns = pq.read_schema(file).remove_metadata()
    return pa.schema([*columns, *FOLDER_COLUMNS])


def _newest_promotion(fs: Filesystem, topic: str) -> int:
    """The number of the newest promotion that an hour can have; 0 for none."""
    if not fs.names(f"{topic}/{PROMOTIONS}"):
        return 0
    try:
        newest = newest_load(fs, topic)
    except MillraceError:  # of a damaged history `verify` speaks; whole hours can be read all the same
        return 0
    return 0 if newest is None else newest.promotion or 0


def _backwards(fs: Filesystem, topic: str) -> Iterator[Revision]:
    """The newest revision of every hour with rows, the newest hour first; damaged ones are left out."""
    for hour in reversed(hours(fs, topic)):
        try:
            revision = read_revision(fs, topic, hour, revision_numbers(fs, topic, hour)[-1])
        except MillraceError:  # as above
            continue
        if revision.manifest.files:
            yield revision


def _age(manifest: HourManifest) -> tuple[int, int]:
    return manifest.promotion or 0, max(part.load for part in manifest.loads)


def _paths(revisions: Sequence[Revision]) -> list[str]:
    return [f"{revision.folder}/{file.path}" for revision in revisions for file in revision.manifest.files]
