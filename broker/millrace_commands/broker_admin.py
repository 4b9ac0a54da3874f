"""Requests of operators to a cluster's brokers: list them, and move replicas between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from millrace.client.cluster_client import ClusterClient
from millrace.client.errors import raise_error
from millrace.records.topic_partition import TopicPartition
from millrace.wire import admin_messages as messages
from millrace.wire.messages import ApiKey


def broker_racks(client: ClusterClient) -> dict[int, str]:
    """Return the rack of each live broker, its host for a broker without a rack."""
    request = messages.DescribeClusterRequest()
    response = client.call(None, ApiKey.DESCRIBE_CLUSTER, 0, request, messages.DescribeClusterResponse)
    raise_error(response.error_code, f"the brokers of {client.bootstrap}", response.error_message)
    return {broker.broker_id: broker.rack or broker.host for broker in response.brokers}


def broker_directories(client: ClusterClient, brokers: Iterable[int]) -> dict[int, str]:
    """Return the log directory of each broker. Each broker is asked for its own directory."""
    found = {}
    for broker in brokers:
        request = messages.DescribeLogDirsRequest(topics=())
        response = client.call(broker, ApiKey.DESCRIBE_LOG_DIRS, 1, request, messages.DescribeLogDirsResponse)
        for result in response.results:
            raise_error(result.error_code, f"the log directory of broker {broker}")
        found[broker] = ",".join(result.log_dir for result in response.results)
    return found


def move_replicas(client: ClusterClient, plan: Mapping[TopicPartition, tuple[int, ...]]) -> None:
    """Move partitions to these replicas. Raise BrokerError for the first move that is refused."""
    Topic = messages.AlterPartitionReassignmentsRequest.Topic
    for name in dict.fromkeys(topic for topic, _ in plan):
        partitions = tuple(
            Topic.Partition(partition_index=number, replicas=replicas)
            for (topic, number), replicas in plan.items()
            if topic == name
        )
        request = messages.AlterPartitionReassignmentsRequest(
            topics=(Topic(name=name, partitions=partitions),)
        )
        response = client.call(
            None,
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            1,
            request,
            messages.AlterPartitionReassignmentsResponse,
        )
        raise_error(response.error_code, f"moving topic {name!r}", response.error_message)
        for result in response.responses:
            for one in result.partitions:
                raise_error(one.error_code, f"{name}-{one.partition_index}", one.error_message)


def count_moving(client: ClusterClient, partitions: Iterable[TopicPartition]) -> int:
    """Return the number of these partitions that are being reassigned."""
    request = messages.ListPartitionReassignmentsRequest()
    response = client.call(
        None, ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, request, messages.ListPartitionReassignmentsResponse
    )
    raise_error(response.error_code, f"reassignments of {client.bootstrap}", response.error_message)
    moving = {(topic.name, one.partition_index) for topic in response.topics for one in topic.partitions}
    return len(moving & set(partitions))
