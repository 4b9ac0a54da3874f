"""The `spark` sinks: a load and an hour written by Spark, for every Hadoop file system.

A load reads its ranges once: behind its rows each task writes one more, its account of every record, into a
folder that is read and deleted before anything is published. Spark keeps the files of one attempt at a task,
so rows and account are of the same one. Rejected records, if there are any, are read a second time; ranges
are frozen and a log does not change. The rows written are counted again by reading the files back.
"""

from __future__ import annotations

import base64
import json
import urllib.parse
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from millrace.errors import MillraceError
from millrace_audit.reports.counts import SequenceCounts
from millrace_spark.avro.messages import DecodedBatch, Decoder
from millrace_spark.avro.table_schema import FOLDER_NAMES, check_names
from millrace_spark.files.filesystem import Filesystem, literal
from millrace_spark.load.direct import CutResult, Source
from millrace_spark.parquet.hour_files import dates_and_hours
from millrace_spark.parquet.rejections import REJECTED_SCHEMA, Reasons
from millrace_spark.parquet.sequences import count_sequences
from millrace_spark.table.merge import not_published
from millrace_spark.table.sources import HourSource, SourceFiles
from millrace_spark.topic.ranges import Cut, RangeStats
from millrace_spark.topic.reading import read_cut
from millrace_spark.warehouse.manifest import REJECTED, DataFile
from millrace_spark.warehouse.staging import sha256_of, tasks_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


ACCOUNT = "account"
"""The `date` of one row of every task, whose `_key` says what the task has read: in a folder of its own."""

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


class SparkSink:
    """Writes a load with Spark's data source and Spark's writer."""

    name = "spark"

    def __init__(self, spark: SparkSession, fs: Filesystem) -> None:
        self._spark = spark
        self._fs = fs

    def write(self, source: Source, cuts: Sequence[Cut], staging: str) -> list[CutResult]:
        """Every cut's account; all files are named by the first one."""
        if not cuts:
            return []
        with tasks_folder(self._fs, staging) as work:
            self._write_rows(source, cuts, work)
            results = self._accounts(cuts, f"{work}/date={ACCOUNT}")
            if any(result.stats.rejected for result in results):
                self._write_rejected(source, cuts, f"{work}/{REJECTED}")
            files = _list_files(self._spark, self._fs, work)
            self._fs.gather(work, staging, [file.path for file in files])
        results[0].files.extend(files)
        return results

    def _write_rows(self, source: Source, cuts: Sequence[Cut], folder: str) -> None:
        # Of its own name: several topics are loaded in one session at the same time.
        name = f"millrace_load_{uuid.uuid4().hex}"
        self._spark.dataSource.register(_rows_source(name, source, cuts))
        _write_parquet(self._spark.read.format(name).load(), self._fs, folder, "date", "hour")

    def _accounts(self, cuts: Sequence[Cut], folder: str) -> list[CutResult]:
        """What the tasks have said, in the order of the cuts; MillraceError if one could not read its cut."""
        rows = self._spark.read.parquet(literal(self._fs.uri(folder))).select("_key").collect()
        self._fs.delete(folder)
        accounts = [json.loads(row["_key"]) for row in rows]
        if error := next((account["error"] for account in accounts if "error" in account), None):
            raise MillraceError(error)
        results = [_result(account) for account in accounts]
        by_cut = {(result.stats.partition, result.stats.first): result for result in results}
        if len(by_cut) != len(results) or by_cut.keys() != {(cut.range.partition, cut.first) for cut in cuts}:
            raise MillraceError(
                f"{len(results)} tasks gave an account of {len(cuts)} cuts; run the load again"
            )
        return [by_cut[cut.range.partition, cut.first] for cut in cuts]

    def _write_rejected(self, source: Source, cuts: Sequence[Cut], folder: str) -> None:
        """Reads the cuts once more: there are no rejected records in most loads."""
        rejected = self._spark.sparkContext.parallelize(cuts, len(cuts)).flatMap(partial(rejected_of, source))
        frame = self._spark.createDataFrame(rejected, from_arrow_schema(REJECTED_SCHEMA))
        _write_parquet(frame, self._fs, folder)


def _account(result: CutResult) -> Mapping[str, Any]:
    """A result without files as JSON values; the sequences stay packed."""
    packed = base64.b64encode(result.packed_sequences).decode()
    return {"stats": result.stats.to_json(), "sequences": packed, "reasons": dict(result.reasons)}


def _result(account: Mapping[str, Any]) -> CutResult:
    packed = base64.b64decode(account["sequences"])
    return CutResult(RangeStats.from_json(account["stats"]), [], packed, account["reasons"])


def _decoded(source: Source, cut: Cut, stats: RangeStats) -> Iterator[DecodedBatch]:
    with closing(source.connect()) as client:
        decoder = Decoder(source.table_schema, source.lookup)
        yield from decoder.decode(cut, read_cut(client, cut, stats), stats)


def rejected_of(source: Source, cut: Cut) -> Iterator[tuple[Any, ...]]:
    """The records of a cut that cannot be decoded, as rows of REJECTED_SCHEMA."""
    for batch in _decoded(source, cut, RangeStats.of(cut)):
        for record in batch.rejected:
            yield tuple(getattr(record, name) for name in REJECTED_SCHEMA.names)


def _rows_source(name_: str, source: Source, cuts: Sequence[Cut]) -> type[DataSource]:
    """A data source of exactly these cuts' rows and accounts; it travels by value, with them."""
    arrow_schema = Decoder(source.table_schema, source.lookup).arrow_schema
    check_names(arrow_schema, FOLDER_NAMES)  # an older version may have pinned one
    arrow_schema = arrow_schema.append(pa.field("date", pa.string())).append(pa.field("hour", pa.string()))

    class Rows(DataSource):
        @classmethod
        def name(cls) -> str:
            return name_

        def schema(self) -> StructType:
            return from_arrow_schema(arrow_schema)

        def reader(self, schema: StructType) -> DataSourceReader:
            return CutReader(source, cuts, arrow_schema)

    return Rows


class CutPartition(InputPartition):
    """A task's share."""

    def __init__(self, cut: Cut) -> None:
        super().__init__(cut)


class CutReader(DataSourceReader):
    """Reads cuts in Spark's tasks; a task that is run again gives the same rows."""

    def __init__(self, source: Source, cuts: Sequence[Cut], schema: pa.Schema) -> None:
        self._source = source
        self._cuts = cuts
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        return [CutPartition(cut) for cut in self._cuts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a cut that could be decoded, with their `date` and `hour`, and last its account."""
        cut: Cut = partition.value
        stats, counts, reasons = RangeStats.of(cut), SequenceCounts(), Reasons()
        try:
            for batch in _decoded(self._source, cut, stats):
                count_sequences(batch.rows, counts)
                reasons.add(batch.rejected)
                if batch.rows.num_rows:
                    columns = [*batch.rows.columns, *dates_and_hours(batch.rows)]
                    yield pa.RecordBatch.from_arrays(columns, schema=self._schema)
        except MillraceError as error:  # for the driver to raise as it is, not in a stack of Java's
            yield self._row({"error": str(error)})
            return
        yield self._row(_account(CutResult.of(stats, [], counts, reasons)))

    def _row(self, account: Mapping[str, Any]) -> pa.RecordBatch:
        row = {"date": ACCOUNT, "hour": ACCOUNT, "_key": json.dumps(account).encode()}
        return pa.RecordBatch.from_pylist([row], schema=self._schema)


class SparkMerge:
    """Writes hours with Spark: one file per hour."""

    def __init__(self, spark: SparkSession, fs: Filesystem) -> None:
        self._spark = spark
        self._fs = fs

    def write(self, sources: Sequence[HourSource], staging: str) -> list[DataFile]:
        groups = [group for source in sources for group in source.groups if group.files]
        if not groups:
            return []
        newest = max(reversed(groups), key=lambda group: group.age)
        paths = self._checked([(group.folder, file) for group in groups for file in group.files])
        schema = self._spark.read.parquet(literal(self._fs.uri(newest.schema_file))).schema
        path = "_metadata.file_path"
        frame = self._spark.read.schema(schema).parquet(*paths)
        for group in groups:
            if group.left_out:
                frame = frame.where(_row_condition(group))
        frame = frame.select(
            *(f"`{name}`" for name in schema.names),
            functions.regexp_extract(path, "/date=([0-9-]{10})/", 1).alias("date"),
            functions.regexp_extract(path, "/hour=([0-9]{2})/", 1).alias("hour"),
        )
        self._fs.delete(staging)  # Spark wants to make it
        _write_parquet(frame.repartition("date", "hour"), self._fs, staging, "date", "hour")
        return _list_files(self._spark, self._fs, staging)

    def _checked(self, files: Sequence[tuple[str, DataFile]]) -> list[str]:
        paths = [f"{folder}/{file.path}" for folder, file in files]
        for path, digest, (_, file) in zip(paths, sha256_of(self._fs, paths), files, strict=True):
            if digest != file.sha256:
                raise not_published(path)
        return [literal(self._fs.uri(path)) for path in paths]


def _row_condition(group: SourceFiles) -> str:
    """The rows that stay, as a condition: all but those of the group that are left out."""
    gone = " OR ".join(
        f"(_partition = {range_.partition} AND _offset >= {range_.start} AND _offset < {range_.end})"
        for range_ in group.left_out
    )
    return f"NOT (instr(_metadata.file_path, '/{group.folder}/') > 0 AND ({gone}))"


def _write_parquet(frame: DataFrame, fs: Filesystem, folder: str, *partition_columns: str) -> None:
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


def _list_files(spark: SparkSession, fs: Filesystem, staging: str) -> list[DataFile]:
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
    frame = spark.read.parquet(*(literal(fs.uri(f"{staging}/{path}")) for path in paths))
    grouped = frame.selectExpr("*", "_metadata.file_path as `_file_path`").groupBy("_file_path")
    aggregates = [functions.expr("count(*)").alias("rows"), functions.expr(records).alias("records")]
    counted = grouped.agg(*aggregates).collect()
    inside = f"/{staging}/"
    return {
        urllib.parse.unquote(row["_file_path"]).rpartition(inside)[2]: (row["rows"], row["records"])
        for row in counted
    }
