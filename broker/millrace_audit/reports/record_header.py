"""The audit header of a message whose value has none: a Kafka record header, read one message at a time.

    name     millrace.audit
    value    version 1 (1 byte), tag (4), instance (8), sequence (8), time (8), all big-endian

The tag is the CRC-32 of the topic's name. Programs such as Kafka Streams forward the headers of the messages
that they read: the tag of another topic shows that the header belongs to another message. The names of server
and service are not in the header: the instance's hello has them.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import NamedTuple

from millrace_audit.reports.counts import EARLIEST_MS

HEADER_NAME = "millrace.audit"
VERSION = 1
_VALUE = struct.Struct(">BIqqq")
VALUE_BYTES = _VALUE.size


class RecordHeader(NamedTuple):
    """Event time in ms, and instance and number of the sender."""

    time: int
    instance: int
    sequence: int


def topic_tag(topic: str) -> int:
    """Return the tag of the messages that are sent to a topic; a mirrored topic has the tag of its origin."""
    return zlib.crc32(topic.encode())


def encode_header(tag: int, instance: int, sequence: int, time_ms: int) -> bytes:
    """Return the value of the record header."""
    return _VALUE.pack(VERSION, tag, instance, sequence, time_ms)


def decode_header(value: bytes | None, tag: int) -> RecordHeader | None:
    """Return the content of a record header's value; None if the value is no audit header of that topic."""
    if value is None or len(value) != VALUE_BYTES:
        return None
    version, its_tag, instance, sequence, time = _VALUE.unpack(value)
    if version != VERSION or its_tag != tag or instance < 0 or sequence < 0 or time < EARLIEST_MS:
        return None
    return RecordHeader(time, instance, sequence)


def audit_header(headers: Iterable[tuple[str, bytes | None]], tag: int) -> RecordHeader | None:
    """Return the audit header among a record's headers. Only the first header with its name counts."""
    value = next((value for name, value in headers if name == HEADER_NAME), None)
    return decode_header(value, tag)
