"""CreatePartitions, v0 and v1: more partitions for topics that are there. Any broker takes it.

New ones go round the live brokers, those that joined later included; leaders of the others do not move. A
mirrored topic is refused: its partitions stand for those of its origins. Left out: manual assignments.
"""

from __future__ import annotations

from collections import Counter

from millrace.broker.broker import Broker
from millrace.broker.topic_changes import add_partitions
from millrace.errors import ErrorCode
from millrace.handlers.outcome import outcome_of
from millrace.handlers.table import Api, answer_from_thread
from millrace.server.request import Request
from millrace.wire.admin_messages import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from millrace.wire.codec import decode, encode
from millrace.wire.messages import ApiKey


def handle(broker: Broker, request: Request) -> None:
    """Give the topics their partitions, one after the other, in a thread."""
    asked = decode(CreatePartitionsRequest, ApiKey.CREATE_PARTITIONS, request.api_version, request.body)
    times = Counter(topic.name for topic in asked.topics)
    topics = {topic.name: topic for topic in asked.topics}

    def work() -> bytes:
        results = tuple(_result(broker, topic, times[name], asked) for name, topic in topics.items())
        response = CreatePartitionsResponse(results=results)
        return encode(response, ApiKey.CREATE_PARTITIONS, request.api_version)

    answer_from_thread(broker.in_zookeeper_thread, request, work)


def _result(
    broker: Broker, topic: CreatePartitionsTopic, times: int, asked: CreatePartitionsRequest
) -> CreatePartitionsTopicResult:
    def add() -> None:
        add_partitions(
            broker, topic.name, topic.count,
            validate_only=asked.validate_only, timeout_s=asked.timeout / 1000,
        )  # fmt: skip

    code: ErrorCode
    reason: str | None
    if times > 1:
        code, reason = ErrorCode.INVALID_REQUEST, f"topic {topic.name} is named {times} times"
    elif topic.assignments:
        code, reason = ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions are placed by the brokers"
    else:
        code, reason = outcome_of(add, f"adding partitions to {topic.name}")
    return CreatePartitionsTopicResult(name=topic.name, error_code=code, error_message=reason)


CREATE_PARTITIONS = Api(
    key=ApiKey.CREATE_PARTITIONS, versions=frozenset(range(2)), advertised=(0, 1), handle=handle
)
