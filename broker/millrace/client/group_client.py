"""A client's requests about consumer groups: list, describe, read and set offsets, delete.

It asks the broker that coordinates a group, and looks for the coordinator again when it has moved. It works
with Millrace and Apache Kafka, and joins no group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from millrace.client.cluster_client import ClusterClient
from millrace.client.errors import TryAgain
from millrace.errors import BrokerError, ErrorCode, GroupNotEmpty, UnknownGroup
from millrace.records.topic_partition import TopicPartition
from millrace.wire import group_messages as messages
from millrace.wire.consumer_protocol import decode_assignment
from millrace.wire.fetch import error_name
from millrace.wire.fields import group_by_topic
from millrace.wire.messages import ApiKey
from millrace.wire.primitives import MIN_ITEM_LIMIT

_MOVED = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """One member of a group and the partitions it reads."""

    member_id: str
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group; `state` is Kafka's name of its state, `protocol` its assignor while the group is stable."""

    name: str
    state: str
    protocol: str
    members: tuple[GroupMember, ...]

    @property
    def active(self) -> bool:
        """True while the group has members: then only they may commit."""
        return self.state in ("Stable", "PreparingRebalance", "CompletingRebalance")


class GroupClient:
    """A client for a cluster's groups; each call returns in about twice the client's time or raises."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client

    def groups(self) -> dict[str, GroupDescription]:
        descriptions: dict[str, GroupDescription] = {}
        request = messages.ListGroupsRequest()
        for broker_id in self._client.broker_ids():
            listed = self._client.call(broker_id, ApiKey.LIST_GROUPS, 2, request, messages.ListGroupsResponse)
            _check(listed.error_code, f"the groups of broker {broker_id}")
            names = [group.group_id for group in listed.groups]
            for name, group in zip(names, self._describe(broker_id, names), strict=True):
                moved = group.error_code in _MOVED
                descriptions[name] = self.describe(name) if moved else _description(group)
        return dict(sorted(descriptions.items()))

    def describe(self, group: str) -> GroupDescription:
        """Return the group as it is now. Raise UnknownGroup when there is no group of that name."""

        def attempt(coordinator: int) -> GroupDescription:
            (described,) = self._describe(coordinator, [group])
            _check(described.error_code, f"group {group!r}")
            return _description(described)

        description = self._at_coordinator(group, attempt)
        if description.state == "Dead":
            raise UnknownGroup(f"no group {group!r} on {self._client.bootstrap}")
        return description

    def offsets(self, group: str) -> dict[TopicPartition, int]:
        """Return the group's committed offsets: the next offset to read of each partition."""
        request = messages.OffsetFetchRequest(group_id=group, topics=None)

        def attempt(coordinator: int) -> dict[TopicPartition, int]:
            response = self._client.call(
                coordinator, ApiKey.OFFSET_FETCH, 5, request, messages.OffsetFetchResponse
            )
            _check(response.error_code, f"offsets of group {group!r}")
            return {
                (topic.name, partition.partition_index): partition.committed_offset
                for topic in response.topics
                for partition in topic.partitions
                if partition.committed_offset >= 0
            }

        return self._at_coordinator(group, attempt)

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set offsets of a group without members. Raise GroupNotEmpty when it has members."""
        Partition = messages.OffsetCommitRequest.Partition
        topics = group_by_topic(
            (topic, Partition(partition_index=number, committed_offset=offset))
            for (topic, number), offset in offsets.items()
        )
        request = messages.OffsetCommitRequest(group_id=group, topics=topics)

        def attempt(coordinator: int) -> None:
            response = self._client.call(
                coordinator, ApiKey.OFFSET_COMMIT, 7, request, messages.OffsetCommitResponse
            )
            for topic in response.topics:
                for partition in topic.partitions:
                    what = f"group {group!r}, {topic.name}-{partition.partition_index}"
                    _check(partition.error_code, what)

        self._at_coordinator(group, attempt)

    def delete(self, group: str) -> None:
        """Delete a group and its offsets. Raise UnknownGroup or GroupNotEmpty when the broker refuses."""
        request = messages.DeleteGroupsRequest(groups_names=(group,))

        def attempt(coordinator: int) -> None:
            response = self._client.call(
                coordinator, ApiKey.DELETE_GROUPS, 1, request, messages.DeleteGroupsResponse
            )
            _check(response.results[0].error_code, f"group {group!r}")

        self._at_coordinator(group, attempt)

    def _describe(self, broker_id: int, names: list[str]) -> list[messages.DescribedGroup]:
        described: list[messages.DescribedGroup] = []
        for first in range(0, len(names), MIN_ITEM_LIMIT):  # Millrace's brokers accept this number
            request = messages.DescribeGroupsRequest(groups=tuple(names[first : first + MIN_ITEM_LIMIT]))
            described += self._client.call(
                broker_id, ApiKey.DESCRIBE_GROUPS, 4, request, messages.DescribeGroupsResponse
            ).groups
        return described

    def _coordinator(self, group: str) -> int:
        request = messages.FindCoordinatorRequest(key=group)
        response = self._client.call(
            None, ApiKey.FIND_COORDINATOR, 2, request, messages.FindCoordinatorResponse
        )
        _check(response.error_code, f"the coordinator of group {group!r}")
        return response.node_id

    def _at_coordinator(self, group: str, attempt: Callable[[int], T]) -> T:
        return self._client.retry(lambda _: attempt(self._coordinator(group)))


def _description(group: messages.DescribedGroup) -> GroupDescription:
    members = tuple(
        GroupMember(
            member_id=member.member_id,
            client_id=member.client_id,
            host=member.client_host.lstrip("/"),
            partitions=tuple(decode_assignment(member.member_assignment)),
        )
        for member in group.members
    )
    return GroupDescription(
        name=group.group_id, state=group.group_state, protocol=group.protocol_data, members=members
    )


def _check(code: int, what: str) -> None:
    if not code:
        return
    if code in _MOVED:
        raise TryAgain(f"{what}: {error_name(code)}")
    if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NON_EMPTY_GROUP):
        raise GroupNotEmpty(f"{what}: the group has members; stop them first")
    if code == ErrorCode.GROUP_ID_NOT_FOUND:
        raise UnknownGroup(f"{what}: there is no such group")
    raise BrokerError(f"{what}: {error_name(code)}")
