"""DescribeCluster v0 to v2, DescribeTopicPartitions v0, ListConfigResources v0 and v1, ListTransactions v0 to
v2: lists for tools; and UnregisterBroker v0, which is refused.

As in Metadata, a broker's address is its address on the client's listener, a client sees the topics that it
may describe, and the controller is the live broker with the lowest id. DescribeTopicPartitions (KIP-966)
answers in parts: a limited number of partitions, and a cursor for the next part. There are no transactions to
list. A broker is registered as long as its ZooKeeper session: no client can end that. Left out: controllers
as endpoints, fenced brokers, loggers, client metrics and groups as resources.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice

from millrace.errors import BrokerNotRegistered, ErrorCode, InvalidRequest, UnsupportedVersion
from millrace.wire import admin_messages as messages
from millrace.wire.fields import ApiMessage, array, i8, i16, i32, i64, string
from millrace.wire.messages import NO_OPERATIONS, ApiKey
from millrace.zookeeper.topic_state import TopicState
from millrace_broker.handlers.metadata import live_brokers, partition_fields
from millrace_broker.handlers.table import Call, serves
from millrace_broker.security import rights
from millrace_broker.security.acls import authorized_operations
from millrace_broker.security.rights import CLUSTER, Need, Operation, ResourceType

_BROKERS = 1
MAX_DESCRIBED_PARTITIONS = 2_000
"""Most partitions of one answer, as in Kafka."""
_KINDS = messages.ResourceType
_Topic = messages.DescribeTopicPartitionsResponse.Topic


@serves(range(3), messages.DescribeClusterRequest, messages.DescribeClusterResponse, needs=lambda _: ())
def describe_cluster(call: Call[messages.DescribeClusterRequest]) -> messages.DescribeClusterResponse:
    if call.request.endpoint_type != _BROKERS:
        return messages.DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="this is a broker: it does not describe controllers",
            endpoint_type=_BROKERS,
        )
    cluster = call.broker.cluster
    live = live_brokers(cluster, call.received.client.listener_name)
    return messages.DescribeClusterResponse(
        cluster_id=cluster.cluster_id,
        controller_id=min(live, default=-1),
        brokers=tuple(
            messages.DescribeClusterResponse.Broker(broker_id=number, **broker._asdict())
            for number, broker in live.items()
        ),
        cluster_authorized_operations=authorized_operations(call.received.client.access, CLUSTER)
        if call.request.include_cluster_authorized_operations
        else NO_OPERATIONS,
    )


class ListConfigResourcesRequest(ApiMessage, request_of=ApiKey.LIST_CONFIG_RESOURCES):
    # Version 0 is KIP-714's, version 1 is KIP-1142's.
    resource_types: tuple[int, ...] = array(i8(), since=1, default=())  # empty: every type


class ListConfigResourcesResponse(ApiMessage, response_of=ApiKey.LIST_CONFIG_RESOURCES):
    class Resource(ApiMessage):
        resource_name: str = string()
        resource_type: int = i8(since=1, default=_KINDS.CLIENT_METRICS)

    throttle_time: int = i32(default=0)
    error_code: int = i16(default=0)
    config_resources: tuple[Resource, ...] = array(Resource, default=())


@serves(
    range(2),
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    needs=lambda _: [Need(Operation.DESCRIBE_CONFIGS, CLUSTER)],
)
def list_config_resources(call: Call[ListConfigResourcesRequest]) -> ListConfigResourcesResponse:
    kinds = set(call.request.resource_types) or set(_KINDS)
    if call.received.api_version == 0:
        kinds = {_KINDS.CLIENT_METRICS}
    if unknown := kinds - set(_KINDS):
        raise UnsupportedVersion(f"no resources have the type {min(unknown)}")
    names: list[tuple[str, int]] = []
    if _KINDS.TOPIC in kinds:
        names += [(name, _KINDS.TOPIC) for name in sorted(call.broker.cluster.topics)]
    for kind in {_KINDS.BROKER} & kinds:
        names += [(str(number), kind) for number in sorted(call.broker.cluster.brokers)]
    Resource = ListConfigResourcesResponse.Resource
    return ListConfigResourcesResponse(
        config_resources=tuple(Resource(resource_name=name, resource_type=kind) for name, kind in names)
    )


@serves(
    range(1),
    messages.DescribeTopicPartitionsRequest,
    messages.DescribeTopicPartitionsResponse,
    needs=lambda asked: [Need(Operation.DESCRIBE, rights.topic(topic.name)) for topic in asked.topics],
    by_item=(ResourceType.TOPIC,),
    lists=True,
)
def describe_topic_partitions(
    call: Call[messages.DescribeTopicPartitionsRequest],
) -> messages.DescribeTopicPartitionsResponse:
    request, there = call.request, call.broker.cluster.topics
    Cursor = messages.DescribeTopicPartitionsResponse.Cursor
    named = {topic.name for topic in request.topics}
    names = sorted(named or call.only(Operation.DESCRIBE, ResourceType.TOPIC, there))
    if named:
        call.only(Operation.DESCRIBE, ResourceType.TOPIC, ())
    first = 0
    if request.cursor is not None:
        if request.cursor.partition_index < 0:
            raise InvalidRequest("a cursor's partition is negative")
        names = [name for name in names if name >= request.cursor.topic_name]
        first = request.cursor.partition_index if names[:1] == [request.cursor.topic_name] else 0
    room = max(1, min(request.response_partition_limit, MAX_DESCRIBED_PARTITIONS))
    live = live_brokers(call.broker.cluster, call.received.client.listener_name)
    access = call.received.client.access
    topics, cursor = [], None
    for name in names:
        start, first = first, 0
        if room == 0:
            cursor = Cursor(topic_name=name, partition_index=0)
            break
        if rights.topic(name) in call.refused:
            topics.append(_Topic(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name))
            continue
        if (topic := there.get(name)) is None:
            topics.append(_Topic(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name))
            continue
        described = list(islice(_partitions(topic, live, start), room + 1))
        partitions = tuple(described[:room])
        topics.append(
            _Topic(
                error_code=ErrorCode.NONE,
                name=name,
                topic_id=topic.topic_id,
                partitions=partitions,
                topic_authorized_operations=authorized_operations(access, rights.topic(name)),
            )
        )
        if len(described) > room:
            cursor = Cursor(topic_name=name, partition_index=described[room].partition_index)
            break
        room -= len(described)
    return messages.DescribeTopicPartitionsResponse(topics=tuple(topics), next_cursor=cursor)


def _partitions(
    topic: TopicState, live: Collection[int], first: int
) -> Iterator[messages.DescribeTopicPartitionsResponse.Topic.Partition]:
    for number in sorted(topic.partitions):
        if number < first:
            continue
        state = topic.partitions[number]
        fields = partition_fields(number, state, live)
        # Java does not take null, which the schema allows.
        yield _Topic.Partition(**fields, eligible_leader_replicas=tuple(state.eligible), last_known_elr=())


_TRANSACTION_STATES = frozenset(
    (
        *("Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"),
        *("PrepareEpochFence", "Empty", "Dead"),
    )
)


class ListTransactionsRequest(ApiMessage, request_of=ApiKey.LIST_TRANSACTIONS):  # KIP-664
    state_filters: tuple[str, ...] = array(string(), default=())
    producer_id_filters: tuple[int, ...] = array(i64(), default=())
    duration_filter: int = i64(since=1, default=-1)
    transactional_id_pattern: str | None = string(since=2, null_since=2, default=None)


class ListTransactionsResponse(ApiMessage, response_of=ApiKey.LIST_TRANSACTIONS):
    class TransactionState(ApiMessage):
        transactional_id: str = string()
        producer_id: int = i64()
        transaction_state: str = string()

    throttle_time: int = i32(default=0)
    error_code: int = i16(default=0)
    unknown_state_filters: tuple[str, ...] = array(string(), default=())
    transaction_states: tuple[TransactionState, ...] = array(TransactionState, default=())


@serves(range(3), ListTransactionsRequest, ListTransactionsResponse, needs=lambda _: ())
def list_transactions(call: Call[ListTransactionsRequest]) -> ListTransactionsResponse:
    unknown = dict.fromkeys(state for state in call.request.state_filters if state not in _TRANSACTION_STATES)
    return ListTransactionsResponse(unknown_state_filters=tuple(unknown))


class UnregisterBrokerRequest(ApiMessage, request_of=ApiKey.UNREGISTER_BROKER):  # KIP-631
    broker_id: int = i32()


class UnregisterBrokerResponse(ApiMessage, response_of=ApiKey.UNREGISTER_BROKER):
    throttle_time: int = i32(default=0)
    error_code: int = i16(default=0)
    error_message: str | None = string(null_since=0, default=None)


@serves(
    range(1),
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
    needs=lambda _: [Need(Operation.ALTER, CLUSTER)],
)
def unregister_broker(call: Call[UnregisterBrokerRequest]) -> UnregisterBrokerResponse:
    number = call.request.broker_id
    if number in call.broker.cluster.brokers:
        raise InvalidRequest(f"broker {number} is registered as long as it runs: stop it")
    raise BrokerNotRegistered(f"no broker {number} is registered: a broker that stops is removed by itself")
