"""FindCoordinator v0 to v2, JoinGroup v0 to v5, SyncGroup, Heartbeat and LeaveGroup v0 to v3.

A client with a group id asks for the coordinator even when it assigns its partitions itself, and (librdkafka)
takes a broker without this API for one too old for LZ4. Transactions are refused for good.

JoinGroup waits until the group's next generation begins, SyncGroup for what the leader assigns; the leader's
own brings it. JoinGroup v5 knows static members; from v4 on a member without an id is given one first, to
come back with. LeaveGroup v3 names several members, by id or instance id.

A broker that is to coordinate a group takes it over even for a Heartbeat or a LeaveGroup: it must be able to
say who is no member of it, or the member would look for a coordinator for ever.
"""

from __future__ import annotations

from functools import partial

from millrace.errors import ErrorCode
from millrace.groups import ClientName, Group, Groups
from millrace.handlers.table import Api, Call, message_api
from millrace.wire import group_messages as messages
from millrace.wire.messages import ApiKey, FindCoordinatorRequest, FindCoordinatorResponse

_TRANSACTION = 1
_GIVES_ID_FIRST = 4
_SEVERAL_LEAVE = 3


def find_coordinator(groups: Groups, call: Call[FindCoordinatorRequest]) -> FindCoordinatorResponse | None:
    """Answer with the live broker that coordinates a group, or that is to do so."""
    if call.request.key_type == _TRANSACTION:
        return FindCoordinatorResponse(
            error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            error_message="transactions are not supported",
        )

    def found(broker_id: int) -> None:
        address = call.broker.cluster.brokers[broker_id]
        call.answer(
            FindCoordinatorResponse(
                error_code=ErrorCode.NONE, node_id=broker_id, host=address.host, port=address.port
            )
        )

    groups.find(call.request.key, found, call.refuse)
    return None


def join_group(groups: Groups, call: Call[messages.JoinGroupRequest]) -> None:
    """Answer with the generation the member belongs to, once that has begun."""
    request, client = call.request, call.client
    answer = call.answer  # the one object by which the group knows who waits

    def join(group: Group) -> None:
        if not client.closed:
            call.when_client_goes(lambda: group.abandon(answer))
            name = ClientName(call.client_id, "/" + client.address.rpartition(":")[0])
            group.join(request, name, answer, needs_id=call.version >= _GIVES_ID_FIRST)

    def failed(code: ErrorCode) -> None:
        answer(messages.JoinGroupResponse(error_code=code, member_id=request.member_id))

    groups.use(request.group_id, join, failed)


def sync_group(groups: Groups, call: Call[messages.SyncGroupRequest]) -> None:
    """Answer with what is assigned to the member, once the leader has brought it."""
    request = call.request
    answer = call.answer  # the one object by which the group knows who waits

    def sync(group: Group) -> None:
        call.when_client_goes(lambda: group.abandon(answer))
        group.sync(request, answer)

    if groups.held(request.group_id) is None:  # it is not taken over for a member that nobody knows
        call.refuse(ErrorCode.NOT_COORDINATOR)
    else:
        groups.use(request.group_id, sync, call.refuse)


def heartbeat(groups: Groups, call: Call[messages.HeartbeatRequest]) -> None:
    """Answer whether the member's generation still holds."""
    request = call.request

    def beat(group: Group) -> None:
        answer(group.heartbeat(request.member_id, request.group_instance_id, request.generation_id))

    def answer(code: ErrorCode) -> None:
        call.answer(messages.HeartbeatResponse(error_code=code))

    groups.use(request.group_id, beat, answer)


def leave_group(groups: Groups, call: Call[messages.LeaveGroupRequest]) -> None:
    """Answer with what became of each member that leaves."""

    def leave(group: Group) -> None:
        call.answer(_leave(group, call.request, call.version))

    groups.use(call.request.group_id, leave, call.refuse)


def _leave(group: Group, request: messages.LeaveGroupRequest, version: int) -> messages.LeaveGroupResponse:
    if version < _SEVERAL_LEAVE:
        return messages.LeaveGroupResponse(
            error_code=group.leave(messages.MemberIdentity(member_id=request.member_id))
        )
    members = tuple(
        messages.MemberResponse(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            error_code=group.leave(member),
        )
        for member in request.members
    )
    return messages.LeaveGroupResponse(error_code=ErrorCode.NONE, members=members)


def group_membership_apis(groups: Groups) -> list[Api]:
    """The APIs of a group's members, on these groups."""
    return [
        message_api(
            ApiKey.FIND_COORDINATOR, range(3), FindCoordinatorRequest, partial(find_coordinator, groups)
        ),
        message_api(ApiKey.JOIN_GROUP, range(6), messages.JoinGroupRequest, partial(join_group, groups)),
        message_api(ApiKey.SYNC_GROUP, range(4), messages.SyncGroupRequest, partial(sync_group, groups)),
        message_api(ApiKey.HEARTBEAT, range(4), messages.HeartbeatRequest, partial(heartbeat, groups)),
        message_api(ApiKey.LEAVE_GROUP, range(4), messages.LeaveGroupRequest, partial(leave_group, groups)),
    ]
