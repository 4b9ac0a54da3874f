"""Rows into Parquet files by hour. Publishes nothing."""
