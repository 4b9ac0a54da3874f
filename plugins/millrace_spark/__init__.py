"""Millrace for Spark: a data source that reads topics as typed columns, the jobs that load a warehouse."""
