"""The requests and responses of the Kafka protocol that Millrace speaks, as values.

Field names are those of Kafka's own schemas: `wire.codec` matches them by name and leaves out what a version
does not have. Times are in milliseconds, error codes plain numbers (another broker may send one we never do).
Produce and Fetch responses are not here: they are laid out by hand in `wire.produce` and `wire.fetch`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from uuid import UUID


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersion:
    """One line of the ApiVersions answer."""

    api_key: int
    min_version: int
    max_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsResponse:
    """Which APIs and versions a broker takes."""

    error_code: int
    api_keys: tuple[ApiVersion, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequestTopic:
    """A topic by name, or by id from version 10 on."""

    name: str | None = None
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequest:
    """Which brokers and topics are there? `topics` None asks for all of them."""

    topics: tuple[MetadataRequestTopic, ...] | None = None
    allow_auto_topic_creation: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataBroker:
    """One live broker."""

    node_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataPartition:
    """One partition and who leads it; leader -1 when nobody does."""

    error_code: int
    partition_index: int
    leader_id: int
    leader_epoch: int = -1
    replica_nodes: tuple[int, ...] = ()
    isr_nodes: tuple[int, ...] = ()
    offline_replicas: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataTopic:
    """One topic, or the error that stands in its place."""

    error_code: int
    name: str | None
    topic_id: UUID | None = None
    is_internal: bool = False
    partitions: tuple[MetadataPartition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponse:
    """Every live broker, and the topics that were asked for."""

    brokers: tuple[MetadataBroker, ...]
    cluster_id: str | None
    controller_id: int
    topics: tuple[MetadataTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPartition:
    """From where to read one partition, and how much at most."""

    partition: int
    fetch_offset: int
    partition_max_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchTopic:
    """The partitions of one topic in a fetch."""

    topic: str
    partitions: tuple[FetchPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """Wait until `min_bytes` are there or `max_wait` ms have passed; answer with `max_bytes` at most."""

    max_wait: int
    min_bytes: int
    max_bytes: int = 0x7FFFFFFF
    replica_id: int = -1
    isolation_level: int = 0
    topics: tuple[FetchTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsPartition:
    """`timestamp` in ms, or -1 for the latest, -2 for the earliest offset."""

    partition_index: int
    timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsTopic:
    """The partitions of one topic whose offsets are wanted."""

    name: str
    partitions: tuple[ListOffsetsPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsRequest:
    """Which offsets belong to these timestamps?"""

    topics: tuple[ListOffsetsTopic, ...]
    replica_id: int = -1
    isolation_level: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsPartitionResponse:
    """The offset found; -1 when every message is older than the timestamp."""

    partition_index: int
    error_code: int
    timestamp: int = -1
    offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsTopicResponse:
    """The offsets found in one topic."""

    name: str
    partitions: tuple[ListOffsetsPartitionResponse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsResponse:
    """The offsets found."""

    topics: tuple[ListOffsetsTopicResponse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatableReplicaAssignment:
    """A partition whose brokers the client picked itself."""

    partition_index: int
    broker_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatableTopicConfig:
    """One setting of a new topic."""

    name: str
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatableTopic:
    """A topic to create; -1 asks for the broker's default number."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    assignments: tuple[CreatableReplicaAssignment, ...] = ()
    configs: tuple[CreatableTopicConfig, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicsRequest:
    """Create these topics within `timeout` ms, or only check that it could be done."""

    topics: tuple[CreatableTopic, ...]
    timeout: int
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatableTopicResult:
    """What became of one topic."""

    name: str
    error_code: int
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicsResponse:
    """What became of every topic."""

    topics: tuple[CreatableTopicResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicsRequest:
    """Delete these topics within `timeout` ms."""

    topic_names: tuple[str, ...]
    timeout: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletableTopicResult:
    """What became of one topic."""

    name: str | None
    error_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicsResponse:
    """What became of every topic."""

    responses: tuple[DeletableTopicResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdRequest:
    """A producer id for idempotent writes, please."""

    transactional_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdResponse:
    """The producer id, or -1 and an error."""

    error_code: int
    producer_id: int = -1
    producer_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinatorRequest:
    """Who coordinates this group (`key_type` 0) or transactional id (1)?"""

    key: str
    key_type: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinatorResponse:
    """The coordinator, or -1 and an error."""

    error_code: int
    error_message: str | None = None
    node_id: int = -1
    host: str = ""
    port: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequestTopic:
    """The partitions of one topic whose committed offsets are wanted."""

    name: str
    partition_indexes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequest:
    """Where is this group? `topics` None asks for every partition it committed."""

    group_id: str
    topics: tuple[OffsetFetchRequestTopic, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponsePartition:
    """The committed offset, -1 when there is none."""

    partition_index: int
    committed_offset: int = -1
    metadata: str | None = ""
    error_code: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponseTopic:
    """The committed offsets of one topic."""

    name: str
    partitions: tuple[OffsetFetchResponsePartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponse:
    """Where the group is."""

    topics: tuple[OffsetFetchResponseTopic, ...]
    error_code: int = 0
