"""`millrace audit-check`: a producer's records and events, held against docs/audit-protocol.md.

It reads topics and decides about no window: the auditor does.
"""
