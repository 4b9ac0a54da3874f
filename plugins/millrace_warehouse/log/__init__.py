"""Which offsets of a topic a run reads, how their bytes are fetched and framed, and how they become rows.

Knows no files.
"""
