"""DescribeGroups v0 to v4, ListGroups v0 to v4, DeleteGroups v0 and v1.

A group of Millrace's own consumers is described, too, as if it were one of Kafka's. Each broker lists its
share, so that clients that ask all get every group once. A group without members, of either kind, is deleted
with all it has committed. Left out: authorized operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from millrace.errors import ErrorCode
from millrace.groups import Groups
from millrace.handlers.table import Api, Call, message_api
from millrace.wire import group_messages as messages
from millrace.wire.messages import ApiKey


def describe_groups(groups: Groups, call: Call[messages.DescribeGroupsRequest]) -> None:
    """Answer with how each group is."""

    def answer(described: Mapping[str, messages.DescribedGroup | ErrorCode]) -> None:
        shown = tuple(
            messages.DescribedGroup(error_code=group, group_id=name)
            if isinstance(group, ErrorCode)
            else group
            for name in names
            for group in [described[name]]
        )
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


def list_groups(groups: Groups, call: Call[messages.ListGroupsRequest]) -> None:
    """Answer with the groups of this broker's share, or with those of them in certain states."""
    states = {state.lower() for state in call.request.states_filter}

    def done(groups: Mapping[str, messages.ListedGroup]) -> None:
        listed = tuple(
            group for _, group in sorted(groups.items()) if not states or group.group_state.lower() in states
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
