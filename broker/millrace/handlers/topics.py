"""CreateTopics v2 to v4, DeleteTopics v1 to v3, CreatePartitions v0 and v1, DescribeLogDirs v1.

Any broker takes changes; ZooKeeper decides who was first, and each broker deletes its own logs when it sees a
topic gone. Partitions go round the live brokers, new ones also to those that joined later; leaders of the
others do not move. A mirrored topic gets no partitions: its own stand for those of its origins.
Left out: replication (one replica, so a factor of 1 or -1) and manual assignments.

DescribeLogDirs says how many bytes each partition takes on this broker's disk. A partition that is led
elsewhere is left out, as in Kafka.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from millrace import errors
from millrace.broker.topic_changes import add_partitions, create_topic, delete_topic
from millrace.handlers.table import Call, in_thread, outcome_of, serves
from millrace.security import rights
from millrace.security.rights import CLUSTER, Need, Operation, Refused, ResourceType
from millrace.wire import admin_messages as admin
from millrace.wire import messages
from millrace.wire.fields import group_by_topic
from millrace.wire.messages import ApiKey

R = TypeVar("R")
T = TypeVar("T", messages.CreateTopicsRequest.Topic, admin.CreatePartitionsRequest.Topic)


_BY_TOPIC = (ResourceType.TOPIC,)


@in_thread(
    ApiKey.CREATE_TOPICS,
    range(2, 5),
    messages.CreateTopicsRequest,
    messages.CreateTopicsResponse,
    needs=lambda asked: [rights.may_create(topic.name) for topic in asked.topics],
    by_item=_BY_TOPIC,
)
def create_topics(call: Call[messages.CreateTopicsRequest]) -> messages.CreateTopicsResponse:
    request = call.request

    def create(topic: messages.CreateTopicsRequest.Topic) -> None:
        if topic.replication_factor not in (-1, 1):
            raise errors.InvalidReplicationFactor("a partition has one replica")
        create_topic(
            call.broker,
            topic.name,
            topic.num_partitions,
            {config.name: config.value for config in topic.configs if config.value is not None},
            validate_only=request.validate_only,
            timeout_s=request.timeout / 1000,
        )

    result = messages.CreateTopicsResponse.Topic
    return messages.CreateTopicsResponse(
        topics=_change_each(request.topics, call.refused, create, "creating topic", result)
    )


@in_thread(
    ApiKey.CREATE_PARTITIONS,
    range(2),
    admin.CreatePartitionsRequest,
    admin.CreatePartitionsResponse,
    needs=lambda asked: [Need(Operation.ALTER, rights.topic(topic.name)) for topic in asked.topics],
    by_item=_BY_TOPIC,
)
def create_partitions(call: Call[admin.CreatePartitionsRequest]) -> admin.CreatePartitionsResponse:
    request = call.request

    def add(topic: admin.CreatePartitionsRequest.Topic) -> None:
        add_partitions(
            call.broker,
            topic.name,
            topic.count,
            validate_only=request.validate_only,
            timeout_s=request.timeout / 1000,
        )

    result = admin.CreatePartitionsResponse.Topic
    return admin.CreatePartitionsResponse(
        results=_change_each(request.topics, call.refused, add, "adding partitions to", result)
    )


def _change_each(
    topics: Sequence[T], refused: Refused, change: Callable[[T], None], what: str, result: Callable[..., R]
) -> tuple[R, ...]:
    """Do `change` for each topic that is named and not refused; of each a `result` that says what became of
    it."""
    times = Counter(topic.name for topic in topics)

    def attempt(topic: T) -> None:
        if (resource := rights.topic(topic.name)) in refused:
            raise rights.refusal(resource)
        if times[topic.name] > 1:
            raise errors.InvalidRequest(f"topic {topic.name} is named {times[topic.name]} times")
        if topic.assignments:
            raise errors.InvalidReplicaAssignment("partitions are placed by the brokers")
        change(topic)

    def outcome(topic: T) -> R:
        code, reason, _ = outcome_of(partial(attempt, topic), f"{what} {topic.name}")
        return result(name=topic.name, error_code=code, error_message=reason)

    return tuple(map(outcome, {topic.name: topic for topic in topics}.values()))


@in_thread(
    ApiKey.DELETE_TOPICS,
    range(1, 4),
    messages.DeleteTopicsRequest,
    messages.DeleteTopicsResponse,
    needs=lambda asked: [Need(Operation.DELETE, rights.topic(name)) for name in asked.topic_names],
    by_item=_BY_TOPIC,
)
def delete_topics(call: Call[messages.DeleteTopicsRequest]) -> messages.DeleteTopicsResponse:
    """Delete the topics one after the other; those that are not there cost one look for all."""
    names = dict.fromkeys(call.request.topic_names)
    there = call.broker.cluster.topic_names() if len(names) > 1 else names

    def delete(name: str) -> None:
        if (resource := rights.topic(name)) in call.refused:
            raise rights.refusal(resource)
        if name not in there:
            raise errors.UnknownTopicOrPartition(f"no topic {name}")
        delete_topic(call.broker, name)

    def result(name: str) -> messages.DeleteTopicsResponse.Topic:
        code, _, _ = outcome_of(partial(delete, name), f"deleting topic {name}")
        return messages.DeleteTopicsResponse.Topic(name=name, error_code=code)

    return messages.DeleteTopicsResponse(responses=tuple(map(result, names)))


@serves(
    ApiKey.DESCRIBE_LOG_DIRS,
    range(1, 2),
    admin.DescribeLogDirsRequest,
    admin.DescribeLogDirsResponse,
    needs=lambda asked: [Need(Operation.DESCRIBE, CLUSTER)],
    by_item=(ResourceType.CLUSTER,),
)
def describe_log_dirs(call: Call[admin.DescribeLogDirsRequest]) -> admin.DescribeLogDirsResponse:
    Result = admin.DescribeLogDirsResponse.Result
    if call.refused:  # said of a directory without a name: the response has no error of its own
        refused = Result(error_code=errors.ErrorCode.CLUSTER_AUTHORIZATION_FAILED, log_dir="", topics=())
        return admin.DescribeLogDirsResponse(results=(refused,))
    named, broker = call.request.topics, call.broker
    wanted = None if named is None else {(topic.topic, n) for topic in named for n in topic.partitions}
    sizes = group_by_topic(
        (name, Result.Partition(partition_index=number, partition_size=partition.log.size))
        for (name, number), partition in sorted(broker.partitions.items())
        if wanted is None or (name, number) in wanted
    )
    result = Result(error_code=errors.ErrorCode.NONE, log_dir=broker.config.log_dir, topics=sizes)
    return admin.DescribeLogDirsResponse(results=(result,))


APIS = [create_topics, delete_topics, create_partitions, describe_log_dirs]
