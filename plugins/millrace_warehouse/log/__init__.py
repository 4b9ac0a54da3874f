"""The log of a topic: the offsets that a run reads, fetching and framing of bytes, and their decoding into
rows.

Depends on no files.
"""
