"""The log of a topic: offsets that a run reads, how bytes are fetched and framed, and how they become rows.

Knows no files.
"""
