"""`format("millrace")` for `spark.read` and `spark.readStream`: topics of a Millrace or Apache Kafka cluster.

    spark.read.format("millrace").option("kafka.bootstrap.servers", "localhost:9092")
         .option("subscribe", "PageView").option("registry.url", "http://localhost:8081").load()

With `registry.url` the columns are those of one schema, pinned when the DataFrame is made. Messages are Avro,
or JSON with `value.format`, which also reads text and bytes, without a registry. Without these options the
columns are key, value, headers, topic, partition, offset, timestamp. Spark finds the source by itself where
this package is installed (`pyspark_millrace`); elsewhere call
`spark.dataSource.register(MillraceDataSource)`. Not supported: filters pushed down by Spark (they leak into
later queries in 4.3 and give wrong results), and writing. Streams need PySpark 4.2, batches 4.0.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence

import pyarrow as pa
import pyspark
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from millrace.client.cluster_client import ClusterClient
from millrace.errors import MillraceError
from millrace_spark.source.offsets import cuts_for, freeze, subscribed
from millrace_spark.source.options import SourceOptions, check_batch, check_stream, parse_options
from millrace_spark.source.rows import RowReader
from millrace_spark.source.schema import table_schema
from millrace_warehouse.log.ranges import Cut


class MillraceDataSource(DataSource):
    """Topics of a cluster: a batch between fixed offsets, or a stream."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        # Here and not in `reader`: Spark pickles this object into the plan and may ask it for readers again,
        # which must all see the same offsets and the same schema.
        super().__init__(options)
        self.source_options = parse_options(options)
        self.rows = RowReader(self.source_options, table_schema(self.source_options))
        self.cuts = _frozen(self.source_options)

    @classmethod
    def name(cls) -> str:
        return "millrace"

    def schema(self) -> StructType:
        return from_arrow_schema(self.rows.arrow_schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        check_batch(self.source_options)
        self._check_schema(schema)
        if isinstance(self.cuts, str):
            raise MillraceError(self.cuts)
        return MillraceReader(self.rows, self.cuts)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        check_stream(self.source_options)
        self._check_schema(schema)
        try:
            from millrace_spark.source.stream import MillraceStreamReader
        except ModuleNotFoundError:
            raise MillraceError(
                f"spark.readStream.format('millrace') needs PySpark 4.2 or newer, not"
                f" {pyspark.__version__}: install it, or read with spark.read or Spark's own Kafka source"
            ) from None
        return MillraceStreamReader(self.rows)

    def _check_schema(self, schema: StructType) -> None:
        if schema != self.schema():
            raise MillraceError("format 'millrace' brings its own columns; leave out .schema(...)")


def _frozen(options: SourceOptions) -> list[Cut] | str:
    """Return a batch's cuts, or the reason why there are none.

    Spark does not tell whether it wants a batch or a stream. A stream that continues from its checkpoint may
    name starting offsets that have expired. So only a batch is refused, when Spark asks for its reader.
    """
    with ClusterClient(options.bootstrap, security=options.security) as client:
        subscribed(client, options.subscription, missing_ok=not options.fail_on_data_loss)
        try:
            return cuts_for(freeze(client, options), options.min_partitions)
        except MillraceError as error:
            if options.ending is not None:  # certainly a batch
                raise
            return str(error)


class CutPartition(InputPartition):
    """A task's cut."""

    def __init__(self, cut: Cut) -> None:
        super().__init__(cut)


class MillraceReader(DataSourceReader):
    """Reads cuts in Spark's tasks. A task that is run again returns the same rows."""

    def __init__(self, rows: RowReader, cuts: Sequence[Cut]) -> None:
        self.rows = rows
        self.cuts = cuts

    def partitions(self) -> Sequence[InputPartition]:
        return [CutPartition(cut) for cut in self.cuts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark passes None when there are no cuts at all.
        return self.rows.read(partition.value) if isinstance(partition, CutPartition) else iter(())
