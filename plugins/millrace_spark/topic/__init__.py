"""Which offsets of a topic a run reads, and how their bytes are fetched, framed and accounted for.

Knows no schemas and no files.
"""
