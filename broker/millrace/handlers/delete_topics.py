"""DeleteTopics, v1 to v3. Any broker takes it; each deletes its own logs when it sees the topic gone."""

from __future__ import annotations

from millrace.broker.broker import Broker
from millrace.broker.topic_changes import delete_topic
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
    """Delete the topics one after the other, in a thread."""
    asked = decode(DeleteTopicsRequest, ApiKey.DELETE_TOPICS, request.api_version, request.body)

    def work() -> bytes:
        results = tuple(_result(broker, name) for name in dict.fromkeys(asked.topic_names))
        return encode(DeleteTopicsResponse(responses=results), ApiKey.DELETE_TOPICS, request.api_version)

    answer_from_thread(broker, request, work)


def _result(broker: Broker, name: str) -> DeletableTopicResult:
    code, _ = outcome_of(lambda: delete_topic(broker, name), f"deleting topic {name}")
    return DeletableTopicResult(name=name, error_code=code)


DELETE_TOPICS = Api(
    key=ApiKey.DELETE_TOPICS, versions=frozenset(range(1, 4)), advertised=(1, 3), handle=handle
)
