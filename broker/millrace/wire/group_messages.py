"""The requests and responses of Kafka's classic consumer groups, as values; see `wire.messages`.

Member metadata and assignments are opaque: clients write and read them, a broker only passes them on.
FindCoordinator and OffsetFetch are in `wire.messages`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupRequestProtocol:
    """One way of assigning partitions that a member can follow, and what its leader must know of it."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupRequest:
    """Take me in, or take part in the next generation; times in ms. `protocols` in order of preference."""

    group_id: str
    session_timeout: int
    rebalance_timeout: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    protocol_type: str
    protocols: tuple[JoinGroupRequestProtocol, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupResponseMember:
    """What the leader learns of one member."""

    member_id: str
    group_instance_id: str | None = None
    metadata: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupResponse:
    """The generation a member belongs to; only its leader is told the `members`."""

    error_code: int
    generation_id: int = -1
    protocol_name: str = ""
    leader: str = ""
    member_id: str = ""
    members: tuple[JoinGroupResponseMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroupRequestAssignment:
    """What the leader assigns to one member."""

    member_id: str
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroupRequest:
    """What is assigned to me? The leader brings the answer for everybody."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None
    assignments: tuple[SyncGroupRequestAssignment, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroupResponse:
    """What is assigned to a member."""

    error_code: int
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest:
    """I am alive; does my generation still hold?"""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResponse:
    """Whether the generation still holds."""

    error_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberIdentity:
    """A member that leaves, by its id, its instance id or both."""

    member_id: str
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroupRequest:
    """Go on without one member (`member_id`, before v3) or several (`members`, from v3 on)."""

    group_id: str
    member_id: str = ""
    members: tuple[MemberIdentity, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberResponse:
    """What became of one member that was to leave."""

    member_id: str
    group_instance_id: str | None
    error_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroupResponse:
    """What became of those that were to leave."""

    error_code: int
    members: tuple[MemberResponse, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequestPartition:
    """The next offset to read from one partition."""

    partition_index: int
    committed_offset: int
    committed_leader_epoch: int = -1
    committed_metadata: str | None = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequestTopic:
    """The offsets of one topic."""

    name: str
    partitions: tuple[OffsetCommitRequestPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequest:
    """Remember these offsets; generation -1 and no member for who assigns partitions itself."""

    group_id: str
    generation_id_or_member_epoch: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    topics: tuple[OffsetCommitRequestTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponsePartition:
    """What became of one offset."""

    partition_index: int
    error_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponseTopic:
    """What became of one topic's offsets."""

    name: str
    partitions: tuple[OffsetCommitResponsePartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponse:
    """What became of the offsets."""

    topics: tuple[OffsetCommitResponseTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroupsRequest:
    """How are these groups?"""

    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGroupMember:
    """One member, with what it told and was assigned while the group is stable."""

    member_id: str
    group_instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    member_metadata: bytes = b""
    member_assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGroup:
    """One group; `protocol_data` names the protocol in use."""

    error_code: int
    group_id: str
    group_state: str = ""
    protocol_type: str = ""
    protocol_data: str = ""
    members: tuple[DescribedGroupMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroupsResponse:
    """How the groups are."""

    groups: tuple[DescribedGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListGroupsRequest:
    """Which groups does this broker answer for? Without states: all."""

    states_filter: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroup:
    """One group."""

    group_id: str
    protocol_type: str
    group_state: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListGroupsResponse:
    """The groups this broker answers for."""

    error_code: int
    groups: tuple[ListedGroup, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupsRequest:
    """Forget these groups and their offsets."""

    groups_names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletableGroupResult:
    """What became of one group."""

    group_id: str
    error_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupsResponse:
    """What became of the groups."""

    results: tuple[DeletableGroupResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteRequestPartition:
    """One partition."""

    partition_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteRequestTopic:
    """Partitions of one topic."""

    name: str
    partitions: tuple[OffsetDeleteRequestPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteRequest:
    """Forget what the group has committed of these partitions."""

    group_id: str
    topics: tuple[OffsetDeleteRequestTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteResponsePartition:
    """What became of one partition's offset."""

    partition_index: int
    error_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteResponseTopic:
    """What became of the offsets of one topic."""

    name: str
    partitions: tuple[OffsetDeleteResponsePartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteResponse:
    """What became of the offsets; with an error of the whole request there are no topics."""

    error_code: int = 0
    topics: tuple[OffsetDeleteResponseTopic, ...] = ()
