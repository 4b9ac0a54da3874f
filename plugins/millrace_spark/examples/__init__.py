"""Small Spark jobs to copy from: stream processing is Spark's part, the data source brings the messages."""
