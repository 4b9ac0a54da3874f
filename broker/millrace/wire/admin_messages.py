"""The messages of an operator as values: settings told and changed, more partitions, sizes on disk.

As in `wire.messages`: field names are Kafka's, a version's missing fields are left out by `wire.codec`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

ORIGINS = "mirror.origins"
"""Read-only setting of a mirrored topic: `<partition>=<cluster>/<topic>-<partition>`, with commas between."""


class ResourceType(IntEnum):
    """Whose settings; Kafka has more kinds, which Millrace does not."""

    TOPIC = 2
    BROKER = 4


class ConfigSource(IntEnum):
    """Where a setting's value comes from."""

    TOPIC = 1
    STATIC_BROKER = 4
    DEFAULT = 5


class ConfigType(IntEnum):
    """What a setting's text stands for."""

    BOOLEAN = 1
    STRING = 2
    LONG = 5
    LIST = 7


class ConfigOperation(IntEnum):
    """What IncrementalAlterConfigs does to a setting; the last two are for settings that are lists."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsResource:
    """What is asked about; `configuration_keys` None asks for every setting."""

    resource_type: int
    resource_name: str
    configuration_keys: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsRequest:
    """Which settings have these resources?"""

    resources: tuple[DescribeConfigsResource, ...]
    include_synonyms: bool = False
    include_documentation: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsSynonym:
    """One of the places a setting is looked for; the first that is there counts."""

    name: str
    value: str | None
    source: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsResourceResult:
    """One setting; `value` is None when it is secret."""

    name: str
    value: str | None
    read_only: bool = False
    config_source: int = ConfigSource.DEFAULT
    is_sensitive: bool = False
    synonyms: tuple[DescribeConfigsSynonym, ...] = ()
    config_type: int = 0
    documentation: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsResult:
    """One resource's settings, or the error in their place."""

    error_code: int
    error_message: str | None
    resource_type: int
    resource_name: str
    configs: tuple[DescribeConfigsResourceResult, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsResponse:
    """The answer, one result for each resource."""

    results: tuple[DescribeConfigsResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterableConfig:
    """One setting to change; `config_operation` is IncrementalAlterConfigs' only."""

    name: str
    value: str | None
    config_operation: int = ConfigOperation.SET


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsResource:
    """The changes of one resource."""

    resource_type: int
    resource_name: str
    configs: tuple[AlterableConfig, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsRequest:
    """Give these resources these settings and no others."""

    resources: tuple[AlterConfigsResource, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementalAlterConfigsRequest:
    """Change these settings and leave the others."""

    resources: tuple[AlterConfigsResource, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsResourceResponse:
    """What became of one resource's changes."""

    error_code: int
    error_message: str | None
    resource_type: int
    resource_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsResponse:
    """What became of every resource's changes; the answer of both APIs."""

    responses: tuple[AlterConfigsResourceResponse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsAssignment:
    """The brokers a client picked itself for one new partition."""

    broker_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsTopic:
    """`count` is how many partitions there are to be in all."""

    name: str
    count: int
    assignments: tuple[CreatePartitionsAssignment, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsRequest:
    """Give these topics more partitions within `timeout` ms, or only check that it could be done."""

    topics: tuple[CreatePartitionsTopic, ...]
    timeout: int
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsTopicResult:
    """What became of one topic."""

    name: str
    error_code: int
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsResponse:
    """What became of every topic."""

    results: tuple[CreatePartitionsTopicResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribableLogDirTopic:
    """Some partitions of a topic."""

    topic: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeLogDirsRequest:
    """How large are these partitions on this broker's disk? `topics` None asks for all."""

    topics: tuple[DescribableLogDirTopic, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeLogDirsPartition:
    """One partition stored here; `partition_size` in bytes."""

    partition_index: int
    partition_size: int
    offset_lag: int = 0
    is_future_key: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeLogDirsTopic:
    """The partitions of one topic that are stored here."""

    name: str
    partitions: tuple[DescribeLogDirsPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeLogDirsResult:
    """What one log directory holds."""

    error_code: int
    log_dir: str
    topics: tuple[DescribeLogDirsTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeLogDirsResponse:
    """Every log directory of one broker."""

    results: tuple[DescribeLogDirsResult, ...]
