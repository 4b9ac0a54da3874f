"""Limits of the registry's requests; clients check them before they send."""

MAX_SCHEMA_BYTES = 1 << 20
MAX_BODY_BYTES = 3 * MAX_SCHEMA_BYTES
"""Largest body: a schema is sent as a JSON string, whose escapes can make it longer than its text."""
MAX_QUESTION_BYTES = MAX_SCHEMA_BYTES * 3 // 2
"""Largest body of a request about one schema that registers nothing."""
MAX_APPLIED = 2000
"""Most schemas and levels in one `/apply`: the write lock is held about a millisecond for each."""
