"""OffsetFetch, v1 to v5: no group has committed anything, because commits are not taken yet.

The true answer for a client with a group id that assigns partitions without an offset: it then starts where
its own settings say. (librdkafka crashes when a coordinator does not know this API.)
"""

from __future__ import annotations

from millrace.broker import Broker
from millrace.handlers.request import Request
from millrace.handlers.table import Api
from millrace.wire.codec import decode, encode
from millrace.wire.messages import (
    ApiKey,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)


def handle(broker: Broker, request: Request) -> None:
    """Say for each partition that nothing was committed."""
    asked = decode(OffsetFetchRequest, ApiKey.OFFSET_FETCH, request.api_version, request.body)
    topics = tuple(
        OffsetFetchResponseTopic(
            name=topic.name,
            partitions=tuple(
                OffsetFetchResponsePartition(partition_index=index) for index in topic.partition_indexes
            ),
        )
        for topic in asked.topics or ()
    )
    response = OffsetFetchResponse(topics=topics)
    request.answer([encode(response, ApiKey.OFFSET_FETCH, request.api_version)])


OFFSET_FETCH = Api(key=ApiKey.OFFSET_FETCH, versions=frozenset(range(1, 6)), advertised=(1, 5), handle=handle)
