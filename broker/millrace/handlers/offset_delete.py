"""OffsetDelete, v0: forgets offsets of topics that no member of the group reads at present."""

from __future__ import annotations

from millrace.broker.broker import Broker
from millrace.errors import ErrorCode
from millrace.groups import Groups
from millrace.groups.coordinator import Codes
from millrace.handlers.table import Api
from millrace.server.request import Request
from millrace.wire.codec import decode, encode
from millrace.wire.group_messages import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from millrace.wire.messages import ApiKey


def offset_delete(groups: Groups) -> Api:
    """The API, on these groups."""

    def handle(broker: Broker, request: Request) -> None:
        asked = decode(OffsetDeleteRequest, ApiKey.OFFSET_DELETE, request.api_version, request.body)
        places = {(topic.name, each.partition_index) for topic in asked.topics for each in topic.partitions}

        def answer(response: OffsetDeleteResponse) -> None:
            request.answer([encode(response, ApiKey.OFFSET_DELETE, request.api_version)])

        def done(codes: Codes) -> None:
            for code in codes.values():
                if code:
                    request.failed(code)
            answer(_response(asked, codes))

        def failed(code: ErrorCode) -> None:
            request.failed(code)
            answer(OffsetDeleteResponse(error_code=code))

        groups.delete_offsets(asked.group_id, places, done, failed)

    return Api(key=ApiKey.OFFSET_DELETE, versions=frozenset({0}), advertised=(0, 0), handle=handle)


def _response(asked: OffsetDeleteRequest, codes: Codes) -> OffsetDeleteResponse:
    topics = tuple(
        OffsetDeleteResponseTopic(
            name=topic.name,
            partitions=tuple(
                OffsetDeleteResponsePartition(
                    partition_index=each.partition_index, error_code=codes[topic.name, each.partition_index]
                )
                for each in topic.partitions
            ),
        )
        for topic in asked.topics
    )
    return OffsetDeleteResponse(topics=topics)
