"""DeleteTopics, v1 to v3. Any broker takes it; each deletes its own logs when it sees the topic gone."""

from __future__ import annotations

from millrace.broker.broker import Broker
from millrace.broker.topic_changes import delete_topic
from millrace.errors import ErrorCode
from millrace.handlers.outcome import outcome_of
from millrace.handlers.table import Api, answer_from_thread
from millrace.server.request import Request
from millrace.wire.codec import decode, encode
from millrace.wire.messages import (
    ApiKey,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)


def handle(broker: Broker, request: Request) -> None:
    """Delete the topics one after the other, in a thread; those that are not there cost one look for all."""
    asked = decode(DeleteTopicsRequest, ApiKey.DELETE_TOPICS, request.api_version, request.body)

    def work() -> bytes:
        names = dict.fromkeys(asked.topic_names)
        there = broker.cluster.topic_names() if len(names) > 1 else names
        results = tuple(_result(broker, name, name in there) for name in names)
        return encode(DeleteTopicsResponse(responses=results), ApiKey.DELETE_TOPICS, request.api_version)

    answer_from_thread(broker.in_zookeeper_thread, request, work)


def _result(broker: Broker, name: str, there: bool) -> DeletableTopicResult:
    if not there:
        return DeletableTopicResult(name=name, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    code, _ = outcome_of(lambda: delete_topic(broker, name), f"deleting topic {name}")
    return DeletableTopicResult(name=name, error_code=code)


DELETE_TOPICS = Api(
    key=ApiKey.DELETE_TOPICS, versions=frozenset(range(1, 4)), advertised=(1, 3), handle=handle
)
