"""Metadata and ApiVersions: the first requests of a client.

Metadata, v0 to v13: from v10 on it states topic ids and takes them in requests (KIP-516). A broker's address
is its address on the client's listener; a broker without that listener counts as unavailable. A missing topic
is created only if the request and the broker's settings allow it and its name is legal. A client learns at
once that a name is illegal, and does not retry for ever. A client without the right to describe a topic gets
the same answer whether the topic exists or not; a list of all topics holds the topics that it may describe.
Its rights to the topics and to the cluster are stated on request (KIP-430).

ApiVersions, v0 to v4; the answer to any higher version is v0's with error 35 and the full list. Its response
header is the old header at every version: the client does not know yet which versions the broker supports.
Left out: features, and the client's software name.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, NamedTuple

from millrace.errors import ErrorCode, InvalidTopic, TopicAlreadyExists
from millrace.topic_names import check_topic_name
from millrace.wire.codec import decode_request, encode, encode_error
from millrace.wire.fields import replace
from millrace.wire.messages import (
    NO_OPERATIONS,
    ApiKey,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
)
from millrace.wire.primitives import MIN_ITEM_LIMIT
from millrace.zookeeper.topic_state import PartitionState, TopicState
from millrace_broker.coordination.cluster import Cluster
from millrace_broker.handlers.table import Api, Services, send, write_down
from millrace_broker.handlers.topic_ids import TopicIds
from millrace_broker.mailbox import outcome
from millrace_broker.partitions.broker import Broker
from millrace_broker.partitions.topic_changes import create_topic
from millrace_broker.security import rights
from millrace_broker.security.acls import authorized_operations
from millrace_broker.security.rights import (
    CLUSTER,
    NOTHING_REFUSED,
    Access,
    Need,
    Operation,
    Refused,
    ResourceType,
    open_to_all,
)
from millrace_broker.server.request import Request

logger = logging.getLogger("millrace.handlers.metadata")
_OFFERED, _NEWER = range(5), range(5, 64)
"""Versions of ApiVersions that are offered, and newer versions."""
_CACHED_ANSWERS = 64
_CACHED_REQUEST_BYTES = 1024
"""Size of a request up to which its answer is kept: a longer list of topics is used by one client only."""


class _EncodedTopic(NamedTuple):
    """An encoded topic, valid as long as the topic and the live brokers stay the same."""

    topic: TopicState
    live: Collection[int]
    encoded: bytes


class Metadata:
    """Answers from the cluster's snapshot, encoded once for all clients with the same rights.

    A topic is encoded again only when it, or the list of brokers, has changed: otherwise, with thousands of
    partitions, a change of one of them would delay the loop at each client's request.

    An answer is valid for one snapshot of cluster and rights, for one version and list of topics, and for
    clients of one listener; if rights apply, only for one principal at one host.
    """

    def __init__(self) -> None:
        self._snapshot: tuple[object, object, int] = (None, None, 0)
        self._answers: dict[tuple[int, bytes, str, str, str], bytes] = {}
        self._topics: dict[tuple[int, str, int, str], _EncodedTopic] = {}
        """Encoded topics by version, listener, authorized operations and name."""
        self._ids = TopicIds()
        self._creating: set[str] = set()
        """Topics that are being created: clients repeat their request while they wait, but a topic is created
        once."""

    def handle(self, services: Services, request: Request, asked: MetadataRequest, refused: Refused) -> None:
        """Answer with brokers and topics; a topic about to be created is LEADER_NOT_AVAILABLE."""
        broker, version, access = services.broker, request.api_version, request.client.access
        brokers, topics, rights_version = self._snapshot
        cluster = broker.cluster
        if brokers is not cluster.brokers or topics is not cluster.topics or rights_version != access.version:
            self._snapshot = (cluster.brokers, cluster.topics, access.version)
            self._answers.clear()
            if topics is not cluster.topics:
                self._topics = {key: one for key, one in self._topics.items() if key[-1] in cluster.topics}
        identity = ("", "") if access.everything else (access.principal, access.host)
        key = (version, bytes(request.body), request.client.listener_name, *identity)
        answer = self._answers.get(key)
        if answer is None:
            response = self._describe(broker, asked, request, refused)
            answer = encode(response, ApiKey.METADATA, version)
            created = self._create_missing(broker, response, request)
            keep = len(self._answers) < _CACHED_ANSWERS and len(key[1]) <= _CACHED_REQUEST_BYTES
            if keep and not created:
                self._answers[key] = answer
        send(request, answer)

    def _describe(
        self, broker: Broker, asked: MetadataRequest, request: Request, refused: Refused
    ) -> MetadataResponse:
        """Return the response; its existing topics are encoded already."""
        cluster, listener, access = broker.cluster, request.client.listener_name, request.client.access
        live = live_brokers(cluster, listener)
        topics: list[Any]
        if asked.topics is None or (request.api_version == 0 and not asked.topics):
            shown: Iterable[TopicState] = cluster.topics.values()
            if not access.everything:
                shown = [topic for topic in shown if access.allows(_may_describe(topic.name))]
            topics = [self._encoded(topic, live.keys(), request, asked) for topic in shown]
        else:
            topics = []
            # Once each, so that a small request cannot cause an answer of any size.
            for wanted in dict.fromkeys(asked.topics):
                if wanted.name is not None and rights.topic(wanted.name) in refused:
                    topics.append(_unauthorized(wanted.name))
                elif (topic := self._topic(broker, wanted, access)) is not None:
                    topics.append(self._encoded(topic, live.keys(), request, asked))
                else:
                    topics.append(_missing(broker, wanted, asked.allow_auto_topic_creation, access))
        return MetadataResponse(
            brokers=tuple(
                MetadataResponse.Broker(node_id=number, **broker._asdict()) for number, broker in live.items()
            ),
            cluster_id=cluster.cluster_id,
            controller_id=min(live, default=-1),  # any broker creates topics; the lowest id is as good as any
            topics=tuple(topics),
            cluster_authorized_operations=authorized_operations(access, CLUSTER)
            if asked.include_cluster_authorized_operations
            else NO_OPERATIONS,
        )

    def _topic(self, broker: Broker, wanted: MetadataRequest.Topic, access: Access) -> TopicState | None:
        """Return the requested topic, by name or by id, if it exists and the client may see it."""
        topics = broker.cluster.topics
        if wanted.name is not None:
            return topics.get(wanted.name)
        name = None if wanted.topic_id is None else self._ids.name(broker.cluster, wanted.topic_id.bytes)
        if name is None or not access.allows(_may_describe(name)):
            return None  # an id must not reveal a name
        topic = topics.get(name)  # the name may belong to another topic by now
        return topic if topic is not None and topic.topic_id == wanted.topic_id else None

    def _encoded(
        self, topic: TopicState, live: Collection[int], request: Request, asked: MetadataRequest
    ) -> bytes:
        version, listener = request.api_version, request.client.listener_name
        operations = NO_OPERATIONS
        if asked.include_topic_authorized_operations:
            operations = authorized_operations(request.client.access, rights.topic(topic.name))
        kept = self._topics.get((version, listener, operations, topic.name))
        if kept is None or kept.topic is not topic or kept.live != live:
            encoded = encode(_described(topic, live, operations), ApiKey.METADATA, version)
            kept = _EncodedTopic(topic, frozenset(live), encoded)
            self._topics[version, listener, operations, topic.name] = kept
        return kept.encoded

    def _create_missing(self, broker: Broker, response: MetadataResponse, request: Request) -> bool:
        """Begin to create the topics that the response announces. Return True if there are any."""
        names = {
            topic.name
            for topic in response.topics
            if not isinstance(topic, bytes)
            if topic.error_code == ErrorCode.LEADER_NOT_AVAILABLE and topic.name
        }
        for name in names - self._creating:
            write_down(request, [rights.may_create(name)], NOTHING_REFUSED)
            broker.mailbox.begin(self._create(broker, name))
        return bool(names)

    async def _create(self, broker: Broker, name: str) -> None:
        self._creating.add(name)
        try:
            with suppress(TopicAlreadyExists):
                await outcome(broker.in_zookeeper_thread(lambda: create_topic(broker, name, -1, {})))
                broker.apply(name)
        except Exception as error:
            logger.warning("cannot create a topic that a client asked for: %s", error)
        self._creating.discard(name)


class LiveBroker(NamedTuple):
    """A broker's address for clients of one listener, and its rack if it has one."""

    host: str
    port: int
    rack: str | None


def live_brokers(cluster: Cluster, listener: str) -> dict[int, LiveBroker]:
    """Return the brokers with their addresses on a listener. Brokers without it count as unavailable."""
    return {
        number: LiveBroker(*address, broker.rack or None)
        for number, broker in cluster.brokers.items()
        if (address := broker.at(listener)) is not None
    }


def _decode(request: Request) -> MetadataRequest:
    """Return the decoded request, from a cache: clients send the same short request repeatedly."""
    if len(request.body) <= _CACHED_REQUEST_BYTES:
        return _decode_short(request.api_version, bytes(request.body))
    return _decode_any(request.api_version, request.body, request.item_limit)


@lru_cache(maxsize=_CACHED_ANSWERS)
def _decode_short(version: int, body: bytes) -> MetadataRequest:
    return _decode_any(version, body, MIN_ITEM_LIMIT)


def _decode_any(version: int, body: bytes | memoryview, item_limit: int) -> MetadataRequest:
    """Return the request. Drop the name of a topic that has an id: Java's AdminClient sends "" with an id."""
    asked = decode_request(MetadataRequest, ApiKey.METADATA, version, body, item_limit)
    named = asked.topics or ()
    if all(topic.topic_id is None for topic in named):
        return asked
    topics = tuple(topic if topic.topic_id is None else replace(topic, name=None) for topic in named)
    return replace(asked, topics=topics)


def _needs(request: MetadataRequest) -> list[Need]:
    named = request.topics or ()
    return [_may_describe(topic.name) for topic in named if topic.name is not None]


def _may_describe(name: str) -> Need:
    return Need(Operation.DESCRIBE, rights.topic(name))


def _unauthorized(name: str) -> MetadataResponse.Topic:
    return MetadataResponse.Topic(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name)


def _missing(
    broker: Broker, wanted: MetadataRequest.Topic, may_create: bool, access: Access
) -> MetadataResponse.Topic:
    error = ErrorCode.UNKNOWN_TOPIC_ID
    if wanted.name is not None:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        try:
            check_topic_name(wanted.name)
        except InvalidTopic as illegal:
            error = illegal.code
        else:
            if may_create and broker.config.auto_create_topics:
                if not access.allows(rights.may_create(wanted.name)):
                    return _unauthorized(wanted.name)
                error = ErrorCode.LEADER_NOT_AVAILABLE
    return MetadataResponse.Topic(error_code=error, name=wanted.name or "", topic_id=wanted.topic_id)


def _described(topic: TopicState, live: Collection[int], operations: int) -> MetadataResponse.Topic:
    Partition = MetadataResponse.Topic.Partition
    partitions = tuple(
        Partition(**partition_fields(number, state, live)) for number, state in topic.partitions.items()
    )
    return MetadataResponse.Topic(
        error_code=0,
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=partitions,
        topic_authorized_operations=operations,
    )


def partition_fields(number: int, state: PartitionState, live: Collection[int]) -> dict[str, Any]:
    """Return the fields of a partition in every answer, for clients that reach the brokers in `live`."""
    alive = state.leader in live
    return {
        "error_code": ErrorCode.NONE if alive else ErrorCode.LEADER_NOT_AVAILABLE,
        "partition_index": number,
        "leader_id": state.leader if alive else -1,
        "leader_epoch": state.leader_epoch,
        "replica_nodes": state.replicas,
        "isr_nodes": tuple(state.isr),
        "offline_replicas": tuple(broker for broker in state.replicas if broker not in live),
    }


def metadata() -> Api[MetadataRequest]:
    return Api(
        key=ApiKey.METADATA,
        versions=range(14),
        decode=_decode,
        needs=_needs,
        by_item=(ResourceType.TOPIC,),
        handle=Metadata().handle,
        refusal=partial(encode_error, MetadataResponse, ApiKey.METADATA),
    )


def api_versions(apis: Sequence[Api[Any]]) -> Api[int]:
    """Return the API that lists `apis` and itself to clients."""
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
        decode=lambda request: request.api_version,  # the client's software name is not read
        needs=open_to_all,
        handle=lambda _, request, version, _refused: request.answer([answers.get(version, newer)]),
        refusal=partial(encode_error, ApiVersionsResponse, ApiKey.API_VERSIONS),
    )
