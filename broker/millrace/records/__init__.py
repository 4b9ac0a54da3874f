"""Kafka's record batch, format 2: what a log entry is, in bytes.

Knows the header, the CRC and the framing of records, and how one batch must follow another.
Does not know files, sockets, topics or schemas.
"""

from millrace.records.control import (
    CONTROL_KEY,
    MIN_CONTROL_BYTES,
    control_batch,
    control_batch_of_size,
    filler_after,
    filler_size,
)
from millrace.records.cursor import Cursor
from millrace.records.header import (
    CODEC_MASK,
    CONTROL_BIT,
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC,
    MIN_BATCH_BYTES,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    batch_crc,
    check_produced,
    split_batches,
)
from millrace.records.messages import Message, Record, build_batch, iter_records, read_varint

__all__ = [
    "CODEC_MASK",
    "CONTROL_BIT",
    "CONTROL_KEY",
    "CRC_START",
    "HEADER",
    "HEADER_BYTES",
    "LENGTH_OVERHEAD",
    "MAGIC",
    "MIN_BATCH_BYTES",
    "MIN_CONTROL_BYTES",
    "TIMESTAMP_TYPE_BIT",
    "TRANSACTIONAL_BIT",
    "BatchHeader",
    "Cursor",
    "Message",
    "Record",
    "batch_crc",
    "build_batch",
    "check_produced",
    "control_batch",
    "control_batch_of_size",
    "filler_after",
    "filler_size",
    "iter_records",
    "read_varint",
    "split_batches",
]
