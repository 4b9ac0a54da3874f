"""LeaveGroup, v0 to v3: one member, or from v3 on several, by id or instance id.

As with Heartbeat, a broker that is to coordinate the group takes it over to say who is no member of it.
"""

from __future__ import annotations

from millrace.broker.broker import Broker
from millrace.errors import ErrorCode
from millrace.groups import Group, Groups
from millrace.handlers.table import Api
from millrace.server.request import Request
from millrace.wire.codec import decode, encode
from millrace.wire.group_messages import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from millrace.wire.messages import ApiKey

_SEVERAL = 3


def leave_group(groups: Groups) -> Api:
    """The API, on these groups."""

    def handle(broker: Broker, request: Request) -> None:
        asked = decode(LeaveGroupRequest, ApiKey.LEAVE_GROUP, request.api_version, request.body)

        def answer(response: LeaveGroupResponse) -> None:
            for code in (response.error_code, *(member.error_code for member in response.members)):
                if code:
                    request.failed(code)
            request.answer([encode(response, ApiKey.LEAVE_GROUP, request.api_version)])

        def failed(code: ErrorCode) -> None:
            answer(LeaveGroupResponse(error_code=code))

        groups.use(asked.group_id, lambda group: answer(_leave(group, asked, request.api_version)), failed)

    return Api(key=ApiKey.LEAVE_GROUP, versions=frozenset(range(4)), advertised=(0, 3), handle=handle)


def _leave(group: Group, asked: LeaveGroupRequest, version: int) -> LeaveGroupResponse:
    if version < _SEVERAL:
        return LeaveGroupResponse(error_code=group.leave(MemberIdentity(member_id=asked.member_id)))
    members = tuple(
        MemberResponse(
            member_id=one.member_id, group_instance_id=one.group_instance_id, error_code=group.leave(one)
        )
        for one in asked.members
    )
    return LeaveGroupResponse(error_code=ErrorCode.NONE, members=members)
