"""`spark.read.format("millrace")`: topics of a Millrace or Kafka cluster as a DataFrame, in batches.

    spark.dataSource.register(MillraceDataSource)
    spark.read.format("millrace").option("bootstrap", "localhost:9092").option("subscribe", "PageView")
         .option("registry.url", "http://localhost:8081").load()

With `registry.url` the columns are those of the latest schema and a message that cannot be decoded fails the
query; without, they are key, value, headers, topic, partition, offset, timestamp. Left out: streaming, and
filters pushed down by Spark (they leak into later queries in 4.3 and give wrong results).
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from millrace.errors import CorruptMessage, MillraceError
from millrace.registry.client import SchemaRegistryClient, UnknownSchema
from millrace.wire.client import ClusterClient
from millrace_spark.decode import SLICE_ROWS, Decoder, Rejected, frames_of, keys, nullable_bytes, timestamps
from millrace_spark.framing import Frames, read_headers
from millrace_spark.ranges import Cut, RangeStats
from millrace_spark.reading import read_cut
from millrace_spark.source_options import SourceOptions, cuts_for, freeze, parse_options

_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
RAW_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.field("element", _HEADER))),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)


class CutPartition(InputPartition):
    """A task's share."""

    def __init__(self, cut: Cut) -> None:
        super().__init__(cut)


class MillraceDataSource(DataSource):
    """Topics of a cluster, between offsets that are frozen when the DataFrame is made."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        # Here and not in `reader`: Spark pickles this object into the plan and may ask it for readers again,
        # which must all see the same offsets and the same schema.
        super().__init__(options)
        self.asked = parse_options(options)
        with ClusterClient(self.asked.bootstrap) as client:
            self.cuts = cuts_for(freeze(client, self.asked), self.asked.min_partitions)
        self.table_schema = _latest_schema(self.asked)

    @classmethod
    def name(cls) -> str:
        """What to give to `format`."""
        return "millrace"

    def schema(self) -> StructType:
        """The columns: the latest schema's, or the raw ones."""
        return from_arrow_schema(self._arrow_schema())

    def _arrow_schema(self) -> pa.Schema:
        if self.table_schema is None:
            return RAW_SCHEMA
        return Decoder(self.table_schema, lambda _: None).arrow_schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of the frozen ranges."""
        if schema != self.schema():
            raise MillraceError("format 'millrace' brings its own columns; leave out .schema(...)")
        return MillraceReader(self.asked, self.cuts, self.table_schema)


def _latest_schema(asked: SourceOptions) -> dict[str, Any] | None:
    if asked.registry_url is None:
        return None
    subject = asked.registry_subject or asked.topics[0]
    with SchemaRegistryClient(asked.registry_url) as registry:
        schema: dict[str, Any] = registry.latest(subject).schema
        return schema


class MillraceReader(DataSourceReader):
    """Reads cuts in Spark's tasks; a task that is run again gives the same rows."""

    def __init__(
        self, asked: SourceOptions, cuts: Sequence[Cut], table_schema: dict[str, Any] | None
    ) -> None:
        self.asked = asked
        self.cuts = cuts
        self.table_schema = table_schema

    def partitions(self) -> Sequence[InputPartition]:
        """One per cut."""
        return [CutPartition(cut) for cut in self.cuts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a cut; Spark asks for None when there are no cuts at all."""
        if not isinstance(partition, CutPartition):
            return
        cut: Cut = partition.value
        stats = RangeStats.of(cut)
        with ClusterClient(self.asked.bootstrap) as client:
            for batch in self._batches(client, cut, stats):
                self._check_loss(cut, stats)
                if batch.num_rows:
                    yield batch
        self._check_loss(cut, stats)

    def _batches(self, client: ClusterClient, cut: Cut, stats: RangeStats) -> Iterator[pa.RecordBatch]:
        fetched = read_cut(client, cut, stats)
        if self.table_schema is None or self.asked.registry_url is None:
            for frames, broken in frames_of(cut, fetched, stats):
                _refuse(cut, broken)
                for first in range(0, len(frames), SLICE_ROWS):
                    yield raw_batch(cut, frames.select(slice(first, first + SLICE_ROWS)))
            return
        with SchemaRegistryClient(self.asked.registry_url) as registry:
            for decoded in Decoder(self.table_schema, RegistryLookup(registry)).decode(cut, fetched, stats):
                _refuse(cut, decoded.rejected)
                yield decoded.rows

    def _check_loss(self, cut: Cut, stats: RangeStats) -> None:
        if not self.asked.fail_on_data_loss:
            return
        for gap in stats.gaps:
            what = f"{stats.topic}-{stats.partition}: offsets [{gap.start}, {gap.end})"
            if gap.reason == "expired":
                raise MillraceError(
                    f"{what} expired while the query ran; run it again from a later offset, or set"
                    " failOnDataLoss=false"
                )
            if cut.range.byte_positions:  # Apache Kafka's compaction leaves such gaps on purpose
                raise MillraceError(
                    f"{what} are missing in the middle of the log: run `millrace log verify` on its broker,"
                    " or set failOnDataLoss=false"
                )


class RegistryLookup:
    """Schemas by id for a `Decoder`: None for those the registry does not know."""

    def __init__(self, registry: SchemaRegistryClient) -> None:
        self.registry = registry

    def __call__(self, schema_id: int) -> dict[str, Any] | None:
        """The schema of an id."""
        try:
            schema: dict[str, Any] = self.registry.schema(schema_id)
        except UnknownSchema:
            return None
        return schema


def _refuse(cut: Cut, rejected: Sequence[Rejected]) -> None:
    if rejected:
        first = rejected[0]
        raise MillraceError(
            f"{cut.range.topic}-{first.partition} offset {first.offset}: {first.reason}; to see it read "
            "the topic without registry.url, to set such messages aside load it with `millrace load`"
        )


def raw_batch(cut: Cut, frames: Frames) -> pa.RecordBatch:
    """Records with their bytes as they are."""
    count = len(frames)
    columns = [
        keys(frames),
        nullable_bytes(frames, frames.value, frames.value_size),
        _headers(cut, frames),
        pa.repeat(pa.scalar(cut.range.topic), count),
        pa.repeat(pa.scalar(cut.range.partition, pa.int32()), count),
        pa.array(frames.offset),
        timestamps(frames),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RAW_SCHEMA)


def _headers(cut: Cut, frames: Frames) -> pa.Array:
    type_ = RAW_SCHEMA.field("headers").type
    some = np.flatnonzero(frames.header_count > 0).tolist()
    if not some:
        return pa.repeat(pa.scalar([], type_), len(frames))
    values: list[list[dict[str, Any]]] = [[] for _ in range(len(frames))]
    for row in some:
        try:
            values[row] = [{"key": key, "value": value} for key, value in read_headers(frames, row)]
        except CorruptMessage as error:
            raise MillraceError(f"{cut.range.topic}-{cut.range.partition}: {error}") from None
    return pa.array(values, type_)
