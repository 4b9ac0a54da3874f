"""Decodes Avro messages into Arrow, a column at a time. Fetches and writes nothing."""
