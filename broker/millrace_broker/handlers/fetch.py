"""Fetch, v4 to v17.

A fetch waits until min_bytes are available or max_wait passes. It is answered with file slices, never copies.
A refused topic is answered at once. When a fetch that waited is answered, the client's right to read is
checked again. From v13 on a fetch names a topic by its id: a topic that was deleted and recreated is not
mistaken for the topic that the client knew. Left out: fetch sessions (always session 0), rack-aware reads,
requests of follower replicas.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from millrace.errors import ErrorCode
from millrace.wire import fetch
from millrace.wire.codec import is_flexible
from millrace.wire.messages import ApiKey
from millrace.wire.primitives import INT32
from millrace_broker.handlers.table import Api, Services, close
from millrace_broker.handlers.topic_ids import TopicIds
from millrace_broker.partitions.broker import Broker
from millrace_broker.partitions.fetch import PartitionRead, Reads
from millrace_broker.security import rights
from millrace_broker.security.quotas import Kind
from millrace_broker.security.rights import Need, Operation, Refused, ResourceType
from millrace_broker.server.request import Request, throttle_ms


def _needs(asked: fetch.FetchRequest) -> list[Need]:
    return [Need(Operation.READ, rights.topic(name)) for name, _ in asked.topics if name or not asked.ids]


def _resolver() -> Callable[[Services, fetch.FetchRequest], fetch.FetchRequest]:
    ids = TopicIds()

    def resolve(services: Services, asked: fetch.FetchRequest) -> fetch.FetchRequest:
        """Return the request with names. An unknown id gets the empty name, which no topic has."""
        if not asked.ids:
            return asked
        cluster = services.broker.cluster
        names = [ids.name(cluster, topic_id) or "" for topic_id in asked.ids]
        wanted = [partitions for _, partitions in asked.topics]
        return asked._replace(topics=list(zip(names, wanted, strict=True)))

    return resolve


def _with_ids(
    broker: Broker, asked: fetch.FetchRequest, topics: Reads
) -> list[tuple[bytes, list[PartitionRead]]]:
    """Return the reads by the requested ids, with an error for a topic whose id has changed."""

    def checked(topic_id: bytes, name: str, read: PartitionRead) -> PartitionRead:
        if not read.error and broker.partition(name, read.number).topic_id.bytes == topic_id:
            return read
        unknown = not name or not read.error
        return PartitionRead(read.number, ErrorCode.UNKNOWN_TOPIC_ID) if unknown else read

    return [
        (topic_id, [checked(topic_id, name, read) for read in reads])
        for topic_id, (name, reads) in zip(asked.ids, topics, strict=True)
    ]


def _handle(services: Services, request: Request, asked: fetch.FetchRequest, refused: Refused) -> None:
    client = request.client
    version = None if client.access.unchecked else client.access.version

    def answer(topics: Reads) -> None:
        if client.closed:
            return
        now_refused = refused
        if version is not None and client.access.version != version:
            now_refused |= client.access.refused(_needs(asked))
        if now_refused:
            topics = _without(asked, topics, now_refused)
        named = _with_ids(services.broker, asked, topics) if asked.ids else topics
        for _, reads in named:
            for read in reads:
                if read.error:
                    request.failed(read.error)
        flexible = is_flexible(ApiKey.FETCH, request.api_version)
        parts = fetch.encode_response(request.api_version, named)
        if client.access.meter is not None:
            taken = sum(part.length for part in parts if not isinstance(part, bytes))
            if wait_ms := throttle_ms(client, Kind.READ, taken):
                assert isinstance(parts[0], bytes), "the throttle time stands in front"
                parts[0] = INT32.pack(wait_ms) + parts[0][INT32.size :]
        request.answer(parts, header=b"\0" if flexible else b"")

    wanted = asked
    if refused:
        topics = [topic for topic in asked.topics if rights.topic(topic[0]) not in refused]
        wanted = asked._replace(topics=topics, max_wait=0)
    waiting = services.broker.fetch(wanted, answer, partial(close, request))
    if request.parts is None:
        request.abandon = waiting.abandon


def _without(asked: fetch.FetchRequest, topics: Reads, refused: Refused) -> Reads:
    """Return the reads in the order of the request, with an error in place of each refused topic."""
    reads = iter([topic for topic in topics if rights.topic(topic[0]) not in refused])
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return [
        (name, [PartitionRead(number, code) for number, *_ in wanted])
        if rights.topic(name) in refused
        else next(reads)
        for name, wanted in asked.topics
    ]


FETCH = Api(
    key=ApiKey.FETCH,
    versions=range(4, 18),
    # Like v17, except for a tagged field of KRaft's replicas: kafka-replica-verification uses v18 without
    # asking.
    private_versions=range(18, 19),
    decode=lambda request: fetch.decode_request(
        request.api_version, request.body, max(fetch.MIN_ITEM_LIMIT, request.item_limit)
    ),
    resolve=_resolver(),
    needs=_needs,
    by_item=(ResourceType.TOPIC,),
    handle=_handle,
    refusal=lambda version, code, *_: fetch.encode_error(version, code),
)
