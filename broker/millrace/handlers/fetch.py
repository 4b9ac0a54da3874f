"""Fetch, v4 to v11.

Waits until min_bytes are there or max_wait passes. Answers with file slices, never copies.
Left out: fetch sessions (always session 0), rack-aware reads, requests of follower replicas.
"""

from __future__ import annotations

from millrace.broker.broker import Broker
from millrace.broker.fetch import Reads
from millrace.handlers.table import Api
from millrace.server.request import Request
from millrace.wire.fetch import decode_request, encode_response
from millrace.wire.messages import ApiKey


def serve(broker: Broker, request: Request) -> None:
    """Read what is there, now or when there is enough."""
    version = request.api_version
    asked = decode_request(version, request.body)

    def answer(topics: Reads) -> None:
        if request.client.closed:
            return
        for _, reads in topics:
            for read in reads:
                if read.error:
                    request.failed(read.error)
        request.answer(encode_response(version, topics))

    fetch = broker.fetch(asked, answer, request.client.abort)
    if request.parts is None:
        request.abandon = fetch.abandon


FETCH = Api(key=ApiKey.FETCH, versions=range(4, 12), serve=serve)
