"""The table people query: every hour's newest revision, read with one pinned schema.

The files read are those the manifests name, never what a listing finds. The columns are those of the
newest load in any of the revisions; a column that an older revision lacks is null there. `date`, `hour`
and `rev` come from the folders.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from millrace.errors import MillraceError
from millrace.manifest import HourManifest
from millrace_spark.filesystem import Filesystem, open_filesystem
from millrace_spark.hour_files import hour_folder
from millrace_spark.warehouse import HOURLY, read_manifest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FOLDER_COLUMNS = pa.schema([("date", pa.date32()), ("hour", pa.int32()), ("rev", pa.int32())])


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


def newest_revisions(fs: Filesystem, topic: str) -> Iterator[Revision]:
    """The newest revision of every hour, in order of the hours."""
    for hour in hours(fs, topic):
        yield read_revision(fs, topic, hour, revision_numbers(fs, topic, hour)[-1])


def read(spark: SparkSession, warehouse: str, topic: str) -> DataFrame:
    """The hourly table of a topic for Spark; MillraceError when nothing was published yet."""
    from pyspark.sql.pandas.types import from_arrow_schema

    fs = open_filesystem(warehouse, spark)
    revisions = _published(fs, topic)
    newest = _newest_schema(revisions)
    paths = [fs.uri(path) for path in _paths(revisions)]
    if fs.uri("x").startswith("/"):
        columns = from_arrow_schema(pq.read_schema(fs.uri(_paths([newest])[0])))
    else:
        columns = spark.read.parquet(fs.uri(_paths([newest])[0])).schema
    for field in from_arrow_schema(FOLDER_COLUMNS):
        columns = columns.add(field)
    reader = spark.read.schema(columns).option("basePath", fs.uri(f"{topic}{HOURLY}"))
    return reader.parquet(*paths)


def dataset(warehouse: str, topic: str) -> Any:
    """The hourly table of a topic as a pyarrow dataset; MillraceError when nothing was published yet."""
    fs = open_filesystem(warehouse)
    revisions = _published(fs, topic)
    schema = pq.read_schema(fs.uri(_paths([_newest_schema(revisions)])[0])).remove_metadata()
    return ds.dataset(
        [fs.uri(path) for path in _paths(revisions)],
        schema=pa.schema([*schema, *FOLDER_COLUMNS]),
        format="parquet",
        partitioning=ds.partitioning(FOLDER_COLUMNS, flavor="hive"),
        partition_base_dir=fs.uri(f"{topic}{HOURLY}"),
    )


def _published(fs: Filesystem, topic: str) -> list[Revision]:
    revisions = [revision for revision in newest_revisions(fs, topic) if revision.manifest.files]
    if not revisions:
        raise MillraceError(
            f"no hour of {topic} is published in {fs.root}: load it, then run `millrace hourly {topic}`"
        )
    return revisions


def _newest_schema(revisions: Sequence[Revision]) -> Revision:
    """The revision whose columns are the table's: the one the newest load is part of."""
    return max(revisions, key=lambda revision: max(part.load for part in revision.manifest.loads))


def _paths(revisions: Sequence[Revision]) -> list[str]:
    return [f"{revision.folder}/{file.path}" for revision in revisions for file in revision.manifest.files]
