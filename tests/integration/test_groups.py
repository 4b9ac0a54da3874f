"""Consumer groups on real brokers: every version of every API, coordinators that die, stall and come back.

More clients and longer scenarios are in tests/compat/test_groups.py.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from millrace.client.cluster_client import ClusterClient
from millrace.errors import ErrorCode
from millrace.wire import group_messages as gm
from millrace.wire.codec import decode, encode
from millrace.wire.fields import TopicItems
from millrace.wire.group_messages import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from millrace.wire.messages import ApiKey, TopicPartitions
from millrace.zookeeper.session import Session
from millrace_broker.groups.holding import coordinator_of
from tests.brokers import TestCluster
from tests.compat.groups import Members, feed
from tests.integration.faults.wire import Wire, frame
from tests.support import ROUNDS, WAIT_S, Process, wait_until

SETTINGS = (
    "group_min_session_timeout_ms = 500\ngroup_initial_rebalance_delay_ms = 100\n[log]\nflush_ms = 20\n"
)
NONE = ErrorCode.NONE
PROTOCOLS = (gm.JoinGroupRequest.Protocol(name="range", metadata=b"topics"),)

VERSIONS: dict[ApiKey, tuple[range, type[Any]]] = {
    ApiKey.OFFSET_COMMIT: (range(2, 10), gm.OffsetCommitResponse),
    ApiKey.OFFSET_FETCH: (range(1, 10), OffsetFetchResponse),
    ApiKey.FIND_COORDINATOR: (range(6), FindCoordinatorResponse),
    ApiKey.JOIN_GROUP: (range(10), gm.JoinGroupResponse),
    ApiKey.HEARTBEAT: (range(5), gm.HeartbeatResponse),
    ApiKey.LEAVE_GROUP: (range(6), gm.LeaveGroupResponse),
    ApiKey.SYNC_GROUP: (range(6), gm.SyncGroupResponse),
    ApiKey.DESCRIBE_GROUPS: (range(7), gm.DescribeGroupsResponse),
    ApiKey.LIST_GROUPS: (range(6), gm.ListGroupsResponse),
    ApiKey.DELETE_GROUPS: (range(3), gm.DeleteGroupsResponse),
    ApiKey.OFFSET_DELETE: (range(1), gm.OffsetDeleteResponse),
}


class Asking:
    """A client that asks one broker, in one version of an API or another."""

    def __init__(self, client: ClusterClient, broker_id: int, *, lowest: bool = False) -> None:
        self.client, self.broker_id, self.lowest = client, broker_id, lowest

    def ask(self, key: ApiKey, message: object) -> Any:
        versions, response = VERSIONS[key]
        version = versions[0] if self.lowest else versions[-1]
        raw = self.client.ask(self.broker_id, key, version, encode(message, key, version))
        return decode(response, key, version, raw)

    def join(self, group: str, member_id: str = "", session_ms: int = 10_000) -> Any:
        request = gm.JoinGroupRequest(
            group_id=group,
            session_timeout=session_ms,
            rebalance_timeout=10_000,
            member_id=member_id,
            protocol_type="consumer",
            protocols=PROTOCOLS,
        )
        return self.ask(ApiKey.JOIN_GROUP, request)

    def joined(self, group: str, session_ms: int = 10_000) -> Any:
        """In the group, alone, as its leader; an id is asked for first where the version does that."""
        answer = self.join(group, session_ms=session_ms)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            answer = self.join(group, answer.member_id, session_ms)
        assert answer.error_code == NONE
        assert answer.leader == answer.member_id
        return answer

    def sync(self, group: str, joined: Any, assignment: bytes = b"all") -> Any:
        assigned = gm.SyncGroupRequest.Assignment(member_id=joined.member_id, assignment=assignment)
        return self.ask(
            ApiKey.SYNC_GROUP,
            gm.SyncGroupRequest(
                group_id=group,
                generation_id=joined.generation_id,
                member_id=joined.member_id,
                protocol_type=joined.protocol_type,
                protocol_name=joined.protocol_name,
                assignments=(assigned,),
            ),
        )

    def heartbeat(self, group: str, joined: Any) -> ErrorCode:
        request = gm.HeartbeatRequest(
            group_id=group, generation_id=joined.generation_id, member_id=joined.member_id
        )
        return ErrorCode(self.ask(ApiKey.HEARTBEAT, request).error_code)

    def commit(
        self, group: str, offset: int, joined: Any = None, topic: str = "t", epoch: int = -1
    ) -> ErrorCode:
        partition = gm.OffsetCommitRequest.Partition(
            partition_index=0, committed_offset=offset, committed_leader_epoch=epoch
        )
        request = gm.OffsetCommitRequest(
            group_id=group,
            topics=(TopicItems(name=topic, partitions=(partition,)),),
            member_id=joined.member_id if joined else "",
            generation_id_or_member_epoch=joined.generation_id if joined else -1,
        )
        return ErrorCode(self.ask(ApiKey.OFFSET_COMMIT, request).topics[0].partitions[0].error_code)

    def committed(self, group: str) -> int:
        return int(self.committed_partition(group).committed_offset)

    def committed_partition(self, group: str) -> gm.FetchedOffset:
        """Fetch the group's offset of partition 0 of topic t."""
        topics = (TopicPartitions(name="t", partition_indexes=(0,)),)
        groups = (OffsetFetchRequest.Group(group_id=group, topics=topics),)
        asked = OffsetFetchRequest(group_id=group, topics=topics, groups=groups)
        answer = self.ask(ApiKey.OFFSET_FETCH, asked)
        found: gm.FetchedOffset = (answer if self.lowest else answer.groups[0]).topics[0].partitions[0]
        return found

    def coordinator(self, group: str) -> int:
        """Its id, or minus the error."""
        asked = FindCoordinatorRequest(key=group, coordinator_keys=(group,))
        answer = self.ask(ApiKey.FIND_COORDINATOR, asked)
        if not self.lowest:
            (answer,) = answer.coordinators
        return int(-answer.error_code if answer.error_code else answer.node_id)

    def describe(self, group: str) -> gm.DescribedGroup:
        answer = self.ask(ApiKey.DESCRIBE_GROUPS, gm.DescribeGroupsRequest(groups=(group,)))
        found: gm.DescribedGroup = answer.groups[0]
        return found

    def listed(self) -> list[str]:
        return [group.group_id for group in self.ask(ApiKey.LIST_GROUPS, gm.ListGroupsRequest()).groups]

    def states(self, *wanted: str) -> dict[str, str]:
        groups = self.ask(ApiKey.LIST_GROUPS, gm.ListGroupsRequest(states_filter=wanted)).groups
        return {group.group_id: group.group_state for group in groups}

    def delete_offset(self, group: str) -> ErrorCode:
        """Delete the group's offset of partition 0 of topic t."""
        partitions = (gm.OffsetDeleteRequest.Partition(partition_index=0),)
        topics = (TopicItems(name="t", partitions=partitions),)
        answer = self.ask(ApiKey.OFFSET_DELETE, gm.OffsetDeleteRequest(group_id=group, topics=topics))
        return ErrorCode(answer.error_code or answer.topics[0].partitions[0].error_code)

    def delete(self, group: str) -> ErrorCode:
        answer = self.ask(ApiKey.DELETE_GROUPS, gm.DeleteGroupsRequest(groups_names=(group,)))
        return ErrorCode(answer.results[0].error_code)


@pytest.fixture(scope="module")
def cluster(
    start_for_module: Callable[..., Process], zookeeper: str, tmp_path_factory: pytest.TempPathFactory
) -> TestCluster:
    """Broker 1 leads all partitions."""
    folder = tmp_path_factory.mktemp("groups")
    made = TestCluster(start_for_module, "group-tests", folder, zookeeper, SETTINGS).start_brokers(1)
    with made.client() as client:
        client.create_topic("t", 4)
    return made.start_brokers(2)


@pytest.fixture
def client(cluster: TestCluster) -> Iterator[ClusterClient]:
    for number, broker in cluster.brokers.items():
        if not broker.process.running:
            cluster.restart(number)
    with cluster.client() as connected:
        yield connected


def group_of(broker_id: int, name: str) -> str:
    """A group's name such that the choice falls on this broker."""
    names = (f"{name} {number}" for number in range(1000))
    return next(each for each in names if coordinator_of(each, (1, 2)) == broker_id)


def test_a_consumer_that_comes_back_is_told_the_leader_epoch_of_what_it_read_last(
    client: ClusterClient,
) -> None:
    asking, group = Asking(client, 1), group_of(1, "epoch")
    assert asking.commit(group, 5, epoch=3) is NONE
    assert asking.committed_partition(group).committed_leader_epoch == 3
    assert asking.commit(group, 6) is NONE
    assert asking.committed_partition(group).committed_leader_epoch == -1


def test_a_look_up_behind_a_commit_on_one_connection_sees_the_commit(
    cluster: TestCluster, client: ClusterClient
) -> None:
    group, topics = group_of(1, "pipelined"), (TopicPartitions(name="t", partition_indexes=(0,)),)
    look_up = encode(OffsetFetchRequest(group_id=group, topics=topics), ApiKey.OFFSET_FETCH, 1)
    with Wire(cluster.brokers[1].address) as wire:
        for offset in range(10):
            partition = gm.OffsetCommitRequest.Partition(partition_index=0, committed_offset=offset)
            topic = TopicItems(name="t", partitions=(partition,))
            commit = encode(gm.OffsetCommitRequest(group_id=group, topics=(topic,)), ApiKey.OFFSET_COMMIT, 2)
            both = frame(ApiKey.OFFSET_COMMIT, 2, commit) + frame(ApiKey.OFFSET_FETCH, 1, look_up)
            wire.socket.sendall(both)
            wire.receive()
            answer = decode(OffsetFetchResponse, ApiKey.OFFSET_FETCH, 1, wire.receive())
            assert answer.topics[0].partitions[0].committed_offset == offset


@pytest.mark.parametrize("lowest", [True, False])
def test_a_group_lives_and_ends_in_the_first_and_in_the_last_versions(
    client: ClusterClient, lowest: bool
) -> None:
    group = group_of(1, f"life {lowest}")
    one, two = (Asking(client, broker_id, lowest=lowest) for broker_id in (1, 2))
    assert one.coordinator(group) == two.coordinator(group) == 1
    dead = one.describe(group)
    assert lowest or dead.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert dead.group_state == "Dead"
    joined = one.joined(group)
    assert [member.metadata for member in joined.members] == [b"topics"]
    assert one.commit(group, 1, joined) is ErrorCode.REBALANCE_IN_PROGRESS
    assert one.sync(group, joined).assignment == b"all"
    assert one.heartbeat(group, joined) is NONE
    assert one.commit(group, 7, joined) is NONE
    assert one.committed(group) == two.committed(group) == 7
    assert one.commit(group, 8) is ErrorCode.UNKNOWN_MEMBER_ID
    assert one.commit(group, 8, joined, topic="nope") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    shown = one.describe(group)
    assert (shown.group_state, shown.protocol_data) == ("Stable", "range")
    assert shown.members[0].client_host == "/127.0.0.1"
    assert shown.members[0].member_assignment == b"all"
    assert group in one.listed()
    assert group not in two.listed()
    assert two.describe(group).error_code == ErrorCode.NOT_COORDINATOR
    assert two.heartbeat(group, joined) is ErrorCode.NOT_COORDINATOR
    assert one.delete(group) is ErrorCode.NON_EMPTY_GROUP
    identity = gm.LeaveGroupRequest.Member(member_id=joined.member_id)
    left = one.ask(
        ApiKey.LEAVE_GROUP,
        gm.LeaveGroupRequest(group_id=group, member_id=joined.member_id, members=(identity,)),
    )
    assert left.error_code == NONE
    assert lowest or left.members[0].error_code == NONE
    assert one.describe(group).group_state == "Empty"
    assert one.commit(group, 9) is NONE, "who assigns partitions itself, or an administrator"
    assert one.delete(group) is NONE
    assert one.delete(group) is ErrorCode.GROUP_ID_NOT_FOUND
    assert two.committed(group) == -1


@pytest.mark.parametrize(
    ("key", "version"), [(key, version) for key, (versions, _) in VERSIONS.items() for version in versions]
)
def test_every_version_answers_in_its_own_layout(client: ClusterClient, key: ApiKey, version: int) -> None:
    """The codec refuses an answer with a byte too few or of another version's fields."""
    empty = {
        ApiKey.OFFSET_COMMIT: gm.OffsetCommitRequest(group_id="", topics=()),
        ApiKey.OFFSET_FETCH: OffsetFetchRequest(group_id="", topics=()),
        ApiKey.FIND_COORDINATOR: FindCoordinatorRequest(key=""),
        ApiKey.JOIN_GROUP: gm.JoinGroupRequest(
            group_id="", session_timeout=1, protocol_type="", protocols=()
        ),
        ApiKey.HEARTBEAT: gm.HeartbeatRequest(group_id="", generation_id=1, member_id=""),
        ApiKey.LEAVE_GROUP: gm.LeaveGroupRequest(group_id="x"),
        ApiKey.SYNC_GROUP: gm.SyncGroupRequest(group_id="x", generation_id=1, member_id=""),
        ApiKey.DESCRIBE_GROUPS: gm.DescribeGroupsRequest(groups=("", "x")),
        ApiKey.LIST_GROUPS: gm.ListGroupsRequest(),
        ApiKey.DELETE_GROUPS: gm.DeleteGroupsRequest(groups_names=("",)),
        ApiKey.OFFSET_DELETE: gm.OffsetDeleteRequest(group_id="x", topics=()),
    }[key]
    raw = client.ask(1, key, version, encode(empty, key, version))
    answer = decode(VERSIONS[key][1], key, version, raw)
    assert encode(answer, key, version) == bytes(raw)


def test_groups_are_listed_with_their_states_and_by_them(client: ClusterClient) -> None:
    asking, group, empty = Asking(client, 1), group_of(1, "listed"), group_of(1, "empty")
    asking.sync(group, asking.joined(group))
    asking.commit(empty, 1)
    states = asking.states()
    assert (states[group], states[empty]) == ("Stable", "Empty")
    assert group in asking.states("stable")
    assert group not in asking.states("Empty", "Dead")


def test_many_groups_are_found_and_asked_about_at_once(client: ClusterClient) -> None:
    asking, names = Asking(client, 1), [group_of(1, "one of many"), group_of(2, "another"), "nobody"]
    Asking(client, 1).commit(names[0], 5)
    Asking(client, 2).commit(names[1], 6)
    keys = FindCoordinatorRequest(coordinator_keys=(*names, ""))
    found = asking.ask(ApiKey.FIND_COORDINATOR, keys).coordinators
    assert [one.key for one in found] == [*names, ""]
    assert [one.node_id for one in found[:2]] == [1, 2]
    assert found[3].error_code == ErrorCode.INVALID_GROUP_ID
    groups = tuple(OffsetFetchRequest.Group(group_id=name, topics=None) for name in names)
    answer = asking.ask(ApiKey.OFFSET_FETCH, OffsetFetchRequest(groups=groups))
    offsets = {
        group.group_id: [p.committed_offset for topic in group.topics for p in topic.partitions]
        for group in answer.groups
    }
    assert offsets == {names[0]: [5], names[1]: [6], "nobody": []}


def test_who_syncs_with_another_protocol_than_was_chosen_is_refused(client: ClusterClient) -> None:
    asking, group = Asking(client, 1), group_of(1, "protocols")
    joined = asking.joined(group)
    assert (joined.protocol_type, joined.protocol_name) == ("consumer", "range")
    other = joined._replace(protocol_name="roundrobin")
    assert asking.sync(group, other).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    synced = asking.sync(group, joined)
    assert (synced.protocol_type, synced.protocol_name) == ("consumer", "range")


def test_offsets_are_deleted_and_negative_ones_reset(client: ClusterClient) -> None:
    asking, group = Asking(client, 1), group_of(1, "moved")
    assert asking.commit(group, 3) is NONE
    assert asking.commit(group, -2) is NONE
    assert asking.committed(group) == -1, "kafkajs sends a group back so, and then begins where it is told"
    assert asking.commit(group, 7) is NONE
    assert asking.delete_offset(group) is NONE
    assert asking.committed(group) == -1
    assert asking.delete_offset(group) is NONE, "what is not there is deleted"
    assert asking.delete_offset("nobody") is ErrorCode.GROUP_ID_NOT_FOUND


def test_who_leaves_a_group_that_nobody_coordinates_is_told_that_it_is_no_member(
    client: ClusterClient,
) -> None:
    # Not to look for another coordinator: an administrator's client would do so until it gives up.
    identity = gm.LeaveGroupRequest.Member(member_id="", group_instance_id="gone")
    left = gm.LeaveGroupRequest(group_id="left alone", members=(identity,))
    answer = Asking(client, 1).ask(ApiKey.LEAVE_GROUP, left)
    assert (answer.error_code, [one.error_code for one in answer.members]) == (
        NONE,
        [ErrorCode.UNKNOWN_MEMBER_ID],
    )
    left = gm.LeaveGroupRequest(group_id="left alone too", member_id="gone")
    answer = Asking(client, 1, lowest=True).ask(ApiKey.LEAVE_GROUP, left)
    assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_that_never_commits_leaves_nothing_in_zookeeper(
    start: Callable[..., Process], zookeeper: str, tmp_path: Path
) -> None:
    cluster = TestCluster(start, "console", tmp_path, zookeeper, SETTINGS).start_brokers(1)
    with cluster.client() as client:
        client.create_topic("t", 1)
        asking = Asking(client, 1)
        asking.joined("console-consumer-4711")
        assert asking.commit("with offsets", 1) is NONE
    session = Session.connect(zookeeper)
    assert session.children("/console/consumers") == ["console-consumer-4711", "with%20offsets"]
    cluster.brokers[1].process.stop()
    assert session.children("/console/consumers") == ["with%20offsets"]
    assert "coordinator" not in session.children("/console/consumers/with%20offsets")
    session.close()


def test_a_coordinator_that_stalls_is_replaced_and_fenced(
    client: ClusterClient, cluster: TestCluster
) -> None:
    """It is stopped until ZooKeeper has given it up, and goes on with members and offsets of its own."""
    group, stalled = group_of(2, "stalled"), Asking(client, 2)
    joined = stalled.joined(group)
    stalled.sync(group, joined)
    assert stalled.commit(group, 5, joined) is NONE
    other = Asking(client, 1)
    cluster.brokers[2].process.signal(signal.SIGSTOP)
    try:
        wait_until("the other one is to coordinate it", lambda: other.coordinator(group) == 1)
        again = other.joined(group, session_ms=60_000)
        other.sync(group, again)
        assert other.committed(group) == 5
        assert other.commit(group, 6, again) is NONE
    finally:
        cluster.brokers[2].process.signal(signal.SIGCONT)
    refused = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert stalled.heartbeat(group, joined) in refused, "the first one, too"
    assert stalled.commit(group, 99, joined) in refused
    wait_until("it knows", lambda: stalled.heartbeat(group, joined) is ErrorCode.NOT_COORDINATOR)
    assert other.committed(group) == stalled.committed(group) == 6
    assert other.heartbeat(group, again) is NONE


def test_a_coordinator_that_stood_still_for_longer_than_a_session_hears_the_heartbeat_that_came(
    client: ClusterClient, cluster: TestCluster
) -> None:
    group, asking = group_of(1, "stood still"), Asking(client, 1)
    joined = asking.joined(group, session_ms=2_500)
    asking.sync(group, joined)
    cluster.brokers[1].process.signal(signal.SIGSTOP)
    with ThreadPoolExecutor(1) as beside:
        try:
            heartbeat = beside.submit(asking.heartbeat, group, joined)
            time.sleep(3.5)
        finally:
            cluster.brokers[1].process.signal(signal.SIGCONT)
        assert heartbeat.result(timeout=20) is NONE


@pytest.mark.long
def test_a_broker_that_restarts_takes_up_its_group_at_once(
    client: ClusterClient, cluster: TestCluster
) -> None:
    group, asking = group_of(2, "restarted"), Asking(client, 2)
    joined = asking.joined(group)
    asking.sync(group, joined)
    assert asking.commit(group, 5, joined) is NONE
    cluster.brokers[2].kill()
    cluster.restart(2)
    wait_until("it coordinates again", lambda: Asking(client, 2).coordinator(group) == 2)
    assert asking.heartbeat(group, joined) is ErrorCode.UNKNOWN_MEMBER_ID
    assert asking.committed(group) == 5
    assert asking.joined(group).generation_id == 1


def test_members_and_their_coordinator_are_killed_and_nothing_is_lost(
    start: Callable[..., Process], client: ClusterClient, cluster: TestCluster
) -> None:
    members = Members(start, cluster.bootstrap, "t", group_of(2, "killed"))
    with feed(cluster.bootstrap, "t", 4) as sent:
        for _ in range(3):
            members.add("confluent-kafka", pause_s=0.02)
        members.balanced(4)
        members.started[0].kill()
        cluster.brokers[2].kill()
        members.balanced(4)
        known = len(sent)
        wait_until("the group reads on", lambda: len(sent) > known + 50)
    members.received(sent)
    members.check_deliveries()


@pytest.mark.long
def test_rounds_of_kills_lose_nothing_and_repeat_only_what_was_not_committed(
    start: Callable[..., Process], zookeeper: str, tmp_path: Path
) -> None:
    """Members of three clients; each round kills one of them, the coordinator, or both at once."""
    clients = ("confluent-kafka", "kafka-python", "aiokafka")
    cluster = TestCluster(start, "rounds", tmp_path, zookeeper, SETTINGS).start_brokers(1)
    with cluster.client() as client:
        client.create_topic("t", 4)
    cluster.start_brokers(2, 3)
    # The coordinator changes between 2 and 3, because 1 leads all partitions.
    names = (f"rounds {number}" for number in range(1000))
    group = next(n for n in names if (coordinator_of(n, (1, 2)), coordinator_of(n, (1, 3))) == (2, 3))
    members = Members(start, cluster.bootstrap, "t", group)
    with cluster.client() as client, feed(cluster.bootstrap, "t", 4, per_second=200) as sent:
        for name in clients:
            members.add(name, assignor="roundrobin", pause_s=0.01)
        members.balanced(4)
        for number in range(ROUNDS):
            what = random.choice(("member", "coordinator", "both"))
            if what != "coordinator":
                random.choice(members.alive).kill()
                members.add(clients[number % 3], assignor="roundrobin", pause_s=0.01)
            coordinator = Asking(client, 1).coordinator(group)
            if what != "member":
                cluster.brokers[coordinator].kill()
                time.sleep(random.uniform(0, 3))
                cluster.restart(coordinator)
            members.balanced(4)
            wait_until("it has a coordinator", lambda: Asking(client, 1).coordinator(group) in (2, 3))
            members.commit_again()
    members.received(sent)
    members.check_deliveries()


@pytest.mark.long
def test_without_zookeeper_commits_fail_in_time_and_members_stay(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    data = ("--data-dir", str(tmp_path / "zookeeper"))
    zookeeper = start("zookeeper", "--port", "0", *data)
    address = zookeeper.ready()
    cluster = TestCluster(start, "away", tmp_path, address, SETTINGS).start_brokers(1)
    with cluster.client() as client:
        client.create_topic("t", 1)
        asking = Asking(client, 1)
        joined = asking.joined("g")
        asking.sync("g", joined)
        assert zookeeper.stop() == 0
        beating = threading.Event()
        codes: list[ErrorCode] = []
        beats = threading.Thread(target=_beat, args=(cluster, joined, beating, codes))
        beats.start()
        for _ in range(3):
            began = time.monotonic()
            assert asking.commit("g", 1, joined) is ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert time.monotonic() - began < WAIT_S
        assert asking.coordinator("g") == 1
        start("zookeeper", "--port", address.rpartition(":")[2], *data).ready()
        wait_until("commits work again", lambda: asking.commit("g", 2, joined) is NONE)
        beating.set()
        beats.join()
        assert set(codes) == {NONE}
        assert asking.committed("g") == 2


def _beat(cluster: TestCluster, joined: Any, stopping: threading.Event, codes: list[ErrorCode]) -> None:
    with cluster.client() as client:
        while not stopping.wait(1.0):
            codes.append(Asking(client, 1).heartbeat("g", joined))
