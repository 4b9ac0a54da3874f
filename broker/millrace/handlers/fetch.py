"""Fetch, v4 to v11.

Waits until min_bytes are there or max_wait passes. Answers with file slices, never copies. A refused topic is
answered at once; whether the client may still read is asked again when a fetch that waited is answered.
Left out: fetch sessions (always session 0), rack-aware reads, requests of follower replicas.
"""

from __future__ import annotations

from millrace.broker.fetch import PartitionRead, Reads
from millrace.errors import ErrorCode
from millrace.handlers.table import Api, Services
from millrace.security import rights
from millrace.security.rights import Need, Operation, Refused, ResourceType
from millrace.server.request import Request
from millrace.wire import fetch
from millrace.wire.messages import ApiKey


def _needs(asked: fetch.FetchRequest) -> list[Need]:
    return [Need(Operation.READ, rights.topic(name)) for name, _ in asked.topics]


def _handle(services: Services, request: Request, asked: fetch.FetchRequest, refused: Refused) -> None:
    client, version = request.client, request.client.access.version

    def answer(topics: Reads) -> None:
        if client.closed:
            return
        now_refused = refused
        if client.access.version != version:
            now_refused |= client.access.refused(_needs(asked))
        if now_refused:
            topics = _without(asked, topics, now_refused)
        for _, reads in topics:
            for read in reads:
                if read.error:
                    request.failed(read.error)
        request.answer(fetch.encode_response(request.api_version, topics))

    wanted = asked
    if refused:
        topics = [topic for topic in asked.topics if rights.topic(topic[0]) not in refused]
        wanted = asked._replace(topics=topics, max_wait=0)
    waiting = services.broker.fetch(wanted, answer, client.abort)
    if request.parts is None:
        request.abandon = waiting.abandon


def _without(asked: fetch.FetchRequest, topics: Reads, refused: Refused) -> Reads:
    """What was read, in the order of the request, with an error in place of each refused topic."""
    reads = iter([topic for topic in topics if rights.topic(topic[0]) not in refused])
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return [
        (name, [PartitionRead(number, code) for number, _, _ in wanted])
        if rights.topic(name) in refused
        else next(reads)
        for name, wanted in asked.topics
    ]


FETCH = Api(
    key=ApiKey.FETCH,
    versions=range(4, 12),
    decode=lambda request: fetch.decode_request(request.api_version, request.body),
    needs=_needs,
    by_item=(ResourceType.TOPIC,),
    handle=_handle,
    refusal=lambda version, code, _: fetch.encode_error(version, code),
)
