"""The requests and responses of Kafka's classic consumer groups, as values; see `wire.messages`.

Member metadata and assignments are opaque: clients write and read them, a broker only passes them on.
FindCoordinator and OffsetFetch are in `wire.messages`.
"""

from __future__ import annotations

from millrace.wire.fields import Message, array, boolean, data, i16, i32, i64, string


class JoinGroupRequestProtocol(Message):
    """A way of assigning partitions that a member can follow, and what its leader must know of the member."""

    name: str = string()
    metadata: bytes = data()


class JoinGroupRequest(Message):
    """Times are in ms, `protocols` in order of preference."""

    group_id: str = string()
    session_timeout: int = i32()
    rebalance_timeout: int = i32(since=1, default=-1)
    member_id: str = string(default="")
    group_instance_id: str | None = string(since=5, null_since=5, default=None)
    protocol_type: str = string()
    protocols: tuple[JoinGroupRequestProtocol, ...] = array(JoinGroupRequestProtocol)


class JoinGroupResponseMember(Message):
    member_id: str = string()
    group_instance_id: str | None = string(since=5, null_since=5, default=None)
    metadata: bytes = data(default=b"")


class JoinGroupResponse(Message):
    """The generation that a member belongs to; only its leader is told the `members`."""

    throttle_time: int = i32(since=2, default=0)
    error_code: int = i16()
    generation_id: int = i32(default=-1)
    protocol_name: str = string(default="")
    leader: str = string(default="")
    member_id: str = string(default="")
    members: tuple[JoinGroupResponseMember, ...] = array(JoinGroupResponseMember, default=())


class SyncGroupRequestAssignment(Message):
    member_id: str = string()
    assignment: bytes = data()


class SyncGroupRequest(Message):
    """Asks what is assigned to a member; the leader brings the answer for every member."""

    group_id: str = string()
    generation_id: int = i32()
    member_id: str = string()
    group_instance_id: str | None = string(since=3, null_since=3, default=None)
    assignments: tuple[SyncGroupRequestAssignment, ...] = array(SyncGroupRequestAssignment, default=())


class SyncGroupResponse(Message):
    throttle_time: int = i32(since=1, default=0)
    error_code: int = i16()
    assignment: bytes = data(default=b"")


class HeartbeatRequest(Message):
    group_id: str = string()
    generation_id: int = i32()
    member_id: str = string()
    group_instance_id: str | None = string(since=3, null_since=3, default=None)


class HeartbeatResponse(Message):
    throttle_time: int = i32(since=1, default=0)
    error_code: int = i16()


class MemberIdentity(Message):
    """A member that leaves, by its id, its instance id or both."""

    member_id: str = string()
    group_instance_id: str | None = string(null_since=3, default=None)


class LeaveGroupRequest(Message):
    """One member leaves (`member_id`, before v3) or several do (`members`, from v3 on)."""

    group_id: str = string()
    member_id: str = string(until=2, default="")
    members: tuple[MemberIdentity, ...] = array(MemberIdentity, since=3, default=())


class MemberResponse(Message):
    member_id: str = string()
    group_instance_id: str | None = string(null_since=3)
    error_code: int = i16()


class LeaveGroupResponse(Message):
    throttle_time: int = i32(since=1, default=0)
    error_code: int = i16()
    members: tuple[MemberResponse, ...] = array(MemberResponse, since=3, default=())


class OffsetCommitRequestPartition(Message):
    """`committed_offset` is the next offset to read."""

    partition_index: int = i32()
    committed_offset: int = i64()
    committed_leader_epoch: int = i32(since=6, default=-1)
    committed_metadata: str | None = string(null_since=0, default="")


class OffsetCommitRequestTopic(Message):
    name: str = string()
    partitions: tuple[OffsetCommitRequestPartition, ...] = array(OffsetCommitRequestPartition)


class OffsetCommitRequest(Message):
    """Generation -1 and no member stand for a client that assigns partitions to itself."""

    group_id: str = string()
    generation_id_or_member_epoch: int = i32(since=1, default=-1)
    member_id: str = string(since=1, default="")
    group_instance_id: str | None = string(since=7, null_since=7, default=None)
    retention_time: int = i64(since=2, until=4, default=-1)
    topics: tuple[OffsetCommitRequestTopic, ...] = array(OffsetCommitRequestTopic)


class OffsetCommitResponsePartition(Message):
    partition_index: int = i32()
    error_code: int = i16()


class OffsetCommitResponseTopic(Message):
    name: str = string()
    partitions: tuple[OffsetCommitResponsePartition, ...] = array(OffsetCommitResponsePartition)


class OffsetCommitResponse(Message):
    throttle_time: int = i32(since=3, default=0)
    topics: tuple[OffsetCommitResponseTopic, ...] = array(OffsetCommitResponseTopic)


class DescribeGroupsRequest(Message):
    groups: tuple[str, ...] = array(string())
    include_authorized_operations: bool = boolean(since=3, default=False)


class DescribedGroupMember(Message):
    """Metadata and assignment are there while the group is stable."""

    member_id: str = string()
    group_instance_id: str | None = string(since=4, null_since=4, default=None)
    client_id: str = string(default="")
    client_host: str = string(default="")
    member_metadata: bytes = data(default=b"")
    member_assignment: bytes = data(default=b"")


class DescribedGroup(Message):
    """`protocol_data` names the protocol in use."""

    error_code: int = i16()
    group_id: str = string()
    group_state: str = string(default="")
    protocol_type: str = string(default="")
    protocol_data: str = string(default="")
    members: tuple[DescribedGroupMember, ...] = array(DescribedGroupMember, default=())
    authorized_operations: int = i32(since=3, default=-(1 << 31))


class DescribeGroupsResponse(Message):
    throttle_time: int = i32(since=1, default=0)
    groups: tuple[DescribedGroup, ...] = array(DescribedGroup)


class ListGroupsRequest(Message):
    """Without states, all groups are listed that the broker answers for."""

    states_filter: tuple[str, ...] = array(string(), since=4, default=())


class ListedGroup(Message):
    group_id: str = string()
    protocol_type: str = string()
    group_state: str = string(since=4, default="")


class ListGroupsResponse(Message):
    throttle_time: int = i32(since=1, default=0)
    error_code: int = i16()
    groups: tuple[ListedGroup, ...] = array(ListedGroup, default=())


class DeleteGroupsRequest(Message):
    groups_names: tuple[str, ...] = array(string())


class DeletableGroupResult(Message):
    group_id: str = string()
    error_code: int = i16()


class DeleteGroupsResponse(Message):
    throttle_time: int = i32(default=0)
    results: tuple[DeletableGroupResult, ...] = array(DeletableGroupResult)


class OffsetDeleteRequestPartition(Message):
    partition_index: int = i32()


class OffsetDeleteRequestTopic(Message):
    name: str = string()
    partitions: tuple[OffsetDeleteRequestPartition, ...] = array(OffsetDeleteRequestPartition)


class OffsetDeleteRequest(Message):
    group_id: str = string()
    topics: tuple[OffsetDeleteRequestTopic, ...] = array(OffsetDeleteRequestTopic)


class OffsetDeleteResponsePartition(Message):
    partition_index: int = i32()
    error_code: int = i16()


class OffsetDeleteResponseTopic(Message):
    name: str = string()
    partitions: tuple[OffsetDeleteResponsePartition, ...] = array(OffsetDeleteResponsePartition)


class OffsetDeleteResponse(Message):
    """With an error of the whole request there are no topics."""

    error_code: int = i16(default=0)
    throttle_time: int = i32(default=0)
    topics: tuple[OffsetDeleteResponseTopic, ...] = array(OffsetDeleteResponseTopic, default=())
