"""OffsetFetch, v1 to v5; from v2 on without topics: everything the group has committed.

Any broker answers, because the offsets are in ZooKeeper; a group of any kind is shown. An offset of a topic
that was deleted, or deleted and created anew, counts as not committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from millrace.broker.broker import Broker
from millrace.coordination.groups import CommittedOffset, Place
from millrace.errors import ErrorCode
from millrace.groups import Groups
from millrace.handlers.table import Api
from millrace.server.request import Request
from millrace.wire.codec import decode, encode
from millrace.wire.messages import (
    ApiKey,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)


def offset_fetch(groups: Groups) -> Api:
    """The API, on these groups."""

    def handle(broker: Broker, request: Request) -> None:
        version = request.api_version
        asked = decode(OffsetFetchRequest, ApiKey.OFFSET_FETCH, version, request.body)
        named = asked.topics
        places = None if named is None else [(t.name, index) for t in named for index in t.partition_indexes]

        def answer(response: OffsetFetchResponse) -> None:
            request.answer([encode(response, ApiKey.OFFSET_FETCH, version)])

        def found(committed: Mapping[Place, CommittedOffset]) -> None:
            answer(OffsetFetchResponse(topics=_topics(committed if places is None else places, committed)))

        def failed(code: ErrorCode) -> None:
            # Java asks again after this one only.
            again = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            told = again if code is ErrorCode.COORDINATOR_NOT_AVAILABLE else code
            request.failed(told)
            answer(OffsetFetchResponse(error_code=told, topics=_topics(places or (), {}, told)))

        groups.offsets(asked.group_id, places, found, failed)

    return Api(key=ApiKey.OFFSET_FETCH, versions=frozenset(range(1, 6)), advertised=(1, 5), handle=handle)


def _topics(
    places: Iterable[Place], committed: Mapping[Place, CommittedOffset], code: ErrorCode = ErrorCode.NONE
) -> tuple[OffsetFetchResponseTopic, ...]:
    topics: dict[str, list[OffsetFetchResponsePartition]] = {}
    for topic, number in places:
        offset = committed.get((topic, number))
        topics.setdefault(topic, []).append(
            OffsetFetchResponsePartition(
                partition_index=number,
                committed_offset=-1 if offset is None else offset.offset,
                metadata="" if offset is None else offset.metadata,
                error_code=code,
            )
        )
    return tuple(
        OffsetFetchResponseTopic(name=topic, partitions=tuple(partitions))
        for topic, partitions in topics.items()
    )
