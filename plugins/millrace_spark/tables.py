"""The table people query: every hour's newest revision, read with one pinned schema.

    read(spark, warehouse, topic)     a Spark DataFrame          dataset(warehouse, topic)   for pyarrow
    duckdb(warehouse, topic)          a DuckDB relation          pandas(warehouse, topic)    in memory

The files read are those the manifests name, never what a listing finds, and they are named once: a reader
sees each hour as it was at that moment, whole, whatever is published meanwhile. What it reads is deleted
no sooner than `expire` allows for. The columns are those of the newest promotion in any hour of the table,
whichever hours are read; one that an older revision lacks is null there. `date`, `hour` and `rev` come from
the folders; a table that an older version gave a column of such a name is read without these three.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from millrace_warehouse.table.revisions import Hours, Revision

from millrace.errors import ConfigError, MillraceError
from millrace_warehouse.columns import same_but_case
from millrace_warehouse.history.layout import HOURLY
from millrace_warehouse.history.ledger import newest_load
from millrace_warehouse.history.manifest import HourManifest
from millrace_warehouse.history.schemas import PROMOTIONS
from millrace_warehouse.storage.filesystem import Filesystem, literal, open_filesystem
from millrace_warehouse.table import revisions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(spark: SparkSession, warehouse: str, topic: str, hours: Hours | None = None) -> DataFrame:
    """The hourly table of a topic for Spark; MillraceError when nothing was published yet."""
    from pyspark.sql.pandas.types import from_arrow_schema

    fs = open_filesystem(warehouse, spark)
    published = _published(fs, topic, hours)
    columns = _columns(fs, topic, published)
    pair = same_but_case(columns.names)
    if pair and spark.conf.get("spark.sql.caseSensitive") != "true":
        raise MillraceError(
            f"the columns {pair[0]} and {pair[1]} of {topic} differ in case only: set spark.sql.caseSensitive"
            " to true in this session"
        )
    folders = _folder_columns(columns)
    reader = spark.read.schema(from_arrow_schema(pa.schema([*columns, *folders])))
    # Without its base path Spark takes no column from a file's folders.
    reader = reader.option("basePath", fs.uri(f"{topic}{HOURLY}")) if len(folders) else reader
    return reader.parquet(*(literal(fs.uri(path)) for path in _paths(published)))


def dataset(warehouse: str, topic: str, hours: Hours | None = None) -> Any:
    """The hourly table of a topic as a pyarrow dataset; MillraceError when nothing was published yet."""
    fs = open_filesystem(warehouse)
    published = _published(fs, topic, hours)
    columns = _columns(fs, topic, published)
    folders = _folder_columns(columns)
    return ds.dataset(
        [fs.uri(path) for path in _paths(published)],
        schema=pa.schema([*columns, *folders]),
        format="parquet",
        partitioning=ds.partitioning(folders, flavor="hive"),
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
    newest = revisions.newest_revisions(fs, topic, between)
    published = [revision for revision in newest if revision.manifest.files]
    if not published:
        inside = " from {} to {}".format(*map(revisions.utc, between)) if between is not None else ""
        raise MillraceError(
            f"no hour of {topic} with rows is published in {fs.root}{inside}: load it, then run"
            f" `millrace hourly {topic}`"
        )
    return published


def _columns(fs: Filesystem, topic: str, published: Sequence[Revision]) -> pa.Schema:
    """The columns of the revision with the newest promotion, and among those with the newest load.

    That revision is among those that are read, or else it is looked for from the newest hour backwards.
    """
    newest = max(published, key=lambda revision: _age(revision.manifest))
    last, others = _newest_promotion(fs, topic), _newest_hour_first(fs, topic)
    while _age(newest.manifest)[0] < last and (other := next(others, None)) is not None:
        newest = max(newest, other, key=lambda revision: _age(revision.manifest))
    with fs.local_copy(_paths([newest])[0]) as file:
        return pq.read_schema(file).remove_metadata()


def _folder_columns(columns: pa.Schema) -> pa.Schema:
    """What the folders add to the columns of the files: nothing where a file has one of that name."""
    theirs = {name.casefold() for name in columns.names}
    return pa.schema([]) if theirs & {*revisions.FOLDER_COLUMNS.names} else revisions.FOLDER_COLUMNS


def _newest_promotion(fs: Filesystem, topic: str) -> int:
    """The number of the newest promotion that an hour can have; 0 for none."""
    if not fs.names(f"{topic}/{PROMOTIONS}"):
        return 0
    try:
        newest = newest_load(fs, topic)
    except MillraceError:  # of a damaged history `verify` speaks; whole hours can be read all the same
        return 0
    return 0 if newest is None else newest.promotion or 0


def _newest_hour_first(fs: Filesystem, topic: str) -> Iterator[Revision]:
    """The newest revision of every hour with rows, the newest hour first; damaged ones are left out."""
    for hour in reversed(revisions.hours(fs, topic)):
        try:
            revision = revisions.newest_revision(fs, topic, hour)
        except MillraceError:  # as above
            continue
        if revision.manifest.files:
            yield revision


def _age(manifest: HourManifest) -> tuple[int, int]:
    return manifest.promotion or 0, max(part.load for part in manifest.loads)


def _paths(published: Sequence[Revision]) -> list[str]:
    return [f"{revision.folder}/{file.path}" for revision in published for file in revision.manifest.files]
