"""The ways of loading as Spark jobs: one under spark-submit, or one after the other in a warm session.

    spark-submit tests/bench/load/spark_jobs.py TASK.json         does the task once
    python -m tests.bench.load.spark_jobs --session CONFS.json    a task per line of input; `done` each

Written as a user of each library would write it. Measures nothing: whoever started this does.
"""

from __future__ import annotations

import io
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

FETCH_BYTES = 32 << 20
ROW_GROUP_ROWS = 100_000
"""Rows a task of the row-by-row way gathers for an hour before it writes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What to load, and where to."""

    way: str
    bootstrap: str
    topic: str
    registry: str
    schema: str
    """The Avro schema as text, for those who are given it."""
    out: str


def millrace(spark: SparkSession, task: Task) -> None:
    """What `millrace load` runs."""
    from millrace_warehouse.verbs import Load
    from tests.jobs import load_topics

    settings = Load(
        topics=[task.topic],
        bootstrap=task.bootstrap,
        registry=task.registry,
        warehouse=task.out,
        run_id="bench",
    )
    load_topics(spark, settings)


def _decoded(spark: SparkSession, task: Task) -> DataFrame:
    """Spark's Kafka source, and from_avro behind the five bytes of the schema id."""
    from pyspark.sql import functions
    from pyspark.sql.avro.functions import from_avro

    source = spark.read.format("kafka").options(
        **{
            "kafka.bootstrap.servers": task.bootstrap,
            "subscribe": task.topic,
            "startingOffsets": "earliest",
            "endingOffsets": "latest",
            "kafka.fetch.max.bytes": str(FETCH_BYTES),
            "kafka.max.partition.fetch.bytes": str(FETCH_BYTES),
            "kafka.receive.buffer.bytes": str(1 << 20),
            "kafka.max.poll.records": "10000",
        }
    )
    decoded = source.load().select(
        from_avro(functions.expr("substring(value, 6)"), task.schema).alias("event"),
        functions.col("partition").alias("_topic_partition"),
        functions.col("offset").alias("_offset"),
        functions.col("timestamp").alias("_timestamp"),
        functions.col("key").alias("_key"),
    )
    return decoded.select(
        "event.*",
        "_topic_partition",
        "_offset",
        "_timestamp",
        "_key",
        functions.col("event.header.time").alias("_time"),
    )


def spark_kafka(spark: SparkSession, task: Task) -> None:
    """Spark's Kafka source, from_avro, Spark's Parquet writer."""
    from pyspark.sql import functions

    times = {"date": functions.to_date("_time"), "hour": functions.hour("_time")}
    rows = _decoded(spark, task).withColumns(times)
    for key, value in {
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
        "spark.sql.maxConcurrentOutputFileWriters": "20",
    }.items():
        spark.conf.set(key, value)
    writer = rows.write.option("compression", "zstd").option("parquet.block.size", str(32 << 20))
    writer.partitionBy("date", "hour").parquet(task.out)


def spark_iceberg(spark: SparkSession, task: Task) -> None:
    """Spark's Kafka source, from_avro, Iceberg's writer and commit: a table by hour in a new folder."""
    from pyspark.sql import functions

    catalog = Path(task.out).name.replace("-", "_")
    for key, value in {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "hadoop",
        ".warehouse": task.out,
    }.items():
        spark.conf.set(f"spark.sql.catalog.{catalog}{key}", value)
    writer = _decoded(spark, task).writeTo(f"{catalog}.bench.page_views").using("iceberg")
    # Every task writes all hours at once: no shuffle, no sorting.
    settings = {"write.parquet.compression-codec": "zstd", "write.distribution-mode": "none"}
    for key, value in settings.items():
        writer = writer.tableProperty(key, value)
    writer.option("fanout-enabled", "true").partitionedBy(functions.hours("_time")).create()


def rows_by_fastavro(spark: SparkSession, task: Task) -> None:
    """One Spark task for each partition: confluent-kafka, a dictionary for each message, pyarrow's writer."""
    from confluent_kafka import Consumer

    consumer = Consumer({"bootstrap.servers": task.bootstrap, "group.id": "bench"})
    partitions = sorted(consumer.list_topics(task.topic, timeout=30).topics[task.topic].partitions)
    consumer.close()
    work = [(task, partition) for partition in partitions]
    spark.sparkContext.parallelize(work, len(work)).foreach(lambda each: load_partition(*each))


def load_partition(task: Task, partition: int) -> None:
    """Everything there is in one partition now, row by row."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition
    from fastavro import parse_schema, schemaless_reader

    schema, files = parse_schema(json.loads(task.schema)), _Files(task, partition)
    consumer = Consumer(
        {
            "bootstrap.servers": task.bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "queued.min.messages": 1_000_000,
            "check.crcs": True,
        }
    )
    consumer.assign([TopicPartition(task.topic, partition, 0)])
    while True:
        for message in consumer.consume(10_000, timeout=10):
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error.str()
                files.close()
                consumer.close()
                return
            event: Any = schemaless_reader(io.BytesIO((message.value() or b"")[5:]), schema, None)
            event |= {
                "_topic_partition": partition,
                "_offset": message.offset(),
                "_key": message.key(),
                "_timestamp": message.timestamp()[1] * 1000,
                "_schema_id": None,
            }
            files.add(event)


class _Files:
    """A Parquet file for each hour; rows are kept as dictionaries until they make a row group."""

    def __init__(self, task: Task, partition: int) -> None:
        from millrace_warehouse.log.messages import Decoder

        self._out, self._name = Path(task.out), f"part-{partition:05d}.parquet"
        self._schema = Decoder(json.loads(task.schema), lambda _: None).arrow_schema
        self._rows: dict[Any, list[Any]] = defaultdict(list)
        self._writers: dict[Any, Any] = {}

    def add(self, event: Any) -> None:
        """Put it to the rows of its hour."""
        time = event["header"]["time"]
        rows = self._rows[time.date(), time.hour]
        rows.append(event)
        if len(rows) >= ROW_GROUP_ROWS:
            self._write((time.date(), time.hour))

    def _write(self, hour: tuple[Any, int]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if hour not in self._writers:
            folder = self._out / f"date={hour[0]}" / f"hour={hour[1]:02d}"
            folder.mkdir(parents=True, exist_ok=True)
            self._writers[hour] = pq.ParquetWriter(folder / self._name, self._schema, compression="zstd")
        self._writers[hour].write_table(pa.Table.from_pylist(self._rows.pop(hour), self._schema))

    def close(self) -> None:
        """Write what is kept and close the files."""
        for hour in list(self._rows):
            self._write(hour)
        for writer in self._writers.values():
            writer.close()


WAYS: Mapping[str, Callable[[SparkSession, Task], None]] = {
    "millrace": millrace,
    "spark-kafka": spark_kafka,
    "spark-iceberg": spark_iceberg,
    "fastavro": rows_by_fastavro,
}


def main() -> None:
    """Do what the command line says."""
    if sys.argv[1] != "--session":
        task = Task(**json.loads(Path(sys.argv[1]).read_text()))
        spark = SparkSession.builder.getOrCreate()
        WAYS[task.way](spark, task)
        spark.stop()
        return
    builder = SparkSession.builder.master("local[2]")
    for key, value in json.loads(Path(sys.argv[2]).read_text()).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    print("ready", flush=True)
    for line in sys.stdin:
        task = Task(**json.loads(line))
        WAYS[task.way](spark, task)
        print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    from tests.bench.load import spark_jobs  # tasks must find what they are sent under its own name

    spark_jobs.main()
