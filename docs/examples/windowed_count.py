"""Page views per minute and HTTP status, counted while they arrive, by the time they happened.

    spark-submit windowed_count.py localhost:9092 http://localhost:8081 /data/views-per-minute

A minute is written once, as Parquet, when no view of it is expected any more: two minutes after it, as the
events tell the time. Killed and started again it goes on where it was; no view is counted twice.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F


def page_views(spark: SparkSession, bootstrap: str, registry: str) -> DataFrame:
    """The topic PageView as a stream, from its start when the query is new."""
    return (
        spark.readStream.format("millrace")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("registry.url", registry)
        .option("subscribe", "PageView")
        .option("startingOffsets", "earliest")
        .load()
    )


def views_per_minute(views: DataFrame) -> DataFrame:
    """One row per minute and status: minute, status, views."""
    return (
        views.select(F.col("header.time").alias("time"), "status")
        .withWatermark("time", "2 minutes")
        .groupBy(F.window("time", "1 minute"), "status")
        .count()
        .select(F.col("window.start").alias("minute"), "status", F.col("count").alias("views"))
    )


def main() -> None:
    """Run until it is stopped, or with --available-now until everything there is has been read."""
    parser = argparse.ArgumentParser(description="Page views per minute and HTTP status")
    parser.add_argument("bootstrap", help="HOST:PORT of a broker")
    parser.add_argument("registry", help="URL of the schema registry")
    parser.add_argument("output", help="folder for the result and the query's checkpoint")
    parser.add_argument("--available-now", action="store_true", help="stop at what is there now")
    options = parser.parse_args()
    # As many pieces of state, for as long as the checkpoint lives; Spark's 200 are for far larger streams.
    builder = SparkSession.builder.appName("views-per-minute").config("spark.sql.shuffle.partitions", 4)
    spark = builder.getOrCreate()
    counts = views_per_minute(page_views(spark, options.bootstrap, options.registry))
    writer = (
        counts.writeStream.format("parquet")
        .option("path", f"{options.output}/counts")
        .option("checkpointLocation", f"{options.output}/checkpoint")
    )
    if options.available_now:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime="10 seconds")
    writer.start().awaitTermination()


if __name__ == "__main__":
    main()
