"""CreateTopics, v2 to v4. Any broker takes it; ZooKeeper decides who was first.

Partitions go round the live brokers. Left out: replication (one replica, so a factor of 1 or -1), manual
assignments, and settings other than those of `broker.topics`.
"""

from __future__ import annotations

from collections import Counter

from millrace.broker.broker import Broker
from millrace.broker.topic_changes import create_topic
from millrace.errors import ErrorCode
from millrace.handlers.outcome import outcome_of
from millrace.handlers.table import Api, answer_from_thread
from millrace.server.request import Request
from millrace.wire.codec import decode, encode
from millrace.wire.messages import (
    ApiKey,
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)


def handle(broker: Broker, request: Request) -> None:
    """Create the topics one after the other, in a thread."""
    asked = decode(CreateTopicsRequest, ApiKey.CREATE_TOPICS, request.api_version, request.body)
    times = Counter(topic.name for topic in asked.topics)
    topics = {topic.name: topic for topic in asked.topics}

    def work() -> bytes:
        results = tuple(_result(broker, topic, times[name], asked) for name, topic in topics.items())
        return encode(CreateTopicsResponse(topics=results), ApiKey.CREATE_TOPICS, request.api_version)

    answer_from_thread(broker.in_zookeeper_thread, request, work)


def _result(
    broker: Broker, topic: CreatableTopic, times: int, asked: CreateTopicsRequest
) -> CreatableTopicResult:
    code: ErrorCode
    reason: str | None
    if times > 1:
        code, reason = ErrorCode.INVALID_REQUEST, f"topic {topic.name} is named {times} times"
    elif topic.assignments:
        code, reason = ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions are placed by the brokers"
    elif topic.replication_factor not in (-1, 1):
        code, reason = ErrorCode.INVALID_REPLICATION_FACTOR, "a partition has one replica"
    else:
        code, reason = outcome_of(lambda: _create(broker, topic, asked), f"creating topic {topic.name}")
    return CreatableTopicResult(name=topic.name, error_code=code, error_message=reason)


def _create(broker: Broker, topic: CreatableTopic, asked: CreateTopicsRequest) -> None:
    settings = {config.name: config.value for config in topic.configs if config.value is not None}
    create_topic(
        broker, topic.name, topic.num_partitions, settings,
        validate_only=asked.validate_only, timeout_s=asked.timeout / 1000,
    )  # fmt: skip


CREATE_TOPICS = Api(
    key=ApiKey.CREATE_TOPICS, versions=frozenset(range(2, 5)), advertised=(2, 4), handle=handle
)
