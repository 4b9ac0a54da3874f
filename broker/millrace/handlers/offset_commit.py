"""OffsetCommit, v2 to v7: answered when ZooKeeper has the offsets, or with an error after a few seconds.

Offsets are kept until they are deleted: the retention time that v2 to v4 ask for is not looked at.
"""

from __future__ import annotations

from millrace.broker.broker import Broker
from millrace.groups import Groups
from millrace.groups.coordinator import Codes
from millrace.handlers.table import Api
from millrace.server.request import Request
from millrace.wire.codec import decode, encode
from millrace.wire.group_messages import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from millrace.wire.messages import ApiKey


def offset_commit(groups: Groups) -> Api:
    """The API, on these groups."""

    def handle(broker: Broker, request: Request) -> None:
        asked = decode(OffsetCommitRequest, ApiKey.OFFSET_COMMIT, request.api_version, request.body)

        def answer(codes: Codes) -> None:
            for code in codes.values():
                if code:
                    request.failed(code)
            request.answer([encode(_response(asked, codes), ApiKey.OFFSET_COMMIT, request.api_version)])

        groups.commit(asked, answer)

    return Api(key=ApiKey.OFFSET_COMMIT, versions=frozenset(range(2, 8)), advertised=(2, 7), handle=handle)


def _response(asked: OffsetCommitRequest, codes: Codes) -> OffsetCommitResponse:
    topics = tuple(
        OffsetCommitResponseTopic(
            name=topic.name,
            partitions=tuple(
                OffsetCommitResponsePartition(
                    partition_index=partition.partition_index,
                    error_code=codes[topic.name, partition.partition_index],
                )
                for partition in topic.partitions
            ),
        )
        for topic in asked.topics
    )
    return OffsetCommitResponse(topics=topics)
