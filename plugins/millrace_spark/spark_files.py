"""Spark's own Parquet writer on a staging folder, for storage that tasks do not see as a folder.

Everything is written into a fresh private folder, where Spark's commit can neither leave half of a job to
readers nor adopt what a dead one left. What is there afterwards is counted by reading it back.
"""

from __future__ import annotations

import urllib.parse
from typing import TYPE_CHECKING

from millrace_spark.files.filesystem import Filesystem, literal
from millrace_spark.warehouse.manifest import REJECTED, DataFile
from millrace_spark.warehouse.staging import sha256_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROW_GROUP_BYTES = 32 << 20
"""Bytes of a row group: a task holds one for every hour it writes at a time. Parquet's default is 128 MiB."""
_SETTINGS = {
    # INT96, the default, has no time zone and loses the type for other readers.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    # Without it Spark sorts every task's rows by hour before it writes them.
    "spark.sql.maxConcurrentOutputFileWriters": "20",
    "spark.sql.session.timeZone": "UTC",
}


def write_parquet(frame: DataFrame, fs: Filesystem, folder: str, *partition_columns: str) -> None:
    """Write the rows into a folder that does not exist yet; only Parquet files are left in it."""
    for key, value in _SETTINGS.items():
        frame.sparkSession.conf.set(key, value)
    writer = frame.write.mode("errorifexists").option("compression", "zstd")
    writer = writer.option("parquet.block.size", ROW_GROUP_BYTES)
    if partition_columns:
        writer = writer.partitionBy(*partition_columns)
    writer.parquet(fs.uri(folder))
    for path, _ in fs.files(folder):
        if not path.endswith(".parquet") or path.rpartition("/")[2].startswith("."):
            fs.delete(f"{folder}/{path}")  # _SUCCESS, checksums of the local file system


def described(spark: SparkSession, fs: Filesystem, staging: str) -> list[DataFile]:
    """What a manifest says of every file in a staging folder, its rows counted by Spark.

    Files without rows are deleted: a task that has none writes one all the same.
    """
    sizes = dict(fs.files(staging))
    files: list[DataFile] = []
    for rejected in (False, True):
        paths = [path for path in sizes if path.startswith(f"{REJECTED}/") == rejected]
        if not paths:
            continue
        counted = _rows(spark, fs, staging, paths, "sum(records)" if rejected else "count(*)")
        for path in paths:
            if path not in counted:
                fs.delete(f"{staging}/{path}")
        kept = [path for path in paths if path in counted]
        for path, digest in zip(kept, sha256_of(fs, [f"{staging}/{path}" for path in kept]), strict=True):
            rows, records = counted[path]
            files.append(DataFile(path=path, rows=rows, records=records, bytes=sizes[path], sha256=digest))
    return files


def _rows(
    spark: SparkSession, fs: Filesystem, staging: str, paths: list[str], records: str
) -> dict[str, tuple[int, int]]:
    """Path -> (rows, records) of files that all have rows."""
    from pyspark.sql.functions import expr

    frame = spark.read.parquet(*(literal(fs.uri(f"{staging}/{path}")) for path in paths))
    grouped = frame.selectExpr("*", "_metadata.file_path as `_file_path`").groupBy("_file_path")
    counted = grouped.agg(expr("count(*)").alias("rows"), expr(records).alias("records")).collect()
    inside = f"/{staging}/"
    return {
        urllib.parse.unquote(row["_file_path"]).rpartition(inside)[2]: (row["rows"], row["records"])
        for row in counted
    }
