"""Metadata and ApiVersions: what a client asks first.

Metadata, v1 to v8 for clients and, unadvertised, v12 for Millrace's own: it tells topic ids.
A topic that is not there is created only if the request allows it, the broker is set to, and the name is
legal: a client is told at once that no topic can have it, and does not ask for ever. Leader epochs
are -1, so no client validates offsets by them. Left out: racks, authorized operations, v0.

ApiVersions, v0 to v3; the answer to any higher version is v0's with error 35 and the full list. Its response
header is the old one at every version: the client does not know yet what the broker speaks. Left out:
features, and what a client says about its software.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from functools import partial

from millrace.broker.broker import Broker
from millrace.broker.topic_changes import create_topic
from millrace.coordination.state import PartitionState, TopicState, check_topic_name
from millrace.errors import ErrorCode, InvalidTopic, TopicAlreadyExists
from millrace.handlers.table import Api, Services, send
from millrace.server.request import Request
from millrace.wire.codec import decode, encode, encode_error
from millrace.wire.messages import ApiKey, ApiVersionsResponse, MetadataRequest, MetadataResponse

log = logging.getLogger(__name__)
_OFFERED, _NEWER = range(4), range(4, 64)
"""Versions of ApiVersions."""
_CACHED_ANSWERS = 64
_CACHED_REQUEST_BYTES = 1024
"""A longer list of topics is a client's own; its answer is not kept."""


class Metadata:
    """Answers from the cluster's snapshot, encoded once per snapshot, version and list of topics."""

    def __init__(self) -> None:
        self._snapshot: tuple[object, object] = (None, None)
        self._answers: dict[tuple[int, bytes], bytes] = {}
        self._creating: set[str] = set()
        """Whoever waits for a topic asks again and again: it is created once."""

    def serve(self, services: Services, request: Request) -> None:
        """Answer with brokers and topics; a topic about to be created is LEADER_NOT_AVAILABLE."""
        broker, version = services.broker, request.api_version
        snapshot = (broker.cluster.brokers, broker.cluster.topics)
        if snapshot[0] is not self._snapshot[0] or snapshot[1] is not self._snapshot[1]:
            self._snapshot = snapshot
            self._answers.clear()
        key = (version, bytes(request.body))
        answer = self._answers.get(key)
        if answer is None:
            response = _describe(broker, decode(MetadataRequest, ApiKey.METADATA, *key))
            answer = encode(response, ApiKey.METADATA, version)
            created = self._create_missing(broker, response)
            keep = len(self._answers) < _CACHED_ANSWERS and len(key[1]) <= _CACHED_REQUEST_BYTES
            if keep and not created:
                self._answers[key] = answer
        send(request, answer)

    def _create_missing(self, broker: Broker, response: MetadataResponse) -> bool:
        """Begin to create what the response says is coming; True if there is anything."""
        names = {
            topic.name
            for topic in response.topics
            if topic.error_code == ErrorCode.LEADER_NOT_AVAILABLE and topic.name
        }
        for name in names - self._creating:
            self._create(broker, name)
        return bool(names)

    def _create(self, broker: Broker, name: str) -> None:
        def created(future: Future[None]) -> None:
            self._creating.discard(name)
            error = future.exception()
            if error is not None and not isinstance(error, TopicAlreadyExists):
                log.warning("cannot create a topic that a client asked for: %s", error)

        self._creating.add(name)
        broker.in_zookeeper_thread(lambda: create_topic(broker, name, -1, {}), created)


def _describe(broker: Broker, request: MetadataRequest) -> MetadataResponse:
    cluster = broker.cluster
    live = cluster.brokers
    if request.topics is None:
        topics = [_topic(topic, live.keys()) for topic in cluster.topics.values()]
    else:
        # Once each, so that a small request cannot ask for an answer of any size.
        wanted = dict.fromkeys(request.topics)
        topics = [_wanted(broker, topic, request.allow_auto_topic_creation) for topic in wanted]
    return MetadataResponse(
        brokers=tuple(
            MetadataResponse.Broker(node_id=number, host=address.host, port=address.port)
            for number, address in live.items()
        ),
        cluster_id=cluster.cluster_id,
        controller_id=min(live, default=-1),  # any broker creates topics; the lowest id is as good as any
        topics=tuple(topics),
    )


def _wanted(broker: Broker, wanted: MetadataRequest.Topic, may_create: bool) -> MetadataResponse.Topic:
    topics = broker.cluster.topics
    if wanted.name is None:
        by_id = {topic.topic_id: topic for topic in topics.values()}
        topic = by_id.get(wanted.topic_id) if wanted.topic_id is not None else None
    else:
        topic = topics.get(wanted.name)
    if topic is not None:
        return _topic(topic, broker.cluster.brokers.keys())
    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if wanted.name is not None:
        try:
            check_topic_name(wanted.name)
        except InvalidTopic as illegal:
            error = illegal.code
        else:
            if may_create and broker.config.auto_create_topics:
                error = ErrorCode.LEADER_NOT_AVAILABLE
    return MetadataResponse.Topic(error_code=error, name=wanted.name or "", topic_id=wanted.topic_id)


def _topic(topic: TopicState, live: Collection[int]) -> MetadataResponse.Topic:
    partitions = tuple(_partition(number, state, live) for number, state in topic.partitions.items())
    return MetadataResponse.Topic(
        error_code=0, name=topic.name, topic_id=topic.topic_id, partitions=partitions
    )


def _partition(number: int, state: PartitionState, live: Collection[int]) -> MetadataResponse.Topic.Partition:
    alive = state.leader in live
    return MetadataResponse.Topic.Partition(
        error_code=ErrorCode.NONE if alive else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=number,
        leader_id=state.leader if alive else -1,
        replica_nodes=state.replicas,
        isr_nodes=state.isr,
    )


def metadata() -> Api:
    """The API, with a cache of its own."""
    return Api(
        key=ApiKey.METADATA,
        versions=range(1, 9),
        private_versions=range(12, 13),
        serve=Metadata().serve,
        refusal=partial(encode_error, MetadataResponse, ApiKey.METADATA),
    )


def api_versions(apis: Sequence[Api]) -> Api:
    """The API that tells clients about `apis` and about itself."""
    offered = {api.key: api.versions for api in apis if api.versions} | {ApiKey.API_VERSIONS: _OFFERED}
    ranges = tuple(
        ApiVersionsResponse.ApiVersion(api_key=key, min_version=versions[0], max_version=versions[-1])
        for key, versions in sorted(offered.items())
    )

    def encoded(version: int, code: ErrorCode) -> bytes:
        return encode(ApiVersionsResponse(error_code=code, api_keys=ranges), ApiKey.API_VERSIONS, version)

    answers = {version: encoded(version, ErrorCode.NONE) for version in _OFFERED}
    newer = encoded(0, ErrorCode.UNSUPPORTED_VERSION)
    return Api(
        key=ApiKey.API_VERSIONS,
        versions=_OFFERED,
        private_versions=_NEWER,
        serve=lambda _, request: request.answer([answers.get(request.api_version, newer)]),
        refusal=partial(encode_error, ApiVersionsResponse, ApiKey.API_VERSIONS),
    )
