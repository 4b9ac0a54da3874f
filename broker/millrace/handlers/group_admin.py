"""DescribeGroups v0 to v4, ListGroups v0 to v4, DeleteGroups v0 and v1.

A group of Millrace's own consumers is described, too, as if it were one of Kafka's. Each broker lists its
share, so that clients that ask all get every group once. A group without members, of either kind, is deleted
with all it has committed. Left out: authorized operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from millrace.errors import ErrorCode
from millrace.groups import Groups, GroupSnapshot
from millrace.handlers.table import Api, Call, message_api
from millrace.wire import group_messages as messages
from millrace.wire.messages import ApiKey


def describe_groups(groups: Groups, call: Call[messages.DescribeGroupsRequest]) -> None:
    """Answer with how each group is."""

    def answer(described: Mapping[str, GroupSnapshot | ErrorCode]) -> None:
        shown = tuple(_described(name, described[name]) for name in names)
        call.answer(messages.DescribeGroupsResponse(groups=shown))

    names = dict.fromkeys(call.request.groups)
    groups.describe_groups(names, answer)


def delete_groups(groups: Groups, call: Call[messages.DeleteGroupsRequest]) -> None:
    """Answer with what became of each group."""

    def answer(codes: Mapping[str, ErrorCode]) -> None:
        results = (messages.DeletableGroupResult(group_id=name, error_code=codes[name]) for name in names)
        call.answer(messages.DeleteGroupsResponse(results=tuple(results)))

    names = dict.fromkeys(call.request.groups_names)
    groups.delete_groups(names, answer)


def _described(name: str, group: GroupSnapshot | ErrorCode) -> messages.DescribedGroup:
    if isinstance(group, ErrorCode):
        return messages.DescribedGroup(error_code=group, group_id=name)
    members = tuple(
        messages.DescribedGroupMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client.client_id,
            client_host=member.client.host,
            member_metadata=member.metadata,
            member_assignment=member.assignment,
        )
        for member in group.members
    )
    return messages.DescribedGroup(
        error_code=ErrorCode.NONE,
        group_id=name,
        group_state=group.state,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol,
        members=members,
    )


def list_groups(groups: Groups, call: Call[messages.ListGroupsRequest]) -> None:
    """Answer with the groups of this broker's share, or with those of them in certain states."""
    states = {state.lower() for state in call.request.states_filter}

    def done(found: Mapping[str, GroupSnapshot]) -> None:
        listed = tuple(
            messages.ListedGroup(group_id=name, protocol_type=group.protocol_type, group_state=group.state)
            for name, group in sorted(found.items())
            if not states or group.state.lower() in states
        )
        call.answer(messages.ListGroupsResponse(error_code=ErrorCode.NONE, groups=listed))

    groups.list_groups(done, call.refuse)


def group_admin_apis(groups: Groups) -> list[Api]:
    """The APIs of a group's operator, on these groups."""
    return [
        message_api(
            ApiKey.DESCRIBE_GROUPS, range(5), messages.DescribeGroupsRequest, partial(describe_groups, groups)
        ),
        message_api(ApiKey.LIST_GROUPS, range(5), messages.ListGroupsRequest, partial(list_groups, groups)),
        message_api(
            ApiKey.DELETE_GROUPS, range(2), messages.DeleteGroupsRequest, partial(delete_groups, groups)
        ),
    ]
