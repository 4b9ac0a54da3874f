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

from millrace.errors import ErrorCode
from millrace.groups import ClientName, Group
from millrace.handlers.table import Call, serves
from millrace.security import rights
from millrace.security.rights import Need, Operation
from millrace.wire import group_messages as messages
from millrace.wire.messages import ApiKey

_TRANSACTION = 1
_GIVES_ID_FIRST = 4
_SEVERAL_LEAVE = 3


def _may_join(
    asked: messages.JoinGroupRequest
    | messages.SyncGroupRequest
    | messages.HeartbeatRequest
    | messages.LeaveGroupRequest,
) -> list[Need]:
    return [Need(Operation.READ, rights.group(asked.group_id))]


@serves(
    ApiKey.FIND_COORDINATOR,
    range(3),
    messages.FindCoordinatorRequest,
    messages.FindCoordinatorResponse,
    needs=lambda asked: (
        [] if asked.key_type == _TRANSACTION else [Need(Operation.DESCRIBE, rights.group(asked.key))]
    ),
)
def find_coordinator(call: Call[messages.FindCoordinatorRequest]) -> messages.FindCoordinatorResponse | None:
    if call.request.key_type == _TRANSACTION:
        return messages.FindCoordinatorResponse(
            error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            error_message="transactions are not supported",
        )

    def answer(broker_id: int) -> None:
        address = call.broker.cluster.brokers[broker_id].at(call.received.client.listener_name)
        if address is None:
            call.refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        else:
            response, (host, port) = messages.FindCoordinatorResponse, address
            call.answer(response(error_code=ErrorCode.NONE, node_id=broker_id, host=host, port=port))

    call.groups.find(call.request.key, answer, call.refuse)
    return None


@serves(ApiKey.JOIN_GROUP, range(6), messages.JoinGroupRequest, messages.JoinGroupResponse, needs=_may_join)
def join_group(call: Call[messages.JoinGroupRequest]) -> None:
    request, client = call.request, call.received.client
    answer = call.answer  # the one object by which the group knows who waits

    def join(group: Group) -> None:
        if not client.closed:
            call.received.abandon = lambda: group.abandon(answer)
            name = ClientName(call.received.client_id, "/" + client.address.rpartition(":")[0])
            group.join(request, name, answer, needs_id=call.received.api_version >= _GIVES_ID_FIRST)

    def failed(code: ErrorCode) -> None:
        answer(messages.JoinGroupResponse(error_code=code, member_id=request.member_id))

    call.groups.use(request.group_id, join, failed)


@serves(ApiKey.SYNC_GROUP, range(4), messages.SyncGroupRequest, messages.SyncGroupResponse, needs=_may_join)
def sync_group(call: Call[messages.SyncGroupRequest]) -> None:
    request = call.request
    answer = call.answer  # the one object by which the group knows who waits

    def sync(group: Group) -> None:
        call.received.abandon = lambda: group.abandon(answer)
        group.sync(request, answer)

    if call.groups.held(request.group_id) is None:  # it is not taken over for a member that nobody knows
        call.refuse(ErrorCode.NOT_COORDINATOR)
    else:
        call.groups.use(request.group_id, sync, call.refuse)


@serves(ApiKey.HEARTBEAT, range(4), messages.HeartbeatRequest, messages.HeartbeatResponse, needs=_may_join)
def heartbeat(call: Call[messages.HeartbeatRequest]) -> None:
    request = call.request

    def beat(group: Group) -> None:
        code = group.heartbeat(request.member_id, request.group_instance_id, request.generation_id)
        call.answer(messages.HeartbeatResponse(error_code=code))

    call.groups.use(request.group_id, beat, call.refuse)


@serves(
    ApiKey.LEAVE_GROUP, range(4), messages.LeaveGroupRequest, messages.LeaveGroupResponse, needs=_may_join
)
def leave_group(call: Call[messages.LeaveGroupRequest]) -> None:
    request = call.request

    def leave(group: Group) -> None:
        code, members = ErrorCode.NONE, request.members
        if call.received.api_version < _SEVERAL_LEAVE:
            code, members = group.leave(messages.LeaveGroupRequest.Member(member_id=request.member_id)), ()
        left = tuple(
            messages.LeaveGroupResponse.Member(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                error_code=group.leave(member),
            )
            for member in members
        )
        call.answer(messages.LeaveGroupResponse(error_code=code, members=left))

    call.groups.use(request.group_id, leave, call.refuse)


APIS = [find_coordinator, join_group, sync_group, heartbeat, leave_group]
