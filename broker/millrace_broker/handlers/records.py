"""DeleteRecords v0 to v2, DescribeProducers v0: operators' requests about records of partitions led here.

DeleteRecords moves a log's start, and retention then deletes the files before it. A mirrored partition has
the records of its origin: only retention deletes them. A described producer has no transaction and no
transaction coordinator.
"""

from __future__ import annotations

from functools import partial
from typing import TypeAlias

from millrace.errors import InvalidRequest, PolicyViolation
from millrace.wire.fields import ApiMessage, TopicItems, array, by_topic, i16, i32, i64, string
from millrace.wire.messages import ApiKey, TopicPartitions
from millrace_broker.handlers.table import Call, outcome_of, serves
from millrace_broker.partitions.broker import Broker
from millrace_broker.security import rights
from millrace_broker.security.rights import Need, Operation, ResourceType
from millrace_broker.storage.refused import MAX_SEQUENCE

_BY_TOPIC = (ResourceType.TOPIC,)


class DeleteRecordsRequest(ApiMessage, request_of=ApiKey.DELETE_RECORDS):  # KIP-107
    class Partition(ApiMessage):
        partition_index: int = i32()
        offset: int = i64()  # the first that is kept; -1: none is

    topics: tuple[TopicItems[Partition], ...] = by_topic(Partition)
    timeout: int = i32(default=0)


class DeleteRecordsResponse(ApiMessage, response_of=ApiKey.DELETE_RECORDS):
    class Partition(ApiMessage):
        partition_index: int = i32()
        low_watermark: int = i64(default=-1)
        error_code: int = i16(default=0)

    throttle_time: int = i32(default=0)
    topics: tuple[TopicItems[Partition], ...] = by_topic(Partition)


@serves(
    range(3),
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    needs=lambda asked: [Need(Operation.DELETE, rights.topic(topic.name)) for topic in asked.topics],
    by_item=_BY_TOPIC,
    thread=Broker.in_look_up_thread,
)
def delete_records(call: Call[DeleteRecordsRequest]) -> DeleteRecordsResponse:
    Partition, seen = DeleteRecordsResponse.Partition, set[tuple[str, int]]()

    def delete(topic: str, number: int, offset: int) -> int:
        call.check(rights.topic(topic))
        if (topic, number) in seen:
            raise InvalidRequest(f"partition {topic}-{number} is named twice")
        seen.add((topic, number))
        there = call.broker.partition(topic, number)
        if there.mirrored:
            raise PolicyViolation(f"{topic} is a mirror: only retention deletes its records")
        return there.background.delete_records(offset)

    def outcome(topic: str, wanted: DeleteRecordsRequest.Partition) -> DeleteRecordsResponse.Partition:
        number = wanted.partition_index
        work = partial(delete, topic, number, wanted.offset)
        code, _, start = outcome_of(work, f"deleting records of {topic}-{number}")
        start = -1 if start is None else start
        return Partition(partition_index=number, low_watermark=start, error_code=code)

    return DeleteRecordsResponse(
        topics=tuple(
            TopicItems(
                name=topic.name, partitions=tuple(outcome(topic.name, one) for one in topic.partitions)
            )
            for topic in call.request.topics
        )
    )


class DescribeProducersRequest(ApiMessage, request_of=ApiKey.DESCRIBE_PRODUCERS):  # KIP-664
    topics: tuple[TopicPartitions, ...] = array(TopicPartitions)


class DescribeProducersResponse(ApiMessage, response_of=ApiKey.DESCRIBE_PRODUCERS):
    class Partition(ApiMessage):
        class Producer(ApiMessage):
            producer_id: int = i64()
            producer_epoch: int = i32()
            last_sequence: int = i32(default=-1)
            last_timestamp: int = i64(default=-1)
            coordinator_epoch: int = i32(default=-1)
            current_txn_start_offset: int = i64(default=-1)

        partition_index: int = i32()
        error_code: int = i16(default=0)
        error_message: str | None = string(null_since=0, default=None)
        active_producers: tuple[Producer, ...] = array(Producer, default=())

    throttle_time: int = i32(default=0)
    topics: tuple[TopicItems[Partition], ...] = by_topic(Partition)


Producer: TypeAlias = DescribeProducersResponse.Partition.Producer


@serves(
    range(1),
    DescribeProducersRequest,
    DescribeProducersResponse,
    needs=lambda asked: [Need(Operation.READ, rights.topic(topic.name)) for topic in asked.topics],
    by_item=_BY_TOPIC,
    thread=Broker.in_look_up_thread,
)
def describe_producers(call: Call[DescribeProducersRequest]) -> DescribeProducersResponse:
    Partition = DescribeProducersResponse.Partition

    def producers(topic: str, number: int) -> tuple[Producer, ...]:
        call.check(rights.topic(topic))
        return tuple(
            Producer(
                producer_id=producer_id,
                producer_epoch=state.epoch,
                last_sequence=(state.batches[-1].next_sequence - 1) & MAX_SEQUENCE if state.batches else -1,
                last_timestamp=int(state.seen_at * 1000),
            )
            for producer_id, state in call.broker.partition(topic, number).background.active_producers()
        )

    def outcome(topic: str, number: int) -> DescribeProducersResponse.Partition:
        what = f"describing the producers of {topic}-{number}"
        code, reason, found = outcome_of(partial(producers, topic, number), what)
        return Partition(
            partition_index=number, error_code=code, error_message=reason, active_producers=found or ()
        )

    # Once each, so that a small request cannot cause an answer of any size.
    topics: dict[str, dict[int, None]] = {}
    for topic in call.request.topics:
        topics.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    return DescribeProducersResponse(
        topics=tuple(
            TopicItems(name=name, partitions=tuple(outcome(name, number) for number in numbers))
            for name, numbers in topics.items()
        )
    )
