"""The requests and responses of an operator, as values: settings, more partitions, sizes on disk.

As in `wire.messages`, names and order of the fields are Kafka's.
"""

from __future__ import annotations

from enum import IntEnum

from millrace.wire.fields import Message, Topic, array, boolean, by_topic, i8, i16, i32, i64, string
from millrace.wire.messages import ApiKey

ORIGINS = "mirror.origins"
"""Read-only setting of a mirrored topic: `<partition>=<cluster>/<topic>-<partition>`, with commas between."""


class ResourceType(IntEnum):  # Kafka has more kinds, which Millrace does not
    TOPIC = 2
    BROKER = 4


class ConfigSource(IntEnum):
    TOPIC = 1
    STATIC_BROKER = 4
    DEFAULT = 5


class ConfigType(IntEnum):
    BOOLEAN = 1
    STRING = 2
    LONG = 5
    LIST = 7


class ConfigOperation(IntEnum):  # the last two are for settings that are lists
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class DescribeConfigsRequest(Message):
    class Resource(Message):
        resource_type: int = i8()
        resource_name: str = string()
        configuration_keys: tuple[str, ...] | None = array(string(), null_since=0)  # None: every setting

    resources: tuple[Resource, ...] = array(Resource)
    include_synonyms: bool = boolean(since=1, default=False)
    include_documentation: bool = boolean(since=3, default=False)


class DescribedConfig(Message):
    class Synonym(Message):  # where a setting is looked for; the first that is there counts
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


class DescribeConfigsResponse(Message):
    class Result(Message):
        error_code: int = i16()
        error_message: str | None = string(null_since=0)
        resource_type: int = i8()
        resource_name: str = string()
        configs: tuple[DescribedConfig, ...] = array(DescribedConfig, default=())

    throttle_time: int = i32(default=0)
    results: tuple[Result, ...] = array(Result)


class AlterConfigsRequest(Message):  # also of IncrementalAlterConfigs, which leaves what it does not name
    class Resource(Message):
        class Config(Message):
            name: str = string()
            config_operation: int = i8(api=ApiKey.INCREMENTAL_ALTER_CONFIGS, default=ConfigOperation.SET)
            value: str | None = string(null_since=0)

        resource_type: int = i8()
        resource_name: str = string()
        configs: tuple[Config, ...] = array(Config)

    resources: tuple[Resource, ...] = array(Resource)
    validate_only: bool = boolean(default=False)


class AlterConfigsResponse(Message):  # also of IncrementalAlterConfigs
    class Resource(Message):
        error_code: int = i16()
        error_message: str | None = string(null_since=0)
        resource_type: int = i8()
        resource_name: str = string()

    throttle_time: int = i32(default=0)
    responses: tuple[Resource, ...] = array(Resource)


class CreatePartitionsRequest(Message):
    class Topic(Message):
        class Assignment(Message):  # of a new partition whose brokers the client picked itself
            broker_ids: tuple[int, ...] = array(i32())

        name: str = string()
        count: int = i32()  # of all its partitions, old and new
        assignments: tuple[Assignment, ...] | None = array(Assignment, null_since=0, default=None)

    topics: tuple[Topic, ...] = array(Topic)
    timeout: int = i32()
    validate_only: bool = boolean(default=False)


class CreatePartitionsResponse(Message):
    class Topic(Message):
        name: str = string()
        error_code: int = i16()
        error_message: str | None = string(null_since=0, default=None)

    throttle_time: int = i32(default=0)
    results: tuple[Topic, ...] = array(Topic)


class DescribeLogDirsRequest(Message):
    class Topic(Message):
        topic: str = string()
        partitions: tuple[int, ...] = array(i32())

    topics: tuple[Topic, ...] | None = array(Topic, null_since=0)  # None: all


class DescribeLogDirsResponse(Message):
    class Result(Message):  # of one log directory
        class Partition(Message):
            partition_index: int = i32()
            partition_size: int = i64()  # bytes
            offset_lag: int = i64(default=0)
            is_future_key: bool = boolean(default=False)

        error_code: int = i16()
        log_dir: str = string()
        topics: tuple[Topic[Partition], ...] = by_topic(Partition)
        total_bytes: int = i64(since=4, default=-1)  # KIP-827, of the volume that the directory is on
        usable_bytes: int = i64(since=4, default=-1)

    throttle_time: int = i32(default=0)
    error_code: int = i16(since=3, default=0)
    results: tuple[Result, ...] = array(Result)
