"""DescribeGroups v0 to v4, ListGroups v0 to v4, DeleteGroups v0 and v1.

A group of Millrace's own consumers is described, too, as if it were one of Kafka's. Each broker lists its
share, so that clients that ask all get every group once. A group without members, of either kind, is deleted
with all it has committed. Left out: authorized operations.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TypeVar

from millrace.errors import ErrorCode
from millrace.groups import Groups, GroupSnapshot, State
from millrace.handlers.table import Api, Call, message_api
from millrace.wire import group_messages as messages
from millrace.wire.messages import ApiKey

T = TypeVar("T")


def describe_groups(groups: Groups, call: Call[messages.DescribeGroupsRequest]) -> None:
    """Answer with how each group is."""

    def describe(name: str, done: Callable[[messages.DescribedGroup], None]) -> None:
        groups.describe_group(
            name, lambda snapshot: done(_described(snapshot)), lambda code: done(failed(name, code))
        )

    def failed(name: str, code: ErrorCode) -> messages.DescribedGroup:
        return messages.DescribedGroup(error_code=code, group_id=name)

    def unknown(name: str) -> messages.DescribedGroup:
        return _described(GroupSnapshot(name=name, state=State.DEAD))

    def answer(found: tuple[messages.DescribedGroup, ...]) -> None:
        call.answer(messages.DescribeGroupsResponse(groups=found))

    _ask_about_each(groups, call.request.groups, describe, unknown, failed, answer)


def delete_groups(groups: Groups, call: Call[messages.DeleteGroupsRequest]) -> None:
    """Answer with what became of each group."""

    def delete(name: str, done: Callable[[messages.DeletableGroupResult], None]) -> None:
        groups.delete(name, lambda code: done(result(name, code)))

    def result(name: str, code: ErrorCode) -> messages.DeletableGroupResult:
        return messages.DeletableGroupResult(group_id=name, error_code=code)

    def unknown(name: str) -> messages.DeletableGroupResult:
        return result(name, ErrorCode.GROUP_ID_NOT_FOUND)

    def answer(results: tuple[messages.DeletableGroupResult, ...]) -> None:
        call.answer(messages.DeleteGroupsResponse(results=results))

    _ask_about_each(groups, call.request.groups_names, delete, unknown, result, answer)


def _ask_about_each(
    groups: Groups,
    named: Iterable[str],
    ask: Callable[[str, Callable[[T], None]], None],
    unknown: Callable[[str], T],
    failed: Callable[[str, ErrorCode], T],
    answer: Callable[[tuple[T, ...]], None],
) -> None:
    """Ask about each group that is named, once, and answer when there is a result for all, in their order.

    `unknown` is the result for a group that is not there, `failed` for all when that cannot be known.
    """
    names = dict.fromkeys(named)
    results: dict[str, T] = {}

    def note(name: str, result: T) -> None:
        results[name] = result
        if len(results) == len(names):
            answer(tuple(results[each] for each in names))

    def ask_all(worth_asking: Collection[str]) -> None:
        for name in names.keys() - worth_asking:
            note(name, unknown(name))
        for name in worth_asking:
            ask(name, partial(note, name))

    def fail_all(code: ErrorCode) -> None:
        for name in names:
            note(name, failed(name, code))

    if names:
        groups.worth_asking(names, ask_all, fail_all)
    else:
        answer(())


def _described(group: GroupSnapshot) -> messages.DescribedGroup:
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
        group_id=group.name,
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
