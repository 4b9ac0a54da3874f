"""The `spark` sinks: a load and an hour written by Spark, for every Hadoop file system.

A load reads its ranges twice: once to account for every record, once to write the rows (a third time for
the rejected records, if there are any). The ranges are frozen and a log does not change, so every pass sees
the same; the rows written are counted again by reading the files back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from millrace.audit.counts import SequenceCounts
from millrace.errors import MillraceError
from millrace.manifest import REJECTED, DataFile
from millrace_spark.decode import DecodedBatch, Decoder
from millrace_spark.filesystem import Filesystem
from millrace_spark.hour_files import count_rows, hours_of
from millrace_spark.hourly import HourSource
from millrace_spark.jobs.entry import in_tasks
from millrace_spark.ranges import Cut, RangeStats
from millrace_spark.reading import read_cut
from millrace_spark.sinks import REJECTED_SCHEMA, CutResult, Source
from millrace_spark.spark_files import described, write_parquet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkSink:
    """Writes a load with Spark's data source and Spark's writer."""

    name = "spark"

    def __init__(self, spark: SparkSession, fs: Filesystem) -> None:
        self._spark = spark
        self._fs = fs

    def write(self, source: Source, cuts: Sequence[Cut], staging: str) -> list[CutResult]:
        """Every cut's account; all files are named by the first one."""
        results = in_tasks(self._spark, partial(account_for, source), cuts)
        if not results:
            return []
        self._fs.delete(staging)  # Spark wants to make it
        if any(result.stats.records > result.stats.rejected for result in results):
            self._spark.dataSource.register(rows_source(source, cuts))
            frame = self._spark.read.format(_SOURCE).load()
            write_parquet(frame, self._fs, staging, "date", "hour")
        if any(result.stats.rejected for result in results):
            rejected = self._spark.sparkContext.parallelize(cuts, len(cuts)).flatMap(
                partial(rejected_of, source)
            )
            frame = self._spark.createDataFrame(rejected, from_arrow_schema(REJECTED_SCHEMA))
            write_parquet(frame, self._fs, f"{staging}/{REJECTED}")
        self._fs.make_folder(staging)
        results[0].files.extend(described(self._spark, self._fs, staging))
        return results


def _decoded(source: Source, cut: Cut, stats: RangeStats) -> Iterator[DecodedBatch]:
    client = source.connect()
    try:
        decoder = Decoder(source.table_schema, source.lookup)
        yield from decoder.decode(cut, read_cut(client, cut, stats), stats)
    finally:
        client.close()


def account_for(source: Source, cut: Cut) -> CutResult:
    """What a cut holds, without writing it."""
    stats, counts = RangeStats.of(cut), SequenceCounts()
    for batch in _decoded(source, cut, stats):
        count_rows(batch.rows, counts)
    return CutResult(stats, [], counts.to_json())


def rejected_of(source: Source, cut: Cut) -> Iterator[tuple[Any, ...]]:
    """The records of a cut that cannot be decoded, as rows of REJECTED_SCHEMA."""
    for batch in _decoded(source, cut, RangeStats.of(cut)):
        for each in batch.rejected:
            yield tuple(getattr(each, name) for name in REJECTED_SCHEMA.names)


_SOURCE = "millrace_load"


def rows_source(source: Source, cuts: Sequence[Cut]) -> type[DataSource]:
    """A data source of exactly these cuts' rows, with `date` and `hour`; it travels by value, with them."""
    arrow_schema = Decoder(source.table_schema, source.lookup).arrow_schema
    arrow_schema = arrow_schema.append(pa.field("date", pa.string())).append(pa.field("hour", pa.string()))

    class Rows(DataSource):
        @classmethod
        def name(cls) -> str:
            return _SOURCE

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
        """One per cut."""
        return [CutPartition(cut) for cut in self._cuts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a cut that could be decoded."""
        cut: Cut = partition.value
        for batch in _decoded(self._source, cut, RangeStats.of(cut)):
            if batch.rows.num_rows:
                hours = hours_of(batch.rows)
                dates = pa.array([hour[:10] for hour in hours], pa.string())
                clocks = pa.array([hour[11:] for hour in hours], pa.string())
                yield pa.RecordBatch.from_arrays([*batch.rows.columns, dates, clocks], schema=self._schema)


class SparkMerge:
    """Writes hours with Spark: one file per hour."""

    def __init__(self, spark: SparkSession, fs: Filesystem) -> None:
        self._spark = spark
        self._fs = fs

    def write(self, sources: Sequence[HourSource], staging: str) -> list[DataFile]:
        """What is in the folder afterwards, by path."""
        newest = max(sources, key=lambda source: max((part.load for part in source.parts), default=0))
        schema = self._spark.read.parquet(self._fs.uri(newest.schema_file)).schema
        paths = [self._fs.uri(f"{load}/{file.path}") for source in sources for load, file in source.files]
        path = "_metadata.file_path"
        frame = self._spark.read.schema(schema).parquet(*paths).select(
            *(f"`{name}`" for name in schema.names),
            functions.regexp_extract(path, "/date=([0-9-]{10})/", 1).alias("date"),
            functions.regexp_extract(path, "/hour=([0-9]{2})/", 1).alias("hour"),
        )  # fmt: skip
        self._fs.delete(staging)  # Spark wants to make it
        write_parquet(frame.repartition("date", "hour"), self._fs, staging, "date", "hour")
        files = described(self._spark, self._fs, staging)
        if missing := {source.hour for source in sources} - {file.hour for file in files}:
            raise MillraceError(f"Spark wrote nothing of {min(missing)}; run `millrace verify`")
        return files
