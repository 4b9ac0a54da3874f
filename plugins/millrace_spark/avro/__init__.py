"""Avro messages to Arrow, a column at a time. Fetches nothing and writes no files."""
