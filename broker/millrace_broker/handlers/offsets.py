"""ListOffsets v1 to v10, OffsetForLeaderEpoch v2 to v4, of logs; OffsetCommit v2 to v9, OffsetFetch v1 to v9,
OffsetDelete v0, of groups.

In a log, the latest offset is the high watermark, and the earliest its start. A time finds the first message
at or after it. A thread does this look-up, because old segments may not be in memory and the message's batch
is decompressed. A thread also looks up the message with the largest timestamp (KIP-734). There are no tiers
(KIP-405): the earliest local offset is the earliest, and a remote tier has no latest offset (KIP-1005). Left
out: ListOffsets v0.

OffsetForLeaderEpoch returns the end of the batches of a leader's epoch, never above the high watermark: a
client whose position lies after that has read messages that are not in this log. A log that cannot hold a
batch of the epoch or a later one answers -1, as Kafka's brokers do.

A commit is answered when ZooKeeper has the offsets, or with an error after a few seconds. The broker's
settings decide when offsets expire: the retention time in OffsetCommit v2 to v4 is ignored. Any broker
answers OffsetFetch, because the offsets are in ZooKeeper. Groups of both kinds are answered. From v2 on a
request without topics gets all committed offsets of the group; from v8 on it may name many groups (KIP-709).
An offset of a topic that was deleted, or deleted and recreated, counts as not committed, and so does a
negative offset, with which kafkajs resets a group. Member epochs (KIP-848) and `require_stable` mean nothing
here. OffsetDelete refuses topics that a member of the group reads at present.

A thread serves a request for thousands of partitions and writes its answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from millrace.errors import (
    BrokerError,
    ErrorCode,
    InvalidRequest,
    NotServedYet,
    StorageError,
    UnsupportedVersion,
)
from millrace.records.topic_partition import TopicPartition
from millrace.wire import group_messages as messages
from millrace.wire.fields import ApiMessage, TopicItems, array, group_by_topic, i16, i32, i64, replace, string
from millrace.wire.messages import ApiKey, ListOffsetsRequest, ListOffsetsResponse
from millrace.wire.primitives import MIN_ITEM_LIMIT
from millrace_broker.coordination.groups import CommittedOffset
from millrace_broker.groups.commits import Offsets
from millrace_broker.groups.coordinator import Codes
from millrace_broker.handlers.table import Call, serves
from millrace_broker.partitions.broker import Broker
from millrace_broker.security import rights
from millrace_broker.security.rights import Need, Operation, Refused, ResourceType
from millrace_broker.storage.epochs import NO_EPOCH, EpochEnd
from millrace_broker.storage.sides import BackgroundSide

_LATEST, _EARLIEST, _MAX_TIMESTAMP, _EARLIEST_LOCAL, _LATEST_TIERED = -1, -2, -3, -4, -5
_MANY_GROUPS_SINCE = 8
_UNKNOWN_END = EpochEnd(NO_EPOCH, -1)
_NOT_COMMITTED = CommittedOffset(offset=-1, time_ms=-1, topic_id=None)


_BY_TOPIC = (ResourceType.TOPIC,)
_BY_TOPIC_AND_GROUP = (ResourceType.TOPIC, ResourceType.GROUP)


@serves(
    range(1, 11),
    ListOffsetsRequest,
    ListOffsetsResponse,
    needs=lambda asked: [Need(Operation.DESCRIBE, rights.topic(topic.name)) for topic in asked.topics],
    by_item=_BY_TOPIC,
)
def list_offsets(call: Call[ListOffsetsRequest]) -> ListOffsetsResponse | None:
    times = (partition.timestamp for topic in call.request.topics for partition in topic.partitions)
    if call.is_large or any(time >= 0 or time == _MAX_TIMESTAMP for time in times):
        call.answer_from(Broker.in_look_up_thread, partial(_look_up, call))
        return None
    return _look_up(call)


def _look_up(call: Call[ListOffsetsRequest]) -> ListOffsetsResponse:
    seen: set[TopicPartition] = set()

    def look_up(topic: str, wanted: ListOffsetsRequest.Partition) -> ListOffsetsResponse.Partition:
        number, error, offset, timestamp = wanted.partition_index, ErrorCode.NONE, -1, -1
        try:
            call.check(rights.topic(topic))
            if (topic, number) in seen:  # as in Kafka: one look-up for each is enough
                raise InvalidRequest("a partition is named twice")
            seen.add((topic, number))
            partition = call.broker.partition(topic, number)
            partition.check_epoch(wanted.current_leader_epoch)
            offset, timestamp = _offset_at(partition.background, wanted.timestamp)
        except NotServedYet as failure:  # KIP-207
            error = ErrorCode.OFFSET_NOT_AVAILABLE if call.received.api_version >= 5 else failure.code
        except BrokerError as failure:
            error = failure.code
        return ListOffsetsResponse.Partition(
            partition_index=number, error_code=error, timestamp=timestamp, offset=offset
        )

    return ListOffsetsResponse(
        topics=tuple(
            TopicItems(name=topic.name, partitions=tuple(look_up(topic.name, p) for p in topic.partitions))
            for topic in call.request.topics
        )
    )


def _offset_at(log: BackgroundSide, timestamp: int) -> tuple[int, int]:
    """Return offset and timestamp of the first message at or after `timestamp`; negative values are Kafka's.

    Return -1 and -1 when every message is older.
    """
    if timestamp == _LATEST:
        return log.high_watermark, -1
    if timestamp in (_EARLIEST, _EARLIEST_LOCAL):
        return log.log_start_offset, -1
    if timestamp == _LATEST_TIERED:
        return -1, -1
    if timestamp < _LATEST_TIERED:
        raise UnsupportedVersion(f"the offset at {timestamp}")
    try:
        found = log.offset_of_max_timestamp() if timestamp < 0 else log.offset_for_timestamp(timestamp)
        return found or (-1, -1)
    except OSError as error:
        raise StorageError(f"cannot look up an offset: {error}") from error


class OffsetForLeaderEpochRequest(ApiMessage, request_of=ApiKey.OFFSET_FOR_LEADER_EPOCH):
    class Topic(ApiMessage):
        class Partition(ApiMessage):
            partition: int = i32()
            current_leader_epoch: int = i32(since=2, default=-1)
            leader_epoch: int = i32()

        topic: str = string()
        partitions: tuple[Partition, ...] = array(Partition)

    replica_id: int = i32(since=3, default=-2)
    topics: tuple[Topic, ...] = array(Topic)


class OffsetForLeaderEpochResponse(ApiMessage, response_of=ApiKey.OFFSET_FOR_LEADER_EPOCH):
    class Topic(ApiMessage):
        class Partition(ApiMessage):
            error_code: int = i16()
            partition: int = i32()
            leader_epoch: int = i32(since=1, default=-1)
            end_offset: int = i64(default=-1)

        topic: str = string()
        partitions: tuple[Partition, ...] = array(Partition)

    throttle_time: int = i32(since=2, default=0)
    topics: tuple[Topic, ...] = array(Topic)


@serves(
    range(2, 5),
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    needs=lambda asked: [Need(Operation.DESCRIBE, rights.topic(topic.topic)) for topic in asked.topics],
    by_item=_BY_TOPIC,
)
def offset_for_leader_epoch(call: Call[OffsetForLeaderEpochRequest]) -> OffsetForLeaderEpochResponse | None:
    if call.is_large:
        call.answer_from(Broker.in_look_up_thread, partial(_look_up_epochs, call))
        return None
    return _look_up_epochs(call)


def _look_up_epochs(call: Call[OffsetForLeaderEpochRequest]) -> OffsetForLeaderEpochResponse:
    def look_up(
        topic: str, wanted: OffsetForLeaderEpochRequest.Topic.Partition
    ) -> OffsetForLeaderEpochResponse.Topic.Partition:
        error, (epoch, end) = ErrorCode.NONE, _UNKNOWN_END
        try:
            call.check(rights.topic(topic))
            partition = call.broker.partition(topic, wanted.partition)
            partition.check_epoch(wanted.current_leader_epoch)
            log = partition.log
            if wanted.leader_epoch <= max(partition.leader_epoch, log.epochs.last):
                end_of_log = log.high_watermark
                starts = log.epochs.starts
                epoch, end = log.epochs.end_of(wanted.leader_epoch, end_of_log)
                if epoch == NO_EPOCH and wanted.leader_epoch >= 0:  # as Kafka: retention took it
                    epoch, end = wanted.leader_epoch, starts[0][1] if starts else end_of_log
                end = min(end, end_of_log)
        except BrokerError as failure:
            error = failure.code
        return OffsetForLeaderEpochResponse.Topic.Partition(
            error_code=error, partition=wanted.partition, leader_epoch=epoch, end_offset=end
        )

    return OffsetForLeaderEpochResponse(
        topics=tuple(
            OffsetForLeaderEpochResponse.Topic(
                topic=topic.topic,
                partitions=tuple(look_up(topic.topic, wanted) for wanted in topic.partitions),
            )
            for topic in call.request.topics
        )
    )


@serves(
    range(2, 10),
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


OffsetFetchGroup: TypeAlias = messages.OffsetFetchRequest.Group


def _groups(asked: messages.OffsetFetchRequest) -> Sequence[OffsetFetchGroup]:
    """Return the requested groups: a list from v8 on, a single group before."""
    return asked.groups or (OffsetFetchGroup(group_id=asked.group_id, topics=asked.topics),)


@serves(
    range(1, 10),
    messages.OffsetFetchRequest,
    messages.OffsetFetchResponse,
    needs=lambda asked: [
        need
        for group in _groups(asked)
        for need in (
            Need(Operation.DESCRIBE, rights.group(group.group_id)),
            *(Need(Operation.DESCRIBE, rights.topic(topic.name)) for topic in group.topics or ()),
        )
    ],
    by_item=_BY_TOPIC_AND_GROUP,
    lists=True,
)
def offset_fetch(call: Call[messages.OffsetFetchRequest]) -> None:
    many = call.received.api_version >= _MANY_GROUPS_SINCE
    groups = call.request.groups if many else _groups(call.request)
    wanted = {group.group_id: _wanted(group) for group in groups}
    refused = {name for name in wanted if rights.group(name) in call.refused}
    asked = {
        name: partitions and [one for one in partitions if rights.topic(one[0]) not in call.refused]
        for name, partitions in wanted.items()
        if name not in refused
    }

    def answer(found: Mapping[str, Offsets | ErrorCode]) -> None:
        found = {**found, **dict.fromkeys(refused, ErrorCode.GROUP_AUTHORIZATION_FAILED)}
        committed = [offsets for offsets in found.values() if not isinstance(offsets, ErrorCode)]
        topics = {topic for offsets in committed for topic, _ in offsets}
        shown = call.only(Operation.DESCRIBE, ResourceType.TOPIC, topics)

        def response() -> messages.OffsetFetchResponse:
            answers = tuple(_committed_of(call, name, wanted[name], found[name], shown) for name in wanted)
            if many:
                return messages.OffsetFetchResponse(groups=answers)
            (one,) = answers
            return messages.OffsetFetchResponse(error_code=one.error_code, topics=one.topics)

        if call.is_large or sum(map(len, committed)) > MIN_ITEM_LIMIT:
            call.answer_from(Broker.in_look_up_thread, response)
        else:
            call.answer(response())

    call.groups.offsets(asked, answer)


def _wanted(group: OffsetFetchGroup) -> list[TopicPartition] | None:
    """Return the requested partitions, once each; None for all partitions with committed offsets."""
    if group.topics is None:
        return None
    named = ((topic.name, number) for topic in group.topics for number in topic.partition_indexes)
    return list(dict.fromkeys(named))


def _committed_of(
    call: Call[messages.OffsetFetchRequest],
    name: str,
    wanted: Sequence[TopicPartition] | None,
    found: Offsets | ErrorCode,
    shown: Collection[str],
) -> messages.OffsetFetchResponse.Group:
    """Return one group's committed offsets, for the requested partitions or all topics in `shown`."""
    committed, code = ({}, found) if isinstance(found, ErrorCode) else (found, ErrorCode.NONE)
    if code is ErrorCode.COORDINATOR_NOT_AVAILABLE:  # Java retries only after the error below
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    refused = _refused(wanted or (), call.refused)

    def describe(partition: TopicPartition) -> messages.FetchedOffset:
        offset = committed.get(partition, _NOT_COMMITTED)
        return messages.FetchedOffset(
            partition_index=partition[1],
            committed_offset=offset.offset,
            committed_leader_epoch=offset.leader_epoch,
            metadata=offset.metadata,
            error_code=code or refused.get(partition, ErrorCode.NONE),
        )

    partitions = [one for one in committed if one[0] in shown] if wanted is None else wanted
    topics = group_by_topic((partition[0], describe(partition)) for partition in partitions)
    return messages.OffsetFetchResponse.Group(group_id=name, error_code=code, topics=topics)


@serves(
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
    return {
        partition: ErrorCode.TOPIC_AUTHORIZATION_FAILED
        for partition in partitions
        if refused and rights.topic(partition[0]) in refused
    }


def _partitions(
    topics: Sequence[TopicItems[messages.OffsetCommitRequest.Partition]]
    | Sequence[TopicItems[messages.OffsetDeleteRequest.Partition]],
) -> list[TopicPartition]:
    return [(topic.name, partition.partition_index) for topic in topics for partition in topic.partitions]


def _outcomes(
    partitions: Iterable[TopicPartition], codes: Codes
) -> tuple[TopicItems[messages.PartitionOutcome], ...]:
    return group_by_topic(
        (topic, messages.PartitionOutcome(partition_index=number, error_code=codes[topic, number]))
        for topic, number in partitions
    )
