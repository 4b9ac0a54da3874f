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

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from millrace.broker.broker import Broker
from millrace.coordination.groups import CommittedOffset
from millrace.errors import BrokerError, ErrorCode, InvalidRequest, StorageError, UnsupportedVersion
from millrace.groups.coordinator import Codes
from millrace.handlers.table import Call, serves
from millrace.records.topic_partition import TopicPartition
from millrace.security import rights
from millrace.security.rights import Need, Operation, Refused, ResourceType
from millrace.wire import group_messages as messages
from millrace.wire.fields import Topic, group_by_topic, replace
from millrace.wire.messages import ApiKey, ListOffsetsRequest, ListOffsetsResponse

_LATEST, _EARLIEST = -1, -2


_BY_TOPIC = (ResourceType.TOPIC,)
_BY_TOPIC_AND_GROUP = (ResourceType.TOPIC, ResourceType.GROUP)


@serves(
    ApiKey.LIST_OFFSETS,
    range(1, 6),
    ListOffsetsRequest,
    ListOffsetsResponse,
    needs=lambda asked: [Need(Operation.DESCRIBE, rights.topic(topic.name)) for topic in asked.topics],
    by_item=_BY_TOPIC,
)
def list_offsets(call: Call[ListOffsetsRequest]) -> ListOffsetsResponse | None:
    look_up = partial(_look_up, call.broker, call.request, call.refused)
    if any(p.timestamp >= 0 for topic in call.request.topics for p in topic.partitions):
        call.answer_from(Broker.in_look_up_thread, look_up)
        return None
    return look_up()


def _look_up(broker: Broker, request: ListOffsetsRequest, refused: Refused) -> ListOffsetsResponse:
    seen: set[TopicPartition] = set()

    def look_up(topic: str, wanted: ListOffsetsRequest.Partition) -> ListOffsetsResponse.Partition:
        number, error, offset, timestamp = wanted.partition_index, ErrorCode.NONE, -1, -1
        try:
            if (resource := rights.topic(topic)) in refused:
                raise rights.refusal(resource)
            if (topic, number) in seen:  # as in Kafka: one look-up for each is enough
                raise InvalidRequest("a partition is named twice")
            seen.add((topic, number))
            offset, timestamp = _offset_at(broker, topic, number, wanted.timestamp)
        except BrokerError as failure:
            error = failure.code
        return ListOffsetsResponse.Partition(
            partition_index=number, error_code=error, timestamp=timestamp, offset=offset
        )

    return ListOffsetsResponse(
        topics=tuple(
            Topic(name=topic.name, partitions=tuple(look_up(topic.name, p) for p in topic.partitions))
            for topic in request.topics
        )
    )


def _offset_at(broker: Broker, topic: str, number: int, timestamp: int) -> tuple[int, int]:
    """The offset and timestamp of the first message at or after `timestamp`, or where the log ends or begins.

    -1 and -1 when every message is older.
    """
    log = broker.partition(topic, number).log
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


@serves(
    ApiKey.OFFSET_COMMIT,
    range(2, 8),
    messages.OffsetCommitRequest,
    messages.OffsetCommitResponse,
    needs=lambda asked: [
        Need(Operation.READ, rights.group(asked.group_id)),
        *(Need(Operation.READ, rights.topic(topic.name)) for topic in asked.topics),
    ],
    by_item=_BY_TOPIC_AND_GROUP,
)
def offset_commit(call: Call[messages.OffsetCommitRequest]) -> None:
    request = call.request
    partitions = _partitions(request.topics)
    allowed = tuple(topic for topic in request.topics if rights.topic(topic.name) not in call.refused)

    def answer(codes: Codes) -> None:
        topics = _outcomes(partitions, {**_refused(partitions, call.refused), **codes})
        call.answer(messages.OffsetCommitResponse(topics=topics))

    if rights.group(request.group_id) in call.refused:
        answer(dict.fromkeys(partitions, ErrorCode.GROUP_AUTHORIZATION_FAILED))
    elif partitions and not allowed:
        answer({})
    else:
        call.groups.commit(replace(request, topics=allowed), answer)


@serves(
    ApiKey.OFFSET_FETCH,
    range(1, 6),
    messages.OffsetFetchRequest,
    messages.OffsetFetchResponse,
    needs=lambda asked: [
        Need(Operation.DESCRIBE, rights.group(asked.group_id)),
        *(Need(Operation.DESCRIBE, rights.topic(topic.name)) for topic in asked.topics or ()),
    ],
    by_item=_BY_TOPIC_AND_GROUP,
    lists=True,
)
def offset_fetch(call: Call[messages.OffsetFetchRequest]) -> None:
    request = call.request
    wanted = None
    if request.topics is not None:
        wanted = [(topic.name, number) for topic in request.topics for number in topic.partition_indexes]
    asked = wanted and [one for one in wanted if rights.topic(one[0]) not in call.refused]
    refused = _refused(wanted or (), call.refused)

    def answer(committed: Mapping[TopicPartition, CommittedOffset], code: ErrorCode = ErrorCode.NONE) -> None:
        def describe(partition: TopicPartition) -> messages.OffsetFetchResponse.Partition:
            offset = committed.get(partition)
            return messages.OffsetFetchResponse.Partition(
                partition_index=partition[1],
                committed_offset=-1 if offset is None else offset.offset,
                metadata="" if offset is None else offset.metadata,
                error_code=code or refused.get(partition, ErrorCode.NONE),
            )

        shown = call.only(Operation.DESCRIBE, ResourceType.TOPIC, {topic for topic, _ in committed})
        partitions = [one for one in committed if one[0] in shown] if wanted is None else wanted
        topics = group_by_topic((partition[0], describe(partition)) for partition in partitions)
        call.answer(messages.OffsetFetchResponse(error_code=code, topics=topics))

    def failed(code: ErrorCode) -> None:
        # Java asks again after this one only.
        again = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        answer({}, again if code is ErrorCode.COORDINATOR_NOT_AVAILABLE else code)

    if rights.group(request.group_id) in call.refused:
        answer({}, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    else:
        call.groups.offsets(request.group_id, asked, answer, failed)


@serves(
    ApiKey.OFFSET_DELETE,
    range(1),
    messages.OffsetDeleteRequest,
    messages.OffsetDeleteResponse,
    needs=lambda asked: [
        Need(Operation.DELETE, rights.group(asked.group_id)),
        *(Need(Operation.READ, rights.topic(topic.name)) for topic in asked.topics),
    ],
    by_item=_BY_TOPIC,
)
def offset_delete(call: Call[messages.OffsetDeleteRequest]) -> None:
    partitions = _partitions(call.request.topics)
    refused = _refused(partitions, call.refused)

    def answer(codes: Codes) -> None:
        call.answer(messages.OffsetDeleteResponse(topics=_outcomes(partitions, {**codes, **refused})))

    call.groups.delete_offsets(call.request.group_id, set(partitions) - refused.keys(), answer, call.refuse)


def _refused(partitions: Iterable[TopicPartition], refused: Refused) -> Codes:
    """The error of each partition whose topic is refused."""
    return {
        partition: ErrorCode.TOPIC_AUTHORIZATION_FAILED
        for partition in partitions
        if refused and rights.topic(partition[0]) in refused
    }


def _partitions(
    topics: Sequence[Topic[messages.OffsetCommitRequest.Partition]]
    | Sequence[Topic[messages.OffsetDeleteRequest.Partition]],
) -> list[TopicPartition]:
    return [(topic.name, partition.partition_index) for topic in topics for partition in topic.partitions]


def _outcomes(
    partitions: Iterable[TopicPartition], codes: Codes
) -> tuple[Topic[messages.PartitionOutcome], ...]:
    return group_by_topic(
        (topic, messages.PartitionOutcome(partition_index=number, error_code=codes[topic, number]))
        for topic, number in partitions
    )


APIS = [list_offsets, offset_commit, offset_fetch, offset_delete]
