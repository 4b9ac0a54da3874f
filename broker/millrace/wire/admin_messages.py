"""The messages of an operator as values: settings told and changed, more partitions, sizes on disk.

As in `wire.messages`, names and order of the fields are Kafka's.
"""

from __future__ import annotations

from enum import IntEnum

from millrace.wire.fields import Message, array, boolean, i8, i16, i32, i64, string
from millrace.wire.messages import ApiKey

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


class DescribeConfigsResource(Message):
    """`configuration_keys` None asks for every setting."""

    resource_type: int = i8()
    resource_name: str = string()
    configuration_keys: tuple[str, ...] | None = array(string(), null_since=0)


class DescribeConfigsRequest(Message):
    resources: tuple[DescribeConfigsResource, ...] = array(DescribeConfigsResource)
    include_synonyms: bool = boolean(since=1, default=False)
    include_documentation: bool = boolean(since=3, default=False)


class DescribeConfigsSynonym(Message):
    """One of the places where a setting is looked for; the first that is there counts."""

    name: str = string()
    value: str | None = string(null_since=0)
    source: int = i8()


class DescribeConfigsResourceResult(Message):
    """One setting; `value` is None when it is secret."""

    name: str = string()
    value: str | None = string(null_since=0)
    read_only: bool = boolean(default=False)
    config_source: int = i8(since=1, default=ConfigSource.DEFAULT)
    is_sensitive: bool = boolean(default=False)
    synonyms: tuple[DescribeConfigsSynonym, ...] = array(DescribeConfigsSynonym, since=1, default=())
    config_type: int = i8(since=3, default=0)
    documentation: str | None = string(since=3, null_since=3, default=None)


class DescribeConfigsResult(Message):
    """One resource's settings, or the error in their place."""

    error_code: int = i16()
    error_message: str | None = string(null_since=0)
    resource_type: int = i8()
    resource_name: str = string()
    configs: tuple[DescribeConfigsResourceResult, ...] = array(DescribeConfigsResourceResult, default=())


class DescribeConfigsResponse(Message):
    throttle_time: int = i32(default=0)
    results: tuple[DescribeConfigsResult, ...] = array(DescribeConfigsResult)


class AlterableConfig(Message):
    name: str = string()
    config_operation: int = i8(api=ApiKey.INCREMENTAL_ALTER_CONFIGS, default=ConfigOperation.SET)
    value: str | None = string(null_since=0)


class AlterConfigsResource(Message):
    resource_type: int = i8()
    resource_name: str = string()
    configs: tuple[AlterableConfig, ...] = array(AlterableConfig)


class AlterConfigsRequest(Message):
    """Gives the resources these settings and no others."""

    resources: tuple[AlterConfigsResource, ...] = array(AlterConfigsResource)
    validate_only: bool = boolean(default=False)


class IncrementalAlterConfigsRequest(Message):
    """Changes these settings and leaves the others."""

    resources: tuple[AlterConfigsResource, ...] = array(AlterConfigsResource)
    validate_only: bool = boolean(default=False)


class AlterConfigsResourceResponse(Message):
    error_code: int = i16()
    error_message: str | None = string(null_since=0)
    resource_type: int = i8()
    resource_name: str = string()


class AlterConfigsResponse(Message):
    """The answer of both APIs that change settings."""

    throttle_time: int = i32(default=0)
    responses: tuple[AlterConfigsResourceResponse, ...] = array(AlterConfigsResourceResponse)


class CreatePartitionsAssignment(Message):
    """The brokers that a client picked itself for one new partition."""

    broker_ids: tuple[int, ...] = array(i32())


class CreatePartitionsTopic(Message):
    """`count` is how many partitions there are to be in all."""

    name: str = string()
    count: int = i32()
    assignments: tuple[CreatePartitionsAssignment, ...] | None = array(
        CreatePartitionsAssignment, null_since=0, default=None
    )


class CreatePartitionsRequest(Message):
    topics: tuple[CreatePartitionsTopic, ...] = array(CreatePartitionsTopic)
    timeout: int = i32()
    validate_only: bool = boolean(default=False)


class CreatePartitionsTopicResult(Message):
    name: str = string()
    error_code: int = i16()
    error_message: str | None = string(null_since=0, default=None)


class CreatePartitionsResponse(Message):
    throttle_time: int = i32(default=0)
    results: tuple[CreatePartitionsTopicResult, ...] = array(CreatePartitionsTopicResult)


class DescribableLogDirTopic(Message):
    topic: str = string()
    partitions: tuple[int, ...] = array(i32())


class DescribeLogDirsRequest(Message):
    """`topics` None asks for all."""

    topics: tuple[DescribableLogDirTopic, ...] | None = array(DescribableLogDirTopic, null_since=0)


class DescribeLogDirsPartition(Message):
    """`partition_size` is in bytes."""

    partition_index: int = i32()
    partition_size: int = i64()
    offset_lag: int = i64(default=0)
    is_future_key: bool = boolean(default=False)


class DescribeLogDirsTopic(Message):
    name: str = string()
    partitions: tuple[DescribeLogDirsPartition, ...] = array(DescribeLogDirsPartition)


class DescribeLogDirsResult(Message):
    """What one log directory holds."""

    error_code: int = i16()
    log_dir: str = string()
    topics: tuple[DescribeLogDirsTopic, ...] = array(DescribeLogDirsTopic)


class DescribeLogDirsResponse(Message):
    throttle_time: int = i32(default=0)
    results: tuple[DescribeLogDirsResult, ...] = array(DescribeLogDirsResult)
