"""The requests and responses of an operator, as values: settings, more partitions, sizes on disk.

As in `wire.messages`, names and order of the fields are Kafka's.
"""

from __future__ import annotations

from enum import IntEnum
from uuid import UUID

from millrace.wire.fields import (
    ApiMessage,
    TopicItems,
    array,
    boolean,
    by_topic,
    i8,
    i16,
    i32,
    i64,
    optional,
    string,
    uuid,
)
from millrace.wire.messages import NO_OPERATIONS, ApiKey, TopicPartitions

ORIGINS = "mirror.origins"
"""Read-only setting of a mirrored topic: `<partition>=<cluster>/<topic>-<partition>`, separated by commas."""


class ResourceType(IntEnum):  # Millrace has no resource of the last three
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(IntEnum):
    TOPIC = 1
    STATIC_BROKER = 4
    DEFAULT = 5


class ConfigType(IntEnum):
    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class ConfigOperation(IntEnum):  # the last two are for settings that are lists
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class DescribeConfigsRequest(ApiMessage, request_of=ApiKey.DESCRIBE_CONFIGS):
    class Resource(ApiMessage):
        resource_type: int = i8()
        resource_name: str = string()
        configuration_keys: tuple[str, ...] | None = array(string(), null_since=0)  # none: every setting

    resources: tuple[Resource, ...] = array(Resource)
    include_synonyms: bool = boolean(since=1, default=False)
    include_documentation: bool = boolean(since=3, default=False)


class DescribedConfig(ApiMessage):
    class Synonym(ApiMessage):  # a place that may set the value; the first that does so counts
        name: str = string()
        value: str | None = string(null_since=0)
        source: int = i8()

    name: str = string()
    value: str | None = string(null_since=0)  # None: it is secret
    read_only: bool = boolean(default=False)
    config_source: int = i8(since=1, default=ConfigSource.DEFAULT)
    is_sensitive: bool = boolean(default=False)
    synonyms: tuple[Synonym, ...] = array(Synonym, since=1, default=())
    config_type: int = i8(since=3, default=0)
    documentation: str | None = string(since=3, null_since=3, default=None)


class DescribeConfigsResponse(ApiMessage, response_of=ApiKey.DESCRIBE_CONFIGS):
    class Result(ApiMessage):
        error_code: int = i16()
        error_message: str | None = string(null_since=0)
        resource_type: int = i8()
        resource_name: str = string()
        configs: tuple[DescribedConfig, ...] = array(DescribedConfig, default=())

    throttle_time: int = i32(default=0)
    results: tuple[Result, ...] = array(Result)


class AlterConfigsRequest(ApiMessage, request_of=(ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS)):
    # IncrementalAlterConfigs keeps all other settings.
    class Resource(ApiMessage):
        class Config(ApiMessage):
            name: str = string()
            config_operation: int = i8(api=ApiKey.INCREMENTAL_ALTER_CONFIGS, default=ConfigOperation.SET)
            value: str | None = string(null_since=0)

        resource_type: int = i8()
        resource_name: str = string()
        configs: tuple[Config, ...] = array(Config)

    resources: tuple[Resource, ...] = array(Resource)
    validate_only: bool = boolean(default=False)


class AlterConfigsResponse(ApiMessage, response_of=(ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS)):
    class Resource(ApiMessage):
        error_code: int = i16()
        error_message: str | None = string(null_since=0)
        resource_type: int = i8()
        resource_name: str = string()

    throttle_time: int = i32(default=0)
    responses: tuple[Resource, ...] = array(Resource)


class CreatePartitionsRequest(ApiMessage, request_of=ApiKey.CREATE_PARTITIONS):
    class Topic(ApiMessage):
        class Assignment(ApiMessage):  # replicas of a new partition, picked by the client
            broker_ids: tuple[int, ...] = array(i32())

        name: str = string()
        count: int = i32()  # of all its partitions, old and new
        assignments: tuple[Assignment, ...] | None = array(Assignment, null_since=0, default=None)

    topics: tuple[Topic, ...] = array(Topic)
    timeout: int = i32()
    validate_only: bool = boolean(default=False)


class CreatePartitionsResponse(ApiMessage, response_of=ApiKey.CREATE_PARTITIONS):
    class Topic(ApiMessage):
        name: str = string()
        error_code: int = i16()
        error_message: str | None = string(null_since=0, default=None)

    throttle_time: int = i32(default=0)
    results: tuple[Topic, ...] = array(Topic)


class DescribeLogDirsRequest(ApiMessage, request_of=ApiKey.DESCRIBE_LOG_DIRS):
    class Topic(ApiMessage):
        topic: str = string()
        partitions: tuple[int, ...] = array(i32())

    topics: tuple[Topic, ...] | None = array(Topic, null_since=0)  # None: all


class DescribeLogDirsResponse(ApiMessage, response_of=ApiKey.DESCRIBE_LOG_DIRS):
    class Result(ApiMessage):  # of one log directory
        class Partition(ApiMessage):
            partition_index: int = i32()
            partition_size: int = i64()  # bytes
            offset_lag: int = i64(default=0)
            is_future_key: bool = boolean(default=False)

        error_code: int = i16()
        log_dir: str = string()
        topics: tuple[TopicItems[Partition], ...] = by_topic(Partition)
        total_bytes: int = i64(since=4, default=-1)  # KIP-827, of the volume that the directory is on
        usable_bytes: int = i64(since=4, default=-1)

    throttle_time: int = i32(default=0)
    error_code: int = i16(since=3, default=0)
    results: tuple[Result, ...] = array(Result)


class DescribeClusterRequest(ApiMessage, request_of=ApiKey.DESCRIBE_CLUSTER):  # KIP-700
    include_cluster_authorized_operations: bool = boolean(default=False)
    endpoint_type: int = i8(since=1, default=1)  # KIP-919: 1 brokers, 2 controllers
    include_fenced_brokers: bool = boolean(since=2, default=False)  # KIP-1073


class DescribeClusterResponse(ApiMessage, response_of=ApiKey.DESCRIBE_CLUSTER):
    class Broker(ApiMessage):
        broker_id: int = i32()
        host: str = string()
        port: int = i32()
        rack: str | None = string(null_since=0, default=None)
        is_fenced: bool = boolean(since=2, default=False)

    throttle_time: int = i32(default=0)
    error_code: int = i16(default=0)
    error_message: str | None = string(null_since=0, default=None)
    endpoint_type: int = i8(since=1, default=1)
    cluster_id: str = string(default="")
    controller_id: int = i32(default=-1)
    brokers: tuple[Broker, ...] = array(Broker, default=())
    cluster_authorized_operations: int = i32(default=NO_OPERATIONS)


class DescribeTopicPartitionsRequest(ApiMessage, request_of=ApiKey.DESCRIBE_TOPIC_PARTITIONS):  # KIP-966
    class Topic(ApiMessage):
        name: str = string()

    class Cursor(ApiMessage):  # the partition to continue with
        topic_name: str = string()
        partition_index: int = i32()

    topics: tuple[Topic, ...] = array(Topic)  # empty: all
    response_partition_limit: int = i32(default=2000)
    cursor: Cursor | None = optional(Cursor)


class DescribeTopicPartitionsResponse(ApiMessage, response_of=ApiKey.DESCRIBE_TOPIC_PARTITIONS):
    class Topic(ApiMessage):
        class Partition(ApiMessage):
            error_code: int = i16()
            partition_index: int = i32()
            leader_id: int = i32()
            leader_epoch: int = i32(default=-1)
            replica_nodes: tuple[int, ...] = array(i32(), default=())
            isr_nodes: tuple[int, ...] = array(i32(), default=())
            eligible_leader_replicas: tuple[int, ...] | None = array(i32(), null_since=0, default=None)
            last_known_elr: tuple[int, ...] | None = array(i32(), null_since=0, default=None)
            offline_replicas: tuple[int, ...] = array(i32(), default=())

        error_code: int = i16()
        name: str | None = string(null_since=0)
        topic_id: UUID | None = uuid(default=None)
        is_internal: bool = boolean(default=False)
        partitions: tuple[Partition, ...] = array(Partition, default=())
        topic_authorized_operations: int = i32(default=NO_OPERATIONS)

    class Cursor(ApiMessage):
        topic_name: str = string()
        partition_index: int = i32()

    throttle_time: int = i32(default=0)
    topics: tuple[Topic, ...] = array(Topic, default=())
    next_cursor: Cursor | None = optional(Cursor)


class AlterPartitionReassignmentsRequest(
    ApiMessage, request_of=ApiKey.ALTER_PARTITION_REASSIGNMENTS
):  # KIP-455
    class Topic(ApiMessage):
        class Partition(ApiMessage):
            partition_index: int = i32()
            replicas: tuple[int, ...] | None = array(i32(), null_since=0, default=None)  # None: cancel

        name: str = string()
        partitions: tuple[Partition, ...] = array(Partition)

    timeout: int = i32(default=60_000)
    allow_replication_factor_change: bool = boolean(since=1, default=True)  # KIP-860
    topics: tuple[Topic, ...] = array(Topic)


class AlterPartitionReassignmentsResponse(ApiMessage, response_of=ApiKey.ALTER_PARTITION_REASSIGNMENTS):
    class Topic(ApiMessage):
        class Partition(ApiMessage):
            partition_index: int = i32()
            error_code: int = i16()
            error_message: str | None = string(null_since=0)

        name: str = string()
        partitions: tuple[Partition, ...] = array(Partition)

    throttle_time: int = i32(default=0)
    allow_replication_factor_change: bool = boolean(since=1, default=True)
    error_code: int = i16(default=0)
    error_message: str | None = string(null_since=0, default=None)
    responses: tuple[Topic, ...] = array(Topic, default=())


class ListPartitionReassignmentsRequest(ApiMessage, request_of=ApiKey.LIST_PARTITION_REASSIGNMENTS):
    timeout: int = i32(default=60_000)
    # None: all
    topics: tuple[TopicPartitions, ...] | None = array(TopicPartitions, null_since=0, default=None)


class ListPartitionReassignmentsResponse(ApiMessage, response_of=ApiKey.LIST_PARTITION_REASSIGNMENTS):
    class Topic(ApiMessage):
        class Partition(ApiMessage):
            partition_index: int = i32()
            replicas: tuple[int, ...] = array(i32())
            adding_replicas: tuple[int, ...] = array(i32())
            removing_replicas: tuple[int, ...] = array(i32())

        name: str = string()
        partitions: tuple[Partition, ...] = array(Partition)

    throttle_time: int = i32(default=0)
    error_code: int = i16(default=0)
    error_message: str | None = string(null_since=0, default=None)
    topics: tuple[Topic, ...] = array(Topic, default=())


class ElectLeadersRequest(ApiMessage, request_of=ApiKey.ELECT_LEADERS):
    class Topic(ApiMessage):
        topic: str = string()
        partitions: tuple[int, ...] = array(i32())

    election_type: int = i8(since=1, default=0)  # 0: of the preferred leader, 1: unclean
    topic_partitions: tuple[Topic, ...] | None = array(Topic, null_since=0, default=None)  # None: all
    timeout: int = i32(default=60_000)


class ElectLeadersResponse(ApiMessage, response_of=ApiKey.ELECT_LEADERS):
    class Topic(ApiMessage):
        class Partition(ApiMessage):
            partition_id: int = i32()
            error_code: int = i16()
            error_message: str | None = string(null_since=0)

        topic: str = string()
        partition_result: tuple[Partition, ...] = array(Partition)

    throttle_time: int = i32(default=0)
    error_code: int = i16(since=1, default=0)
    replica_election_results: tuple[Topic, ...] = array(Topic, default=())
