"""FindCoordinator v0 to v5, JoinGroup v0 to v9, SyncGroup v0 to v5, Heartbeat v0 to v4, LeaveGroup v0 to v5.

A client with a group id asks for the coordinator even when it assigns its partitions itself. librdkafka
assumes that a broker without FindCoordinator is too old for LZ4. From v4 on a request may name many groups
(KIP-699). Transactions are refused with a permanent error; there are no coordinators of share groups.

JoinGroup waits until the group's next generation begins, SyncGroup until the leader's own SyncGroup brings
the assignments. JoinGroup v5 has static members. From v4 on a member without an id is first given an id, with
which it must join again. From v9 on a static leader that joins again learns that it has nothing to assign
(KIP-814). SyncGroup v5 names the protocol again, and any other than the chosen protocol is refused (KIP-559).
LeaveGroup v3 names several members, by id or instance id. Reasons (KIP-800) are not kept.

A broker that must coordinate a group loads it even for a Heartbeat or a LeaveGroup: only then can it answer
that a client is no member. Without that answer the client would look for a coordinator for ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from millrace.errors import ErrorCode
from millrace.wire import group_messages as messages
from millrace_broker.groups import ClientName, Group
from millrace_broker.handlers.table import Call, serves
from millrace_broker.security import rights
from millrace_broker.security.rights import Need, Operation, ResourceType

_GROUP, _TRANSACTION = 0, 1
_MANY_KEYS_SINCE = 4
_MEMBER_ID_FIRST_SINCE, _SKIP_ASSIGNMENT_SINCE = 4, 9
_MANY_MEMBERS_SINCE = 3
_WHY = {
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "transactions are not supported",
    ErrorCode.INVALID_REQUEST: "only groups have coordinators",
}


def _may_join(
    asked: messages.JoinGroupRequest
    | messages.SyncGroupRequest
    | messages.HeartbeatRequest
    | messages.LeaveGroupRequest,
) -> list[Need]:
    return [Need(Operation.READ, rights.group(asked.group_id))]


def _keys(asked: messages.FindCoordinatorRequest) -> Sequence[str]:
    """Return the requested keys, once each: a list from v4 on, a single key before."""
    return list(dict.fromkeys(asked.coordinator_keys)) if asked.coordinator_keys else [asked.key]


@serves(
    range(6),
    messages.FindCoordinatorRequest,
    messages.FindCoordinatorResponse,
    needs=lambda asked: (
        [Need(Operation.DESCRIBE, rights.group(key)) for key in _keys(asked)]
        if asked.key_type == _GROUP
        else []
    ),
    by_item=(ResourceType.GROUP,),
)
def find_coordinator(call: Call[messages.FindCoordinatorRequest]) -> messages.FindCoordinatorResponse | None:
    request, many = call.request, call.received.api_version >= _MANY_KEYS_SINCE
    keys = list(dict.fromkeys(request.coordinator_keys)) if many else [request.key]

    def response(found: Mapping[str, int | ErrorCode]) -> messages.FindCoordinatorResponse:
        coordinators = tuple(_coordinator(call, key, found[key]) for key in keys)
        if many:
            return messages.FindCoordinatorResponse(coordinators=coordinators)
        (one,) = coordinators
        return messages.FindCoordinatorResponse(
            error_code=one.error_code,
            error_message=one.error_message,
            node_id=one.node_id,
            host=one.host,
            port=one.port,
        )

    if request.key_type == _TRANSACTION:
        return response(dict.fromkeys(keys, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
    if request.key_type != _GROUP:
        return response(dict.fromkeys(keys, ErrorCode.INVALID_REQUEST))
    refused = {key for key in keys if rights.group(key) in call.refused}
    no = dict.fromkeys(refused, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    call.groups.find(
        [key for key in keys if key not in refused], lambda found: call.answer(response({**found, **no}))
    )
    return None


def _coordinator(
    call: Call[messages.FindCoordinatorRequest], key: str, found: int | ErrorCode
) -> messages.FindCoordinatorResponse.Coordinator:
    Coordinator, address = messages.FindCoordinatorResponse.Coordinator, None
    if not isinstance(found, ErrorCode):
        broker = call.broker.cluster.brokers.get(found)
        address = None if broker is None else broker.at(call.received.client.listener_name)
    if not isinstance(found, ErrorCode) and address is not None:
        host, port = address
        return Coordinator(key=key, node_id=found, host=host, port=port)
    code = found if isinstance(found, ErrorCode) else ErrorCode.COORDINATOR_NOT_AVAILABLE
    return Coordinator(key=key, error_code=code, error_message=_WHY.get(code))


@serves(range(10), messages.JoinGroupRequest, messages.JoinGroupResponse, needs=_may_join)
def join_group(call: Call[messages.JoinGroupRequest]) -> None:
    request, client = call.request, call.received.client
    answer = call.answer  # one object: the group identifies the waiting request by it

    def join(group: Group) -> None:
        if not client.closed:
            call.received.abandon = lambda: group.abandon(answer)
            name = ClientName(call.received.client_id, "/" + client.address.rpartition(":")[0])
            version = call.received.api_version
            needs_id, may_skip = version >= _MEMBER_ID_FIRST_SINCE, version >= _SKIP_ASSIGNMENT_SINCE
            group.join(request, name, answer, needs_id=needs_id, may_skip=may_skip)

    def failed(code: ErrorCode) -> None:
        answer(messages.JoinGroupResponse(error_code=code, member_id=request.member_id))

    call.groups.use(request.group_id, join, failed)


@serves(range(6), messages.SyncGroupRequest, messages.SyncGroupResponse, needs=_may_join)
def sync_group(call: Call[messages.SyncGroupRequest]) -> None:
    request = call.request
    answer = call.answer  # one object: the group identifies the waiting request by it

    def sync(group: Group) -> None:
        call.received.abandon = lambda: group.abandon(answer)
        group.sync(request, answer)

    if call.groups.held(request.group_id) is None:  # no take-over for a member that this broker cannot know
        call.refuse(ErrorCode.NOT_COORDINATOR)
    else:
        call.groups.use(request.group_id, sync, call.refuse)


@serves(range(5), messages.HeartbeatRequest, messages.HeartbeatResponse, needs=_may_join)
def heartbeat(call: Call[messages.HeartbeatRequest]) -> None:
    request = call.request

    def beat(group: Group) -> None:
        code = group.heartbeat(request.member_id, request.group_instance_id, request.generation_id)
        call.answer(messages.HeartbeatResponse(error_code=code))

    call.groups.use(request.group_id, beat, call.refuse)


@serves(range(6), messages.LeaveGroupRequest, messages.LeaveGroupResponse, needs=_may_join)
def leave_group(call: Call[messages.LeaveGroupRequest]) -> None:
    request = call.request

    def leave(group: Group) -> None:
        code, members = ErrorCode.NONE, request.members
        if call.received.api_version < _MANY_MEMBERS_SINCE:
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
