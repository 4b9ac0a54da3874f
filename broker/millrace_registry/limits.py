"""Limits of what the registry takes at once; clients look here before they send."""

MAX_SCHEMA_BYTES = 1 << 20
MAX_BODY_BYTES = 3 * MAX_SCHEMA_BYTES
"""Largest body: a schema travels as a JSON string, whose escapes can take more room than its text."""
MAX_QUESTION_BYTES = MAX_SCHEMA_BYTES * 3 // 2
"""Largest body about one schema that registers nothing."""
MAX_APPLIED = 2000
"""Most schemas and levels in one application: it holds the write lock for about a millisecond for each."""
