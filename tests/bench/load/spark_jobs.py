"""The ways of loading as Spark jobs: one under spark-submit, or one after the other in a warm session.

    spark-submit tests/bench/load/spark_jobs.py TASK.json         does the task once
    python -m tests.bench.load.spark_jobs --session CONFS.json    a task per line of input; `done` each

Written as a user of each library would write it. Measures nothing: whoever started this does.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

FETCH_BYTES = 32 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Source and target of a load."""

    way: str
    bootstrap: str
    topic: str
    registry: str
    schema: str
    """The Avro schema as text, for those who are given it."""
    hours: Sequence[str]
    """Hours that the topic holds, such as `2015-05-17T08`; for `publish`."""
    out: str
    every_s: float = 0
    """From one trigger of a stream to the next; for `spark_stream`."""


def millrace(spark: SparkSession, task: Task) -> None:
    """Run the same code as `millrace load`."""
    from millrace_warehouse.requests import Load
    from tests.jobs import load_topics

    request = Load(topics=[task.topic], bootstrap=task.bootstrap, registry=task.registry, warehouse=task.out)
    load_topics(spark, request)


def millrace_table(spark: SparkSession, task: Task) -> None:
    """Run the same code as `millrace load` and `millrace publish`."""
    from millrace_warehouse.commands.execute import publish_one
    from millrace_warehouse.requests import Publish

    millrace(spark, task)
    request = Publish(topics=[task.topic], warehouse=task.out, hours=task.hours, unasked=True)
    publish_one(request, task.topic, lambda line: None)


def _from_kafka(task: Task) -> dict[str, str]:
    """Options of Spark's Kafka source."""
    return {
        "kafka.bootstrap.servers": task.bootstrap,
        "subscribe": task.topic,
        "startingOffsets": "earliest",
        "kafka.fetch.max.bytes": str(FETCH_BYTES),
        "kafka.max.partition.fetch.bytes": str(FETCH_BYTES),
        "kafka.receive.buffer.bytes": str(1 << 20),
        "kafka.max.poll.records": "10000",
    }


def _topic_now(spark: SparkSession, task: Task) -> DataFrame:
    """Everything that the topic has now."""
    source = spark.read.format("kafka").options(**_from_kafka(task), endingOffsets="latest").load()
    return _decoded(source, task)


def _decoded(messages: DataFrame, task: Task) -> DataFrame:
    """Decode with from_avro behind the five bytes of the schema id."""
    from pyspark.sql import functions
    from pyspark.sql.avro.functions import from_avro

    decoded = messages.select(
        from_avro(functions.expr("substring(value, 6)"), task.schema).alias("event"),
        functions.col("partition").alias("_topic_partition"),
        functions.col("offset").alias("_offset"),
        functions.col("timestamp").alias("_timestamp"),
        functions.col("key").alias("_key"),
    )
    return decoded.withColumn("_time", functions.col("event.header.time")).select("event.*", *_OF_THE_LOG)


_OF_THE_LOG = ("_topic_partition", "_offset", "_timestamp", "_key", "_time")


def spark_kafka(spark: SparkSession, task: Task) -> None:
    """Spark's Kafka source, from_avro, Spark's Parquet writer."""
    from pyspark.sql import functions

    times = {"date": functions.to_date("_time"), "hour": functions.hour("_time")}
    rows = _topic_now(spark, task).withColumns(times)
    for key, value in {
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
        "spark.sql.maxConcurrentOutputFileWriters": "20",
    }.items():
        spark.conf.set(key, value)
    writer = rows.write.option("compression", "zstd").option("parquet.block.size", str(32 << 20))
    writer.partitionBy("date", "hour").parquet(task.out)


def spark_iceberg(spark: SparkSession, task: Task) -> None:
    """Spark's Kafka source, from_avro, Iceberg's writer and commit: an append to a new table by hour."""
    catalog = Path(task.out).name.replace("-", "_")
    for key, value in {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "hadoop",
        ".warehouse": task.out,
    }.items():
        spark.conf.set(f"spark.sql.catalog.{catalog}{key}", value)
    rows, table = _topic_now(spark, task), f"{catalog}.bench.page_views"
    _create(spark, table, rows)
    rows.writeTo(table).option("fanout-enabled", "true").append()


def _create(spark: SparkSession, table: str, rows: DataFrame) -> None:
    """Create an Iceberg table by hour; every task writes all hours at once: no shuffle, no sorting."""
    properties = "'write.parquet.compression-codec' = 'zstd', 'write.distribution-mode' = 'none'"
    spark.sql(
        f"CREATE TABLE {table} ({rows.schema.toDDL()}) USING iceberg PARTITIONED BY (hours(_time))"
        f" TBLPROPERTIES ({properties})"
    )


def spark_stream(spark: SparkSession, task: Task) -> None:
    """Append to a new Iceberg table of catalog `millrace` until the process is ended."""
    rows = _decoded(spark.readStream.format("kafka").options(**_from_kafka(task)).load(), task)
    table = f"millrace.millrace.{task.topic}"
    spark.sql("CREATE NAMESPACE IF NOT EXISTS millrace.millrace")
    _create(spark, table, rows)
    stream = rows.writeStream.trigger(processingTime=f"{task.every_s:g} seconds")
    options = {"fanout-enabled": "true", "checkpointLocation": task.out}
    stream.format("iceberg").options(**options).toTable(table).awaitTermination()


WAYS: Mapping[str, Callable[[SparkSession, Task], None]] = {
    "millrace": millrace,
    "millrace-table": millrace_table,
    "spark-kafka": spark_kafka,
    "spark-iceberg": spark_iceberg,
    "spark-stream": spark_stream,
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
    main()
