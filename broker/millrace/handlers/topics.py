"""CreateTopics v2 to v4, DeleteTopics v1 to v3, CreatePartitions v0 and v1.

Any broker takes them; ZooKeeper decides who was first, and each broker deletes its own logs when it sees a
topic gone. Partitions go round the live brokers, new ones also to those that joined later; leaders of the
others do not move. A mirrored topic gets no partitions: its own stand for those of its origins.
Left out: replication (one replica, so a factor of 1 or -1) and manual assignments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from millrace.broker.broker import Broker
from millrace.broker.topic_changes import add_partitions, create_topic, delete_topic
from millrace.errors import (
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    UnknownTopicOrPartition,
)
from millrace.handlers.table import Call, message_api, outcome_of
from millrace.wire.admin_messages import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from millrace.wire.messages import (
    ApiKey,
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)

R = TypeVar("R")
T = TypeVar("T", CreatableTopic, CreatePartitionsTopic)


def create_topics(call: Call[CreateTopicsRequest]) -> CreateTopicsResponse:
    """Create the topics one after the other."""
    request = call.request

    def create(topic: CreatableTopic) -> None:
        if topic.replication_factor not in (-1, 1):
            raise InvalidReplicationFactor("a partition has one replica")
        create_topic(
            call.broker,
            topic.name,
            topic.num_partitions,
            {config.name: config.value for config in topic.configs if config.value is not None},
            validate_only=request.validate_only,
            timeout_s=request.timeout / 1000,
        )

    results = _change_each(request.topics, create, "creating topic", CreatableTopicResult)
    return CreateTopicsResponse(topics=results)


def create_partitions(call: Call[CreatePartitionsRequest]) -> CreatePartitionsResponse:
    """Give the topics their partitions, one after the other."""
    request = call.request

    def add(topic: CreatePartitionsTopic) -> None:
        add_partitions(
            call.broker,
            topic.name,
            topic.count,
            validate_only=request.validate_only,
            timeout_s=request.timeout / 1000,
        )

    results = _change_each(request.topics, add, "adding partitions to", CreatePartitionsTopicResult)
    return CreatePartitionsResponse(results=results)


def _change_each(
    topics: Sequence[T], change: Callable[[T], None], what: str, result: Callable[..., R]
) -> tuple[R, ...]:
    """Do `change` for each topic that is named; of each a `result` that says what became of it."""
    times = Counter(topic.name for topic in topics)

    def attempt(topic: T) -> None:
        if times[topic.name] > 1:
            raise InvalidRequest(f"topic {topic.name} is named {times[topic.name]} times")
        if topic.assignments:
            raise InvalidReplicaAssignment("partitions are placed by the brokers")
        change(topic)

    def outcome(topic: T) -> R:
        code, reason, _ = outcome_of(partial(attempt, topic), f"{what} {topic.name}")
        return result(name=topic.name, error_code=code, error_message=reason)

    return tuple(map(outcome, {topic.name: topic for topic in topics}.values()))


def delete_topics(call: Call[DeleteTopicsRequest]) -> DeleteTopicsResponse:
    """Delete the topics one after the other; those that are not there cost one look for all."""
    names = dict.fromkeys(call.request.topic_names)
    there = call.broker.cluster.topic_names() if len(names) > 1 else names

    def delete(name: str) -> None:
        if name not in there:
            raise UnknownTopicOrPartition(f"no topic {name}")
        delete_topic(call.broker, name)

    codes = {name: outcome_of(partial(delete, name), f"deleting topic {name}")[0] for name in names}
    return DeleteTopicsResponse(
        responses=tuple(DeletableTopicResult(name=name, error_code=code) for name, code in codes.items())
    )


TOPIC_APIS = [
    message_api(
        ApiKey.CREATE_TOPICS,
        range(2, 5),
        CreateTopicsRequest,
        create_topics,
        thread=Broker.in_zookeeper_thread,
    ),
    message_api(
        ApiKey.DELETE_TOPICS,
        range(1, 4),
        DeleteTopicsRequest,
        delete_topics,
        thread=Broker.in_zookeeper_thread,
    ),
    message_api(
        ApiKey.CREATE_PARTITIONS,
        range(2),
        CreatePartitionsRequest,
        create_partitions,
        thread=Broker.in_zookeeper_thread,
    ),
]
