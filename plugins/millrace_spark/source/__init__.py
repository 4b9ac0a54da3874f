"""The data source `spark.read.format("millrace")`, for batches and streams. Writes nothing."""

from millrace_spark.source.data_source import MillraceDataSource as MillraceDataSource
