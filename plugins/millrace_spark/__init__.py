"""Millrace for Spark: topics as typed columns, and the jobs that load a warehouse."""
