"""Records of the audit topics: hellos, reports, counts and heartbeats, and their ranges of sequences.

No verdict is decided here.
"""
