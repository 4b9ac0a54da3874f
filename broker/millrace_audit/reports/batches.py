"""Batches of the audit topics: any client with the right to produce there may have written them.

The audit records in them are not read here.
"""

from __future__ import annotations

from typing import NamedTuple

from millrace.errors import CorruptMessage
from millrace.records import BatchHeader, iter_records

_MAX_PLAIN_BYTES = 9 << 20
"""Largest batch, uncompressed: larger than any batch of a publisher."""
_MOST_PACKED, _ALWAYS_PLAIN_BYTES = 100, 256 << 10
"""Ratio by which a batch may grow when it is decompressed, and the size that is allowed at any ratio."""


class AuditMessage(NamedTuple):
    """A message of an audit topic."""

    key: bytes | None
    value: bytes
    offset: int


def messages_of(header: BatchHeader, batch: memoryview | bytes) -> list[AuditMessage]:
    """Return the messages of a batch; for an unreadable batch, one empty message.

    The CRC of an unreadable batch was right: a client sent it like that, and it will never become readable.
    """
    limit = min(_MAX_PLAIN_BYTES, max(_ALWAYS_PLAIN_BYTES, _MOST_PACKED * len(batch)))
    try:
        return [
            AuditMessage(record.key, record.value or b"", record.offset)
            for record in iter_records(header, batch, limit)
        ]
    except CorruptMessage:
        return [AuditMessage(None, b"", header.next_offset - 1)]
