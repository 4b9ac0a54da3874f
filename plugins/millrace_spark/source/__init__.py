"""The data source `spark.read.format("millrace")`, in batches and as streams. Writes nothing."""

from millrace_spark.source.data_source import MillraceDataSource as MillraceDataSource
