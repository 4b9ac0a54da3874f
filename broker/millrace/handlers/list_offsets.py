"""ListOffsets, v1 to v5.

Latest is the high watermark, earliest the log's start. A time finds the first message at or after it, looked
up in a thread because old segments may be cold and the message's batch is decompressed.
Left out: v0, and the offset of the largest timestamp (-3), which belongs to v7.
"""

from __future__ import annotations

from millrace.broker.broker import Broker, Partition
from millrace.errors import BrokerError, ErrorCode, InvalidRequest
from millrace.handlers.table import Api, answer_from_thread
from millrace.server.request import Request
from millrace.wire.codec import decode, encode
from millrace.wire.messages import (
    ApiKey,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

_LATEST, _EARLIEST = -1, -2
Lookup = tuple[ListOffsetsPartition, "Partition | BrokerError"]


def handle(broker: Broker, request: Request) -> None:
    """Answer at once, or after a thread has looked up the times."""
    version = request.api_version
    asked = decode(ListOffsetsRequest, ApiKey.LIST_OFFSETS, version, request.body)
    seen: set[tuple[str, int]] = set()
    lookups = [
        (topic.name, [(p, _find(broker, topic.name, p, seen)) for p in topic.partitions])
        for topic in asked.topics
    ]

    def look_up() -> bytes:
        topics = tuple(
            ListOffsetsTopicResponse(name=name, partitions=tuple(_answer(*lookup) for lookup in partitions))
            for name, partitions in lookups
        )
        return encode(ListOffsetsResponse(topics=topics), ApiKey.LIST_OFFSETS, version)

    if any(p.timestamp >= 0 for topic in asked.topics for p in topic.partitions):
        answer_from_thread(broker.in_look_up_thread, request, look_up)
    else:
        request.answer([look_up()])


def _find(
    broker: Broker, topic: str, wanted: ListOffsetsPartition, seen: set[tuple[str, int]]
) -> Partition | BrokerError:
    place = (topic, wanted.partition_index)
    if place in seen:
        return InvalidRequest("a partition is named twice")  # as in Kafka: one look-up for each is enough
    seen.add(place)
    try:
        return broker.partition(*place)
    except BrokerError as error:
        return error


def _answer(wanted: ListOffsetsPartition, found: Partition | BrokerError) -> ListOffsetsPartitionResponse:
    index = wanted.partition_index
    if isinstance(found, BrokerError):
        return ListOffsetsPartitionResponse(partition_index=index, error_code=found.code)
    timestamp, offset, error = -1, -1, ErrorCode.NONE
    if wanted.timestamp == _LATEST:
        offset = found.log.high_watermark
    elif wanted.timestamp == _EARLIEST:
        offset = found.log.log_start_offset
    elif wanted.timestamp < 0:
        error = ErrorCode.UNSUPPORTED_VERSION
    else:
        try:
            offset, timestamp = found.log.offset_for_timestamp(wanted.timestamp) or (-1, -1)
        except BrokerError as refused:
            error = refused.code
        except OSError:
            error = ErrorCode.STORAGE_ERROR
    return ListOffsetsPartitionResponse(
        partition_index=index, error_code=error, timestamp=timestamp, offset=offset
    )


LIST_OFFSETS = Api(key=ApiKey.LIST_OFFSETS, versions=frozenset(range(1, 6)), advertised=(1, 5), handle=handle)
