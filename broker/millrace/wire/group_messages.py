"""The requests and responses of Kafka's classic consumer groups, as values; see `wire.messages`.

Member metadata and assignments are opaque: clients write and read them, a broker only passes them on.
"""

from __future__ import annotations

from millrace.wire.fields import (
    ApiMessage,
    TopicItems,
    array,
    boolean,
    by_topic,
    data,
    i8,
    i16,
    i32,
    i64,
    string,
)
from millrace.wire.messages import NO_OPERATIONS, ApiKey, TopicPartitions


class FindCoordinatorRequest(ApiMessage, request_of=ApiKey.FIND_COORDINATOR):
    key: str = string(until=3, default="")
    key_type: int = i8(since=1, default=0)  # a key names a group (0), a transactional id (1), shares (2)
    coordinator_keys: tuple[str, ...] = array(string(), since=4, default=())  # KIP-699


class FindCoordinatorResponse(ApiMessage, response_of=ApiKey.FIND_COORDINATOR):
    class Coordinator(ApiMessage):
        key: str = string()
        node_id: int = i32(default=-1)
        host: str = string(default="")
        port: int = i32(default=-1)
        error_code: int = i16(default=0)
        error_message: str | None = string(null_since=4, default=None)

    throttle_time: int = i32(since=1, default=0)
    error_code: int = i16(until=3, default=0)
    error_message: str | None = string(since=1, until=3, null_since=1, default=None)
    node_id: int = i32(until=3, default=-1)
    host: str = string(until=3, default="")
    port: int = i32(until=3, default=-1)
    coordinators: tuple[Coordinator, ...] = array(Coordinator, since=4, default=())


class JoinGroupRequest(ApiMessage, request_of=ApiKey.JOIN_GROUP):
    class Protocol(ApiMessage):  # a way of assigning partitions, and the member's data for the group's leader
        name: str = string()
        metadata: bytes = data()

    group_id: str = string()
    session_timeout: int = i32()
    rebalance_timeout: int = i32(since=1, default=-1)
    member_id: str = string(default="")
    group_instance_id: str | None = string(since=5, null_since=5, default=None)
    protocol_type: str = string()
    protocols: tuple[Protocol, ...] = array(Protocol)  # in order of preference
    reason: str | None = string(since=8, null_since=8, default=None)  # KIP-800


class JoinGroupResponse(ApiMessage, response_of=ApiKey.JOIN_GROUP):
    class Member(ApiMessage):
        member_id: str = string()
        group_instance_id: str | None = string(since=5, null_since=5, default=None)
        metadata: bytes = data(default=b"")

    throttle_time: int = i32(since=2, default=0)
    error_code: int = i16()
    generation_id: int = i32(default=-1)
    protocol_type: str | None = string(since=7, null_since=7, default=None)  # KIP-559
    protocol_name: str | None = string(null_since=7, default="")
    leader: str = string(default="")
    skip_assignment: bool = boolean(since=9, default=False)  # KIP-814
    member_id: str = string(default="")
    members: tuple[Member, ...] = array(Member, default=())  # for the leader only


class SyncGroupRequest(ApiMessage, request_of=ApiKey.SYNC_GROUP):
    class Assignment(ApiMessage):
        member_id: str = string()
        assignment: bytes = data()

    group_id: str = string()
    generation_id: int = i32()
    member_id: str = string()
    group_instance_id: str | None = string(since=3, null_since=3, default=None)
    protocol_type: str | None = string(since=5, null_since=5, default=None)  # KIP-559
    protocol_name: str | None = string(since=5, null_since=5, default=None)
    assignments: tuple[Assignment, ...] = array(Assignment, default=())  # from the leader only


class SyncGroupResponse(ApiMessage, response_of=ApiKey.SYNC_GROUP):
    throttle_time: int = i32(since=1, default=0)
    error_code: int = i16()
    protocol_type: str | None = string(since=5, null_since=5, default=None)
    protocol_name: str | None = string(since=5, null_since=5, default=None)
    assignment: bytes = data(default=b"")


class HeartbeatRequest(ApiMessage, request_of=ApiKey.HEARTBEAT):
    group_id: str = string()
    generation_id: int = i32()
    member_id: str = string()
    group_instance_id: str | None = string(since=3, null_since=3, default=None)


class HeartbeatResponse(ApiMessage, response_of=ApiKey.HEARTBEAT):
    throttle_time: int = i32(since=1, default=0)
    error_code: int = i16()


class LeaveGroupRequest(ApiMessage, request_of=ApiKey.LEAVE_GROUP):
    class Member(ApiMessage):  # by its id, its instance id or both
        member_id: str = string()
        group_instance_id: str | None = string(null_since=3, default=None)
        reason: str | None = string(since=5, null_since=5, default=None)  # KIP-800

    group_id: str = string()
    member_id: str = string(until=2, default="")
    members: tuple[Member, ...] = array(Member, since=3, default=())


class LeaveGroupResponse(ApiMessage, response_of=ApiKey.LEAVE_GROUP):
    class Member(ApiMessage):
        member_id: str = string()
        group_instance_id: str | None = string(null_since=3)
        error_code: int = i16()

    throttle_time: int = i32(since=1, default=0)
    error_code: int = i16()
    members: tuple[Member, ...] = array(Member, since=3, default=())


class OffsetCommitRequest(ApiMessage, request_of=ApiKey.OFFSET_COMMIT):
    class Partition(ApiMessage):
        partition_index: int = i32()
        committed_offset: int = i64()  # the next to read
        committed_leader_epoch: int = i32(since=6, default=-1)
        committed_metadata: str | None = string(null_since=0, default="")

    group_id: str = string()
    generation_id_or_member_epoch: int = i32(since=1, default=-1)  # -1: not a member
    member_id: str = string(since=1, default="")
    group_instance_id: str | None = string(since=7, null_since=7, default=None)
    retention_time: int = i64(since=2, until=4, default=-1)
    topics: tuple[TopicItems[Partition], ...] = by_topic(Partition)


class PartitionOutcome(ApiMessage):
    partition_index: int = i32()
    error_code: int = i16()


class OffsetCommitResponse(ApiMessage, response_of=ApiKey.OFFSET_COMMIT):
    throttle_time: int = i32(since=3, default=0)
    topics: tuple[TopicItems[PartitionOutcome], ...] = by_topic(PartitionOutcome)


class OffsetFetchRequest(ApiMessage, request_of=ApiKey.OFFSET_FETCH):
    class Group(ApiMessage):  # KIP-709
        group_id: str = string()
        member_id: str | None = string(since=9, null_since=9, default=None)  # KIP-848
        member_epoch: int = i32(since=9, default=-1)
        topics: tuple[TopicPartitions, ...] | None = array(TopicPartitions, null_since=8)

    group_id: str = string(until=7, default="")
    topics: tuple[TopicPartitions, ...] | None = array(TopicPartitions, until=7, null_since=2, default=())
    """None: all partitions for which the group has committed offsets."""
    groups: tuple[Group, ...] = array(Group, since=8, default=())
    require_stable: bool = boolean(since=7, default=False)  # KIP-447, of transactions


class FetchedOffset(ApiMessage):
    partition_index: int = i32()
    committed_offset: int = i64(default=-1)  # -1: none
    committed_leader_epoch: int = i32(since=5, default=-1)
    metadata: str | None = string(null_since=0, default="")
    error_code: int = i16(default=0)


class OffsetFetchResponse(ApiMessage, response_of=ApiKey.OFFSET_FETCH):
    class Group(ApiMessage):
        group_id: str = string()
        topics: tuple[TopicItems[FetchedOffset], ...] = by_topic(FetchedOffset)
        error_code: int = i16(default=0)

    throttle_time: int = i32(since=3, default=0)
    topics: tuple[TopicItems[FetchedOffset], ...] = by_topic(FetchedOffset, until=7, default=())
    error_code: int = i16(since=2, until=7, default=0)
    groups: tuple[Group, ...] = array(Group, since=8, default=())


class OffsetDeleteRequest(ApiMessage, request_of=ApiKey.OFFSET_DELETE):
    class Partition(ApiMessage):
        partition_index: int = i32()

    group_id: str = string()
    topics: tuple[TopicItems[Partition], ...] = by_topic(Partition)


class OffsetDeleteResponse(ApiMessage, response_of=ApiKey.OFFSET_DELETE):
    error_code: int = i16(default=0)
    throttle_time: int = i32(default=0)
    topics: tuple[TopicItems[PartitionOutcome], ...] = by_topic(PartitionOutcome, default=())


class DescribeGroupsRequest(ApiMessage, request_of=ApiKey.DESCRIBE_GROUPS):
    groups: tuple[str, ...] = array(string())
    include_authorized_operations: bool = boolean(since=3, default=False)


class DescribedGroup(ApiMessage):
    class Member(ApiMessage):
        member_id: str = string()
        group_instance_id: str | None = string(since=4, null_since=4, default=None)
        client_id: str = string(default="")
        client_host: str = string(default="")
        member_metadata: bytes = data(default=b"")  # as the assignment, empty unless the group is stable
        member_assignment: bytes = data(default=b"")

    error_code: int = i16()
    error_message: str | None = string(since=6, null_since=6, default=None)  # KIP-1043
    group_id: str = string()
    group_state: str = string(default="")
    protocol_type: str = string(default="")
    protocol_data: str = string(default="")  # the name of the protocol in use
    members: tuple[Member, ...] = array(Member, default=())
    authorized_operations: int = i32(since=3, default=NO_OPERATIONS)


class DescribeGroupsResponse(ApiMessage, response_of=ApiKey.DESCRIBE_GROUPS):
    throttle_time: int = i32(since=1, default=0)
    groups: tuple[DescribedGroup, ...] = array(DescribedGroup)


class ListGroupsRequest(ApiMessage, request_of=ApiKey.LIST_GROUPS):
    states_filter: tuple[str, ...] = array(string(), since=4, default=())  # empty: groups of any state
    types_filter: tuple[str, ...] = array(string(), since=5, default=())  # KIP-848; empty: of any type


class ListedGroup(ApiMessage):
    group_id: str = string()
    protocol_type: str = string()
    group_state: str = string(since=4, default="")
    group_type: str = string(since=5, default="classic")


class ListGroupsResponse(ApiMessage, response_of=ApiKey.LIST_GROUPS):
    throttle_time: int = i32(since=1, default=0)
    error_code: int = i16()
    groups: tuple[ListedGroup, ...] = array(ListedGroup, default=())


class DeleteGroupsRequest(ApiMessage, request_of=ApiKey.DELETE_GROUPS):
    groups_names: tuple[str, ...] = array(string())


class DeleteGroupsResponse(ApiMessage, response_of=ApiKey.DELETE_GROUPS):
    class Group(ApiMessage):
        group_id: str = string()
        error_code: int = i16()

    throttle_time: int = i32(default=0)
    results: tuple[Group, ...] = array(Group)
