"""Fetch, v4 to v11.

Waits until min_bytes are there or max_wait passes. Answers with file slices, never copies.
Left out: fetch sessions (always session 0), rack-aware reads, requests of follower replicas.
"""

from __future__ import annotations

from millrace.broker import Broker, Found
from millrace.broker.fetch import PartitionRead
from millrace.handlers.request import Request
from millrace.handlers.table import Api
from millrace.storage.file_slice import FileSlice
from millrace.wire.codec import decode
from millrace.wire.fetch import encode_partition, encode_response
from millrace.wire.messages import ApiKey, FetchRequest


def handle(broker: Broker, request: Request) -> None:
    """Read what is there, now or when there is enough."""
    version = request.api_version
    asked = decode(FetchRequest, ApiKey.FETCH, version, request.body)

    def answer(found: Found) -> None:
        if not request.client.closed:
            topics = [(topic, [_encode(version, read) for read in reads]) for topic, reads in found]
            request.answer(encode_response(version, topics))

    fetch = broker.fetch(asked, answer)
    if request.parts is None:
        request.abandon = fetch.abandon


def _encode(version: int, read: PartitionRead) -> tuple[bytes, FileSlice | None]:
    size = 0 if read.records is None else read.records.length
    head = encode_partition(version, read.index, read.error, read.high_watermark, read.log_start_offset, size)
    return head, read.records


FETCH = Api(key=ApiKey.FETCH, versions=frozenset(range(4, 12)), advertised=(4, 11), handle=handle)
