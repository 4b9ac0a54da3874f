"""CreateTopics, v2 to v4. Any broker takes it; ZooKeeper decides who was first.

Partitions go round the live brokers. Left out: replication (one replica, so a factor of 1 or -1), manual
assignments, and settings other than those of `broker.topics`.
"""

from __future__ import annotations

import logging

from millrace.broker import Broker
from millrace.errors import BrokerError, ErrorCode
from millrace.handlers.request import Request
from millrace.handlers.table import Api, answer_from_thread
from millrace.wire.codec import decode, encode
from millrace.wire.messages import (
    ApiKey,
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

log = logging.getLogger(__name__)


def handle(broker: Broker, request: Request) -> None:
    """Create the topics one after the other, in a thread."""
    asked = decode(CreateTopicsRequest, ApiKey.CREATE_TOPICS, request.api_version, request.body)

    def work() -> bytes:
        results = tuple(_create(broker, topic, validate_only=asked.validate_only) for topic in asked.topics)
        return encode(CreateTopicsResponse(topics=results), ApiKey.CREATE_TOPICS, request.api_version)

    answer_from_thread(broker, request, work)


def _create(broker: Broker, topic: CreatableTopic, *, validate_only: bool) -> CreatableTopicResult:
    code, reason = ErrorCode.NONE, None
    if topic.assignments:
        code, reason = ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions are placed by the brokers"
    elif topic.replication_factor not in (-1, 1):
        code, reason = ErrorCode.INVALID_REPLICATION_FACTOR, "a partition has one replica"
    else:
        settings = {config.name: config.value for config in topic.configs if config.value is not None}
        try:
            broker.create_topic(topic.name, topic.num_partitions, settings, validate_only=validate_only)
        except BrokerError as error:
            code, reason = error.code, str(error)
        except Exception as error:
            log.exception("creating topic %s failed", topic.name)
            code, reason = ErrorCode.UNKNOWN_SERVER_ERROR, str(error)
    return CreatableTopicResult(name=topic.name, error_code=code, error_message=reason)


CREATE_TOPICS = Api(
    key=ApiKey.CREATE_TOPICS, versions=frozenset(range(2, 5)), advertised=(2, 4), handle=handle
)
