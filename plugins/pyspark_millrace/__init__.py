"""How Spark finds the data source `millrace` by itself: it looks for modules named pyspark_* at its start.

Owns nothing but the name that Spark asks for.
"""

from millrace_spark.source.data_source import MillraceDataSource as DefaultSource

__all__ = ["DefaultSource"]
