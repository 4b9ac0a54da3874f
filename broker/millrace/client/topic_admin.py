"""An operator's requests about topics: read and change settings, add partitions, elect leaders, read sizes.

The client's side, for Millrace and Apache Kafka. Each call sends one request to one broker or to each broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from millrace.client.cluster_client import ClusterClient
from millrace.client.errors import raise_error
from millrace.errors import BrokerError
from millrace.wire import admin_messages as messages
from millrace.wire.fetch import error_name
from millrace.wire.messages import ApiKey
from millrace.wire.unclean_election import ElectUncleanRequest, ElectUncleanResponse

_CREATE_PARTITIONS_MS = 30_000


def topic_setting(client: ClusterClient, topic: str, name: str) -> str | None:
    """Return the topic's setting as text, None when the cluster does not return it.

    Raise BrokerError when it refuses.
    """
    return {config.name: config.value for config in topic_settings(client, topic, (name,))}.get(name)


def topic_settings(
    client: ClusterClient, topic: str, names: tuple[str, ...] | None = None
) -> tuple[messages.DescribedConfig, ...]:
    """Return the topic's settings: all, or the ones in `names`.

    Raise BrokerError when the cluster refuses to return them.
    """
    settings = settings_of_topics(client, [topic], names)[topic]
    if isinstance(settings, BrokerError):
        raise settings
    return settings


def settings_of_topics(
    client: ClusterClient, topics: Iterable[str], names: tuple[str, ...] | None = None
) -> dict[str, tuple[messages.DescribedConfig, ...] | BrokerError]:
    """Return each topic's settings, or the error with which the cluster refuses to return them; in one
    request.

    A topic merged of several copies has the settings of the first.
    """
    seen_as = {topic: topic for topic in topics}
    if client.copies is not None:
        seen_as = {next(iter(client.names_there(topic)), topic): topic for topic in seen_as}
    resources = tuple(
        messages.DescribeConfigsRequest.Resource(
            resource_type=messages.ResourceType.TOPIC, resource_name=topic, configuration_keys=names
        )
        for topic in seen_as
    )
    request = messages.DescribeConfigsRequest(resources=resources)
    response = client.call(None, ApiKey.DESCRIBE_CONFIGS, 1, request, messages.DescribeConfigsResponse)
    settings: dict[str, tuple[messages.DescribedConfig, ...] | BrokerError] = {}
    for result in response.results:
        refused: BrokerError | None = None
        if result.error_code:
            reason = result.error_message or error_name(result.error_code)
            refused = BrokerError(
                f"{client.bootstrap} does not return the settings of topic {result.resource_name!r}: {reason}"
            )
        settings[seen_as[result.resource_name]] = refused or result.configs
    return settings


def eligible_replicas(client: ClusterClient, topic: str) -> dict[int, tuple[int, ...]]:
    """Return for each partition the brokers that may lead it although they are not in sync.

    For Millrace or Kafka 3.8.
    """
    described: dict[int, tuple[int, ...]] = {}
    wanted = (messages.DescribeTopicPartitionsRequest.Topic(name=topic),)
    cursor: messages.DescribeTopicPartitionsRequest.Cursor | None = None
    while True:
        request = messages.DescribeTopicPartitionsRequest(topics=wanted, cursor=cursor)
        response = client.call(
            None, ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, request, messages.DescribeTopicPartitionsResponse
        )
        for result in response.topics:
            raise_error(result.error_code, f"topic {topic!r} on {client.bootstrap}")
            for partition in result.partitions:
                described[partition.partition_index] = partition.eligible_leader_replicas or ()
        if (after := response.next_cursor) is None:
            return described
        cursor = messages.DescribeTopicPartitionsRequest.Cursor(
            topic_name=after.topic_name, partition_index=after.partition_index
        )


def elect_unclean(client: ClusterClient, topic: str, partition: int, replica: int, reason: str) -> None:
    """Have a replica lead though it may lack committed messages.

    Raise BrokerError when that is not needed.
    """
    request = ElectUncleanRequest(topic=topic, partition=partition, replica=replica, reason=reason)
    response = client.call(None, ApiKey.ELECT_UNCLEAN, 0, request, ElectUncleanResponse)
    raise_error(response.error_code, f"partition {topic}-{partition}", response.error_message)


def elect_preferred(
    client: ClusterClient, partitions: Iterable[tuple[str, int]] | None
) -> dict[str, tuple[int, str]]:
    """Ask leaders to resign in favour of the first replicas, for all partitions or the named partitions.

    Return (error code, reason) of each partition that has changed or was refused; (0, "") means success.
    """
    asked = None
    if partitions is not None:
        topics: dict[str, list[int]] = {}
        for topic, number in partitions:
            topics.setdefault(topic, []).append(number)
        Topic = messages.ElectLeadersRequest.Topic
        asked = tuple(Topic(topic=topic, partitions=tuple(numbers)) for topic, numbers in topics.items())
    request = messages.ElectLeadersRequest(topic_partitions=asked)
    response = client.call(None, ApiKey.ELECT_LEADERS, 2, request, messages.ElectLeadersResponse)
    raise_error(response.error_code, f"the leaders of {client.bootstrap}")
    return {
        f"{result.topic}-{one.partition_id}": (
            one.error_code,
            (one.error_message or error_name(one.error_code)) if one.error_code else "",
        )
        for result in response.replica_election_results
        for one in result.partition_result
    }


def alter_topic_settings(client: ClusterClient, topic: str, changes: Mapping[str, str | None]) -> None:
    """Set the topic's own settings, or delete the settings given as None.

    Raise BrokerError when one is refused.
    """
    operation = messages.ConfigOperation
    configs = tuple(
        messages.AlterConfigsRequest.Resource.Config(
            name=name, value=value, config_operation=operation.DELETE if value is None else operation.SET
        )
        for name, value in changes.items()
    )
    resource = messages.AlterConfigsRequest.Resource(
        resource_type=messages.ResourceType.TOPIC, resource_name=topic, configs=configs
    )
    request = messages.AlterConfigsRequest(resources=(resource,))
    response = client.call(None, ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, request, messages.AlterConfigsResponse)
    for result in response.responses:
        raise_error(result.error_code, f"topic {topic!r}", result.error_message)


def add_partitions(client: ClusterClient, topic: str, count: int) -> None:
    """Increase the topic's partitions to `count`. Raise BrokerError when that is refused."""
    wanted = messages.CreatePartitionsRequest.Topic(name=topic, count=count)
    request = messages.CreatePartitionsRequest(topics=(wanted,), timeout=_CREATE_PARTITIONS_MS)
    response = client.call(None, ApiKey.CREATE_PARTITIONS, 1, request, messages.CreatePartitionsResponse)
    for result in response.results:
        raise_error(result.error_code, f"topic {topic!r}", result.error_message)


def partition_sizes(client: ClusterClient, topic: str, leaders: Mapping[int, int]) -> dict[int, int]:
    """Return each partition's bytes on its leader's disk, without partitions whose leader is missing or
    reports no size.
    """
    sizes: dict[int, int] = {}
    for leader in sorted(set(leaders.values()) - {-1}):
        share = tuple(partition for partition, leads in leaders.items() if leads == leader)
        wanted = messages.DescribeLogDirsRequest.Topic(topic=topic, partitions=share)
        request = messages.DescribeLogDirsRequest(topics=(wanted,))
        response = client.call(leader, ApiKey.DESCRIBE_LOG_DIRS, 1, request, messages.DescribeLogDirsResponse)
        for result in response.results:
            for described in result.topics:
                sizes |= {p.partition_index: p.partition_size for p in described.partitions}
    return sizes
