"""What an operator asks of a cluster's topics: their settings, changes of them, more partitions, sizes.

The client's side, of Millrace and of Apache Kafka. Each call is one request to one broker, or one to each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from millrace.client.cluster_client import ClusterClient
from millrace.client.errors import TryAgain, raise_error
from millrace.errors import BrokerError
from millrace.wire.admin_messages import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResponse,
    ConfigOperation,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    DescribableLogDirTopic,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    IncrementalAlterConfigsRequest,
    ResourceType,
)
from millrace.wire.codec import decode, encode
from millrace.wire.fetch import error_name
from millrace.wire.messages import ApiKey

_CONFIGS_VERSION = 1
_ALTER_VERSION = 0
_PARTITIONS_VERSION = 1
_LOG_DIRS_VERSION = 1
_CREATE_PARTITIONS_MS = 30_000


def topic_setting(client: ClusterClient, topic: str, name: str) -> str | None:
    """The topic's setting as text, None when the cluster does not tell it; BrokerError when it refuses."""
    found = {config.name: config.value for config in topic_settings(client, topic, (name,))}
    return found.get(name)


def topic_settings(
    client: ClusterClient, topic: str, names: tuple[str, ...] | None = None
) -> tuple[DescribeConfigsResourceResult, ...]:
    """The topic's settings, all or those named; BrokerError when the cluster refuses to tell them."""
    return settings_of_topics(client, [topic], names)[topic]


def settings_of_topics(
    client: ClusterClient, topics: Iterable[str], names: tuple[str, ...] | None = None
) -> dict[str, tuple[DescribeConfigsResourceResult, ...]]:
    """Topic -> its settings, in one request; BrokerError when the cluster refuses to tell those of one."""
    resources = tuple(
        DescribeConfigsResource(
            resource_type=ResourceType.TOPIC, resource_name=topic, configuration_keys=names
        )
        for topic in topics
    )
    body = encode(DescribeConfigsRequest(resources=resources), ApiKey.DESCRIBE_CONFIGS, _CONFIGS_VERSION)
    raw = client.ask(None, ApiKey.DESCRIBE_CONFIGS, _CONFIGS_VERSION, body)
    results = decode(DescribeConfigsResponse, ApiKey.DESCRIBE_CONFIGS, _CONFIGS_VERSION, raw).results
    for result in results:
        if result.error_code:
            reason = result.error_message or error_name(result.error_code)
            raise BrokerError(
                f"{client.bootstrap} does not tell the settings of topic {result.resource_name!r}: {reason}"
            )
    return {result.resource_name: result.configs for result in results}


def alter_topic_settings(client: ClusterClient, topic: str, changes: Mapping[str, str | None]) -> None:
    """Set the topic's own settings, or delete those given as None; BrokerError when one is refused."""
    configs = tuple(
        AlterableConfig(
            name=name, value=value,
            config_operation=ConfigOperation.DELETE if value is None else ConfigOperation.SET,
        )
        for name, value in changes.items()
    )  # fmt: skip
    resource = AlterConfigsResource(
        resource_type=ResourceType.TOPIC, resource_name=topic, configs=configs
    )  # fmt: skip
    request = IncrementalAlterConfigsRequest(resources=(resource,))
    body = encode(request, ApiKey.INCREMENTAL_ALTER_CONFIGS, _ALTER_VERSION)
    raw = client.ask(None, ApiKey.INCREMENTAL_ALTER_CONFIGS, _ALTER_VERSION, body)
    response = decode(AlterConfigsResponse, ApiKey.INCREMENTAL_ALTER_CONFIGS, _ALTER_VERSION, raw)
    for result in response.responses:
        _check(topic, result.error_code, result.error_message)


def add_partitions(client: ClusterClient, topic: str, count: int) -> None:
    """Give the topic `count` partitions in all; BrokerError when that is refused."""
    wanted = CreatePartitionsTopic(name=topic, count=count)
    request = CreatePartitionsRequest(topics=(wanted,), timeout=_CREATE_PARTITIONS_MS)
    body = encode(request, ApiKey.CREATE_PARTITIONS, _PARTITIONS_VERSION)
    raw = client.ask(None, ApiKey.CREATE_PARTITIONS, _PARTITIONS_VERSION, body)
    response = decode(CreatePartitionsResponse, ApiKey.CREATE_PARTITIONS, _PARTITIONS_VERSION, raw)
    for result in response.results:
        _check(topic, result.error_code, result.error_message)


def _check(topic: str, code: int, message: str | None) -> None:
    try:
        raise_error(code, f"topic {topic!r}", message)
    except TryAgain as error:
        raise BrokerError(f"topic {topic!r}: {message or error}") from None


def partition_sizes(client: ClusterClient, topic: str, leaders: Mapping[int, int]) -> dict[int, int]:
    """Partition -> bytes on its leader's disk; one that has no leader, or none that tells, is left out."""
    sizes: dict[int, int] = {}
    for leader in sorted(set(leaders.values()) - {-1}):
        share = tuple(partition for partition, leads in leaders.items() if leads == leader)
        sizes |= _sizes_on(client, leader, topic, share)
    return sizes


def _sizes_on(client: ClusterClient, broker: int, topic: str, partitions: Iterable[int]) -> Mapping[int, int]:
    wanted = DescribableLogDirTopic(topic=topic, partitions=tuple(partitions))
    body = encode(DescribeLogDirsRequest(topics=(wanted,)), ApiKey.DESCRIBE_LOG_DIRS, _LOG_DIRS_VERSION)
    raw = client.ask(broker, ApiKey.DESCRIBE_LOG_DIRS, _LOG_DIRS_VERSION, body)
    response = decode(DescribeLogDirsResponse, ApiKey.DESCRIBE_LOG_DIRS, _LOG_DIRS_VERSION, raw)
    return {
        partition.partition_index: partition.partition_size
        for result in response.results
        for found in result.topics
        for partition in found.partitions
    }
