"""A client's questions about consumer groups: which there are, who is in them, where they are.

Asks the broker that coordinates a group, and looks for it again where it has moved. Works against Millrace
and Apache Kafka. Joins no group.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from millrace.client.cluster_client import ClusterClient
from millrace.errors import BrokerError, ErrorCode, GroupNotEmpty, MillraceError, UnknownGroup
from millrace.records.topic_partition import TopicPartition
from millrace.wire.codec import decode, encode
from millrace.wire.consumer_protocol import decode_assignment
from millrace.wire.fetch import error_name
from millrace.wire.group_messages import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from millrace.wire.messages import (
    ApiKey,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)

_FIND_COORDINATOR_VERSION = 2
_LIST_GROUPS_VERSION = 2
_DESCRIBE_GROUPS_VERSION = 4
_OFFSET_COMMIT_VERSION = 7
_OFFSET_FETCH_VERSION = 5
_DELETE_GROUPS_VERSION = 1
_PAUSE_S = 0.2
_MOVED = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)  # fmt: skip
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One member of a group and the partitions it reads."""

    member_id: str
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group; `state` in Kafka's words, `protocol` its assignor while it is stable."""

    name: str
    state: str
    protocol: str
    members: tuple[Member, ...]


class _Moved(Exception):
    """The broker that was asked does not coordinate the group."""


class GroupClient:
    """Asks a cluster about its groups; each call returns within about `timeout_s` or raises MillraceError."""

    def __init__(self, client: ClusterClient, *, timeout_s: float = 10) -> None:
        self._client, self._timeout_s = client, timeout_s

    def groups(self) -> dict[str, GroupDescription]:
        """Every group of the cluster by name."""
        body = encode(ListGroupsRequest(), ApiKey.LIST_GROUPS, _LIST_GROUPS_VERSION)
        found: dict[str, GroupDescription] = {}
        for broker_id in self._client.broker_ids():
            raw = self._client.ask(broker_id, ApiKey.LIST_GROUPS, _LIST_GROUPS_VERSION, body)
            listed = decode(ListGroupsResponse, ApiKey.LIST_GROUPS, _LIST_GROUPS_VERSION, raw)
            _check(listed.error_code, f"the groups of broker {broker_id}")
            names = [group.group_id for group in listed.groups]
            for name, group in zip(names, self._ask_about(broker_id, names), strict=True):
                moved = group.error_code in _MOVED
                found[name] = self.describe(name) if moved else _description(group)
        return dict(sorted(found.items()))

    def describe(self, group: str) -> GroupDescription:
        """The group as it is now; UnknownGroup when there is none of that name."""

        def attempt(coordinator: int) -> GroupDescription:
            (found,) = self._ask_about(coordinator, [group])
            _check(found.error_code, f"group {group!r}")
            return _description(found)

        described = self._at_coordinator(group, attempt)
        if described.state == "Dead":
            raise UnknownGroup(f"no group {group!r} on {self._client.bootstrap}")
        return described

    def offsets(self, group: str) -> dict[TopicPartition, int]:
        """Everything the group has committed: the next offset to read of each partition."""
        request = OffsetFetchRequest(group_id=group, topics=None)
        body = encode(request, ApiKey.OFFSET_FETCH, _OFFSET_FETCH_VERSION)

        def attempt(coordinator: int) -> dict[TopicPartition, int]:
            raw = self._client.ask(coordinator, ApiKey.OFFSET_FETCH, _OFFSET_FETCH_VERSION, body)
            found = decode(OffsetFetchResponse, ApiKey.OFFSET_FETCH, _OFFSET_FETCH_VERSION, raw)
            _check(found.error_code, f"offsets of group {group!r}")
            return {
                (topic.name, partition.partition_index): partition.committed_offset
                for topic in found.topics
                for partition in topic.partitions
                if partition.committed_offset >= 0
            }

        return self._at_coordinator(group, attempt)

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set offsets of a group without members; GroupNotEmpty when it has some."""
        topics: dict[str, list[OffsetCommitRequestPartition]] = {}
        for (topic, number), offset in offsets.items():
            part = OffsetCommitRequestPartition(partition_index=number, committed_offset=offset)
            topics.setdefault(topic, []).append(part)
        request = OffsetCommitRequest(
            group_id=group,
            topics=tuple(OffsetCommitRequestTopic(name=n, partitions=tuple(p)) for n, p in topics.items()),
        )
        body = encode(request, ApiKey.OFFSET_COMMIT, _OFFSET_COMMIT_VERSION)

        def attempt(coordinator: int) -> None:
            raw = self._client.ask(coordinator, ApiKey.OFFSET_COMMIT, _OFFSET_COMMIT_VERSION, body)
            response = decode(OffsetCommitResponse, ApiKey.OFFSET_COMMIT, _OFFSET_COMMIT_VERSION, raw)
            for topic in response.topics:
                for each in topic.partitions:
                    _check(each.error_code, f"group {group!r}, {topic.name}-{each.partition_index}")

        self._at_coordinator(group, attempt)

    def delete(self, group: str) -> None:
        """Forget a group and its offsets; UnknownGroup or GroupNotEmpty when that cannot be."""
        request = DeleteGroupsRequest(groups_names=(group,))
        body = encode(request, ApiKey.DELETE_GROUPS, _DELETE_GROUPS_VERSION)

        def attempt(coordinator: int) -> None:
            raw = self._client.ask(coordinator, ApiKey.DELETE_GROUPS, _DELETE_GROUPS_VERSION, body)
            response = decode(DeleteGroupsResponse, ApiKey.DELETE_GROUPS, _DELETE_GROUPS_VERSION, raw)
            _check(response.results[0].error_code, f"group {group!r}")

        self._at_coordinator(group, attempt)

    def _ask_about(self, broker_id: int, names: Iterable[str]) -> tuple[DescribedGroup, ...]:
        request = DescribeGroupsRequest(groups=tuple(names))
        body = encode(request, ApiKey.DESCRIBE_GROUPS, _DESCRIBE_GROUPS_VERSION)
        raw = self._client.ask(broker_id, ApiKey.DESCRIBE_GROUPS, _DESCRIBE_GROUPS_VERSION, body)
        return decode(DescribeGroupsResponse, ApiKey.DESCRIBE_GROUPS, _DESCRIBE_GROUPS_VERSION, raw).groups

    def _coordinator(self, group: str) -> int:
        body = encode(FindCoordinatorRequest(key=group), ApiKey.FIND_COORDINATOR, _FIND_COORDINATOR_VERSION)
        raw = self._client.ask(None, ApiKey.FIND_COORDINATOR, _FIND_COORDINATOR_VERSION, body)
        found = decode(FindCoordinatorResponse, ApiKey.FIND_COORDINATOR, _FIND_COORDINATOR_VERSION, raw)
        _check(found.error_code, f"the coordinator of group {group!r}")
        return found.node_id

    def _at_coordinator(self, group: str, attempt: Callable[[int], T]) -> T:
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                return attempt(self._coordinator(group))
            except _Moved as error:
                if time.monotonic() + _PAUSE_S >= deadline:
                    raise MillraceError(f"{error} (gave up after {self._timeout_s:g} s)") from None
            time.sleep(_PAUSE_S)


def _description(group: DescribedGroup) -> GroupDescription:
    members = tuple(
        Member(
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
    """Raise what an error code means: nothing for 0."""
    if not code:
        return
    if code in _MOVED:
        raise _Moved(f"{what}: {error_name(code)}")
    if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NON_EMPTY_GROUP):
        raise GroupNotEmpty(f"{what}: the group has members; stop them first")
    if code == ErrorCode.GROUP_ID_NOT_FOUND:
        raise UnknownGroup(f"{what}: there is no such group")
    raise BrokerError(f"{what}: {error_name(code)}")
