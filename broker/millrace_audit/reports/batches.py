"""Batches of the audit topics, which anybody may have written who may produce there. Knows no record."""

from __future__ import annotations

from typing import NamedTuple

from millrace.errors import CorruptMessage
from millrace.records import BatchHeader, iter_records

_MAX_PLAIN_BYTES = 64 << 20
"""Of a batch uncompressed: far more than a publisher puts into one, and nothing that memory cannot hold."""


class AuditMessage(NamedTuple):
    """A message of an audit topic."""

    key: bytes | None
    value: bytes
    offset: int


def messages_of(header: BatchHeader, batch: memoryview) -> list[AuditMessage]:
    """The messages of a batch; of one that cannot be taken apart one empty message in their place.

    Its CRC was right, so somebody has sent it like that, and it will never be readable.
    """
    try:
        return [
            AuditMessage(record.key, record.value or b"", record.offset)
            for record in iter_records(header, batch, _MAX_PLAIN_BYTES)
        ]
    except CorruptMessage:
        return [AuditMessage(None, b"", header.next_offset - 1)]
