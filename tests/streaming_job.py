"""A streaming query in a process of its own, to be killed: a topic into Parquet, a few bytes at a time.

python -m tests.streaming_job BOOTSTRAP TOPIC FOLDER
"""

from __future__ import annotations

import sys
import time

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter


def query(spark: SparkSession, bootstrap: str, topic: str, folder: str, **options: str) -> DataStreamWriter:
    """The query, from its checkpoint if it has one."""
    frame = (
        spark.readStream.format("millrace")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("minPartitions", "4")
        .options(**options)
        .load()
    )
    return (
        frame.writeStream.format("parquet")
        .option("path", f"{folder}/out")
        .option("checkpointLocation", f"{folder}/checkpoint")
    )


def main() -> None:
    """Run until killed, telling every micro-batch."""
    bootstrap, topic, folder = sys.argv[1:]
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .getOrCreate()
    )
    running, told = query(spark, bootstrap, topic, folder, maxBytesPerTrigger="2000").start(), -1
    while running.isActive:
        time.sleep(0.02)
        progress = running.lastProgress
        if progress is not None and progress.batchId > told:
            told = progress.batchId
            print(f"step: micro-batch {told}", flush=True)


if __name__ == "__main__":
    main()
