"""DescribeGroups v0 to v4, ListGroups v0 to v4, DeleteGroups v0 and v1.

A group of Millrace's own consumers is described, too, as if it were one of Kafka's. Each broker lists its
share, so that clients that ask all get every group once. A group without members, of either kind, is deleted
with all it has committed. Left out: authorized operations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from millrace.errors import ErrorCode
from millrace.handlers.table import Call, serves
from millrace.security import rights
from millrace.security.rights import CLUSTER, Need, Operation, ResourceType
from millrace.wire import group_messages as messages
from millrace.wire.group_messages import DescribedGroup
from millrace.wire.messages import ApiKey


@serves(
    ApiKey.DESCRIBE_GROUPS,
    range(5),
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
        groups = tuple(
            DescribedGroup(error_code=group, group_id=name) if isinstance(group, ErrorCode) else group
            for name, group in ((name, described[name]) for name in names)
        )
        call.answer(messages.DescribeGroupsResponse(groups=groups))

    call.groups.describe_groups(names.keys() - refused, answer)


def _refused(call: Call[Any], names: Iterable[str]) -> Mapping[str, ErrorCode]:
    return {n: ErrorCode.GROUP_AUTHORIZATION_FAILED for n in names if rights.group(n) in call.refused}


@serves(
    ApiKey.LIST_GROUPS,
    range(5),
    messages.ListGroupsRequest,
    messages.ListGroupsResponse,
    needs=lambda asked: (),
    lists=True,
)
def list_groups(call: Call[messages.ListGroupsRequest]) -> None:
    states = {state.lower() for state in call.request.states_filter}

    def answer(groups: Mapping[str, messages.ListedGroup]) -> None:
        shown = call.only(Operation.DESCRIBE, ResourceType.GROUP, groups, instead=CLUSTER)
        listed = tuple(
            groups[name] for name in sorted(shown) if not states or groups[name].group_state.lower() in states
        )
        call.answer(messages.ListGroupsResponse(error_code=ErrorCode.NONE, groups=listed))

    call.groups.list_groups(answer, call.refuse)


@serves(
    ApiKey.DELETE_GROUPS,
    range(2),
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


APIS = [describe_groups, list_groups, delete_groups]
