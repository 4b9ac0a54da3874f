"""ListOffsets v1 to v5; OffsetCommit v2 to v7, OffsetFetch v1 to v5, OffsetDelete v0: of logs, and of groups.

In a log, latest is the high watermark, earliest its start. A time finds the first message at or after it,
looked up in a thread because old segments may be cold and the message's batch is decompressed.
Left out: ListOffsets v0, and the offset of the largest timestamp (-3), which belongs to v7.

A commit is answered when ZooKeeper has the offsets, or with an error after a few seconds. Offsets are kept
until they are deleted: the retention time that OffsetCommit v2 to v4 ask for is not looked at. Any broker
answers OffsetFetch, because the offsets are in ZooKeeper; a group of any kind is shown, from v2 on without
topics everything it has committed. An offset of a topic that was deleted, or deleted and created anew, counts
as not committed. OffsetDelete keeps offsets of topics that a member of the group reads at present.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeVar

from millrace.broker.broker import Broker
from millrace.coordination.groups import CommittedOffset
from millrace.errors import BrokerError, ErrorCode, InvalidRequest, StorageError, UnsupportedVersion
from millrace.groups import Groups
from millrace.groups.coordinator import Codes
from millrace.handlers.table import Api, Call, message_api
from millrace.records.topic_partition import TopicPartition
from millrace.wire import group_messages, messages
from millrace.wire.messages import ApiKey

_LATEST, _EARLIEST = -1, -2
T = TypeVar("T")


def list_offsets(call: Call[messages.ListOffsetsRequest]) -> messages.ListOffsetsResponse | None:
    """Answer at once, or after a thread has looked up the times."""
    look_up = partial(_look_up, call.broker, call.request)
    if any(p.timestamp >= 0 for topic in call.request.topics for p in topic.partitions):
        call.answer_from(Broker.in_look_up_thread, look_up)
        return None
    return look_up()


def _look_up(broker: Broker, request: messages.ListOffsetsRequest) -> messages.ListOffsetsResponse:
    seen: set[TopicPartition] = set()

    def look_up(topic: str, wanted: messages.ListOffsetsPartition) -> messages.ListOffsetsPartitionResponse:
        place = (topic, wanted.partition_index)
        error, offset, timestamp = ErrorCode.NONE, -1, -1
        try:
            if place in seen:  # as in Kafka: one look-up for each is enough
                raise InvalidRequest("a partition is named twice")
            seen.add(place)
            offset, timestamp = _offset_at(broker, place, wanted.timestamp)
        except BrokerError as refused:
            error = refused.code
        return messages.ListOffsetsPartitionResponse(
            partition_index=wanted.partition_index, error_code=error, timestamp=timestamp, offset=offset
        )

    return messages.ListOffsetsResponse(
        topics=tuple(
            messages.ListOffsetsTopicResponse(
                name=topic.name, partitions=tuple(look_up(topic.name, wanted) for wanted in topic.partitions)
            )
            for topic in request.topics
        )
    )


def _offset_at(broker: Broker, place: TopicPartition, timestamp: int) -> tuple[int, int]:
    """The offset and timestamp of the first message at or after `timestamp`, or where the log ends or begins.

    -1 and -1 when every message is older.
    """
    log = broker.partition(*place).log
    if timestamp == _LATEST:
        return log.high_watermark, -1
    if timestamp == _EARLIEST:
        return log.log_start_offset, -1
    if timestamp < 0:
        raise UnsupportedVersion(f"the offset at {timestamp}")
    try:
        return log.offset_for_timestamp(timestamp) or (-1, -1)
    except OSError as error:
        raise StorageError(f"cannot look up an offset: {error}") from error


def offset_commit(groups: Groups, call: Call[group_messages.OffsetCommitRequest]) -> None:
    """Answer with what became of each offset."""
    request = call.request
    places = [(topic.name, each.partition_index) for topic in request.topics for each in topic.partitions]

    def answer(codes: Codes) -> None:
        partition = group_messages.OffsetCommitResponsePartition
        topics = _outcomes(group_messages.OffsetCommitResponseTopic, partition, places, codes)
        call.answer(group_messages.OffsetCommitResponse(topics=topics))

    groups.commit(request, answer)


def offset_fetch(groups: Groups, call: Call[messages.OffsetFetchRequest]) -> None:
    """Answer with the offsets the group has committed, -1 where it has none."""
    request = call.request
    named = request.topics
    places = None if named is None else [(t.name, index) for t in named for index in t.partition_indexes]

    def answer(
        places: Iterable[TopicPartition], committed: Mapping[TopicPartition, CommittedOffset], code: ErrorCode
    ) -> None:
        def describe(place: TopicPartition) -> messages.OffsetFetchResponsePartition:
            offset = committed.get(place)
            return messages.OffsetFetchResponsePartition(
                partition_index=place[1],
                committed_offset=-1 if offset is None else offset.offset,
                metadata="" if offset is None else offset.metadata,
                error_code=code,
            )

        topics = _by_topic(messages.OffsetFetchResponseTopic, places, describe)
        call.answer(messages.OffsetFetchResponse(error_code=code, topics=topics))

    def done(committed: Mapping[TopicPartition, CommittedOffset]) -> None:
        answer(committed if places is None else places, committed, ErrorCode.NONE)

    def failed(code: ErrorCode) -> None:
        # Java asks again after this one only.
        again = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        answer(places or (), {}, again if code is ErrorCode.COORDINATOR_NOT_AVAILABLE else code)

    groups.offsets(request.group_id, places, done, failed)


def offset_delete(groups: Groups, call: Call[group_messages.OffsetDeleteRequest]) -> None:
    """Answer with what became of each offset, or with why none could be deleted."""
    request = call.request
    places = [(topic.name, each.partition_index) for topic in request.topics for each in topic.partitions]

    def done(codes: Codes) -> None:
        partition = group_messages.OffsetDeleteResponsePartition
        topics = _outcomes(group_messages.OffsetDeleteResponseTopic, partition, places, codes)
        call.answer(group_messages.OffsetDeleteResponse(topics=topics))

    groups.delete_offsets(request.group_id, set(places), done, call.refuse)


def _outcomes(
    topic: Callable[..., T], partition: Callable[..., object], places: Iterable[TopicPartition], codes: Codes
) -> tuple[T, ...]:
    return _by_topic(
        topic, places, lambda place: partition(partition_index=place[1], error_code=codes[place])
    )


def _by_topic(
    topic: Callable[..., T], places: Iterable[TopicPartition], describe: Callable[[TopicPartition], object]
) -> tuple[T, ...]:
    """A `topic` for each that the places are in, with what is to be said of each of them."""
    topics: dict[str, list[object]] = {}
    for place in places:
        topics.setdefault(place[0], []).append(describe(place))
    return tuple(topic(name=name, partitions=tuple(found)) for name, found in topics.items())


LIST_OFFSETS = message_api(ApiKey.LIST_OFFSETS, range(1, 6), messages.ListOffsetsRequest, list_offsets)


def group_offset_apis(groups: Groups) -> list[Api]:
    """OffsetCommit, OffsetFetch and OffsetDelete, on these groups."""
    return [
        message_api(
            ApiKey.OFFSET_COMMIT,
            range(2, 8),
            group_messages.OffsetCommitRequest,
            partial(offset_commit, groups),
        ),
        message_api(
            ApiKey.OFFSET_FETCH, range(1, 6), messages.OffsetFetchRequest, partial(offset_fetch, groups)
        ),
        message_api(
            ApiKey.OFFSET_DELETE, range(1), group_messages.OffsetDeleteRequest, partial(offset_delete, groups)
        ),
    ]
