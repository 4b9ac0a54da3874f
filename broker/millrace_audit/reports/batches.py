"""Batches of the audit topics, which anybody may have written who may produce there. Knows no record."""

from __future__ import annotations

from typing import NamedTuple

from millrace.errors import CorruptMessage
from millrace.records import BatchHeader, iter_records

_MAX_PLAIN_BYTES = 9 << 20
"""Of a batch uncompressed: more than a publisher may put into one."""
_MOST_PACKED, _ALWAYS_PLAIN_BYTES = 100, 256 << 10
"""So many times its size a batch may unpack to, or so many bytes: what packs better says nothing."""


class AuditMessage(NamedTuple):
    """A message of an audit topic."""

    key: bytes | None
    value: bytes
    offset: int


def messages_of(header: BatchHeader, batch: memoryview | bytes) -> list[AuditMessage]:
    """The messages of a batch; of one that cannot be taken apart one empty message in their place.

    Its CRC was right, so somebody has sent it like that, and it will never be readable.
    """
    limit = min(_MAX_PLAIN_BYTES, max(_ALWAYS_PLAIN_BYTES, _MOST_PACKED * len(batch)))
    try:
        return [
            AuditMessage(record.key, record.value or b"", record.offset)
            for record in iter_records(header, batch, limit)
        ]
    except CorruptMessage:
        return [AuditMessage(None, b"", header.next_offset - 1)]
