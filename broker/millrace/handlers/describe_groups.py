"""DescribeGroups, v0 to v4. A group of Millrace's own consumers is shown, too, as if it were one of Kafka's.

Left out: authorized operations.
"""

from __future__ import annotations

from collections.abc import Collection

from millrace.broker.broker import Broker
from millrace.errors import ErrorCode
from millrace.groups import Groups, GroupSnapshot
from millrace.groups.group import State
from millrace.handlers.table import Api
from millrace.server.request import Request
from millrace.wire.codec import decode, encode
from millrace.wire.group_messages import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from millrace.wire.messages import ApiKey


def describe_groups(groups: Groups) -> Api:
    """The API, on these groups."""

    def handle(broker: Broker, request: Request) -> None:
        asked = decode(DescribeGroupsRequest, ApiKey.DESCRIBE_GROUPS, request.api_version, request.body)
        names = dict.fromkeys(asked.groups)
        described: dict[str, DescribedGroup] = {}

        def note(name: str, group: DescribedGroup) -> None:
            described[name] = group
            if len(described) == len(names):
                answer()

        def answer() -> None:
            response = DescribeGroupsResponse(groups=tuple(described[name] for name in names))
            request.answer([encode(response, ApiKey.DESCRIBE_GROUPS, request.api_version)])

        def ask(name: str) -> None:
            groups.describe_group(
                name, lambda snapshot: note(name, _described(snapshot)), lambda code: fail(name, code)
            )

        def fail(name: str, code: ErrorCode) -> None:
            note(name, DescribedGroup(error_code=code, group_id=name))

        def ask_all(worth_asking: Collection[str]) -> None:
            for name in names.keys() - worth_asking:
                note(name, _described(GroupSnapshot(name=name, state=State.DEAD)))
            for name in worth_asking:
                ask(name)

        def fail_all(code: ErrorCode) -> None:
            for name in names:
                fail(name, code)

        if names:
            groups.worth_asking(names, ask_all, fail_all)
        else:
            answer()

    return Api(key=ApiKey.DESCRIBE_GROUPS, versions=frozenset(range(5)), advertised=(0, 4), handle=handle)


def _described(group: GroupSnapshot) -> DescribedGroup:
    members = tuple(
        DescribedGroupMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client.client_id,
            client_host=member.client.host,
            member_metadata=member.metadata,
            member_assignment=member.assignment,
        )
        for member in group.members
    )
    return DescribedGroup(
        error_code=ErrorCode.NONE,
        group_id=group.name,
        group_state=group.state,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol,
        members=members,
    )
