"""The requests and responses of the Kafka protocol that Millrace speaks, as values: brokers and topics.

Names and order of the fields are those of Kafka's own schemas; the items of a message's lists are declared
inside it. Times are in milliseconds, error codes plain numbers (another broker may send codes that Millrace
never does). Groups and administration have modules of their own; Produce and Fetch are laid out by hand in
`wire.produce` and `wire.fetch`. Messages that only a broker's handler uses are declared above that handler.
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
    string,
    uuid,
)

NO_OPERATIONS = -(1 << 31)
"""Kafka's value for a set of authorized operations that the request did not ask for."""


class ApiKey(IntEnum):
    """The numbers of the APIs Millrace knows; those from 10,000 on are its own and never advertised.

    For the two other places to change with a new API see docs/architecture.md, "How to add".
    """

    flexible_since: int
    """The first version with tagged fields and short lengths."""

    def __new__(cls, key: int, flexible_since: int = 0x7FFF) -> ApiKey:
        member = int.__new__(cls, key)
        member._value_ = key
        member.flexible_since = flexible_since
        return member

    PRODUCE = 0, 9
    FETCH = 1, 12
    LIST_OFFSETS = 2, 6
    METADATA = 3, 9
    OFFSET_COMMIT = 8, 8
    OFFSET_FETCH = 9, 6
    FIND_COORDINATOR = 10, 3
    JOIN_GROUP = 11, 6
    HEARTBEAT = 12, 4
    LEAVE_GROUP = 13, 4
    SYNC_GROUP = 14, 4
    DESCRIBE_GROUPS = 15, 5
    LIST_GROUPS = 16, 3
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18, 3
    CREATE_TOPICS = 19, 5
    DELETE_TOPICS = 20, 4
    DELETE_RECORDS = 21, 2
    INIT_PRODUCER_ID = 22, 2
    OFFSET_FOR_LEADER_EPOCH = 23, 4
    DESCRIBE_ACLS = 29, 2
    CREATE_ACLS = 30, 2
    DELETE_ACLS = 31, 2
    DESCRIBE_CONFIGS = 32, 4
    ALTER_CONFIGS = 33, 2
    DESCRIBE_LOG_DIRS = 35, 2
    SASL_AUTHENTICATE = 36, 2
    CREATE_PARTITIONS = 37, 2
    DELETE_GROUPS = 42, 2
    ELECT_LEADERS = 43, 2
    INCREMENTAL_ALTER_CONFIGS = 44, 1
    ALTER_PARTITION_REASSIGNMENTS = 45, 0
    LIST_PARTITION_REASSIGNMENTS = 46, 0
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48, 1
    ALTER_CLIENT_QUOTAS = 49, 1
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50, 0
    ALTER_USER_SCRAM_CREDENTIALS = 51, 0
    DESCRIBE_CLUSTER = 60, 0
    DESCRIBE_PRODUCERS = 61, 0
    UNREGISTER_BROKER = 64, 0
    LIST_TRANSACTIONS = 66, 0
    LIST_CONFIG_RESOURCES = 74, 0
    DESCRIBE_TOPIC_PARTITIONS = 75, 0
    MIRROR_APPEND = 10_000
    TRANSLATE_OFFSETS = 10_001
    REPLICA_FETCH = 10_002
    REPLICA_ACK = 10_003
    ELECT_UNCLEAN = 10_004


class TopicPartitions(ApiMessage):
    """A topic and some of its partitions, as a request names them."""

    name: str = string()
    partition_indexes: tuple[int, ...] = array(i32())


class ApiVersionsResponse(ApiMessage, response_of=ApiKey.API_VERSIONS):
    class ApiVersion(ApiMessage):
        api_key: int = i16()
        min_version: int = i16()
        max_version: int = i16()

    error_code: int = i16()
    api_keys: tuple[ApiVersion, ...] = array(ApiVersion)
    throttle_time: int = i32(since=1, default=0)


class MetadataRequest(ApiMessage, request_of=ApiKey.METADATA):
    class Topic(ApiMessage):  # by name, or by id from version 10 on
        topic_id: UUID | None = uuid(since=10, default=None)
        name: str | None = string(null_since=10, default=None)

    topics: tuple[Topic, ...] | None = array(Topic, null_since=1, default=None)  # None: all
    allow_auto_topic_creation: bool = boolean(since=4, default=True)
    include_cluster_authorized_operations: bool = boolean(since=8, until=10, default=False)
    include_topic_authorized_operations: bool = boolean(since=8, default=False)


class MetadataResponse(ApiMessage, response_of=ApiKey.METADATA):
    class Broker(ApiMessage):
        node_id: int = i32()
        host: str = string()
        port: int = i32()
        rack: str | None = string(since=1, null_since=1, default=None)

    class Topic(ApiMessage):
        class Partition(ApiMessage):
            error_code: int = i16()
            partition_index: int = i32()
            leader_id: int = i32()  # -1: no leader
            leader_epoch: int = i32(since=7, default=-1)
            replica_nodes: tuple[int, ...] = array(i32(), default=())
            isr_nodes: tuple[int, ...] = array(i32(), default=())
            offline_replicas: tuple[int, ...] = array(i32(), since=5, default=())

        error_code: int = i16()
        name: str | None = string(null_since=12)
        topic_id: UUID | None = uuid(since=10, default=None)
        is_internal: bool = boolean(since=1, default=False)
        partitions: tuple[Partition, ...] = array(Partition, default=())
        topic_authorized_operations: int = i32(since=8, default=NO_OPERATIONS)

    throttle_time: int = i32(since=3, default=0)
    brokers: tuple[Broker, ...] = array(Broker)
    cluster_id: str | None = string(since=2, null_since=2, default=None)
    controller_id: int = i32(since=1, default=-1)
    topics: tuple[Topic, ...] = array(Topic)
    cluster_authorized_operations: int = i32(since=8, until=10, default=NO_OPERATIONS)
    error_code: int = i16(since=13, default=0)  # KIP-1102: go back to the bootstrap servers


class ListOffsetsRequest(ApiMessage, request_of=ApiKey.LIST_OFFSETS):
    class Partition(ApiMessage):
        partition_index: int = i32()
        current_leader_epoch: int = i32(since=4, default=-1)
        timestamp: int = i64()  # -1: the latest offset, -2: the earliest; Kafka defines others

    replica_id: int = i32(default=-1)
    isolation_level: int = i8(since=2, default=0)
    topics: tuple[TopicItems[Partition], ...] = by_topic(Partition)
    timeout: int = i32(since=10, default=0)  # KIP-1075, for records in remote storage


class ListOffsetsResponse(ApiMessage, response_of=ApiKey.LIST_OFFSETS):
    class Partition(ApiMessage):
        partition_index: int = i32()
        error_code: int = i16()
        timestamp: int = i64(default=-1)
        offset: int = i64(default=-1)  # -1: every message is older than the timestamp
        leader_epoch: int = i32(since=4, default=-1)

    throttle_time: int = i32(since=2, default=0)
    topics: tuple[TopicItems[Partition], ...] = by_topic(Partition)


class CreateTopicsRequest(ApiMessage, request_of=ApiKey.CREATE_TOPICS):
    class Topic(ApiMessage):
        class Assignment(ApiMessage):  # replicas of a partition, picked by the client
            partition_index: int = i32()
            broker_ids: tuple[int, ...] = array(i32())

        class Config(ApiMessage):
            name: str = string()
            value: str | None = string(null_since=0)

        name: str = string()
        num_partitions: int = i32(default=-1)  # -1: the broker's default
        replication_factor: int = i16(default=-1)
        assignments: tuple[Assignment, ...] = array(Assignment, default=())
        configs: tuple[Config, ...] = array(Config, default=())

    topics: tuple[Topic, ...] = array(Topic)
    timeout: int = i32()
    validate_only: bool = boolean(since=1, default=False)


class CreateTopicsResponse(ApiMessage, response_of=ApiKey.CREATE_TOPICS):
    class Topic(ApiMessage):
        class Config(ApiMessage):  # KIP-525
            name: str = string()
            value: str | None = string(null_since=5)
            read_only: bool = boolean()
            config_source: int = i8(default=-1)
            is_sensitive: bool = boolean(default=False)

        name: str = string()
        topic_id: UUID | None = uuid(since=7, default=None)  # KIP-516
        error_code: int = i16()
        error_message: str | None = string(since=1, null_since=1, default=None)
        num_partitions: int = i32(since=5, default=-1)  # -1: not reported
        replication_factor: int = i16(since=5, default=-1)
        configs: tuple[Config, ...] | None = array(Config, since=5, null_since=5, default=())

    throttle_time: int = i32(since=2, default=0)
    topics: tuple[Topic, ...] = array(Topic)


class DeleteTopicsRequest(ApiMessage, request_of=ApiKey.DELETE_TOPICS):
    class Topic(ApiMessage):  # KIP-516: by name or by id
        name: str | None = string(null_since=6, default=None)
        topic_id: UUID | None = uuid(default=None)

    topics: tuple[Topic, ...] = array(Topic, since=6, default=())
    topic_names: tuple[str, ...] = array(string(), until=5, default=())
    timeout: int = i32()


class DeleteTopicsResponse(ApiMessage, response_of=ApiKey.DELETE_TOPICS):
    class Topic(ApiMessage):
        name: str | None = string(null_since=6)
        topic_id: UUID | None = uuid(since=6, default=None)
        error_code: int = i16()
        error_message: str | None = string(since=5, null_since=5, default=None)  # KIP-599

    throttle_time: int = i32(since=1, default=0)
    responses: tuple[Topic, ...] = array(Topic)


class InitProducerIdRequest(ApiMessage, request_of=ApiKey.INIT_PRODUCER_ID):
    transactional_id: str | None = string(null_since=0, default=None)
    transaction_timeout: int = i32(default=0)
    producer_id: int = i64(since=3, default=-1)  # KIP-360, of transactional producers
    producer_epoch: int = i16(since=3, default=-1)


class InitProducerIdResponse(ApiMessage, response_of=ApiKey.INIT_PRODUCER_ID):
    throttle_time: int = i32(default=0)
    error_code: int = i16()
    producer_id: int = i64(default=-1)
    producer_epoch: int = i16(default=-1)
