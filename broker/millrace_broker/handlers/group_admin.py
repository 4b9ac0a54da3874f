"""DescribeGroups v0 to v6, ListGroups v0 to v5, DeleteGroups v0 to v2.

A group of Millrace's own consumers is described, too, like a group of Kafka's. Each broker lists its share,
so that a client that asks all brokers gets every group once. A group without members, of either kind, is
deleted with all its committed offsets. A group that does not exist is described as dead, and from v6 on with
an error (KIP-1043). Every group is of the classic type (KIP-848).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from millrace.errors import ErrorCode
from millrace.wire import group_messages as messages
from millrace.wire.fields import replace
from millrace.wire.group_messages import DescribedGroup
from millrace_broker.groups.group import State
from millrace_broker.handlers.table import Call, serves
from millrace_broker.security import rights
from millrace_broker.security.acls import authorized_operations
from millrace_broker.security.rights import CLUSTER, Need, Operation, ResourceType

_NOT_FOUND_SINCE = 6


@serves(
    range(7),
    messages.DescribeGroupsRequest,
    messages.DescribeGroupsResponse,
    needs=lambda asked: [Need(Operation.DESCRIBE, rights.group(name)) for name in asked.groups],
    by_item=(ResourceType.GROUP,),
)
def describe_groups(call: Call[messages.DescribeGroupsRequest]) -> None:
    names = dict.fromkeys(call.request.groups)
    refused = _refused(call, names)

    def answer(described: Mapping[str, DescribedGroup | ErrorCode]) -> None:
        described = {**described, **refused}
        groups = [
            DescribedGroup(error_code=group, group_id=name) if isinstance(group, ErrorCode) else group
            for name, group in ((name, described[name]) for name in names)
        ]
        if call.received.api_version >= _NOT_FOUND_SINCE:
            groups = [_or_not_found(group) for group in groups]
        if call.request.include_authorized_operations:
            groups = [_with_operations(call, group) for group in groups]
        call.answer(messages.DescribeGroupsResponse(groups=tuple(groups)))

    call.groups.describe_groups(names.keys() - refused, answer)


def _or_not_found(group: DescribedGroup) -> DescribedGroup:
    if group.group_state != State.DEAD:
        return group
    reason = f"there is no group {group.group_id!r}"
    return replace(group, error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message=reason)


def _with_operations(call: Call[Any], group: DescribedGroup) -> DescribedGroup:
    if group.error_code != ErrorCode.NONE:
        return group
    operations = authorized_operations(call.received.client.access, rights.group(group.group_id))
    return replace(group, authorized_operations=operations)


def _refused(call: Call[Any], names: Iterable[str]) -> Mapping[str, ErrorCode]:
    return {n: ErrorCode.GROUP_AUTHORIZATION_FAILED for n in names if rights.group(n) in call.refused}


@serves(range(6), messages.ListGroupsRequest, messages.ListGroupsResponse, needs=lambda asked: (), lists=True)
def list_groups(call: Call[messages.ListGroupsRequest]) -> None:
    states = {state.lower() for state in call.request.states_filter}
    types = {type_.lower() for type_ in call.request.types_filter}

    def answer(groups: Mapping[str, messages.ListedGroup]) -> None:
        shown = call.only(Operation.DESCRIBE, ResourceType.GROUP, groups, instead=CLUSTER)
        listed = tuple(
            group
            for group in (groups[name] for name in sorted(shown))
            if not states or group.group_state.lower() in states
            if not types or group.group_type in types
        )
        call.answer(messages.ListGroupsResponse(error_code=ErrorCode.NONE, groups=listed))

    call.groups.list_groups(answer, call.refuse)


@serves(
    range(3),
    messages.DeleteGroupsRequest,
    messages.DeleteGroupsResponse,
    needs=lambda asked: [Need(Operation.DELETE, rights.group(name)) for name in asked.groups_names],
    by_item=(ResourceType.GROUP,),
)
def delete_groups(call: Call[messages.DeleteGroupsRequest]) -> None:
    names = dict.fromkeys(call.request.groups_names)
    refused = _refused(call, names)

    def answer(codes: Mapping[str, ErrorCode]) -> None:
        codes = {**codes, **refused}
        Group = messages.DeleteGroupsResponse.Group
        results = tuple(Group(group_id=name, error_code=codes[name]) for name in names)
        call.answer(messages.DeleteGroupsResponse(results=results))

    call.groups.delete_groups(names.keys() - refused, answer)
