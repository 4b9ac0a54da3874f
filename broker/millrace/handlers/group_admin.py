"""DescribeGroups v0 to v4, ListGroups v0 to v4, DeleteGroups v0 and v1.

A group of Millrace's own consumers is described, too, as if it were one of Kafka's. Each broker lists its
share, so that clients that ask all get every group once. A group without members, of either kind, is deleted
with all it has committed. Left out: authorized operations.
"""

from __future__ import annotations

from collections.abc import Mapping

from millrace.errors import ErrorCode
from millrace.handlers.table import Call, serves
from millrace.wire import group_messages as messages
from millrace.wire.group_messages import DescribedGroup
from millrace.wire.messages import ApiKey


@serves(ApiKey.DESCRIBE_GROUPS, range(5), messages.DescribeGroupsRequest, messages.DescribeGroupsResponse)
def describe_groups(call: Call[messages.DescribeGroupsRequest]) -> None:
    names = dict.fromkeys(call.request.groups)

    def answer(described: Mapping[str, DescribedGroup | ErrorCode]) -> None:
        groups = tuple(
            DescribedGroup(error_code=group, group_id=name) if isinstance(group, ErrorCode) else group
            for name, group in ((name, described[name]) for name in names)
        )
        call.answer(messages.DescribeGroupsResponse(groups=groups))

    call.groups.describe_groups(names, answer)


@serves(ApiKey.LIST_GROUPS, range(5), messages.ListGroupsRequest, messages.ListGroupsResponse)
def list_groups(call: Call[messages.ListGroupsRequest]) -> None:
    states = {state.lower() for state in call.request.states_filter}

    def answer(groups: Mapping[str, messages.ListedGroup]) -> None:
        listed = tuple(
            group for _, group in sorted(groups.items()) if not states or group.group_state.lower() in states
        )
        call.answer(messages.ListGroupsResponse(error_code=ErrorCode.NONE, groups=listed))

    call.groups.list_groups(answer, call.refuse)


@serves(ApiKey.DELETE_GROUPS, range(2), messages.DeleteGroupsRequest, messages.DeleteGroupsResponse)
def delete_groups(call: Call[messages.DeleteGroupsRequest]) -> None:
    names = dict.fromkeys(call.request.groups_names)

    def answer(codes: Mapping[str, ErrorCode]) -> None:
        Group = messages.DeleteGroupsResponse.Group
        results = tuple(Group(group_id=name, error_code=codes[name]) for name in names)
        call.answer(messages.DeleteGroupsResponse(results=results))

    call.groups.delete_groups(names, answer)


APIS = [describe_groups, list_groups, delete_groups]
