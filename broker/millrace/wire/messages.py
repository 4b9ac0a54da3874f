"""The requests and responses of the Kafka protocol that Millrace speaks, as values.

Names and order of the fields are those of Kafka's own schemas. Times are in milliseconds, error codes plain
numbers (another broker may send one that Millrace never does). Groups and settings have modules of their own;
Produce and Fetch are laid out by hand in `wire.produce` and `wire.fetch`.
"""

from __future__ import annotations

from enum import IntEnum
from uuid import UUID

from millrace.wire.fields import Message, array, boolean, i8, i16, i32, i64, string, uuid

_NOT_TOLD = -(1 << 31)
"""Stands for a set of authorized operations that nobody asked for."""


class ApiKey(IntEnum):
    """The numbers of the APIs Millrace knows; those from 10,000 on are its own and never advertised."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    INIT_PRODUCER_ID = 22
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    CREATE_PARTITIONS = 37
    INCREMENTAL_ALTER_CONFIGS = 44
    DELETE_GROUPS = 42
    OFFSET_DELETE = 47
    MIRROR_APPEND = 10_000
    TRANSLATE_OFFSETS = 10_001


class EmptyProduceResponse(Message):
    responses: tuple[int, ...] = array(i8())
    throttle_time: int = i32(since=1, default=0)


class EmptyFetchResponse(Message):
    throttle_time: int = i32(default=0)
    error_code: int = i16(since=7, default=0)
    session_id: int = i32(since=7, default=0)
    responses: tuple[int, ...] = array(i8())


class ApiVersion(Message):
    api_key: int = i16()
    min_version: int = i16()
    max_version: int = i16()


class ApiVersionsResponse(Message):
    error_code: int = i16()
    api_keys: tuple[ApiVersion, ...] = array(ApiVersion)
    throttle_time: int = i32(since=1, default=0)


class MetadataRequestTopic(Message):
    """A topic by name, or by id from version 10 on."""

    topic_id: UUID | None = uuid(since=10, default=None)
    name: str | None = string(null_since=10, default=None)


class MetadataRequest(Message):
    """`topics` None asks for all of them."""

    topics: tuple[MetadataRequestTopic, ...] | None = array(MetadataRequestTopic, null_since=1, default=None)
    allow_auto_topic_creation: bool = boolean(since=4, default=True)
    include_cluster_authorized_operations: bool = boolean(since=8, until=10, default=False)
    include_topic_authorized_operations: bool = boolean(since=8, default=False)


class MetadataBroker(Message):
    node_id: int = i32()
    host: str = string()
    port: int = i32()
    rack: str | None = string(since=1, null_since=1, default=None)


class MetadataPartition(Message):
    """`leader_id` is -1 when nobody leads the partition."""

    error_code: int = i16()
    partition_index: int = i32()
    leader_id: int = i32()
    leader_epoch: int = i32(since=7, default=-1)
    replica_nodes: tuple[int, ...] = array(i32(), default=())
    isr_nodes: tuple[int, ...] = array(i32(), default=())
    offline_replicas: tuple[int, ...] = array(i32(), since=5, default=())


class MetadataTopic(Message):
    """One topic, or the error that stands in its place."""

    error_code: int = i16()
    name: str | None = string(null_since=12)
    topic_id: UUID | None = uuid(since=10, default=None)
    is_internal: bool = boolean(since=1, default=False)
    partitions: tuple[MetadataPartition, ...] = array(MetadataPartition, default=())
    topic_authorized_operations: int = i32(since=8, default=_NOT_TOLD)


class MetadataResponse(Message):
    """Every live broker, and the topics that were asked for."""

    throttle_time: int = i32(since=3, default=0)
    brokers: tuple[MetadataBroker, ...] = array(MetadataBroker)
    cluster_id: str | None = string(since=2, null_since=2, default=None)
    controller_id: int = i32(since=1, default=-1)
    topics: tuple[MetadataTopic, ...] = array(MetadataTopic)
    cluster_authorized_operations: int = i32(since=8, until=10, default=_NOT_TOLD)


class ListOffsetsPartition(Message):
    """`timestamp` is in ms, or -1 for the latest, -2 for the earliest offset."""

    partition_index: int = i32()
    current_leader_epoch: int = i32(since=4, default=-1)
    timestamp: int = i64()


class ListOffsetsTopic(Message):
    name: str = string()
    partitions: tuple[ListOffsetsPartition, ...] = array(ListOffsetsPartition)


class ListOffsetsRequest(Message):
    replica_id: int = i32(default=-1)
    isolation_level: int = i8(since=2, default=0)
    topics: tuple[ListOffsetsTopic, ...] = array(ListOffsetsTopic)


class ListOffsetsPartitionResponse(Message):
    """`offset` is -1 when every message is older than the timestamp."""

    partition_index: int = i32()
    error_code: int = i16()
    timestamp: int = i64(default=-1)
    offset: int = i64(default=-1)
    leader_epoch: int = i32(since=4, default=-1)


class ListOffsetsTopicResponse(Message):
    name: str = string()
    partitions: tuple[ListOffsetsPartitionResponse, ...] = array(ListOffsetsPartitionResponse)


class ListOffsetsResponse(Message):
    throttle_time: int = i32(since=2, default=0)
    topics: tuple[ListOffsetsTopicResponse, ...] = array(ListOffsetsTopicResponse)


class CreatableReplicaAssignment(Message):
    """A partition whose brokers the client picked itself."""

    partition_index: int = i32()
    broker_ids: tuple[int, ...] = array(i32())


class CreatableTopicConfig(Message):
    name: str = string()
    value: str | None = string(null_since=0)


class CreatableTopic(Message):
    """-1 asks for the broker's default number."""

    name: str = string()
    num_partitions: int = i32(default=-1)
    replication_factor: int = i16(default=-1)
    assignments: tuple[CreatableReplicaAssignment, ...] = array(CreatableReplicaAssignment, default=())
    configs: tuple[CreatableTopicConfig, ...] = array(CreatableTopicConfig, default=())


class CreateTopicsRequest(Message):
    topics: tuple[CreatableTopic, ...] = array(CreatableTopic)
    timeout: int = i32()
    validate_only: bool = boolean(since=1, default=False)


class CreatableTopicResult(Message):
    name: str = string()
    error_code: int = i16()
    error_message: str | None = string(since=1, null_since=1, default=None)


class CreateTopicsResponse(Message):
    throttle_time: int = i32(since=2, default=0)
    topics: tuple[CreatableTopicResult, ...] = array(CreatableTopicResult)


class DeleteTopicsRequest(Message):
    topic_names: tuple[str, ...] = array(string())
    timeout: int = i32()


class DeletableTopicResult(Message):
    name: str | None = string()
    error_code: int = i16()


class DeleteTopicsResponse(Message):
    throttle_time: int = i32(since=1, default=0)
    responses: tuple[DeletableTopicResult, ...] = array(DeletableTopicResult)


class InitProducerIdRequest(Message):
    transactional_id: str | None = string(null_since=0, default=None)
    transaction_timeout: int = i32(default=0)


class InitProducerIdResponse(Message):
    """The producer id, or -1 and an error."""

    throttle_time: int = i32(default=0)
    error_code: int = i16()
    producer_id: int = i64(default=-1)
    producer_epoch: int = i16(default=-1)


class FindCoordinatorRequest(Message):
    """`key` names a group (`key_type` 0) or a transactional id (1)."""

    key: str = string()
    key_type: int = i8(since=1, default=0)


class FindCoordinatorResponse(Message):
    """The coordinator, or -1 and an error."""

    throttle_time: int = i32(since=1, default=0)
    error_code: int = i16()
    error_message: str | None = string(since=1, null_since=1, default=None)
    node_id: int = i32(default=-1)
    host: str = string(default="")
    port: int = i32(default=-1)


class OffsetFetchRequestTopic(Message):
    name: str = string()
    partition_indexes: tuple[int, ...] = array(i32())


class OffsetFetchRequest(Message):
    """`topics` None asks for every partition that the group committed."""

    group_id: str = string()
    topics: tuple[OffsetFetchRequestTopic, ...] | None = array(OffsetFetchRequestTopic, null_since=2)


class OffsetFetchResponsePartition(Message):
    """`committed_offset` is -1 when there is none."""

    partition_index: int = i32()
    committed_offset: int = i64(default=-1)
    committed_leader_epoch: int = i32(since=5, default=-1)
    metadata: str | None = string(null_since=0, default="")
    error_code: int = i16(default=0)


class OffsetFetchResponseTopic(Message):
    name: str = string()
    partitions: tuple[OffsetFetchResponsePartition, ...] = array(OffsetFetchResponsePartition)


class OffsetFetchResponse(Message):
    throttle_time: int = i32(since=3, default=0)
    topics: tuple[OffsetFetchResponseTopic, ...] = array(OffsetFetchResponseTopic)
    error_code: int = i16(since=2, default=0)
