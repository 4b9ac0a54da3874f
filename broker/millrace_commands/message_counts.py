"""Counts of the messages between two offsets, and the offset of the last N messages, from batch headers.

On Millrace an offset is a byte position, so a difference of offsets is no count. It works with Apache Kafka
as well. The count of a range that is too large to read is estimated from its beginning.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from millrace.client.cluster_client import ClusterClient
from millrace.client.errors import raise_error
from millrace.errors import BrokerError, ErrorCode
from millrace.records import BatchHeader
from millrace.records.header import split_batches

COUNTED_BYTES = 1 << 20
"""Most bytes read of one partition to count a lag. A larger lag is estimated."""
_GROWTH = 4
_FETCH_BYTES = 1 << 20
_MAX_WAIT_MS = 500


class MessageCount(NamedTuple):
    """A number of messages, counted or estimated."""

    messages: int
    exact: bool
    """False for an estimate from the messages at the beginning."""


def count_messages(
    client: ClusterClient, topic: str, partition: int, first: int, end: int, most: int = COUNTED_BYTES
) -> MessageCount:
    """Count the messages from `first` up to the offset `end`.

    Raise BrokerError or TryAgain when they cannot be read.
    """
    counted, size = 0, 0
    for header in _headers(client, topic, partition, first, end):
        if size >= most:
            # The offsets up to here are bytes on Millrace and messages on Apache Kafka, and so are the later
            # ones.
            return MessageCount(round(counted * (end - first) / (header.base_offset - first)), exact=False)
        # In the batch that holds the first offset some messages may lie before that offset.
        counted += max(0, header.records_count - max(0, first - header.base_offset))
        size += header.size
    return MessageCount(counted, exact=True)


def offset_of_last(client: ClusterClient, topic: str, partition: int, count: int) -> int:
    """Return the offset of the `count`-th last message of a partition, or of its first remaining message."""
    start, end = client.bounds(topic, partition)
    back = count
    while True:
        first = max(start, end - back)
        headers = list(_headers(client, topic, partition, first, end))
        surplus = sum(header.records_count for header in headers) - count
        if surplus >= 0 or first == start:
            break
        back *= _GROWTH
    for header in headers:
        if surplus < header.records_count:
            return max(start, header.base_offset + max(0, surplus))
        surplus -= header.records_count
    return end


def _headers(
    client: ClusterClient, topic: str, partition: int, first: int, end: int
) -> Iterator[BatchHeader]:
    """Yield the headers of data batches from the one that holds the offset `first` up to the offset `end`."""
    while first < end:
        part = client.fetch(topic, {partition: first}, max_bytes=_FETCH_BYTES, max_wait_ms=_MAX_WAIT_MS)[
            partition
        ]
        if part.error == ErrorCode.OFFSET_OUT_OF_RANGE and first < part.log_start_offset:
            first = part.log_start_offset
            continue
        raise_error(part.error, f"{topic}-{partition}")
        before = first
        for header, _ in split_batches(part.records):
            if header.base_offset >= end:
                return
            first = max(first, header.next_offset)
            if not header.is_control:
                yield header
        if first == before:
            raise BrokerError(f"{topic}-{partition} gives nothing at offset {first}, below its end {end}")
