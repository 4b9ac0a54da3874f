"""Avro messages to Arrow, a column at a time. Fetches nothing, writes no files and knows no topics."""
