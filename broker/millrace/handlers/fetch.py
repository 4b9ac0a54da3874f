"""Fetch, v4 to v11.

Waits until min_bytes are there or max_wait passes. Answers with file slices, never copies.
Left out: fetch sessions (always session 0), rack-aware reads, requests of follower replicas.
"""

from __future__ import annotations

from millrace.broker.fetch import Reads
from millrace.handlers.table import Api, Services
from millrace.server.request import Request
from millrace.wire import fetch
from millrace.wire.messages import ApiKey


def _serve(services: Services, request: Request) -> None:
    def answer(topics: Reads) -> None:
        if request.client.closed:
            return
        for _, reads in topics:
            for read in reads:
                if read.error:
                    request.failed(read.error)
        request.answer(fetch.encode_response(request.api_version, topics))

    wanted = fetch.decode_request(request.api_version, request.body)
    waiting = services.broker.fetch(wanted, answer, request.client.abort)
    if request.parts is None:
        request.abandon = waiting.abandon


FETCH = Api(key=ApiKey.FETCH, versions=range(4, 12), serve=_serve, refusal=fetch.encode_error)
