"""CreateTopics v2 to v7, DeleteTopics v1 to v6, CreatePartitions v0 to v3, DescribeLogDirs v1 to v4.

Any broker takes changes; ZooKeeper decides their order, and each broker deletes its own logs when it sees
that a topic was deleted. Partitions are spread over the live brokers in turn, new partitions also over
brokers that joined later; leaders of existing partitions do not move. A client may choose the brokers of each
partition's replicas itself. A mirrored topic gets no partitions: its partitions correspond to its origins'
partitions. Metadata (`metadata`) and the batch mirror (`mirror`) also create topics.

From v5 on CreateTopics returns a new topic's settings to a client that may see them (KIP-525), from v7 on its
id. DeleteTopics v6 takes names or ids (KIP-516); an id reveals no name to a client that may not describe the
topic.

DescribeLogDirs returns the bytes that each partition takes on this broker's disk, and the room on the volume
(KIP-827). A partition that is led elsewhere is left out, as in Kafka.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from millrace import errors
from millrace.wire import admin_messages as admin
from millrace.wire import messages
from millrace.wire.fields import group_by_topic
from millrace_broker.handlers.table import Call, in_thread, outcome_of, serves, write_down
from millrace_broker.partitions.broker import Broker
from millrace_broker.partitions.topic_changes import (
    add_partitions,
    create_topic,
    delete_topic,
    wait_until_open,
)
from millrace_broker.partitions.topic_settings import describe_topic
from millrace_broker.security import rights
from millrace_broker.security.rights import CLUSTER, Need, Operation, ResourceType

R = TypeVar("R")
T = TypeVar("T", messages.CreateTopicsRequest.Topic, admin.CreatePartitionsRequest.Topic)


_BY_TOPIC = (ResourceType.TOPIC,)


@in_thread(
    range(2, 8),
    messages.CreateTopicsRequest,
    messages.CreateTopicsResponse,
    needs=lambda asked: [rights.may_create(topic.name) for topic in asked.topics],
    by_item=_BY_TOPIC,
)
def create_topics(call: Call[messages.CreateTopicsRequest]) -> messages.CreateTopicsResponse:
    request = call.request

    def create(topic: messages.CreateTopicsRequest.Topic) -> None:
        assigned = {one.partition_index: one.broker_ids for one in topic.assignments}
        if sorted(assigned) != list(range(len(topic.assignments))):
            raise errors.InvalidReplicaAssignment(
                "the partitions with brokers named for them are not 0, 1, ..."
            )
        create_topic(
            call.broker,
            topic.name,
            topic.num_partitions,
            {config.name: config.value for config in topic.configs if config.value is not None},
            replicas=topic.replication_factor,
            assigned=[replicas for _, replicas in sorted(assigned.items())],
            validate_only=request.validate_only,
        )

    result = partial(_created, call, validate_only=request.validate_only)
    topics = _change_each(call, request.topics, create, "creating topic", result)
    return messages.CreateTopicsResponse(topics=topics)


def _created(
    call: Call[messages.CreateTopicsRequest],
    name: str,
    error_code: int,
    error_message: str | None,
    *,
    validate_only: bool,
) -> messages.CreateTopicsResponse.Topic:
    """Return the answer for one topic, with its settings if the topic was created and the client may see
    them.
    """
    Topic, topic = messages.CreateTopicsResponse.Topic, call.broker.cluster.topics.get(name)
    may_see = call.received.client.access.allows(Need(Operation.DESCRIBE_CONFIGS, rights.topic(name)))
    if error_code or validate_only or topic is None:
        return Topic(name=name, error_code=error_code, error_message=error_message)
    if not may_see:
        return Topic(name=name, error_code=error_code, topic_id=topic.topic_id)
    configs = tuple(
        Topic.Config(name=one.name, value=one.value, read_only=one.read_only, config_source=one.config_source)
        for one in describe_topic(call.broker.config.log, topic)
    )
    return Topic(
        name=name,
        error_code=error_code,
        topic_id=topic.topic_id,
        num_partitions=len(topic.partitions),
        replication_factor=topic.fewest_replicas,
        configs=configs,
    )


@in_thread(
    range(4),
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
            assigned=[one.broker_ids for one in topic.assignments or ()],
            validate_only=request.validate_only,
        )

    result = admin.CreatePartitionsResponse.Topic
    results = _change_each(call, request.topics, add, "adding partitions to", result)
    return admin.CreatePartitionsResponse(results=results)


def _change_each(
    call: Call[Any], topics: Sequence[T], change: Callable[[T], None], what: str, result: Callable[..., R]
) -> tuple[R, ...]:
    """Do `change` for each topic that is named once and not refused. `result` makes the topic's answer.

    Logs are opened while the next topics are changed, and waited for at the end.
    """
    times = Counter(topic.name for topic in topics)

    def attempt(topic: T) -> None:
        call.check(rights.topic(topic.name))
        if times[topic.name] > 1:
            raise errors.InvalidRequest(f"topic {topic.name} is named {times[topic.name]} times")
        change(topic)

    outcomes = {topic.name: outcome_of(partial(attempt, topic), f"{what} {topic.name}") for topic in topics}
    if not call.request.validate_only:
        changed = [name for name, (code, _, _) in outcomes.items() if code is errors.ErrorCode.NONE]
        late = wait_until_open(call.broker, changed, call.request.timeout / 1000)
        outcomes |= {name: (error.code, str(error), None) for name, error in late.items()}
    return tuple(
        result(name=name, error_code=code, error_message=reason)
        for name, (code, reason, _) in outcomes.items()
    )


def _named(asked: messages.DeleteTopicsRequest) -> list[str]:
    """Return the topics to delete by name, in all versions: v6 has its own list of names and ids."""
    return [topic.name for topic in asked.topics if topic.name is not None] or list(asked.topic_names)


@in_thread(
    range(1, 7),
    messages.DeleteTopicsRequest,
    messages.DeleteTopicsResponse,
    needs=lambda asked: [Need(Operation.DELETE, rights.topic(name)) for name in _named(asked)],
    by_item=_BY_TOPIC,
)
def delete_topics(call: Call[messages.DeleteTopicsRequest]) -> messages.DeleteTopicsResponse:
    """Delete the topics one after the other. One look-up finds all topics that do not exist."""
    names = dict.fromkeys(_named(call.request))
    there = call.broker.cluster.topic_names() if len(names) > 1 else names
    ids = dict.fromkeys(topic.topic_id for topic in call.request.topics if topic.name is None)
    topics = call.broker.cluster.topics.values() if ids else ()
    by_id: dict[UUID | None, str] = {topic.topic_id: topic.name for topic in topics}
    responses = [_delete(call, name, there) for name in names]
    responses += [_delete_by_id(call, topic_id, by_id.get(topic_id)) for topic_id in ids]
    return messages.DeleteTopicsResponse(responses=tuple(responses))


def _delete(
    call: Call[messages.DeleteTopicsRequest], name: str, there: Collection[str]
) -> messages.DeleteTopicsResponse.Topic:
    def delete() -> None:
        call.check(rights.topic(name))
        if name not in there:
            raise errors.UnknownTopicOrPartition(f"no topic {name}")
        delete_topic(call.broker, name)

    code, reason, _ = outcome_of(delete, f"deleting topic {name}")
    return messages.DeleteTopicsResponse.Topic(name=name, error_code=code, error_message=reason)


def _delete_by_id(
    call: Call[messages.DeleteTopicsRequest], topic_id: UUID | None, name: str | None
) -> messages.DeleteTopicsResponse.Topic:
    access, Topic = call.received.client.access, messages.DeleteTopicsResponse.Topic

    def delete() -> None:
        if name is None or not access.allows(Need(Operation.DESCRIBE, rights.topic(name))):
            raise errors.UnknownTopicId(f"no topic has the id {topic_id}")
        need = Need(Operation.DELETE, rights.topic(name))
        refused = access.refused([need])
        write_down(call.received, [need], refused)
        if refused:
            raise rights.refusal(need.resource)
        delete_topic(call.broker, name)

    code, reason, _ = outcome_of(delete, f"deleting the topic with the id {topic_id}")
    known_name = None if code == errors.ErrorCode.UNKNOWN_TOPIC_ID else name
    return Topic(name=known_name, topic_id=topic_id, error_code=code, error_message=reason)


@serves(
    range(1, 5),
    admin.DescribeLogDirsRequest,
    admin.DescribeLogDirsResponse,
    needs=lambda asked: [Need(Operation.DESCRIBE, CLUSTER)],
    by_item=(ResourceType.CLUSTER,),
    thread=Broker.in_look_up_thread,
)
def describe_log_dirs(call: Call[admin.DescribeLogDirsRequest]) -> admin.DescribeLogDirsResponse:
    Result = admin.DescribeLogDirsResponse.Result
    if call.refused:
        # Also stated for a directory without a name: before v3 the response has no error of its own.
        code = errors.ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        refused = Result(error_code=code, log_dir="", topics=())
        return admin.DescribeLogDirsResponse(error_code=code, results=(refused,))
    named, broker = call.request.topics, call.broker
    wanted = None if named is None else {(topic.topic, n) for topic in named for n in topic.partitions}
    sizes = group_by_topic(
        (name, Result.Partition(partition_index=number, partition_size=log.size))
        for (name, number), log in sorted(broker.logs.items())
        if wanted is None or (name, number) in wanted
    )
    try:
        volume = shutil.disk_usage(broker.config.log_dir)
        room = {"total_bytes": volume.total, "usable_bytes": volume.free}
    except OSError:
        room = {}  # -1 each: unknown
    none = errors.ErrorCode.NONE
    result = Result(error_code=none, log_dir=broker.config.log_dir, topics=sizes, **room)
    return admin.DescribeLogDirsResponse(results=(result,))
