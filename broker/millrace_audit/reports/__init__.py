"""Records of the audit topics: hellos, reports, counts and heartbeats, and their ranges of sequences.

Judges nothing.
"""
