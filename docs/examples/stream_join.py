"""Which pages members look at after a search: two streams joined by member and time.

    spark-submit stream_join.py localhost:9092 http://localhost:8081 /data/searches-followed

A view belongs to a search of the same member up to five minutes before it. Spark keeps searches and views
only as long as a partner may still come: the watermarks say how late events arrive at most.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F


def events(spark: SparkSession, bootstrap: str, registry: str, topic: str) -> DataFrame:
    """A topic as a stream, from its start when the query is new."""
    return (
        spark.readStream.format("millrace")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("registry.url", registry)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
        .where("memberId IS NOT NULL")
    )


def followed(searches: DataFrame, views: DataFrame) -> DataFrame:
    """One row per search and view that followed it: member, query, searched_at, url, viewed_at."""
    left = searches.select(
        F.col("memberId").alias("member"), "query", F.col("header.time").alias("searched_at")
    ).withWatermark("searched_at", "2 minutes")
    right = views.select(
        F.col("memberId").alias("viewer"), "url", F.col("header.time").alias("viewed_at")
    ).withWatermark("viewed_at", "2 minutes")
    return left.join(
        right,
        F.expr(
            "member = viewer AND viewed_at >= searched_at AND viewed_at <= searched_at + INTERVAL 5 MINUTES"
        ),
    ).drop("viewer")


def main() -> None:
    """Run until it is stopped, or with --available-now until everything there is has been read."""
    parser = argparse.ArgumentParser(description="Searches and the page views that followed them")
    parser.add_argument("bootstrap", help="HOST:PORT of a broker")
    parser.add_argument("registry", help="URL of the schema registry")
    parser.add_argument("output", help="folder for the result and the query's checkpoint")
    parser.add_argument("--available-now", action="store_true", help="stop at what is there now")
    options = parser.parse_args()
    # As many pieces of state, for as long as the checkpoint lives; Spark's 200 are for far larger streams.
    builder = SparkSession.builder.appName("searches-followed").config("spark.sql.shuffle.partitions", 4)
    spark = builder.getOrCreate()
    searches = events(spark, options.bootstrap, options.registry, "SearchQuery")
    views = events(spark, options.bootstrap, options.registry, "PageView")
    writer = (
        followed(searches, views)
        .writeStream.format("parquet")
        .option("path", f"{options.output}/followed")
        .option("checkpointLocation", f"{options.output}/checkpoint")
    )
    if options.available_now:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime="10 seconds")
    writer.start().awaitTermination()


if __name__ == "__main__":
    main()
