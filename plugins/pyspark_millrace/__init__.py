"""Lets Spark find the data source `millrace`: when Spark starts, it imports modules named pyspark_*.

Contains only the name that Spark looks up.
"""

from millrace_spark.source.data_source import MillraceDataSource as DefaultSource

__all__ = ["DefaultSource"]
